"""The requests of the seam on the local engine; tests/spark asks the other engine the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.base import (
    ComputedColumn,
    Engine,
    JoinKind,
    JoinSide,
    Measure,
    Relation,
    WindowColumn,
    join_schema,
)
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan, with_row_addresses
from delta_orch.errors import InvalidExpressionError, InvalidRequestError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.expressions.parse import parse_expression, parse_value
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.types import LONG
from tests.harness.row_deletion import delete_rows

TARGET = pa.table({"id": [1, 2, 2, None], "v": ["a", "b", "c", "d"], "n": [1.5, None, 2.5, 4.0]})
SOURCE = pa.table({"id": [2, 3], "v": ["x", None], "st": [{"k": 7}, None]})


@pytest.fixture
def engine() -> Engine:
    return LocalEngine()


def columns(**values: str) -> list[ComputedColumn]:
    return [ComputedColumn(name, parse_value(text)) for name, text in values.items()]


def rows_of(engine: Engine, relation: Relation) -> list[tuple[Any, ...]]:
    found = [tuple(row.values()) for row in engine.to_arrow(relation).to_pylist()]
    return sorted(found, key=lambda row: [(value is None, str(value)) for value in row])


def joined(
    engine: Engine,
    on: str,
    kind: JoinKind,
    values: Sequence[ComputedColumn],
    sizes: tuple[int | None, int | None] = (None, None),
) -> list[tuple[Any, ...]]:
    """`sizes`: how many rows the sides are said to have."""
    left = JoinSide("t", engine.relation(TARGET), sizes[0])
    right = JoinSide("s", engine.relation(SOURCE), sizes[1])
    scope = join_schema({side.alias: engine.schema(side.relation) for side in (left, right)})
    condition = resolve_expression(parse_expression(on), scope)
    return rows_of(engine, engine.join(left, right, condition, kind, values))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inner", [("b", "x"), ("c", "x")]),
        ("left", [("a", None), ("b", "x"), ("c", "x"), ("d", None)]),
        ("right", [("b", "x"), ("c", "x"), (None, None)]),
        ("full", [("a", None), ("b", "x"), ("c", "x"), ("d", None), (None, None)]),
    ],
)
def test_joins(engine: Engine, kind: JoinKind, expected: list[Any]) -> None:
    assert joined(engine, "t.id = s.id", kind, columns(v="t.v", w="s.v")) == expected


@pytest.mark.parametrize(
    ("kind", "on", "expected"),
    [
        ("right", "t.id = s.id", [("b", "x"), ("c", "x"), (None, None)]),
        ("right", "t.id = s.id AND t.n > 2", [("c", "x"), (None, None)]),
        ("right", "t.id <=> s.st.k", [("d", None), (None, "x")]),
        ("right", "t.id > s.id", [(None, "x"), (None, None)]),
        ("left", "t.id = s.id AND s.v IS NULL", [("a", None), ("b", None), ("c", None), ("d", None)]),
    ],
)
def test_outer_joins_of_a_small_side_that_is_kept(engine: Engine, kind: JoinKind, on: str, expected: list[Any]) -> None:
    sizes = (100, 2) if kind == "right" else (4, 100)
    assert joined(engine, on, kind, columns(v="t.v", w="s.v"), sizes) == expected


@pytest.mark.parametrize(("kind", "expected"), [("semi", [("b",), ("c",)]), ("anti", [("a",), ("d",)])])
def test_joins_that_choose_rows(engine: Engine, kind: JoinKind, expected: list[Any]) -> None:
    assert joined(engine, "T.ID = S.id", kind, columns(v="t.v"), (4, 100)) == expected


def test_a_join_on_text_with_computed_columns(engine: Engine) -> None:
    found = joined(engine, "t.id + 1 = s.id AND s.v IS NULL", "inner", columns(k="s.id * 10", v="coalesce(s.v, t.v)"))
    assert found == [(30, "b"), (30, "c")]
    assert joined(engine, "t.id <=> s.st.k", "inner", columns(v="t.v")) == [("d",)]


def test_a_projection_computes_and_renames(engine: Engine) -> None:
    rows = engine.relation(TARGET)
    found = engine.project(rows, columns(n="id", twice="n * 2", c="'it''s'"))
    assert [field.name for field in engine.schema(found)] == ["n", "twice", "c"]
    assert rows_of(engine, found)[0] == (1, 3.0, "it's")
    assert rows_of(engine, engine.project(rows, columns(key="ID", v="v")))[0] == (1, "a")
    nested = engine.project(engine.relation(SOURCE), [ComputedColumn("k", Column(("st", "k")))])
    assert rows_of(engine, nested) == [(7,), (None,)]


def test_aggregates(engine: Engine) -> None:
    rows = engine.relation(TARGET)
    measures = [
        Measure("rows", "count"),
        Measure("numbers", "count", parse_value("n")),
        Measure("total", "sum", parse_value("n + 1")),
        Measure("last", "max", parse_value("v")),
        Measure("first", "min", parse_value("v")),
    ]
    assert rows_of(engine, engine.aggregate(rows, columns(id="id"), measures)) == [
        (1, 1, 1, 2.5, "a", "a"),
        (2, 2, 1, 3.5, "c", "b"),
        (None, 1, 1, 5.0, "d", "d"),
    ]
    assert rows_of(engine, engine.aggregate(rows, [], measures[:1])) == [(4,)]
    nothing = engine.filter(rows, resolve_expression(parse_expression("id = 9"), engine.schema(rows)))
    assert rows_of(engine, engine.aggregate(nothing, [], measures[:3])) == [(0, 0, None)]
    assert rows_of(engine, engine.aggregate(nothing, columns(id="id"), measures)) == []


def test_windows(engine: Engine) -> None:
    """The first row of each group, and what stands before and behind a row; nulls are one group, and come first."""
    rows = engine.relation(pa.table({"k": [1, 1, None, 1, None], "at": [3, 1, 5, None, 4], "v": list("abcde")}))
    key, at, value = Column(("k",)), Column(("at",)), Column(("v",))
    added = [
        WindowColumn("number", "row_number"),
        WindowColumn("before", "lag", value),
        WindowColumn("behind", "lead", at),
    ]
    numbered = engine.window(rows, [key], [at], added)
    assert engine.schema(numbered).names == ("k", "at", "v", "number", "before", "behind")
    assert rows_of(engine, numbered) == [
        (1, 1, "b", 2, "d", 3),
        (1, 3, "a", 3, "b", None),
        (1, None, "d", 1, None, 1),
        (None, 4, "e", 1, None, 5),
        (None, 5, "c", 2, "e", None),
    ]
    first = engine.filter(numbered, Comparison("=", Column(("number",)), Literal(1, LONG)))
    assert rows_of(engine, engine.project(first, columns(v="v"))) == [("d",), ("e",)]
    whole = engine.window(rows, [], [at, key], [WindowColumn("n", "row_number")])
    assert sorted(row[3] for row in rows_of(engine, whole)) == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidRequestError):
        engine.window(rows, [key], [at], [WindowColumn("AT", "row_number")])


def test_rows_tell_where_they_are(engine: Engine, tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"))
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table.create(schema, partition_by=["p"], properties={"delta.enableDeletionVectors": "true"})
    for start in (0, 10):
        table.append(pa.table({"id": range(start, start + 5), "p": ["x"] * 5}, schema))
    delete_rows(table, 0)
    snapshot = table.snapshot()
    plan = with_row_addresses(ScanPlan(table.store, snapshot.schema, ("p",), snapshot.files()), "file", "row")
    ids = [pq.read_table(tmp_path / "t" / path, columns=["id"]) for path in plan.files.column("path").to_pylist()]
    expected = [
        (id, file, row)
        for file, rows in enumerate(ids)
        for row, id in enumerate(rows.column("id").to_pylist())
        if id not in (0, 10)
    ]
    addresses = engine.project(engine.scan(plan), columns(id="id", file="file", row="row"))
    assert sorted(rows_of(engine, addresses)) == sorted(expected)
    where = resolve_expression(parse_expression("file = 1 AND id > 2"), plan.schema)
    some = rows_of(engine, engine.scan(replace(plan, where=where, columns=("row",))))
    assert sorted(some) == [(row,) for id, file, row in expected if file == 1 and id > 2]


def test_a_limit_reads_no_more_than_that(engine: Engine) -> None:
    read = []

    def batches() -> Any:
        for number in range(3):
            read.append(number)
            yield pa.record_batch({"a": [number, number]})

    rows = engine.relation(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()))
    assert engine.to_arrow(rows, limit=1).to_pylist() == [{"a": 0}]
    assert read == [0]


def test_what_is_refused(engine: Engine) -> None:
    rows = engine.relation(TARGET)
    with pytest.raises(InvalidRequestError, match="same name"):
        engine.project(rows, columns(a="id", A="v"))
    with pytest.raises(UnsupportedExpressionError):
        engine.project(rows, columns(a="soundex(v)"))
    with pytest.raises(InvalidRequestError, match="needs a value"):
        engine.aggregate(rows, [], [Measure("x", "sum")])
    with pytest.raises(InvalidExpressionError):
        engine.to_arrow(engine.project(rows, columns(a="id % 0")))
