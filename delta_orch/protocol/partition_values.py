"""Partition values: the strings of `add.partitionValues` ↔ values (PROTOCOL, "Partition Value Serialization").

An empty string is null for every type, and null is null. Whole columns are converted through their distinct values, so
the cost is that of the partitions, not of the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
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
    YEAR_MONTH,
    DataType,
    DecimalType,
    IntervalType,
)

if TYPE_CHECKING:
    import pyarrow as pa

PartitionValue = Any
"""A Python value of a partition column: str, bool, int, float, Decimal, date, datetime or bytes; None for null."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The directory name of a null value; it never stands in the log."""

# The default context has 28 digits, fewer than a decimal may have.
_EXACT = Context(prec=76)
_INTEGER_BITS = {LONG: 64, INTEGER: 32, SHORT: 16, BYTE: 8}
_SPECIAL_FLOATS = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf, "inf": math.inf, "-inf": -math.inf}
# Compiled on first use.
_TIMESTAMP = (
    r"(?P<date>\d{4,6}-\d{1,2}-\d{1,2})"
    r"(?:[ T](?P<h>\d{1,2}):(?P<m>\d{1,2})(?::(?P<s>\d{1,2})(?:\.(?P<f>\d{1,9}))?)?)?"
    r"\s*(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?"
)
_OUTER = r"(?i)INTERVAL\s+(?P<outer>-?)'(?P<sign>-?)"
_YEAR_MONTH = _OUTER + r"(?P<y>\d{1,9})-(?P<mo>\d{1,2})'\s+YEAR\s+TO\s+MONTH"
_DAY_TIME = (
    _OUTER + r"(?P<d>\d{1,9})\s+(?P<h>\d{1,2}):(?P<m>\d{1,2}):(?P<s>\d{1,2})(?:\.(?P<f>\d{1,6}))?'"
    r"\s+DAY\s+TO\s+SECOND"
)
# Characters that Hive escapes in directory names: control characters, and characters that would break a path or a
# name=value pair.
_ESCAPED = r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]"


def serialize_partition_value(value: PartitionValue, data_type: DataType) -> str | None:
    """The log's string for a Python value; None for null.

    `timestamp` takes aware datetimes and is written in UTC as ISO 8601 with `Z`, the one spelling that does not depend
    on a reader's time zone; `timestamp_ntz` takes naive ones. The empty string is null.

    Raises:
        InvalidRequestError: A binary value that is not UTF-8.
        TypeError, ValueError: The value is not of that type.
    """
    if value is None or value == "":
        return None
    if data_type == STRING:
        return str(value)
    if data_type == BOOLEAN:
        return "true" if value else "false"
    if data_type in _INTEGER_BITS:
        return str(int(value))
    if data_type in (FLOAT, DOUBLE):
        return serialize_float(float(value))
    if isinstance(data_type, DecimalType):
        return f"{_EXACT.quantize(Decimal(value), Decimal(1).scaleb(-data_type.scale)):f}"
    if data_type == DATE:
        return f"{value.year:04d}-{value.month:02d}-{value.day:02d}"
    if data_type == TIMESTAMP:
        return _serialize_datetime(value.astimezone(UTC), "T", "Z")
    if data_type == TIMESTAMP_NTZ:
        return _serialize_datetime(value, " ", "")
    if data_type == BINARY:
        return _serialize_binary(bytes(value))
    if isinstance(data_type, IntervalType):
        return _serialize_interval(value, data_type)
    raise TypeError(f"a column of type {data_type} cannot be a partition column")


def _serialize_interval(value: int, data_type: IntervalType) -> str:
    """As a constant of Spark SQL: `INTERVAL '-1-6' YEAR TO MONTH`, `INTERVAL '1 00:00:01.000000' DAY TO SECOND`."""
    sign, value = "-" if value < 0 else "", abs(value)
    if data_type == YEAR_MONTH:
        return f"INTERVAL '{sign}{value // 12}-{value % 12}' YEAR TO MONTH"
    seconds, micros = divmod(value, 1_000_000)
    minutes, hours, days = seconds // 60, seconds // 3_600, seconds // 86_400
    time_of_day = f"{hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}.{micros:06d}"
    return f"INTERVAL '{sign}{days} {time_of_day}' DAY TO SECOND"


def _parse_interval(text: str, data_type: IntervalType) -> int:
    m = re.fullmatch(_YEAR_MONTH if data_type == YEAR_MONTH else _DAY_TIME, text)
    if m is None:
        raise ValueError(f"expected {_serialize_interval(0, data_type)}")
    sign = -1 if "-" in (m["outer"], m["sign"]) and m["outer"] != m["sign"] else 1
    if data_type == YEAR_MONTH:
        return sign * _within(int(m["y"]) * 12 + int(m["mo"]), 32)
    seconds = int(m["d"]) * 86_400 + int(m["h"]) * 3_600 + int(m["m"]) * 60 + int(m["s"])
    return sign * _within(seconds * 1_000_000 + int((m["f"] or "").ljust(6, "0")), 64)


def _serialize_binary(value: bytes) -> str:
    # The log is UTF-8 text and readers take the bytes of that text; other bytes have no spelling all of them agree on.
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(
            f"The partition value {value!r} cannot be recorded in the log",
            cause="A binary partition value must be valid UTF-8",
            remedy="Partition by a text encoding of it, for example hex(column)",
        ) from None


def serialize_float(value: float) -> str:
    """As Java prints a double, except for the number of digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _serialize_datetime(value: datetime, separator: str, suffix: str) -> str:
    day = f"{value.year:04d}-{value.month:02d}-{value.day:02d}"
    return f"{day}{separator}{value:%H:%M:%S}.{value.microsecond:06d}{suffix}"


def parse_partition_value(text: str | None, data_type: DataType) -> PartitionValue:
    """The Python value of the log's string; None for null and for the empty string.

    A timestamp without a zone is UTC; `timestamp` gives aware datetimes in UTC, `timestamp_ntz` naive ones.

    Raises:
        ProtocolViolationError: The string is no value of that type.
    """
    if text is None or text == "":
        return None
    try:
        return _parse(text, data_type)
    except (ValueError, InvalidOperation, OverflowError) as e:
        raise ProtocolViolationError(
            f"The log holds the partition value {text!r}, which is not a valid {data_type}", cause=str(e), value=text
        ) from None


def _parse(text: str, data_type: DataType) -> PartitionValue:
    if data_type == STRING:
        return text
    if data_type == BINARY:
        return text.encode()
    if not text.isascii() or "_" in text:
        # Python reads digits of all scripts, and underscores between them. No other client does.
        raise ValueError("it holds other characters than values of this type have")
    if data_type in _INTEGER_BITS:
        return _parse_integer(text, _INTEGER_BITS[data_type])
    if data_type == BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError("neither true nor false")
        return text.lower() == "true"
    if data_type in (FLOAT, DOUBLE):
        return _SPECIAL_FLOATS[text.lower()] if text.lower() in _SPECIAL_FLOATS else float(text)
    if isinstance(data_type, DecimalType):
        return _parse_decimal(text, data_type)
    if data_type == DATE:
        return _parse_timestamp(text)[0].date()
    if data_type == TIMESTAMP:
        value, offset = _parse_timestamp(text)
        return (value - offset).replace(tzinfo=UTC)
    if data_type == TIMESTAMP_NTZ:
        return _parse_timestamp(text)[0]
    if isinstance(data_type, IntervalType):
        return _parse_interval(text, data_type)
    raise ValueError(f"a column of type {data_type} cannot be a partition column")


def _parse_integer(text: str, bits: int) -> int:
    return _within(int(text), bits)


def _within(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"outside {bits} bits")
    return number


def _parse_decimal(text: str, data_type: DecimalType) -> Decimal:
    number = Decimal(text)
    scaled = _EXACT.quantize(number, Decimal(1).scaleb(-data_type.scale))
    if scaled != number or len(scaled.as_tuple().digits) > data_type.precision:
        raise ValueError(f"does not fit {data_type}")
    return scaled


def _parse_timestamp(text: str) -> tuple[datetime, timedelta]:
    """A naive datetime, and how far its zone is ahead of UTC. Spark passes over the zones of dates and local times."""
    m = re.fullmatch(_TIMESTAMP, text.strip())
    if m is None:
        raise ValueError("expected yyyy-MM-dd[ HH:mm:ss[.ffffff]][Z]")
    day = date(*(int(part) for part in m["date"].split("-")))
    micros = int((m["f"] or "").ljust(6, "0")[:6] or 0)
    value = datetime(day.year, day.month, day.day, int(m["h"] or 0), int(m["m"] or 0), int(m["s"] or 0), micros)
    zone = m["zone"]
    if not zone or zone in ("Z", "UTC"):
        return value, timedelta(0)
    return value, timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])) * (-1 if zone[0] == "-" else 1)


def partition_column_to_arrow(texts: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.Array | pa.ChunkedArray:
    """A column of the log's strings as a typed Arrow column of the same length.

    Raises:
        ProtocolViolationError: A string is no value of that type.
    """
    import pyarrow as pa

    import delta_orch.arrow_compute as pc
    from delta_orch.protocol.arrow_building import literal_array

    if data_type == STRING:
        return pc.if_else(pc.cast(pc.binary_length(texts), pa.bool_()), texts, pa.nulls(1, pa.string())[0])
    encoded = _dictionary(texts)
    values = [parse_partition_value(t, data_type) for t in encoded.dictionary.to_pylist()]
    return pc.take(literal_array(values, data_type), encoded.indices)


def partition_column_from_arrow(values: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.StringArray:
    """A typed Arrow column as the log's strings; `values` must have the Arrow type of `data_type`."""
    import delta_orch.arrow_compute as pc
    from delta_orch.protocol.arrow_building import string_array

    encoded = _dictionary(values)
    texts = string_array(serialize_partition_value(v, data_type) for v in encoded.dictionary.to_pylist())
    return pc.take(texts, encoded.indices)


def _dictionary(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    import pyarrow as pa

    import delta_orch.arrow_compute as pc

    encoded = pc.dictionary_encode(column)
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def partition_directory(names: Sequence[str], values: Iterable[str | None]) -> str:
    """The directory a writer puts the files of a partition in: `a=1/b=x%3Ay`, not URI-encoded; "" without partitions.

    Only a convention: readers take the values from the log (PROTOCOL, "Data Files").
    """
    return "/".join(
        f"{_escape(name)}={HIVE_NULL if value is None else _escape(value)}"
        for name, value in zip(names, values, strict=True)
    )


def _escape(text: str) -> str:
    return re.sub(_ESCAPED, lambda m: f"%{ord(m[0]):02X}", text)
