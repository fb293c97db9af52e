from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError
from delta_orch.expressions.nodes import (
    And,
    Coerced,
    Column,
    Comparison,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression, resolve_predicate
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DecimalType,
    MapType,
    StructField,
    StructType,
)

SCHEMA = StructType(
    (
        StructField("Id", LONG),
        StructField("i", INTEGER),
        StructField("f", FLOAT),
        StructField("x", DOUBLE),
        StructField("amount", DecimalType(10, 2)),
        StructField("name", STRING),
        StructField("flag", BOOLEAN),
        StructField("day", DATE),
        StructField("at", TIMESTAMP),
        StructField("local", TIMESTAMP_NTZ),
        StructField("nothing", VOID),
        StructField("point", StructType((StructField("X", LONG), StructField("a.b", STRING)))),
        StructField("tags", MapType(STRING, STRING)),
        StructField("items", ArrayType(StructType((StructField("sku", STRING),)))),
        StructField("a.b", LONG),
        StructField("listed", ArrayType(MapType(STRING, STRING))),
        StructField("loose", VARIANT),
    )
)


def resolve(text: str) -> Any:
    resolved = resolve_expression(parse_expression(text), SCHEMA)
    assert resolve_expression(resolved, SCHEMA) == resolved
    return resolved


def compare(op: str, column: str, value: Any, data_type: Any) -> Comparison:
    return Comparison(op, Column((column,)), Literal(value, data_type))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID = 5", compare("=", "Id", 5, LONG)),
        ("5 > id", compare("<", "Id", 5, LONG)),
        ("i = '7'", compare("=", "i", 7, INTEGER)),
        ("i < 5.5", compare("<", "i", 6, INTEGER)),
        ("i <= 5.5", compare("<=", "i", 5, INTEGER)),
        ("i > 5.5", compare(">", "i", 5, INTEGER)),
        ("i >= 5.5", compare(">=", "i", 6, INTEGER)),
        ("i = 5.5", compare(">", "i", 2**31 - 1, INTEGER)),
        ("i != 5.5", compare("<=", "i", 2**31 - 1, INTEGER)),
        ("i <=> 5.5", Literal(False, BOOLEAN)),
        ("i < 3000000000", compare("<=", "i", 2**31 - 1, INTEGER)),
        ("i > -3000000000", compare(">=", "i", -(2**31), INTEGER)),
        ("i < CAST('NaN' AS DOUBLE)", compare("<=", "i", 2**31 - 1, INTEGER)),
        (
            "id = 9007199254740992e0",
            And((compare(">=", "Id", 2**53, LONG), compare("<=", "Id", 2**53 + 1, LONG))),
        ),
        ("amount = 1.5", compare("=", "amount", Decimal("1.50"), DecimalType(10, 2))),
        ("amount < 1.234", compare("<", "amount", Decimal("1.24"), DecimalType(10, 2))),
        ("amount >= 1e12", compare(">", "amount", Decimal("99999999.99"), DecimalType(10, 2))),
        ("x = 1", compare("=", "x", 1.0, DOUBLE)),
        ("x = 0.1", compare("=", "x", 0.1, DOUBLE)),
        ("f = 0.5", compare("=", "f", 0.5, FLOAT)),
        ("f = 0.1", compare("=", "f", 0.1, DOUBLE)),
        ("name > 'b'", compare(">", "name", "b", STRING)),
        ("flag", compare("=", "flag", True, BOOLEAN)),
        ("flag = 'No'", compare("=", "flag", False, BOOLEAN)),
        ("day = '2013-1-5'", compare("=", "day", date(2013, 1, 5), DATE)),
        ("day > TIMESTAMP '2013-01-05 12:00:00'", compare(">", "day", date(2013, 1, 5), DATE)),
        ("day >= TIMESTAMP '2013-01-05 12:00:00'", compare(">=", "day", date(2013, 1, 6), DATE)),
        ("at >= '2013-01-05'", compare(">=", "at", datetime(2013, 1, 5, tzinfo=UTC), TIMESTAMP)),
        ("at = DATE '2013-01-05'", compare("=", "at", datetime(2013, 1, 5, tzinfo=UTC), TIMESTAMP)),
        ("local = '2013-01-05 01:00:00+05:00'", compare("=", "local", datetime(2013, 1, 5, 1), TIMESTAMP_NTZ)),
        ("point.x = 1", Comparison("=", Column(("point", "X")), Literal(1, LONG))),
        ("point.`A.B` = 'q'", Comparison("=", Column(("point", "a.b")), Literal("q", STRING))),
        ("`a.b` = 1", compare("=", "a.b", 1, LONG)),
        ("i = NULL", Literal(None, BOOLEAN)),
        ("i <=> NULL", IsNull(Column(("i",)))),
        ("nothing = 1", Literal(None, BOOLEAN)),
        ("nothing IS NULL", Literal(True, BOOLEAN)),
        ("nothing <=> 1", Literal(False, BOOLEAN)),
        (
            "i IN (1, 2.5, NULL)",
            Or(
                (
                    In(Column(("i",)), (Literal(1, INTEGER), Literal(None, INTEGER))),
                    compare(">", "i", 2**31 - 1, INTEGER),
                )
            ),
        ),
        ("i IN (1, 1L, 1.0)", In(Column(("i",)), (Literal(1, INTEGER),))),
        ("name LIKE 'a%'", StartsWith(Column(("name",)), "a")),
        ("i = id", Comparison("=", Column(("i",)), Column(("Id",)))),
        ("1 = 1", Literal(True, BOOLEAN)),
        ("NOT (flag) IS NULL", Not(IsNull(Column(("flag",))))),
        # What needs a cast of the column stays text.
        ("name = 5", Coerced(Comparison("=", Column(("name",)), Literal(5)))),
        ("i LIKE '1%'", Coerced(StartsWith(Column(("i",)), "1"))),
        ("i = x", Coerced(Comparison("=", Column(("i",)), Column(("x",))))),
        ("tags.k = 'v'", Coerced(Comparison("=", Column(("tags", "k")), Literal("v")))),
        ("LENGTH(NAME) > 1", Opaque("LENGTH(NAME) > 1", (Column(("name",)),))),
    ],
)  # fmt: skip
def test_resolve(text: str, expected: Any) -> None:
    assert resolve(text) == expected


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("nmae = 'x'", ["name"]),
        ("amnt = 1", ["amount"]),
        ("length(nam) > 1", ["name"]),
        ("zzz = 1", []),
        ("point.y = 1", []),
    ],
)
def test_a_column_that_is_not_there(text: str, matches: list[str]) -> None:
    with pytest.raises(ColumnNotFoundError) as caught:
        resolve(text)
    assert caught.value.context["close_matches"][:1] == matches
    assert all(match in str(caught.value) for match in matches)


@pytest.mark.parametrize(
    "text",
    ["i", "5", "'x'", "i = 'x'", "i = DATE '2013-01-01'", "flag = 1", "day = 5", "day = '2013-02-30'", "tags = tags",
     "i = flag", "at > 5", "point = 1", "name = X'00'", "x = 'abc'", "at = '9999999-01-01'", "listed = listed",
     "listed <=> listed", "loose = loose"],
)  # fmt: skip
def test_types_that_do_not_compare(text: str) -> None:
    with pytest.raises(InvalidExpressionError):
        resolve(text)


def test_python_values_become_constants_of_the_columns_types() -> None:
    values = {"DAY": date(2013, 1, 5), "name": "x", "x": 1, "at": datetime(2013, 1, 5)}
    equality = conjunction(*(Comparison("=", Column((name,)), Literal(value)) for name, value in values.items()))
    assert resolve_expression(equality, SCHEMA) == And(
        (
            compare("=", "day", date(2013, 1, 5), DATE),
            compare("=", "name", "x", STRING),
            compare("=", "x", 1.0, DOUBLE),
            compare("=", "at", datetime(2013, 1, 5, tzinfo=UTC), TIMESTAMP),
        )
    )


def test_a_value_of_a_foreign_type_is_refused() -> None:
    with pytest.raises(InvalidExpressionError, match="cannot be a constant"):
        resolve_expression(Comparison("=", Column(("name",)), Literal(object())), SCHEMA)


def test_predicates_of_predicates_are_resolved_inside() -> None:
    expression = Not(Comparison("<=>", parse_expression("ID = 5"), Literal(True)))
    resolved = resolve_expression(expression, SCHEMA)
    assert resolved == Not(Comparison("<=>", compare("=", "Id", 5, LONG), Literal(True, BOOLEAN)))
    assert to_spark_sql(resolved) == "NOT ((`Id` = CAST('5' AS BIGINT)) <=> TRUE)"


def test_conjunction_is_flat_and_true_is_neutral() -> None:
    a, b = resolve("i = 1"), resolve("flag")
    assert conjunction(a, None, And((b, a)), Literal(True, BOOLEAN)) == And((a, b, a))
    assert conjunction(None, a) == a
    assert conjunction() == Literal(True, BOOLEAN)


def test_columns_of() -> None:
    assert columns_of(resolve("i = 1 AND (length(name) > 2 OR point.x IN (1)) AND i = 2")) == (
        Column(("i",)),
        Column(("name",)),
        Column(("point", "X")),
    )


def test_a_long_number_keeps_its_digits() -> None:
    schema = StructType((StructField("name", STRING),))
    resolved = resolve_expression(parse_expression("name != 123456789012345678901234567890"), schema)
    assert "'123456789012345678901234567890'" in to_spark_sql(resolved)


def test_a_column_in_double_quotes_is_refused_with_the_remedy() -> None:
    schema = StructType((StructField("name", STRING), StructField("a b", STRING)))
    for where in ("\"name\" = 'x'", '`a b` = "NAME"', 'upper(name) = "a b"'):
        with pytest.raises(InvalidExpressionError, match="in double quotes is text"):
            resolve_predicate(where, schema)
    for where in ("name = '\"name\"'", 'name = "x"', '`a b` = "" -- "name"', "name = 'it\\'s \"name\"'"):
        assert resolve_predicate(where, schema)


def test_what_a_collation_compares_is_refused() -> None:
    under = {"__COLLATIONS": {"name": "spark.UTF8_LCASE"}}
    inside = StructType((StructField("name", STRING, True, under), StructField("plain", STRING)))
    schema = StructType((*inside, StructField("point", inside)))
    for where in (
        "name = 'a'",
        "name IN ('a')",
        "name LIKE 'a%'",
        "length(name) = 1",
        "plain = 'a' OR point.name = 'a'",
    ):
        with pytest.raises(InvalidExpressionError, match="has a collation"):
            resolve_predicate(where, schema)
    for where in ("plain = 'a'", "point.plain LIKE 'a%'", "name IS NULL", "NOT point.name IS NULL"):
        assert resolve_predicate(where, schema)
    old = parse_schema('{"type":"struct","fields":[{"name":"name","type":"string collate UNICODE_CI"}]}')
    with pytest.raises(InvalidExpressionError, match="has a collation"):
        resolve_predicate("name = 'a'", old)
