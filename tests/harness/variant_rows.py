"""Rows with variants as plain JSON values, to compare them with what a golden case expects."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from delta_orch.protocol.types import VARIANT, ArrayType, DataType, MapType, StructType
from delta_orch.protocol.variant.variant import Variant


def json_rows(rows: pa.Table, schema: StructType) -> list[dict[str, Any]]:
    """One object a row; variants as the JSON they stand for, maps as objects."""
    return [{f.name: _plain(row[f.name], f.data_type) for f in schema} for row in rows.to_pylist()]


def _plain(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    match data_type:
        case ArrayType(element_type, _):
            return [_plain(item, element_type) for item in value]
        case MapType(key_type, value_type, _):
            pairs = value.items() if isinstance(value, dict) else value
            return {str(_plain(key, key_type)): _plain(item, value_type) for key, item in pairs}
        case StructType(fields):
            return {f.name: _plain(value[f.name], f.data_type) for f in fields}
        case _ if data_type == VARIANT:
            return orjson.loads(Variant(value["metadata"], value["value"]).to_json())
        case _:
            return value
