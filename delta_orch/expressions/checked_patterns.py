"""Regular expressions and LIKE patterns that a table's metadata may hold: those that an engine which backtracks, as
Spark does, answers quickly whatever the text is.

A repeat is refused where the same text can be divided among its rounds in many ways, as in `(a+)+`: time then doubles
with each character. A part that stands at the begin or the end of each round and nowhere else in it, as the comma in
`([a-z]+,)*`, fixes the rounds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.expressions.tokens import SIMPLER, Refused

MAX_SUBJECT = 1_000
"""How long a constant text may be that is matched."""
_MAX_WAYS = 10_000
_MAX_LOOPS = 4
_MAX_NESTING = 20
_MAX_LIKE_WILDCARDS = 8
_ENDLESS = 1 << 16

_PATTERN_ARGUMENTS = {
    "regexp": (1,), "regexp_count": (1,), "regexp_extract": (1,), "regexp_extract_all": (1,), "regexp_instr": (1,),
    "regexp_like": (1,), "regexp_replace": (1,), "regexp_substr": (1,), "rlike": (1,), "split": (1,),
    "str_to_map": (1, 2),
}  # fmt: skip

_CHARACTERS = "".join(map(chr, range(128))) + "ßéЖ漢\u2028"
_ALL = frozenset(_CHARACTERS)
_ATOM = re.compile(
    r"\\[pP](?:\{[^}]*\}|.)|\\x(?:[0-9a-fA-F]{2}|\{[0-9a-fA-F]+\})|\\u[0-9a-fA-F]{4}|\\c.|\\.|\[\^?\]?(?:\\.|[^\]\\\[])*\]|[^\\\[]",
    re.DOTALL,
)
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{1,6})(,?)(\d{0,6})\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:[ims]*:|[=!>]|<[=!]|<[A-Za-z]\w*>))?")
_FLAGS = re.compile(r"\(\?[ims]+\)")
_NO_WIDTH = re.compile(r"\\[bBAZzG]|[\^$]")


class _Part(NamedTuple):
    """What a part of a pattern can match.

    Attributes:
        characters: All that may occur in it.
        first: What it may begin with.
        ways: In how many ways it may match what begins at one place, at most.
        is_one: It is one character, always.
        is_optional: It may match nothing.
        is_exact: It matches a text whose end is given in one way only.
    """

    characters: frozenset[str]
    first: frozenset[str]
    ways: int = 1
    is_one: bool = False
    is_optional: bool = False
    is_exact: bool = True


def ensure_short_subject(size: int) -> None:
    """Raises Refused: The text that a pattern is matched with may be too long."""
    if size > MAX_SUBJECT:
        raise Refused(f"matches a pattern with a text that may be longer than {MAX_SUBJECT} characters", SIMPLER)


def patterns_of(function: str, arguments: Sequence[Expression]) -> list[Expression]:
    """Those arguments of a function that are regular expressions."""
    return [arguments[index] for index in _PATTERN_ARGUMENTS.get(function, ()) if index < len(arguments)]


def ensure_quick_pattern(node: Expression) -> None:
    """Check a regular expression. Raises Refused."""
    pattern = _constant(node)
    reader = _Reader(pattern)
    reader.alternatives()
    if reader.at < len(pattern):
        raise _unknown(pattern)


def ensure_quick_like(node: Expression) -> None:
    """Check a pattern of LIKE. Raises Refused."""
    if _constant(node).count("%") > _MAX_LIKE_WILDCARDS:
        raise Refused(f"has a LIKE pattern with more than {_MAX_LIKE_WILDCARDS} wildcards")


def _constant(node: Expression) -> str:
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        raise Refused("matches a pattern that is not a constant", "Write the pattern as one constant text")
    return node.value


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._nesting = 0
        self.at = 0

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def alternatives(self) -> _Part:
        branches = [self._sequence()]
        while self._pattern.startswith("|", self.at):
            self.at += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        first = reduce(frozenset.union, (branch.first for branch in branches))
        is_disjoint = sum(len(branch.first) for branch in branches) == len(first)
        is_optional = any(branch.is_optional for branch in branches)
        is_exact = is_disjoint and not is_optional and all(branch.is_exact for branch in branches)
        ways = (max if is_exact else sum)(branch.ways for branch in branches)
        is_one = all(branch.is_one for branch in branches)
        characters = reduce(frozenset.union, (branch.characters for branch in branches))
        return _Part(characters, first, min(ways, _ENDLESS), is_one, is_optional, is_exact)

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        loops: list[frozenset[str]] = []
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            if self._take(_NO_WIDTH) or self._take(_FLAGS):
                continue
            part = self._atom()
            least, most = _range(self._take(_QUANTIFIER))
            if most is None or most > _MAX_WAYS:
                loops.append(part.characters)
            parts.append(self._repeated(part, least, most))
        if sum(not loops[0].isdisjoint(loop) for loop in loops) > _MAX_LOOPS:
            raise Refused(f"has a regular expression with more than {_MAX_LOOPS} repeats of the same characters")
        characters: frozenset[str] = frozenset().union(*(part.characters for part in parts))
        first: frozenset[str] = frozenset()
        for part in parts:
            first |= part.first
            if not part.is_optional:
                break
        ways = reduce(lambda product, part: min(product * part.ways, _ENDLESS), parts, 1)
        is_exact = all(part.is_exact for part in parts) and sum(part.ways > 1 for part in parts) < 2
        for at in {0, len(parts) - 1} if parts and is_exact else ():
            others = [part.characters for index, part in enumerate(parts) if index != at]
            if parts[at].is_one and parts[at].characters.isdisjoint(frozenset().union(*others)):
                # Rounds begin or end where this character stands.
                ways = 1
        is_one = len(parts) == 1 and parts[0].is_one
        return _Part(characters, first, ways, is_one, all(part.is_optional for part in parts), is_exact)

    def _repeated(self, part: _Part, least: int, most: int | None) -> _Part:
        if (least, most) == (1, 1):
            return part
        rounds = _MAX_WAYS if most is None else most
        if rounds > 1 and part.ways > 1 and (rounds > 64 or part.ways**rounds > _MAX_WAYS):
            raise Refused(
                "has a regular expression that repeats a repeat: some texts take it for ever",
                "Write each repeat of a repeat with a separator, as in ([a-z]+,)*",
            )
        ways = part.ways ** min(rounds, 64)
        if most is None or most > least:
            ways *= _ENDLESS if most is None else most - least + 1
        is_exact = part.is_exact and part.ways == 1
        return _Part(part.characters, part.first, min(ways, _ENDLESS), False, least == 0 or part.is_optional, is_exact)

    def _atom(self) -> _Part:
        if self._pattern.startswith("(", self.at):
            if self._take(_GROUP) is None or self._pattern.startswith("?", self.at):
                raise _unknown(self._pattern)
            self._nesting += 1
            if self._nesting > _MAX_NESTING:
                raise _unknown(self._pattern)
            found = self.alternatives()
            self._nesting -= 1
            if not self._pattern.startswith(")", self.at):
                raise _unknown(self._pattern)
            self.at += 1
            return found
        atom = self._take(_ATOM)
        if atom is None or re.match(r"\\[1-9kQEXR]|[*+?]", atom[0]):
            raise _unknown(self._pattern)
        characters = _characters(atom[0])
        return _Part(characters, characters, is_one=True)


def _range(quantifier: re.Match[str] | None) -> tuple[int, int | None]:
    if quantifier is None:
        return 1, 1
    if quantifier[1]:
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[quantifier[1]]
    least = int(quantifier[2])
    return least, (int(quantifier[4]) if quantifier[4] else None) if quantifier[3] else least


def _characters(atom: str) -> frozenset[str]:
    """What an atom matches, whatever its case."""
    if atom.startswith(("\\p", "\\P")) or ("[" in atom[1:] or "&&" in atom or "\\p" in atom or "\\P" in atom):
        return _ALL
    try:
        matching = re.compile(atom, re.IGNORECASE | re.DOTALL)
    except re.error:
        return _ALL
    return frozenset(filter(matching.fullmatch, _CHARACTERS)) or _ALL


def _unknown(pattern: str) -> Refused:
    return Refused(
        f"has a regular expression whose time cannot be foreseen: {pattern[:60]!a}",
        "Write it without references, flags and nested quantifiers",
    )
