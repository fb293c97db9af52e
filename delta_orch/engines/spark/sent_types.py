"""Arrow's types for rows on their way between Spark and Python."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.types import BINARY, VARIANT, ArrayType, DataType, MapType, StructField, StructType

_SENT_VARIANT = StructType((StructField("value", BINARY, False), StructField("metadata", BINARY, False)))


def schema_as_sent(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark sends and takes rows: of a variant, `value` comes before `metadata`."""
    return schema_to_arrow(StructType(tuple(replace(f, data_type=_type_as_sent(f.data_type)) for f in schema)))


def _type_as_sent(data_type: DataType) -> DataType:
    match data_type:
        case StructType(fields):
            return StructType(tuple(replace(f, data_type=_type_as_sent(f.data_type)) for f in fields))
        case ArrayType(element_type, contains_null):
            return ArrayType(_type_as_sent(element_type), contains_null)
        case MapType(key_type, value_type, value_contains_null):
            return MapType(_type_as_sent(key_type), _type_as_sent(value_type), value_contains_null)
        case _:
            return _SENT_VARIANT if data_type == VARIANT else data_type
