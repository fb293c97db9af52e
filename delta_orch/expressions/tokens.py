"""Words and signs of SQL: the tokens of an expression (`Tokens`) and of a statement (`statement_tokens`). Comments are
left out."""

from __future__ import annotations

import re
from typing import NamedTuple

from delta_orch.expressions.tree import MAX_WORDS, too_long

_BLANK = r"(?:[ \t\r\n]|--(?:\\\n|[^\r\n])*+|/\*(?!\+).*?\*/)*+"
_STRING = r"""'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+\""""
_QUOTED = r"`(?:[^`]|``)++`"
_EXPRESSION = rf"""(?xs){_BLANK}(?:
    (?P<word>(?![rRxX]['"])[^\W\d]\w*)
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|bd|[LlSsYyDdFf])?)(?![\w.])
    |(?P<string>{_STRING})
    |(?P<symbol><=>|<=|>=|<>|!=|==|\|\||::|->|=>|<<|>>>?|[=<>!(),.\[\]+\-*/%&|^~:?;])
    |(?P<quoted>{_QUOTED})
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<hex>[xX](?:'[0-9A-Fa-f]*'|"[0-9A-Fa-f]*"))
    |(?P<end>\Z))"""
_ESCAPED = re.compile(r"""(?s)\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)|''|\"\"""")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

OTHER_FUNCTION = (
    "Use the functions that docs/expressions.md lists, or drop the rule with alter() and compute the value before the "
    "write"
)
ONE_EXPRESSION = "Write one expression of columns, constants, operators and functions in Spark SQL"
SIMPLER = "Write a shorter expression; long alternatives as IN (…)"


class Refused(Exception):
    """The text is not an expression that may be evaluated. `problem` completes a sentence about it."""

    def __init__(self, problem: str, remedy: str = ONE_EXPRESSION) -> None:
        self.problem = problem
        self.remedy = remedy


class Unreadable(Refused):
    """The text is not one expression. `why` is a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(f"is not one expression: {why[:1].lower()}{why[1:]}")
        self.why = why


class Tokens:
    """A text, read token by token on request.

    Attributes:
        kind: The kind of the next token: `word`, `quoted`, `string`, `raw`, `hex`, `number`, `symbol` or `end`.
        text: The next token as it is written.
        word: The next token if it is a word, in upper case, or a sign; otherwise empty.
        start: Where the next token begins.
        ended: Where the token before it ends.
        words: The number of tokens so far.
        most: The greatest number of tokens.
    """

    def __init__(self, source: str, most: int = MAX_WORDS) -> None:
        try:
            source.encode()
        except UnicodeEncodeError:
            raise Unreadable("It is not valid Unicode") from None
        self.source = source
        self.most = most
        self._match = re.compile(_EXPRESSION).match  # compiled at the first use, then known to `re`
        self._position = self.start = self.ended = self.words = 0
        self.kind = self.text = self.word = ""
        self.advance()

    def advance(self) -> str:
        """Go on to the next token. Returns: the text of the one before."""
        before = self.text
        match = self._match(self.source, self._position)
        if match is None:
            raise Unreadable(f"It cannot be read from {self.source[self._position : self._position + 20]!a} on")
        self.words += 1
        if self.words > self.most:
            raise too_long(f"It has more than {self.most} words and signs")
        self.ended = self._position
        self._position = match.end()
        self.kind = kind = match.lastgroup or "end"
        self.start = match.start(kind)
        self.text = text = match[kind]
        self.word = text.upper() if kind == "word" else text if kind == "symbol" else ""
        return before

    def go_to(self, position: int) -> None:
        """Continue with the token that begins there."""
        self._position = position
        self.advance()

    def match_here(self, pattern: str) -> re.Match[str] | None:
        """The match of a pattern from the next token on. No token is passed."""
        return re.compile(pattern).match(self.source, self.start)

    def take(self, *words: str) -> bool:
        """Pass the next token if it is one of these words or signs."""
        if self.word in words:
            self.advance()
            return True
        return False

    def expect(self, word: str) -> None:
        if self.word != word:
            raise self.unexpected()
        self.advance()

    def unexpected(self) -> Unreadable:
        """The error for the next token."""
        if self.kind == "end":
            return Unreadable("It ends too early")
        return Unreadable(f"{self.text[:40]!a} is unexpected")


def name_of(token: str) -> str:
    """A name without backticks."""
    return token[1:-1].replace("``", "`") if token[0] == "`" else token


def text_of(token: str) -> str:
    """The value of a string, which may be raw. Raises Unreadable: It is not valid Unicode."""
    quote = token[0]
    if quote in "rR":
        return token[2:-1]
    if "\\" not in token and quote not in token[1:-1]:
        return token[1:-1]

    def unescaped(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped is None:
            return match[0] if match[0][0] != quote else quote
        if len(escaped) > 1:
            code = int(escaped[1:], 16) if escaped[0] in "uU" else int(escaped, 8)
            if code > 0x10FFFF:
                raise Unreadable(f"There is no character {match[0]}")
            return chr(code)
        return _ESCAPES.get(escaped, escaped)

    text = _ESCAPED.sub(unescaped, token[1:-1])
    try:
        # Two halves of a character, each written as \\u, are one.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise Unreadable("It holds half of a character") from None


# Statements. Their words are read here, and the text between the words by an engine.

_STATEMENT = r"""(?xs)(?:\s|--[^\r\n]*|/\*.*?\*/)*+(?:
    (?P<string>{strings})
    |(?P<quoted>{quoted})
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?![\w.]))
    |(?P<word>\w+)
    |(?P<symbol><=>|<=|>=|<>|!=|==|\|\||::|->|[^'"`])
    |(?P<end>\Z))"""
_OF_SPARK = _STATEMENT.format(strings=f"[rR]?(?:{_STRING})", quoted=_QUOTED)
_OF_DUCKDB = _STATEMENT.format(
    strings=r"""[eE]'(?:[^'\\]|\\.|'')*+'|'(?:[^']|'')*+'|(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)""",
    quoted=rf"""{_QUOTED}|"(?:[^"]|"")++\"""",
)
_ONLY_SEMICOLONS = r"(?s)(?:[\s;]|--[^\r\n]*|/\*.*?\*/)*\Z"
_KINDS = ("string", "quoted", "number", "word", "symbol", "end")


class Token(NamedTuple):
    """A word or a sign of a statement."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The text in upper case if the token is a word or a sign, otherwise empty."""
        return self.text.upper() if self.kind in ("word", "symbol") else ""

    @property
    def name(self) -> str:
        """A name without its quotes."""
        quote = self.text[0] if self.kind == "quoted" else ""
        return self.text[1:-1].replace(quote * 2, quote) if quote else self.text


def statement_tokens(text: str, *, start: int = 0, of_duckdb: bool = False) -> list[Token]:
    """The tokens of a statement from a place on, without semicolons at its end.

    The last token is `end`. It is `broken` where a quote or a comment is not closed, and `next` before another
    statement.

    Args:
        of_duckdb: By DuckDB's rules for quotes. Otherwise by Spark's.
    """
    tokens: list[Token] = []
    match, position = re.compile(_OF_DUCKDB if of_duckdb else _OF_SPARK).match, start
    while not tokens or tokens[-1].kind not in ("end", "broken", "next"):
        part = match(text, position)
        if part is None or (part["symbol"] == "/" and text.startswith("/*", part.start("symbol"))):
            tokens.append(Token("broken", text[position : position + 40], position, len(text)))
            break
        kind = next(kind for kind in _KINDS if part[kind] is not None)
        token = Token(kind, part[kind], part.start(kind), part.end(kind))
        if token.text == ";" and kind == "symbol":
            is_last = re.compile(_ONLY_SEMICOLONS).match(text, token.end) is not None
            token = Token("end" if is_last else "next", "", token.start, token.start)
        tokens.append(token)
        position = token.end
    return tokens
