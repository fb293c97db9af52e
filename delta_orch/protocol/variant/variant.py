"""One variant: a metadata/value pair that is decoded on access (Variant binary encoding).

Nothing is trusted: every size is checked against the space its container gives it, and children of one container may
not overlap, so that time and memory grow with the number of bytes. No recursion, whatever the nesting.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import pairwise
from operator import lt
from uuid import UUID

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.variant.values import (
    DECIMAL_BYTES,
    DECIMAL_DIGITS,
    EPOCH_ORDINAL,
    MAX_DAYS,
    MAX_DECIMAL_SCALE,
    MAX_DEPTH,
    MICROS_OF_A_DAY,
    MIN_DAYS,
    SIZE_BYTES,
    BasicType,
    Kind,
    VariantDate,
    VariantTimestamp,
    VariantValue,
    invalid_variant,
    kind_of,
    to_json,
)

METADATA_VERSION = 1
_VERSION_MASK = 0x0F
_UNPACK = {2: "H", 4: "I"}

Path = tuple[str | int, ...]
"""Steps from the root: a field's name or an element's index."""

Slot = tuple[int, int]
"""Where a child lies: its first byte, and the end of the space it has. Its value may be shorter."""

_OBJECT = int(BasicType.OBJECT)  # comparing with the enum itself is slow
_SHORT_STRING = int(BasicType.SHORT_STRING)
# Decimal's own operations round to 28 digits.
_EXACT = Context(prec=80)
_EPOCH = datetime(1970, 1, 1)
_MIN_MICROS, _MAX_MICROS = MIN_DAYS * MICROS_OF_A_DAY, (MAX_DAYS + 1) * MICROS_OF_A_DAY - 1


class Variant:
    """A value and the dictionary of its field names. A variant inside another shares its bytes.

    Making one checks nothing. Every method raises `InvalidVariantError` where the bytes it meets are damaged.
    """

    __slots__ = ("_end", "_reader", "_start", "_value", "metadata")

    def __init__(self, metadata: bytes, value: bytes) -> None:
        self.metadata = metadata
        self._value = value
        self._start, self._end = 0, len(value)
        self._reader: MetadataReader | None = None

    @property
    def value(self) -> bytes:
        """Its bytes. For a variant inside another one, all its bytes there."""
        return self._value[self._start : self._end]

    @property
    def type_name(self) -> str:
        """`null`, `boolean`, `int8`, …, `timestamp_ntz_nanos`, `uuid`, `object` or `array`."""
        basic_type(self._value, self._start, self._end)
        kind = kind_of(self._value[self._start])
        if kind is None:
            raise invalid_variant("a value has an unknown type", f"First byte {self._value[self._start]}")
        return kind.type_name

    def get(self, path: str | Sequence[str | int]) -> Variant | None:
        """The value at a path, or None. Only the containers on the way are read.

        Raises:
            InvalidRequestError: It is no path.
        """
        value: Variant | None = self
        for step in parse_path(path):
            if value is None:
                return None
            value = value._field(step.encode()) if isinstance(step, str) else value._element(step)
        return value

    def fields(self) -> dict[str, Variant] | None:
        """The fields of an object, by name; None where it is no object."""
        if not self._is(BasicType.OBJECT):
            return None
        names, slots = fields_of(self._value, self._metadata(), self._start, self._end)
        return {name: self._inside(*slot) for name, slot in zip(names, slots, strict=True)}

    def elements(self) -> list[Variant] | None:
        """The elements of an array; None where it is no array."""
        if not self._is(BasicType.ARRAY):
            return None
        return [self._inside(start, end) for start, end in array_slots(self._value, self._start, self._end)]

    def to_python(self) -> VariantValue:
        """The whole variant as Python objects; module `values` lists their types."""
        return decode_value(self._value, self._metadata(), self._start, self._end)

    def to_json(self) -> str:
        """The whole variant as canonical JSON text, as of `values.to_json`."""
        return to_json(self.to_python())

    def __repr__(self) -> str:
        return f"Variant(metadata={self.metadata!r}, value={self.value!r})"

    def _metadata(self) -> MetadataReader:
        if self._reader is None:
            self._reader = MetadataReader(self.metadata)
        return self._reader

    def _is(self, kind: BasicType) -> bool:
        return basic_type(self._value, self._start, self._end) == kind

    def _inside(self, start: int, end: int) -> Variant:
        inside = Variant(self.metadata, self._value)
        inside._start, inside._end, inside._reader = start, end, self._reader
        return inside

    def _field(self, name: bytes) -> Variant | None:
        if not self._is(BasicType.OBJECT):
            return None
        reader = self._metadata()
        ids, slots = object_layout(self._value, self._start, self._end)
        for field_id, slot in zip(ids, slots, strict=True):
            if reader.name_bytes(field_id) == name:
                return self._inside(*slot)
        return None

    def _element(self, index: int) -> Variant | None:
        if not self._is(BasicType.ARRAY):
            return None
        slots = array_slots(self._value, self._start, self._end)
        return self._inside(*slots[index]) if index < len(slots) else None


# Paths

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+) | \[(?P<index>\d{1,10})\] | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


def parse_path(path: str | Sequence[str | int]) -> Path:
    """The steps of a path.

    Args:
        path: Text that starts with `$` (Spark's `variant_get` has the same form), or the steps themselves: a name that
            text cannot spell is given that way.

    Raises:
        InvalidRequestError: It is no path.
    """
    if not isinstance(path, str):
        for step in path:
            if not isinstance(step, (str, int)) or isinstance(step, bool) or (isinstance(step, int) and step < 0):
                raise _no_path(repr(step), "steps are names and indexes from 0")
        return tuple(path)
    if not path.startswith("$"):
        raise _no_path(path, "it must start with $")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _no_path(path, f"character {at + 1} starts no step")
        kind = match.lastgroup or ""
        steps.append(int(match[kind]) if kind == "index" else match[kind])
        at = match.end()
    return tuple(steps)


def _no_path(path: str, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path!r} is not a variant path",
        cause=cause,
        remedy="Write it like $.name, $['a name'] or $.list[0], or give the steps as a list",
    )


# Metadata: header (version, sorted flag, offset size) | number of names | offsets, one more than names | names


def read_uints(data: bytes, start: int, count: int, width: int) -> Sequence[int]:
    """`count` little-endian unsigned integers of `width` bytes each. The caller checked that they exist."""
    if width == 1:
        return data[start : start + count]
    if width == 3:
        end = start + 3 * count
        return tuple(int.from_bytes(data[at : at + 3], "little") for at in range(start, end, 3))
    return struct.unpack_from(f"<{count}{_UNPACK[width]}", data, start)


class MetadataReader:
    """Names by id, read on request.

    Raises:
        InvalidVariantError: Another version than 1, or offsets or names beyond the end.
    """

    __slots__ = ("_data", "_names", "_strings_start", "_width", "size")

    def __init__(self, metadata: bytes) -> None:
        if len(metadata) < 3:
            raise invalid_variant("its metadata is cut short", f"{len(metadata)} bytes")
        if metadata[0] & _VERSION_MASK != METADATA_VERSION:
            raise invalid_variant("its metadata has an unknown version", f"Version {metadata[0] & _VERSION_MASK}")
        self._data = metadata
        self._width = (metadata[0] >> 6) + 1
        self.size = int.from_bytes(metadata[1 : 1 + self._width], "little")
        self._strings_start = 1 + self._width * (self.size + 2)
        self._names: tuple[str, ...] | None = None
        if self._strings_start > len(metadata):
            raise invalid_variant("its metadata is cut short", f"{self.size} names in {len(metadata)} bytes")

    def name_bytes(self, field_id: int) -> bytes:
        """One name, in UTF-8. Looks at nothing else."""
        if field_id >= self.size:
            raise invalid_variant("a field has no name", f"Id {field_id} of {self.size} names")
        start, end = read_uints(self._data, 1 + self._width * (1 + field_id), 2, self._width)
        return self._slice(start, end)

    def names(self) -> tuple[str, ...]:
        """All names, by id; read once."""
        if self._names is None:
            offsets = read_uints(self._data, 1 + self._width, self.size + 1, self._width)
            try:
                self._names = tuple(self._slice(start, end).decode() for start, end in pairwise(offsets))
            except UnicodeDecodeError as e:
                raise invalid_variant("a field's name is not UTF-8", str(e)) from None
        return self._names

    def _slice(self, start: int, end: int) -> bytes:
        if start > end or self._strings_start + end > len(self._data):
            raise invalid_variant("its metadata is damaged", f"A name from {start} to {end}")
        return self._data[self._strings_start + start : self._strings_start + end]


# Values


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
    if kind >= len(SIZE_BYTES):
        raise invalid_variant("a value has an unknown type", f"Primitive type {kind}")
    size = SIZE_BYTES[kind]
    if not size:
        content = _sized_bytes(data, start, end)
        return content if kind == Kind.BINARY else content.decode()
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


def _decimal(kind: Kind) -> Callable[[bytes, int], Decimal]:
    limit, size = 10 ** DECIMAL_DIGITS[kind], DECIMAL_BYTES[kind]

    def decode(data: bytes, at: int) -> Decimal:
        scale = data[at]
        unscaled = int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True)
        if scale > MAX_DECIMAL_SCALE or not -limit < unscaled < limit:
            raise invalid_variant("a decimal is out of range", f"{unscaled} with scale {scale} as {kind.type_name}")
        return _EXACT.scaleb(Decimal(unscaled), -scale)

    return decode


def _date(data: bytes, at: int) -> date | VariantDate:
    days = _int32(data, at)
    return date.fromordinal(EPOCH_ORDINAL + days) if MIN_DAYS <= days <= MAX_DAYS else VariantDate(days)


def _micros(*, utc: bool) -> Callable[[bytes, int], datetime | VariantTimestamp]:
    epoch = _EPOCH.replace(tzinfo=UTC if utc else None)

    def decode(data: bytes, at: int) -> datetime | VariantTimestamp:
        micros = _int64(data, at)
        if _MIN_MICROS <= micros <= _MAX_MICROS:
            return epoch + timedelta(microseconds=micros)
        return VariantTimestamp(micros, "us", utc)

    return decode


def _nanos(*, utc: bool) -> Callable[[bytes, int], VariantTimestamp]:
    return lambda data, at: VariantTimestamp(_int64(data, at), "ns", utc)


def _time(data: bytes, at: int) -> time:
    micros = _int64(data, at)
    if not 0 <= micros < MICROS_OF_A_DAY:
        raise invalid_variant("a time of day is out of range", f"{micros} µs")
    return (_EPOCH + timedelta(microseconds=micros)).time()


_DECODERS: dict[int, Callable[[bytes, int], VariantValue]] = {
    Kind.NULL: lambda _data, _at: None,
    Kind.TRUE: lambda _data, _at: True,
    Kind.FALSE: lambda _data, _at: False,
    Kind.INT8: _number("<b"),
    Kind.INT16: _number("<h"),
    Kind.INT32: _int32,
    Kind.INT64: _int64,
    Kind.DOUBLE: _number("<d"),
    **{kind: _decimal(kind) for kind in DECIMAL_DIGITS},
    Kind.DATE: _date,
    Kind.TIMESTAMP: _micros(utc=True),
    Kind.TIMESTAMP_NTZ: _micros(utc=False),
    Kind.FLOAT: _number("<f"),
    Kind.TIME: _time,
    Kind.TIMESTAMP_NANOS: _nanos(utc=True),
    Kind.TIMESTAMP_NTZ_NANOS: _nanos(utc=False),
    Kind.UUID: lambda data, at: UUID(bytes=data[at : at + 16]),
}
"""By primitive id, from the byte after the first. Strings and binaries are handled before."""
