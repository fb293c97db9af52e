"""The gate for expressions from a table's metadata, and for those that a table is given: they are data, not code.

The text is read by a grammar that knows one scalar expression of Spark SQL and nothing else, over an allow-list of
functions. The result is printed from the parsed nodes: quoted columns, constants, allowed functions and operators, with
parentheses around every operand that has an operator. Engines evaluate that text, never the original.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.allowed_functions import (
    ALLOWED_FUNCTIONS,
    BOUNDED_FUNCTIONS,
    CLOCK_FUNCTIONS,
    EXTRACTED,
    FORMATTING_FUNCTIONS,
    MAX_LENGTH,
    PADDING_FUNCTIONS,
    WITHOUT_PARENTHESES,
    formatted_size,
    grown_size,
    not_allowed,
)
from delta_orch.expressions.grammar import TYPES, Reader
from delta_orch.expressions.nodes import Call, Column, Expression, In, Literal, Operation
from delta_orch.expressions.to_sql import to_checked_sql
from delta_orch.expressions.tokens import OTHER_FUNCTION, SIMPLER, Refused, Unreadable
from delta_orch.expressions.tree import LEVELS, children_of

MAX_CHARACTERS = 65_536
MAX_WORDS = 10_000
_OPERATIONS = (LEVELS.keys() - {"<<", ">>", ">>>"}) | {
    "~", "NOT", "IS", "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "LIKE ANY", "LIKE ALL", "ILIKE ANY", "ILIKE ALL",
    "RLIKE ANY", "RLIKE ALL", "()", "[]", ".", ":", "CASE", "CASE OF", "CAST", "TRY_CAST", "INTERVAL", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ",
}  # fmt: skip


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
    except InvalidExpressionError as e:
        raise _refusal(text, what, f"cannot be read: {e.problem}", e.remedy or SIMPLER) from None
    except RecursionError:
        raise _refusal(text, what, "is nested too deeply", SIMPLER) from None
    column_names = {name.lower() for name in columns or ()}
    for path in checked.columns:
        if len(path) == 1 and path[0].lower() in WITHOUT_PARENTHESES and path[0].lower() not in column_names:
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
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"is longer than {MAX_CHARACTERS} characters", SIMPLER)
    clocks = CLOCK_FUNCTIONS & WITHOUT_PARENTHESES if is_default else ()
    reader = Reader(text, bare_functions=clocks, most=MAX_WORDS)
    expression = reader.whole()
    for name in reader.types:
        if name not in TYPES:
            raise Unreadable(f"{name[:40]!a} is unexpected")
    _size(expression, is_default)
    return CheckedExpression(to_checked_sql(expression), tuple(column.path for column in reader.columns()))


def _size(node: Expression, is_default: bool) -> int:
    """How many characters a value has at most, where a column's counts as one. Raises Refused: It may not be called."""
    match node:
        case Column():
            return 1
        case Literal(value):
            return len(value) if isinstance(value, str | bytes) else len(str(value))
        case In(child, values):
            return _size(child, is_default) + len(values)
    parts = children_of(node)
    if isinstance(node, Call) and node.name == "struct" and not isinstance(node, Operation):
        parts = tuple(p.arguments[0] if isinstance(p, Operation) and p.name == "AS" else p for p in parts)
    sizes = [_size(part, is_default) for part in parts]
    if isinstance(node, Operation):
        if node.name == "->":
            raise Refused("holds a lambda function")
        if node.name not in _OPERATIONS:
            raise Unreadable(f"{node.name!a} is unexpected")
    elif isinstance(node, Call):
        return _size_of_call(node, parts, sizes, is_default)
    return sum(sizes) or len(str(node))


def _size_of_call(node: Call, parts: Sequence[Expression], sizes: list[int], is_default: bool) -> int:
    name = node.name
    is_clock = name in CLOCK_FUNCTIONS or (name == "unix_timestamp" and not parts)
    if name not in ALLOWED_FUNCTIONS and not is_clock:
        raise not_allowed(name)
    if is_clock and not is_default:
        raise not_allowed(name if name in CLOCK_FUNCTIONS else "unix_timestamp without an argument", is_clock=True)
    if name == "extract" and node.detail not in EXTRACTED:
        raise Unreadable(f"{node.detail[:40]!a} is unexpected")
    if name in BOUNDED_FUNCTIONS and len(parts) > 1 - (name in PADDING_FUNCTIONS):
        most = BOUNDED_FUNCTIONS[name]
        bound = parts[1].value if len(parts) > 1 and isinstance(parts[1], Literal) else None
        is_format = name == "format_number" and isinstance(bound, str)
        if not is_format and not (type(bound) is int and abs(bound) <= most):
            raise Refused(f"calls {name} with a length or a scale that is not a constant of at most {most}")
        if name in PADDING_FUNCTIONS:
            sizes = [max(abs(bound), 1) if type(bound) is int else 1]
        if name == "repeat":
            sizes = [sizes[0] * max(bound, 1) if type(bound) is int else 0]
    if name in FORMATTING_FUNCTIONS and parts:
        sizes = [formatted_size(parts[0].value if isinstance(parts[0], Literal) else None, sizes)]
    size = sizes[0] if name in PADDING_FUNCTIONS and sizes else grown_size(name, sizes)
    if size > MAX_LENGTH:
        raise Refused(f"calls {name} so that its value may be longer than {MAX_LENGTH} characters", SIMPLER)
    return size
