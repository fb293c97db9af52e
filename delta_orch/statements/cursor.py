"""A statement of SQL as words and signs, with the text between them as the user wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from delta_orch.errors import InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.parse import parse_value
from delta_orch.expressions.spark_literals import quote_identifier

T = TypeVar("T")

_TOKEN = r"""(?xs)(?:\s|--[^\r\n]*|/\*.*?\*/)*+(?:
    (?P<string>{strings})
    |(?P<quoted>{quoted})
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?![\w.]))
    |(?P<word>\w+)
    |(?P<symbol><=>|<=|>=|<>|!=|==|\|\||::|->|[^'"`])
    |(?P<end>\Z))"""
_OF_SPARK = _TOKEN.format(strings=r"""[rR]?(?:'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")""", quoted="`(?:[^`]|``)++`")
_OF_DUCKDB = _TOKEN.format(
    strings=r"""[eE]'(?:[^'\\]|\\.|'')*+'|'(?:[^']|'')*+'|(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)""",
    quoted=r"""`(?:[^`]|``)++`|"(?:[^"]|"")++\"""",
)
_ONLY_SEMICOLONS = r"(?s)(?:[\s;]|--[^\r\n]*|/\*.*?\*/)*\Z"
_MAX_CHARACTERS = 4 * 1024 * 1024
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """`word` is the text in upper case where the token is a word or a sign, otherwise empty."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind in ("word", "symbol") else ""

    @property
    def name(self) -> str:
        """A name without its quotes."""
        quote = self.text[0] if self.kind == "quoted" else ""
        return self.text[1:-1].replace(quote * 2, quote) if quote else self.text


def tokens_of(text: str, *, start: int = 0, of_duckdb: bool = False) -> list[Token]:
    """The tokens of a text from a place on. Comments and semicolons at the end are left out.

    The last token is `end`. It is `broken` where a quote or a comment is not closed, and `next` before another
    statement: a cursor refuses both when it gets there.

    Args:
        of_duckdb: By DuckDB's rules for quotes. Otherwise by Spark's.

    Raises:
        InvalidRequestError: It is not text, or too long.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"A statement must be text, not {type(text).__name__}")
    if len(text) > _MAX_CHARACTERS:
        raise InvalidRequestError(f"The statement has {len(text)} characters; {_MAX_CHARACTERS} are allowed")
    tokens: list[Token] = []
    match, position = re.compile(_OF_DUCKDB if of_duckdb else _OF_SPARK).match, start
    while not tokens or tokens[-1].kind not in ("end", "broken", "next"):
        found = match(text, position)
        if found is None or (found["symbol"] == "/" and text.startswith("/*", found.start("symbol"))):
            tokens.append(Token("broken", text[position : position + 40], position, len(text)))
            break
        kind = next(kind for kind in ("string", "quoted", "number", "word", "symbol", "end") if found[kind] is not None)
        token = Token(kind, found[kind], found.start(kind), found.end(kind))
        if token.text == ";" and kind == "symbol":
            is_last = re.compile(_ONLY_SEMICOLONS).match(text, token.end) is not None
            token = Token("end" if is_last else "next", "", token.start, token.start)
        tokens.append(token)
        position = token.end
    return tokens


class Cursor:
    """Reads one statement from its start."""

    def __init__(self, text: str, *, of_duckdb: bool = False) -> None:
        self.source = text
        self.tokens = tokens_of(text, of_duckdb=of_duckdb)
        self.index = 0

    @property
    def token(self) -> Token:
        """The one that comes next. Raises InvalidRequestError where the text cannot be read on."""
        token = self.tokens[self.index]
        if token.kind == "broken":
            raise InvalidRequestError(
                f"The statement cannot be read from {token.text.strip()!a} on",
                cause="A quote or a comment is not closed",
            )
        if token.kind == "next":
            raise InvalidRequestError(
                "The text holds more than one statement", remedy="Run them one after the other: each is its own commit"
            )
        return token

    def go_on(self, *, of_duckdb: bool) -> None:
        """Read what comes next by the rules of one engine."""
        start = self.tokens[self.index].start
        self.tokens[self.index :] = tokens_of(self.source, start=start, of_duckdb=of_duckdb)

    def at(self, *words: str) -> bool:
        """Whether these words come next."""
        ahead = self.tokens[self.index : self.index + len(words)]
        return [token.word for token in ahead] == list(words)

    def take(self, *words: str) -> bool:
        """Pass these words, where they come next."""
        if not self.at(*words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Pass these words. Raises InvalidRequestError where others come next."""
        for word in words:
            if not self.take(word):
                self.refuse(f"{word} is missing")

    def end(self) -> None:
        """Raises InvalidRequestError where more comes."""
        if self.token.kind != "end":
            self.refuse("is not part of the statement")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for what comes next."""
        token = self.token
        where = "at its end" if token.kind == "end" else f"before {token.text[:60]!a}"
        if what == "is not part of the statement":
            problem = f"The statement goes on with {token.text[:60]!a}, which is not supported there"
        else:
            problem = f"The statement cannot be read: {what} {where}"
        raise InvalidRequestError(
            problem, remedy="docs/sql.md lists the statements and their parts", statement=self.source[:500]
        )

    def name(self) -> str:
        """A name, with or without backticks."""
        token = self.token
        if token.kind not in ("word", "quoted"):
            self.refuse("a name is missing")
        self.index += 1
        return token.name

    def path(self) -> list[str]:
        """A name, or several with dots between."""
        found = [self.name()]
        while self.take("."):
            found.append(self.name())
        return found

    def column(self) -> str:
        """A column or a field of one as the verbs take it."""
        return quoted_path(self.path())

    def names(self) -> list[str]:
        """Columns in parentheses."""
        return self.listed(self.column)

    def each(self, item: Callable[[], T]) -> list[T]:
        """One of something, or several with commas between."""
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def listed(self, item: Callable[[], T]) -> list[T]:
        """The same in parentheses."""
        self.expect("(")
        found = self.each(item)
        self.expect(")")
        return found

    def key(self) -> str:
        """The key of a property, a string or names with dots between."""
        return self.string() if self.token.kind == "string" else ".".join(self.path())

    def string(self) -> str:
        """A string constant."""
        token = self.token
        if token.kind != "string":
            self.refuse("a string is missing")
        self.index += 1
        value = parse_value(token.text)
        if not isinstance(value, Literal) or not isinstance(value.value, str):
            raise InvalidExpressionError(f"{token.text[:60]!a} is not a string")
        return value.value

    def number(self) -> str:
        """A number without a sign."""
        token = self.token
        if token.kind != "number":
            self.refuse("a number is missing")
        self.index += 1
        return token.text

    def integer(self) -> int:
        """A whole number without a sign."""
        text = self.number()
        if not text.isdigit() or len(text) > 18:
            raise InvalidRequestError(f"{text[:60]} is too large for a version or a count")
        return int(text)

    def text_until(self, *stops: str, angles: bool = False, inside: bool = False) -> str:
        """What stands before one of the words, or before the end, parentheses and CASE closed; with `angles`, as in
        types, `<` and `>` are parentheses, too. With `inside`, the word may be the first in parentheses, which then
        stop. Raises InvalidRequestError where nothing does."""
        first = self.index
        closing: list[str] = []
        while self.token.kind != "end":
            word = self.token.word
            is_field = self.index > first and self.tokens[self.index - 1].text == "."
            opens = inside and word == "(" and self.tokens[self.index + 1].word in stops
            if not closing and not is_field and (opens or word in stops):
                break
            if word in _OPENING:
                closing.append(_OPENING[word])
            elif angles and word == "<":
                closing.append(">")
            elif word == "CASE" and not is_field:
                closing.append("END")
            elif closing and word == closing[-1] and not is_field:
                closing.pop()
            elif word in _CLOSING:
                self.refuse("a parenthesis is not opened")
            self.index += 1
        if closing:
            self.refuse(f"{closing[-1]} is missing")
        if self.index == first:
            self.refuse("something is missing")
        return self.source[self.tokens[first].start : self.tokens[self.index - 1].end]

    def in_parentheses(self) -> str:
        """The text in parentheses."""
        self.expect("(")
        text = self.text_until(")")
        self.expect(")")
        return text


def quoted_path(path: list[str]) -> str:
    """A column's path in SQL: a plain name as it is, and one with backticks, which verbs take as it stands, too."""
    if len(path) == 1 and "`" in path[0]:
        return path[0]
    if len(path) == 1 and re.fullmatch(r"[A-Za-z_]\w*", path[0], re.ASCII):
        return path[0]
    return ".".join(quote_identifier(name) for name in path)
