"""Values of a table as people and as JSON read them."""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import datetime
from typing import Any

import orjson

from delta_orch.protocol.types import ArrayType, DataType, MapType, PrimitiveType, StructType
from delta_orch.protocol.variant.variant import Variant

_LONGEST_TEXT = 200


def json_value(value: Any, data_type: DataType) -> Any:
    """A value of Arrow's `to_pylist` as JSON knows it.

    Binary is base64, decimals are text, NaN and the infinities are the text Spark reads; a map is an object where its
    keys are text, otherwise a list of objects with `key` and `value`; a variant is the JSON it stands for, its numbers
    with all their digits.

    Raises:
        InvalidVariantError: A variant is none.
    """
    match value, data_type:
        case None, _:
            return None
        case dict(), PrimitiveType("variant"):
            return orjson.Fragment(Variant(value["metadata"], value["value"]).to_json())
        case dict(), StructType(fields):
            return {f.name: json_value(value.get(f.name), f.data_type) for f in fields}
        case list(), ArrayType(element_type):
            return [json_value(item, element_type) for item in value]
        case list(), MapType(key_type, value_type):
            return _json_map([(json_value(k, key_type), json_value(v, value_type)) for k, v in value])
        case bytes(), _:
            return b64encode(value).decode()
        case float(), _ if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case datetime(), _:
            return value.isoformat()
        case ((bool() | int() | float() | str()), _):
            return value
    return str(value)


def _json_map(items: list[tuple[Any, Any]]) -> Any:
    if all(isinstance(key, str) for key, _ in items):
        return dict(items)
    return [{"key": key, "value": value} for key, value in items]


def text_value(value: Any, data_type: DataType) -> str:
    """A value in one line, cut off where it is long."""
    if value is None:
        return "null"
    plain = json_value(value, data_type)
    text = plain if isinstance(plain, str) else orjson.dumps(plain).decode()
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
