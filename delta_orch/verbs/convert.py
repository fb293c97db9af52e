"""`convert`: turns a directory of Parquet files into a table, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import orjson

from delta_orch.errors import (
    InvalidPropertyError,
    InvalidRequestError,
    MissingDependencyError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitResult, ensure_unscoped
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import JsonObject
from delta_orch.protocol.paths import LOG_DIRECTORY, encode_path
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import STATED_DEFINITIONS, StructField, StructType, definitions_in
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.type_widening import has_type_changes
from delta_orch.verbs.create import parse_schema_argument
from delta_orch.verbs.parquet_files import (
    Progress,
    described_files,
    merged_schema,
    partition_values_of,
    read_schemas,
)
from delta_orch.writing.target import TableDefinition, WriteOptions, new_target, split_options


def convert(
    log: TableLog,
    newest: Snapshot | None,
    partition_schema: object,
    progress: Progress | None,
    options: WriteOptions,
) -> CommitResult:
    """Commit the Parquet files below a directory as version 0 of a table. No file is changed or moved.

    A file is skipped if a part of its path begins with `_` or a dot. Partition directories are `name=value`, with
    Hive's escapes, and `__HIVE_DEFAULT_PARTITION__` is null. The footers are read in parallel, once for the schema and
    once for the statistics. Files that arrive during the conversion are not added.

    Returns: `skipped` if a table with these partition columns exists already.

    Raises as `DeltaTable.convert`.
    """
    definition, commit = split_options(options)
    if definition.get("partition_by") is not None:
        raise InvalidRequestError(
            "convert takes partition_schema, not partition_by",
            remedy="Pass names with types, such as partition_schema={'day': 'date'}",
        )
    ensure_unscoped(commit, "A conversion is for the whole table")
    partition_columns = parse_partition_schema(partition_schema)
    # Required at every isolation level. If two conversions of a directory run, only one may add its files.
    commit = {**commit, "isolation_level": SERIALIZABLE}
    if newest is not None:
        _ensure_joins(newest, partition_columns)
        return Transaction(log, newest, operation="CONVERT", **commit).skip()
    store = log.store
    files = [file._replace(path=encode_path(file.path)) for file in sorted(_listed(store))]
    if not files:
        raise InvalidRequestError(
            f"There are no Parquet files at {store.uri}", remedy="Pass the directory of the files"
        )
    partitions = partition_values_of(files, partition_columns)
    schema = merged_schema(read_schemas(store, files, progress))
    for column in partition_columns:
        if schema.find(column.name) is not None:
            raise SchemaMismatchError(
                f"The partition column {column.name} is also a column of the files",
                cause="The values in the files can differ from the names of the directories",
                remedy="Write the files again without the column",
                column=column.name,
            )
    whole = StructType((*schema, *partition_columns))
    target = new_target(store, whole, _with_features(definition, whole, partition_columns))
    if target.table.column_mapping is not ColumnMappingMode.NONE:
        raise InvalidPropertyError(
            "A conversion cannot use column mapping",
            cause="The existing files hold their columns under plain names",
            remedy="Convert first, then call alter().set_properties({'delta.columnMapping.mode': 'name'}).commit()",
            property="delta.columnMapping.mode",
        )
    # The types and their history come from the files, not from the metadata of another table.
    target = replace(target, table=target.table.with_schema(whole))
    transaction = Transaction(
        log,
        None,
        operation="CONVERT",
        operation_parameters={
            "numFiles": len(files),
            "partitionedBy": orjson.dumps([column.name for column in partition_columns]).decode(),
            "collectStats": True,
            "sourceFormat": "parquet",
        },
        **commit,
    )
    target.stage_metadata(transaction)
    # Another writer may create the table meanwhile and add the same files.
    transaction.read_whole_table()
    adds = described_files(store, files, partitions, target.write_spec(), progress)
    transaction.add_files(adds, just_written=True)
    transaction.set_operation_metrics({"numConvertedFiles": len(files)})
    return transaction.commit()


def parse_partition_schema(partition_schema: object) -> tuple[StructField, ...]:
    """Return the partition columns from `{"day": "date"}`, or from a schema in any form that `create` accepts.

    Raises:
        InvalidRequestError, SchemaMismatchError: The value does not define partition columns.
    """
    if partition_schema is None:
        return ()
    if isinstance(partition_schema, Mapping):
        columns = []
        for name, data_type in partition_schema.items():
            if not isinstance(name, str) or not isinstance(data_type, str):
                raise InvalidRequestError(
                    f"{partition_schema!r} does not define partition columns",
                    remedy='Pass {name: type}, for example {"day": "date"}',
                )
            columns.append(StructField(name, parse_declared_type(data_type)[0]))
        return tuple(columns)
    return tuple(StructField(f.name, f.data_type, metadata=_stated(f)) for f in parse_schema_argument(partition_schema))


def _stated(column: StructField) -> JsonObject:
    # Directories hold fixed values. A table with computed partition columns must be created first, then files are
    # added.
    stated = definitions_in(column.metadata)
    return {STATED_DEFINITIONS: stated} if stated else {}


def _with_features(
    definition: TableDefinition, schema: StructType, partition_columns: Sequence[StructField]
) -> TableDefinition:
    properties = dict(definition.get("properties") or {})
    if has_type_changes(schema):
        properties["delta.feature.typeWidening"] = "supported"
    names = [column.name for column in partition_columns]
    return {**definition, "properties": properties, "partition_by": names}


def _ensure_joins(newest: Snapshot, partition_columns: Sequence[StructField]) -> None:
    column_names = [column.name.lower() for column in partition_columns]
    if column_names != [name.lower() for name in newest.partition_columns]:
        raise TableExistsError(
            f"A table exists at {newest.store.uri}",
            cause=f"It is partitioned by {', '.join(newest.partition_columns) or 'no column'}",
            remedy="Use the existing table, or delete its _delta_log to convert again",
            uri=newest.store.uri,
        )


def _listed(store: LogStore) -> list[FileMeta]:
    """Return the files to convert, without hidden files."""
    files = []
    for file in store.list_recursive():
        directories, _, name = file.path.rpartition("/")
        if f"/{LOG_DIRECTORY}/" in file.path:
            raise InvalidRequestError(
                f"There is a Delta table in {file.path[: file.path.index(f'/{LOG_DIRECTORY}/')]}",
                cause="Its files belong to that table, and some may hold deleted rows",
                remedy="Convert a directory without other tables, or move that table",
                path=file.path,
            )
        if name.startswith(("_", ".")) or any(map(_is_hidden, directories.split("/"))):
            continue
        try:
            file.path.encode()
        except UnicodeEncodeError as e:
            raise InvalidRequestError(
                f"The name of the file {file.path!a} is not valid Unicode", cause=str(e), remedy="Rename it"
            ) from None
        files.append(file)
    return files


def _is_hidden(directory: str) -> bool:
    return directory.startswith(".") or (directory.startswith("_") and "=" not in directory)


def progress_of(progress: object) -> Progress | None:
    """Return the function that receives the progress: the caller's, or one that draws a bar with tqdm or rich.

    Raises:
        InvalidRequestError: `progress` is neither a function nor a flag.
        MissingDependencyError: A progress bar is requested, but neither package is installed.
    """
    if progress is None or progress is False:
        return None
    if callable(progress):
        return progress
    if progress is not True:
        raise InvalidRequestError(f"progress must be a function or True, not {progress!r}")

    return progress_bar()


# A progress bar on the terminal, drawn with the installed package


def progress_bar() -> Callable[[int, int], None]:
    """Return a function that receives the number of finished files and the number of all files.

    Raises:
        MissingDependencyError: Neither tqdm nor rich is installed.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return _rich_bar()
    bar = tqdm(unit=" files")

    def tell(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.refresh()

    return tell


def _rich_bar() -> Callable[[int, int], None]:
    try:
        from rich.progress import Progress
    except ImportError as e:
        raise MissingDependencyError(
            "No package for progress bars is installed",
            cause=str(e),
            remedy="Run pip install tqdm, or pass your own function as progress",
        ) from e
    progress = Progress(transient=True)
    task = progress.add_task("files")

    def tell(done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)
        if done == total:
            progress.stop()

    return tell
