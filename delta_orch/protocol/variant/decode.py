"""Values from bytes to Python (Variant binary encoding, "Value encoding").

Nothing is trusted: every size is checked against the space its container gives it, and children of one container may
not overlap, so that time and memory grow with the number of bytes. No recursion, whatever the nesting.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import pairwise
from operator import lt
from typing import Literal
from uuid import UUID

from delta_orch.protocol.variant.metadata import MetadataReader, invalid_variant, read_uints
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MAX_DEPTH,
    MICROS_OF_A_DAY,
    PRIMITIVE_SIZE_BYTES,
    BasicType,
    PrimitiveType,
    VariantDate,
    VariantTimestamp,
    VariantValue,
)

Slot = tuple[int, int]
"""Where a child lies: its first byte, and the end of the space it has. Its value may be shorter."""

MAX_DECIMAL_SCALE = 38
_OBJECT = int(BasicType.OBJECT)  # comparing with the enum itself is slow
_SHORT_STRING = int(BasicType.SHORT_STRING)
# Decimal's own operations round to 28 digits.
_EXACT = Context(prec=80)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
MIN_DAYS, MAX_DAYS = 1 - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL
_MIN_MICROS, _MAX_MICROS = MIN_DAYS * MICROS_OF_A_DAY, (MAX_DAYS + 1) * MICROS_OF_A_DAY - 1


def decode_value(data: bytes, metadata: MetadataReader, start: int = 0, end: int | None = None) -> VariantValue:
    """A value as Python objects; the classes are those `values` names. Objects keep the order of their fields.

    Args:
        data: Bytes the value lies in.
        metadata: Its dictionary; touched only for objects.
        start: Its first byte.
        end: The end of the space it has; None is the end of `data`.

    Raises:
        InvalidVariantError: It breaks the encoding, or is nested deeper than `MAX_DEPTH`.
    """
    end = len(data) if end is None else end
    try:
        if basic_type(data, start, end) < BasicType.OBJECT:
            return decode_scalar(data, start, end)
        return _decode_container(data, metadata, start, end)
    except UnicodeDecodeError as e:
        raise invalid_variant("a string is not UTF-8", str(e)) from None


def _decode_container(data: bytes, metadata: MetadataReader, start: int, end: int) -> VariantValue:
    root: VariantValue = {} if data[start] & 3 == BasicType.OBJECT else []
    # A child container takes its place empty and is filled later: no recursion, and the order of fields is kept.
    pending = [(root, start, end, 1)]
    while pending:
        container, start, end, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise invalid_variant(f"it is nested deeper than {MAX_DEPTH} levels")
        is_object = type(container) is dict
        names, slots = fields_of(data, metadata, start, end) if is_object else ([], array_slots(data, start, end))
        values: list[VariantValue] = []
        for child_start, child_end in slots:
            kind = data[child_start] & 3
            if kind < _OBJECT:
                values.append(decode_scalar(data, child_start, child_end))
                continue
            values.append({} if kind == _OBJECT else [])
            pending.append((values[-1], child_start, child_end, depth + 1))
        if is_object:
            container.update(zip(names, values, strict=True))
        else:
            container.extend(values)
    return root


def basic_type(data: bytes, start: int, end: int) -> int:
    """The basic type of a value that must have at least one byte."""
    if start >= end:
        raise invalid_variant("a value has no bytes")
    return data[start] & 3


# Containers


def fields_of(data: bytes, metadata: MetadataReader, start: int, end: int) -> tuple[list[str], list[Slot]]:
    """The names of an object's fields, in the order of its ids, and where each field lies.

    Raises:
        InvalidVariantError: Damaged, or two fields of one name.
    """
    ids, slots = object_layout(data, start, end)
    dictionary = metadata.names()
    if ids and max(ids) >= len(dictionary):
        raise invalid_variant("a field has no name", f"Id {max(ids)} of {len(dictionary)} names")
    names = [dictionary[i] for i in ids]
    if len(set(names)) != len(names):
        raise invalid_variant("an object has two fields of one name")
    return names, slots


def object_layout(data: bytes, start: int, end: int) -> tuple[Sequence[int], list[Slot]]:
    """Field ids of an object, and where each field lies."""
    header = data[start] >> 2
    id_width, offset_width = (header >> 2 & 3) + 1, (header & 3) + 1
    count, ids_start = _count(data, start, end, large=bool(header & 0x10))
    offsets_start = ids_start + count * id_width
    slots = _slots(data, offsets_start, end, count, offset_width)
    return read_uints(data, ids_start, count, id_width), slots


def array_slots(data: bytes, start: int, end: int) -> list[Slot]:
    """Where each element of an array lies."""
    header = data[start] >> 2
    count, offsets_start = _count(data, start, end, large=bool(header & 4))
    return _slots(data, offsets_start, end, count, (header & 3) + 1)


def _count(data: bytes, start: int, end: int, *, large: bool) -> tuple[int, int]:
    after = start + (5 if large else 2)
    if after > end:
        raise invalid_variant("an object or array is cut short")
    return int.from_bytes(data[start + 1 : after], "little"), after


def _slots(data: bytes, offsets_start: int, end: int, count: int, width: int) -> list[Slot]:
    values_start = offsets_start + (count + 1) * width
    if values_start > end:
        raise invalid_variant("an object or array is cut short", f"{count} children in {end - offsets_start} bytes")
    offsets = read_uints(data, offsets_start, count + 1, width)
    if values_start + offsets[-1] > end:
        raise invalid_variant("an object or array is cut short", f"{offsets[-1]} bytes of values")
    if all(map(lt, offsets, offsets[1:])):
        return [(values_start + low, values_start + high) for low, high in pairwise(offsets)]
    # Values may stand in another order than their fields. Each has the space up to the next one.
    ascending = sorted(set(offsets))
    if len(ascending) != count + 1 or ascending[-1] != offsets[-1]:
        raise invalid_variant("children of an object or array overlap or have no bytes")
    following = dict(pairwise(ascending))
    return [(values_start + low, values_start + following[low]) for low in offsets[:-1]]


# Scalars


def decode_scalar(data: bytes, start: int, end: int) -> VariantValue:
    """A value that is neither object nor array. Raises UnicodeDecodeError where a string is not UTF-8."""
    header = data[start]
    if header & 3 == _SHORT_STRING:
        after = start + 1 + (header >> 2)
        if after > end:
            raise invalid_variant("a string is cut short")
        return data[start + 1 : after].decode()
    kind = header >> 2
    if kind >= len(PRIMITIVE_SIZE_BYTES):
        raise invalid_variant("a value has an unknown type", f"Primitive type {kind}")
    size = PRIMITIVE_SIZE_BYTES[kind]
    if size is None:
        content = _sized_bytes(data, start, end)
        return content if kind == PrimitiveType.BINARY else content.decode()
    if start + size > end:
        raise invalid_variant("a value is cut short", f"{end - start} of {size} bytes")
    return _DECODERS[kind](data, start + 1)


def _sized_bytes(data: bytes, start: int, end: int) -> bytes:
    after = start + 5 + int.from_bytes(data[start + 1 : start + 5], "little")
    if start + 5 > end or after > end:
        raise invalid_variant("a string or binary value is cut short")
    return data[start + 5 : after]


def _number(layout: str) -> Callable[[bytes, int], VariantValue]:
    unpack = struct.Struct(layout).unpack_from

    def decode(data: bytes, at: int) -> VariantValue:
        return unpack(data, at)[0]

    return decode


_int32, _int64 = _number("<i"), _number("<q")


def _decimal(kind: PrimitiveType, size: int) -> Callable[[bytes, int], Decimal]:
    limit = 10 ** DECIMAL_DIGITS[kind]

    def decode(data: bytes, at: int) -> Decimal:
        scale = data[at]
        unscaled = int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True)
        if scale > MAX_DECIMAL_SCALE or not -limit < unscaled < limit:
            raise invalid_variant("a decimal is out of range", f"{unscaled} with scale {scale} as {kind.name.lower()}")
        return _EXACT.scaleb(Decimal(unscaled), -scale)

    return decode


def _date(data: bytes, at: int) -> date | VariantDate:
    days = _int32(data, at)
    return date.fromordinal(_EPOCH_ORDINAL + days) if MIN_DAYS <= days <= MAX_DAYS else VariantDate(days)


def _timestamp(data: bytes, at: int) -> datetime | VariantTimestamp:
    micros = _int64(data, at)
    if _MIN_MICROS <= micros <= _MAX_MICROS:
        return _EPOCH_UTC + timedelta(microseconds=micros)
    return VariantTimestamp(micros, "us", utc=True)


def _timestamp_ntz(data: bytes, at: int) -> datetime | VariantTimestamp:
    micros = _int64(data, at)
    if _MIN_MICROS <= micros <= _MAX_MICROS:
        return _EPOCH + timedelta(microseconds=micros)
    return VariantTimestamp(micros, "us", utc=False)


def _nanos(*, utc: bool) -> Callable[[bytes, int], VariantTimestamp]:
    unit: Literal["ns"] = "ns"
    return lambda data, at: VariantTimestamp(_int64(data, at), unit, utc)


def _time(data: bytes, at: int) -> time:
    micros = _int64(data, at)
    if not 0 <= micros < MICROS_OF_A_DAY:
        raise invalid_variant("a time of day is out of range", f"{micros} µs")
    seconds, micros = divmod(micros, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)


_DECODERS: dict[int, Callable[[bytes, int], VariantValue]] = {
    PrimitiveType.NULL: lambda _data, _at: None,
    PrimitiveType.TRUE: lambda _data, _at: True,
    PrimitiveType.FALSE: lambda _data, _at: False,
    PrimitiveType.INT8: _number("<b"),
    PrimitiveType.INT16: _number("<h"),
    PrimitiveType.INT32: _int32,
    PrimitiveType.INT64: _int64,
    PrimitiveType.DOUBLE: _number("<d"),
    PrimitiveType.DECIMAL4: _decimal(PrimitiveType.DECIMAL4, 4),
    PrimitiveType.DECIMAL8: _decimal(PrimitiveType.DECIMAL8, 8),
    PrimitiveType.DECIMAL16: _decimal(PrimitiveType.DECIMAL16, 16),
    PrimitiveType.DATE: _date,
    PrimitiveType.TIMESTAMP: _timestamp,
    PrimitiveType.TIMESTAMP_NTZ: _timestamp_ntz,
    PrimitiveType.FLOAT: _number("<f"),
    PrimitiveType.TIME: _time,
    PrimitiveType.TIMESTAMP_NANOS: _nanos(utc=True),
    PrimitiveType.TIMESTAMP_NTZ_NANOS: _nanos(utc=False),
    PrimitiveType.UUID: lambda data, at: UUID(bytes=data[at : at + 16]),
}
"""By primitive id, from the byte after the first. Strings and binaries are handled before."""
