"""Both ways to read a predicate give the same nodes: the short one for plain text, and the SQL parser."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import TokenType

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import RESERVED, parse_plain, parse_value
from delta_orch.expressions.spark_syntax import parse_predicate, parse_scalar

WORDS = sorted(
    {word.lower() for word in Spark.Tokenizer.KEYWORDS if word.isidentifier()}
    | {str(name).lower() for name in (*Spark.Parser.FUNCTIONS, *Spark.Parser.NO_PAREN_FUNCTION_PARSERS)}
    | {kind.name.lower() for kind in TokenType if kind.name.isidentifier()}
    | {"day", "escape", "overlaps", "r", "symmetric", "x", "zone", *RESERVED}
)
PLACES = [
    "{0} = 5", "5 < {0}", "{0} IS NULL", "{0} IS NOT TRUE", "{0} IN (1, 2)", "{0}", "NOT {0}",
    "{0} NOT BETWEEN 1 AND 2", "a.{0} = 1", "{0}.a = 1", "{0} LIKE 'x%'", "x AND {0}", "{0} OR x", "({0})",
    "a.{0}.c >= 1",
    "{0} <=> 'a'", "{0} = {0}", "x BETWEEN {0} AND 5", "{0} != DATE '2020-01-01'", "`{0}` = 1", "{0} '2020-01-01' = a",
]  # fmt: skip


def by_parser(text: str) -> Expression | None:
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return parse_predicate(text)
        except InvalidExpressionError:
            return None


def assert_same(text: str) -> bool:
    """Whether the text is plain."""
    try:
        plain = parse_plain(text)
    except InvalidExpressionError:
        assert by_parser(text) is None, text
        return True
    assert plain is None or plain == by_parser(text), text
    # Values that compare equal, 1 and 1.0, are not the same constant.
    assert plain is None or repr(plain) == repr(by_parser(text)), text
    return plain is not None


@pytest.mark.parametrize("place", PLACES)
def test_every_word_the_parser_knows(place: str) -> None:
    plain = sum(assert_same(place.format(word)) for word in WORDS)
    assert plain > len(WORDS) // 2 or place.startswith("{0} '2020")


names = st.sampled_from(
    ["a", "B_1", "`a`", "`a.b`", "`é x`", "a.b", "a.`b c`.d", "date", "value", "a.b.c.d", "timestamp"]
)
constants = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.text(st.characters(codec="utf-8"), max_size=5).map(lambda text: f"'{text}'"),
    st.text("ab'\"%_ -", max_size=5).map(lambda text: f'"{text}"'),
    st.sampled_from(
        ["NULL", "true", "FALSE", "DATE '2013-02-28'", "date'2013-2-30'", "TIMESTAMP '2013-01-01 10:00:00+02:00'",
         "1e3", "timestamp '2013'", "5L", "1.", ".5", "- 5", "- 1.50", "x'0f'", "'it''s'", "'a' 'b'", "007", "1_0",
         "TIMESTAMP 'x'", "r'a'", "b'a'"]
    ),
)  # fmt: skip
operands = st.one_of(names, constants)
operators = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "<>=", "="])
blanks = st.sampled_from([" ", "", "\n\t", " -- c\n", "/* c */"])


@st.composite
def leaves(draw: st.DrawFn) -> str:
    left, right, blank = draw(operands), draw(operands), draw(blanks)
    listed = ", ".join(draw(st.lists(constants, min_size=1, max_size=3)))
    test = draw(st.sampled_from(["NULL", "TRUE", "FALSE"]))
    negated = draw(st.sampled_from(["", "NOT "]))
    return draw(
        st.sampled_from(
            [
                f"{left}{blank}{draw(operators)}{blank}{right}",
                f"{left} {negated}IN ({listed})",
                f"{left} {negated}BETWEEN {right} AND {draw(operands)}",
                f"{left} is {negated}{test}",
                f"{left} {negated}like {right}",
                f"{left} LIKE 'a%'",
                left,
                f"length({left}) > 1",
                f"{left} + 1 = {right}",
            ]
        )
    )


predicates = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "or"]), inner).map(" ".join),
        inner.map(lambda text: f"NOT {text}"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"not({text})"),
    ),
    max_leaves=6,
)


@given(predicates)
def test_generated_predicates(text: str) -> None:
    assert_same(text)


@given(constants)
def test_generated_values(text: str) -> None:
    try:
        found = parse_value(text)
    except InvalidExpressionError:
        with pytest.raises(InvalidExpressionError):
            parse_scalar(text)
        return
    assert repr(found) == repr(parse_scalar(text))
