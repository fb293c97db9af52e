"""Constants of Spark SQL: numbers with a suffix, and values computed only from constants."""

from __future__ import annotations

import math
import re
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
    """An atomic type by its name in Spark SQL. None for any other name.

    Raises InvalidExpressionError: A decimal has too many digits.
    """
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
    """A number of the text. Integers without a suffix have no type yet (`data_type` is None).

    Raises:
        InvalidExpressionError: The number does not fit its type.
        Unreadable: The text is not a number.
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
            return start and _moved(start, _days(constant_of(second)), -1 if name == "date_sub" else 1)
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
    """The sum of a constant date or time and an interval or a number of days."""
    if isinstance(first, Operation) and first.name == "INTERVAL" and sign == 1:
        first, second = second, first
    start = constant_of(first)
    if isinstance(second, Operation) and second.name == "INTERVAL":
        step = interval_of(second.detail)
    else:
        step = _days(constant_of(second))
    return None if start is None else _moved(start, step, sign)


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
    value, is_text = literal.value, isinstance(literal.value, str)
    if value is None or (is_text and data_type == STRING):
        return Literal(value, data_type)
    if is_text and data_type in PARSERS:
        parsed = PARSERS[data_type](value)
        if data_type in INTEGRAL_RANGES:
            return _integral(parsed, data_type)
        return Literal(round_to_float(parsed) if data_type == FLOAT else parsed, data_type)
    is_number = isinstance(value, int | Decimal | float) and not isinstance(value, bool)
    if not (is_text or is_number) or literal.data_type in INTEGRAL_RANGES:
        return None
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    if len(text) > _MAX_NUMBER_CHARACTERS or not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return None
    if data_type in INTEGRAL_RANGES and re.fullmatch(r"-?\d+", text):
        return _integral(int(text), data_type)
    if data_type in (FLOAT, DOUBLE):
        return Literal(round_to_float(float(text)) if data_type == FLOAT else float(text), data_type)
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


# Sums of a constant date or time and days or an interval. They are constants, so that they leave out files.
#
# Spark adds days and months in the zone of its session. Here, as everywhere in predicates, that is UTC.

# Patterns are compiled at their first use.
_PART = r"(['\"]?)\s*([+-]?\d{1,9}(?:\.\d{1,6})?)\s*\1 (YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND)S? ?"
_MONTHS = r"'([+-]?)(\d{1,4})-(0?\d|1[01])' YEAR TO MONTH"
_TIME = r"'([+-]?)(\d{1,6}) ([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d(?:\.\d{1,6})?)' DAY TO SECOND"
_MICROS = {"WEEK": 604_800_000_000, "DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000,
           "SECOND": 1_000_000}  # fmt: skip
_DAYS: tuple[DataType | None, ...] = (None, BYTE, SHORT, INTEGER)


class Interval(NamedTuple):
    """An interval of months or of microseconds.

    Attributes:
        has_time: It has a unit that is shorter than a day.
        only_dates: It is a number of days, which Spark adds to dates only.
    """

    months: int
    micros: int
    has_time: bool
    only_dates: bool = False


def interval_of(text: str) -> Interval | None:
    """An interval by its text without the word INTERVAL. None if engines may compute different values."""
    if (match := re.fullmatch(_MONTHS, text)) is not None:
        months = int(match[2]) * 12 + int(match[3])
        return Interval(-months if match[1] == "-" else months, 0, False)
    parts = [(number, unit) for _, number, unit in re.findall(_PART, text)]
    if (match := re.fullmatch(_TIME, text)) is not None:
        units = ("DAY", "HOUR", "MINUTE", "SECOND")
        parts = [(match[1] + number, unit) for number, unit in zip(match.groups()[1:], units, strict=True)]
    elif re.sub(_PART, "", text) or not parts:
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


def _days(literal: Literal | None) -> Interval | None:
    """A constant number of days beside a date. None if Spark adds no such number to a date."""
    if literal is None or literal.data_type not in _DAYS or type(literal.value) is not int:
        return None
    return Interval(0, literal.value * _MICROS["DAY"], False, only_dates=True)


def _moved(start: Literal, step: Interval | None, sign: int) -> Literal | None:
    """A date or a time and an interval; `sign` -1 goes back. None if the sum may not be a constant: Spark has more
    years than Python, and a date and hours are a time."""
    value, kind = start.value, start.data_type
    if step is None or not isinstance(value, date) or kind not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return None
    if step.has_time if kind == DATE else step.only_dates:
        return None
    year, month = divmod(value.year * 12 + value.month - 1 + step.months * sign, 12)
    try:
        if step.months:
            from calendar import monthrange  # it loads `locale`, which a scan by a plain predicate does not need

            value = value.replace(year=year, month=month + 1, day=min(value.day, monthrange(year, month + 1)[1]))
        return Literal(value + timedelta(microseconds=step.micros * sign), kind)
    except (OverflowError, ValueError):
        return None
