from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.clock import one_moment, time_told
from delta_orch.expressions.nodes import (
    And,
    Column,
    Comparison,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.parse import parse_expression, parse_row_value
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.spark_literals import like_prefix
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DecimalType,
    StructField,
    StructType,
)

A, B, C = Column(("a",)), Column(("b",)), Column(("c",))


FROM_1_TO_2 = (Comparison(">=", A, Literal(1), fills=False), Comparison("<=", A, Literal(2), fills=False))


def equal(column: Column, value: object, data_type: object = None) -> Comparison:
    return Comparison("=", column, Literal(value, data_type))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", equal(A, 1)),
        ("A == 1", equal(Column(("A",)), 1)),
        ("1 < a", Comparison("<", Literal(1), A)),
        ("a <> 1", Comparison("!=", A, Literal(1))),
        ("a <=> NULL", Comparison("<=>", A, Literal(None))),
        ("a IS NOT DISTINCT FROM 5", Comparison("<=>", A, Literal(5))),
        ("a = -5", equal(A, -5)),
        ("a = - 5", equal(A, -5)),
        ("a = 5L", equal(A, 5, LONG)),
        ("a = -128Y", equal(A, -128, BYTE)),
        ("a = 1.50", equal(A, Decimal("1.50"), DecimalType(3, 2))),
        (f"a = -{'9' * 37}.5", equal(A, Decimal(f"-{'9' * 37}.5"), DecimalType(38, 1))),
        ("a = 1e3", equal(A, 1000.0, DOUBLE)),
        ("a = 1.5D", equal(A, 1.5, DOUBLE)),
        ("a = 0.5F", equal(A, 0.5, FLOAT)),
        ("a = 'x'", equal(A, "x")),
        ('a = "x"', equal(A, "x")),
        ("a = 'it''s'", equal(A, "it's")),
        ("a = 'it\\'s'", equal(A, "it's")),
        ("a = 'tab\\tü\\u00fc\\\\'", equal(A, "tab\tüü\\")),
        ("a = r'raw\\d'", equal(A, "raw\\d")),
        ("a = TRUE", equal(A, True, BOOLEAN)),
        ("a = X'1a2B'", equal(A, b"\x1a\x2b", BINARY)),
        ("a = CAST(NULL AS BIGINT)", equal(A, None, LONG)),
        ("a = CAST(NULL AS DECIMAL(3,2))", equal(A, None, DecimalType(3, 2))),
        ("a = DATE '2013-1-5'", equal(A, date(2013, 1, 5), DATE)),
        ("a = CAST('2013-01-05' AS DATE)", equal(A, date(2013, 1, 5), DATE)),
        ("a = TIMESTAMP '2013-01-05 01:00:00+01:00'", equal(A, datetime(2013, 1, 5, tzinfo=UTC), TIMESTAMP)),
        ("a = TIMESTAMP_NTZ '2013-01-05'", equal(A, datetime(2013, 1, 5), TIMESTAMP_NTZ)),
        ("a BETWEEN 1 AND 2", And(FROM_1_TO_2)),
        ("a BETWEEN 1 AND 2 AND b = 3", And((*FROM_1_TO_2, equal(B, 3)))),
        ("a NOT BETWEEN 1 AND 2", Not(And(FROM_1_TO_2))),
        ("a IN (1, NULL)", In(A, (Literal(1), Literal(None)))),
        ("a NOT IN ('x')", Not(In(A, (Literal("x"),)))),
        ("a IS NULL", IsNull(A)),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("a IS TRUE", Comparison("<=>", A, Literal(True, BOOLEAN))),
        ("(a = 1) IS NULL", IsNull(equal(A, 1))),
        ("(a = 1) IS NOT FALSE", Not(Comparison("<=>", equal(A, 1), Literal(False, BOOLEAN)))),
        ("a LIKE 'x%'", StartsWith(A, "x")),
        ("a NOT LIKE 'x%'", Not(StartsWith(A, "x"))),
        ("a LIKE 'x/_%' ESCAPE '/'", StartsWith(A, "x_")),
        ("a NOT LIKE 'x/_%' ESCAPE '/'", Not(StartsWith(A, "x_"))),
        ("a", A),
        ("NOT a", Not(A)),
        ("!a", Not(A)),
        ("TRUE", Literal(True, BOOLEAN)),
        ("((a)) AND (((b)) OR c)", And((A, Or((B, C))))),
        ("a OR b AND c", Or((A, And((B, C))))),
        ("NOT a = 1 AND b", And((Not(equal(A, 1)), B))),
        ("(a < 5) <=> TRUE", Comparison("<=>", Comparison("<", A, Literal(5)), Literal(True, BOOLEAN))),
        ("`a.b` = 1", equal(Column(("a.b",)), 1)),
        ("`we``ird` = 1", equal(Column(("we`ird",)), 1)),
        ("`a b` = 1", equal(Column(("a b",)), 1)),
        ("a.b.c.d.e = 1", equal(Column(("a", "b", "c", "d", "e")), 1)),
        ("a.`b.c` = 1", equal(Column(("a", "b.c")), 1)),
        ("`current_date` = 1", equal(Column(("current_date",)), 1)),
        ("a = 1 -- the end", equal(A, 1)),
        ("a /* inside */ = 1", equal(A, 1)),
        ("length(a) > 3", Opaque("length(a) > 3", (A,))),
        ("a + b  =  c", Opaque("a + b  =  c", (A, B, C))),
        ("a = 1 AND a%2 = 1 -- odd", And((equal(A, 1), Opaque("a%2 = 1", (A,))))),
        ("a LIKE '%x' OR b", Or((Opaque("a LIKE '%x'", (A,)), B))),
        ("exists(a, x -> x > 1 AND x < 9)", Opaque("exists(a, x -> x > 1 AND x < 9)", (A,))),
        ("CASE WHEN a AND b THEN c END", Opaque("CASE WHEN a AND b THEN c END", (A, B, C))),
        ("a BETWEEN b + 1 AND 5 AND c", And((Opaque("a BETWEEN b + 1 AND 5", (A, B)), C))),
        ("a = 'x AND y' AND b", And((equal(A, "x AND y"), B))),
        ("try_cast(a AS INT) = 5", Opaque("try_cast(a AS INT) = 5", (A,))),
    ],
)  # fmt: skip
def test_parse(text: str, expected: Expression) -> None:
    assert parse_expression(text) == expected
    assert pickle.loads(pickle.dumps(parse_expression(text))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("-- nothing", "empty"),
        ("()", "operand is missing"),
        ("a = ", "Cannot read"),
        ("a AND", "operand is missing"),
        ("OR a", "operand is missing"),
        ("a b", "Cannot read"),
        ("a = 1)", "Cannot read"),
        ("(a = 1", "Cannot read"),
        ("a = 'open", "Cannot read"),
        ("a; DROP TABLE t", "Cannot read"),
        ("SELECT 1", "Cannot read"),
        ("a = 1 LIMIT 3", "Cannot read"),
        ("a AS b", "Cannot read"),
        ("*", "select list"),
        ("a = (SELECT max(x) FROM t)", "subquery"),
        ("a IN (SELECT x FROM t)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("sum(a) > 1", "aggregate"),
        ("row_number() OVER (ORDER BY a) = 1", "window"),
        ("explode(a) = 1", "generator"),
        ("rand() < 0.5", "rand"),
        ("a = 1 AND (b = 2 OR uuid() = 'x')", "uuid"),
        ("a = current_user()", "current_user"),
        ("a = current_time", "current_time"),
        ("now(1) > a", "now"),
        ("a = ?", "parameter"),
        ("a = :x", "parameter"),
        ("a = 300Y", "does not fit byte"),
        ("a = DATE '2013-02-30'", "not a valid date"),
        ("a = 123456789012345678901234567890123456789", "39 digits"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidExpressionError, match=message):
        parse_expression(text)


@pytest.mark.parametrize(
    "clock",
    [
        "current_date",
        "CURRENT_DATE()",
        "now( )",
        "current_timestamp",
        "localtimestamp()",
        "curdate()",
        "unix_timestamp()",
    ],
)
@pytest.mark.parametrize(
    "text", ["a < {}", "a = 1 AND (b > {} OR b IS NULL)", "date_add({0}, 1) > a AND f({0}) = 'now()'"]
)
def test_the_clock_is_read_where_the_text_is(text: str, clock: str) -> None:
    """Not by an engine: a statement that reads twice deletes by one moment."""
    with one_moment():
        first, second = parse_expression(text.format(clock)), parse_expression(text.format(clock))
        assert first == second
        assert parse_row_value(clock) == time_told(clock.lower().rstrip("( )"))
    assert clock not in repr(first)
    assert repr(first).count("now()") == text.count("now()")


def test_a_column_may_have_the_name_of_a_clock() -> None:
    schema = StructType((StructField("Current_Date", DATE), StructField("now", DATE)))
    for text in ("now < current_date()", "`current_date` < now()", "now = '2024-01-01' AND `current_date` IS NULL"):
        resolve_predicate(text, schema)
    for text in ("now < current_date", "CURRENT_DATE = '2024-01-01'"):
        with pytest.raises(InvalidExpressionError, match="a column of that name"):
            resolve_predicate(text, schema)


def test_nesting_that_is_too_deep_is_refused() -> None:
    with pytest.raises(InvalidExpressionError, match=r"nested too deeply|Cannot read"):
        parse_expression("NOT (" * 20_000 + "a" + ")" * 20_000)


def test_many_alternatives_are_a_flat_tree() -> None:
    parsed = parse_expression(" OR ".join(f"a = {i}" for i in range(500)))
    assert isinstance(parsed, Or)
    assert len(parsed.children) == 500


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [("a%", "a"), ("%", ""), ("a", None), ("", None), ("a%b", None), ("a_%", None), ("a\\_%", "a_"), ("a\\%%", "a%"),
     ("a\\\\%", "a\\"), ("a\\x%", None), ("a%%", None), ("a\\", None)],
)  # fmt: skip
def test_like_prefix(pattern: str, prefix: str | None) -> None:
    assert like_prefix(pattern) == prefix
