"""Spark SQL's words and signs, one after the other. Comments are left out."""

from __future__ import annotations

import re

from delta_orch.expressions.tree import MAX_WORDS, too_long

_TOKEN = r"""(?xs)(?:[ \t\r\n]|--(?:\\\n|[^\r\n])*+|/\*(?!\+).*?\*/)*+(?:
    (?P<word>(?![rRxX]['"])[^\W\d]\w*)
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:BD|bd|[LlSsYyDdFf])?)(?![\w.])
    |(?P<string>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    |(?P<symbol><=>|<=|>=|<>|!=|==|\|\||::|->|=>|<<|>>>?|[=<>!(),.\[\]+\-*/%&|^~:?;])
    |(?P<quoted>`(?:[^`]|``)++`)
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<hex>[xX](?:'[0-9A-Fa-f]*'|"[0-9A-Fa-f]*"))
    |(?P<end>\Z))"""
_ESCAPED = re.compile(r"""(?s)\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)|''|\"\"""")
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

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


class Unreadable(Refused):
    """The text is not one expression. `why` is a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(f"is not one expression: {why[:1].lower()}{why[1:]}")
        self.why = why


class Tokens:
    """A text, token by token, as far as it was asked for.

    Attributes:
        kind: Of the token that comes next: `word`, `quoted`, `string`, `raw`, `hex`, `number`, `symbol` or `end`.
        text: That token as it is written.
        word: A word in upper case, a sign as it is; empty for all else.
        start: Where it begins.
        ended: Where the token before it ends.
        words: How many tokens there were.
        most: How many there may be.
    """

    def __init__(self, source: str, most: int = MAX_WORDS) -> None:
        try:
            source.encode()
        except UnicodeEncodeError:
            raise Unreadable("It is not valid Unicode") from None
        self.source = source
        self.most = most
        self._match = re.compile(_TOKEN).match  # compiled at the first use, then known to `re`
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
        """Go on with the token that begins there."""
        self._position = position
        self.advance()

    def match_here(self, pattern: str) -> re.Match[str] | None:
        """What the text matches from the next token on. It is not passed."""
        return re.compile(pattern).match(self.source, self.start)

    def take(self, *words: str) -> bool:
        """Pass a word or a sign, where one of these comes next."""
        if self.word in words:
            self.advance()
            return True
        return False

    def expect(self, word: str) -> None:
        if self.word != word:
            raise self.unexpected()
        self.advance()

    def unexpected(self) -> Unreadable:
        """What stands here does not belong to one expression."""
        if self.kind == "end":
            return Unreadable("It ends too early")
        return Unreadable(f"{self.text[:40]!a} is unexpected")


def name_of(token: str) -> str:
    """A name, without the backticks that it may have."""
    return token[1:-1].replace("``", "`") if token[0] == "`" else token


def text_of(token: str) -> str:
    """The value of a string, or of a raw one. Raises Unreadable: It is not valid Unicode."""
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

    found = _ESCAPED.sub(unescaped, token[1:-1])
    try:
        # Two halves of a character, each written as \\u, are one.
        return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise Unreadable("It holds half of a character") from None
