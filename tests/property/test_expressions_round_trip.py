"""A resolved predicate survives being printed as Spark SQL and read again: scopes travel as text."""

from __future__ import annotations

import math
from datetime import UTC
from decimal import Decimal
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_orch.expressions.nodes import And, Column, Comparison, Expression, In, IsNull, Literal, Not, Or, StartsWith
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, quote_string, round_to_float
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)
from tests.property.expression_samples import SCHEMA

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CONSTANTS: dict[DataType, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in INTEGRAL_RANGES.items()},
    FLOAT: st.floats(width=32).filter(lambda v: not math.isnan(v)).map(round_to_float),
    DOUBLE: st.floats(allow_nan=False),
    STRING: TEXTS,
    BINARY: st.binary(max_size=10),
    BOOLEAN: st.booleans(),
    DATE: st.dates(),
    TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    TIMESTAMP_NTZ: st.datetimes(),
}


def constants(data_type: DataType) -> st.SearchStrategy[Literal]:
    if isinstance(data_type, DecimalType):
        bound = 10**data_type.precision - 1
        step = data_type.scale
        return st.integers(-bound, bound).map(lambda n: Literal(_decimal(n, step), data_type))
    return CONSTANTS[data_type].map(lambda value: Literal(value, data_type))


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


FIELDS = [f for f in SCHEMA if f.name != "st"]


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    field = draw(st.sampled_from(FIELDS))
    column = Column((field.name,))
    kind = draw(st.sampled_from(["compare", "in", "null", "prefix"]))
    if kind == "compare":
        operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
        return Comparison(operator, column, draw(constants(field.data_type)))
    if kind == "in":
        values = draw(
            st.lists(constants(field.data_type) | st.just(Literal(None, field.data_type)), min_size=1, max_size=4)
        )
        return In(column, tuple(dict.fromkeys(values)))
    if kind == "null" or field.data_type != STRING:
        return IsNull(column)
    return StartsWith(column, draw(TEXTS))


def flat(kind: type[And] | type[Or], children: list[Expression]) -> Expression:
    """And and Or hold no child of their own kind: that is how they are read."""
    parts: list[Expression] = []
    for child in children:
        parts.extend(child.children if isinstance(child, kind) else [child])
    return kind(tuple(parts))


PREDICATES = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda children: flat(And, children)),
        st.lists(inner, min_size=2, max_size=3).map(lambda children: flat(Or, children)),
        inner.map(lambda child: Comparison("<=>", child, Literal(True, BOOLEAN))),
    ),
    max_leaves=6,
)


@settings(max_examples=37, deadline=None)
@given(PREDICATES)
def test_printed_and_read_again(predicate: Expression) -> None:
    resolved = resolve_expression(predicate, SCHEMA)
    assert resolve_expression(parse_expression(to_spark_sql(resolved)), SCHEMA) == resolved


@settings(max_examples=37, deadline=None)
@given(TEXTS)
@example("\\")
@example("'")
@example("\\'")
@example("%_\\%\\_")
@example("\0\n\t\r\b\x1a")
@example("\\u0041")
def test_strings_survive_quoting(text: str) -> None:
    assert parse_expression(f"a = {quote_string(text)}") == Comparison("=", Column(("a",)), Literal(text))
