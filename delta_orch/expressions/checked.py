"""The gate for expressions from a table's metadata, and for those that a table is given: they are data, not code.

The text is read by a grammar that knows one scalar expression of Spark SQL and nothing else, over an allow-list of
functions. What comes out is printed anew from what was understood: quoted columns, constants, allowed functions and
operators, with parentheses around every operand that has an operator. Engines evaluate that text, never the original.

Of regular expressions and LIKE patterns those pass that an engine which backtracks, as Spark does, answers quickly
whatever the text is. A repeat is refused where the same text can be divided among its rounds in many ways, as in
`(a+)+`: time then doubles with each character. A part that stands at the begin or the end of each round and nowhere
else in it, as the comma in `([a-z]+,)*`, fixes the rounds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache, reduce
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
    known = {name.lower() for name in columns or ()}
    for path in checked.columns:
        if len(path) == 1 and path[0].lower() in WITHOUT_PARENTHESES and path[0].lower() not in known:
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
    found = reader.whole()
    for name in reader.types:
        if name not in TYPES:
            raise Unreadable(f"{name[:40]!a} is unexpected")
    _size(found, is_default)
    return CheckedExpression(to_checked_sql(found), tuple(column.path for column in reader.columns()))


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
        _ensure_operation(node, sizes)
    elif isinstance(node, Call):
        return _size_of_call(node, parts, sizes, is_default)
    return sum(sizes) or len(str(node))


def _ensure_operation(node: Operation, sizes: Sequence[int]) -> None:
    if node.name == "->":
        raise Refused("holds a lambda function")
    if node.name not in _OPERATIONS:
        raise Unreadable(f"{node.name!a} is unexpected")
    if "LIKE" in node.name:
        ensure_short_subject(sizes[0])
        ensure = ensure_quick_pattern if node.name.startswith("RLIKE") else ensure_quick_like
        for pattern in node.arguments[1:]:
            ensure(pattern)


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
    for pattern in patterns_of(name, parts):
        ensure_quick_pattern(pattern)
        ensure_short_subject(sizes[0])
    size = sizes[0] if name in PADDING_FUNCTIONS and sizes else grown_size(name, sizes)
    if size > MAX_LENGTH:
        raise Refused(f"calls {name} so that its value may be longer than {MAX_LENGTH} characters", SIMPLER)
    return size


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
