"""However large or deep a predicate is: it works, or ends in an error with a name. Nothing crashes, nothing hangs."""

from __future__ import annotations

import functools
import operator
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable, literal
from delta_orch.engines.spark.sql_text import bounded_sql
from delta_orch.errors import DeltaError, InvalidExpressionError
from delta_orch.expressions.nodes import (
    And,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import children_of
from delta_orch.protocol.types import LONG, STRING
from tests.bounded import tries
from tests.families import family

ROWS = 1000
SIZES = (30, 1_000, 10_000)
SECONDS = 15
"""Of CPU, on a machine that other tests share. The largest case takes two."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    found = DeltaTable(tmp_path_factory.mktemp("size") / "t")
    numbers = range(ROWS)
    found.append(
        pa.table({
            "a": pa.array(numbers, pa.int64()),
            "s": [str(n) for n in numbers],
            "f": [n / 2 for n in numbers],
            "p": pa.array([n % 3 for n in numbers], pa.int32()),
        }),
        partition_by=["p"],
    )  # fmt: skip
    return found


def count(table: DeltaTable, where: object) -> int:
    return int(table.snapshot().scan(where=where).to_arrow().num_rows)


Shape = Callable[[int], object]

TEXTS: dict[str, Shape] = {
    "OR of equalities": lambda n: " OR ".join(f"a = {i}" for i in range(n)),
    "OR of ranges": lambda n: " OR ".join(f"a > {i}" for i in range(n)),
    "AND of inequalities": lambda n: " AND ".join(f"a != {i}" for i in range(n)),
    "AND over partitions": lambda n: " AND ".join(f"p < {i}" for i in range(1, n)),
    "NOT": lambda n: "NOT " * n + "a = 1",
    "parentheses": lambda n: "(" * n + "a = 1" + ")" * n,
    "parentheses around a value": lambda n: "(" * n + "a" + ")" * n + " = 1",
    "plus": lambda n: "+".join(["a"] * n) + " > 1",
    "minus": lambda n: "- " * n + "a > 1",
    "CASE in CASE": lambda n: "CASE WHEN a = 1 THEN " * n + "1" + " END" * n + " = 1",
    "long CASE": lambda n: "CASE " + " ".join(f"WHEN a = {i} THEN {i}" for i in range(n)) + " END = 1",
    "calls": lambda n: "abs(" * n + "a" + ")" * n + " = 1",
    "arguments": lambda n: f"coalesce({', '.join(['a'] * n)}) = 1",
    "concatenation": lambda n: f"concat({', '.join(['s'] * n)}) = '1'",
    "fields": lambda n: "a" + ".a" * n + " = 1",
    "indexes": lambda n: "a" + "[0]" * n + " = 1",
    "list of integers": lambda n: f"a IN ({', '.join(map(str, range(n)))})",
    "list of strings": lambda n: f"s NOT IN ({','.join(repr(str(i)) for i in range(n))})",
    "list of decimals": lambda n: f"f IN ({', '.join(f'{i}.5' for i in range(n))})",
    "list in a list of terms": lambda n: f"length(s) = 2 AND a IN ({', '.join(map(str, range(n)))})",
    "digits": lambda n: f"a = {'9' * n}",
    "a long string": lambda n: f"s = '{'(' * n}'",
    "open brackets": lambda n: "(" * n,
    "quotes": lambda n: "'" * n,
    "backticks": lambda n: "`" * n,
    "comments": lambda n: "/*" * n,
}  # fmt: skip


def nested(make: Callable[[Expression], Expression]) -> Shape:
    def build(levels: int) -> object:
        node: Expression = Comparison("=", Column(("a",)), Literal(1))
        for _ in range(levels):
            node = make(node)
        return node

    return build


def left_deep(levels: int) -> Expression:
    found = nested(lambda node: Or((node, IsNull(Column(("a",))))))(levels)
    assert isinstance(found, Expression)
    return found


TREES: dict[str, Shape] = {
    "Not": nested(Not),
    "IsNull": nested(IsNull),
    "Coerced": nested(Coerced),
    "left-deep Or": nested(lambda node: Or((node, Comparison("=", Column(("a",)), Literal(2))))),
    "right-deep And": nested(lambda node: And((Comparison(">", Column(("a",)), Literal(0)), node))),
    "And in Or": nested(lambda node: And((Or((node, IsNull(Column(("a",))))), Not(IsNull(Column(("a",))))))),
    "Comparison": nested(lambda node: Comparison("<=>", node, Literal(True))),
    "In": lambda n: In(Column(("a",)), tuple(map(Literal, range(n)))),
    "Opaque": lambda n: Opaque("+".join(["a"] * n) + " = 1", (Column(("a",)),)),
}
ARROW: dict[str, Shape] = {
    "or": lambda n: functools.reduce(operator.or_, [pc.field("a") > i for i in range(n)]),
    "add": lambda n: functools.reduce(operator.add, [pc.field("a")] * n) > 1,
    "invert": lambda n: functools.reduce(lambda found, _: ~found, range(n), pc.field("a") > 1),
    "isin": lambda n: pc.field("a").isin(list(range(n))),
}
CASES = [
    pytest.param(shape, size, id=f"{kind}-{name}-{size}")
    for kind, shapes in (("text", TEXTS), ("tree", TREES), ("arrow", ARROW))
    for name, shape in shapes.items()
    for size in SIZES
]


@pytest.mark.long
@pytest.mark.parametrize(("shape", "size"), CASES)
def test_any_size_works_or_is_refused_by_name(table: DeltaTable, shape: Shape, size: int) -> None:
    where = shape(size)
    for one in tries(SECONDS):
        try:
            with one.timed():
                assert 0 <= count(table, where) <= ROWS
        except DeltaError as e:
            assert len(str(e)) < 2000


@family(
    ("where", "expected"),
    [
        (" OR ".join(f"a = {i}" for i in range(500, 60_000)), 500),
        (" AND ".join(f"a <> {i}" for i in range(500, 60_000)), 500),
        (" OR ".join(f"a = {i} AND p = {i % 3}" for i in range(500, 3000)), 500),
        (" AND ".join(f"a > {-i}" for i in range(3_000)), 999),
        (f"a IN ({', '.join(map(str, range(500, 100_500)))})", 500),
        (f"s IN ({', '.join(repr(str(i)) for i in range(500, 100_500))})", 500),
        (f"f NOT IN ({', '.join(map(str, range(250, 50_000)))})", 500 + 250),
        (In(Column(("f",)), tuple(Literal(i / 2) for i in range(500, 50_000))), 500),
        (left_deep(9000), 1),
    ],
 every=5)  # fmt: skip
def test_long_predicates_find_their_rows(table: DeltaTable, where: str | Expression, expected: int) -> None:
    assert count(table, where) == expected


def test_a_list_of_floats_holds_zeros_and_nans_equal_as_spark_does(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    values = [0.0, -0.0, float("nan"), 1.5, None]
    table.append(pa.table({"d": pa.array(values), "r": pa.array(values, pa.float32())}))
    for name in ("d", "r"):
        column = Column((name,))
        assert count(table, In(column, (Literal(-0.0), Literal(7.0)))) == 2
        assert count(table, In(column, (Literal(float("nan")), Literal(7.0)))) == 1
        assert count(table, Not(In(column, (Literal(0.0),)))) == 2
    assert count(table, "r IN (0.1, 1.5)") == 1


@pytest.mark.parametrize(
    "where",
    [
        In(Column(("a",)), (1, 2)),  # type: ignore[arg-type]
        In(Column(("a",)), [Literal(1)]),  # type: ignore[arg-type]
        And(("a",)),  # type: ignore[arg-type]
        And(Literal(True)),  # type: ignore[arg-type]
        Not("a"),  # type: ignore[arg-type]
        Column("a"),  # type: ignore[arg-type]
        Column(()),
        Comparison("=", Column((1,)), Literal(1)),  # type: ignore[arg-type]
        StartsWith(Column(("s",)), 1),  # type: ignore[arg-type]
        Opaque(3, ()),  # type: ignore[arg-type]
        Opaque("a = 1", ("a",)),  # type: ignore[arg-type]
        Comparison("=", Column(("a",)), Literal(object())),
    ],
)
def test_what_is_no_expression_is_refused_by_name(table: DeltaTable, where: Expression) -> None:
    with pytest.raises(InvalidExpressionError):
        count(table, where)


def test_what_spark_is_given_is_bounded_in_every_place() -> None:
    many = In(Column(("a",)), tuple(Literal(i, LONG) for i in range(60_000)))
    one = Literal(1, LONG)
    text = f"coalesce(a IN ({', '.join(map(str, range(60_000)))}), false)"
    values = [many, Choice(((many, one),)), Cast(many, STRING), Not(Choice(((Or((many, IsNull(many))), one),)))]
    for value in [*values, Opaque(text, (Column(("a",)),))]:
        with pytest.raises(InvalidExpressionError, match="at most"):
            bounded_sql(value)


def test_branches_of_case_in_text_are_counted_for_spark() -> None:
    def cases(n: int) -> str:
        return "CASE " + " ".join(f"WHEN a = {i} THEN 'WHEN AND OR'" for i in range(n)) + " END = 'x'"

    assert bounded_sql(parse_expression(cases(1_600)))
    with pytest.raises(InvalidExpressionError, match="at most"):
        bounded_sql(parse_expression(cases(1_700)))


REFUSED = {
    "ranges": " OR ".join(f"a > {i}" for i in range(100_000)),
    "pairs": " OR ".join(f"(a = {i} AND s = '{i}')" for i in range(100_000)),
    "branches": "CASE " + " ".join(f"WHEN a = {i} THEN {i}" for i in range(100_000)) + " END = 1",
    "calls": " OR ".join(f"abs(a) = {i}" for i in range(100_000)),
    "levels": "(" * 10_000 + "a = 1" + ")" * 10_000,
}


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_too_large_is_refused_in_a_second(table: DeltaTable, name: str) -> None:
    for one in tries(1):
        with one.timed(), pytest.raises(InvalidExpressionError):
            table.snapshot().scan(where=REFUSED[name])


@pytest.mark.parametrize("name", ["pairs", "ranges"])
def test_writes_refuse_it_as_fast_as_reads(table: DeltaTable, name: str) -> None:
    for one in tries(1):
        with one.timed(), pytest.raises(InvalidExpressionError):
            table.delete(REFUSED[name])


def test_the_log_does_not_repeat_a_predicate_of_a_million_values(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"a": [1, 2, 3]}))
    table.delete(f"a IN ({', '.join(map(str, range(3, 50_000)))})")
    table.delete("a = 1")
    told = [entry.operation_parameters["predicate"] for entry in table.history(2)]
    assert told[0] == '["a = 1"]' and re.fullmatch(r'\["\(\d+ characters\)"\]', told[1])


def test_trees_compare_by_value_and_print_as_code() -> None:
    node: Expression = And((Comparison("=", Column(("a",)), Literal(1)), Not(IsNull(Column(("b",))))))
    children = children_of(node)
    assert eval(repr(node)) == node
    assert node != Or(children) and node != And(children[:1])
    assert In(Column(("a",)), (Literal(1),)) != In(Column(("a",)), (Literal(2),))


@pytest.mark.long
@pytest.mark.parametrize("quote", ["", "'"])
def test_a_million_values_are_no_million_nodes(table: DeltaTable, quote: str) -> None:
    column = "s" if quote else "a"
    text = f"{column} IN ({', '.join(f'{quote}{i}{quote}' for i in range(1_000_000))})"
    for one in tries(1):
        with one.timed(), pytest.raises(InvalidExpressionError, match="1000000 values"):
            bounded_sql(resolve_expression(parse_expression(text), table.snapshot().schema))


MILLION = range(500, 1_000_500)


@family(
    "where",
    [
        f"a IN ({', '.join(map(str, MILLION))})",
        f"s IN ({', '.join(repr(str(i)) for i in MILLION)})",
        pc.field("a").isin(pa.array(MILLION)),
    ],
    ids=["numbers", "strings", "isin"],
    every=3,
)
def test_a_list_of_a_million_values_is_a_set(table: DeltaTable, where: object) -> None:
    for one in tries(2):
        with one.timed():
            assert count(table, where) == 500


def test_a_list_that_holds_itself_is_no_constant() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (cyclic, deep):
        with pytest.raises(InvalidExpressionError, match="too deeply"):
            literal(value)
    while deep:
        deep = deep[0]


def test_lists_of_plain_values_are_like_lists_of_literals() -> None:
    listed = parse_expression("a IN (3, 1, 2)")
    assert isinstance(listed, In) and isinstance(listed.values, Constants)
    spelled = In(Column(("a",)), (Literal(3), Literal(1), Literal(2)))
    assert listed == spelled and hash(listed) == hash(spelled) and repr(listed) == repr(spelled)
    assert pickle.loads(pickle.dumps(listed)) == spelled
    assert listed.values[1] == Literal(1) and tuple(listed.values[1:]) == (Literal(1), Literal(2))
    assert listed != In(Column(("a",)), (Literal(3), Literal(1), Literal(4)))
