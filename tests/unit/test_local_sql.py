"""Expressions of the local engine without a Spark beside it; that they mean the same is proven in tests/property."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.parse import parse_expression, parse_row_value
from delta_orch.expressions.resolve import resolve_expression

ENGINE = LocalEngine()
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None], "n": [1.5, None, 2.5]})
WORDS = pa.table({"id": [1, 1, 4], "word": ["one", "uno", "four"]})


def computed(text: str, rows: pa.Table = ROWS) -> list[Any]:
    """The values of an expression for each row."""
    found = ENGINE.project(ENGINE.relation(rows), [ComputedColumn("c", parse_row_value(text))])
    values: list[Any] = ENGINE.to_arrow(found)["c"].to_pylist()
    return values


def filtered(where: str) -> list[dict[str, Any]]:
    rows = ENGINE.relation(ROWS)
    found: list[dict[str, Any]] = ENGINE.to_arrow(
        ENGINE.filter(rows, resolve_expression(parse_expression(where), rows.schema))
    ).to_pylist()
    return found


def test_a_filter_runs_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)  # an import of it fails
    assert [row["id"] for row in filtered("ID >= 2 AND NOT (name <=> 'b')")] == [3]
    assert [row["id"] for row in filtered("NOT ((id >= 2) <=> TRUE)")] == [1]


@pytest.mark.parametrize("where", ["length(name) = 1 AND id > 1", "1 + id = 3", "upper(name) IN ('B', 'C')"])
def test_filters_that_need_more(where: str) -> None:
    assert [row["id"] for row in filtered(where)] == [2]


def test_strings_that_are_hard_to_quote() -> None:
    rows = pa.table({"s": ["it's", "\\", "\0", '"', "-- ; /*"]})
    for text in rows.column("s").to_pylist():
        written = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
        assert computed(f"concat(s, '') = '{written}'", rows).count(True) == 1


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("nmae", ColumnNotFoundError, "Did you mean name"),
        ("CASE WHEN NULL THEN 1 END", InvalidExpressionError, "not a predicate"),
        ("concat(NULL, array(id))", UnsupportedExpressionError, "CAST from array<long> to string"),
        ("name LIKE 'a\\\\'", InvalidExpressionError, "LIKE pattern"),
        ("array(id) / 1.5", UnsupportedExpressionError, "arithmetic on array"),
        ("1.5 / DATE '2024-01-01'", UnsupportedExpressionError, "arithmetic on date"),
        ("id IN (SELECT 1)", InvalidExpressionError, "a subquery"),
        ("sum(id)", InvalidExpressionError, "an aggregate function"),
        ("rank() OVER (ORDER BY id)", InvalidExpressionError, "a window function"),
        ("count(DISTINCT id)", InvalidExpressionError, "an aggregate function"),
        ("name RLIKE 'a'", UnsupportedExpressionError, "RLIKE"),
        ("transform(array(id), x -> x)", UnsupportedExpressionError, "transform"),
        ("regexp_replace(name, 'a', 'b')", UnsupportedExpressionError, "regexp_replace"),
        ("lpad(name, id)", UnsupportedExpressionError, "run lpad: .*not a constant"),
        ("year(id)", UnsupportedExpressionError, "run year: a date function on long"),
        ("substring(name, 'a')", UnsupportedExpressionError, "run substring with"),
        ("concat(upper(name), n)", UnsupportedExpressionError, "run concat: CAST from double to string"),
        ("array(id).x", InvalidExpressionError, "Only structs have fields"),
        ("array(struct(id)).id", UnsupportedExpressionError, "a field of array<struct"),
    ],
)
def test_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        computed(text)


@pytest.mark.parametrize("call", ["ceil()", "date_trunc()", "datediff(name)", "day()", "map(name)", "substring(name)"])
def test_a_function_without_its_arguments_is_refused(call: str) -> None:
    with pytest.raises((InvalidExpressionError, UnsupportedExpressionError)):
        computed(call)
    with pytest.raises((InvalidExpressionError, UnsupportedExpressionError)):
        filtered(f"{call} = 1")


def test_an_operand_that_may_raise_is_not_evaluated_where_another_decides() -> None:
    rows = pa.table({"id": list(range(100_000)), "s": [str(i) if i % 2 else "x" for i in range(100_000)]})
    for where, count in (
        ("s <> 'x' AND s >= 5", 49_998),
        ("NOT (s = 'x' OR s < 5)", 49_998),
        ("id % 2 <> 0 AND 1 / (id % 2) = 1", 50_000),
    ):
        relation = ENGINE.relation(rows)
        kept = ENGINE.filter(relation, resolve_expression(parse_expression(where), relation.schema))
        assert ENGINE.to_arrow(kept).num_rows == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4 | 1 & 2", 4), ("4 | 1 ^ 1", 4), ("true = false IN (false, true)", True),
     ("1 = 2 BETWEEN false AND true", True), ("NOT false AND false", False), ("2 + 3 * 4 % 5", 4),
     ("'\\u00fc\\101\\Z' = 'üA\x1a'", True)],
)  # fmt: skip
def test_operators_bind_as_in_spark(text: str, expected: object) -> None:
    assert computed(text)[0] == expected


@pytest.mark.parametrize("text", ["datediff(MONTH, name, name)", "datediff(DAY, id, id)", "-name"])
def test_what_has_another_meaning_than_its_name_is_refused(text: str) -> None:
    with pytest.raises((UnsupportedExpressionError, InvalidExpressionError)):
        computed(text)


def test_a_comparison_of_an_expression_is_refused_in_words() -> None:
    with pytest.raises(
        InvalidExpressionError, match=r"\(an expression\) of type long cannot be compared with a binary"
    ):
        computed("id + 1 = X'61'")


BYTES = pa.table({"b": pa.array(["\u00e4".encode(), b"\x00\xff", b"", None], pa.binary())})


def test_functions_of_binaries_count_bytes() -> None:
    assert computed("length(b)", BYTES) == [2, 2, 0, None]
    assert computed("b || X'ff'", BYTES) == ["\u00e4".encode() + b"\xff", b"\x00\xff\xff", b"\xff", None]
    assert computed("length(concat(b, b))", BYTES) == [4, 4, 0, None]


@pytest.mark.parametrize("call", ["substring(b, 1, 1)", "left(b, 1)", "lpad(b, 1)", "rpad(b, 4)", "substr(b || b, 2)"])
def test_parts_of_binaries_are_refused(call: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match="counts bytes of a binary"):
        computed(call, BYTES)
