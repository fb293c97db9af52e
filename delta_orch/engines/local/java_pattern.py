r"""Regular expressions of Java for DuckDB's RE2: those for which both find the same in every text.

The pattern is read and printed anew. What the two read differently is spelled out (`.` and `\s`, case without regard to
Unicode) or refused: lookaround, references, possessive quantifiers, word boundaries, nested classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from delta_orch.engines.local.sql_types import unsupported

LINE_END = r"[\n\r\x{85}\x{2028}\x{2029}]"
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x{b}\f\r "}
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_MAX_REPEATS = 100


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A pattern for RE2.

    Attributes:
        groups: How many groups it has.
        is_nullable: It may match nothing at all.
        has_end: It has a `$`, which in Java also stands before a line's end that ends the text.
    """

    sql: str
    groups: int
    is_nullable: bool
    has_end: bool


def java_pattern(text: str) -> JavaPattern:
    """Raises UnsupportedExpressionError."""
    reader = _Reader(text)
    sql, is_nullable = reader.alternatives()
    if reader.rest:
        raise reader.refusal()
    return JavaPattern(sql, reader.groups, is_nullable, reader.has_end)


class _Reader:
    def __init__(self, text: str) -> None:
        self.source = text
        self.folds = text.startswith("(?i)")
        self.rest = text[4:] if self.folds else text
        self.groups = 0
        self.has_end = False
        self.depth = 0

    def refusal(self) -> Exception:
        return unsupported(f"the regular expression {self.source[:200]!r}")

    def take(self, count: int = 1) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        if len(taken) < count:
            raise self.refusal()
        return taken

    def alternatives(self) -> tuple[str, bool]:
        self.depth += 1
        if self.depth > 20:
            raise self.refusal()
        branches = [self.sequence()]
        while self.rest.startswith("|"):
            self.take()
            branches.append(self.sequence())
        self.depth -= 1
        return "|".join(sql for sql, _ in branches), any(nullable for _, nullable in branches)

    def sequence(self) -> tuple[str, bool]:
        parts, is_nullable = [], True
        while self.rest and self.rest[0] not in "|)":
            sql, nullable, repeats = self.atom()
            quantifier = re.match(r"[*+?]|\{(\d{1,3})(?:,(\d{0,3}))?\}", self.rest)
            if quantifier:
                # How often an empty match repeats, and what its groups hold then, is each engine's own.
                if nullable or not repeats or any(int(n) > _MAX_REPEATS for n in quantifier.groups() if n):
                    raise self.refusal()
                sql += self.take(quantifier.end())
                nullable = quantifier[0][0] in "*?" or quantifier[1] == "0"
                if self.rest.startswith("?"):
                    sql += self.take()
                if self.rest[:1] in ("+", "*", "?", "{"):
                    raise self.refusal()
            parts.append(sql)
            is_nullable = is_nullable and nullable
        return "".join(parts), is_nullable

    def atom(self) -> tuple[str, bool, bool]:
        """What comes next, whether it may be empty, and whether it may be repeated."""
        character = self.take()
        if character == "(":
            if self.rest.startswith("?:"):
                self.take(2)
                opening = "(?:"
            elif self.rest.startswith("?"):
                raise self.refusal()
            else:
                self.groups += 1
                opening = "("
            inner, nullable = self.alternatives()
            if self.take() != ")":
                raise self.refusal()
            return f"{opening}{inner})", nullable, "(" not in inner.replace("(?:", "")
        if character == "[":
            return self.character_class(), False, True
        if character == ".":
            return r"[^\n\r\x{85}\x{2028}\x{2029}]", False, True
        if character == "^":
            return "^", True, False
        if character == "$":
            self.has_end = True
            return r"\z", True, False
        if character == "\\":
            kind = self.take()
            if kind.lower() in _CLASSES:
                return f"[{'^' if kind.isupper() else ''}{_CLASSES[kind.lower()]}]", False, True
            return self.plain(self.escaped(kind)), False, True
        if character in "*+?{})]":
            raise self.refusal()
        return self.plain(character), False, True

    def escaped(self, kind: str) -> str:
        if kind in _ESCAPED:
            return _ESCAPED[kind]
        if kind.isalnum() or not kind.isascii():
            raise self.refusal()
        return kind

    def plain(self, character: str) -> str:
        if self.folds and character.isascii() and character.isalpha():
            return f"[{character.lower()}{character.upper()}]"
        return _printed(character)

    def character_class(self) -> str:
        parts = []
        negated = self.rest.startswith("^")
        if negated:
            self.take()
        if self.rest.startswith("]"):
            raise self.refusal()
        while not self.rest.startswith("]"):
            low = self.member()
            if len(low) > 1:
                parts.append(low)
                continue
            high = low
            if self.rest.startswith("-") and not self.rest.startswith("-]"):
                self.take()
                high = self.member()
                if len(high) > 1 or high < low:
                    raise self.refusal()
            parts.append(f"{_printed(low)}-{_printed(high)}")
            if self.folds:
                parts.append(self.other_case(low, high))
        self.take()
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def member(self) -> str:
        """One character, or the inside of a class such as `\\d`."""
        character = self.take()
        if character == "\\":
            kind = self.take()
            return _CLASSES[kind] if kind in _CLASSES else self.escaped(kind)
        if character in "[&^" or (character == "-" and not self.rest.startswith("]")):
            raise self.refusal()
        return character

    def other_case(self, low: str, high: str) -> str:
        if low.isascii() and high.isascii() and low.isalpha() and high.isalpha() and low.islower() == high.islower():
            return f"{low.swapcase()}-{high.swapcase()}"
        if any(c.isalpha() for c in map(chr, range(ord(low), min(ord(high), 127) + 1))):
            raise self.refusal()
        return ""


def _printed(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
