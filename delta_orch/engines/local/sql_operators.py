"""Operators of Spark SQL in DuckDB's SQL: comparisons with constants, division, decimals, and what CAST names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from delta_orch.engines.local.sql_arguments import Scalars
from delta_orch.engines.local.sql_casts import (
    error,
    literal_value,
    null_of,
    widen,
)
from delta_orch.engines.local.sql_types import (
    Typed,
    decimal_operand,
    is_number,
    unsupported,
)
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.constants import type_of
from delta_orch.expressions.fit_comparison import fit_comparison
from delta_orch.expressions.nodes import Coerced, Column, Constants, Expression, Literal
from delta_orch.expressions.resolve import fit_in
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import (
    chain,
    duckdb_type,
    may_raise,
    print_duckdb,
)
from delta_orch.protocol.type_text import parse_columns
from delta_orch.protocol.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    STRING,
    VOID,
    DataType,
    DecimalType,
)

_SELF = "(an expression)"


def compare_with_literal(op: str, left: Typed, right: Typed) -> Typed:
    assert right.literal is not None
    if right.literal.value is None:
        return Typed(f"({left.sql} IS NULL)" if op == "<=>" else null_of(BOOLEAN), BOOLEAN)
    fitted = fit_comparison(op, Column((_SELF,)), left.data_type, right.literal)
    if isinstance(fitted, Coerced):
        raise unsupported(f"a comparison of {left.data_type} with {right.data_type}")
    return Typed(f"({print_duckdb(fitted, lambda _: left.sql)})", BOOLEAN)


def is_listed(child: Typed, values: tuple[Literal, ...] | Constants) -> Typed:
    """`IN` a long list of constants."""
    fitted = fit_in(Column((_SELF,)), child.data_type, values)
    if isinstance(fitted, Coerced):
        raise unsupported(f"{child.data_type} IN a list of another type")
    return Typed(f"({print_duckdb(fitted, lambda _: child.sql)})", BOOLEAN)


def filled_up(operands: list[Typed]) -> list[Typed]:
    """Columns of `char(n)` beside constants or each other, all with as many characters as the longest. Beside anything
    else Spark compares them as they are."""
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


def guarded(operator: str, left: Typed, right: Typed, kind: DataType) -> Typed:
    """Division as in ANSI: by zero raises, unless an operand is null."""
    if right.literal is not None and right.literal.value:
        return Typed(f"CAST({left.sql} {operator} {right.sql} AS {duckdb_type(kind)})", kind)
    zero = "error('[DIVIDE_BY_ZERO] Division by zero')"
    return Typed(
        f"CASE WHEN {left.sql} IS NULL OR {right.sql} IS NULL THEN NULL WHEN {right.sql} = 0 THEN {zero} "
        f"ELSE CAST({left.sql} {operator} {right.sql} AS {duckdb_type(kind)}) END",
        kind,
    )


def decimal_arithmetic(function: str, left: Typed, right: Typed, what: str) -> Typed:
    """Exact in as many digits as DuckDB has, then rounded where Spark gives up digits, or refused. A sum that does not
    fit before it is rounded raises."""
    a, b = _decimal_operands(left, right)
    if function == "multiply":
        exact = DecimalType(min(a.precision + b.precision + 1, MAX_DECIMAL_DIGITS), min(a.scale + b.scale, 38))
        target = _adjusted(a.precision + b.precision + 1, a.scale + b.scale)
        if a.precision + b.precision > MAX_DECIMAL_DIGITS:
            raise unsupported(f"{what}: more than {MAX_DECIMAL_DIGITS} digits")
        if a.precision + b.precision > _LONG_DIGITS:
            # DuckDB multiplies two short decimals in 64 bits, whatever comes out.
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
    """A null is of the other operand's type."""
    if left.data_type == VOID:
        return (decimal_operand(right),) * 2
    return decimal_operand(left), decimal_operand(left if right.data_type == VOID else right)


def _adjusted(precision: int, scale: int) -> DecimalType:
    """The decimal of a result, as Spark gives up digits behind the point for those before it, but for six."""
    if precision <= MAX_DECIMAL_DIGITS:
        return DecimalType(precision, scale)
    before = precision - scale
    return DecimalType(MAX_DECIMAL_DIGITS, max(MAX_DECIMAL_DIGITS - before, min(scale, _LEAST_SCALE)))


_LEAST_SCALE = 6
_LONG_DIGITS = 18


def decimal_quotient(left: Typed, right: Typed, what: str) -> Typed:
    """Divided as whole numbers of up to 38 digits, rounded half up."""
    a, b = _decimal_operands(left, right)
    scale = max(_LEAST_SCALE, a.scale + b.precision + 1)
    target = _adjusted(a.precision - a.scale + b.scale + scale, scale)
    shift = target.scale + b.scale - a.scale
    if shift < 0 or a.precision + shift > MAX_DECIMAL_DIGITS:
        raise unsupported(f"{what}: more than {MAX_DECIMAL_DIGITS} digits")
    n, d = (digits_of(widen(value, of).sql) for value, of in ((left, a), (right, b)))
    return rounded_quotient(n, d, shift, target)


def decimal_remainder(left: Typed, right: Typed) -> Typed:
    """`%`, with the sign of the left side."""
    a, b = _decimal_operands(left, right)
    scale = max(a.scale, b.scale)
    least, most = sorted(kind.precision - kind.scale + scale for kind in (a, b))
    if most > MAX_DECIMAL_DIGITS:
        raise unsupported(f"a remainder of {most} digits")
    wide = DecimalType(most, scale)
    return guarded("%", widen(left, wide), widen(right, wide), DecimalType(least, scale))


def digits_of(decimal: str) -> str:
    """A decimal without its point."""
    return f"CAST(replace(CAST({decimal} AS VARCHAR), '.', '') AS HUGEINT)"


def rounded_quotient(n: str, d: str, shift: int, target: DecimalType) -> Typed:
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


def cast_target(name: str) -> DataType:
    """The type that CAST names. Raises UnsupportedExpressionError for what is no column's."""
    is_nested = "<" in name and not re.search(r"\bCHAR|\bVARCHAR|\bINTERVAL|\bVARIANT", name)
    found = parse_columns(f"c {name}").fields[0].data_type if is_nested else type_of(name)
    if found is None:
        raise unsupported(f"CAST to {name[:100]}")
    return found


def ensure_valid_pattern(pattern: str, escape: str) -> None:
    characters = iter(pattern)
    for character in characters:
        if character == escape and next(characters, None) not in {"%", "_", escape}:
            raise InvalidExpressionError(
                f"The LIKE pattern {pattern!r} is invalid",
                cause=f"The escape character {escape!r} must stand before %, _ or itself",
            )


_MAX_GROUPS = 50


def in_order(operator: str, parts: Sequence[str]) -> str:
    """AND or OR. An operand that may raise is not evaluated where those before it decide, as in Spark: DuckDB orders
    operands by what they cost."""
    groups: list[list[str]] = []
    for part in parts:
        if not groups or may_raise(part):
            groups.append([])
        groups[-1].append(part)
    if len(groups) > _MAX_GROUPS:
        groups = [list(parts)]
    chained = [chain(f" {operator} ", group) for group in groups]
    found = chained.pop()
    while chained:
        before = f"({chained.pop()})"
        decides, answer = (f"{before} IS FALSE", "FALSE") if operator == "AND" else (before, "TRUE")
        found = f"CASE WHEN {decides} THEN {answer} ELSE {before} {operator} ({found}) END"
    return f"({found})"


def complement(scalars: Scalars, child: Expression) -> Typed:
    """`~`."""
    value = scalars.scalar(child)
    if value.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"~ before {value.data_type}")
    return Typed(f"(~{value.sql})", value.data_type)


_SIGNED_DIGITS = 34


def short(value: Typed) -> str:
    """A number whose sign may be changed: Spark rounds decimals to 34 digits then, so those of more digits raise."""
    kind = value.data_type
    if not isinstance(kind, DecimalType) or kind.precision <= _SIGNED_DIGITS:
        return value.sql
    limit = f"CAST('1e{_SIGNED_DIGITS - kind.scale}' AS {duckdb_type(kind)})"
    problem = error(f"a decimal of more than {_SIGNED_DIGITS} digits, which Spark rounds where it changes the sign")
    return f"CASE WHEN {value.sql} >= {limit} OR {value.sql} <= -{limit} THEN {problem} ELSE {value.sql} END"


def minus(scalars: Scalars, child: Expression) -> Typed:
    """`-` before a value."""
    value = scalars.scalar(child)
    value = widen(value, DOUBLE) if value.data_type == VOID else value
    if value.data_type in (FLOAT, DOUBLE) or isinstance(value.data_type, DecimalType):
        return Typed(f"(-{short(value)})", value.data_type)
    if value.data_type in INTEGRAL_RANGES:
        kind = duckdb_type(value.data_type)
        return Typed(f"CAST(subtract(CAST(0 AS {kind}), {value.sql}) AS {kind})", value.data_type)
    raise unsupported(f"a minus before {value.data_type}")


def plus(scalars: Scalars, child: Expression) -> Typed:
    """`+` before a value."""
    value = scalars.scalar(child)
    if not is_number(value.data_type):
        raise unsupported(f"a plus before {value.data_type}")
    return value
