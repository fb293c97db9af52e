"""Values a variant can hold and Python's own types cannot, and the type names of all of them.

A decoded variant is made of None, bool, int, float, Decimal, str, bytes, date, datetime (aware: `timestamp`, always
UTC; naive: `timestamp_ntz`), time, UUID, dict and list. Nanoseconds, and days beyond the years 1 to 9999, come as the
classes of this module, so that nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Any, Literal

VariantValue = Any
"""A value from or for a variant, as the module says; dicts and lists hold such values again."""

MAX_DEPTH = 1000
"""How deeply objects and arrays may be nested. Spark's JSON parser has the same bound."""

_DAYS_OF_400_YEARS = 146_097
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_PER_SECOND = {"us": 1_000_000, "ns": 1_000_000_000}


class BasicType(IntEnum):
    """The low two bits of a value's first byte."""

    PRIMITIVE = 0
    SHORT_STRING = 1
    OBJECT = 2
    ARRAY = 3


class PrimitiveType(IntEnum):
    """The upper six bits of a primitive value's first byte."""

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


PRIMITIVE_SIZE_BYTES: tuple[int | None, ...] = (
    1, 1, 1, 2, 3, 5, 9, 9, 6, 10, 18, 5, 9, 9, 5, None, None, 9, 9, 9, 17,
)  # fmt: skip
"""Size of a primitive value by its id, first byte included; None where a length follows."""

TYPE_NAMES: tuple[str, ...] = tuple(
    "boolean" if t in (PrimitiveType.TRUE, PrimitiveType.FALSE) else t.name.lower() for t in PrimitiveType
)
"""Names of the primitive types, by id. `object` and `array` are the others."""

DECIMAL_DIGITS = {PrimitiveType.DECIMAL4: 9, PrimitiveType.DECIMAL8: 18, PrimitiveType.DECIMAL16: 38}
MICROS_OF_A_DAY = 86_400_000_000


def type_name_of(first_byte: int) -> str | None:
    """The type's name, known from a value's first byte alone; None where the type does not exist."""
    basic = first_byte & 3
    if basic == BasicType.PRIMITIVE:
        return TYPE_NAMES[first_byte >> 2] if first_byte >> 2 < len(TYPE_NAMES) else None
    return ("", "string", "object", "array")[basic]


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
        type_name: One of `TYPE_NAMES`.
        value: A Python value of that type. `decimal4`, `decimal8` and `decimal16` take Decimals and keep their scale.
    """

    type_name: str
    value: VariantValue


def _iso_day(days: int) -> str:
    # Python's calendar covers the years 1 to 9999; the calendar repeats every 400 years.
    cycles, day = divmod(days + _EPOCH_ORDINAL - 1, _DAYS_OF_400_YEARS)
    inside = date.fromordinal(day + 1)
    year = inside.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{inside.month:02}-{inside.day:02}"
