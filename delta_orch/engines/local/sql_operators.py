"""The translator: expressions of Spark SQL in DuckDB's SQL, typed, from an allow-list of operators and functions.

Everything here is proven equal by differential tests against Spark (tests/property). Functions that are not listed are
refused, because transpiled text may mean something else. Sessions run in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from delta_orch.engines.local.sql_functions import concatenated, named, shifted, struct
from delta_orch.engines.local.sql_types import (
    Typed,
    arithmetic_type,
    as_boolean,
    as_text,
    cast,
    cast_target,
    choose,
    common_type,
    common_type_of,
    decimal_operand,
    ensure_computable,
    error,
    is_atomic,
    is_number,
    literal_value,
    null_of,
    sign_changed,
    struct_field,
    struct_of,
    unsupported,
    widen,
)
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.clock import time_told
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.fit_comparison import fit_comparison, literal_type
from delta_orch.expressions.grammar import CLOCKS
from delta_orch.expressions.nodes import (
    And,
    Call,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    MakeStruct,
    Not,
    Opaque,
    Operation,
    Or,
    StartsWith,
)
from delta_orch.expressions.parse import syntax_of
from delta_orch.expressions.resolve import fit_in
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import (
    LONG_LIST,
    chain,
    duckdb_type,
    may_raise,
    print_duckdb,
    quote_duckdb_string,
    to_checked_sql,
    to_spark_sql,
)
from delta_orch.expressions.tree import COMPARISONS, columns_of, is_opaque, too_deep
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
    has_equality,
)

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DAYS = (PrimitiveType("byte"), PrimitiveType("short"), INTEGER)
_MAX_CHARACTERS = 4_000_000
_TIMES_LISTED = 4
"""How often the rules around a long list may repeat its text, in addition to `_MAX_CHARACTERS`."""


class Columns(Protocol):
    """The columns that an expression may name."""

    def find(self, path: tuple[str, ...]) -> Typed:
        """The column of that name. Raises ColumnNotFoundError, InvalidExpressionError if it is ambiguous."""


class Scalars:
    """Translates expressions, resolved or from text. Each place in a query has its own instance."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._most_characters = _MAX_CHARACTERS

    def predicate(self, node: Expression) -> str:
        """A resolved predicate, in parentheses. Raises UnsupportedExpressionError outside the allow-list."""
        if isinstance(node, Not) and is_opaque(node):
            return f"(NOT {self.predicate(node.child)})"
        if isinstance(node, And | Or) and is_opaque(node):
            return _in_order("AND" if isinstance(node, And) else "OR", [self.predicate(part) for part in node.children])
        return f"({print_duckdb(node, lambda column: self._columns.find(column.path).sql, self._evaluated)})"

    def _evaluated(self, node: Cast | Choice | MakeStruct | Opaque | Coerced) -> str:
        return as_boolean(self.value(node), lambda: to_spark_sql(node))

    def value(self, node: Expression) -> Typed:
        """A value or a resolved predicate with its type. Raises UnsupportedExpressionError outside the allow-list."""
        match node:
            case Column(path):
                return self._columns.find(path)
            case Literal():
                return literal_value(node)
            case Opaque():
                return self.scalar(syntax_of(node))
            case Cast(value, data_type):
                return cast(self.value(value), data_type)
            case Choice(branches):
                conditions = [self.predicate(when) for when, _ in branches]
                return choose(conditions, [self.value(then) for _, then in branches], Typed("NULL", VOID))
            case MakeStruct(fields):
                return struct_of([(name, self.value(value)) for name, value in fields])
            case Coerced(Comparison(op, left, right)):
                return self._compare(op, self.value(left), self.value(right))
            case Coerced(In(child, values)):
                return self._in(self.value(child), values)
            case Coerced(StartsWith(child, prefix)):
                text = as_text(self.value(child))
                return Typed(f"starts_with({text}, {quote_duckdb_string(prefix)})", BOOLEAN)
            case Coerced(predicate):
                return self.value(predicate)
        return Typed(self.predicate(node), BOOLEAN)

    def boolean(self, node: Expression) -> str:
        """A predicate from text. Raises InvalidExpressionError if it is of another type."""
        return as_boolean(self.scalar(node), lambda: describe(node))

    def condition(self, node: Expression) -> str:
        """As `boolean`, of WHERE, ON and WHEN, where Spark refuses a bare NULL."""
        return as_boolean(self.scalar(node), lambda: describe(node), is_cast=False)

    def scalar(self, node: Expression) -> Typed:
        """An unresolved expression from text. Raises UnsupportedExpressionError outside the allow-list."""
        if (literal := constant_of(node)) is not None:
            return literal_value(literal)
        match node:
            case Column(path):
                return self._columns.find(path)
            case Operation(name, arguments) if name in COMPARISONS:
                return self.compared(COMPARISONS[name], *arguments)
            case Operation(name):
                if name not in OPERATIONS:
                    raise unsupported(describe(node))
                sql = OPERATIONS[name](self, node)
            case Call(name, ()) if name in CLOCKS:
                return literal_value(time_told(name))
            case Call("nullif", (first, second)):
                sql = self._null_if(first, second)
            case Call("mod", (_, _) as operands):
                sql = self.remainder(Operation("%", operands))
            case Call("pmod", (first, second)):
                sql = self.positive_remainder(first, second)
            case Call("struct", parts):
                sql = struct([self._named_part(number, part) for number, part in enumerate(parts, 1)])
            case Call():
                sql = named(node, self.scalar)
            case Comparison(op, left, right, fills):
                return self.compared(op, left, right) if fills else self._compare(op, *self._as_read(left, right))
            case And(children) | Or(children):
                operator = "AND" if isinstance(node, And) else "OR"
                sql = Typed(_in_order(operator, [self.boolean(child) for child in children]), BOOLEAN)
            case Not(child):
                sql = Typed(f"(NOT {self.boolean(child)})", BOOLEAN)
            case IsNull(child):
                sql = Typed(f"({self.scalar(child).sql} IS NULL)", BOOLEAN)
            case In(child, values):
                return self._in(self.scalar(child), values)
            case StartsWith(child, prefix):
                return Typed(f"starts_with({as_text(self.scalar(child))}, {quote_duckdb_string(prefix)})", BOOLEAN)
            case _:
                raise unsupported(describe(node))
        if len(sql.sql) > self._most_characters:
            raise too_deep()  # some rules repeat the text of an operand
        return sql

    # --- predicates

    def _compare(self, op: str, left: Typed, right: Typed) -> Typed:
        if left.literal is not None and right.literal is None:
            return self._compare(_FLIPPED.get(op, op), right, left)
        left, right = _filled_up([left, right])
        is_text = left.data_type == STRING and right.data_type not in (STRING, VOID)
        is_plain = is_atomic(left.data_type) and left.data_type != VOID and not is_text
        if right.literal is not None and left.literal is None and is_plain:
            return _compare_with_literal(op, left, right)
        if op == "<=>" and VOID in (left.data_type, right.data_type):
            other = left if right.data_type == VOID else right
            if not has_equality(other.data_type):
                raise unsupported(f"a comparison of {other.data_type}")
            return Typed(f"({other.sql} IS NULL)", BOOLEAN)
        kind = common_type(left.data_type, right.data_type)
        if kind == VOID:
            return Typed(null_of(BOOLEAN), BOOLEAN)
        if not is_atomic(kind) and (op not in ("=", "!=", "<=>") or not has_equality(kind)):
            raise unsupported(f"a comparison of {kind}")
        operator = "IS NOT DISTINCT FROM" if op == "<=>" else op
        return Typed(f"({widen(left, kind).sql} {operator} {widen(right, kind).sql})", BOOLEAN)

    def compared(self, op: str, left: Expression, right: Expression) -> Typed:
        """A comparison from text."""
        one, other = self.scalar(left), self.scalar(right)
        for value, beside, node in ((one, other, right), (other, one, left)):
            if value.char_width and not beside.char_width and beside.literal is None and not columns_of(node):
                # Spark computes the other side first, and then fills it up with spaces.
                raise unsupported(f"{describe(node)} beside a column of char (write its value)")
        return self._compare(op, one, other)

    def _as_read(self, *nodes: Expression) -> list[Typed]:
        """Values that Spark does not fill up beside each other."""
        return [replace(self.scalar(node), char_width=None) for node in nodes]

    def negation(self, node: Operation) -> Typed:
        return Typed(f"(NOT {self.boolean(node.arguments[0])})", BOOLEAN)

    def test(self, node: Operation) -> Typed:
        (child,) = node.arguments
        if node.detail == "NULL":
            return Typed(f"({self.scalar(child).sql} IS NULL)", BOOLEAN)
        return Typed(f"({self.boolean(child)} IS NOT DISTINCT FROM {node.detail})", BOOLEAN)

    def membership(self, node: Operation) -> Typed:
        first, *others = node.arguments
        constants = [value for other in others if isinstance(value := constant_of(other), Literal)]
        if len(constants) == len(others):
            return self._in(self.scalar(first), tuple(constants))
        return self._any_equal(list(map(self.scalar, node.arguments)))

    def _in(self, child: Typed, values: tuple[Literal, ...] | Constants) -> Typed:
        """`IN` a list of constants."""
        is_plain = is_atomic(child.data_type) and child.data_type != VOID
        if is_plain and child.literal is None and child.char_width is None:
            kinds = {child.data_type, *(VOID if value.value is None else literal_type(value) for value in values)}
            is_mixed = STRING in kinds or VOID in kinds
            widened = widen(child, common_type_of(list(kinds))) if is_mixed else child
            try:
                is_listed = _is_listed(widened, values)
            except InvalidExpressionError:
                if len(values) > LONG_LIST:
                    raise
                # A text that is not a value of the type fails when a row is compared with it.
            else:
                self._most_characters += _TIMES_LISTED * len(is_listed.sql)
                return is_listed
        return self._any_equal([child, *map(literal_value, values)])

    def _any_equal(self, operands: list[Typed]) -> Typed:
        child, *values = operands
        mixed = len(values) > 1 and any(value.literal is None or value.data_type == VOID for value in values)
        if mixed or child.literal is not None:
            operands = [replace(operand, char_width=None) for operand in operands]
        operands = _filled_up(operands)
        # Spark finds one common type for the value and the whole list.
        kinds = [operand.data_type for operand in operands]
        if STRING in kinds or VOID in kinds:
            kind = common_type_of(kinds)
            operands = [widen(operand, kind) for operand in operands]
        child, *values = operands
        if any(value.data_type in (FLOAT, DOUBLE) for value in values):
            values = [widen(value, DOUBLE) if is_number(value.data_type) else value for value in values]
        return Typed(_in_order("OR", [self._compare("=", child, value).sql for value in values]), BOOLEAN)

    def between(self, node: Operation) -> Typed:
        child, low, high = self._as_read(*node.arguments)
        lower, upper = self._compare(">=", child, low), self._compare("<=", child, high)
        return Typed(f"({lower.sql} AND {upper.sql})", BOOLEAN)

    def like(self, node: Operation) -> Typed:
        subject, pattern = node.arguments
        literal, escape = constant_of(pattern), node.detail or "\\"
        if literal is not None and literal.value is None:
            return Typed(null_of(BOOLEAN), BOOLEAN)
        if literal is None or not isinstance(literal.value, str):
            raise unsupported(f"{describe(node)}: the pattern is not a constant")
        _ensure_valid_pattern(literal.value, escape)
        quoted = f"{quote_duckdb_string(literal.value)} ESCAPE {quote_duckdb_string(escape)}"
        return Typed(f"({as_text(self.scalar(subject))} LIKE {quoted})", BOOLEAN)

    # --- choices

    def case(self, node: Operation) -> Typed:
        parts = list(node.arguments)
        subject = parts.pop(0) if node.name == "CASE OF" else None
        otherwise = Typed("NULL", VOID) if len(parts) % 2 == 0 else self.scalar(parts.pop())
        conditions = [
            self.condition(when) if subject is None else self.compared("=", subject, when).sql for when in parts[::2]
        ]
        return choose(conditions, [self.scalar(then) for then in parts[1::2]], otherwise)

    def _null_if(self, first: Expression, second: Expression) -> Typed:
        # Spark keeps the first value under a name of its own, and fills up only columns.
        value, other = self._as_read(first, second)
        is_equal = self._compare("=", value, other).sql
        return Typed(f"CASE WHEN {is_equal} THEN NULL ELSE {value.sql} END", value.data_type)

    def _named_part(self, number: int, part: Expression) -> tuple[str, Typed]:
        """A field of `struct(…)`. A value that has no name gets one by its place."""
        match part:
            case Column(path):
                return path[-1], self.scalar(part)
            case Operation("AS", (value,), name):
                return name, self.scalar(value)
        return f"col{number}", self.scalar(part)

    # --- numbers

    def arithmetic(self, node: Operation) -> Typed:
        # Functions instead of signs, because DuckDB rewrites `x + 1 > 0` to `x > -1`, which never overflows.
        function = {"+": "add", "-": "subtract", "*": "multiply"}[node.name]
        first, second = node.arguments
        if isinstance(first, Operation) and first.name == "INTERVAL" and node.name == "+":
            first, second = second, first
        if isinstance(second, Operation) and second.name == "INTERVAL" and node.name != "*":
            return shifted(node.name, self.scalar(first), second.detail)
        left, right = self.scalar(first), self.scalar(second)
        if left.data_type == DATE and function != "multiply" and right.data_type in _DAYS:
            return Typed(f"CAST({function}({left.sql}, {widen(right, INTEGER).sql}) AS DATE)", DATE)
        kind = arithmetic_type(left, right, describe(node))
        if isinstance(kind, DecimalType):
            return _decimal_arithmetic(function, left, right, describe(node))
        # Overflow of integers raises in both; the cast keeps DuckDB from widening.
        sql = f"{function}({widen(left, kind).sql}, {widen(right, kind).sql})"
        return Typed(f"CAST({sql} AS {duckdb_type(kind)})", kind)

    def division(self, node: Operation) -> Typed:
        left, right = map(self.scalar, node.arguments)
        ensure_computable(left, right, describe(node))
        kinds = {left.data_type, right.data_type}
        is_exact = any(isinstance(kind, DecimalType) for kind in kinds) and not {FLOAT, DOUBLE, STRING} & kinds
        if is_exact and left.data_type != VOID:  # Spark decides by the dividend
            return _decimal_quotient(left, right, describe(node))
        arithmetic_type(left, right, describe(node))
        return _guarded("/", widen(left, DOUBLE), widen(right, DOUBLE), DOUBLE)

    def remainder(self, node: Operation) -> Typed:
        left, right = map(self.scalar, node.arguments)
        kind = arithmetic_type(left, right, describe(node))
        if kind in (FLOAT, DOUBLE):
            return _guarded("%", widen(left, kind), widen(right, kind), kind)
        left, right, kind = self._integrals(node.arguments, describe(node))
        return _guarded("%", left, right, kind)

    def whole_quotient(self, node: Operation) -> Typed:
        left, right, _ = self._integrals(node.arguments, describe(node))
        return _guarded("//", widen(left, LONG), widen(right, LONG), LONG)

    def positive_remainder(self, first: Expression, second: Expression) -> Typed:
        """`pmod`."""
        left, right, kind = self._integrals((first, second), "pmod")
        rest = f"({left.sql} % {right.sql})"
        return _guarded(
            "%", Typed(f"CASE WHEN {rest} < 0 THEN {rest} + {right.sql} ELSE {rest} END", kind), right, kind
        )

    def _integrals(self, operands: Sequence[Expression], what: str) -> tuple[Typed, Typed, DataType]:
        left, right = map(self.scalar, operands)
        kind = arithmetic_type(left, right, what)
        if kind not in INTEGRAL_RANGES or STRING in (left.data_type, right.data_type):
            raise unsupported(f"{what}: of {kind}")
        return widen(left, kind), widen(right, kind), kind

    def bitwise(self, node: Operation) -> Typed:
        left, right, kind = self._integrals(node.arguments, describe(node))
        return Typed(
            f"xor({left.sql}, {right.sql})" if node.name == "^" else f"({left.sql} {node.name} {right.sql})", kind
        )

    def cast(self, node: Operation) -> Typed:
        return cast(self.scalar(node.arguments[0]), cast_target(node.detail))


def describe(node: Expression) -> str:
    """A construct in the user's terms."""
    text = to_checked_sql(node)
    return text if len(text) <= 100 else text[:97] + "..."


# Comparisons

_SELF = "(an expression)"


def _compare_with_literal(op: str, left: Typed, right: Typed) -> Typed:
    assert right.literal is not None
    if right.literal.value is None:
        return Typed(f"({left.sql} IS NULL)" if op == "<=>" else null_of(BOOLEAN), BOOLEAN)
    fitted = fit_comparison(op, Column((_SELF,)), left.data_type, right.literal)
    if isinstance(fitted, Coerced):
        raise unsupported(f"a comparison of {left.data_type} with {right.data_type}")
    return Typed(f"({print_duckdb(fitted, lambda _: left.sql)})", BOOLEAN)


def _is_listed(child: Typed, values: tuple[Literal, ...] | Constants) -> Typed:
    """`IN` a long list of constants."""
    fitted = fit_in(Column((_SELF,)), child.data_type, values)
    if isinstance(fitted, Coerced):
        raise unsupported(f"{child.data_type} IN a list of another type")
    return Typed(f"({print_duckdb(fitted, lambda _: child.sql)})", BOOLEAN)


def _filled_up(operands: list[Typed]) -> list[Typed]:
    """Columns of `char(n)`, filled up with spaces to the longest of them and of the constants beside them. Beside other
    operands Spark compares them as they are."""
    if not any(operand.char_width for operand in operands):
        return operands
    texts = [operand.literal.value if operand.literal is not None else None for operand in operands]
    if not all(operand.char_width or operand.literal is not None for operand in operands):
        return [replace(operand, char_width=None) for operand in operands]
    width = max(o.char_width or len(str(text or "")) for o, text in zip(operands, texts, strict=True))
    return [
        literal_value(Literal(text.ljust(width), STRING))
        if isinstance(text, str)
        else Typed(f"rpad({operand.sql}, {width}, ' ')", STRING)
        if (operand.char_width or width) < width
        else operand
        for operand, text in zip(operands, texts, strict=True)
    ]


def _guarded(operator: str, left: Typed, right: Typed, kind: DataType) -> Typed:
    """Division as in ANSI: by zero raises, unless an operand is null."""
    if right.literal is not None and right.literal.value:
        return Typed(f"CAST({left.sql} {operator} {right.sql} AS {duckdb_type(kind)})", kind)
    zero = "error('[DIVIDE_BY_ZERO] Division by zero')"
    return Typed(
        f"CASE WHEN {left.sql} IS NULL OR {right.sql} IS NULL THEN NULL WHEN {right.sql} = 0 THEN {zero} "
        f"ELSE CAST({left.sql} {operator} {right.sql} AS {duckdb_type(kind)}) END",
        kind,
    )


def _decimal_arithmetic(function: str, left: Typed, right: Typed, what: str) -> Typed:
    """The exact result, rounded where Spark drops digits. More than 38 digits are refused. A sum that does not fit
    before it is rounded raises."""
    a, b = _decimal_operands(left, right)
    if function == "multiply":
        exact = DecimalType(min(a.precision + b.precision + 1, MAX_DECIMAL_DIGITS), min(a.scale + b.scale, 38))
        target = _adjusted(a.precision + b.precision + 1, a.scale + b.scale)
        if a.precision + b.precision > MAX_DECIMAL_DIGITS:
            raise unsupported(f"{what}: more than {MAX_DECIMAL_DIGITS} digits")
        if a.precision + b.precision > _LONG_DIGITS:
            # DuckDB multiplies two short decimals in 64 bits, even if the product is longer.
            a = DecimalType(max(a.precision, _LONG_DIGITS + 1), a.scale)
    else:
        scale = max(a.scale, b.scale)
        digits = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
        target = _adjusted(digits, scale)
        exact = DecimalType(min(digits, MAX_DECIMAL_DIGITS), scale)
        a, b = exact, exact
    computed = f"CAST({function}({widen(left, a).sql}, {widen(right, b).sql}) AS {duckdb_type(exact)})"
    return Typed(computed if target == exact else f"CAST({computed} AS {duckdb_type(target)})", target)


def _decimal_operands(left: Typed, right: Typed) -> tuple[DecimalType, DecimalType]:
    """The types of two operands. A null has the type of the other operand."""
    if left.data_type == VOID:
        return (decimal_operand(right),) * 2
    return decimal_operand(left), decimal_operand(left if right.data_type == VOID else right)


def _adjusted(precision: int, scale: int) -> DecimalType:
    """The type of a result. As in Spark, digits before the point replace digits after it, of which six remain."""
    if precision <= MAX_DECIMAL_DIGITS:
        return DecimalType(precision, scale)
    before = precision - scale
    return DecimalType(MAX_DECIMAL_DIGITS, max(MAX_DECIMAL_DIGITS - before, min(scale, _LEAST_SCALE)))


_LEAST_SCALE = 6
_LONG_DIGITS = 18


def _decimal_quotient(left: Typed, right: Typed, what: str) -> Typed:
    """Divided as whole numbers of up to 38 digits, rounded half up."""
    a, b = _decimal_operands(left, right)
    scale = max(_LEAST_SCALE, a.scale + b.precision + 1)
    target = _adjusted(a.precision - a.scale + b.scale + scale, scale)
    shift = target.scale + b.scale - a.scale
    if shift < 0 or a.precision + shift > MAX_DECIMAL_DIGITS:
        raise unsupported(f"{what}: more than {MAX_DECIMAL_DIGITS} digits")
    n, d = (_digits_of(widen(value, of).sql) for value, of in ((left, a), (right, b)))
    return _rounded_quotient(n, d, shift, target)


def _digits_of(decimal: str) -> str:
    """A decimal without its point."""
    return f"CAST(replace(CAST({decimal} AS VARCHAR), '.', '') AS HUGEINT)"


def _rounded_quotient(n: str, d: str, shift: int, target: DecimalType) -> Typed:
    """A decimal, rounded half up, whose digits are `n` with `shift` zeros behind it over `d`."""
    n, one = f"({n} * CAST('1{'0' * shift}' AS HUGEINT))", f"CAST('1{'0' * target.scale}' AS HUGEINT)"
    rest = f"abs({n}) % abs({d})"
    whole = f"(abs({n}) // abs({d}) + CAST({rest} >= abs({d}) - {rest} AS HUGEINT))"
    fraction = f"lpad(CAST({whole} % {one} AS VARCHAR), {target.scale}, '0')"
    text = f"concat(if(({n} < 0) <> ({d} < 0), '-', ''), {whole} // {one}, '.', {fraction})"
    zero = "error('[DIVIDE_BY_ZERO] Division by zero')"
    return Typed(
        f"CASE WHEN {n} IS NULL OR {d} IS NULL THEN NULL WHEN {d} = 0 THEN {zero} "
        f"ELSE CAST({text} AS {duckdb_type(target)}) END",
        target,
    )


def _ensure_valid_pattern(pattern: str, escape: str) -> None:
    characters = iter(pattern)
    for character in characters:
        if character == escape and next(characters, None) not in {"%", "_", escape}:
            raise InvalidExpressionError(
                f"The LIKE pattern {pattern!r} is invalid",
                cause=f"The escape character {escape!r} must stand before %, _ or itself",
            )


_MAX_GROUPS = 50


def _in_order(operator: str, parts: Sequence[str]) -> str:
    """AND or OR. As in Spark, an operand that may raise is not evaluated if the operands before it decide. DuckDB alone
    would order operands by their cost."""
    groups: list[list[str]] = []
    for part in parts:
        if not groups or may_raise(part):
            groups.append([])
        groups[-1].append(part)
    if len(groups) > _MAX_GROUPS:
        groups = [list(parts)]
    chained = [chain(f" {operator} ", group) for group in groups]
    last = chained.pop()
    while chained:
        before = f"({chained.pop()})"
        decides, answer = (f"{before} IS FALSE", "FALSE") if operator == "AND" else (before, "TRUE")
        last = f"CASE WHEN {decides} THEN {answer} ELSE {before} {operator} ({last}) END"
    return f"({last})"


def _complement(scalars: Scalars, child: Expression) -> Typed:
    """`~`."""
    value = scalars.scalar(child)
    if value.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"~ before {value.data_type}")
    return Typed(f"(~{value.sql})", value.data_type)


def _minus(scalars: Scalars, child: Expression) -> Typed:
    """`-` before a value."""
    value = scalars.scalar(child)
    value = widen(value, DOUBLE) if value.data_type == VOID else value
    if value.data_type in (FLOAT, DOUBLE) or isinstance(value.data_type, DecimalType):
        return Typed(f"(-{sign_changed(value)})", value.data_type)
    if value.data_type in INTEGRAL_RANGES:
        kind = duckdb_type(value.data_type)
        return Typed(f"CAST(subtract(CAST(0 AS {kind}), {value.sql}) AS {kind})", value.data_type)
    raise unsupported(f"a minus before {value.data_type}")


def _plus(scalars: Scalars, child: Expression) -> Typed:
    """`+` before a value."""
    value = scalars.scalar(child)
    if not is_number(value.data_type):
        raise unsupported(f"a plus before {value.data_type}")
    return value


def _element(scalars: Scalars, array: Expression, index: Expression) -> Typed:
    """`array[index]`, from zero, `map[key]` and `struct['field']`."""
    value, key = scalars.scalar(array), scalars.scalar(index)
    kind = value.data_type
    if isinstance(kind, StructType) and key.literal is not None and key.data_type == STRING:
        return struct_field(value, str(key.literal.value))
    if isinstance(kind, MapType) and is_atomic(kind.key_type) and kind.key_type not in (FLOAT, DOUBLE):
        if key.data_type != kind.key_type and not {kind.key_type, key.data_type} <= {*INTEGRAL_RANGES}:
            raise unsupported(f"a key of type {key.data_type} in {kind}")
        return Typed(f"{value.sql}[CAST({key.sql} AS {duckdb_type(kind.key_type)})]", kind.value_type)
    if not isinstance(kind, ArrayType) or key.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"an element of {kind}")
    position = f"(CAST({key.sql} AS BIGINT) + 1)"
    problem = error("[INVALID_ARRAY_INDEX] The index is out of bounds")
    return Typed(f"CASE WHEN {value.sql} IS NULL OR {key.sql} IS NULL THEN NULL WHEN {position} BETWEEN 1 AND "
                 f"length({value.sql}) THEN {value.sql}[{position}] ELSE {problem} END", kind.element_type)  # fmt: skip


# The list

_Rule = Callable[[Scalars, Operation], Typed]


def _signed(binary: _Rule, unary: Callable[[Scalars, Expression], Typed]) -> _Rule:
    return lambda scalars, node: (
        binary(scalars, node) if len(node.arguments) == 2 else unary(scalars, node.arguments[0])
    )


OPERATIONS: dict[str, _Rule] = {
    "NOT": Scalars.negation,
    "IS": Scalars.test,
    "IN": Scalars.membership,
    "BETWEEN": Scalars.between,
    "LIKE": Scalars.like,
    "CASE": Scalars.case,
    "CASE OF": Scalars.case,
    "+": _signed(Scalars.arithmetic, _plus),
    "-": _signed(Scalars.arithmetic, _minus),
    "*": Scalars.arithmetic,
    "/": Scalars.division,
    "%": Scalars.remainder,
    "DIV": Scalars.whole_quotient,
    "&": Scalars.bitwise,
    "|": Scalars.bitwise,
    "^": Scalars.bitwise,
    "~": lambda scalars, node: _complement(scalars, node.arguments[0]),
    "||": lambda scalars, node: concatenated(list(map(scalars.scalar, node.arguments))),
    "CAST": Scalars.cast,
    ".": lambda scalars, node: struct_field(scalars.scalar(node.arguments[0]), node.detail),
    "[]": lambda scalars, node: _element(scalars, *node.arguments),
}
