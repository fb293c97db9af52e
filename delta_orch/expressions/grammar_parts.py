"""What an expression of Spark SQL is made of: names, functions, types, paths, and what else begins with a word."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

from delta_orch.expressions.nodes import And, Call, Column, Expression, Literal, Not, Opaque, Operation, Or
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.expressions.tokens import Refused, Tokens, Unreadable, name_of, text_of
from delta_orch.expressions.tree import (
    MAX_DEPTH,
    MAX_OPERATIONS,
    MAX_WORDS,
    MAX_WORDS_WITH_CALLS,
    children_of,
    too_deep,
)
from delta_orch.protocol.types import BOOLEAN

_TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME"})
SUBQUERY = "a subquery"
JOIN_INSTEAD = (
    "Merge with what the subquery reads, each key once: table.merge(source, 't.id = s.id') and when_matched_delete() "
    "or when_matched_update(…); for NOT IN, when_not_matched_by_source_delete()"
)
_SUBQUERY = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_INTERVAL = r"(?i)INTERVAL\s*(?:['\"]|[-+]?\s*(?:\.?[0-9][0-9.]*|'[^']*'|\"[^\"]*\")\s*[A-Z])"
_INTERVAL_PART = r"(?i)[-+]?\s*(?:\.?[0-9][0-9.]*|'[^']*'|\"[^\"]*\")\s*([A-Z]+)"
UNITS = frozenset({
    "YEAR", "YEARS", "QUARTER", "QUARTERS", "MONTH", "MONTHS", "WEEK", "WEEKS", "DAY", "DAYS", "HOUR", "HOURS",
    "MINUTE", "MINUTES", "SECOND", "SECONDS", "MILLISECOND", "MILLISECONDS", "MICROSECOND", "MICROSECONDS",
    "NANOSECOND", "NANOSECONDS", "DAYOFYEAR",
})  # fmt: skip
_UNIT_FUNCTIONS = frozenset(
    {"date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff", "timediff"}
)
"""Functions that may have a unit of time as the first of three arguments."""
RESERVED = frozenset({
    "AND", "ANY", "AS", "BETWEEN", "CASE", "DISTINCT", "ELSE", "FROM", "GROUP", "HAVING", "ILIKE", "LATERAL", "LIKE",
    "NOT", "ON", "OR", "RLIKE", "SELECT", "THEN", "UNION", "WHEN", "WHERE", "WITH",
})  # fmt: skip
"""Words that do not name a column without backticks."""

TYPES = frozenset({
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT",
    "INT", "INTEGER", "INTERVAL", "LONG", "MAP", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT",
    "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT", "VOID",
})  # fmt: skip
CLOCKS = frozenset({"curdate", "current_date", "current_timestamp", "localtimestamp", "now", "unix_timestamp"})
"""Functions that tell the time where they have no argument."""
_FURTHER_TYPES = frozenset({"GEOGRAPHY", "GEOMETRY", "TIME"})

Span = tuple[int, int]


class Mention(NamedTuple):
    """A column where the text names it: its path, and where each part of that begins and ends."""

    start: int
    column: Column
    spans: list[Span]


class Parts(Tokens):
    """One text and what was found in it. The grammar of operators is left to `Reader`.

    Attributes:
        mentions: The columns that were named, in the order of the text.
        functions: The names of the functions that were called, in lower case, and with how many arguments.
        clocks: Those that tell the time, and where they begin and end.
        types: The words that name types.
        doubled: Strings in which quotes occur, and where they begin.
        has_calls: Whether there is a `Call` or an `Operation`.
        tests: Operands of AND and OR, those aside that become a list of values.
    """

    def __init__(self, source: str, *, bare_functions: Collection[str] = (), most: int = MAX_WORDS) -> None:
        """`bare_functions`: names in lower case that are those of functions, even without parentheses."""
        self._bare_functions = bare_functions
        self.depth = self.tests = 0
        self.mentions: list[Mention] = []
        self.functions: list[tuple[str, int]] = []
        self.clocks: list[tuple[str, int, int]] = []
        self.types: list[str] = []
        self.doubled: list[tuple[int, str]] = []
        self.has_calls = False
        super().__init__(source, most)

    def foreign(self, what: str) -> NoReturn:
        """What Spark SQL has, but not in a row's expression."""
        raise Refused(f"holds {what}", JOIN_INSTEAD) if what == SUBQUERY else Refused(f"holds {what}")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise too_deep()

    def operation(self, name: str, start: int, *arguments: Expression, detail: str = "") -> Operation:
        """What was read from `start` on. Raises InvalidExpressionError: There is too much of it, or it is too deep."""
        return Operation(name, arguments, detail, start=start, end=self.ended, depth=self._depth_over(arguments))

    def _depth_over(self, arguments: Sequence[Expression]) -> int:
        self.has_calls = True
        self.most = min(self.most, MAX_WORDS_WITH_CALLS)
        depth = 1 + max(map(_depth_of, arguments), default=0)
        if depth > MAX_OPERATIONS:
            raise too_deep()
        return depth

    def expression(self) -> Expression:
        """A condition or a value."""
        raise NotImplementedError

    def value(self) -> Expression:
        """A value: no condition with AND, OR, NOT, IS, IN, BETWEEN or LIKE."""
        raise NotImplementedError

    def at_subquery(self) -> bool:
        return self.word in _SUBQUERY and bool(
            self.match_here(r"(?i)(?:SELECT|WITH|FROM|VALUES|TABLE)\b\s*[^\s=<>!.,)\[+\-*/%|&^]|SELECT\s*\*\s*FROM\b")
        )

    # Names, and what begins with one

    def named(self) -> Expression:
        start, word = self.start, self.word
        match word:
            case "NULL":
                self.advance()
                return Literal(None)
            case "TRUE" | "FALSE":
                self.advance()
                return Literal(word == "TRUE", BOOLEAN)
            case "CASE":
                return self._case()
            case "INTERVAL" if self.match_here(_INTERVAL) is not None:
                return self._interval()
            case "EXISTS" if self.match_here(r"(?i)EXISTS\s*\(\s*(?:SELECT|WITH|FROM|VALUES|TABLE)\b"):
                self.foreign(SUBQUERY)
        path, spans = [name_of(self.advance())], [(start, self.ended)]
        if self.kind == "string" and word in _TYPED:
            self.has_calls = True
            text = Literal(self.string())
            return Operation(word, (text,), start=start, end=self.ended)
        if self.word == "." and self.text == ".":
            while self.take("."):
                if self.word == "*":
                    self.foreign("a select list")
                begin = self.start
                path.append(self.name())
                spans.append((begin, self.ended))
            if len(path) > MAX_OPERATIONS:
                raise too_deep()
        if self.word == "(":
            return self._call(path, start)
        if word in RESERVED:
            raise (
                Unreadable("An operand is missing") if word in ("AND", "OR") else Unreadable(f"{word!r} is unexpected")
            )
        if len(path) == 1 and word and path[0].lower() in self._bare_functions:
            self.has_calls = True
            return self._called(path[0].lower(), (), start)
        column = Column(tuple(path))
        self.mentions.append(Mention(start, column, spans))
        return column

    def name(self) -> str:
        if self.kind not in ("word", "quoted"):
            raise self.unexpected()
        return name_of(self.advance())

    def expressions(self, closing: str) -> list[Expression]:
        """Expressions with commas between, up to a sign that is passed."""
        values: list[Expression] = []
        if self.take(closing):
            return values
        while True:
            values.append(self.expression())
            if self.take(closing):
                return values
            self.expect(",")

    def _case(self) -> Expression:
        start = self.start
        self.most = min(self.most, MAX_WORDS_WITH_CALLS)
        self.advance()
        parts = [] if self.word == "WHEN" else [self.expression()]
        name = "CASE OF" if parts else "CASE"
        if self.word != "WHEN":
            raise self.unexpected()
        while self.take("WHEN"):
            parts.append(self.expression())
            self.expect("THEN")
            parts.append(self.expression())
        if self.take("ELSE"):
            parts.append(self.expression())
        self.expect("END")
        return self.operation(name, start, *parts)

    def _interval(self) -> Expression:
        start = self.start
        self.advance()
        texts: list[str] = []
        while not texts or ((found := self.match_here(_INTERVAL_PART)) is not None and found[1].upper() in UNITS):
            texts.append(self.advance() if self.word else "")
            if self.kind not in ("string", "number"):
                raise self.unexpected()
            texts[-1] += quote_string(self.string()) if self.kind == "string" else self.advance()
            if self.word not in UNITS:
                break
            texts.append(self.advance().upper())
            if self.take("TO"):
                texts.append(f"TO {self._one_of(UNITS)}")
                break
        return self.operation("INTERVAL", start, detail=" ".join(texts))

    def _one_of(self, words: Collection[str]) -> str:
        if self.word not in words:
            raise self.unexpected()
        return self.advance().upper()

    # Functions

    def _call(self, path: list[str], start: int) -> Expression:
        name = ".".join(path).lower()
        self.most = min(self.most, MAX_WORDS_WITH_CALLS)
        self.advance()
        if name in ("cast", "try_cast") and len(path) == 1:
            value = self.expression()
            self.expect("AS")
            detail = self.type_name()
            self.expect(")")
            return self.operation(name.upper(), start, value, detail=detail)
        self.enter()
        arguments, detail = self._arguments(name) if self.word != ")" else ([], "")
        self.depth -= 1
        self.expect(")")
        found = self._called(name, tuple(arguments), start, detail, self._depth_over(arguments))
        if self.word in ("FILTER", "WITHIN", "IGNORE", "RESPECT"):
            self.foreign("an aggregate function")
        if self.word == "OVER":
            self.foreign("a window function")
        return found

    def _called(
        self, name: str, arguments: tuple[Expression, ...], start: int, detail: str = "", depth: int = 1
    ) -> Call:
        self.functions.append((name, len(arguments)))
        if name in CLOCKS and not arguments:
            self.clocks.append((name, start, self.ended))
        return Call(name, arguments, detail, start=start, end=self.ended, depth=depth)

    def _arguments(self, name: str) -> tuple[list[Expression], str]:
        """The arguments up to the parenthesis, in the order in which the function takes them, and a word of theirs."""
        if name == "extract":
            field = self._one_of({self.word} - {""})
            self.expect("FROM")
            return [self.expression()], field
        detail = ""
        if name == "trim" and self.match_here(r"(?i)(?:BOTH|LEADING|TRAILING)\b\s*[^\s,).]"):
            detail = self.advance().upper()
            if self.take("FROM"):
                return [self.expression()], detail
        elif name in _UNIT_FUNCTIONS and self.word in UNITS and self.match_here(r"\w+\s*,") is not None:
            if (shifted := self._of_unit()) is not None:
                return shifted
        elif self.word in ("DISTINCT", "ALL") and self.match_here(r"\w+\s*[^\s,).=]") is not None:
            self.foreign("an aggregate function")
        arguments = [self.value() if name == "position" else self.argument()]
        words = {"trim": ("FROM",), "position": ("IN",), "substring": ("FROM", "FOR"), "substr": ("FROM", "FOR"),
                 "overlay": ("PLACING", "FROM", "FOR")}.get(name, ())  # fmt: skip
        for word in words:
            if self.take(word):
                arguments.append(self.expression())
        if name == "trim" and len(arguments) == 2 and self.word == ")":
            return [*reversed(arguments)], detail or "BOTH"
        while self.take(","):
            arguments.append(self.argument())
        return arguments, detail

    def _of_unit(self) -> tuple[list[Expression], str] | None:
        """A unit and two arguments. None, and nothing is passed: The unit's word is a column, one of two arguments."""
        place, mentions = self.start, len(self.mentions)
        unit = self.advance().upper()
        self.expect(",")
        arguments = [self.argument()]
        if self.take(","):
            return [*arguments, self.argument()], unit
        del self.mentions[mentions:]
        self.go_to(place)
        return None

    def argument(self) -> Expression:
        """One argument of a function: a lambda, a named one, or an expression."""
        start, mentions = self.start, len(self.mentions)
        found = self.expression()
        if self.word == "=>" and isinstance(found, Column):
            del self.mentions[mentions:]
            self.advance()
            return self.operation("=>", start, self.expression(), detail=found.path[0])
        if self.word == "->":
            parameters = found.arguments if isinstance(found, Operation) and found.name == "()" else (found,)
            names = {p.path[0].lower() for p in parameters if isinstance(p, Column) and len(p.path) == 1}
            if len(names) < len(parameters):
                raise self.unexpected()
            self.advance()
            body = self.expression()
            self.mentions[mentions:] = [
                mention for mention in self.mentions[mentions:] if mention.column.path[0].lower() not in names
            ]
            return self.operation("->", start, *parameters, body)
        if self.word == "AS":
            self.advance()
            return self.operation("AS", start, found, detail=self.name())
        return found

    # Types and paths

    def type_name(self) -> str:
        """A type, as it is printed."""
        self.enter()
        name = self.word
        if name not in TYPES and name not in _FURTHER_TYPES:
            raise self.unexpected()
        self.types.append(name)
        self.advance()
        if name in ("ARRAY", "MAP", "STRUCT") and self.take("<"):
            inner = [self._field_type() if name == "STRUCT" else self.type_name()]
            while self.take(","):
                inner.append(self._field_type() if name == "STRUCT" else self.type_name())
            if self.word in (">>", ">>>"):
                self.go_to(self.start + 1)
            else:
                self.expect(">")
            if len(inner) != {"ARRAY": 1, "MAP": 2}.get(name, len(inner)):
                raise Unreadable(f"{name} has another number of types")
            name = f"{name}<{', '.join(inner)}>"
        elif name == "INTERVAL":
            name = f"INTERVAL {self._one_of(UNITS)}"
            if self.take("TO"):
                name += f" TO {self._one_of(UNITS)}"
        elif self.take("("):
            numbers = [self._digits()]
            while self.take(","):
                numbers.append(self._digits())
            self.expect(")")
            name = f"{name}({','.join(numbers)})"
        self.depth -= 1
        return name

    def _field_type(self) -> str:
        name = self.name()
        self.take(":")
        return f"{quote_identifier(name)}: {self.type_name()}"

    def _digits(self) -> str:
        if self.kind != "number" or not self.text.isdigit():
            raise self.unexpected()
        return self.advance()

    def json_path(self) -> str:
        path = "" if self.word == "[" else quote_identifier(self.name())
        while True:
            if self.take("."):
                path += f".{quote_identifier(self.name())}"
            elif self.take("["):
                path += f"[{quote_string(self.string()) if self.kind == 'string' else self._digits()}]"
                self.expect("]")
            else:
                return path

    def opaque(self, start: int, end: int) -> Opaque:
        """A part of the text, with the columns that it mentions."""
        first = bisect_left(self.mentions, start, key=lambda mention: mention.start)
        last = bisect_left(self.mentions, end, key=lambda mention: mention.start)
        return Opaque(self.text_between(start, end), self.columns(first, last))

    def text_between(self, start: int, end: int) -> str:
        """A part of the text, in which a quote in a string is escaped: that two are one depends on Spark's release."""
        pieces = []
        for begin, token in self.doubled[bisect_left(self.doubled, (start, "")) : bisect_left(self.doubled, (end, ""))]:
            pieces += [self.source[start:begin], quote_string(text_of(token))]
            start = begin + len(token)
        return "".join([*pieces, self.source[start:end]])

    def string(self) -> str:
        """The value of the string that comes next, or of the raw one."""
        if self.kind == "string" and self.text[0] in self.text[1:-1]:
            self.doubled.append((self.start, self.text))
        return text_of(self.advance())

    def columns(self, first: int = 0, last: int | None = None) -> tuple[Column, ...]:
        """The columns that were named, each once."""
        return tuple(dict.fromkeys(mention.column for mention in self.mentions[first:last]))


def _depth_of(node: Expression) -> int:
    match node:
        case Call():
            return node.depth
        case And() | Or() | Not():
            return 1 + max(map(_depth_of, children_of(node)))
    return 1
