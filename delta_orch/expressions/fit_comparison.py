"""A column compared with a constant: the constant in the column's type, as Spark's comparison would come out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.fit_literal import compare_with_number, compare_with_timestamp, grid_of
from delta_orch.expressions.nodes import Coerced, Column, Comparison, Constant, Expression, Literal
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    natural_type,
    parse_spark_boolean,
    parse_spark_date,
    parse_spark_double,
    parse_spark_long,
    parse_spark_timestamp,
    parse_spark_timestamp_ntz,
    round_to_float,
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
)


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
    fit = _FITS.get(type(data_type) if isinstance(data_type, DecimalType) else data_type)
    fitted = fit(op, column, data_type, literal.value) if fit is not None else None
    return fitted if fitted is not None else refuse_comparison(op, column, data_type, kind)


def _canonical(value: Constant, data_type: DataType) -> Constant:
    if data_type == TIMESTAMP:
        return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return float(value) if data_type in (FLOAT, DOUBLE) else value


def _fit_number(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if isinstance(value, str):
        value = parse_spark_long(value) if data_type in INTEGRAL_RANGES else parse_spark_double(value)
    grid = grid_of(data_type)
    if grid is None or not _is_number(value):
        return None
    return compare_with_number(op, column, grid, value)


def _fit_float(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if isinstance(value, str):
        value = parse_spark_double(value)
    if not _is_number(value):
        return None
    number = float(value)
    rounded = round_to_float(number) if data_type == FLOAT else number
    fits = rounded == number or number != number
    return Comparison(op, column, Literal(rounded, data_type) if fits else Literal(number, DOUBLE))


def _is_number(value: Constant) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _fit_boolean(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if not isinstance(value, str):
        return None
    return Comparison(op, column, Literal(parse_spark_boolean(value), data_type))


def _fit_binary(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if not isinstance(value, str | bytearray):
        return None
    return Comparison(op, column, Literal(value.encode() if isinstance(value, str) else bytes(value), data_type))


def _fit_date(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if isinstance(value, str):
        return Comparison(op, column, Literal(parse_spark_date(value), data_type))
    if not isinstance(value, datetime):
        return None
    grid = grid_of(data_type)
    assert grid is not None
    return compare_with_timestamp(op, column, grid, _naive_utc(value))


def _fit_timestamp(op: str, column: Column, data_type: DataType, value: Constant) -> Expression | None:
    if isinstance(value, str):
        value = parse_spark_timestamp(value) if data_type == TIMESTAMP else parse_spark_timestamp_ntz(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    elif not isinstance(value, datetime):
        return None
    naive = _naive_utc(value)
    return Comparison(op, column, Literal(naive.replace(tzinfo=UTC) if data_type == TIMESTAMP else naive, data_type))


def _naive_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


_Fit = Callable[[str, Column, DataType, Constant], Expression | None]
_FITS: dict[DataType | type[DecimalType], _Fit] = {
    **dict.fromkeys(INTEGRAL_RANGES, _fit_number),
    DecimalType: _fit_number,
    FLOAT: _fit_float,
    DOUBLE: _fit_float,
    BOOLEAN: _fit_boolean,
    BINARY: _fit_binary,
    DATE: _fit_date,
    TIMESTAMP: _fit_timestamp,
    TIMESTAMP_NTZ: _fit_timestamp,
}


def refuse_comparison(op: str, column: Column, left: DataType, right: DataType) -> Expression:
    raise InvalidExpressionError(
        f"The column {'.'.join(column.path)} of type {left} cannot be compared with a {right}",
        remedy=f"Compare it with a value of type {left}",
        column=".".join(column.path),
        operator=op,
    )
