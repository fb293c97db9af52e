"""How large and how deep a predicate may be, wherever it comes from.

What is within these bounds is resolved, printed and evaluated by functions that call themselves for each level. What is
beyond them is refused before one of these sees it.
"""

from __future__ import annotations

import re

from delta_orch.errors import InvalidExpressionError

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
