"""The gate for expressions from a table's metadata, and for those that a table is given: they are data, not code.

The text is read by a grammar that knows one scalar expression of Spark SQL and nothing else, over an allow-list of
functions. What comes out is printed anew from what was understood: quoted columns, constants, allowed functions and
operators, with parentheses around every operand that has an operator. Engines evaluate that text, never the original.
Nothing is loaded for it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.allowed_functions import WITHOUT_PARENTHESES
from delta_orch.expressions.checked_grammar import Reader
from delta_orch.expressions.checked_tokens import OTHER_FUNCTION, SIMPLER, Refused


class CheckedExpression(NamedTuple):
    """An expression that may be evaluated: Spark SQL that was printed here, and the columns it names."""

    sql: str
    columns: tuple[tuple[str, ...], ...]


def check_expression(
    text: object, what: str, *, columns: Collection[str] | None = None, is_default: bool = False
) -> CheckedExpression:
    """Read an expression that came with a table, or that a table is to keep.

    Args:
        what: What it is called in messages: "CHECK constraint positive".
        columns: The table's top-level columns, where they are known. Other names may then not be those of functions
            that Spark calls without parentheses.
        is_default: It is a default: functions of the clock are allowed, columns are not.

    Raises:
        InvalidExpressionError: It is not exactly one scalar expression, it calls a function that is not allowed, or it
            is too long or nested too deeply. Nothing was evaluated.
    """
    if not isinstance(text, str):
        raise _refusal(text, what, "is not text", "Write one expression in Spark SQL")
    try:
        checked = _checked(text, is_default)
    except Refused as e:
        raise _refusal(text, what, e.problem, e.remedy) from None
    except RecursionError:
        raise _refusal(text, what, "is nested too deeply", SIMPLER) from None
    known = {name.lower() for name in columns or ()}
    for path in checked.columns:
        if len(path) == 1 and path[0].lower() in WITHOUT_PARENTHESES and path[0].lower() not in known:
            raise _refusal(text, what, f"calls the function {path[0]}: its answer is not fixed", OTHER_FUNCTION)
    if is_default and checked.columns:
        name = ".".join(checked.columns[0])
        remedy = "Write constants, such as 0, 'unknown' or current_timestamp()"
        raise _refusal(text, what, f"names a column, {name}", remedy)
    return checked


def _refusal(text: object, what: str, problem: str, remedy: str) -> InvalidExpressionError:
    shown = ascii(text[:200]) if isinstance(text, str) else type(text).__name__
    return InvalidExpressionError(
        f"{what[:1].upper()}{what[1:]} {problem}", cause=f"The expression is {shown}", remedy=remedy, rule=what
    )


@lru_cache(maxsize=512)
def _checked(text: str, is_default: bool) -> CheckedExpression:
    reader = Reader(text, is_default)
    piece = reader.expression()
    if reader.kind != "end":
        raise reader.unexpected()
    return CheckedExpression(piece.sql, tuple(dict.fromkeys(reader.columns)))
