"""The reader binds as Spark's own parser does: Spark makes the same tree of a text and of what we understood of it."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Column, Comparison, Literal, Opaque
from delta_orch.expressions.parse import parse_expression, syntax_of
from delta_orch.expressions.to_sql import to_checked_sql

pytestmark = pytest.mark.spark

OPERANDS = [
    "a", "b.c", "`d e`", "f(a, 1)", "'x'", "'it''s'", "\"q\"", "r'\\d'", "'a' 'b'", "'\\u00fc\\t\\101\\Z\\%'", "1",
    "-1", "- 1",
    "2.5", "1e3D", "5L", "X'0f'", "NULL", "FALSE", "DATE '2020-01-01'", "(a)", "m['k']", "arr[0].x", "CAST(a AS INT)",
    "a::bigint", "CASE WHEN a THEN 1 ELSE 2 END", "CASE a WHEN 1 THEN b END", "-a", "~a", "+a", "INTERVAL '1' DAY",
    "trim(LEADING 'x' FROM s)", "extract(YEAR FROM d)",
    "exists(arr, x -> x > 1)", "CAST(a AS ARRAY<MAP<STRING, STRUCT<x: INT>>>)",
]  # fmt: skip
OPERATORS = [
    "=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "|", "^", "&", "<<", ">>", ">>>", "+", "-", "||", "*", "/", "%",
    "DIV", "AND", "OR", "and not",
]  # fmt: skip
TESTS = [
    " IS NULL", " IS NOT NULL", " IS TRUE", " IS NOT FALSE", " IS DISTINCT FROM 1", " IS NOT DISTINCT FROM b + 1",
    " IN (1, a, 'x')", " NOT IN (1, 2)", " LIKE 'x_'",
    " NOT LIKE 'x!%' ESCAPE '!'", " RLIKE 'x'", " ILIKE 'x%'",
]  # fmt: skip
WORDS = (
    "all alter anti any array as between by call case cast char create cross current cube day default delete desc "
    "distinct div drop else end escape except execute exists explain false fetch filter first for from full function "
    "glob grant group having hour if ilike in inner insert intersect interval into is join key lateral left like limit "
    "list map match merge minus month natural no not null nulls of offset on only or order out over overlay partition "
    "pivot position qualify range regexp rename replace right rlike row rows select semi set show some sort struct "
    "substring table then time timestamp to trim true union unique update use using values view when where window with "
    "within xor year zone"
)


def spark_tree(parser: Any, text: str) -> str | None:
    """Spark's tree, None where it makes none."""
    from pyspark.errors import PySparkException

    try:
        return str(parser.parseExpression(text).toString())
    except PySparkException:
        return None


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        text = draw.choice(OPERANDS)
        for _ in range(draw.randint(1, 4)):
            text = f"{text} {draw.choice(OPERATORS)} {draw.choice(OPERANDS)}"
            if draw.random() < 0.3:
                text = draw.choice([f"({text})", f"NOT {text}", f"{text}{draw.choice(TESTS)}", f"g({text}, 1)"])
        found.append(text)
    return found


@pytest.fixture(scope="module")
def parser(spark: Any) -> Any:
    return spark._jsparkSession.sessionState().sqlParser()


@pytest.mark.long
def test_operators_bind_as_in_spark(parser: Any) -> None:
    compared = 0
    others: list[tuple[object, ...]] = []
    for text in texts(7, 600):
        wanted = spark_tree(parser, text)
        try:
            printed = to_checked_sql(syntax_of(Opaque(text, ())))
        except InvalidExpressionError:
            assert wanted is None, text
            continue
        assert wanted is not None, text
        found = spark_tree(parser, printed)
        if plain(found or "") != plain(wanted):
            others.append((text, printed, wanted, found))
        compared += 1
    assert not others
    assert compared > 300


def plain(tree: str) -> str:
    """Without what spells one constant in two ways, and the brackets of a chain."""
    tree = re.sub(r"cast\((-?[\w.+-]+) as \w+(?:\(\d+,\d+\))?\)", r"\1", tree)
    return re.sub(r"(\d)\.0\b", r"\1", tree).replace("isnotnull(", "NOT isnull(")


def test_words_name_columns_as_in_spark(parser: Any) -> None:
    for word in WORDS.split():
        wanted = spark_tree(parser, f"{word} = 5")
        try:
            found = parse_expression(f"{word} = 5")
        except InvalidExpressionError:
            continue  # in backticks
        is_constant = isinstance(found, Comparison) and isinstance(found.left, Literal)
        assert is_constant or found == Comparison("=", Column((word,)), Literal(5)), word
        assert wanted == (f"({word} = 5)" if is_constant else f"('{word} = 5)"), word
