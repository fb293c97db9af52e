"""The reader of predicates and values in Spark SQL, on top of `grammar`. It also refuses text that a table's columns
make ambiguous."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.grammar import CLOCKS, Mention, Reader
from delta_orch.expressions.nodes import Call, Column, Expression, Literal, Opaque
from delta_orch.expressions.tokens import Refused, Unreadable
from delta_orch.expressions.tree import MAX_CHARACTERS, too_long
from delta_orch.protocol.types import TIMESTAMP, StructType

_BARE_FUNCTIONS = frozenset(
    {"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp", "session_user", "user"}
)
_CLOCK_NAME = re.compile(r"(?i)\b(?<!`)(current_date|current_timestamp|localtimestamp)\b(?!\s*\(|`)")
_DOUBLE_QUOTED = r"""(?xs)'(?:[^'\\]|\\.)*+' | `[^`]*` | --[^\r\n]* | /\*.*?\*/ | "([^"\\]*+)\""""


def parse_expression(text: str) -> Expression:
    """A predicate in Spark SQL as a tree, not yet resolved against a schema.

    Comparisons, IN, BETWEEN, IS [NOT] NULL/TRUE/FALSE, `LIKE 'prefix%'`, AND, OR and NOT over columns and constants
    become nodes. Any other predicate becomes `Opaque`. Timestamps without a zone are UTC. The clock
    (`current_timestamp()`, `now()`, `current_date()`, `localtimestamp()`, `unix_timestamp()`) is read here, or by
    `clock.one_moment`.

    Raises:
        InvalidExpressionError: The text is not a predicate, or it holds what a predicate on a table must not hold: a
            subquery, a window, aggregate or generator function, a parameter, or a function whose answer is not fixed
            (`rand()`). It is too long or nested too deeply (see `tree`).
    """
    _, reader, node = _of_one_row(text, *_read(text))
    return reader.predicate(node) if reader.has_calls else node


def parse_value(text: str) -> Expression:
    """One value in Spark SQL: a constant, a column, or `Opaque`. A constant that depends on a time zone is opaque.

    Raises:
        InvalidExpressionError: The text is not one scalar expression, or a constant that Spark refuses.
    """
    return _value(text, *_read(text))


def _value(text: str, reader: Reader, node: Expression) -> Expression:
    if isinstance(node, Call):
        node = constant_of(node) or node
    if isinstance(node, Column) or (isinstance(node, Literal) and node.data_type != TIMESTAMP):
        return node
    return Opaque(reader.text_between(0, len(text)), reader.columns())


def parse_row_value(text: str) -> Expression:
    """A value that a verb computes for rows: as `parse_value`, but it must depend on one row only. The clock is read as
    by `parse_expression`.

    Raises:
        InvalidExpressionError: As `parse_value`, and for a subquery, a window, aggregate or generator function, a
            parameter, or a function whose answer is not fixed (`rand()`).
    """
    reader, node = _read(text)
    if type(node) is Call and node.name in CLOCKS and not node.arguments:
        from delta_orch.expressions.clock import time_told

        return time_told(node.name)
    return _value(*_of_one_row(text, reader, node))


def syntax_of(node: Opaque) -> Expression:
    """The nodes of a node's text, for evaluation. Raises InvalidExpressionError if it cannot be read."""
    return _syntax(node.sql)


@lru_cache(maxsize=256)
def _syntax(text: str) -> Expression:
    return _read(text)[1]


def ensure_within_bounds(node: Opaque) -> None:
    """Raises InvalidExpressionError: A node's text is too long, or nested too deeply. Text that cannot be parsed is
    left to Spark."""
    if len(node.sql) > MAX_CHARACTERS:
        raise too_long(f"It has {len(node.sql)} characters; {MAX_CHARACTERS} are allowed")
    with suppress(Refused):
        Reader(node.sql).whole()


def asks_for_time(text: str) -> bool:
    """Whether an expression reads the clock. Raises InvalidExpressionError if it cannot be read."""
    return bool(_read(text)[0].clocks)


def mentions_of(text: str) -> list[Mention]:
    """The columns that an expression names, with their places. Raises InvalidExpressionError if it cannot be read."""
    return _read(text)[0].mentions


def _read(text: str) -> tuple[Reader, Expression]:
    if len(text) > MAX_CHARACTERS:
        raise too_long(f"It has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    with reading(text, "expression", "Write one predicate in Spark SQL, such as: day >= '2013-01-01' AND carrier IN "
                 "('AA', 'UA')"):  # fmt: skip
        reader = Reader(text, bare_functions=_BARE_FUNCTIONS)
        return reader, reader.whole()


@contextmanager
def reading(text: str, what: str, remedy: str) -> Iterator[None]:
    """Turn the errors of `grammar` into InvalidExpressionError."""
    try:
        yield
    except Unreadable as e:
        raise InvalidExpressionError(
            f"Cannot read the {what} {_shorten(text)}", cause=e.why, remedy=remedy, expression=text
        ) from None
    except Refused as e:
        raise InvalidExpressionError(
            f"The {what} {_shorten(text)} {e.problem}",
            cause="A predicate on a table looks at one row at a time",
            remedy=e.remedy,
            expression=text,
        ) from None
    except RecursionError:
        raise InvalidExpressionError(
            f"The {what} {_shorten(text)} is nested too deeply",
            remedy="Write long alternatives as IN (…)",
            expression=text,
        ) from None


def _of_one_row(text: str, reader: Reader, node: Expression) -> tuple[str, Reader, Expression]:
    """The expression with constants for the clock. Raises InvalidExpressionError: It depends on other rows."""
    if reader.clocks:
        from delta_orch.expressions.clock import with_time_told

        text = with_time_told(text, reader.clocks)
        reader, node = _read(text)
    if reader.functions:
        _ensure_of_one_row(reader, text)
    return text, reader, node


def _ensure_of_one_row(reader: Reader, text: str) -> None:
    from delta_orch.expressions.allowed_functions import foreign_function

    for name, arguments in reader.functions:
        if (foreign := foreign_function(name, arguments)) is not None:
            what, is_unstable = foreign
            raise InvalidExpressionError(
                f"The expression {_shorten(text)} holds {what}",
                cause="Its answer is not fixed" if is_unstable else "A predicate on a table looks at one row at a time",
                remedy="Pass its value as a constant"
                if is_unstable
                else "Use columns, constants and scalar functions only",
                expression=text,
            )


def _shorten(text: str) -> str:
    flat = " ".join(text[:1000].split())
    return ascii(flat if len(flat) <= 200 else flat[:197] + "...")


def ensure_no_column_in_double_quotes(text: str, schema: StructType, rule: str | None = None) -> None:
    """Raises InvalidExpressionError: A predicate has a column's name in double quotes. Spark SQL reads that as text,
    and would find no row.

    Args:
        rule: The rule of the table that has the text. delta-rs writes columns of rules in double quotes.
    """
    if '"' not in text:
        return
    for match in re.finditer(_DOUBLE_QUOTED, text):
        name = match[1]
        if name and schema.find(name) is not None:
            raise InvalidExpressionError(
                f'"{name}" in double quotes is text in Spark SQL, and the table has a column of that name',
                cause=rule and f"Spark and delta-rs read {rule} differently: {_shorten(text)}",
                remedy=("Drop the rule, and add it again. " if rule else "")
                + f"Write `{name}` for the column, or '{name}' for the text",
                column=name,
            )


def ensure_no_column_named_as_clock(text: str, schema: StructType) -> None:
    """Raises InvalidExpressionError: A name is a column, and also a function of the clock without parentheses. Spark
    SQL would read the column."""
    if "local" not in (lower := text.lower()) and "current" not in lower:
        return
    for match in _CLOCK_NAME.finditer(text):
        if schema.find(match[1]) is not None:
            raise InvalidExpressionError(
                f"{match[1]} is a function of the clock, and the table has a column of that name",
                remedy=f"Write `{match[1]}` for the column, or {match[1]}() for the clock",
                column=match[1],
            )
