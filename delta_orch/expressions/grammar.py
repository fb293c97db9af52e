"""The grammar of Spark SQL's expressions: the only parser from text to nodes.

It binds as Spark's own grammar does. Expressions that the planner can reason about become nodes of their own. All
others become a `Call` or an `Operation`, which every evaluator reads in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

from delta_orch.expressions.constants import binary_of, constant_of, number_of
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
    Opaque,
    Operation,
    Or,
    StartsWith,
)
from delta_orch.expressions.spark_literals import like_prefix, quote_identifier, quote_string
from delta_orch.expressions.tokens import Refused, Tokens, Unreadable, name_of, text_of
from delta_orch.expressions.tree import (
    COMPARISONS,
    LEVELS,
    MAX_DEPTH,
    MAX_OPERATIONS,
    MAX_TERMS,
    MAX_WORDS,
    MAX_WORDS_WITH_CALLS,
    children_of,
    conjunction,
    disjunction,
    too_deep,
    too_long,
    too_many_terms,
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
"""Words that name a column only in backticks."""

TYPES = frozenset({
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT",
    "INT", "INTEGER", "INTERVAL", "LONG", "MAP", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT",
    "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT", "VOID",
})  # fmt: skip
CLOCKS = frozenset({"curdate", "current_date", "current_timestamp", "localtimestamp", "now", "unix_timestamp"})
"""Functions that return the current time if they have no argument."""
_FURTHER_TYPES = frozenset({"GEOGRAPHY", "GEOMETRY", "TIME"})
_LISTED_NUMBERS = r"\s*-?[0-9]{1,18}(?:\s*,\s*-?[0-9]{1,18})*+\s*\)"
_LISTED_STRINGS = r"\s*'[^'\\]*+'(?:\s*,\s*'[^'\\]*+')*+\s*\)"
_POSTFIX = frozenset({".", "[", "::", ":", "COLLATE"})

Span = tuple[int, int]


class Mention(NamedTuple):
    """A column in the text: its path, and the begin and end of each part of the path."""

    start: int
    column: Column
    spans: list[Span]


class Reader(Tokens):
    """Recursive descent over one text: operators from loose to tight, then names, functions, types and paths.

    Attributes:
        mentions: The columns that were named, in the order of the text.
        functions: The names of the functions that were called, in lower case, and with how many arguments.
        clocks: The functions that return the current time, and where each begins and ends.
        types: The words that name types.
        doubled: Strings with doubled quotes in them, and where each begins.
        has_calls: Whether there is a `Call` or an `Operation`.
        tests: Operands of AND and OR, except those that become a list of values.
    """

    def __init__(self, source: str, *, bare_functions: Collection[str] = (), most: int = MAX_WORDS) -> None:
        """`bare_functions`: names in lower case that call functions even without parentheses."""
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
        """Syntax of Spark SQL that is not allowed in a row's expression."""
        raise Refused(f"holds {what}", JOIN_INSTEAD) if what == SUBQUERY else Refused(f"holds {what}")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise too_deep()

    def operation(self, name: str, start: int, *arguments: Expression, detail: str = "") -> Operation:
        """The operation whose text begins at `start` and ends here. Raises InvalidExpressionError: It is nested too
        deeply."""
        return Operation(name, arguments, detail, start=start, end=self.ended, depth=self._depth_over(arguments))

    def _depth_over(self, arguments: Sequence[Expression]) -> int:
        self.has_calls = True
        self.most = min(self.most, MAX_WORDS_WITH_CALLS)
        depth = 1 + max(map(_depth_of, arguments), default=0)
        if depth > MAX_OPERATIONS:
            raise too_deep()
        return depth

    def at_subquery(self) -> bool:
        return self.word in _SUBQUERY and bool(
            self.match_here(r"(?i)(?:SELECT|WITH|FROM|VALUES|TABLE)\b\s*[^\s=<>!.,)\[+\-*/%|&^]|SELECT\s*\*\s*FROM\b")
        )

    def whole(self) -> Expression:
        """The whole text as one expression."""
        if self.kind == "end":
            raise Refused("is empty")
        expression = self.expression()
        if self.kind != "end":
            raise self.unexpected()
        return expression

    # Operators, from loose to tight

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
        """Operands with `word` between them."""
        parts = [operand()]
        while self.take(word):
            if len(parts) == 1:
                self._count_tests(word, parts[0])
            parts.append(operand())
            self._count_tests(word, parts[-1])
        return parts

    def _count_tests(self, word: str, operand: Expression) -> None:
        """Raises InvalidExpressionError: There are too many tests. Those that become a list of values do not count."""
        match operand:
            case And() | Or():
                return  # its own operands were counted
            case Comparison("=" | "!=" as op, Column(), Literal()) if (op == "=") == (word == "OR"):
                return
        self.tests += 1
        if self.tests > MAX_TERMS:
            raise too_many_terms(self.tests, MAX_TERMS)

    def _negation(self) -> Expression:
        before = self.depth
        while self.take("NOT", "!"):
            self.enter()
        operand = self._predicate()
        for _ in range(self.depth - before):
            operand = Not(operand)
        self.depth = before
        return operand

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

    def _negated(self, is_negated: bool, operand: Expression, start: int) -> Expression:
        if not is_negated:
            return operand
        return self.operation("NOT", start, operand) if isinstance(operand, Call) else Not(operand)

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
        """The values of a list, up to its parenthesis. Constants do not count as words of the text."""
        values: list[Expression] = []
        if self.word == ")":
            raise Unreadable("A list is empty")
        words = self.words
        while True:
            value = self.expression()
            constant = _operand(value)
            if isinstance(constant, Literal):
                self.words, value = words, constant
            values.append(value)
            if self.take(")"):
                return tuple(values)
            self.expect(",")
            words = self.words

    def _listed(self) -> Constants | None:
        """The constants of a list. None unless all are plain numbers, or all are plain strings."""
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
        """A value with operators of at least this level of `LEVELS`, without AND, OR, NOT, IS, IN, BETWEEN and LIKE."""
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
            operand = self._postfix(self._number("-"), signs.pop()[1])
        else:
            operand = self._primary()
        for sign, start in reversed(signs):
            operand = self.operation(sign, start, operand)
        return operand

    def _number(self, sign: str = "") -> Literal:
        text = sign + self.advance()
        return Literal(int(text)) if text.isdigit() and len(text) < 19 else number_of(text)

    def _primary(self) -> Expression:
        start = self.start
        match self.kind:
            case "number":
                node: Expression = self._number()
            case "string" | "raw":
                texts = [self.string()]
                while self.kind in ("string", "raw"):
                    texts.append(self.string())
                node = Literal("".join(texts))
            case "word" | "quoted":
                node = self.named()
            case "hex":
                node = binary_of(self.advance()[2:-1])
            case _:
                node = self._enclosed()
        return self._postfix(node, start) if self.word in _POSTFIX else node

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

    def _postfix(self, node: Expression, start: int) -> Expression:
        while self.word in _POSTFIX:
            match self.advance():
                case ".":
                    node = self.operation(".", start, node, detail=self.name())
                case "[":
                    index = self.value()
                    self.expect("]")
                    node = self.operation("[]", start, node, index)
                case "::":
                    node = self.operation("CAST", start, node, detail=self.type_name())
                case ":":
                    node = self.operation(":", start, node, detail=self.json_path())
                case _:
                    node = self.operation("COLLATE", start, node, detail=quote_identifier(self.name()))
        return node

    # Names, and syntax that begins with a name

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
        """Expressions with commas between them, up to a closing sign, which is passed."""
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
        while not texts or ((part := self.match_here(_INTERVAL_PART)) is not None and part[1].upper() in UNITS):
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
        call = self._called(name, tuple(arguments), start, detail, self._depth_over(arguments))
        if self.word in ("FILTER", "WITHIN", "IGNORE", "RESPECT"):
            self.foreign("an aggregate function")
        if self.word == "OVER":
            self.foreign("a window function")
        return call

    def _called(
        self, name: str, arguments: tuple[Expression, ...], start: int, detail: str = "", depth: int = 1
    ) -> Call:
        self.functions.append((name, len(arguments)))
        if name in CLOCKS and not arguments:
            self.clocks.append((name, start, self.ended))
        return Call(name, arguments, detail, start=start, end=self.ended, depth=depth)

    def _arguments(self, name: str) -> tuple[list[Expression], str]:
        """The arguments of a function in its order, up to the parenthesis, and a word among them."""
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
        """A unit and two arguments. None if the unit's word is a column, the first of two arguments; then no token is
        passed."""
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
        argument = self.expression()
        if self.word == "=>" and isinstance(argument, Column):
            del self.mentions[mentions:]
            self.advance()
            return self.operation("=>", start, self.expression(), detail=argument.path[0])
        if self.word == "->":
            parameters = (
                argument.arguments if isinstance(argument, Operation) and argument.name == "()" else (argument,)
            )
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
            return self.operation("AS", start, argument, detail=self.name())
        return argument

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
        """A part of the text as a node, with the columns that it names."""
        first = bisect_left(self.mentions, start, key=lambda mention: mention.start)
        last = bisect_left(self.mentions, end, key=lambda mention: mention.start)
        return Opaque(self.text_between(start, end), self.columns(first, last))

    def text_between(self, start: int, end: int) -> str:
        """A part of the text. Doubled quotes in strings are escaped: their meaning depends on Spark's release."""
        pieces = []
        for begin, token in self.doubled[bisect_left(self.doubled, (start, "")) : bisect_left(self.doubled, (end, ""))]:
            pieces += [self.source[start:begin], quote_string(text_of(token))]
            start = begin + len(token)
        return "".join([*pieces, self.source[start:end]])

    def string(self) -> str:
        """The value of the next string, which may be raw."""
        if self.kind == "string" and self.text[0] in self.text[1:-1]:
            self.doubled.append((self.start, self.text))
        return text_of(self.advance())

    def columns(self, first: int = 0, last: int | None = None) -> tuple[Column, ...]:
        """The columns that the text names, each once."""
        return tuple(dict.fromkeys(mention.column for mention in self.mentions[first:last]))

    # Results

    def predicate(self, node: Expression) -> Expression:
        """The parsed expression for the planner. A part without a node of its own becomes its text."""
        match node:
            case Call():
                return _operand(node) or self.opaque(node.start, node.end)
            case And(children):
                return conjunction(*map(self.predicate, children))
            case Or(children):
                return disjunction(*map(self.predicate, children))
            case Not(child):
                return Not(self.predicate(child))
        return node


def _depth_of(node: Expression) -> int:
    match node:
        case Call():
            return node.depth
        case And() | Or() | Not():
            return 1 + max(map(_depth_of, children_of(node)))
    return 1


def _is_plain(node: Expression) -> bool:
    match node:
        case And() | Or() | Not():
            return all(map(_is_plain, children_of(node)))
    return not isinstance(node, Call)


def _operand(node: Expression) -> Column | Literal | None:
    """A column, or a constant that can be computed here. None for any other node."""
    if isinstance(node, Column | Literal):
        return node
    if isinstance(node, Call):
        return constant_of(node)
    return None
