"""What the JVM tells of pushed filters, as predicates over the table's columns. No Spark runs here."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.expressions.nodes import And, Column, Comparison, Expression, In, IsNull, Literal, Not, Or, StartsWith
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

PRICE = DecimalType(7, 2)
KINDS: list[tuple[str, DataType]] = [
    ("id", LONG),
    ("name", STRING),
    ("price", PRICE),
    ("day", DATE),
    ("at", TIMESTAMP),
    ("local", TIMESTAMP_NTZ),
    ("x", DOUBLE),
    ("ok", BOOLEAN),
]


def schema(prefix: str) -> StructType:
    fields = tuple(StructField(prefix + name, kind) for name, kind in KINDS)
    return StructType((*fields, StructField(f"{prefix}st", StructType(fields))))


class Kept:
    """The same files, whatever is asked."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._files = pa.table({"path": pa.array(paths, pa.string())})

    def __call__(self, where: Expression | None) -> pa.Table:
        return self._files

    def extremes(self, column: Column, data_type: DataType) -> pa.Table | None:
        return None


def filters(*paths: str, kept: tuple[str, ...] = ()) -> PushedFilters:
    return PushedFilters(schema("col-"), schema(""), "memory://t", Kept(kept), pa.chunked_array([pa.array(paths)]))


def parse(*nodes: Any) -> Expression | None:
    return filters().parse(json.dumps(nodes))


ID, NAME = Column(("id",)), Column(("name",))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (["compare", ">=", ["col-id"], ["5"]], Comparison(">=", ID, Literal(5, LONG))),
        (
            ["compare", "=", ["col-price"], ["1.50"]],
            Comparison("=", Column(("price",)), Literal(Decimal("1.50"), PRICE)),
        ),
        (["compare", "<", ["col-day"], ["-1"]], Comparison("<", Column(("day",)), Literal(date(1969, 12, 31), DATE))),
        (
            ["compare", "<", ["col-at"], ["1"]],
            Comparison("<", Column(("at",)), Literal(datetime(1970, 1, 1, 0, 0, 0, 1, UTC), TIMESTAMP)),
        ),
        (
            ["compare", "<", ["col-local"], ["1000000"]],
            Comparison("<", Column(("local",)), Literal(datetime(1970, 1, 1, 0, 0, 1), TIMESTAMP_NTZ)),
        ),
        (["compare", "=", ["col-ok"], ["true"]], Comparison("=", Column(("ok",)), Literal(True, BOOLEAN))),
        (["compare", "=", ["col-st", "col-id"], ["5"]], Comparison("=", Column(("st", "id")), Literal(5, LONG))),
        (["compare", "<=>", ["col-id"], [None]], IsNull(ID)),
        (["compare", "=", ["col-id"], [None]], Literal(None, BOOLEAN)),
        (["in", ["col-name"], [["a"], [None]]], In(NAME, (Literal("a", STRING), Literal(None, STRING)))),
        (["prefix", ["col-name"], "ab"], StartsWith(NAME, "ab")),
        (["not", ["null", ["col-id"]]], Not(IsNull(ID))),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, list) else "",
)
def test_nodes(node: list[Any], expected: Expression) -> None:
    assert parse(node) == expected


def test_what_is_unknown_is_left_open() -> None:
    known = Comparison("=", ID, Literal(5, LONG))
    node = ["compare", "=", ["col-id"], ["5"]]
    assert parse(node, None) == known
    assert parse(["null", ["elsewhere"]], node) == known
    either = parse(["or", None, node])
    assert isinstance(either, Or) and either.children[1] == known
    both = parse(["and", None, ["not", node]])
    assert isinstance(both, And) and both.children[1] == Not(known)
    for unknown in (
        ["null", ["elsewhere"]],
        ["null", ["col-id", "x"]],
        ["compare", "=", ["id"], ["5"]],
        ["prefix", ["col-id"], "5"],
        ["something", "new"],
    ):
        assert parse(unknown) is None, unknown


def test_one_bit_a_file() -> None:
    names = [f"f{i}" for i in range(10)]
    text = json.dumps([["null", ["col-id"]]])
    assert filters(*names, kept=("f0", "f9", "other")).kept(text) == bytes([0b1, 0b10])
    assert filters(*names, kept=()).kept(text) == bytes(2)
    assert filters(*names, kept=tuple(names)).kept(text) is None
    assert filters(*names).kept(json.dumps([["null", ["elsewhere"]]])) is None
