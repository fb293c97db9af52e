"""Fitting a constant to the column it is compared with, exactly as Spark's comparison would come out.

Spark widens both sides to a common type. Planner, statistics and engines want the constant in the *column's* type
instead. Where a column's values are whole numbers of some unit (integers, decimals, days), the widening is monotone, so
each comparison equals one with at most two constants of the column's own type: `int_col < 5.5` is `int_col <= 5`,
`int_col = 5.5` is false for every value. Such a predicate is written so that a null still gives null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from delta_orch.expressions.nodes import And, Comparison, Constant, Expression, IsNull, Literal, Not
from delta_orch.expressions.spark_literals import EPOCH, INTEGRAL_RANGES
from delta_orch.protocol.types import BOOLEAN, DATE, DataType, DecimalType

_MICROS_PER_DAY = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1)


class Grid(NamedTuple):
    """A column type as the whole numbers `low` to `high`; `value_of` gives the Python value of one of them."""

    data_type: DataType
    low: int
    high: int
    value_of: Callable[[int], Constant]


def grid_of(data_type: DataType) -> Grid | None:
    """The grid of an integral, decimal or date type, None for every other."""
    if data_type in INTEGRAL_RANGES:
        low, high = INTEGRAL_RANGES[data_type]
        return Grid(data_type, low, high, lambda index: index)
    if isinstance(data_type, DecimalType):
        scale, bound = data_type.scale, 10**data_type.precision - 1
        return Grid(data_type, -bound, bound, lambda index: _unscaled(index, scale))
    if data_type == DATE:
        low, high = (date.min - _EPOCH_DAY).days, (date.max - _EPOCH_DAY).days
        return Grid(data_type, low, high, lambda index: _EPOCH_DAY + timedelta(days=index))
    return None


def _unscaled(index: int, scale: int) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(index)))
    return Decimal((int(index < 0), digits, -scale))


def compare_with_number(operator: str, column: Expression, grid: Grid, value: int | Decimal | float) -> Expression:
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


def compare_with_timestamp(operator: str, column: Expression, grid: Grid, moment: datetime) -> Expression:
    """`column operator moment` for a date column, which counts as midnight; `moment` is naive, in UTC."""
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    return _compare(operator, column, grid, lambda index: index * _MICROS_PER_DAY, micros)


def _compare(
    operator: str, column: Expression, grid: Grid, convert: Callable[[int], Constant], target: int | float
) -> Expression:
    if isinstance(target, float) and math.isnan(target):
        return _between(operator, column, grid, grid.high + 1, grid.high)  # NaN is above every number
    first = _first(grid, lambda index: convert(index) >= target)
    last = _first(grid, lambda index: convert(index) > target) - 1
    return _between(operator, column, grid, first, last)


def _first(grid: Grid, holds: Callable[[int], bool]) -> int:
    """The lowest number for which a monotone condition holds, `high + 1` if there is none."""
    low, high = grid.low, grid.high + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _between(operator: str, column: Expression, grid: Grid, first: int, last: int) -> Expression:
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
