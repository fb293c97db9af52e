"""How large and how deep a predicate may be, wherever it comes from.

What is within these bounds is resolved, printed and evaluated by functions that call themselves for each level. What is
beyond them is refused before one of these sees it.
"""

from __future__ import annotations

import re

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import (
    And,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
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

MAX_DEPTH = 60
"""Predicates within each other. A chain of AND, or of OR, counts once."""
MAX_TERMS = 20_000
"""Comparisons and other tests in one predicate. A list of values counts once, however long it is."""
MAX_OPERATIONS = 100
"""Operations within each other in text, where a chain such as `a + b + c` counts one for each operator."""
MAX_CHARACTERS = 32 * 1024 * 1024
"""Of a predicate as text."""
MAX_WORDS = 400_000
"""Words and signs in a plain predicate, those in a list of plain numbers or strings aside."""
MAX_WORDS_TO_PARSE = 20_000
"""Words and signs in other text, which takes a full parser."""

_TOKEN = r"""(?xsi)
    \b r(?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*+'? | "(?:[^"\\]|\\.)*+"? | `[^`]*`?
    | --[^\r\n]* | /\*.*?\*/
    | (?P<opens>[(\[{] | \b CASE \b) | (?P<closes>[)\]}] | \b END \b)
    | (?P<breaks>, | \b(?:AND|OR|WHEN|THEN|ELSE) \b)
    | (?P<operator>\|\| | <=> | [<>!=]= | <> | :: | [-+*/%&|^~!<>=:] | \.(?![0-9])
        | \b(?:NOT|DIV|IS|LIKE|RLIKE|ILIKE|REGEXP) \b)"""


def bounded(expression: Expression) -> Expression:
    """The predicate with chains of AND, and of OR, flattened.

    Raises:
        InvalidExpressionError: It is nested too deeply, or it is none: a part of it is not an expression.
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
        case Opaque(str(), columns) if isinstance(columns, tuple) and all(
            isinstance(column, Column) and _is_path(column.path) for column in columns
        ):
            return node
        case And() | Or():
            return type(node)(tuple(_bounded(child, depth + 1) for child in _chain(node)))
        case Not(child):
            return Not(_bounded(child, depth + 1))
        case IsNull(child):
            return IsNull(_bounded(child, depth + 1))
        case Coerced(child):
            return Coerced(_bounded(child, depth + 1))
        case StartsWith(child, prefix) if isinstance(prefix, str):
            return StartsWith(_bounded(child, depth + 1), prefix)
        case Comparison(op, left, right):
            return Comparison(op, _bounded(left, depth + 1), _bounded(right, depth + 1))
        case In(child, values) if isinstance(values, tuple) and set(map(type, values)) <= {Literal}:
            return In(_bounded(child, depth + 1), values)
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
    found: list[Expression] = []
    waiting: list[Expression] = [node]
    while waiting:
        item = waiting.pop()
        if type(item) is type(node) and isinstance(item, And | Or) and isinstance(item.children, tuple):
            waiting.extend(reversed(item.children))
        else:
            found.append(item)
    return found


def ensure_few_terms(expression: Expression, most: int = MAX_TERMS, most_values: int | None = None) -> Expression:
    """The resolved predicate.

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
            case _:
                terms += 1
    if terms > most:
        raise InvalidExpressionError(
            f"The predicate has {terms} comparisons",
            cause=f"A predicate may have {most} at most",
            remedy="Write alternatives for one column as IN (…), or join with a table of them",
            terms=terms,
        )
    if most_values is not None and values > most_values:
        raise InvalidExpressionError(
            f"The lists of the predicate have {values} values",
            cause=f"This engine takes {most_values} at most",
            remedy="Join with a table of the values",
            values=values,
        )
    return expression


def too_deep() -> InvalidExpressionError:
    """The error for a predicate that is nested beyond `MAX_DEPTH`."""
    return InvalidExpressionError(
        "The predicate is nested too deeply",
        cause=f"Parentheses, NOT, CASE, function calls and chains of operators may be nested {MAX_DEPTH} deep",
        remedy="Write a simpler predicate; long alternatives for one column as IN (…)",
    )


def ensure_shallow(text: str) -> str:
    """The text of an expression in Spark SQL, which no parser has seen yet.

    Raises:
        InvalidExpressionError: It is too long, or a parser would go too deep in it.
    """
    if len(text) > MAX_CHARACTERS:
        raise too_long(f"It has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    levels = [0]
    depth = 0
    for words, token in enumerate(re.compile(_TOKEN).finditer(text)):
        match token.lastgroup:
            case "opens":
                levels.append(0)
                depth += 1
            case "closes" if len(levels) > 1:
                depth -= levels.pop() + 1
            case "breaks":
                depth -= levels[-1]
                levels[-1] = 0
            case "operator":
                levels[-1] += 1
                depth += 1
        if depth > MAX_OPERATIONS:
            raise too_deep()
        if words > MAX_WORDS_TO_PARSE:
            raise too_long(f"It has more than {MAX_WORDS_TO_PARSE} words and signs")
    return text


def too_long(cause: str) -> InvalidExpressionError:
    """The error for text beyond `MAX_CHARACTERS` or `MAX_WORDS`."""
    return InvalidExpressionError(
        "The expression is too long",
        cause=cause,
        remedy="Write alternatives for one column as IN (…) of plain constants, or join with a table of them",
    )
