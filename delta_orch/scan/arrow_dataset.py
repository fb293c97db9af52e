"""A version as a data set of pyarrow: only where plain Parquet files hold exactly its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from delta_orch.engines.read_errors import reading
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import SchemaMismatchError, UnsupportedFeatureError
from delta_orch.expressions.to_arrow import arrow_expression
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import typed_partitions
from delta_orch.log.read.skipping.file_statistics import ColumnBounds, cast_bounds, read_bounds
from delta_orch.log.read.skipping.predicates import MIN_PREFIX_CHARACTERS
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow, type_to_arrow
from delta_orch.protocol.schema import char_columns
from delta_orch.protocol.types import DOUBLE, FLOAT, VARIANT, DataType, StructType
from delta_orch.scan.file_listing import bare_types
from delta_orch.scan.scan import resolve_scan_predicate
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.type_widening import has_type_changes


class _FilteredDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A data set with a filter of its own. pyarrow refuses to name the fragments of such a one."""

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ds.Fragment]:
        """The files that may hold rows of the data set, whole."""
        # A union of datasets keeps only the files.
        return iter(ds.UnionDataset(self.schema, [self]).get_fragments(filter))


def arrow_dataset(snapshot: Snapshot, where: object) -> ds.FileSystemDataset:
    """The live files as a data set. See `TableSnapshot.to_pyarrow_dataset`."""
    schema = snapshot.schema
    predicate = resolve_scan_predicate(where, schema)
    rows = predicate.arrow_filter
    if rows is None and predicate.where is not None:
        rows = arrow_expression(predicate.where, schema)
    files = snapshot.files(["path", "size", "partition_values", "dv_id", "stats"], predicate.where)
    if snapshot.configuration.column_mapping is not ColumnMappingMode.NONE:
        _refuse("Its columns are mapped: the files know them by other names", "columnMapping")
    if FileTable(files).dv_id.null_count < files.num_rows:
        _refuse("Deletion vectors mark rows of its files, and pyarrow would read these rows", "deletionVectors")
    if has_type_changes(schema):
        _refuse("Columns have been widened: older files hold other types", "typeWidening")
    if any("variant" in text for text in bare_types(schema).values()):
        _refuse(f"It has columns of the type {VARIANT}, which pyarrow does not know", "variantType")
    if char_columns(schema):
        _refuse("It has columns of char(n), whose values a reader fills up with spaces", "char")
    in_files = StructType(tuple(f for f in schema if f.name not in snapshot.partition_columns))
    filesystem = snapshot.store.data_filesystem()[0]
    ScanPlan(snapshot.store, schema, snapshot.partition_columns, files, each_once=True).ensure_each_once()
    paths = [snapshot.store.resolve(path) for path in FileTable(files).path.to_pylist()]
    snapshot.store.ensure_regular(paths)
    compared = set() if predicate.where is None else {column.path for column in columns_of(predicate.where)}
    floats = [f.name for f in in_files if f.data_type in (FLOAT, DOUBLE) and (f.name,) in compared]
    for _ in map_ahead(lambda path: _ensure_plain(filesystem, path, in_files, floats), paths, FAR_THREADS):
        pass
    parquet = ds.ParquetFileFormat()
    partitions = typed_partitions(files, schema, snapshot.partition_columns)
    fragments = [
        parquet.make_fragment(path, filesystem, partition_expression=guarantee)
        for path, guarantee in zip(paths, _guarantees(files, partitions, in_files), strict=True)
    ]
    kind = ds.FileSystemDataset if rows is None else _FilteredDataset
    dataset = kind(fragments, schema_to_arrow(schema), parquet, filesystem)
    return dataset if rows is None else dataset.filter(rows)


def _refuse(cause: str, feature: str) -> NoReturn:
    raise UnsupportedFeatureError(
        "The table is more than its Parquet files",
        cause=cause,
        remedy="Read it with scan().to_arrow() or scan().to_reader()",
        feature=feature,
    )


def _guarantees(files: pa.Table, partitions: pa.Table, in_files: StructType) -> Iterator[pc.Expression]:
    """For each file, an expression that every row fulfils, from partition values and statistics. Arrow reads `x ==
    null` as "x is null", and takes the type from it."""
    flat: dict[tuple[str, ...], DataType] = {
        (f.name,): f.data_type for f in in_files if not isinstance(f.data_type, StructType)
    }
    columns: list[Iterable[pc.Expression | None]] = [
        [pc.field(name) == value for value in partitions[name]] for name in partitions.column_names
    ]
    columns += [
        _range_guarantees(name, bounds) for (name,), bounds in read_bounds(FileTable(files).stats, flat).items()
    ]
    for parts in zip(*columns, strict=True) if columns else [()] * files.num_rows:
        yield reduce(and_, (part for part in parts if part is not None), pc.scalar(True))


def _range_guarantees(name: str, bounds: ColumnBounds) -> Iterator[pc.Expression | None]:
    """Of floats only that all are null: NaN is left out of their bounds, while in Arrow `not (x <= 2)` is true of it,
    and `x is null` where it is asked to be. Of decimals whose bounds are rounded no bounds."""
    column = pc.field(name)
    is_null, is_valid = column.is_null(), column.is_valid()
    kind = type_to_arrow(bounds.data_type)
    nothing = pa.scalar(None, kind)
    has_range, may_be_nan = not pa.types.is_floating(bounds.lower.type), pa.types.is_floating(kind)
    lower, upper = (cast_bounds(values, kind) if has_range else pa.nulls(len(values)) for values in bounds[:2])
    for least, most, may_be_null, may_be_value in zip(
        lower, upper, bounds.may_be_null.to_pylist(), bounds.may_be_value.to_pylist(), strict=True
    ):
        if not may_be_value:
            yield column == nothing
            continue
        parts = [column >= least] if least.is_valid else []
        if (below := _at_most(column, most)) is not None:
            parts.append(below)
        # Arrow understands `x > 1 or x is null`, and not `(x > 1 and x < 3) or x is null`.
        parts = [part | is_null for part in parts] if may_be_null or may_be_nan else parts or [is_valid]
        yield reduce(and_, parts) if parts else None


def _at_most(column: pc.Expression, most: pa.Scalar) -> pc.Expression | None:
    if not most.is_valid:
        return None
    text = most.as_py() if pa.types.is_string(most.type) else ""
    if len(text) < MIN_PREFIX_CHARACTERS:
        return column <= most
    # It may be cut: a text that begins with it is below every text that is greater in a place it has.
    kept = text.rstrip(_LAST_CHARACTERS)
    return column < kept[:-1] + chr(ord(kept[-1]) + 1) if kept else None


_LAST_CHARACTERS = "\U0010ffff\ud7ff"
"""Backslashes that precede no valid character."""


def _ensure_plain(filesystem: pafs.FileSystem, path: str, schema: StructType, floats: Sequence[str]) -> None:
    """Check that a file holds the columns as the table has them, or not at all.

    Args:
        floats: Columns of the condition.
    """
    with reading(path), filesystem.open_input_file(path) as source:
        footer = read_footer(source)
        calendar, metadata = footer.calendar, footer.metadata
        file_schema = metadata.schema.to_arrow_schema()
        hidden = next((name for name in floats if _hides_nan(source, metadata, name)), None)
    if hidden is not None:
        _refuse(f"The bounds of {hidden} in {path} leave out NaN, and pyarrow would pass over these rows", "nan")
    if calendar is not None:
        _refuse(f"{path} may hold dates of the Julian calendar", "legacyCalendar")
    if any(metadata.schema.column(i).physical_type == "INT96" for i in range(metadata.num_columns)):
        _refuse(f"{path} holds times in 96 bits", "int96")
    ours = bare_types(schema)
    folded = {name.lower(): name for name in ours}
    for field in file_schema:
        name = folded.get(field.name.lower())
        if name is None:
            continue
        file_type = _type_of(field, path)
        if name != field.name or file_type is None or str(file_type) != ours[name]:
            _refuse(f"The column {name} is {ours[name]}, and in {path} it is {field.name}: {field.type}", "schema")


def _hides_nan(source: pa.NativeFile, metadata: pq.FileMetaData, name: str) -> bool:
    """Whether Arrow takes a float column with NaN for one of a single value, which its bounds name."""
    parquet = pq.ParquetFile(source, metadata=metadata)
    leaves = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name]
    return any(
        (bounds := metadata.row_group(group).column(leaf).statistics) is not None
        and bounds.has_min_max
        and bounds.min == bounds.max
        and pc.any(pc.is_nan(parquet.read_row_group(group, [name])[name])).as_py()
        for leaf in leaves
        for group in range(metadata.num_row_groups)
    )


def _type_of(field: pa.Field, path: str) -> DataType | None:
    try:
        return schema_from_arrow(pa.schema([field])).fields[0].data_type
    except SchemaMismatchError:
        return None
