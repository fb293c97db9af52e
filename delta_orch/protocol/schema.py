"""Schemas: the JSON of `metaData.schemaString` ↔ `types` (PROTOCOL, "Schema Serialization Format").

Spark's own schema JSON is the same format, so this is also the way from and to Spark.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError
from delta_orch.protocol.types import (
    PRIMITIVE_TYPES,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
# Spark stores char and varchar as string and keeps the declared type in the field's metadata.
_STRING_LIKE = re.compile(r"(?:var)?char\(\d+\)|string collate .+")
_ALIASES = {"null": "void", "int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}


def parse_schema(schema_string: str) -> StructType:
    """Parse a schema string.

    The empty string is the empty schema: some writers commit a table before they know its columns.

    Raises:
        ProtocolViolationError: Not JSON, or not a struct.
        UnsupportedFeatureError: A column type this release does not know.
    """
    if not schema_string:
        return StructType(())
    try:
        obj = orjson.loads(schema_string)
    except orjson.JSONDecodeError as e:
        raise ProtocolViolationError(
            "The table's schema is not valid JSON", cause=str(e), schema_string=schema_string[:200]
        ) from None
    data_type = data_type_from_json(obj)
    if not isinstance(data_type, StructType):
        raise ProtocolViolationError("The table's schema is not a struct", cause=f"it is {data_type}")
    return data_type


def serialize_schema(schema: StructType) -> str:
    """The schema string of a struct."""
    return orjson.dumps(data_type_to_json(schema)).decode()


def data_type_from_json(obj: Any) -> DataType:
    """A type from its parsed JSON: a name, or an object with `type`."""
    if isinstance(obj, str):
        return _named_type(obj)
    try:
        match obj["type"]:
            case "struct":
                return StructType(tuple(_field_from_json(f) for f in obj["fields"]))
            case "array":
                return ArrayType(data_type_from_json(obj["elementType"]), bool(obj.get("containsNull", True)))
            case "map":
                return MapType(
                    data_type_from_json(obj["keyType"]),
                    data_type_from_json(obj["valueType"]),
                    bool(obj.get("valueContainsNull", True)),
                )
            case "udt":
                return data_type_from_json(obj["sqlType"])
            case other:
                return data_type_from_json(other)
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ProtocolViolationError(
            "The table's schema holds something that is no type", cause=repr(obj)[:200]
        ) from None


def _named_type(name: str) -> DataType:
    name = _ALIASES.get(name, name)
    if name in PRIMITIVE_TYPES:
        return PRIMITIVE_TYPES[name]
    if name == "decimal":
        return DecimalType(10, 0)
    if m := _DECIMAL.fullmatch(name):
        precision, scale = int(m[1]), int(m[2])
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise ProtocolViolationError(f"The table's schema holds the impossible type {name}")
        return DecimalType(precision, scale)
    if _STRING_LIKE.fullmatch(name):
        return PRIMITIVE_TYPES["string"]
    raise UnsupportedFeatureError(
        f"The table has a column of type {name!r}, which this release does not read",
        remedy="Use a newer release of delta_orch",
        features=[name],
    )


def _field_from_json(obj: Any) -> StructField:
    return StructField(
        str(obj["name"]), data_type_from_json(obj["type"]), bool(obj.get("nullable", True)), obj.get("metadata") or {}
    )


def data_type_to_json(data_type: DataType) -> Any:
    """The parsed JSON of a type."""
    match data_type:
        case StructType(fields):
            return {
                "type": "struct",
                "fields": [
                    {
                        "name": f.name,
                        "type": data_type_to_json(f.data_type),
                        "nullable": f.nullable,
                        "metadata": dict(f.metadata),
                    }
                    for f in fields
                ],
            }
        case ArrayType(element_type, contains_null):
            return {
                "type": "array",
                "elementType": data_type_to_json(element_type),
                "containsNull": contains_null,
            }
        case MapType(key_type, value_type, value_contains_null):
            return {
                "type": "map",
                "keyType": data_type_to_json(key_type),
                "valueType": data_type_to_json(value_type),
                "valueContainsNull": value_contains_null,
            }
        case PrimitiveType() | DecimalType():
            return str(data_type)
        case _:
            raise TypeError(f"not a Delta type: {data_type!r}")
