"""`add_files`: adds Parquet files that another program wrote to the table, without copying them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    ConstraintViolationError,
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    SchemaMismatchError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import is_not_true
from delta_orch.log.files.effect import words_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import distinct_rows, file_partition_strings
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult, ensure_unscoped
from delta_orch.protocol.arrow_building import string_array, type_to_arrow
from delta_orch.protocol.partition_values import parse_partition_value, serialize_partition_value
from delta_orch.protocol.paths import decode_path, encode_path, is_absolute, local_path_in_log
from delta_orch.protocol.types import (
    DataType,
    StructField,
    StructType,
    is_stored_form,
    parts_beside,
    traits_of,
)
from delta_orch.scan.scan import scan_of_files
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.table.column_mapping import ColumnMappingMode, physical_name, to_physical
from delta_orch.table.type_widening import is_widening
from delta_orch.verbs.parquet_files import OF_32_BITS, FileSchema, described_files, partition_values_of, read_schemas
from delta_orch.verbs.removed_files import inner_tables_above
from delta_orch.verbs.vacuum import ensure_none_runs
from delta_orch.writing.plan import Write, WritePlan, run_plan
from delta_orch.writing.selection import first_file_with
from delta_orch.writing.target import RowShape, WriteTarget

_MOST_NAMED = 5
PartitionValues = Mapping[str, object]


def add_files(
    log: TableLog,
    snapshot: Snapshot,
    paths: Sequence[str | PathLike[str]],
    partition_values: PartitionValues | Sequence[PartitionValues] | None,
    replace_where: str | Expression | None,
    options: CommitOptions,
) -> CommitResult:
    """Add existing Parquet files to the table in one commit. No file is moved, copied or changed.

    With `replace_where`, the new files replace exactly the rows that satisfy the predicate, in the same commit, as
    `overwrite` does. All rows of the new files must satisfy the predicate. Older files that also hold other rows are
    rewritten.

    Statistics come from the footers. If the table has rules for its rows (NOT NULL, constraints, generated columns,
    lengths), the rows of the files are read and checked. A file may lack a column that is nullable and has no default.

    Two commits that add files to the same partitions conflict, because both might add the same file.

    Raises as `DeltaTable.add_files`.
    """
    ensure_unscoped(options, "Files are added to the whole table")
    if options.get("stage"):
        raise InvalidRequestError(
            "The operation ADD FILES cannot be staged",
            cause="Discarding a staged write deletes its files, and ADD FILES does not own the files that it adds",
            remedy="Stage an append, overwrite, delete, update, merge or upsert",
        )
    parameters: dict[str, object] = {"numFiles": len(paths)}
    if replace_where is not None:
        parameters["predicate"] = words_of(replace_where)

    def change(write: Write) -> dict[str, int]:
        # Check for a running vacuum before the files are listed. A vacuum that ended before has deleted its files
        # already.
        ensure_none_runs(log)
        write.transaction.relies_on_unnamed_files()
        adds = _described(snapshot, write.target, paths, partition_values)
        metrics = {"numFiles": adds.num_rows, "numOutputBytes": FileTable(adds).size_bytes}
        if replace_where is not None:
            metrics |= _replace(write, adds, replace_where)
        if write.target.partition_columns:
            partitions = file_partition_strings(adds, write.target.schema, write.target.partition_columns)
            write.transaction.read_partitions(distinct_rows(partitions))
        else:
            write.transaction.read_whole_table()
        outside = pa.array([is_absolute(path) for path in FileTable(adds).path.to_pylist()], pa.bool_())
        write.transaction.add_files(pc.filter(adds, pc.invert(outside)), just_written=True)
        write.transaction.add_files(pc.filter(adds, outside))
        return metrics

    return run_plan(log, snapshot, WritePlan("ADD FILES", parameters, change, options))


def _described(
    snapshot: Snapshot,
    target: WriteTarget,
    paths: Sequence[str | PathLike[str]],
    partition_values: PartitionValues | Sequence[PartitionValues] | None,
) -> pa.Table:
    """Return the files as rows of `ADD_SCHEMA`, after checking that they fit the table."""
    _ensure_takes_files(target)
    files = _files_at(snapshot.store, [_log_path(snapshot.store, path) for path in paths])
    _ensure_new(snapshot, files)
    columns = [field for field in target.schema if field.name in target.partition_columns]
    columns.sort(key=lambda field: target.partition_columns.index(field.name))
    values = _values(files, columns, partition_values)
    schemas = read_schemas(snapshot.store, files)
    _ensure_schemas_fit(schemas, target)
    shapes = [_shape(schema, target, columns) for schema in schemas]
    adds = described_files(snapshot.store, files, values, target.write_spec())
    for shape in shapes:
        _ensure_rows_fit(snapshot, adds, target.write_spec(), shape)
    return adds


def _replace(write: Write, adds: pa.Table, where: str | Expression) -> dict[str, int]:
    """Remove the rows that satisfy a predicate.

    Raises:
        ConstraintViolationError: An added file has a row that does not satisfy the predicate.
        UnsupportedFeatureError: A file would have to be rewritten, and the table has a change data feed.
    """
    assert write.snapshot is not None
    selected = write.select(where)
    outside = is_not_true(resolve_predicate(where, write.target.schema))
    if (path := first_file_with(write.engine, write.snapshot, adds, outside)) is not None:
        raise ConstraintViolationError(
            f"The file {decode_path(path)} has a row outside replace_where",
            cause=f"The predicate {words_of(where)} is false or null for this row",
            remedy="Add the file without replace_where, or pass a predicate that is true for all rows of the file",
        )
    if selected.partial.num_rows and write.tells_changes:
        raise UnsupportedFeatureError(
            "The change data feed cannot record what these files replace",
            cause="Files with other rows would have to be rewritten, and the feed would lack the rows of the new files",
            remedy="Choose a replace_where that covers whole files, for example partitions, or pass the rows to "
            "overwrite()",
            features=["changeDataFeed"],
        )
    write.keep(selected)
    write.transaction.remove_files(selected.files)
    return {"numRemovedFiles": selected.files.num_rows, "numRemovedBytes": FileTable(selected.files).size_bytes}


def _ensure_takes_files(target: WriteTarget) -> None:
    """Refuse tables whose data files need more than the columns of the table under their own names."""
    cause = None
    if target.table.column_mapping is ColumnMappingMode.ID:
        cause = "Column mapping by id: the data files must hold the id of each column"
    elif target.table.properties.is_iceberg_compatible:
        cause = "The table is compatible with Iceberg: the data files must hold the id of each column"
    elif target.write_spec().keep_partition_columns:
        cause = "The data files of the table must hold the partition columns"
    if cause is not None:
        raise UnsupportedFeatureError(
            "Files cannot be added to this table as they are",
            cause=cause,
            remedy="Read the files and append their rows: table.append(pyarrow.parquet.read_table(path))",
            features=[],
        )


# Paths


def _log_path(store: LogStore, location: str | PathLike[str]) -> str:
    """Return a path as the log spells it. Below the root of the table it is relative, otherwise absolute.

    Raises:
        InvalidRequestError: The value is not a path, leaves the table's directory, or is reserved for other files.
        UnsupportedStoreError: The path is outside the locations that the table may read.
    """
    text = fspath(location)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidRequestError(f"{location!r} is not the path of a file", remedy="Pass paths or URIs")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise InvalidRequestError(f"The name {text!a} is not valid Unicode", cause=str(e), remedy="Rename it") from None
    scheme, separator, rest = text.partition("://")
    if text.startswith("file:"):
        spelled = text
    elif separator:
        spelled = f"{scheme}://{quote(rest, safe='/@:!$&()*+,;=~-._')}"
    elif text.startswith("/"):
        spelled = local_path_in_log(encode_path(posixpath.normpath(text)))
    else:
        spelled = encode_path(posixpath.normpath(text))
    try:
        place = posixpath.normpath(store.resolve(spelled))
    except ProtocolViolationError as e:
        raise InvalidRequestError(f"{text!r} is not the path of a file", cause=e.problem) from e
    root = store.data_filesystem()[1].rstrip("/") + "/"
    if store.uri.startswith("file:"):
        # A file that is reached through a link has two paths, and could be added twice. The root itself may be a link.
        real = os.path.realpath(place)
        base = root if place.startswith(root) else "/"
        if real != os.path.realpath(base).rstrip("/") + "/" + place[len(base) :]:
            raise InvalidRequestError(
                f"{text} is a symbolic link, or lies below one",
                cause=f"The file is {real}",
                remedy=f"Pass {real!r}",
                path=text,
            )
    if not place.startswith(root):
        return local_path_in_log(spelled) if text.startswith("file:") else spelled
    inside = place[len(root) :]
    if any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in inside.split("/")):
        raise InvalidRequestError(
            f"{inside} is not a valid path for a data file",
            cause="Names that begin with _ or a dot are reserved for logs, change data and deletion vectors",
            remedy="Rename the file, or move it to another directory",
            path=inside,
        )
    return encode_path(inside)


def _files_at(store: LogStore, paths: Sequence[str]) -> list[FileMeta]:
    """Return the files, with `path` as the log spells it. Raises MissingFileError, InvalidRequestError,
    StorageError."""
    if not paths:
        raise InvalidRequestError("paths is empty", remedy="Pass at least one path")
    places = [store.resolve(path) for path in paths]
    _refuse_twice(paths, [posixpath.normpath(place) for place in places])
    store.ensure_regular(places)
    try:
        infos = store.data_filesystem()[0].get_file_info(places)
    except OSError as e:
        raise StorageError("The files cannot be listed", cause=str(e), errno=e.errno) from e
    _refuse_of_other_tables(store, [decode_path(path) for path in paths if not is_absolute(path)])
    missing = [decode_path(p) for p, i in zip(paths, infos, strict=True) if i.type != pafs.FileType.File]
    if missing:
        raise MissingFileError(
            f"{len(missing)} of {len(paths)} paths are not existing files",
            cause=", ".join(missing[:_MOST_NAMED]),
            remedy="Pass absolute paths, or paths relative to the table's directory",
        )
    return [FileMeta(p, i.size, (i.mtime_ns or 0) // 1_000_000) for p, i in zip(paths, infos, strict=True)]


def _refuse_of_other_tables(store: LogStore, paths: Sequence[str]) -> None:
    directories = string_array(sorted({f"/{posixpath.dirname(path)}" for path in paths}))
    if inner := inner_tables_above(store, directories):
        raise InvalidRequestError(
            f"There is a Delta table in {inner[0]}",
            cause="The files belong to that table. Some may hold deleted rows, and its vacuum can delete any of them",
            remedy="Append the rows of that table, or clone it",
        )


def _refuse_twice(paths: Sequence[str], places: Sequence[str]) -> None:
    seen: set[str] = set()
    for path, place in zip(paths, places, strict=True):
        if place in seen:
            raise InvalidRequestError(f"The file {decode_path(path)} is in paths twice", remedy="Pass each file once")
        seen.add(place)


def _ensure_new(snapshot: Snapshot, files: Sequence[FileMeta]) -> None:
    """Refuse files that the log names already, live or removed, however it spells their paths."""
    store = snapshot.store
    places = {posixpath.normpath(store.resolve(file.path)): decode_path(file.path) for file in files}
    names = [posixpath.basename(place) for place in places]
    file_names = string_array(sorted({*names, *map(encode_path, names)}))
    for described, what in ((snapshot.files(["path"]), "in the table"), (snapshot.tombstones(["path"]), "removed")):
        spelled = FileTable(described).path
        # Only paths with the same file name, or with escapes, are resolved. These are few.
        last = pc.replace_substring_regex(spelled, "^.*/", "")
        alike = pc.filter(spelled, pc.or_(pc.is_in(last, value_set=file_names), pc.match_substring(last, "%")))
        again = sorted(places.keys() & {posixpath.normpath(p) for p in _resolved(store, alike.to_pylist())})
        if again:
            raise InvalidRequestError(
                f"{len(again)} of the files belong to the table already",
                cause=", ".join(places[place] for place in again[:_MOST_NAMED]),
                remedy="Leave these files out"
                if what == "in the table"
                else "The files were removed, and vacuum may delete them. Add copies, or restore a version with them",
                paths=[places[place] for place in again[:_MOST_NAMED]],
            )


def _resolved(store: LogStore, paths: Sequence[str]) -> Iterator[str]:
    return map(store.resolve, paths)


# Partition values


def _values(
    files: Sequence[FileMeta],
    columns: Sequence[StructField],
    partition_values: PartitionValues | Sequence[PartitionValues] | None,
) -> list[dict[str, str | None]]:
    """Return the partition values of each file, keyed by the physical names of the columns."""
    if partition_values is None:
        logical = partition_values_of(files, columns, 'Pass partition_values, for example {"day": "2024-01-31"}')
    elif isinstance(partition_values, Mapping):
        logical = [_values_by_column(partition_values, columns)] * len(files)
    elif (
        isinstance(partition_values, Sequence)
        and not isinstance(partition_values, str)
        and len(partition_values) == len(files)
    ):
        logical = [_values_by_column(one, columns) for one in partition_values]
    else:
        raise InvalidRequestError(
            "partition_values must be one dict for all files, or a list with one dict for each file",
            remedy=f"Pass one dict, or a list of {len(files)} dicts",
        )
    return [{physical_name(column): values[column.name] for column in columns} for values in logical]


def _values_by_column(partition_values: PartitionValues, columns: Sequence[StructField]) -> dict[str, str | None]:
    names = {column.name.lower() for column in columns}
    if (
        not isinstance(partition_values, Mapping)
        or {str(name).lower() for name in partition_values} != names
        or len(partition_values) != len(names)
    ):
        raise InvalidRequestError(
            f"{partition_values!r:.200} does not have one value for each partition column",
            remedy=f"Pass a dict with the keys {', '.join(column.name for column in columns) or '(none)'}",
        )
    folded = {name.lower(): value for name, value in partition_values.items()}
    return {column.name: _spelled(folded[column.name.lower()], column) for column in columns}


def _spelled(value: object, column: StructField) -> str | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            typed = parse_partition_value(value, column.data_type)
        else:
            typed = pa.scalar(value, type_to_arrow(column.data_type)).as_py()
            if typed != value:
                raise ValueError(f"The conversion changes it to {typed!r}")
        spelled = serialize_partition_value(typed, column.data_type)
    except (pa.ArrowException, ProtocolViolationError, TypeError, ValueError, OverflowError) as e:
        typed, cause = None, str(e)
    else:
        cause = "An empty partition value means null in a Delta table"
    if typed is None:
        raise InvalidRequestError(
            f"{value!r:.200} is not a value of the partition column {column.name}, a {column.data_type}",
            cause=cause,
            column=column.name,
        )
    return spelled


# Columns and rows


def _ensure_schemas_fit(schemas: Sequence[FileSchema], target: WriteTarget) -> None:
    """Check names and types of the columns. They must be those of the table, because readers do not cast columns of a
    file."""
    table = to_physical(target.schema, target.table.column_mapping)
    physical = {
        physical_name(f) if target.table.column_mapping is not ColumnMappingMode.NONE else f.name
        for f in target.schema
        if f.name in target.partition_columns
    }
    in_files = StructType(tuple(field for field in table if field.name not in physical))
    for file_schema in schemas:
        problems = list(_misfits(file_schema.schema, in_files, ""))
        if problems:
            mapped = target.table.column_mapping is not ColumnMappingMode.NONE
            raise SchemaMismatchError(
                f"The file {file_schema.path} does not have the table's columns",
                cause="; ".join(problems),
                remedy="Append the rows of the file instead: append() maps and casts columns"
                if mapped
                else "Write the file again with the column names and types of the table, or append its rows",
                problems=problems,
                path=file_schema.path,
            )


def _misfits(file_type: DataType, table_type: DataType, path: str) -> Iterator[str]:
    if isinstance(file_type, StructType) and isinstance(table_type, StructType):
        table_fields = {field.name: field for field in table_type}
        for field in file_type:
            here = f"{path}{field.name}"
            if field.name not in table_fields:
                yield f"column {here} is not a column of the table's files"
            else:
                yield from _misfits(field.data_type, table_fields[field.name].data_type, f"{here}.")
    elif parts := parts_beside(file_type, table_type):
        for name, have, want in parts:
            yield from _misfits(have, want, f"{path}{name}.")
    elif is_stored_form(file_type, table_type) and not traits_of(table_type).has_box:
        return
    elif file_type != table_type and not (
        file_type in OF_32_BITS and table_type in OF_32_BITS and is_widening(file_type, table_type)
    ):
        yield f"column {path.removesuffix('.')} is {file_type}, the table has {table_type}"


def _shape(file_schema: FileSchema, target: WriteTarget, partition_columns: Sequence[StructField]) -> RowShape:
    """Return the conditions that the rows of a file must satisfy. Raises SchemaMismatchError if the file lacks a column
    whose values the table computes."""
    if not target.table.has_rules:
        return RowShape()
    from delta_orch.writing.row_rules import shape_rows

    is_mapped = target.table.column_mapping is not ColumnMappingMode.NONE
    names = {*file_schema.schema.names, *(physical_name(c) if is_mapped else c.name for c in partition_columns)}
    there = tuple(f for f in target.schema if (physical_name(f) if is_mapped else f.name) in names)
    shape = shape_rows(StructType(there), target)
    filled = [column.name for column in (*shape.defaults, *shape.generated)]
    filled += [values.name for values in shape.identities]
    if filled:
        raise SchemaMismatchError(
            f"The file {file_schema.path} lacks columns whose values the table computes: {', '.join(filled)}",
            cause="These columns have a default, or are generated or identity columns, and an existing file cannot be "
            "filled",
            remedy="Append the rows of the file instead: table.append(pyarrow.parquet.read_table(path))",
            path=file_schema.path,
        )
    return shape


def _ensure_rows_fit(snapshot: Snapshot, adds: pa.Table, spec: WriteSpec, shape: RowShape) -> None:
    """Read and check the rows, if the table has rules for rows."""
    from delta_orch.engines.local.row_checks import batch_checks

    checks = batch_checks(spec.schema, shape.checks, shape.lengths)
    if checks:
        engine = LocalEngine()
        for batch in engine.to_reader(engine.scan(scan_of_files(snapshot, adds))):
            for check in checks:
                check(batch)
