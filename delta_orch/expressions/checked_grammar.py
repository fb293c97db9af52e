"""The grammar of one scalar expression of Spark SQL, which prints what it reads; see `checked`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from delta_orch.expressions.allowed_functions import (
    ALLOWED_FUNCTIONS,
    BOUNDED_FUNCTIONS,
    CLOCK_FUNCTIONS,
    EXTRACTED,
    MAX_LENGTH,
    PADDING_FUNCTIONS,
    RESERVED,
    TYPES,
    UNIT_FUNCTIONS,
    UNITS,
    WITHOUT_PARENTHESES,
    grown_size,
    not_allowed,
)
from delta_orch.expressions.checked_patterns import (
    ensure_quick_like,
    ensure_quick_pattern,
    ensure_short_subject,
    patterns_of,
)
from delta_orch.expressions.checked_tokens import SIMPLER, Refused, is_number_up_to, quoted_string, tokens_of
from delta_orch.expressions.spark_literals import quote_identifier

MAX_NESTING = 40
"""Parentheses, arguments and branches within each other."""
MAX_DEPTH = 100
"""Operations within each other, where a chain such as `a + b + c` counts one for each operator."""

_COMPARISONS = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"})
# From loose to tight, as in Spark's grammar.
_BINARY = (
    _COMPARISONS, frozenset({"|"}), frozenset({"^"}), frozenset({"&"}), frozenset({"+", "-", "||"}),
    frozenset({"*", "/", "%", "DIV"}),
)  # fmt: skip
_CHAINS = ({"+", "-"}, {"*", "/", "%"}, {"||"}, {"&"}, {"|"}, {"^"})
_PRIMARY, _NEGATIVE, _OPERATION = "primary", "negative", "operation"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part that was understood, printed. `chain` is the operator of an operation, or `_PRIMARY`, `_NEGATIVE`. `size`
    bounds how many characters its value has, where a column's value counts as one."""

    sql: str
    chain: str = _PRIMARY
    depth: int = 1
    path: tuple[str, ...] | None = None
    size: int = 1

    def operand(self, *chains: str) -> str:
        return self.sql if self.chain in (_PRIMARY, _NEGATIVE, *chains) else f"({self.sql})"

    def primary(self) -> str:
        return self.sql if self.chain == _PRIMARY else f"({self.sql})"


def _made(sql: str, *parts: _Piece, chain: str = _PRIMARY, size: int | None = None) -> _Piece:
    depth = 1 + max((part.depth for part in parts), default=0)
    if depth > MAX_DEPTH:
        raise Refused("is nested too deeply", SIMPLER)
    if size is None:
        size = sum(part.size for part in parts) if parts else len(sql)
    return _Piece(sql, chain, depth, size=size)


class Reader:
    """Recursive descent that prints what it reads. `kind`, `text` and `word` (in upper case, empty for all but words)
    describe the next token."""

    def __init__(self, source: str, is_default: bool) -> None:
        self._tokens = tokens_of(source)
        self._is_default = is_default
        self._index = -1
        self._depth = 0
        self.columns: list[tuple[str, ...]] = []
        self.kind = self.text = self.word = ""
        self._advance()

    def _advance(self) -> str:
        before = self.text
        self._index += 1
        self.kind, self.text = self._tokens[min(self._index, len(self._tokens) - 1)]
        self.word = self.text.upper() if self.kind == "word" else ""
        return before

    def _ahead(self, distance: int = 1) -> tuple[str, str]:
        return self._tokens[min(self._index + distance, len(self._tokens) - 1)]

    def _is(self, *texts: str) -> bool:
        return self.kind in ("word", "symbol") and (self.word or self.text) in texts

    def _take(self, *texts: str) -> bool:
        if self._is(*texts):
            self._advance()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self.unexpected()

    def unexpected(self) -> Refused:
        """What stands here does not belong to one expression."""
        if self.kind == "end":
            return Refused("is empty" if self._index == 0 else "is not one expression: it ends too early")
        if self.word in ("SELECT", "WITH", "VALUES", "TABLE"):
            return Refused("holds a subquery")
        if self.word in ("OVER", "FILTER"):
            return Refused("holds a window or an aggregate function")
        return Refused(f"is not one expression: {self.text[:40]!a} is unexpected")

    # From loose to tight

    def expression(self) -> _Piece:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise Refused("is nested too deeply", SIMPLER)
        found = self._chain("OR", self._conjunction())
        self._depth -= 1
        return found

    def _conjunction(self) -> _Piece:
        return self._chain("AND", self._negation())

    def _chain(self, operator: str, first: _Piece) -> _Piece:
        parts = [first]
        while self._take(operator):
            parts.append(self._conjunction() if operator == "OR" else self._negation())
        if len(parts) == 1:
            return first
        return _made(f" {operator} ".join(part.operand() for part in parts), *parts, chain=operator)

    def _negation(self) -> _Piece:
        negations = 0
        while self._take("NOT", "!"):
            negations += 1
        found = self._predicate()
        for _ in range(negations):
            found = _made(f"NOT {found.operand()}", found, chain=_OPERATION)
        return found

    def _predicate(self) -> _Piece:
        left = self._binary(0)
        if self._take("IS"):
            negation = " NOT" if self._take("NOT") else ""
            if self._take("DISTINCT"):
                self._expect("FROM")
                right = self._binary(0)
                sql = f"{left.operand()} IS{negation} DISTINCT FROM {right.operand()}"
                return _made(sql, left, right, chain=_OPERATION)
            if not self._is("NULL", "TRUE", "FALSE", "UNKNOWN"):
                raise self.unexpected()
            return _made(f"{left.operand()} IS{negation} {self._advance().upper()}", left, chain=_OPERATION)
        negation = " NOT" if self._take("NOT") else ""
        if self._take("IN"):
            self._expect("(")
            values = self._listed(")")
            if not values:
                raise Refused("is not one expression: a list is empty")
            sql = f"{left.operand()}{negation} IN ({', '.join(v.sql for v in values)})"
            return _made(sql, left, *values, chain=_OPERATION)
        if self._take("BETWEEN"):
            low = self._binary(0)
            self._expect("AND")
            high = self._binary(0)
            sql = f"{left.operand()}{negation} BETWEEN {low.operand()} AND {high.operand()}"
            return _made(sql, left, low, high, chain=_OPERATION)
        if self._is("LIKE", "ILIKE", "RLIKE", "REGEXP"):
            return self._like(left, negation, self._advance().upper())
        if negation:
            raise self.unexpected()
        return left

    def _like(self, left: _Piece, negation: str, operator: str) -> _Piece:
        ensure = ensure_quick_like if operator in ("LIKE", "ILIKE") else ensure_quick_pattern
        ensure_short_subject(left.size)
        if self._is("ANY", "SOME", "ALL"):
            which = self._advance().upper()
            self._expect("(")
            values = self._listed(")")
            for value in values:
                ensure(value.sql)
            sql = f"{left.operand()}{negation} {operator} {which} ({', '.join(v.sql for v in values)})"
            return _made(sql, left, *values, chain=_OPERATION)
        pattern = self._binary(0)
        ensure(pattern.sql)
        sql = f"{left.operand()}{negation} {operator} {pattern.operand()}"
        if self._take("ESCAPE"):
            if self.kind != "string":
                raise self.unexpected()
            sql += f" ESCAPE {quoted_string(self._advance())}"
        return _made(sql, left, pattern, chain=_OPERATION)

    def _binary(self, level: int) -> _Piece:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while (self.kind == "symbol" or self.word == "DIV") and (self.word or self.text) in _BINARY[level]:
            operator = self.word or self.text
            self._advance()
            right = self._binary(level + 1)
            alike = next((chain for chain in _CHAINS if operator in chain), ())
            left = _made(f"{left.operand(*alike)} {operator} {right.operand()}", left, right, chain=operator)
        return left

    def _unary(self) -> _Piece:
        signs = []
        while self._is("-", "+", "~"):
            signs.append(self._advance())
        if signs and signs[-1] == "-" and self.kind == "number":
            # The least long is one constant: its sign cannot be apart from its digits.
            signs.pop()
            found = self._postfix(_made(f"-{self._advance()}", chain=_NEGATIVE))
        else:
            found = self._postfix(self._primary())
        for sign in reversed(signs):
            found = _made(f"{sign}{found.primary()}", found, chain=_OPERATION)
        return found

    def _postfix(self, found: _Piece) -> _Piece:
        while True:
            if self._take("."):
                name = self._name()
                if self._is("("):
                    raise not_allowed(".".join((*(found.path or ()), name)))
                if found.path is not None:
                    if len(found.path) == MAX_NESTING:
                        raise Refused("is nested too deeply", SIMPLER)
                    self.columns[-1] = path = (*found.path, name)
                    found = _Piece(f"{found.sql}.{quote_identifier(name)}", path=path)
                else:
                    found = _made(f"{found.primary()}.{quote_identifier(name)}", found)
            elif self._take("["):
                index = self.expression()
                self._expect("]")
                found = _made(f"{found.primary()}[{index.sql}]", found, index)
            elif self._take("::"):
                found = _made(f"CAST({found.sql} AS {self._type()})", found)
            elif self._take(":"):
                found = _made(f"{found.primary()}:{self._json_path()}", found)
            else:
                return found

    # What has no operator

    def _primary(self) -> _Piece:
        match self.kind:
            case "string":
                texts = [quoted_string(self._advance())]
                while self.kind == "string":
                    texts.append(quoted_string(self._advance()))
                return _made(" ".join(texts), size=sum(len(text) - 2 for text in texts))
            case "raw":
                return _made(quoted_string(self._advance()))
            case "hex" | "number":
                return _made(self._advance())
            case "word" | "quoted":
                return self._named()
        if not self._take("("):
            raise self.unexpected()
        values = self._listed(")")
        if len(values) > 1:
            return _made(f"({', '.join(value.sql for value in values)})", *values)
        if not values:
            raise self.unexpected()
        return values[0]

    def _named(self) -> _Piece:
        following, ahead = self._ahead()
        match self.word:
            case "NULL" | "TRUE" | "FALSE":
                return _made(self._advance().upper())
            case "CASE":
                return self._case()
            case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ" if following == "string":
                return _made(f"{self._advance().upper()} {quoted_string(self._advance())}")
            case "INTERVAL" if following in ("string", "number"):
                return self._interval()
            case "INTERVAL" if ahead in ("-", "+") and self._ahead(3)[1].lower() in UNITS:
                return self._interval()
        if (following, ahead) == ("symbol", "("):
            return self._call()
        if self.word.lower() in RESERVED:
            raise self.unexpected()
        if self._is_default and self.word.lower() in CLOCK_FUNCTIONS & WITHOUT_PARENTHESES:
            return _made(f"{self._advance().lower()}()")
        name = self._name()
        self.columns.append((name,))
        return _Piece(quote_identifier(name), path=(name,))

    def _name(self) -> str:
        if self.kind == "quoted":
            return self._advance()[1:-1].replace("``", "`")
        if self.kind != "word":
            raise self.unexpected()
        return self._advance()

    def _case(self) -> _Piece:
        self._advance()
        parts: list[_Piece] = []

        def part() -> str:
            parts.append(self.expression())
            return parts[-1].sql

        sql = "CASE" if self._is("WHEN") else f"CASE {part()}"
        if not self._is("WHEN"):
            raise self.unexpected()
        while self._take("WHEN"):
            condition = part()
            self._expect("THEN")
            sql += f" WHEN {condition} THEN {part()}"
        if self._take("ELSE"):
            sql += f" ELSE {part()}"
        self._expect("END")
        return _made(f"{sql} END", *parts)

    def _interval(self) -> _Piece:
        self._advance()
        sql = "INTERVAL"
        while self.kind in ("string", "number") or self._is("-", "+"):
            sign = self._advance() if self.kind == "symbol" else ""
            if self.kind not in ("string", "number"):
                raise self.unexpected()
            sql += f" {sign}{quoted_string(self._advance()) if self.kind == 'string' else self._advance()}"
            if self.word.lower() not in UNITS:
                break
            sql += f" {self._advance().upper()}"
            if self._take("TO"):
                sql += f" TO {self._one_of(UNITS)}"
                break
        return _made(sql)

    def _one_of(self, words: Collection[str]) -> str:
        if self.word.lower() not in words:
            raise self.unexpected()
        return self._advance().upper()

    def _listed(self, closing: str) -> list[_Piece]:
        values: list[_Piece] = []
        if self._take(closing):
            return values
        while True:
            values.append(self.expression())
            if self._take(closing):
                return values
            self._expect(",")

    # Functions

    def _call(self) -> _Piece:
        name = self._name().lower()
        self._advance()
        if name in ("cast", "try_cast"):
            value = self.expression()
            self._expect("AS")
            found = _made(f"{name.upper()}({value.sql} AS {self._type()})", value)
            self._expect(")")
            return found
        if name == "exists" and self._is("SELECT", "WITH", "VALUES", "TABLE", "FROM"):
            raise Refused("holds a subquery")
        is_clock = name in CLOCK_FUNCTIONS or (name == "unix_timestamp" and self._is(")"))
        if name not in ALLOWED_FUNCTIONS and not is_clock:
            raise not_allowed(name)
        if is_clock and not self._is_default:
            raise not_allowed(name if name in CLOCK_FUNCTIONS else "unix_timestamp without an argument", is_clock=True)
        parts: list[_Piece] = []
        sql = f"{name}({self._arguments(name, parts)})"
        self._expect(")")
        if self._is("OVER", "FILTER"):
            raise self.unexpected()
        if name in BOUNDED_FUNCTIONS and len(parts) > 1 - (name in PADDING_FUNCTIONS):
            most = BOUNDED_FUNCTIONS[name]
            is_format = name == "format_number" and len(parts) > 1 and parts[1].sql[0] == "'"
            if len(parts) < 2 or not (is_format or is_number_up_to(parts[1].sql, most)):
                raise Refused(f"calls {name} with a length or a scale that is not a constant of at most {most}")
        for pattern in patterns_of(name, [part.sql for part in parts]):
            ensure_quick_pattern(pattern)
            ensure_short_subject(parts[0].size)
        size = grown_size(name, [part.size for part in parts])
        if name in PADDING_FUNCTIONS:
            size = max(int(parts[1].sql), 1)
        if size > MAX_LENGTH:
            raise Refused(f"calls {name} so that its value may be longer than {MAX_LENGTH} characters", SIMPLER)
        return _made(sql, *parts, size=size)

    def _arguments(self, name: str, parts: list[_Piece]) -> str:
        """The arguments, printed; the parentheses stand outside."""

        def part() -> str:
            parts.append(self.expression())
            return parts[-1].sql

        def operand() -> str:
            parts.append(self._binary(0))
            return parts[-1].operand()

        if self._is(")"):
            return ""
        if name == "extract":
            field = self._one_of(EXTRACTED)
            self._expect("FROM")
            return f"{field} FROM {part()}"
        sql = ""
        if name == "trim" and self._is("BOTH", "LEADING", "TRAILING") and self._ahead()[1] not in (",", ")", "."):
            sql = f"{self._advance().upper()} "
            if self._take("FROM"):
                return f"{sql}FROM {part()}"
        if name in UNIT_FUNCTIONS and self.word.lower() in UNITS and self._ahead()[1] == "," and self._has_third():
            sql = self._advance().upper()
        else:
            sql += operand() if name == "position" else part()
        if name == "struct" and self._take("AS"):
            sql += f" AS {quote_identifier(self._name())}"
        if name == "position" and self._take("IN"):
            return f"{sql} IN {part()}"
        if name == "overlay" and self._take("PLACING"):
            sql += f" PLACING {part()}"
        if name in ("trim", "substring", "substr", "overlay") and self._take("FROM"):
            sql += f" FROM {part()}"
            return f"{sql} FOR {part()}" if name != "trim" and self._take("FOR") else sql
        while self._take(","):
            sql += f", {part()}"
            if name == "struct" and self._take("AS"):
                sql += f" AS {quote_identifier(self._name())}"
        return sql

    def _has_third(self) -> bool:
        """Whether two commas stand before the parenthesis that closes this call."""
        nesting = commas = 0
        for kind, text in self._tokens[self._index :]:
            if kind == "symbol" and text in "()[]":
                nesting += 1 if text in "([" else -1
                if nesting < 0:
                    break
            commas += kind == "symbol" and text == "," and nesting == 0
        return commas == 2

    # Types and paths

    def _type(self) -> str:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise Refused("is nested too deeply", SIMPLER)
        name = self.word
        if name in ("ARRAY", "MAP", "STRUCT") and self._ahead()[1] == "<":
            self._advance()
            self._advance()
            inner = [self._field_type() if name == "STRUCT" else self._type()]
            while self._take(","):
                inner.append(self._field_type() if name == "STRUCT" else self._type())
            self._expect(">")
            if len(inner) != {"ARRAY": 1, "MAP": 2}.get(name, len(inner)):
                raise self.unexpected()
            sql = f"{name}<{', '.join(inner)}>"
        elif name == "INTERVAL":
            self._advance()
            sql = f"INTERVAL {self._one_of(UNITS)}"
            if self._take("TO"):
                sql += f" TO {self._one_of(UNITS)}"
        else:
            sql = self._one_of(TYPES)
            if name in ("DECIMAL", "DEC", "NUMERIC", "CHAR", "CHARACTER", "VARCHAR") and self._take("("):
                numbers = [self._digits()]
                while self._take(","):
                    numbers.append(self._digits())
                self._expect(")")
                sql += f"({', '.join(numbers)})"
        self._depth -= 1
        return sql

    def _field_type(self) -> str:
        name = self._name()
        self._take(":")
        return f"{quote_identifier(name)}: {self._type()}"

    def _digits(self) -> str:
        if self.kind != "number" or not self.text.isdigit():
            raise self.unexpected()
        return self._advance()

    def _json_path(self) -> str:
        sql = "" if self._is("[") else quote_identifier(self._name())
        while True:
            if self._take("."):
                sql += f".{quote_identifier(self._name())}"
            elif self._take("["):
                sql += f"[{quoted_string(self._advance()) if self.kind == 'string' else self._digits()}]"
                self._expect("]")
            else:
                return sql
