"""Timestamps that files keep in nanoseconds (Parquet's TIMESTAMP with the unit NANOS, which Arrow writes by default).

Spark's Parquet reader refuses them as timestamps, and reads them as the integers they are. Only a footer tells which
files have any, and few tables do: mostly those made from files that were there before.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import ScanPlan
from delta_orch.log.files.arrow_building import int64_array
from delta_orch.log.files.partition_columns import one_chunk
from delta_orch.protocol.types import LONG, TIMESTAMP, TIMESTAMP_NTZ, ArrayType, DataType, MapType, StructType

_TIMESTAMPS = (TIMESTAMP, TIMESTAMP_NTZ)
# How Spark, and after it delta-rs and this package, name what they write: in microseconds always.
_DELTA_WRITERS_NAME = r"(?:^|/)part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c\d{3}[^/]*$"


def files_of_other_writers(plan: ScanPlan) -> pa.Array:
    """The files of a plan, by number, that may hold nanoseconds as far as schema and names tell."""
    partitions = {name.lower() for name in plan.partition_columns}
    if not any(_has_timestamp(f.data_type) for f in plan.schema if f.name.lower() not in partitions):
        return int64_array([])
    is_known = pc.match_substring_regex(one_chunk(plan.files.column("path")), _DELTA_WRITERS_NAME)
    return pc.indices_nonzero(pc.invert(is_known))


def type_in_file(data_type: DataType, found: pa.DataType) -> DataType:
    """The type in which Spark is to read a leaf: 64-bit integers where the file has nanoseconds."""
    is_nanoseconds = data_type in _TIMESTAMPS and pa.types.is_timestamp(found) and found.unit == "ns"
    return LONG if is_nanoseconds else data_type


def holds_nanoseconds(in_file: DataType, data_type: DataType) -> bool:
    """Whether some leaf is read as nanoseconds and is to be a timestamp."""
    match in_file, data_type:
        case StructType(), StructType():
            return any(holds_nanoseconds(a.data_type, b.data_type) for a, b in zip(in_file, data_type, strict=True))
        case ArrayType(), ArrayType():
            return holds_nanoseconds(in_file.element_type, data_type.element_type)
        case MapType(), MapType():
            keys = holds_nanoseconds(in_file.key_type, data_type.key_type)
            return keys or holds_nanoseconds(in_file.value_type, data_type.value_type)
        case _:
            return in_file == LONG and data_type in _TIMESTAMPS


def timestamp_sql(nanoseconds: str, data_type: DataType) -> str:
    """Nanoseconds since the epoch as a timestamp of either kind, rounded down, whatever the session's time zone."""
    micros = f"({nanoseconds} DIV 1000 - CASE WHEN {nanoseconds} % 1000 < 0 THEN 1 ELSE 0 END)"
    if data_type == TIMESTAMP:
        return f"timestamp_micros({micros})"
    return f"timestampadd(MICROSECOND, {micros}, TIMESTAMP_NTZ'1970-01-01 00:00:00')"


def _has_timestamp(data_type: DataType) -> bool:
    match data_type:
        case StructType(fields):
            return any(_has_timestamp(f.data_type) for f in fields)
        case ArrayType(element_type):
            return _has_timestamp(element_type)
        case MapType(key_type, value_type):
            return _has_timestamp(key_type) or _has_timestamp(value_type)
        case _:
            return data_type in _TIMESTAMPS
