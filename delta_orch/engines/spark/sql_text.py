"""Spark SQL text for types and conversions. Text means the same to a classic and to a Connect session, while Python's
column functions bind to one of the two."""

from __future__ import annotations

from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.protocol.types import ArrayType, DataType, DecimalType, MapType, StructType

_SQL_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


def type_sql(data_type: DataType) -> str:
    """The type's name in Spark SQL."""
    match data_type:
        case DecimalType(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case ArrayType(element_type, _):
            return f"ARRAY<{type_sql(element_type)}>"
        case MapType(key_type, value_type, _):
            return f"MAP<{type_sql(key_type)},{type_sql(value_type)}>"
        case StructType(fields):
            return "STRUCT<" + ",".join(f"{quote_identifier(f.name)}:{type_sql(f.data_type)}" for f in fields) + ">"
        case _:
            return _SQL_NAMES.get(str(data_type), str(data_type).upper())


def convert_sql(value: str, source: DataType, target: DataType, depth: int = 0) -> str:
    """SQL that turns `value` into the target type: structs field by field and by name, so that a nested column that
    only moves stays a plain reference."""
    if same_values(source, target):
        return value
    match source, target:
        case StructType(), StructType():
            return _convert_struct(value, source, target, depth)
        case ArrayType(source_element, _), ArrayType(target_element, _):
            item = f"delta_orch_{depth}"
            return f"transform({value}, {item} -> {convert_sql(item, source_element, target_element, depth + 1)})"
        case MapType(), MapType():
            item = f"delta_orch_{depth}"
            keys = convert_sql(item, source.key_type, target.key_type, depth + 1)
            values = convert_sql(item, source.value_type, target.value_type, depth + 1)
            return (
                f"map_from_arrays(transform(map_keys({value}), {item} -> {keys}), "
                f"transform(map_values({value}), {item} -> {values}))"
            )
        case _:
            return f"CAST({value} AS {type_sql(target)})"


def _convert_struct(value: str, source: StructType, target: StructType, depth: int) -> str:
    fields = []
    for f in target:
        found = source.find(f.name)
        if found is None:
            converted = f"CAST(NULL AS {type_sql(f.data_type)})"
        else:
            converted = convert_sql(f"{value}.{quote_identifier(found.name)}", found.data_type, f.data_type, depth)
        fields.append(f"{quote_string(f.name)}, {converted}")
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


def same_values(source: DataType, target: DataType) -> bool:
    """Whether the types are the same, nullability and column metadata aside."""
    match source, target:
        case StructType(), StructType():
            return source.names == target.names and all(
                same_values(a.data_type, b.data_type) for a, b in zip(source, target, strict=True)
            )
        case ArrayType(), ArrayType():
            return same_values(source.element_type, target.element_type)
        case MapType(), MapType():
            return same_values(source.key_type, target.key_type) and same_values(source.value_type, target.value_type)
        case _:
            return source == target


def escape_braces(text: str) -> str:
    """Spark's formatter, which puts DataFrames into a query, takes braces for its own."""
    return text.replace("{", "{{").replace("}", "}}")
