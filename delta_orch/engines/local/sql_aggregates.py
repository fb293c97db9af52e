"""The aggregates of `aggregate`, in DuckDB's SQL."""

from __future__ import annotations

from delta_orch.engines.local.sql_casts import widen
from delta_orch.engines.local.sql_types import Typed, is_atomic, struct_field, unsupported
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import duckdb_type
from delta_orch.protocol.types import DOUBLE, FLOAT, LONG, DecimalType, StructType


def count_of(value: Typed) -> Typed:
    """How many values are not null."""
    return Typed(f"count({value.sql})", LONG)


def sum_of(value: Typed) -> Typed:
    """The sum in Spark's type. Raises UnsupportedExpressionError for what is not a number."""
    if value.data_type in INTEGRAL_RANGES:
        return Typed(f"CAST(sum({value.sql}) AS BIGINT)", LONG)
    if value.data_type in (FLOAT, DOUBLE):
        return Typed(f"sum({widen(value, DOUBLE).sql})", DOUBLE)
    if isinstance(value.data_type, DecimalType):
        kind = DecimalType(min(value.data_type.precision + 10, MAX_DECIMAL_DIGITS), value.data_type.scale)
        return Typed(f"CAST(sum({value.sql}) AS {duckdb_type(kind)})", kind)
    raise unsupported(f"a sum of {value.data_type}")


def extreme_of(function: str, value: Typed) -> Typed:
    """`min` or `max`. Raises UnsupportedExpressionError for arrays, maps, variants, and structs that hold no atoms."""
    kind = value.data_type
    if isinstance(kind, StructType) and all(is_atomic(field.data_type) for field in kind):
        # Of two fields, a null is the lesser one in Spark, the greater one in DuckDB.
        fields = [struct_field(value, name).sql for name in kind.names]
        key = ", ".join(f"k{i} := {field} IS NOT NULL, v{i} := {field}" for i, field in enumerate(fields))
        return Typed(f"arg_{function}({value.sql}, if({value.sql} IS NOT NULL, struct_pack({key}), NULL))", kind)
    if not is_atomic(kind):
        raise unsupported(f"{function} of {kind}")
    return Typed(f"{function}({value.sql})", kind)
