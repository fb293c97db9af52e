"""Arguments of functions: as DuckDB's SQL of the type a function takes, where Spark casts them to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from delta_orch.engines.local.sql_casts import cast, finite, widen
from delta_orch.engines.local.sql_types import Typed, is_number, unsupported
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.protocol.types import (
    BINARY,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    DataType,
)


class Scalars(Protocol):
    """What a function needs of the translator that calls it."""

    def scalar(self, node: Expression) -> Typed: ...

    def text(self, node: Expression) -> str: ...

    def day(self, node: Expression) -> Typed: ...

    def boolean(self, node: Expression) -> str: ...

    def compared(self, op: str, left: Expression, right: Expression) -> Typed: ...

    def equal(self, left: Typed, right: Typed) -> str: ...

    def positive_remainder(self, first: Expression, second: Expression) -> Typed: ...


def moment(scalars: Scalars, node: Expression) -> Typed:
    """What Spark takes for a moment: text and dates, too. A TIMESTAMP of DuckDB, in UTC."""
    value = scalars.scalar(node)
    if value.data_type == STRING:
        value = cast(value, TIMESTAMP)
    if value.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        raise unsupported(f"a time function on {value.data_type}")
    return (
        finite(value) if isinstance(node, Column) and value.data_type == TIMESTAMP_NTZ else cast(value, TIMESTAMP_NTZ)
    )


def integer_sql(scalars: Scalars, node: Expression) -> str:
    value = scalars.scalar(node)
    if value.data_type == STRING or value.data_type not in INTEGRAL_RANGES or value.data_type == LONG:
        raise unsupported(f"a whole number of type {value.data_type}")
    return widen(value, INTEGER).sql


def long_sql(scalars: Scalars, node: Expression) -> str:
    value = scalars.scalar(node)
    if value.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"a whole number of type {value.data_type}")
    return widen(value, LONG).sql


def double_sql(scalars: Scalars, node: Expression) -> str:
    value = scalars.scalar(node)
    if not is_number(value.data_type):
        raise unsupported(f"a function of numbers on {value.data_type}")
    return widen(value, DOUBLE).sql


def bytes_sql(scalars: Scalars, node: Expression) -> str:
    value = scalars.scalar(node)
    return value.sql if value.data_type == BINARY else f"encode({scalars.text(node)})"


def constant(scalars: Scalars, node: Expression, kind: type, what: str) -> Any:
    """The value of an argument that must be a constant; an `int` of 32 bits. Raises UnsupportedExpressionError."""
    literal = scalars.scalar(node).literal
    if literal is None or type(literal.value) is not kind:
        raise unsupported(f"{what} with an argument that is not a constant")
    if isinstance(literal.value, int) and not -(2**31) <= literal.value < 2**31:
        raise unsupported(f"{what} with a number beyond 32 bits")
    return literal.value


def _only(takes: tuple[DataType, ...], as_sql: Callable[[Scalars, Expression], str]) -> Callable[..., str]:
    """An argument of one of some types, to which Spark casts no other."""

    def argument(scalars: Scalars, node: Expression) -> str:
        kind = scalars.scalar(node).data_type
        if kind not in takes:
            raise unsupported(f"a function of {', '.join(map(str, takes))} on {kind}")
        return as_sql(scalars, node)

    return argument


binary_sql = _only((STRING, BINARY, VOID), bytes_sql)


ARGUMENTS: dict[str, Callable[[Scalars, Expression], str]] = {
    "text": lambda scalars, node: scalars.text(node),
    "day": lambda scalars, node: scalars.day(node).sql,
    "moment": lambda scalars, node: moment(scalars, node).sql,
    "any": lambda scalars, node: scalars.scalar(node).sql,
    "int": integer_sql,
    "long": long_sql,
    "double": double_sql,
    "bytes": bytes_sql,
    "binary": binary_sql,
    "date": _only((DATE, VOID), lambda scalars, node: cast(scalars.scalar(node), DATE).sql),
    "instant": _only((TIMESTAMP, TIMESTAMP_NTZ), lambda scalars, node: moment(scalars, node).sql),
}
