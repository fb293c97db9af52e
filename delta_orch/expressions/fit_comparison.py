"""Fitting a constant to the column it is compared with, exactly as Spark's comparison would come out.

Spark widens both sides to a common type. Planner, statistics and engines want the constant in the *column's* type
instead. Where a column's values are whole numbers of some unit (integers, decimals, days), the widening is monotone, so
each comparison equals one with at most two constants of the column's own type: `int_col < 5.5` is `int_col <= 5`,
`int_col = 5.5` is false for every value. Such a predicate is written so that a null still gives null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import NamedTuple

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import And, Coerced, Column, Comparison, Constant, Expression, IsNull, Literal, Not
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    PARSERS,
    natural_type,
    round_to_float,
)
from delta_orch.protocol.epoch import (
    FarDate,
    FarMoment,
    date_of,
    days_since_epoch,
    micros_since_epoch,
    moment_of,
)
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    PrimitiveType,
    has_equality,
)

_MICROS_PER_DAY = 86_400_000_000
# DuckDB takes what is beyond them for infinities.
_MOST_DAYS, _MOST_MICROS = 2**31 - 3, 2**63 - 3


def literal_type(literal: Literal) -> DataType:
    return literal.data_type if literal.data_type is not None else natural_type(literal.value)


def fit_comparison(op: str, column: Column, data_type: DataType, literal: Literal) -> Expression:
    """`column op literal` with the constant in the column's type (PROTOCOL knows no casts; Spark's rules apply).

    Raises InvalidExpressionError where Spark does: types that cannot be compared, text that cannot be cast.
    """
    value = literal.value
    if type(value) is int and data_type in INTEGRAL_RANGES:
        low, high = INTEGRAL_RANGES[data_type]
        if low <= value <= high:
            return Comparison(op, column, Literal(value, data_type))
    kind = literal_type(literal)
    if data_type == kind and not isinstance(kind, DecimalType):
        return Comparison(op, column, Literal(_canonical(literal.value, data_type), data_type))
    if data_type == STRING:
        return (
            Coerced(Comparison(op, column, literal))
            if kind != BINARY
            else refuse_comparison(op, column, data_type, kind)
        )
    if isinstance(value, str) and (parsed := _parsed(value, data_type)) is not None:
        return fit_comparison(op, column, data_type, Literal(parsed))
    fit = _FITS.get(type(data_type) if isinstance(data_type, DecimalType) else data_type)
    fitted = fit(op, column, data_type, literal.value) if fit is not None else None
    return fitted if fitted is not None else refuse_comparison(op, column, data_type, kind)


def _parsed(text: str, data_type: DataType) -> Constant:
    """Text as a value of a column's type, or of one that Spark compares both as; None where it casts no text."""
    if data_type == BINARY:
        return text.encode()
    parse = PARSERS.get(DOUBLE if isinstance(data_type, DecimalType) else data_type)
    return None if parse is None else parse(text)


def _canonical(value: Constant, data_type: DataType) -> Constant:
    if data_type == TIMESTAMP and not isinstance(value, FarMoment):
        return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return float(value) if data_type in (FLOAT, DOUBLE) else value


def _fit_number(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    grid = _grid_of(data_type)
    if grid is None or not _is_number(value):
        return None
    return _compare_with_number(op, column, grid, value)


def _fit_float(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if not _is_number(value):
        return None
    number = float(value)
    rounded = round_to_float(number) if data_type == FLOAT else number
    fits = rounded == number or number != number
    return Comparison(op, column, Literal(rounded, data_type) if fits else Literal(number, DOUBLE))


def _is_number(value: Constant) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _fit_date(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if not isinstance(value, datetime | FarMoment):
        return None
    grid = _grid_of(data_type)
    assert grid is not None
    return _compare(op, column, grid, lambda index: index * _MICROS_PER_DAY, micros_since_epoch(value))


def _fit_timestamp(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if isinstance(value, datetime | FarMoment):
        micros = micros_since_epoch(value)
    elif isinstance(value, date | FarDate):
        # The range of times is smaller than that of days. A day outside it is before or after every time.
        micros = min(max(days_since_epoch(value) * _MICROS_PER_DAY, -_MOST_MICROS), _MOST_MICROS)
    else:
        return None
    return Comparison(op, column, Literal(moment_of(micros, utc=data_type == TIMESTAMP), data_type))


_Fit = Callable[[str, Column, DataType, Constant], Expression | None]
_FITS: dict[DataType | type[DecimalType], _Fit] = {
    **dict.fromkeys(INTEGRAL_RANGES, _fit_number),
    DecimalType: _fit_number,
    FLOAT: _fit_float,
    DOUBLE: _fit_float,
    DATE: _fit_date,
    TIMESTAMP: _fit_timestamp,
    TIMESTAMP_NTZ: _fit_timestamp,
}


def refuse_comparison(op: str, column: Column, left: DataType, right: DataType) -> Expression:
    other = f"Compare it with a value of type {left}"
    raise InvalidExpressionError(
        f"The column {'.'.join(column.path)} of type {left} cannot be compared with a {right}",
        remedy=other if has_equality(left) else "Compare a part of it, or use IS NULL",
        column=".".join(column.path),
        operator=op,
    )


def _family(data_type: DataType) -> str:
    if data_type in INTEGRAL_RANGES or data_type in (FLOAT, DOUBLE) or isinstance(data_type, DecimalType):
        return "number"
    return "moment" if data_type in (DATE, TIMESTAMP, TIMESTAMP_NTZ) else str(data_type)


def ensure_comparable(left: DataType, right: DataType, op: str, left_column: Column) -> None:
    """Raises InvalidExpressionError where Spark compares no columns of these types."""
    if not (has_equality(left) and has_equality(right)):
        refuse_comparison(op, left_column, left, right)
    atomic = isinstance(left, PrimitiveType | DecimalType) and isinstance(right, PrimitiveType | DecimalType)
    if atomic and _family(left) != _family(right) and STRING not in (left, right):
        refuse_comparison(op, left_column, left, right)


# On the grid of whole numbers


class _Grid(NamedTuple):
    """A column type as the whole numbers `low` to `high`; `value_of` gives the Python value of one of them."""

    data_type: DataType
    low: int
    high: int
    value_of: Callable[[int], Constant]


def _grid_of(data_type: DataType) -> _Grid | None:
    """The grid of an integral, decimal or date type, None for every other."""
    if data_type in INTEGRAL_RANGES:
        low, high = INTEGRAL_RANGES[data_type]
        return _Grid(data_type, low, high, lambda index: index)
    if isinstance(data_type, DecimalType):
        scale, bound = data_type.scale, 10**data_type.precision - 1
        return _Grid(data_type, -bound, bound, lambda index: _unscaled(index, scale))
    if data_type == DATE:
        return _Grid(data_type, -_MOST_DAYS, _MOST_DAYS, date_of)
    return None


def _unscaled(index: int, scale: int) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(index)))
    return Decimal((int(index < 0), digits, -scale))


def _compare_with_number(operator: str, column: Expression, grid: _Grid, value: int | Decimal | float) -> Expression:
    """`column operator value` for an integral or decimal column. A float compares as Spark compares doubles."""
    scale = grid.data_type.scale if isinstance(grid.data_type, DecimalType) else 0
    if isinstance(value, float):
        return _compare(operator, column, grid, lambda index: _to_double(index, scale), value)
    from fractions import Fraction

    target = Fraction(value) * 10**scale
    if target.denominator == 1:
        exact = target.numerator
        first, last = min(max(exact, grid.low), grid.high + 1), max(min(exact, grid.high), grid.low - 1)
    else:
        first = min(max(math.ceil(target), grid.low), grid.high + 1)
        last = max(min(math.floor(target), grid.high), grid.low - 1)
    return _between(operator, column, grid, first, last)


def _to_double(index: int, scale: int) -> float:
    return float(index) if scale == 0 else float(_unscaled(index, scale))


def _compare(
    operator: str, column: Expression, grid: _Grid, convert: Callable[[int], Constant], target: int | float
) -> Expression:
    if isinstance(target, float) and math.isnan(target):
        return _between(operator, column, grid, grid.high + 1, grid.high)  # NaN is above every number
    first = _first(grid, lambda index: convert(index) >= target)
    last = _first(grid, lambda index: convert(index) > target) - 1
    return _between(operator, column, grid, first, last)


def _first(grid: _Grid, holds: Callable[[int], bool]) -> int:
    """The lowest number for which a monotone condition holds, `high + 1` if there is none."""
    low, high = grid.low, grid.high + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _between(operator: str, column: Expression, grid: _Grid, first: int, last: int) -> Expression:
    """The comparison, given that exactly the numbers `first` to `last` count as equal (none if `first > last`)."""

    def compare(op: str, index: int) -> Expression:
        return Comparison(op, column, Literal(grid.value_of(index), grid.data_type))

    never, always = compare(">", grid.high), compare("<=", grid.high)
    if operator == "<":
        return always if first > grid.high else compare("<", first)
    if operator == "<=":
        return compare("<", grid.low) if last < grid.low else compare("<=", last)
    if operator == ">":
        return compare(">=", grid.low) if last < grid.low else compare(">", last)
    if operator == ">=":
        return never if first > grid.high else compare(">=", first)
    if first == last:
        return compare(operator, first)
    if operator == "<=>":
        if first > last:
            return Literal(False, BOOLEAN)
        return And((Not(IsNull(column)), compare(">=", first), compare("<=", last)))
    if operator == "=":
        return never if first > last else And((compare(">=", first), compare("<=", last)))
    return always if first > last else Not(And((compare(">=", first), compare("<=", last))))
