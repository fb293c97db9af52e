"""Spark's spelling of constants: how it reads strings as other types, and how a constant is written into Spark SQL.

Pure functions on text and Python values, no SQL parser. Zone-less timestamps are UTC here, never the session's zone, so
that planning in Python and evaluation in an engine agree.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Constant
from delta_orch.protocol.epoch import (
    FarDate,
    FarMoment,
    date_of,
    days_since_epoch,
    micros_since_epoch,
    moment_of,
    near_year,
)
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
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    as_stored,
)

_SQL_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}

MAX_DECIMAL_DIGITS = 38

INTEGRAL_RANGES: dict[DataType, tuple[int, int]] = {
    BYTE: (-(2**7), 2**7 - 1),
    SHORT: (-(2**15), 2**15 - 1),
    INTEGER: (-(2**31), 2**31 - 1),
    LONG: (-(2**63), 2**63 - 1),
}

# DuckDB has no later ones, and takes the last for infinities.
_MOST_DAYS, _MOST_MICROS = 2**31 - 2, 2**63 - 2

_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
# The characters that Spark's trimAll removes: blanks and ISO control characters.
_TRIMMED = "".join(map(chr, range(0x21))) + "\x7f"
_DATE = r"(?s)([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?"
_TIMESTAMP = (
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?\s*([A-Za-z+-].*)?)?)?)?)?"
)
_OFFSET = r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?"
_DOUBLE = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?"


def _not_a(text: str, data_type: DataType) -> InvalidExpressionError:
    return InvalidExpressionError(
        f"The string {text[:200]!r} is not a valid {data_type}",
        remedy=f"Write a value that Spark can cast to {data_type}",
        value=text,
        type=str(data_type),
    )


def parse_spark_boolean(text: str) -> bool:
    """As `CAST(text AS BOOLEAN)`. Raises InvalidExpressionError."""
    folded = text.strip(_TRIMMED).lower()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise _not_a(text, BOOLEAN)


def parse_spark_long(text: str) -> int:
    """As `CAST(text AS BIGINT)` under ANSI: no fraction, no exponent. Raises InvalidExpressionError."""
    trimmed = text.strip(_TRIMMED)
    if re.fullmatch(r"[+-]?0*[0-9]{1,19}", trimmed):
        value = int(trimmed)
        low, high = INTEGRAL_RANGES[LONG]
        if low <= value <= high:
            return value
    raise _not_a(text, LONG)


def parse_spark_double(text: str) -> float:
    """As `CAST(text AS DOUBLE)` under ANSI. Raises InvalidExpressionError."""
    trimmed = text.strip(_TRIMMED)
    folded = trimmed.lower()
    if folded in {"inf", "+inf", "infinity", "+infinity"}:
        return math.inf
    if folded in {"-inf", "-infinity"}:
        return -math.inf
    if folded == "nan":
        return math.nan
    match = re.fullmatch(_DOUBLE, trimmed)
    if match is None or not trimmed.isascii():
        raise _not_a(text, DOUBLE)
    return float(match[1])


def parse_spark_date(text: str) -> date | FarDate:
    """As `CAST(text AS DATE)`: `2013`, `2013-1`, `2013-1-5`, anything after a blank or `T` is ignored.

    Raises InvalidExpressionError.
    """
    match = re.fullmatch(_DATE, text.strip(_TRIMMED))
    if match is None or not match[0].isascii():
        raise _not_a(text, DATE)
    year, days_later = near_year(int(match[1]))
    try:
        days = days_since_epoch(date(year, int(match[2] or 1), int(match[3] or 1))) + days_later
    except ValueError:
        raise _not_a(text, DATE) from None
    if abs(days) >= _MOST_DAYS:
        raise _not_a(text, DATE)
    return date_of(days)


def parse_spark_timestamp(text: str) -> datetime | FarMoment:
    """As `CAST(text AS TIMESTAMP)` in a session whose time zone is UTC; the result is aware, in UTC.

    Digits below the microsecond are cut off. Raises InvalidExpressionError.
    """
    local, days_later, zone = _parse_timestamp_parts(text, TIMESTAMP)
    try:
        local = local.replace(tzinfo=UTC if zone is None else _parse_zone(zone))
    except (ValueError, KeyError, OSError):
        raise _not_a(text, TIMESTAMP) from None
    return _later(local, days_later, text, TIMESTAMP)


def parse_spark_timestamp_ntz(text: str) -> datetime | FarMoment:
    """As `CAST(text AS TIMESTAMP_NTZ)`: a zone in the text is ignored. Raises InvalidExpressionError."""
    local, days_later, _ = _parse_timestamp_parts(text, TIMESTAMP_NTZ)
    return _later(local, days_later, text, TIMESTAMP_NTZ)


def _later(moment: datetime, days: int, text: str, data_type: DataType) -> datetime | FarMoment:
    micros = micros_since_epoch(moment) + days * 86_400_000_000
    if abs(micros) >= _MOST_MICROS:
        raise _not_a(text, data_type)
    return moment_of(micros, utc=data_type == TIMESTAMP)


PARSERS: dict[DataType, Callable[[str], Constant]] = {
    **dict.fromkeys(INTEGRAL_RANGES, parse_spark_long),
    BOOLEAN: parse_spark_boolean,
    FLOAT: parse_spark_double,
    DOUBLE: parse_spark_double,
    DATE: parse_spark_date,
    TIMESTAMP: parse_spark_timestamp,
    TIMESTAMP_NTZ: parse_spark_timestamp_ntz,
}
"""The function that parses text as a value of a type. Integers may still be out of the type's range, floats have 64
bits."""


def _parse_timestamp_parts(text: str, data_type: DataType) -> tuple[datetime, int, str | None]:
    """A time in a year that Python has, how many days later it is, and its zone."""
    match = re.fullmatch(_TIMESTAMP, text.strip(_TRIMMED))
    if match is None or not match[0].isascii():
        raise _not_a(text, data_type)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int(((fraction or "") + "000000")[:6])
    near, days_later = near_year(int(year))
    try:
        moment = datetime(
            near, int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0), micros
        )
    except ValueError:
        raise _not_a(text, data_type) from None
    return moment, days_later, zone


def _parse_zone(text: str) -> tzinfo:
    """Raises KeyError where there is no such zone."""
    name = text.strip()
    if name in {"Z", "UTC", "GMT", "UT"}:
        return UTC
    match = re.fullmatch(_OFFSET, name)
    if match is None:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0), seconds=int(match[4] or 0))
    if offset > timedelta(hours=18):
        raise ValueError(text)
    return timezone(offset if match[1] == "+" else -offset)


def round_to_float(value: float) -> float:
    """The nearest value of Delta's 32-bit `float`, as a Python float."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def decimal_type_of(value: Decimal) -> DecimalType:
    """The type Spark gives a decimal constant: exactly its digits. Raises InvalidExpressionError for more than 38."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidExpressionError(f"{value} is not a decimal", value=str(value))
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > MAX_DECIMAL_DIGITS:
        raise InvalidExpressionError(
            f"The number {value} has {precision} digits",
            cause=f"A decimal has {MAX_DECIMAL_DIGITS} digits at most",
            value=str(value),
        )
    return DecimalType(precision, scale)


def quote_identifier(name: str) -> str:
    """A column's name for Spark SQL, in backticks."""
    return "`" + name.replace("`", "``") + "`"


def type_sql(data_type: DataType) -> str:
    """The name in Spark SQL of the type that values have there."""
    match data_type:
        case DecimalType(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case ArrayType(element_type, _):
            return f"ARRAY<{type_sql(element_type)}>"
        case MapType(key_type, value_type, _):
            return f"MAP<{type_sql(key_type)},{type_sql(value_type)}>"
        case StructType(fields):
            return "STRUCT<" + ",".join(f"{quote_identifier(f.name)}:{type_sql(f.data_type)}" for f in fields) + ">"
        case _:
            name = str(as_stored(data_type))
            return _SQL_NAMES.get(name, name.upper())


def quote_string(text: str) -> str:
    """A string constant for Spark SQL, escaped so that it reads the same however often it is parsed."""
    return "'" + without_variables(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def without_variables(escaped: str) -> str:
    """The inside of a string constant, spelled so that Spark finds no variable in it. Before it parses SQL, Spark
    replaces `${env:…}`, `${system:…}` and `${…}` by the environment, Java's properties and its settings."""
    return escaped.replace("${", "$\\{")


def spark_literal(value: Constant, data_type: DataType | None) -> str:
    """A constant in Spark SQL, of exactly that type, independent of the session's time zone.

    With `data_type` None the type is the one Spark SQL gives the Python value's natural spelling.
    """
    if value is None:
        return "NULL" if data_type is None else f"CAST(NULL AS {type_sql(data_type)})"
    kind = data_type if data_type is not None else natural_type(value)
    if kind == BOOLEAN:
        return "TRUE" if value else "FALSE"
    if kind in INTEGRAL_RANGES:
        # -9223372036854775808L does not parse: the sign is an operator. The cast is folded at planning.
        return f"CAST('{int(value)}' AS {type_sql(kind)})" if kind != INTEGER or value < 0 else str(int(value))
    if isinstance(kind, DecimalType):
        return f"CAST('{Decimal(value):f}' AS {type_sql(kind)})"
    if kind in (FLOAT, DOUBLE):
        from delta_orch.protocol.partition_values import serialize_float

        return f"CAST('{serialize_float(float(value))}' AS {type_sql(kind)})"
    if kind == STRING:
        return quote_string(value)
    if kind == BINARY:
        return f"X'{bytes(value).hex()}'"
    if kind == DATE:
        return f"DATE '{value.isoformat()}'"
    if kind == TIMESTAMP:
        if isinstance(value, FarMoment):
            return f"TIMESTAMP_LTZ '{value.isoformat(' ').removesuffix('+00:00')}Z'"
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return f"TIMESTAMP_LTZ '{_iso(moment.astimezone(UTC))}Z'"
    if kind == TIMESTAMP_NTZ:
        return f"TIMESTAMP_NTZ '{_iso(value)}'"
    raise InvalidExpressionError(f"There are no constants of type {kind}", type=str(kind))


def natural_type(value: object) -> DataType:
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        for kind in (INTEGER, LONG):
            low, high = INTEGRAL_RANGES[kind]
            if low <= value <= high:
                return kind
        return decimal_type_of(Decimal(value))
    if isinstance(value, Decimal):
        return decimal_type_of(value)
    if isinstance(value, float):
        return DOUBLE
    if isinstance(value, str):
        return STRING
    if isinstance(value, bytes | bytearray):
        return BINARY
    if isinstance(value, datetime):
        return TIMESTAMP_NTZ if value.tzinfo is None else TIMESTAMP
    if isinstance(value, FarMoment):
        return TIMESTAMP if value.utc else TIMESTAMP_NTZ
    if isinstance(value, date | FarDate):
        return DATE
    raise InvalidExpressionError(
        f"A {type(value).__name__} cannot be a constant in an expression",
        remedy="Use None, bool, int, float, Decimal, str, bytes, date or datetime, or text in Spark SQL",
        type=type(value).__name__,
    )


def _iso(moment: datetime | FarMoment) -> str:
    if isinstance(moment, FarMoment):
        return moment.isoformat(" ")
    # strftime leaves years below 1000 unpadded on some platforms; isoformat never does.
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def like_prefix(pattern: str, escape: str = "\\") -> str | None:
    """The text before the `%` that ends a pattern without any other wildcard; None for every other pattern."""
    prefix: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in {"%", "_", escape}:
                return None
            prefix.append(escaped)
        elif character == "%":
            return "".join(prefix) if next(characters, None) is None else None
        elif character == "_":
            return None
        else:
            prefix.append(character)
    return None
