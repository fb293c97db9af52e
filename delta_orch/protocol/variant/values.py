"""The types of variant values, their Python classes, and their canonical JSON text.

A decoded variant is made of None, bool, int, float, Decimal, str, bytes, date, datetime (aware: `timestamp`, always
UTC; naive: `timestamp_ntz`), time, UUID, dict and list. Nanoseconds, and days beyond the years 1 to 9999, come as the
classes of this module, so that nothing is lost.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import IntEnum
from json.encoder import encode_basestring
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

from delta_orch.errors import InvalidRequestError, InvalidVariantError

VariantValue = Any
"""A value from or for a variant, as the module says; dicts and lists hold such values again."""

METADATA_VERSION = 1
MAX_SHORT_STRING_BYTES = 63
MAX_CHILDREN_OF_SMALL = 255
_MAX_SIZE_BYTES = (1 << 32) - 1
MAX_DEPTH = 1000
"""How deeply objects and arrays may be nested. Spark's JSON parser has the same bound."""

_DAYS_OF_400_YEARS = 146_097
_PER_SECOND = {"us": 1_000_000, "ns": 1_000_000_000}


class BasicType(IntEnum):
    """The low two bits of a value's first byte."""

    PRIMITIVE = 0
    SHORT_STRING = 1
    OBJECT = 2
    ARRAY = 3


class Kind(IntEnum):
    """The type of a value: the id of a primitive type (the upper six bits of its first byte), or a container."""

    NULL = 0
    TRUE = 1
    FALSE = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    DOUBLE = 7
    DECIMAL4 = 8
    DECIMAL8 = 9
    DECIMAL16 = 10
    DATE = 11
    TIMESTAMP = 12
    TIMESTAMP_NTZ = 13
    FLOAT = 14
    BINARY = 15
    STRING = 16
    TIME = 17
    TIMESTAMP_NANOS = 18
    TIMESTAMP_NTZ_NANOS = 19
    UUID = 20
    OBJECT = 64
    ARRAY = 65

    @property
    def type_name(self) -> str:
        return "boolean" if self in BOOLEANS else self.name.lower()


SIZE_BYTES = (1, 1, 1, 2, 3, 5, 9, 9, 6, 10, 18, 5, 9, 9, 5, 0, 0, 9, 9, 9, 17)
"""Size of a primitive value by its id, first byte included; 0 where a length follows."""

BOOLEANS = (Kind.TRUE, Kind.FALSE)
INTEGERS = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)
DECIMAL_DIGITS = {Kind.DECIMAL4: 9, Kind.DECIMAL8: 18, Kind.DECIMAL16: 38}
DECIMAL_BYTES = {Kind.DECIMAL4: 4, Kind.DECIMAL8: 8, Kind.DECIMAL16: 16}
MAX_DECIMAL_SCALE = 38
ARROW_TYPES = {
    Kind.TRUE: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.FLOAT: pa.float32(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
    Kind.BINARY: pa.binary(),
    Kind.STRING: pa.string(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP_NANOS: pa.timestamp("ns", "UTC"),
    Kind.TIMESTAMP_NTZ_NANOS: pa.timestamp("ns"),
    Kind.UUID: pa.binary(16),
}
"""The Arrow type of a column of one type. Decimals have one for each scale; both booleans have that of `TRUE`."""

MICROS_OF_A_DAY = 86_400_000_000
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
MIN_DAYS, MAX_DAYS = 1 - EPOCH_ORDINAL, date.max.toordinal() - EPOCH_ORDINAL
"""The days that Python's calendar has."""


def kind_of(first_byte: int) -> Kind | None:
    """The type of a value by its first byte; None where the type does not exist."""
    basic, upper = first_byte & 3, first_byte >> 2
    if basic == BasicType.PRIMITIVE:
        return Kind(upper) if upper < len(SIZE_BYTES) else None
    return (Kind.STRING, Kind.OBJECT, Kind.ARRAY)[basic - 1]


def invalid_variant(problem: str, cause: str | None = None) -> InvalidVariantError:
    """The error of this package, with the remedy it always has."""
    return InvalidVariantError(
        f"A variant cannot be read: {problem}",
        cause=cause,
        remedy="Rewrite the data file that holds it, or restore the table to a version before it",
    )


def width_of(largest: int) -> int:
    """The fewest bytes that hold an unsigned integer."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def ensure_size(what: str, size_bytes: int) -> None:
    """Refuse content that is larger than its size can say."""
    if size_bytes > _MAX_SIZE_BYTES:
        raise InvalidRequestError(
            f"{what} is larger than a variant can be",
            cause=f"It may have {_MAX_SIZE_BYTES} bytes",
            remedy="Split it, or keep it in a column of its own",
            size_bytes=size_bytes,
        )


@dataclass(frozen=True, slots=True, order=True)
class VariantDate:
    """A day before the year 1 or after 9999.

    Attributes:
        days: Days since 1970-01-01 in the proleptic Gregorian calendar.
    """

    days: int

    def isoformat(self) -> str:
        """ISO 8601; years beyond four digits, and years before 0, have a sign."""
        return _iso_day(self.days)


@dataclass(frozen=True, slots=True)
class VariantTimestamp:
    """An instant or a wall-clock time, where `datetime` would lose digits or ends.

    Attributes:
        count: Units since 1970-01-01T00:00:00, in UTC where `utc` is set.
        unit: `us` or `ns`.
        utc: An instant (`timestamp…`), not a wall-clock time (`timestamp_ntz…`).
    """

    count: int
    unit: Literal["us", "ns"]
    utc: bool

    @property
    def type_name(self) -> str:
        return ("timestamp" if self.utc else "timestamp_ntz") + ("_nanos" if self.unit == "ns" else "")

    def isoformat(self) -> str:
        """ISO 8601 with six or nine digits after the point, or none where all are zero."""
        per_second = _PER_SECOND[self.unit]
        seconds, fraction = divmod(self.count, per_second)
        days, second = divmod(seconds, 86_400)
        text = f"{_iso_day(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        if fraction:
            text += f".{fraction:0{6 if self.unit == 'us' else 9}}"
        return text + ("+00:00" if self.utc else "")


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A scalar with the exact type it is to be encoded as: `TypedValue("int32", 1)` is not shortened to an int8.

    Attributes:
        type_name: The `type_name` of a `Kind`.
        value: A Python value of that type. `decimal4`, `decimal8` and `decimal16` take Decimals and keep their scale.
    """

    type_name: str
    value: VariantValue


def _iso_day(days: int) -> str:
    # Python's calendar covers the years 1 to 9999; the calendar repeats every 400 years.
    cycles, day = divmod(days + EPOCH_ORDINAL - 1, _DAYS_OF_400_YEARS)
    inside = date.fromordinal(day + 1)
    year = inside.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{inside.month:02}-{inside.day:02}"


# JSON text


def scalar_json(value: VariantValue) -> str:
    """The canonical JSON text of a decoded value that is neither object nor array (`json_columns.json_texts`)."""
    return _SCALARS[type(value)](value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _quoted_iso(value: date | datetime | time | VariantDate | VariantTimestamp) -> str:
    return f'"{value.isoformat()}"'


_SCALARS: dict[type, Callable[[VariantValue], str]] = {
    type(None): lambda _: "null",
    bool: lambda v: "true" if v else "false",
    int: str,
    float: _float_text,
    Decimal: lambda v: format(v, "f"),
    str: encode_basestring,
    bytes: lambda v: f'"{b64encode(v).decode()}"',
    date: _quoted_iso,
    datetime: _quoted_iso,
    time: _quoted_iso,
    VariantDate: _quoted_iso,
    VariantTimestamp: _quoted_iso,
    UUID: lambda v: f'"{v}"',
}
