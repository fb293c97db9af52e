"""Spark SQL's words and signs, as far as `checked_grammar` knows them. Comments are left out."""

from __future__ import annotations

import re

from delta_orch.expressions.spark_literals import quote_string, without_variables

MAX_CHARACTERS = 65_536
MAX_TOKENS = 10_000

_TOKEN = r"""(?xs)(?:[ \t\r\n]|--[^\r\n]*|/\*(?!\+).*?\*/)*+(?:
    (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<hex>[xX]'[0-9A-Fa-f]*')
    |(?P<string>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|bd|[LlSsYyDdFf])?)(?![\w.])
    |(?P<word>[^\W\d]\w*)
    |(?P<quoted>`(?:[^`]|``)++`)
    |(?P<symbol><=>|<=|>=|<>|!=|==|\|\||::|[=<>!(),.\[\]+\-*/%&|^~:])
    |(?P<end>\Z))"""
_QUOTES = re.compile(r"(?s)\\.|''|\"\"|'|\"")

OTHER_FUNCTION = (
    'Use the functions that docs/features.md lists under "Expressions", or drop the rule with alter() and compute the '
    "value before the write"
)
ONE_EXPRESSION = "Write one expression of columns, constants, operators and functions in Spark SQL"
SIMPLER = "Write a shorter expression; long alternatives as IN (…)"


class Refused(Exception):
    """The text is not an expression that may be evaluated. `problem` completes a sentence about it."""

    def __init__(self, problem: str, remedy: str = ONE_EXPRESSION) -> None:
        self.problem = problem
        self.remedy = remedy


def tokens_of(text: str) -> list[tuple[str, str]]:
    """The kind and the text of each token; the last is `end`. Raises Refused."""
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"is longer than {MAX_CHARACTERS} characters", SIMPLER)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("is not valid Unicode") from None
    match, position = re.compile(_TOKEN).match, 0
    found: list[tuple[str, str]] = []
    while not found or found[-1][0] != "end":
        token = match(text, position)
        if token is None:
            raise Refused(f"is not one expression: it cannot be read from {text[position : position + 20]!a} on")
        kind = token.lastgroup or "end"
        found.append((kind, token[kind]))
        if len(found) > MAX_TOKENS:
            raise Refused(f"has more than {MAX_TOKENS} words and signs", SIMPLER)
        position = token.end()
    return found


def quoted_string(token: str) -> str:
    """A string in single quotes, with the escapes that it has. A raw one that may hold a variable gets escapes."""
    if token[0] in "rR":
        return quote_string(token[2:-1]) if "${" in token else token
    quote = token[0]

    def changed(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] == "\\":
            return found
        if found[0] == '"':
            return '"' if quote == '"' else found
        return "\\'" if quote == "'" else "\\'" * len(found)

    return f"'{without_variables(_QUOTES.sub(changed, token[1:-1]))}'"


def is_number_up_to(sql: str, most: int) -> bool:
    """Whether a printed constant is a whole number of no more than `most`, without regard to its sign."""
    digits = sql.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) <= most
