"""Columns and types in Spark SQL queries that DuckDB runs: what two sides widen to, and which casts mean the same in
both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS, natural_type
from delta_orch.expressions.to_sql import duckdb_literal, duckdb_type, quote_duckdb_identifier, quote_duckdb_string
from delta_orch.protocol.types import (
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
)

_DIGITS: dict[DataType, int] = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 20}
_MOMENTS = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
_EXACT_DOUBLE_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Typed:
    """A scalar in DuckDB's SQL with the type Spark gives it; `literal` where it is a constant."""

    sql: str
    data_type: DataType
    literal: Literal | None = None


def unsupported(what: str) -> UnsupportedExpressionError:
    """The error for what is not proven to mean the same in DuckDB as in Spark."""
    return UnsupportedExpressionError(
        f"The local engine does not run {what}",
        cause="It runs only what is proven to mean the same in DuckDB as in Spark",
        remedy='Use the Spark engine (engine="spark")',
        construct=what,
    )


def is_atomic(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or (isinstance(data_type, PrimitiveType) and data_type.name != "variant")


def is_number(data_type: DataType) -> bool:
    return data_type in _DIGITS or data_type in (FLOAT, DOUBLE) or isinstance(data_type, DecimalType)


def common_type(left: DataType, right: DataType) -> DataType:
    """What Spark widens two operands to. Raises UnsupportedExpressionError where that needs a cast of text, or digits
    beyond 38."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if left in _MOMENTS and right in _MOMENTS:
        return max(left, right, key=_MOMENTS.index)
    raise unsupported(f"an expression that mixes {left} and {right}")


def common_type_of(data_types: Sequence[DataType]) -> DataType:
    """`common_type` of several."""
    return reduce(common_type, data_types)


def _common_number(left: DataType, right: DataType) -> DataType:
    if left in _DIGITS and right in _DIGITS:
        return max(left, right, key=lambda kind: _DIGITS[kind])
    if left in (FLOAT, DOUBLE) or right in (FLOAT, DOUBLE):
        return DOUBLE
    a, b = as_decimal(left), as_decimal(right)
    scale = max(a.scale, b.scale)
    precision = max(a.precision - a.scale, b.precision - b.scale) + scale
    if precision > MAX_DECIMAL_DIGITS:
        raise unsupported(f"an expression that mixes {left} and {right}")
    return DecimalType(precision, scale)


def as_decimal(data_type: DataType) -> DecimalType:
    """The decimal that holds every value of an integral or decimal type."""
    return data_type if isinstance(data_type, DecimalType) else DecimalType(_DIGITS[data_type], 0)


def widen(value: Typed, target: DataType) -> Typed:
    """A cast that loses nothing, as Spark inserts it between operands. Raises UnsupportedExpressionError."""
    source = value.data_type
    if source == target:
        return value
    if source == VOID:
        return Typed(null_of(target), target)
    if isinstance(source, DecimalType) and target == DOUBLE and source.precision > _EXACT_DOUBLE_DIGITS:
        # DuckDB divides the digits by a power of ten, which is exact only while both are.
        raise unsupported(f"a conversion of {source} to double")
    if target == DOUBLE and value.literal is not None and is_number(source):
        number = float(value.literal.value)
        return Typed(duckdb_literal(number, DOUBLE), DOUBLE, Literal(number, DOUBLE))
    return Typed(f"CAST({value.sql} AS {duckdb_type(target)})", target)


def null_of(data_type: DataType) -> str:
    """A null of a type."""
    return f"CAST(NULL AS {duckdb_type(data_type)})" if is_atomic(data_type) and data_type != VOID else "NULL"


def cast(value: Typed, target: DataType) -> Typed:
    """An explicit CAST, under ANSI: what does not fit raises while the query runs.

    Raises UnsupportedExpressionError for a cast whose result or whose failures differ in DuckDB.
    """
    source = value.data_type
    if source in (target, VOID):
        return widen(value, target)
    to = duckdb_type(target) if is_atomic(target) else ""
    plain = f"CAST({value.sql} AS {to})"
    integral = target in INTEGRAL_RANGES
    if source in INTEGRAL_RANGES and (integral or target in (FLOAT, DOUBLE, STRING, BOOLEAN)):
        return Typed(plain, target)
    if source in (FLOAT, DOUBLE) and integral:
        return Typed(f"CAST(trunc({value.sql}) AS {to})", target)  # DuckDB would round
    if source == BOOLEAN and (integral or target == STRING):
        return Typed(plain, target)
    if source in _MOMENTS and target in _MOMENTS:
        return Typed(plain, target)
    if (source, target) == (FLOAT, DOUBLE):
        return Typed(plain, target)
    if (source in INTEGRAL_RANGES or isinstance(source, DecimalType)) and isinstance(target, DecimalType):
        return _to_decimal(value, target, plain)
    if isinstance(source, DecimalType) and target == DOUBLE:
        return widen(value, DOUBLE)
    raise unsupported(f"CAST from {source} to {target}")


def _to_decimal(value: Typed, target: DecimalType, plain: str) -> Typed:
    source = as_decimal(value.data_type)
    if source.scale > target.scale:
        raise unsupported(f"CAST from {value.data_type} to {target}")
    return Typed(plain, target)


@dataclass(frozen=True, slots=True)
class Source:
    """The columns of one relation that a query reads. `used` gathers the top-level ones that are looked at."""

    alias: str
    schema: StructType
    used: set[str] = field(default_factory=set)

    def find(self, path: tuple[str, ...]) -> Typed:
        """See `Columns.find`."""
        spelled, data_type = find_column(path, self.schema)
        if data_type is None:
            raise unsupported(f"a field of an array or map: {'.'.join(path)}")
        top = self.schema.find(spelled[0])
        assert top is not None
        self.used.add(top.name)
        value = Typed(qualified(self.alias, top.name), top.data_type)
        for name in spelled[1:]:
            value = struct_field(value, name)
        return value


def qualified(alias: str, name: str) -> str:
    """A column of a relation."""
    return f"{quote_duckdb_identifier(alias)}.{quote_duckdb_identifier(name)}"


def struct_field(value: Typed, name: str) -> Typed:
    """A field of a struct, by name without regard to case. Raises InvalidExpressionError."""
    field = value.data_type.find(name) if isinstance(value.data_type, StructType) else None
    if field is None:
        is_struct = isinstance(value.data_type, StructType)
        cause = None if is_struct else "Only structs have fields"
        raise InvalidExpressionError(f"{value.data_type} has no field {name!r}", cause=cause, field=name)
    return Typed(f"struct_extract({value.sql}, {quote_duckdb_string(field.name)})", field.data_type)


def struct_of(fields: Sequence[tuple[str, Typed]]) -> Typed:
    packed = (f"{quote_duckdb_identifier(name)} := {value.sql}" for name, value in fields)
    schema = StructType(tuple(StructField(name, value.data_type) for name, value in fields))
    return Typed(f"struct_pack({', '.join(packed)})", schema)


def as_boolean(value: Typed, text: Callable[[], str]) -> str:
    if value.data_type not in (BOOLEAN, VOID):
        raise InvalidExpressionError(
            f"{text()!r} is not a predicate", cause=f"Its type is {value.data_type}, not boolean"
        )
    return widen(value, BOOLEAN).sql


def as_text(value: Typed) -> str:
    if value.data_type not in (STRING, VOID):
        raise unsupported(f"a text function on {value.data_type}")
    return widen(value, STRING).sql


def literal_value(literal: Literal) -> Typed:
    if literal.value is None:
        kind = VOID if literal.data_type is None else literal.data_type
        return Typed(null_of(kind), kind, literal)
    kind = literal.data_type if literal.data_type is not None else natural_type(literal.value)
    return Typed(duckdb_literal(literal.value, kind), kind, literal)


def choose(conditions: Sequence[str], results: Sequence[Typed], default: Typed) -> Typed:
    kind = common_type_of([value.data_type for value in (*results, default)])
    branches = " ".join(
        f"WHEN {condition} THEN {widen(value, kind).sql}" for condition, value in zip(conditions, results, strict=True)
    )
    return Typed(f"CASE {branches} ELSE {widen(default, kind).sql} END", kind)


def arithmetic_type(left: Typed, right: Typed, what: str, *, decimals: bool = False) -> DataType:
    for value in (left, right):
        if not is_number(value.data_type):
            raise unsupported(f"{what}: arithmetic on {value.data_type}")
    kind = common_type(left.data_type, right.data_type)
    if isinstance(kind, DecimalType) and not decimals:
        raise unsupported(f"{what}: arithmetic on {kind}")
    return kind
