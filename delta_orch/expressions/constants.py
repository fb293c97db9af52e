"""Constants of Spark SQL: numbers with a suffix, and values computed only from constants."""

from __future__ import annotations

import math
import re
from calendar import monthrange
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import NamedTuple

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Call, Expression, Literal, Operation
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    MAX_DECIMAL_DIGITS,
    PARSERS,
    decimal_type_of,
    round_to_float,
)
from delta_orch.expressions.tokens import Unreadable
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)

# Python's default context would round to 28 digits.
_EXACT = Context(prec=100)
_MAX_NUMBER_CHARACTERS = 1000
_TYPES: dict[str, DataType] = {
    "BOOLEAN": BOOLEAN, "TINYINT": BYTE, "BYTE": BYTE, "SMALLINT": SHORT, "SHORT": SHORT, "INT": INTEGER,
    "INTEGER": INTEGER, "BIGINT": LONG, "LONG": LONG, "FLOAT": FLOAT, "REAL": FLOAT, "DOUBLE": DOUBLE,
    "STRING": STRING, "BINARY": BINARY, "DATE": DATE, "TIMESTAMP": TIMESTAMP, "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}  # fmt: skip
CASTS = {
    "bigint": "BIGINT", "boolean": "BOOLEAN", "date": "DATE", "double": "DOUBLE", "float": "FLOAT", "int": "INT",
    "smallint": "SMALLINT", "string": "STRING", "timestamp": "TIMESTAMP", "tinyint": "TINYINT",
    "to_timestamp": "TIMESTAMP",
}  # fmt: skip
"""Functions of one argument that cast it to a type."""
_SUFFIXES: dict[str, DataType] = {"L": LONG, "S": SHORT, "Y": BYTE}


def type_of(name: str) -> DataType | None:
    """An atomic type by its name in Spark SQL, None for any other. Raises InvalidExpressionError for a decimal beyond
    the digits that it may have."""
    decimal = re.fullmatch(r"(?:DECIMAL|DEC|NUMERIC)(?:\((\d{1,9})(?:,(\d{1,9}))?\))?", name)
    if decimal is not None:
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if not (1 <= precision <= MAX_DECIMAL_DIGITS and scale <= precision):
            raise InvalidExpressionError(
                f"There is no type {name}",
                cause=f"A decimal has 1 to {MAX_DECIMAL_DIGITS} digits, and no more of them behind the point",
                remedy="Write DECIMAL(38, 18), or less",
                type=name,
            )
        return DecimalType(precision, scale)
    return _TYPES.get(name)


def number_of(text: str) -> Literal:
    """A number as it is written. Integers and decimals without a suffix stay untyped (`data_type` None), doubles not.

    Raises:
        InvalidExpressionError: It does not fit its type.
        Unreadable: It is not a number.
    """
    if len(text) > _MAX_NUMBER_CHARACTERS:
        raise InvalidExpressionError(
            f"The number {text[:20]}… has {len(text)} characters", cause="A decimal has 38 digits at most"
        )
    suffix = "BD" if text[-2:].upper() == "BD" else text[-1:].upper() if text[-1:].isalpha() else ""
    digits = text.removesuffix(text[len(text) - len(suffix) :]) if suffix else text
    is_whole = digits.removeprefix("-").isdigit()
    if suffix in _SUFFIXES:
        if not is_whole:
            raise Unreadable(f"{text[:40]} is not a number")
        return _integral(int(digits), _SUFFIXES[suffix])
    if suffix in ("D", "F") or (not suffix and "e" in digits.lower()):
        kind = FLOAT if suffix == "F" else DOUBLE
        number = float(digits) if kind == DOUBLE else round_to_float(float(digits))
        if math.isinf(number):
            raise InvalidExpressionError(f"The number {text[:40]} does not fit {kind}", value=text, type=str(kind))
        return Literal(number, kind)
    value = Decimal(digits)
    data_type = decimal_type_of(value)
    return Literal(int(digits)) if is_whole and not suffix else Literal(value, data_type)


def binary_of(text: str) -> Literal:
    """`X'…'`."""
    return Literal(bytes.fromhex(text if len(text) % 2 == 0 else "0" + text), BINARY)


def constant_of(node: Expression) -> Literal | None:
    """The constant that a node stands for. None if it is not a constant, or if its value cannot be computed here.

    Raises InvalidExpressionError for a constant that Spark refuses, such as `DATE '2013-02-30'`.
    """
    match node:
        case Literal():
            return node
        case Operation("-" | "+" as sign, (child,)):
            return _signed(sign, constant_of(child))
        case Operation("-" | "+" as sign, (first, second)):
            return _sum(first, second, -1 if sign == "-" else 1)
        case Call("date_add" | "date_sub" as name, (first, second), "") if not isinstance(node, Operation):
            start = constant_of(first)
            return start and days_after(start, constant_of(second), -1 if name == "date_sub" else 1)
        case Operation("CAST", (child,), name):
            data_type = type_of(name)
        case Operation(name, (child,)) if name in _TYPES:
            data_type = _TYPES[name]
        case Call(name, (child,), "") if name in CASTS and not isinstance(node, Operation):
            data_type = _TYPES[CASTS[name]]
        case _:
            return None
    literal = constant_of(child) if isinstance(child, Literal | Call) else None
    return None if literal is None or data_type is None else _cast(literal, data_type)


def _sum(first: Expression, second: Expression, sign: int) -> Literal | None:
    """Of a date or a time, and what moves it."""
    if isinstance(first, Operation) and first.name == "INTERVAL" and sign == 1:
        first, second = second, first
    start = constant_of(first)
    if start is None or not isinstance(start.value, date):
        return None
    if isinstance(second, Operation) and second.name == "INTERVAL":
        return interval_after(start, second.detail, sign)
    return days_after(start, constant_of(second), sign)


def _signed(sign: str, literal: Literal | None) -> Literal | None:
    if literal is None or isinstance(literal.value, bool) or not isinstance(literal.value, int | float | Decimal):
        return None
    if sign == "+":
        return literal
    if isinstance(literal.value, int) and literal.data_type is not None:
        return _integral(-literal.value, literal.data_type)
    negated = literal.value.copy_negate() if isinstance(literal.value, Decimal) else -literal.value
    return Literal(negated, literal.data_type)


def _cast(literal: Literal, data_type: DataType) -> Literal | None:
    value = literal.value
    if value is None:
        return Literal(None, data_type)
    if isinstance(value, str):
        return _cast_text(value, data_type)
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float) or literal.data_type in INTEGRAL_RANGES:
        return None
    return _cast_number(f"{value:f}" if isinstance(value, Decimal) else repr(value), data_type)


def _cast_text(text: str, data_type: DataType) -> Literal | None:
    if data_type == STRING:
        return Literal(text, STRING)
    if data_type not in PARSERS:
        return _cast_number(text, data_type)
    value = PARSERS[data_type](text)
    if data_type in INTEGRAL_RANGES:
        return _integral(value, data_type)
    return Literal(round_to_float(value) if data_type == FLOAT else value, data_type)


def _cast_number(text: str, data_type: DataType) -> Literal | None:
    if len(text) > _MAX_NUMBER_CHARACTERS or not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return None
    if data_type in INTEGRAL_RANGES and re.fullmatch(r"-?\d+", text):
        return _integral(int(text), data_type)
    if data_type == DOUBLE:
        return Literal(float(text), DOUBLE)
    if data_type == FLOAT:
        return Literal(round_to_float(float(text)), FLOAT)
    return _decimal(Decimal(text), data_type) if isinstance(data_type, DecimalType) else None


def _integral(value: int, data_type: DataType) -> Literal:
    low, high = INTEGRAL_RANGES[data_type]
    if not low <= value <= high:
        raise InvalidExpressionError(f"The number {value} does not fit {data_type}", value=value, type=str(data_type))
    return Literal(value, data_type)


def _decimal(value: Decimal, data_type: DecimalType) -> Literal | None:
    precision, scale = data_type.precision, data_type.scale
    needed = decimal_type_of(value.normalize(_EXACT))
    fits = needed.scale <= scale and needed.precision - needed.scale <= precision - scale
    return Literal(value.quantize(Decimal(1).scaleb(-scale), context=_EXACT), data_type) if fits else None


# Sums of a constant date or time with days or an interval: they are constants, so that files are left out by them.
#
# Spark adds days and months in the zone of its session. Here, as everywhere in predicates, that is UTC.

_PART = re.compile(r"(['\"]?)\s*([+-]?\d{1,9}(?:\.\d{1,6})?)\s*\1 (YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND)S? ?")
_MONTHS = re.compile(r"'([+-]?)(\d{1,4})-(0?\d|1[01])' YEAR TO MONTH")
_TIME = re.compile(r"'([+-]?)(\d{1,6}) ([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d(?:\.\d{1,6})?)' DAY TO SECOND")
_MICROS = {"WEEK": 604_800_000_000, "DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000,
           "SECOND": 1_000_000}  # fmt: skip
_DAYS: tuple[DataType | None, ...] = (None, BYTE, SHORT, INTEGER)


def days_after(start: Literal, days: Literal | None, sign: int) -> Literal | None:
    """A date and a whole number of days; `sign` -1 goes back. None if it may not be a constant."""
    if start.data_type != DATE or days is None or days.data_type not in _DAYS or type(days.value) is not int:
        return None
    return _after(start, timedelta(days=1), days.value * sign)


class Interval(NamedTuple):
    """An interval of months or of microseconds. `has_time`: it has a unit shorter than a day."""

    months: int
    micros: int
    has_time: bool


def interval_of(text: str) -> Interval | None:
    """An interval, as text has it without its first word. None if engines may compute different values."""
    if (match := _MONTHS.fullmatch(text)) is not None:
        months = int(match[2]) * 12 + int(match[3])
        return Interval(-months if match[1] == "-" else months, 0, False)
    parts = [(number, unit) for _, number, unit in _PART.findall(text)]
    if (match := _TIME.fullmatch(text)) is not None:
        units = ("DAY", "HOUR", "MINUTE", "SECOND")
        parts = [(match[1] + number, unit) for number, unit in zip(match.groups()[1:], units, strict=True)]
    elif _PART.sub("", text) or not parts:
        return None
    units_of = {unit for _, unit in parts}
    if any("." in number and unit != "SECOND" for number, unit in parts):
        return None
    if units_of <= {"YEAR", "MONTH"}:
        return Interval(sum(int(number) * (12 if unit == "YEAR" else 1) for number, unit in parts), 0, False)
    if not units_of <= _MICROS.keys():
        return None
    micros = sum(int(Decimal(number) * _MICROS[unit]) for number, unit in parts)
    return Interval(0, micros, not units_of <= {"DAY", "WEEK"})


def interval_after(start: Literal, interval: str, sign: int) -> Literal | None:
    """A date or time and an interval, as text has it without its first word. None as for `days_after`, and if the sum
    of a date and an interval is a time."""
    parsed = interval_of(interval)
    if parsed is None or start.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return None
    if parsed.months:
        return months_after(start, parsed.months * sign)
    if start.data_type == DATE and parsed.has_time:
        return None
    return _after(start, timedelta(microseconds=parsed.micros), sign)


def months_after(start: Literal, months: int) -> Literal | None:
    """The same day of another month, or its last one."""
    if not isinstance(start.value, date):
        return None
    year, month = divmod(start.value.year * 12 + start.value.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    day = min(start.value.day, monthrange(year, month + 1)[1])
    return Literal(start.value.replace(year=year, month=month + 1, day=day), start.data_type)


def _after(start: Literal, step: timedelta, count: int) -> Literal | None:
    if not isinstance(start.value, date):
        return None
    try:
        return Literal(start.value + step * count, start.data_type)
    except OverflowError:
        # Years that Spark can count with, and Python cannot.
        return None
