"""Schemas: the JSON of `metaData.schemaString` ↔ `types` (PROTOCOL, "Schema Serialization Format").

Spark's own schema JSON is the same format, so this is also the way from and to Spark.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Mapping

import orjson

from delta_orch.errors import ProtocolViolationError, SchemaMismatchError, UnsupportedError, UnsupportedFeatureError
from delta_orch.protocol.actions import JsonValue
from delta_orch.protocol.types import (
    CHAR_VARCHAR_TYPE,
    COLLATIONS,
    MAX_DEPTH,
    PRIMITIVE_TYPES,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    GeoType,
    IntervalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    ensure_shallow,
    parse_geo,
    parse_interval,
)

# Keys in the metadata of a field. Those of column mapping are in `table.column_mapping`.
CURRENT_DEFAULT = "CURRENT_DEFAULT"
GENERATION_EXPRESSION = "delta.generationExpression"
IDENTITY_START = "delta.identity.start"
IDENTITY_STEP = "delta.identity.step"
IDENTITY_HIGH_WATER_MARK = "delta.identity.highWaterMark"
IDENTITY_ALLOW_EXPLICIT_INSERT = "delta.identity.allowExplicitInsert"
INVARIANTS = "delta.invariants"
TYPE_CHANGES = "delta.typeChanges"

Places = Mapping[tuple[str, ...], int]
"""How many characters texts declared `char(n)` are filled up to. Writers store them as given; whoever reads them fills
them up, as Spark does. They go by their places below a column: names of fields, `element`, `key` and `value`; empty for
the column itself."""
_MOST_CHARACTERS = 65_535

_DECIMAL = r"decimal\(\s*([0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*\)"
# Spark stores char and varchar as string and keeps the declared type in the field's metadata.
_STRING_LIKE = r"(?:var)?char\(\d+\)|string collate .+"
_ALIASES = {"null": "void", "int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}


def parse_schema(schema_string: str) -> StructType:
    """Parse a schema string.

    The empty string is the empty schema: some writers commit a table before they know its columns.

    Raises:
        ProtocolViolationError: Not JSON, or not a struct.
        UnsupportedFeatureError: A column type this release does not know.
        UnsupportedError: Types, or values of a field's metadata, more than `MAX_DEPTH` levels deep.
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
        raise ProtocolViolationError("The table's schema is not a struct", cause=f"It is {data_type}")
    return data_type


def serialize_schema(schema: StructType) -> str:
    """The schema string of a struct. Raises SchemaMismatchError if a name or comment is not valid Unicode, or if types
    are nested too deep."""
    try:
        return orjson.dumps(data_type_to_json(schema)).decode()
    except TypeError as e:
        raise SchemaMismatchError(
            "The schema cannot be written",
            cause=str(e),
            remedy=f"Nest types at most {MAX_DEPTH} levels deep, and remove characters that are not valid Unicode",
        ) from None


def data_type_from_json(obj: JsonValue, *, depth: int = 0) -> DataType:
    """A type from its parsed JSON: a name, or an object with `type`; `depth` counts the types around it."""
    if isinstance(obj, str):
        return _named_type(obj)
    ensure_shallow(depth)
    below = depth + 1
    try:
        match obj["type"]:
            case "struct":
                return _struct_from_json(obj, below)
            case "array":
                return ArrayType(
                    data_type_from_json(obj["elementType"], depth=below), bool(obj.get("containsNull", True))
                )
            case "map":
                return MapType(
                    data_type_from_json(obj["keyType"], depth=below),
                    data_type_from_json(obj["valueType"], depth=below),
                    bool(obj.get("valueContainsNull", True)),
                )
            case "udt":
                return data_type_from_json(obj["sqlType"], depth=below)
            case other:
                return data_type_from_json(other, depth=below)
    except (KeyError, TypeError, AttributeError):
        raise ProtocolViolationError(
            "The table's schema contains an invalid type", cause=reprlib.repr(obj)[:200]
        ) from None


def _named_type(name: str) -> DataType:
    name = _ALIASES.get(name, name)
    if name in PRIMITIVE_TYPES:
        return PRIMITIVE_TYPES[name]
    if name == "decimal":
        return DecimalType(10, 0)
    if m := re.fullmatch(_DECIMAL, name):
        precision, scale = int(m[1]), int(m[2])
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise ProtocolViolationError(
                f"The table's schema holds the impossible type {name}",
                cause="A decimal has 1 to 38 digits, and at most that many of them after the decimal point",
            )
        return DecimalType(precision, scale)
    if re.fullmatch(_STRING_LIKE, name):
        return PRIMITIVE_TYPES["string"]
    if (opaque := parse_interval(name) or parse_geo(name)) is not None:
        return opaque
    raise UnsupportedFeatureError(
        f"The table has a column of type {name!r}, which this release does not read",
        remedy="Use a newer release of delta_orch",
        features=[name],
    )


def _struct_from_json(obj: JsonValue, depth: int) -> StructType:
    fields = tuple(_field_from_json(f, depth) for f in obj["fields"])
    names = {field.name for field in fields}
    if len(names) < len(fields):
        [(twice, _)] = Counter(field.name for field in fields).most_common(1)
        raise ProtocolViolationError(
            f"The table's schema has two columns of the name {twice!r}",
            remedy="Restore the commit that wrote the metadata from a backup",
            column=twice,
        )
    return StructType(fields)


def _field_from_json(obj: JsonValue, depth: int) -> StructField:
    name, metadata = obj["name"], obj.get("metadata") or {}
    if not isinstance(name, str) or not isinstance(metadata, Mapping):
        raise TypeError("a field's name is not a string, or its metadata is not an object")
    for value in metadata.values():
        _ensure_shallow_metadata(value, depth)
    if isinstance(kind := obj["type"], str) and kind.startswith("string collate "):
        metadata = {**metadata, COLLATIONS: {name: kind.partition("collate ")[2]}}
    return StructField(name, data_type_from_json(kind, depth=depth), bool(obj.get("nullable", True)), metadata)


def _ensure_shallow_metadata(value: JsonValue, depth: int) -> None:
    ensure_shallow(depth)
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _ensure_shallow_metadata(part, depth + 1)


def data_type_to_json(data_type: DataType) -> JsonValue:
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
        case PrimitiveType() | DecimalType() | IntervalType() | GeoType():
            return str(data_type)
        case _:
            raise TypeError(f"not a Delta type: {data_type!r}")


def char_columns(schema: StructType) -> dict[str, Places]:
    """The columns that hold such texts.

    Raises:
        UnsupportedError: One is declared so long that its spaces would take all memory.
    """
    return {field.name: places for field in schema if field.metadata and (places := char_places(field))}


def char_places(field: StructField) -> Places:
    """Where a column holds such texts. Raises as `char_columns`."""
    declared = field.metadata.get(CHAR_VARCHAR_TYPE)
    if not isinstance(declared, str) or "char" not in declared.lower().replace("varchar", ""):
        return {}
    from delta_orch.protocol.type_text import declared_lengths, place_of_text

    try:
        lengths = [length for length in declared_lengths(declared) if length.kind == "char"]
    except SchemaMismatchError:
        return {}  # a write refuses it
    lengths_by_place = {place_of_text(field.data_type, length.place): length.max_characters for length in lengths}
    if max(lengths_by_place.values(), default=0) > _MOST_CHARACTERS:
        raise UnsupportedError(
            f"Column {field.name} is declared {declared[:100]}",
            cause=f"Whoever reads it fills each text up with spaces, here beyond {_MOST_CHARACTERS} characters",
            remedy="Declare it as string (change_type)",
            column=field.name,
        )
    return {place: width for place, width in lengths_by_place.items() if place is not None}


def char_width(field: StructField) -> int | None:
    """The characters that a column's own text is filled up to. Raises as `char_columns`."""
    return char_places(field).get(()) if field.metadata and field.data_type == STRING else None


def below(places: Places, name: str) -> Places:
    """The places below a part of a column."""
    return {place[1:]: width for place, width in places.items() if place and place[0] == name}


def without_char(schema: StructType) -> StructType:
    """The schema with which texts are read as they are stored."""
    from delta_orch.protocol.schema_edit import without_metadata

    return without_metadata(schema, lambda key: key == CHAR_VARCHAR_TYPE)
