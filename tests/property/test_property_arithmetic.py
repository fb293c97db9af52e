"""Arithmetic in Arrow is arithmetic in DuckDB, which other tests hold against Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.conform import conform_column
from delta_orch.engines.local.duckdb_requests import evaluator, value_types
from delta_orch.engines.local.projection import Arithmetic
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Cast, Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.protocol.arrow_building import schema_from_arrow, type_to_arrow
from delta_orch.protocol.types import BYTE, DOUBLE, INTEGER, LONG

NUMBERS = pa.struct([("b", pa.int8()), ("s", pa.int16()), ("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64())])
ROWS = pa.schema([*NUMBERS, pa.field("in", NUMBERS), pa.field("f", pa.float32()), pa.field("t", pa.string())])
SCHEMA = schema_from_arrow(ROWS)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1e308, 2.0**53])


def _integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(-3, 3) | st.sampled_from([least, least + 1, most - 1, most])


OPERANDS = st.sampled_from(
    ["b", "s", "i", "l", "d", "`in`.b", "`in`.l", "`in`.d", "0", "1", "-7", "2147483647", "3000000000", "5L", "2S",
     "1Y", "1.5D", "-0.0D", "1e300"]
)  # fmt: skip
TREES = st.recursive(
    OPERANDS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=5,
)
STRUCTS = st.fixed_dictionaries(
    {name: st.none() | _integers(bits) for name, bits in (("b", 8), ("s", 16), ("i", 32), ("l", 64))}
    | {"d": st.none() | FLOATS}
)
MADE = st.lists(st.tuples(STRUCTS, st.none() | STRUCTS).map(lambda t: {**t[0], "in": t[1]}), min_size=1, max_size=4)


def _or_refusal(expression: Expression, batch: pa.RecordBatch, *, in_arrow: bool) -> str:
    column = ComputedColumn("c", expression)
    try:
        if in_arrow:
            found = Arithmetic.of(expression, SCHEMA)
            assert found is not None
            kind, values = found.data_type, found.values(batch, "c")
        else:
            [kind], [(_, [values])] = value_types([column], SCHEMA), evaluator([column], SCHEMA)(batch)
    except InvalidExpressionError as e:
        return e.problem
    return repr(conform_column(values, type_to_arrow(kind), lossless=True, path="c").to_pylist())


@pytest.mark.long
@given(st.tuples(TREES, st.sampled_from("+-*"), TREES).map(" ".join), MADE, st.sampled_from([None, LONG, DOUBLE]))
@settings(max_examples=100, deadline=None)
def test_arrow_computes_what_duckdb_does(text: str, rows: list[dict[str, object]], target: object) -> None:
    expression: Expression = parse_expression(text)
    if target in (LONG, DOUBLE):
        expression = Cast(expression, target)
    if Arithmetic.of(expression, SCHEMA) is None:
        return  # without a column, or a double that is to become a long
    batch = pa.RecordBatch.from_pylist(rows, ROWS)
    assert _or_refusal(expression, batch, in_arrow=True) == _or_refusal(expression, batch, in_arrow=False)


@pytest.mark.parametrize("text", ["l + 1", "i * 2 - `in`.s", "d + l", "b - (s + 1Y)"])
def test_what_arrow_computes(text: str) -> None:
    assert Arithmetic.of(parse_expression(text), SCHEMA) is not None


@pytest.mark.parametrize(
    "text", ["l / 2", "f + 1", "l + 1.5", "t + 1", "l + NULL", "1 + 2", "l", "-l", " + ".join(["l"] * 30)]
)
def test_what_it_leaves_to_duckdb(text: str) -> None:
    assert Arithmetic.of(parse_expression(text), SCHEMA) is None


def test_no_cast_that_can_fail() -> None:
    assert Arithmetic.of(Cast(parse_expression("l + 1"), INTEGER), SCHEMA) is None
    assert Arithmetic.of(Cast(parse_expression("b + 1Y"), BYTE), SCHEMA) is not None
