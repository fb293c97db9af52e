"""The grammar of Spark SQL's expressions: the one way in which text becomes nodes.

It binds as Spark's own grammar does. What the planner can reason about becomes a node of its own; all else becomes a
`Call` or an `Operation`, over which the text is read the same way by all who evaluate it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import islice

from delta_orch.expressions.grammar_parts import SUBQUERY, Mention, Parts
from delta_orch.expressions.nodes import (
    And,
    Call,
    Column,
    Comparison,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Or,
    StartsWith,
)
from delta_orch.expressions.spark_literals import decimal_type_of, like_prefix, quote_identifier
from delta_orch.expressions.tokens import Refused, Unreadable
from delta_orch.expressions.tree import (
    COMPARISONS,
    LEVELS,
    MAX_OPERATIONS,
    MAX_TERMS,
    children_of,
    conjunction,
    disjunction,
    too_long,
    too_many_terms,
)
from delta_orch.protocol.types import BOOLEAN

_LISTED_NUMBERS = r"\s*-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*+\s*\)"
_LISTED_STRINGS = r"\s*'[^'\\]*+'(?:\s*,\s*'[^'\\]*+')*+\s*\)"
_LISTED_VALUE = r"\s*(?:(-?[0-9]{1,18})|'([^'\\]*+)'|(?i:NULL))\s*,"
_COMPARED = r"((?:\w+|`[^`]*`)(?:\.(?:\w+|`[^`]*`))*\s*(?:<=>|[<>!=]?=|<>|[<>])\s*)(?:-?[0-9]{1,18}|'[^'\\]*')"
"""A column, a sign, and a plain constant."""
_POSTFIX = frozenset({".", "[", "::", ":", "COLLATE"})


class Reader(Parts):
    """Recursive descent over one text."""

    def whole(self) -> Expression:
        """The one expression that the text is."""
        if self.kind == "end":
            raise Refused("is empty")
        found = self.expression()
        if self.kind != "end":
            raise self.unexpected()
        return found

    # From loose to tight

    def expression(self) -> Expression:
        """A condition or a value."""
        self.enter()
        parts = self._chain("OR", self._conjunction)
        self.depth -= 1
        return disjunction(*parts) if len(parts) > 1 else parts[0]

    def _conjunction(self) -> Expression:
        parts = self._chain("AND", self._negation)
        return conjunction(*parts) if len(parts) > 1 else parts[0]

    def _chain(self, word: str, operand: Callable[[], Expression]) -> list[Expression]:
        """Operands with a word between them."""
        start = self.start
        parts = [operand()]
        while self.word == word:
            if len(parts) == 1:
                self._count_tests(word, parts)
            alike = self._alike(word, start, parts[-1])
            parts += alike
            self._count_tests(word, alike)
            if self.take(word):
                start = self.start
                parts.append(operand())
                self._count_tests(word, parts[-1:])
        return parts

    def _count_tests(self, word: str, alike: Sequence[Expression]) -> None:
        """Raises InvalidExpressionError: There are too many tests, those aside that become a list of values."""
        match alike:
            case [] | [And() | Or()]:
                return  # its own operands were counted
            case [Comparison("=" | "!=" as op, Column(), Literal()), *_] if (op == "=") == (word == "OR"):
                return
        self.tests += len(alike)
        if self.tests > MAX_TERMS:
            raise too_many_terms(self.tests, MAX_TERMS)

    def _alike(self, word: str, start: int, first: Expression) -> list[Expression]:
        """The next operands, where they differ from the one before in a plain constant only. Generated text has
        thousands of them, for which a token at a time is slow."""
        match first:
            case Comparison(op, Column() as column, Literal(int() | str())):
                head = re.fullmatch(_COMPARED, self.source[start : self.ended])
            case _:
                return []
        if head is None:
            return []
        # What comes behind an operand must not bind to its constant.
        behind = r"AND|OR" if word == "AND" else "OR"
        one = rf"\s+(?i:{word})\s+{re.escape(head[1])}(-?[0-9]{{1,18}}|'[^'\\]*+')(?=\s+(?i:{behind})\b|\s*\)|\s*\Z)"
        run = re.compile(rf"(?:{one})++").match(self.source, self.ended)
        if run is None:
            return []
        mention, found = self.mentions[-1], list[Expression]()
        # Too many are refused before all of them are made.
        most = None if op in ("=", "!=") else MAX_TERMS + 1
        for item in islice(re.compile(one).finditer(self.source, *run.span()), most):
            text = item[1]
            shift = item.start(1) - len(head[1]) - start
            self.mentions.append(
                Mention(mention.start + shift, column, [(begin + shift, end + shift) for begin, end in mention.spans])
            )
            found.append(Comparison(op, column, Literal(text[1:-1] if text[0] == "'" else int(text))))
        self.go_to(run.end())
        return found

    def _negation(self) -> Expression:
        before = self.depth
        while self.take("NOT", "!"):
            self.enter()
        found = self._predicate()
        for _ in range(self.depth - before):
            found = Not(found)
        self.depth = before
        return found

    def _predicate(self) -> Expression:
        start = self.start
        left = self.value()
        if self.kind != "word":
            return left
        if self.take("IS"):
            negated = self.take("NOT")
            if self.take("DISTINCT"):
                self.expect("FROM")
                return self._negated(not negated, self._comparison("<=>", left, self.value(), start), start)
            return self._negated(negated, self._test(left, start), start)
        negated = self.take("NOT")
        if self.take("IN"):
            return self._negated(negated, self._in(left, start), start)
        if self.take("BETWEEN"):
            low = self.value()
            self.expect("AND")
            return self._negated(negated, self._between(left, low, self.value(), start), start)
        if self.word in ("LIKE", "ILIKE", "RLIKE", "REGEXP"):
            return self._negated(negated, self._like(self.advance().upper(), left, start, negated), start)
        if negated:
            raise self.unexpected()
        return left

    def _negated(self, is_negated: bool, found: Expression, start: int) -> Expression:
        if not is_negated:
            return found
        return self.operation("NOT", start, found) if isinstance(found, Call) else Not(found)

    def _test(self, child: Expression, start: int) -> Expression:
        if self.word not in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
            raise self.unexpected()
        word = self.advance().upper()
        plain = _operand(child) or child
        if not _is_plain(plain):
            return self.operation("IS", start, child, detail="NULL" if word == "UNKNOWN" else word)
        if word in ("NULL", "UNKNOWN"):
            return IsNull(plain)
        if isinstance(plain, Literal):
            return self.operation("IS", start, child, detail=word)
        return Comparison("<=>", plain, Literal(word == "TRUE", BOOLEAN))

    def _comparison(self, op: str, left: Expression, right: Expression, start: int) -> Expression:
        plain: Expression | None = _operand(left)
        other = _operand(right)
        if plain is None and isinstance(other, Literal) and isinstance(other.value, bool) and _is_plain(left):
            plain = left  # (a < 5) <=> TRUE
        if plain is None or other is None:
            return self.operation(op, start, left, right)
        return Comparison(op, plain, other)

    def _between(self, child: Expression, low: Expression, high: Expression, start: int) -> Expression:
        plain = [_operand(part) for part in (child, low, high)]
        if None in plain:
            return self.operation("BETWEEN", start, child, low, high)
        bounds = [self._comparison(op, child, bound, start) for op, bound in ((">=", low), ("<=", high))]
        return conjunction(*(replace(b, fills=False) if isinstance(b, Comparison) else b for b in bounds))

    def _in(self, child: Expression, start: int) -> Expression:
        self.expect("(")
        plain = _operand(child)
        values: Sequence[Expression] | None = self._listed()
        if values is None:
            if self.at_subquery():
                self.foreign(SUBQUERY)
            values = self._list()
        if plain is None or not (isinstance(values, Constants) or all(isinstance(v, Literal) for v in values)):
            return self.operation("IN", start, child, *values)
        return In(plain, values)  # type: ignore[arg-type]

    def _list(self) -> tuple[Expression, ...]:
        """The values of a list, up to its parenthesis. Constants do not count among the words of the text."""
        values: list[Expression] = []
        if self.word == ")":
            raise Unreadable("A list is empty")
        plain = re.compile(_LISTED_VALUE).match
        while True:
            position = self.start
            while (found := plain(self.source, position)) is not None:
                number, text = found.groups()
                values.append(Literal(int(number) if number else text))
                position = found.end()
            if position > self.start:
                self.go_to(position)
            words = self.words
            value = self.expression()
            constant = _operand(value)
            if isinstance(constant, Literal):
                self.words, value = words, constant
            values.append(value)
            if self.take(")"):
                return tuple(values)
            self.expect(",")
            self.words = words

    def _listed(self) -> Constants | None:
        """The constants up to the parenthesis that closes a list, where all are plain numbers or plain strings."""
        if self.kind == "string":
            pattern = _LISTED_STRINGS
        elif self.kind == "number" or self.word == "-":
            pattern = _LISTED_NUMBERS
        else:
            return None
        match = self.match_here(pattern)
        if match is None:
            return None
        self.go_to(match.end())
        text = match[0][:-1]
        if pattern == _LISTED_NUMBERS:
            return Constants(list(map(int, text.split(","))))
        return Constants(text.split("'")[1::2])

    def _like(self, operator: str, left: Expression, start: int, is_negated: bool) -> Expression:
        operator = "RLIKE" if operator == "REGEXP" else operator
        if self.word in ("ANY", "SOME", "ALL"):
            # NOT LIKE ANY is true where any pattern does not match.
            which = "ALL" if (self.advance().upper() == "ALL") != is_negated else "ANY"
            self.expect("(")
            if self.at_subquery():
                self.foreign(SUBQUERY)
            return self.operation(f"{operator} {which}", start, left, *self.expressions(")"))
        pattern = self.value()
        escape = ""
        if operator in ("LIKE", "ILIKE") and self.take("ESCAPE"):
            escape = self.string() if self.kind == "string" else ""
            if len(escape) != 1:
                raise Unreadable("One character in quotes comes after ESCAPE")
        if operator == "LIKE" and isinstance(left, Column) and isinstance(pattern, Literal):
            prefix = like_prefix(pattern.value, escape or "\\") if isinstance(pattern.value, str) else None
            if prefix is not None:
                return StartsWith(left, prefix)
        return self.operation(operator, start, left, pattern, detail=escape)

    def value(self, least: int = 1) -> Expression:
        """A value, with the operators that bind at least so tight."""
        start = self.start
        left = self._unary()
        operators = 0
        while (level := LEVELS.get(self.word, 0)) >= least:
            operator = self.advance().upper()
            right = self.value(level + 1)
            if operator == "||":
                # A chain of texts is one operation, however long it is.
                texts = [left, right]
                while self.take("||"):
                    texts.append(self.value(level + 1))
                left = self.operation(operator, start, *texts)
                continue
            operators += 1
            if operators >= MAX_OPERATIONS:
                raise too_long(f"A chain of operators such as {operator} has {MAX_OPERATIONS} operands at most")
            if level == 1:
                left = self._comparison(COMPARISONS[operator], left, right, start)
            else:
                left = self.operation(operator, start, left, right)
        return left

    def _unary(self) -> Expression:
        signs: list[tuple[str, int]] = []
        while self.word in ("-", "+", "~") and self.word:
            signs.append((self.word, self.start))
            self.advance()
        if not signs:
            return self._primary()
        if signs[-1][0] == "-" and self.kind == "number":
            # The least long is one constant: its sign cannot be apart from its digits.
            found = self._postfix(self._number("-"), signs.pop()[1])
        else:
            found = self._primary()
        for sign, start in reversed(signs):
            found = self.operation(sign, start, found)
        return found

    def _number(self, sign: str = "") -> Literal:
        text = sign + self.advance()
        digits = text.removeprefix("-")
        if digits.isdigit() and len(digits) < 19:
            return Literal(int(text))
        if digits.replace(".", "", 1).isdigit() and "." in digits and len(digits) < 40:
            value = Decimal(text)
            return Literal(value, decimal_type_of(value))
        from delta_orch.expressions.constants import number_of

        return number_of(text)

    def _primary(self) -> Expression:
        start = self.start
        match self.kind:
            case "number":
                found: Expression = self._number()
            case "string" | "raw":
                texts = [self.string()]
                while self.kind in ("string", "raw"):
                    texts.append(self.string())
                found = Literal("".join(texts))
            case "word" | "quoted":
                found = self.named()
            case "hex":
                from delta_orch.expressions.constants import binary_of

                found = binary_of(self.advance()[2:-1])
            case _:
                found = self._enclosed()
        return self._postfix(found, start) if self.word in _POSTFIX else found

    def _enclosed(self) -> Expression:
        start = self.start
        if not self.take("("):
            if self.word in ("?", ":"):
                self.foreign("a parameter")
            if self.word == "*":
                self.foreign("a select list")
            raise Unreadable("An operand is missing") if self.kind == "end" or self.word == ")" else self.unexpected()
        if self.at_subquery():
            self.foreign(SUBQUERY)
        values = self.expressions(")")
        if not values:
            raise Unreadable("An operand is missing")
        return values[0] if len(values) == 1 else self.operation("()", start, *values)

    def _postfix(self, found: Expression, start: int) -> Expression:
        while self.word in _POSTFIX:
            match self.advance():
                case ".":
                    found = self.operation(".", start, found, detail=self.name())
                case "[":
                    index = self.value()
                    self.expect("]")
                    found = self.operation("[]", start, found, index)
                case "::":
                    found = self.operation("CAST", start, found, detail=self.type_name())
                case ":":
                    found = self.operation(":", start, found, detail=self.json_path())
                case _:
                    found = self.operation("COLLATE", start, found, detail=quote_identifier(self.name()))
        return found

    # What was read

    def predicate(self, found: Expression) -> Expression:
        """What was read, as the planner takes it: a part that has no node of its own becomes its text."""
        match found:
            case Call():
                return _operand(found) or self.opaque(found.start, found.end)
            case And(children):
                return conjunction(*map(self.predicate, children))
            case Or(children):
                return disjunction(*map(self.predicate, children))
            case Not(child):
                return Not(self.predicate(child))
        return found


def _is_plain(node: Expression) -> bool:
    match node:
        case And() | Or() | Not():
            return all(map(_is_plain, children_of(node)))
    return not isinstance(node, Call)


def _operand(node: Expression) -> Column | Literal | None:
    """A column or a constant that can be known here, None for all else."""
    if isinstance(node, Column | Literal):
        return node
    if isinstance(node, Call):
        from delta_orch.expressions.constants import constant_of

        return constant_of(node)
    return None
