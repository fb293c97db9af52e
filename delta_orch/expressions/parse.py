"""Reading predicates and values written in Spark SQL: the one door for text.

Plain predicates are read here: comparisons, IN, BETWEEN, IS [NOT] NULL/TRUE/FALSE and LIKE over columns and constants,
with AND, OR, NOT and parentheses. Everything else goes to `spark_syntax`, which loads a SQL parser. Both read the same
nodes from the same text (tests/property).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.bounds import MAX_CHARACTERS, MAX_DEPTH, MAX_WORDS, ensure_shallow, too_deep, too_long
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, IsNull, Literal, Not, StartsWith
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    decimal_type_of,
    like_prefix,
    parse_spark_date,
    parse_spark_timestamp,
)
from delta_orch.expressions.tree import conjunction, disjunction
from delta_orch.protocol.types import BOOLEAN, DATE, LONG, TIMESTAMP, TIMESTAMP_NTZ, StructType

_TOKEN = r"""(?x)[ \t\r\n]*(?:
    (?P<word>[A-Za-z_][A-Za-z0-9_]*)(?!['"])
    |(?P<quoted>`[^`]+`)(?!`)
    |(?P<number>[0-9]+(?:\.[0-9]+)?)(?![\w.])
    |(?P<string>'[^'\\]*'(?!')|"[^"\\]*"(?!"))
    |(?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),.]|-(?!-))
    |(?P<end>\Z))"""
_LISTED_NUMBERS = r"\s*-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*+\s*\)"
_LISTED_STRINGS = r"\s*'[^'\\]*+'(?:\s*,\s*'[^'\\]*+')*+\s*\)"
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_MAX_PARTS = 4
RESERVED = frozenset({
    "alter", "and", "any", "as", "between", "call", "case", "connect_by_root", "create", "cross", "current_date",
    "current_time", "current_timestamp", "current_user", "distinct", "drop", "else", "except", "execute", "explain",
    "false", "fetch", "for", "from", "glob", "grant", "having", "if", "ilike", "in", "inner", "insert", "intersect",
    "interval", "into", "is", "join", "lateral", "like", "localtimestamp", "minus", "not", "notnull", "null", "on",
    "optimize", "or", "outer", "partitioned_by", "prepare", "qualify", "regexp", "rename", "returning", "revoke",
    "rlike", "rollback", "select", "serdeproperties", "session_user", "show", "symmetric", "tablesample", "then",
    "true", "uncache", "union", "user", "using", "vacuum", "values", "when", "where", "with", "xor",
})  # fmt: skip
"""Words that do not name a column where they stand without backticks, or that only a full parser can judge."""


class _NotPlain(Exception):
    """The text takes the full parser."""


def parse_expression(text: str) -> Expression:
    """A predicate in Spark SQL as a tree, not yet resolved against a schema.

    Comparisons, IN, BETWEEN, IS [NOT] NULL/TRUE/FALSE, `LIKE 'prefix%'`, AND, OR and NOT over columns and constants
    become nodes. Any other predicate becomes `Opaque`. Timestamps without a zone are UTC.

    Raises:
        InvalidExpressionError: The text is not a predicate, or it holds what a predicate on a table must not hold: a
            subquery, a window, aggregate or generator function, a parameter, or a function whose answer is not fixed
            (`rand()`, `current_date()`). It is too long or nested too deeply (see `bounds`).
    """
    plain = parse_plain(text)
    if plain is not None:
        return plain
    ensure_shallow(text)
    from delta_orch.expressions.spark_syntax import parse_predicate

    return parse_predicate(text)


def parse_value(text: str) -> Expression:
    """One value in Spark SQL: a constant, a column, or `Opaque`. A constant that depends on a time zone is opaque.

    Raises:
        InvalidExpressionError: The text is not one scalar expression, or a constant that Spark refuses.
    """
    plain = _whole(text, _Reader.operand)
    if plain is not None and not (isinstance(plain, Literal) and plain.data_type == TIMESTAMP):
        return plain
    ensure_shallow(text)
    from delta_orch.expressions.spark_syntax import parse_scalar

    return parse_scalar(text)


_DOUBLE_QUOTED = r"""(?xs)'(?:[^'\\]|\\.)*+' | `[^`]*` | --[^\r\n]* | /\*.*?\*/ | "([^"\\]*+)\""""


def ensure_no_column_in_double_quotes(text: str, schema: StructType) -> None:
    """Raises InvalidExpressionError where a predicate has a column's name in double quotes: Spark SQL takes that for
    text, and silently finds no row."""
    if '"' not in text:
        return
    for found in re.finditer(_DOUBLE_QUOTED, text):
        name = found[1]
        if name and schema.find(name) is not None:
            raise InvalidExpressionError(
                f'"{name}" in double quotes is text in Spark SQL, and the table has a column of that name',
                remedy=f"Write `{name}` for the column, or '{name}' for the text",
                column=name,
            )


_CLOCKS = re.compile(r"(?i)\s*(current_timestamp|now|current_date|localtimestamp)\s*(\(\s*\))?\s*")


def parse_row_value(text: str) -> Expression:
    """A value that a verb computes for rows: as `parse_value`, and nothing that does not look at one row alone. The
    clock (`current_timestamp()`, `now()`, `current_date()`, `localtimestamp()`) is read once, here.

    Raises:
        InvalidExpressionError: As `parse_value`, and for a subquery, a window, aggregate or generator function, a
            parameter, or a function whose answer is not fixed (`rand()`).
    """
    clock = _CLOCKS.fullmatch(text)
    if clock is not None and (clock[2] or clock[1].lower() != "now"):
        now = datetime.now(UTC)
        match clock[1].lower():
            case "current_date":
                return Literal(now.date(), DATE)
            case "localtimestamp":
                return Literal(now.replace(tzinfo=None), TIMESTAMP_NTZ)
        return Literal(now, TIMESTAMP)
    plain = _whole(text, _Reader.operand)
    if plain is not None and not (isinstance(plain, Literal) and plain.data_type == TIMESTAMP):
        return plain
    from delta_orch.expressions.spark_syntax import parse_row_value as parse

    return parse(text)


def parse_plain(text: str) -> Expression | None:
    """A plain predicate; None for any other text.

    Raises InvalidExpressionError for a constant that Spark refuses, such as `DATE '2013-02-30'`.
    """
    return _whole(text, _Reader.disjunction)


def _whole(text: str, rule: Callable[[_Reader], Expression]) -> Expression | None:
    if len(text) > MAX_CHARACTERS:
        raise too_long(f"It has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    try:
        text.encode()
        reader = _Reader(text)
        found = rule(reader)
        return found if reader.kind == "end" else None
    except (_NotPlain, UnicodeEncodeError):
        return None


class _Reader:
    """Recursive descent. `kind`, `text` and `word` (in upper case, empty for all else) describe the next token."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._match = re.compile(_TOKEN).match  # compiled at the first use, then known to `re`
        self._position = self._start = self._words = self._depth = 0
        self.kind = self.text = self.word = ""
        self.advance()

    def advance(self) -> str:
        """Go on to the next token. Returns: the text of the one before."""
        before = self.text
        match = self._match(self._source, self._position)
        if match is None:
            raise _NotPlain
        self._words += 1
        if self._words > MAX_WORDS:
            raise too_long(f"It has more than {MAX_WORDS} words and signs")
        self._position = match.end()
        self.kind = match.lastgroup or ""
        self._start = match.start(self.kind)
        self.text = match[self.kind]
        self.word = self.text.upper() if self.kind == "word" else ""
        return before

    def _take(self, *texts: str) -> bool:
        """Pass a keyword or a symbol, where it comes next."""
        if (self.word or self.text) not in texts or self.kind not in ("word", "symbol"):
            return False
        self.advance()
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _NotPlain

    def disjunction(self) -> Expression:
        parts = [self._conjunction()]
        while self._take("OR"):
            parts.append(self._conjunction())
        return disjunction(*parts) if len(parts) > 1 else parts[0]

    def _conjunction(self) -> Expression:
        parts = [self._negation()]
        while self._take("AND"):
            parts.append(self._negation())
        return conjunction(*parts) if len(parts) > 1 else parts[0]

    def _negation(self) -> Expression:
        if self._take("NOT"):
            self._enter()
            negated = Not(self._negation())
            self._depth -= 1
            return negated
        if not self._take("("):
            return self._predicate()
        self._enter()
        inner = self.disjunction()
        self._depth -= 1
        self._expect(")")
        if self.kind != "end" and self.text != ")" and self.word not in ("AND", "OR"):
            raise _NotPlain  # `(a) = 1`
        return inner

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep()

    def _predicate(self) -> Expression:
        child = self.operand()
        if self.kind == "symbol" and self.text in _OPERATORS:
            return Comparison(_OPERATORS[self.advance()], child, self.operand())
        if self._take("IS"):
            is_negated = self._take("NOT")
            test = self._test(child)
            return Not(test) if is_negated else test
        is_negated = self._take("NOT")
        if self._take("IN"):
            found: Expression = self._in(child)
        elif self._take("BETWEEN"):
            low = self.operand()
            self._expect("AND")
            found = conjunction(Comparison(">=", child, low), Comparison("<=", child, self.operand()))
        elif self._take("LIKE"):
            found = self._like(child)
        elif is_negated:
            raise _NotPlain
        else:
            return child
        return Not(found) if is_negated else found

    def _test(self, child: Expression) -> Expression:
        if self._take("NULL"):
            return IsNull(child)
        if self.word not in ("TRUE", "FALSE") or isinstance(child, Literal):
            raise _NotPlain
        return Comparison("<=>", child, Literal(self.advance().upper() == "TRUE", BOOLEAN))

    def _in(self, child: Expression) -> Expression:
        self._expect("(")
        if (listed := self._listed()) is not None:
            return In(child, listed)
        values = [self._constant()]
        while self._take(","):
            values.append(self._constant())
        self._expect(")")
        return In(child, tuple(values))

    def _listed(self) -> tuple[Literal, ...] | None:
        """The constants up to the parenthesis that closes a list, where all are plain numbers or plain strings."""
        if self.kind == "string":
            pattern = _LISTED_STRINGS
        elif self.kind == "number" or self.text == "-":
            pattern = _LISTED_NUMBERS
        else:
            return None
        match = re.compile(pattern).match(self._source, self._start)
        if match is None:
            return None
        self._position = match.end()
        self.advance()
        text = match[0][:-1]
        if pattern == _LISTED_NUMBERS:
            return tuple([Literal(int(number)) for number in text.split(",")])
        return tuple([Literal(string) for string in text.split("'")[1::2]])

    def _constant(self) -> Literal:
        found = self.operand()
        if not isinstance(found, Literal):
            raise _NotPlain
        return found

    def _like(self, child: Expression) -> Expression:
        if self.kind != "string" or not isinstance(child, Column):
            raise _NotPlain
        prefix = like_prefix(self.advance()[1:-1])
        if prefix is None:
            raise _NotPlain
        return StartsWith(child, prefix)

    def operand(self) -> Expression:
        """A column or a constant."""
        match self.kind:
            case "string":
                return Literal(self.advance()[1:-1])
            case "number":
                return self._number(1)
            case "symbol" if self._take("-"):
                return self._number(-1)
            case "word":
                return self._word()
        return self._column()

    def _number(self, sign: int) -> Literal:
        if self.kind != "number":
            raise _NotPlain
        text = self.advance()
        if "." in text:
            value = Decimal(text)
            return Literal(value if sign > 0 else value.copy_negate(), decimal_type_of(value))
        if len(text) > 19 or int(text) > INTEGRAL_RANGES[LONG][1]:
            raise _NotPlain
        return Literal(sign * int(text))

    def _word(self) -> Expression:
        match self.word:
            case "NULL":
                self.advance()
                return Literal(None)
            case "TRUE" | "FALSE":
                return Literal(self.advance().upper() == "TRUE", BOOLEAN)
        word, column = self.word, self._column()
        if self.kind != "string" or len(column.path) > 1:
            return column
        match word:
            case "DATE":
                return Literal(parse_spark_date(self.advance()[1:-1]), DATE)
            case "TIMESTAMP":
                return Literal(parse_spark_timestamp(self.advance()[1:-1]), TIMESTAMP)
        raise _NotPlain

    def _column(self) -> Column:
        path = [self._name()]
        while self._take("."):
            path.append(self._name())
        if len(path) > _MAX_PARTS:
            raise _NotPlain
        return Column(tuple(path))

    def _name(self) -> str:
        if self.kind == "quoted":
            return self.advance()[1:-1]
        if self.kind != "word" or self.word.lower() in RESERVED:
            raise _NotPlain
        return self.advance()
