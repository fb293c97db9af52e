"""Delta's types in Spark: schemas, and SQL text for types and conversions.

Text means the same to a classic and to a Connect session, while Python's column functions bind to one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from delta_orch.engines.base import JoinKind, JoinSide
from delta_orch.engines.file_schema import as_nullable
from delta_orch.expressions.nodes import Coerced, Comparison, Expression
from delta_orch.expressions.spark_literals import quote_identifier, quote_string, type_sql
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of, conjuncts, ensure_few_terms
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.schema_edit import with_fields, without_metadata
from delta_orch.protocol.types import BINARY, VARIANT, ArrayType, DataType, MapType, StructField, StructType, with_parts

_MAX_TERMS = 5_000
_MAX_VALUES = 50_000
_SENT_VARIANT = StructType((StructField("value", BINARY, False), StructField("metadata", BINARY, False)))


def field_of(schema: StructType, name: str) -> StructField:
    """A column that the schema has."""
    field = schema.find(name)
    assert field is not None, f"{name} is not in the schema"
    return field


def with_metadata(schema: StructType, metadata_of: Callable[[StructField], Mapping[str, object]]) -> StructType:
    """Return the schema with other metadata on its columns, and on the fields of structs at every level."""

    def change(field: StructField) -> StructField:
        return replace(field, data_type=with_fields(field.data_type, change), metadata=metadata_of(field))

    return StructType(tuple(map(change, schema)))


def plain_schema(schema: StructType, *kept: str) -> StructType:
    """Return the columns for Spark. All are nullable, because any value may be null in a file. Only comments and the
    `kept` metadata remain, because Spark would match columns by field ids."""
    return without_metadata(as_nullable(schema), lambda key: key not in ("comment", *kept))


def schema_as_sent(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows to and from Spark. In a variant, `value` comes before `metadata`."""
    return schema_to_arrow(StructType(tuple(replace(f, data_type=_as_sent(f.data_type)) for f in schema)))


def _as_sent(data_type: DataType) -> DataType:
    return _SENT_VARIANT if data_type == VARIANT else with_parts(data_type, lambda _, inner: _as_sent(inner))


def same_values(source: DataType, target: DataType) -> bool:
    """Whether the types are the same, without regard to nullability and column metadata."""
    return type_sql(source) == type_sql(target)


def convert_sql(value: str, source: DataType, target: DataType, depth: int = 0) -> str:
    """Return SQL that converts `value` to the target type. Structs are converted field by field and by name, so that a
    nested column that only moves stays a plain reference."""
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


def conformed_sql(schema: StructType, name: str, target: DataType, struct: str = "", depth: int = 0) -> str:
    """Return SQL for a column, or for a field of `struct`, in another type. It is null if the column does not exist."""
    field = schema.find(name)
    if field is None:
        return f"CAST(NULL AS {type_sql(target)})"
    return convert_sql(f"{struct}{quote_identifier(field.name)}", field.data_type, target, depth)


def _convert_struct(value: str, source: StructType, target: StructType, depth: int) -> str:
    fields = (
        f"{quote_string(f.name)}, {conformed_sql(source, f.name, f.data_type, f'{value}.', depth)}" for f in target
    )
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


def timestamp_ntz_sql(micros: str) -> str:
    """Return SQL for microseconds since the epoch as a timestamp without time zone, independent of the session's time
    zone."""
    return f"timestampadd(MICROSECOND, {micros}, TIMESTAMP_NTZ'1970-01-01 00:00:00')"


def bounded_sql(where: Expression) -> str:
    """Return a resolved predicate or value as text for Spark's parser. Its time and memory grow with the text.

    Raises:
        InvalidExpressionError: The predicate has more comparisons or constants than Spark can plan in a few seconds.
    """
    return to_spark_sql(ensure_few_terms(where, _MAX_TERMS, _MAX_VALUES))


def escape_braces(text: str) -> str:
    """Return the text for Spark's formatter, which replaces braces in a query by DataFrames."""
    return text.replace("{", "{{").replace("}", "}}")


# Joins that keep every row of a small side, as a MERGE that inserts does.
#
# Spark cannot broadcast a side whose rows without a partner it must keep: only the other side's tasks could tell that
# no row matched. So it would send all rows of the large side through a shuffle. A semi join can broadcast the small
# side. It leaves few rows of the large one, and what they are joined with afterwards is the same.

_MOST_BROADCAST_ROWS = 500_000
"""The maximal number of rows of the small side. A semi join holds their condition columns, about 100 bytes per row."""
_TIMES_LARGER = 4

_KEPT = {"right": 1, "left": 0, "anti": 0}
"""The side of which a join keeps all rows without a match, or only these rows."""


def joined_sql(left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind) -> str:
    """Return the FROM clause of a join of two relations with aliases."""
    sides = [left, right]
    condition = bounded_sql(on)
    tables = [quote_identifier(side.alias) for side in sides]
    if kind in _KEPT and _has_equality(on):
        kept = _KEPT[kind]
        if _is_much_smaller(sides[kept], sides[1 - kept]):
            small, large = tables[kept], tables[1 - kept]
            tables[1 - kept] = (
                f"(SELECT /*+ BROADCAST({small}) */ {large}.* FROM {large} LEFT SEMI JOIN {small} ON {condition})"
                f" AS {large}"
            )
    return f"{tables[0]} {kind.upper()} JOIN {tables[1]} ON {condition}"


def _is_much_smaller(small: JoinSide, large: JoinSide) -> bool:
    if small.num_rows is None or large.num_rows is None or small.num_rows > _MOST_BROADCAST_ROWS:
        return False
    return small.num_rows * _TIMES_LARGER <= large.num_rows


def _has_equality(on: Expression) -> bool:
    """Whether the join uses a hash of keys. Otherwise each pair is compared, and a second join would be too
    expensive."""
    return any(map(_is_of_both, conjuncts(on)))


def _is_of_both(part: Expression) -> bool:
    """Whether a part of a condition is an equality between values of both sides, not with a constant."""
    match part.predicate if isinstance(part, Coerced) else part:
        case Comparison("=" | "<=>", left, right):
            one, other = ({column.path[0] for column in columns_of(side)} for side in (left, right))
            return len(one) == len(other) == 1 and one != other
    return False
