"""Turns a scan plan into the form that Spark needs: typed partition values, and files that refer to them.

The log's facts about one file, such as the id of its first row, are carried like a partition value: a constant of the
    file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import Candidates, ensure_field_ids, find_in_file
from delta_orch.engines.read_errors import read_error
from delta_orch.engines.scan_plan import FILE_NUMBERS, ScanPlan
from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.engines.spark.sql_text import field_of, plain_schema
from delta_orch.errors import DeltaError, SchemaMismatchError, UnsupportedStoreError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import partition_strings, row_codes
from delta_orch.protocol.arrow_building import int64_array, int64_range, longs_from_numpy, one_chunk
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.schema import TYPE_CHANGES
from delta_orch.protocol.types import (
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    types_of,
)
from delta_orch.storage.base import LogStore, os_errors
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.storage.storage_options import parse_location
from delta_orch.table.column_mapping import PHYSICAL_NAME, ColumnMappingMode, physical_field, physical_name

# Columns that only exist inside a plan: constants of a file, all of type long.
NUMBER_COLUMN = "delta_orch_file_number"
BASE_ROW_ID = "delta_orch_base_row_id"
COMMIT_VERSION = "delta_orch_default_row_commit_version"
ADDRESS_FILE = "delta_orch_address_file"
_SMALLEST_BYTES, _LIKELY_BYTES = 64, 16 << 30
"""Sizes in this range are trusted. An empty Parquet file of one column has more than 100 bytes."""


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """The files of one scan.

    Attributes:
        store: The table's store.
        root_uri: The table's directory for Hadoop.
        data_schema: The columns in the files, all nullable and without the log's column metadata.
        partition_schema: The columns that come from the log: partition columns, then constants of a file.
        partitions: One row for each distinct partition, with the columns and Arrow types of `partition_schema`.
        partition_index: The row in `partitions` of each file, int64.
        files: `path`, `size`, `modification_time`.
        pushed: Excludes files by the filters of the running query. None if that is not possible.
    """

    store: LogStore
    root_uri: str
    data_schema: StructType
    partition_schema: StructType
    partitions: pa.Table
    partition_index: pa.Array
    files: pa.Table
    pushed: PushedFilters | None = None
    key: tuple[object, ...] = ()
    """The key of the files. Scans of a snapshot with the same key have the same files."""


def prepare_scan(plan: ScanPlan, names: StructType, *, numbered: bool = False) -> ScanFiles:
    """Prepare the files of a scan. Nothing is read or listed, and no Spark job starts.

    Args:
        plan: The plan to scan. Deletion vectors are ignored.
        names: The columns with their names in files, in the order of the schema (`file_names`).
        numbered: Give each row the number of its file in the plan, in `NUMBER_COLUMN`.

    Raises:
        UnsupportedStoreError: Spark cannot reach the store.
        ProtocolViolationError: A partition value does not fit its type, or a path leads out of the table.
    """
    ensure_paths_inside(plan.store, FileTable(plan.files).path)
    plan.ensure_each_once()
    plain = plain_schema(names)
    fields = [field_of(plan.schema, name) for name in plan.partition_columns]
    stored_as = dict(zip(plan.schema.names, plain, strict=True))
    partition_schema = StructType(tuple(stored_as[field.name] for field in fields))
    partitions, index = distinct_partitions(plan.files, partition_schema, [physical_name(field) for field in fields])
    constants = _file_constants(plan, numbered)
    if constants:
        # With this column, each file is its own partition.
        columns = [*(column.take(index) for column in partitions.columns), *constants.values()]
        partitions = pa.Table.from_arrays(columns, names=[*partitions.column_names, *constants])
        index = int64_range(0, plan.files.num_rows)
        partition_schema = StructType((*partition_schema, *(StructField(name, LONG) for name in constants)))
    return ScanFiles(
        store=plan.store,
        root_uri=hadoop_root(plan.store),
        data_schema=StructType(tuple(_stored_fields(plan, plain))),
        partition_schema=partition_schema,
        partitions=partitions,
        partition_index=index,
        files=_with_sizes(plan),
        pushed=None
        if plan.prune is None
        else PushedFilters(names, plan.schema, plan.store.uri, plan.prune, FileTable(plan.files).path),
        key=(names, partition_schema, plan.schema, _digest(plan.files)),
    )


def _digest(files: pa.Table) -> bytes:
    """Return a key for these files. A scan may have been split into tasks."""
    paths = pa.RecordBatch.from_arrays([one_chunk(FileTable(files).path)], names=["path"])
    return blake2b(paths.serialize()).digest()


def _file_constants(plan: ScanPlan, numbered: bool) -> dict[str, pa.Array | pa.ChunkedArray]:
    constants: dict[str, pa.Array | pa.ChunkedArray] = {}
    if plan.row_tracking is not None:
        constants[BASE_ROW_ID] = FileTable(plan.files).base_row_id
        constants[COMMIT_VERSION] = FileTable(plan.files).default_row_commit_version
    if plan.row_addresses is not None:
        constants[ADDRESS_FILE] = plan.files.column(FILE_NUMBERS)
    if numbered:
        constants[NUMBER_COLUMN] = int64_range(0, plan.files.num_rows)
    return constants


def _stored_fields(plan: ScanPlan, plain: StructType) -> Iterator[StructField]:
    """Return the columns to read from files, with the materialized columns of row tracking last."""
    tracking = plan.row_tracking
    elsewhere = {field_of(plan.schema, name).name for name in plan.partition_columns}
    elsewhere.update(plan.made_columns)
    for logical, by in zip(plan.schema, plain, strict=True):
        if logical.name not in elsewhere and by.data_type != VOID:
            yield by
    if tracking is not None:
        for name in (tracking.materialized_row_id, tracking.materialized_row_commit_version):
            if name is not None:
                yield StructField(name, LONG)


def _with_sizes(plan: ScanPlan) -> pa.Table:
    """Return the files with reliable sizes.

    Spark skips row groups beyond the given size, and splits a size of petabytes into millions of pieces, which fill the
    driver's memory. So the size is read from the store if the log has an unlikely size, or if the rows that are read
    replace the files. On a local file system, `LogFileIndex.java` checks each file anyway.
    """
    files = plan.files.select(["path", "size", "modification_time"])
    sizes = pc.fill_null(one_chunk(FileTable(files).size), 0)
    unknown = pc.or_(pc.less(sizes, _SMALLEST_BYTES), pc.greater(sizes, _LIKELY_BYTES))
    unsized = list(range(len(sizes))) if plan.is_copied else pc.indices_nonzero(unknown).to_pylist()
    if not unsized:
        return files
    filesystem, _ = plan.store.data_filesystem()
    paths = [plan.store.resolve(FileTable(files).path[i].as_py()) for i in unsized]
    all_sizes = sizes.to_pylist()
    with os_errors("look up data files in", plan.store.uri):
        infos = filesystem.get_file_info(paths)
    for i, info in zip(unsized, infos, strict=True):
        # A missing file must be opened to be reported.
        all_sizes[i] = info.size or 1
    return files.set_column(1, "size", int64_array(all_sizes))


def ensure_paths_inside(store: LogStore, paths: pa.ChunkedArray) -> None:
    """Refuse paths outside the table, by the rule of the store.

    Spark itself would open every scheme that Hadoop supports, including `http`.
    """
    # An encoded dot counts as well. Such paths are rare, so each of them is checked separately.
    suspicious = pc.match_substring_regex(paths, r"\.\.|%2[eE]|^/|^[A-Za-z][A-Za-z0-9+.-]*:")
    if store.external_paths is not None:
        suspicious = pc.is_valid(paths)
    for path in paths.filter(suspicious).to_pylist():
        store.resolve(path)


def hadoop_root(store: LogStore) -> str:
    """Return the table's directory as Hadoop spells it, URI-encoded.

    Raises UnsupportedStoreError if Spark executors cannot open it.
    """
    if store.uri.startswith("memory:"):
        raise UnsupportedStoreError(
            f"Spark cannot read or write {store.uri}",
            cause="The table is in the memory of this Python process",
            remedy="Use a local directory, or the local engine",
            uri=store.uri,
        )
    location = parse_location(store.uri)
    if location is None:
        return store.uri
    scheme, _, rest = location.hadoop_uri.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority}{slash}{encode_path(path)}"


def distinct_partitions(
    files: pa.Table, partition_schema: StructType, keys: Sequence[str]
) -> tuple[pa.Table, pa.Array]:
    """Return the distinct partitions of some files, typed, and the partition of each file. `keys` are the names of the
    columns in the log."""
    if not len(partition_schema):
        of_all = longs_from_numpy(np.zeros(files.num_rows, np.int64))
        return pa.Table.from_arrays([], schema=pa.schema([])), of_all
    texts = partition_strings(FileTable(files).partition_values, keys)
    code = row_codes(texts)
    first_rows = pc.index_in(pc.unique(code), value_set=code)
    arrays = [
        one_chunk(partition_column_to_arrow(one_chunk(column).take(first_rows), f.data_type))
        for column, f in zip(texts.columns, partition_schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(partition_schema.names)), code


# The names that the columns of a scan have in its files (PROTOCOL, "Reader Requirements for Column Mapping").
#
# Without column mapping these are the table's own names, in mode `name` the physical ones. In mode `id` each file
# decides: its columns carry field ids, and their names may be any. Spark can match by id itself, but then gives null
# for nested columns it prunes. So the schemas of files are read, and files with equal schemas are scanned together, by
# name.
#
# In every mode the timestamp units of some files are read as well. Spark's Parquet reader refuses nanoseconds
# (Parquet's TIMESTAMP with the unit NANOS, which Arrow writes by default) as timestamps, and reads them as the integers
# they are. Only a footer tells which files have any, and few tables do: mostly those made from files of other programs.


T = TypeVar("T")

_SAMPLE = 64
_TIMESTAMPS = (TIMESTAMP, TIMESTAMP_NTZ)
# How Spark, delta-rs and this package name their files. They write microseconds only.
_DELTA_WRITERS_NAME = r"(?:^|/)part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c\d{3}[^/]*$"
_INTEGER_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""The digits before the point that Spark's Parquet reader requires of a decimal, by the integer type in the file."""


def scans_by_name(plan: ScanPlan) -> Iterator[tuple[ScanPlan, StructType]]:
    """Split the plan into parts. Each part has its columns with the names and types in its files, in the table's order.

    Raises:
        MissingFileError, TableError: The footer of a file of a table in mode `id` cannot be read.
    """
    physical = physical_schema(plan)
    sampled_files = _files_to_ask(plan, physical)
    if not sampled_files:
        yield plan, physical
        return
    others = sorted({*range(plan.files.num_rows)}.difference(sampled_files))
    rows: dict[StructType, list[int]] = {physical: others} if others else {}
    for row, schema in zip(sampled_files, _ask(plan, physical, sampled_files), strict=True):
        rows.setdefault(schema, []).append(row)
    for schema, members in rows.items():
        yield replace(plan, files=plan.files.take(int64_array(members))), schema


def _files_to_ask(plan: ScanPlan, physical: StructType) -> Sequence[int]:
    """Return the files whose footers must be read, by number. If a file is missing here, Spark refuses to read it, so
    no value is wrong."""
    if plan.column_mapping is ColumnMappingMode.ID:
        return range(plan.files.num_rows)
    suspects = _files_of_other_writers(plan)
    # Nanoseconds are rare, so a sample decides whether all footers are read.
    sample = suspects[:: -(-len(suspects) // _SAMPLE) or 1].to_pylist()
    has_any = any(schema != physical for schema in _ask(plan, physical, sample))
    return suspects.to_pylist() if has_any else ()


def _files_of_other_writers(plan: ScanPlan) -> pa.Array:
    """Return the files of a plan, by number, that may hold nanoseconds, by their schema and their names."""
    partitions = {name.lower() for name in plan.partition_columns}
    stored = (f.data_type for f in plan.schema if f.name.lower() not in partitions)
    if not any(inner in _TIMESTAMPS for data_type in stored for inner in types_of(data_type)):
        return int64_array([])
    is_known = pc.match_substring_regex(one_chunk(FileTable(plan.files).path), _DELTA_WRITERS_NAME)
    return pc.indices_nonzero(pc.invert(is_known))


def _ask(plan: ScanPlan, physical: StructType, rows: Sequence[int]) -> list[StructType]:
    if not rows:
        return []
    paths = FileTable(plan.files).path.take(int64_array(rows)).to_pylist()
    return list(map_ahead(lambda path: _ask_one(plan, physical, path), paths, FAR_THREADS))


def _ask_one(plan: ScanPlan, physical: StructType, path: str) -> StructType:
    try:
        schema = read_footer(plan.store, path).schema_arrow
    except DeltaError:
        if plan.column_mapping is ColumnMappingMode.ID:
            raise
        # Spark may not need the file. If it does, it reports the error.
        return physical
    try:
        return _names_in_file(plan, physical, schema)
    except SchemaMismatchError as e:
        raise read_error(e, plan.store.resolve(path)) from e


def physical_schema(plan: ScanPlan) -> StructType:
    """Return the schema under physical names, as partition values and statistics use them."""
    mode = plan.column_mapping
    # Columns that do not belong to the table (`_change_type`) keep their own name.
    physical = (physical_field(f, mode) if PHYSICAL_NAME in f.metadata else f for f in plan.schema)
    return StructType(
        tuple(
            replace(to, data_type=_type_spark_follows(logical, to.data_type))
            for logical, to in zip(plan.schema, physical, strict=True)
        )
    )


def _type_spark_follows(field: StructField, data_type: DataType) -> DataType:
    """Return the type for reading a column. Spark reads an integer as a decimal only if the decimal holds every integer
    of its width. If the table's decimal has fewer digits, the rows are cast afterwards."""
    if isinstance(field.data_type, StructType) and isinstance(data_type, StructType):
        pairs = zip(field.data_type, data_type, strict=True)
        return StructType(tuple(replace(to, data_type=_type_spark_follows(by, to.data_type)) for by, to in pairs))
    if not isinstance(data_type, DecimalType):
        return data_type
    sources = [c.get("fromType") for c in field.metadata.get(TYPE_CHANGES) or () if not c.get("fieldPath")]
    digits = max((_INTEGER_DIGITS.get(source, 0) for source in sources if isinstance(source, str)), default=0)
    return DecimalType(max(data_type.precision, min(digits + data_type.scale, 38)), data_type.scale)


def read_footer(store: LogStore, log_path: str) -> pq.ParquetFile:
    """Return the footer of a data file. It cannot be used to read rows.

    Raises MissingFileError, StorageError, TableError: The file does not exist or cannot be read.
    """
    path = store.resolve(log_path)
    store.ensure_regular([path])
    try:
        with store.data_filesystem()[0].open_input_file(path) as source:
            # INT96 has nanoseconds too, but Spark reads it.
            return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except (OSError, pa.ArrowException) as e:
        raise read_error(e, path) from e


def _names_in_file(plan: ScanPlan, physical: StructType, in_file: pa.Schema) -> StructType:
    partitions = {name.lower() for name in plan.partition_columns}
    stored = (field for field in plan.schema if field.name.lower() not in partitions)
    ensure_field_ids(stored, Candidates(in_file), plan.column_mapping)
    return StructType(
        tuple(
            to if logical.name.lower() in partitions else _named_field(logical, to, list(in_file), plan.column_mapping)
            for logical, to in zip(plan.schema, physical, strict=True)
        )
    )


def _named_field(
    logical: StructField, physical: StructField, candidates: list[pa.Field], mode: ColumnMappingMode
) -> StructField:
    index = find_in_file(logical, candidates, mode)
    if index is None:
        return replace(physical, name=_absent_name(physical.name, candidates))
    field = candidates[index]
    name = field.name if mode is ColumnMappingMode.ID else physical.name
    return replace(physical, name=name, data_type=_named_type(logical.data_type, physical.data_type, field.type, mode))


def _absent_name(name: str, candidates: list[pa.Field]) -> str:
    """Return a name that the file does not have. In the file, a column with another id may have the requested name."""
    there = {candidate.name.lower() for candidate in candidates}
    while name.lower() in there:
        name += "_"
    return name


def _named_type(logical: DataType, physical: DataType, found: pa.DataType, mode: ColumnMappingMode) -> DataType:
    match logical, physical:
        case StructType(), StructType() if pa.types.is_struct(found):
            children = zip(logical, physical, strict=True)
            return StructType(tuple(_named_field(by, to, list(found), mode) for by, to in children))
        case ArrayType(), ArrayType() if pa.types.is_list(found):
            element = _named_type(logical.element_type, physical.element_type, found.value_type, mode)
            return ArrayType(element, physical.contains_null)
        case MapType(), MapType() if pa.types.is_map(found):
            key = _named_type(logical.key_type, physical.key_type, found.key_type, mode)
            value = _named_type(logical.value_type, physical.value_type, found.item_type, mode)
            return MapType(key, value, physical.value_contains_null)
        case _:
            is_nanoseconds = physical in _TIMESTAMPS and pa.types.is_timestamp(found) and found.unit == "ns"
            return LONG if is_nanoseconds else physical
