"""Functions that build predicates, walk through them, and limit their size."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import (
    And,
    Call,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
    Constant,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    MakeStruct,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.protocol.types import BOOLEAN

# Expressions within these limits are resolved, printed and evaluated by recursive functions.
MAX_DEPTH = 60
"""Predicates within each other. A chain of AND, or of OR, counts once."""
MAX_TERMS = 20_000
"""Comparisons and other tests in one predicate. A list of values counts once, however long it is."""
MAX_OPERATIONS = 100
"""Operations within each other in text, where a chain such as `a + b + c` counts one for each operator."""
MAX_CHARACTERS = 32 * 1024 * 1024
"""Of a predicate as text."""
MAX_WORDS = 400_000
"""Words and signs in a predicate, except those in a list of plain numbers or strings."""
MAX_WORDS_WITH_CALLS = 100_000
"""Words and signs in a predicate that calls functions or computes."""

OPERATORS: dict[str, Callable[[Constant, Constant], Constant]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
"""The function of a comparison, for two Python values or two expressions of Arrow; `<=>` compares nulls."""
COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
# From loose to tight, as in Spark's grammar.
LEVELS = {
    **dict.fromkeys(COMPARISONS, 1), "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, ">>>": 5, "+": 6, "-": 6, "||": 6,
    "*": 7, "/": 7, "%": 7, "DIV": 7,
}  # fmt: skip
"""How tight an operator between two values binds."""


def children_of(expression: Expression) -> tuple[Expression, ...]:
    """The direct operands; constants of `In` and columns of `Opaque` included."""
    match expression:
        case Comparison(_, left, right):
            return (left, right)
        case In(child, values):
            return (child, *values)
        case IsNull(child) | Not(child) | StartsWith(child, _) | Coerced(child):
            return (child,)
        case And(children) | Or(children):
            return children
        case Opaque(_, columns):
            return columns
        case Cast(value, _):
            return (value,)
        case MakeStruct(fields):
            return tuple(value for _, value in fields)
        case Choice(branches):
            return tuple(part for branch in branches for part in branch)
        case Call(_, arguments):
            return arguments
    return ()


def plain_values(literals: Sequence[Literal]) -> Sequence[Constant]:
    """The Python values of constants."""
    return literals.values if isinstance(literals, Constants) else [literal.value for literal in literals]


def _walk(expression: Expression) -> Iterator[Expression]:
    """Every node in the order of the text, without the constants of `In`."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, In):
            waiting.append(node.child)
        else:
            waiting.extend(reversed(children_of(node)))


def columns_of(expression: Expression) -> tuple[Column, ...]:
    """Every column the expression mentions, each once, in order of first mention."""
    return tuple(dict.fromkeys(node for node in _walk(expression) if isinstance(node, Column)))


def with_children(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The node with changed direct operands, except the constants of `In`. Columns and constants have no operands.

    Raises InvalidExpressionError: It is text, or no expression.
    """
    match expression:
        case Comparison(op, left, right, fills):
            return Comparison(op, change(left), change(right), fills)
        case In(child, values):
            return In(change(child), values)
        case StartsWith(child, prefix):
            return StartsWith(change(child), prefix)
        case IsNull(child) | Not(child) | Coerced(child):
            return type(expression)(change(child))
        case And(children) | Or(children):
            return type(expression)(tuple(map(change, children)))
        case Choice(branches):
            return Choice(tuple((change(when), change(then)) for when, then in branches))
        case Cast(value, data_type):
            return Cast(change(value), data_type)
        case MakeStruct(fields):
            return MakeStruct(tuple((name, change(value)) for name, value in fields))
        case Literal() | Column():
            return expression
    raise InvalidExpressionError(f"{type(expression).__name__} is not an expression", type=type(expression).__name__)


def with_columns(
    expression: Expression,
    replacement: Callable[[Column], Expression],
    text: Callable[[Opaque], Expression] | None = None,
) -> Expression:
    """The expression with every column replaced.

    Args:
        text: What becomes of text (`Opaque`); without it the expression must hold none.

    Raises InvalidExpressionError: Some part is not an expression.
    """

    if isinstance(expression, Column):
        return replacement(expression)
    if isinstance(expression, Opaque) and text is not None:
        return text(expression)
    return with_children(expression, lambda child: with_columns(child, replacement, text))


def is_opaque(expression: Expression) -> bool:
    """Whether only an engine can evaluate some part of the expression."""
    return any(isinstance(node, Opaque | Coerced | Cast | MakeStruct | Choice) for node in _walk(expression))


def conjuncts(condition: Expression | None) -> Sequence[Expression]:
    """The parts of a condition that all hold where it is true; none of None."""
    if condition is None:
        return ()
    return condition.children if isinstance(condition, And) else (condition,)


def conjunction(*expressions: Expression | None) -> Expression:
    """All of them: nested `And`s are flattened, None is left out, none at all is TRUE."""
    parts: list[Expression] = []
    for expression in expressions:
        if isinstance(expression, And):
            parts.extend(expression.children)
        elif expression is not None and not _is_true(expression):
            parts.append(expression)
    if not parts:
        return Literal(True, BOOLEAN)
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def disjunction(*expressions: Expression) -> Expression:
    """Any of them: nested `Or`s are flattened, none at all is FALSE."""
    parts: list[Expression] = []
    for expression in expressions:
        parts.extend(expression.children if isinstance(expression, Or) else (expression,))
    if not parts:
        return Literal(False, BOOLEAN)
    return parts[0] if len(parts) == 1 else Or(tuple(parts))


def _is_true(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is True


def is_not_true(condition: Expression) -> Expression:
    """False and null alike: the rows that `WHERE condition` leaves out."""
    if isinstance(condition, Literal):
        return Literal(condition.value is not True, BOOLEAN)
    return Not(Comparison("<=>", condition, Literal(True, BOOLEAN)))


def any_of(conditions: Sequence[Expression]) -> Expression:
    """Their disjunction. Equalities on one column become one IN, so that a year of days stays a short predicate."""
    values: dict[Column, list[Literal]] = {}
    rest: list[Expression] = []
    for condition in conditions:
        match condition:
            case Comparison("=", Column() as column, Literal(value) as literal) if value is not None:
                values.setdefault(column, []).append(literal)
            case _:
                rest.append(condition)
    return disjunction(*(In(column, tuple(literals)) for column, literals in values.items()), *rest)


# How large and how deep a tree may be


def too_deep() -> InvalidExpressionError:
    """The error for a predicate that is nested beyond `MAX_DEPTH`."""
    return InvalidExpressionError(
        "The predicate is nested too deeply",
        cause=f"Parentheses, NOT, CASE, function calls and chains of operators may be nested {MAX_DEPTH} deep",
        remedy="Write a simpler predicate; long alternatives for one column as IN (…)",
    )


def too_long(cause: str) -> InvalidExpressionError:
    """The error for text beyond `MAX_CHARACTERS` or `MAX_WORDS`."""
    return InvalidExpressionError(
        "The expression is too long",
        cause=cause,
        remedy="Write alternatives for one column as IN (…) of plain constants, or join with a table of them",
    )


def too_many_terms(terms: int, most: int) -> InvalidExpressionError:
    """The error for a predicate of more than `most` tests, of which so many were counted."""
    return InvalidExpressionError(
        f"The predicate has {terms} comparisons or more",
        cause=f"A predicate may have {most} at most",
        remedy="Write alternatives for one column as IN (…), or join with a table of them",
        terms=terms,
    )


def bounded(expression: Expression) -> Expression:
    """The predicate with chains of AND, and of OR, flattened.

    Raises:
        InvalidExpressionError: It is nested too deeply, or a part of it is not an expression.
    """
    return _bounded(expression, 1)


def _bounded(node: Expression, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise too_deep()
    match node:
        case Literal() | Cast() | Choice() | MakeStruct():
            return node  # the last three are made here, from what was read within these bounds
        case Column(path) if _is_path(path):
            return node
        case Comparison(_, Column(path), Literal()) if depth < MAX_DEPTH and _is_path(path):
            return node
        case Opaque(str(), columns) if isinstance(columns, tuple) and all(
            isinstance(column, Column) and _is_path(column.path) for column in columns
        ):
            return node
        case And() | Or():
            return type(node)(tuple(_bounded(child, depth + 1) for child in _chain(node)))
        case Not() | IsNull() | Coerced() | Comparison() | StartsWith(_, str()):
            return with_children(node, lambda child: _bounded(child, depth + 1))
        case In(_, values) if isinstance(values, Constants) or (
            isinstance(values, tuple) and set(map(type, values)) <= {Literal}
        ):
            return with_children(node, lambda child: _bounded(child, depth + 1))
    name = type(node).__name__
    raise InvalidExpressionError(
        f"A {name} with parts of another type is not an expression"
        if isinstance(node, Expression)
        else f"A {name} is not an expression",
        remedy="Write the predicate as text in Spark SQL, or see delta_orch.expressions.nodes for what each node takes",
        type=name,
    )


def _is_path(path: object) -> bool:
    return isinstance(path, tuple) and bool(path) and all(isinstance(name, str) for name in path)


def _chain(node: And | Or) -> list[Expression]:
    """The operands of a chain of one operator, in order, however it is nested."""
    operands: list[Expression] = []
    waiting: list[Expression] = [node]
    while waiting:
        item = waiting.pop()
        if type(item) is type(node) and isinstance(item, And | Or) and isinstance(item.children, tuple):
            waiting.extend(reversed(item.children))
        else:
            operands.append(item)
    return operands


def _tests_in(text: str) -> int:
    """The number of tests in a text after its first. A branch of CASE counts three: Spark needs more memory for it."""
    words = re.findall(r"(?is)'(?:[^'\\]|\\.)*+'|\b(?:WHEN|AND|OR)\b", text)
    return sum(3 if len(word) == 4 and word[0] != "'" else word[0] != "'" for word in words)


def ensure_few_terms(expression: Expression, most: int = MAX_TERMS, most_values: int | None = None) -> Expression:
    """The resolved predicate, or value.

    Args:
        most: How many comparisons and other tests it may have.
        most_values: How many constants its lists may have together; None for any number.

    Raises:
        InvalidExpressionError: It has more.
    """
    terms = values = 0
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        match node:
            case And(children) | Or(children):
                waiting.extend(children)
            case Not(child) | Coerced(child):
                waiting.append(child)
            case In(_, listed):
                terms, values = terms + 1, values + len(listed)
            case Opaque(text, _):
                terms, values = terms + 1 + _tests_in(text), values + text.count(",")
            case _:
                terms += 1
                waiting.extend(part for part in children_of(node) if not isinstance(part, Column | Literal))
    if terms > most:
        raise too_many_terms(terms, most)
    if most_values is not None and values > most_values:
        raise InvalidExpressionError(
            f"The lists of the predicate have {values} values",
            cause=f"This engine takes {most_values} at most",
            remedy="Join with a table of the values",
            values=values,
        )
    return expression
