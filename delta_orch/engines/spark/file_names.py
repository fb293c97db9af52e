"""The names that the columns of a scan have in its files (PROTOCOL, "Reader Requirements for Column Mapping").

Without column mapping these are the table's own names, in mode `name` the physical ones. In mode `id` each file
decides: its columns carry field ids, and their names may be any. Spark can match by id itself, but then gives null for
nested columns it prunes. So files are asked for their schema, and those that agree are scanned together, by name.

In every mode some files are asked for the unit of their timestamps, too. Spark's Parquet reader refuses nanoseconds
(Parquet's TIMESTAMP with the unit NANOS, which Arrow writes by default) as timestamps, and reads them as the integers
they are. Only a footer tells which files have any, and few tables do: mostly those made from files of other programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import Candidates, ensure_field_ids, find_in_file
from delta_orch.engines.read_errors import read_error
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import DeltaError, SchemaMismatchError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import int64_array, one_chunk
from delta_orch.protocol.schema import TYPE_CHANGES
from delta_orch.protocol.types import (
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    types_of,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import PHYSICAL_NAME, ColumnMappingMode, physical_field

T = TypeVar("T")

_SAMPLE = 64
_TIMESTAMPS = (TIMESTAMP, TIMESTAMP_NTZ)
# How Spark, delta-rs and this package name their files. They write microseconds only.
_DELTA_WRITERS_NAME = r"(?:^|/)part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c\d{3}[^/]*$"
_INTEGER_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""The digits before the point that Spark's Parquet reader requires of a decimal, by the integer type in the file."""


def scans_by_name(plan: ScanPlan) -> Iterator[tuple[ScanPlan, StructType]]:
    """The plan in parts, each with its columns as its files name them and in the types to read them in, in the table's
    order.

    Raises:
        MissingFileError, TableError: A file of a table in mode `id` cannot be asked.
    """
    physical = physical_schema(plan)
    asked = _files_to_ask(plan, physical)
    if not asked:
        yield plan, physical
        return
    others = sorted({*range(plan.files.num_rows)}.difference(asked))
    rows: dict[StructType, list[int]] = {physical: others} if others else {}
    for row, schema in zip(asked, _ask(plan, physical, asked), strict=True):
        rows.setdefault(schema, []).append(row)
    for schema, members in rows.items():
        yield replace(plan, files=plan.files.take(int64_array(members))), schema


def _files_to_ask(plan: ScanPlan, physical: StructType) -> Sequence[int]:
    """By number. If a file that should have been asked was not, Spark refuses to read it; nothing is misread."""
    if plan.column_mapping is ColumnMappingMode.ID:
        return range(plan.files.num_rows)
    suspects = _files_of_other_writers(plan)
    # Nanoseconds are rare: a sample decides whether all footers are read.
    sample = suspects[:: -(-len(suspects) // _SAMPLE) or 1].to_pylist()
    has_any = any(schema != physical for schema in _ask(plan, physical, sample))
    return suspects.to_pylist() if has_any else ()


def _files_of_other_writers(plan: ScanPlan) -> pa.Array:
    """The files of a plan, by number, that may hold nanoseconds as far as schema and names tell."""
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
        # Spark may not need the file. If it does, it reports what is wrong with it.
        return physical
    try:
        return _names_in_file(plan, physical, schema)
    except SchemaMismatchError as e:
        raise read_error(e, plan.store.resolve(path)) from e


def physical_schema(plan: ScanPlan) -> StructType:
    """The schema under physical names, as partition values and statistics have it."""
    mode = plan.column_mapping
    # Columns that do not belong to the table (`_change_type`) go by their own name.
    physical = (physical_field(f, mode) if PHYSICAL_NAME in f.metadata else f for f in plan.schema)
    return StructType(
        tuple(
            replace(to, data_type=_type_spark_follows(logical, to.data_type))
            for logical, to in zip(plan.schema, physical, strict=True)
        )
    )


def _type_spark_follows(field: StructField, data_type: DataType) -> DataType:
    """The type to read a column in. Spark reads an integer as a decimal only where the decimal holds every integer of
    its width. A table's decimal may have fewer digits; the rows are then cast to it."""
    if isinstance(field.data_type, StructType) and isinstance(data_type, StructType):
        pairs = zip(field.data_type, data_type, strict=True)
        return StructType(tuple(replace(to, data_type=_type_spark_follows(by, to.data_type)) for by, to in pairs))
    if not isinstance(data_type, DecimalType):
        return data_type
    sources = [c.get("fromType") for c in field.metadata.get(TYPE_CHANGES) or () if not c.get("fieldPath")]
    digits = max((_INTEGER_DIGITS.get(source, 0) for source in sources if isinstance(source, str)), default=0)
    return DecimalType(max(data_type.precision, min(digits + data_type.scale, 38)), data_type.scale)


def read_footer(store: LogStore, log_path: str) -> pq.ParquetFile:
    """The footer of a data file; its rows can no longer be read from it.

    Raises MissingFileError, StorageError, TableError: The file is gone or cannot be read.
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
    found = candidates[index]
    name = found.name if mode is ColumnMappingMode.ID else physical.name
    return replace(physical, name=name, data_type=_named_type(logical.data_type, physical.data_type, found.type, mode))


def _absent_name(name: str, candidates: list[pa.Field]) -> str:
    """A name that the file does not have. The column of another id may have this one's name there."""
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
