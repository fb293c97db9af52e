"""Values from Python to bytes (Variant binary encoding): sorted dictionary, narrowest integers, smallest offsets.

The caller's mistakes raise `InvalidRequestError`; nothing here reads a table.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.variant.decode import MAX_DECIMAL_SCALE
from delta_orch.protocol.variant.metadata import EMPTY_METADATA, serialize_metadata, width_of
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MAX_DEPTH,
    BasicType,
    PrimitiveType,
    TypedValue,
    VariantDate,
    VariantTimestamp,
    VariantValue,
)
from delta_orch.protocol.variant.variant import Variant

MAX_SHORT_STRING_BYTES = 63
MAX_DECIMAL_DIGITS = 38
_MAX_CHILDREN_OF_SMALL = 255
_MAX_SIZE_BYTES = (1 << 32) - 1
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_INTEGERS = ((PrimitiveType.INT8, 1), (PrimitiveType.INT16, 2), (PrimitiveType.INT32, 4), (PrimitiveType.INT64, 8))


class _Node(NamedTuple):
    """One value of the tree in hand: a scalar, or a container with the positions of its children."""

    value: VariantValue
    names: list[bytes] | None
    children: list[int] | None


def encode_variant(value: VariantValue) -> Variant:
    """The variant that holds a Python value.

    Args:
        value: None, bool, int, float (a double), Decimal, str, bytes, date, datetime (aware or naive, microseconds),
            time, UUID, `VariantDate`, `VariantTimestamp`, `TypedValue`, mappings with str keys, lists and tuples.
            Integers take the narrowest type, decimals keep their scale, integers beyond 64 bits become decimals.

    Raises:
        InvalidRequestError: Some value has no counterpart in a variant, or the nesting is deeper than `MAX_DEPTH`
            levels (so a list that holds itself).
    """
    nodes = _flatten(value)
    names = sorted({name for node in nodes if node.names for name in node.names})
    ids = {name: position for position, name in enumerate(names)}
    encoded: list[bytes] = [b""] * len(nodes)
    # Children stand after their parents, so this meets them first.
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        if node.children is None:
            encoded[position] = encode_scalar(node.value)
        elif node.names is None:
            encoded[position] = build_array([encoded[child] for child in node.children])
        else:
            fields = sorted(zip((ids[name] for name in node.names), node.children, strict=True))
            encoded[position] = build_object([i for i, _ in fields], [encoded[child] for _, child in fields])
        for child in node.children or ():
            encoded[child] = b""
    return Variant(serialize_metadata(names) if names else EMPTY_METADATA, encoded[0])


def _flatten(value: VariantValue) -> list[_Node]:
    nodes: list[_Node] = []
    pending: list[tuple[VariantValue, list[int] | None, int]] = [(value, None, 0)]
    while pending:
        value, siblings, depth = pending.pop()
        if siblings is not None:
            siblings.append(len(nodes))
        if isinstance(value, Mapping):
            children: list[int] = []
            nodes.append(_Node(None, [_name_bytes(name) for name in value], children))
            below = list(value.values())
        elif isinstance(value, (list, tuple)) and not isinstance(value, TypedValue):
            children = []
            nodes.append(_Node(None, None, children))
            below = list(value)
        else:
            nodes.append(_Node(value, None, None))
            continue
        if depth >= MAX_DEPTH:
            raise InvalidRequestError(f"The value is nested deeper than {MAX_DEPTH} levels")
        pending.extend((child, children, depth + 1) for child in reversed(below))
    return nodes


def _name_bytes(name: VariantValue) -> bytes:
    if not isinstance(name, str):
        raise InvalidRequestError(
            f"A variant's objects have strings as keys, not {type(name).__name__}", remedy="Pass str(key) as the key"
        )
    return _utf8(name)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise InvalidRequestError("A string has no UTF-8 form", cause=str(e)) from None


# Containers


def build_object(field_ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """An object of encoded values. The ids must be in the order of the names they stand for, and differ."""
    offsets, offset_width, large, count = _layout(values)
    id_width = width_of(max(field_ids, default=0))
    header = BasicType.OBJECT | ((offset_width - 1) | (id_width - 1) << 2 | large << 4) << 2
    ids = b"".join(i.to_bytes(id_width, "little") for i in field_ids)
    return bytes([header]) + count + ids + offsets + b"".join(values)


def build_array(values: Sequence[bytes]) -> bytes:
    """An array of encoded values."""
    offsets, offset_width, large, count = _layout(values)
    header = BasicType.ARRAY | ((offset_width - 1) | large << 2) << 2
    return bytes([header]) + count + offsets + b"".join(values)


def _layout(values: Sequence[bytes]) -> tuple[bytes, int, bool, bytes]:
    offsets = list(accumulate((len(v) for v in values), initial=0))
    if offsets[-1] > _MAX_SIZE_BYTES:
        raise InvalidRequestError(
            "An object or array is larger than a variant can be",
            cause=f"It may have {_MAX_SIZE_BYTES} bytes",
            remedy="Split it, or keep it in a column of its own",
            size_bytes=offsets[-1],
        )
    width = width_of(offsets[-1])
    large = len(values) > _MAX_CHILDREN_OF_SMALL
    count = len(values).to_bytes(4 if large else 1, "little")
    return b"".join(o.to_bytes(width, "little") for o in offsets), width, large, count


# Scalars


def encode_scalar(value: VariantValue) -> bytes:
    """A value that is neither object nor array, in the type that fits it best; a `TypedValue` in the type it names.

    Raises:
        InvalidRequestError: A variant has no such type, or the value is out of its type's range.
    """
    encoder = _BY_CLASS.get(type(value))
    if encoder is None:
        encoder = next((e for kind, e in _BY_CLASS.items() if isinstance(value, kind)), None)
    if encoder is None:
        raise InvalidRequestError(
            f"A variant cannot hold a value of the Python class {type(value).__name__}",
            remedy="Convert it to a string, a number, a date, a timestamp, a list or a dict",
        )
    return encoder(value)


def _typed(typed: TypedValue) -> bytes:
    encoder = _BY_TYPE_NAME.get(typed.type_name)
    if encoder is None:
        raise InvalidRequestError(
            f"Variants have no type {typed.type_name!r}", remedy=f"One of {sorted(_BY_TYPE_NAME)}"
        )
    try:
        return encoder(typed.value)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as e:
        if isinstance(e, InvalidRequestError):
            raise
        raise InvalidRequestError(
            f"A value of the Python class {type(typed.value).__name__} is not a {typed.type_name}", cause=str(e)
        ) from None


def _header(kind: PrimitiveType) -> bytes:
    return bytes([kind << 2])


def _signed(kind: PrimitiveType, size: int) -> Callable[[int], bytes]:
    return lambda value: _header(kind) + value.to_bytes(size, "little", signed=True)


def _integer(value: int) -> bytes:
    for kind, size in _INTEGERS:
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return _signed(kind, size)(value)
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    scale, unscaled, digits = _decimal_parts(value)
    # Some readers hold the scale against the width's digits too.
    kind = next((k for k, most in DECIMAL_DIGITS.items() if digits <= most and scale <= most), None)
    if kind is None:
        raise InvalidRequestError("A number has more than 38 digits", cause=f"{digits} digits, {scale} after the point")
    return _decimal_bytes(kind, scale, unscaled)


def _decimal_of(kind: PrimitiveType) -> Callable[[Decimal], bytes]:
    def encode(value: Decimal) -> bytes:
        scale, unscaled, digits = _decimal_parts(value)
        if digits > DECIMAL_DIGITS[kind] or scale > MAX_DECIMAL_SCALE:
            raise InvalidRequestError(f"A number does not fit into a {kind.name.lower()}", cause=f"{digits} digits")
        return _decimal_bytes(kind, scale, unscaled)

    return encode


def _decimal_parts(value: Decimal) -> tuple[int, int, int]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidRequestError("A variant's decimals are finite", cause=str(value))
    if len(digits) + max(exponent, 0) > MAX_DECIMAL_DIGITS:
        raise InvalidRequestError("A number has more than 38 digits", cause=f"{len(digits)} digits, E{exponent}")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return max(-exponent, 0), -unscaled if sign else unscaled, len(str(unscaled))


def _decimal_bytes(kind: PrimitiveType, scale: int, unscaled: int) -> bytes:
    size = {PrimitiveType.DECIMAL4: 4, PrimitiveType.DECIMAL8: 8, PrimitiveType.DECIMAL16: 16}[kind]
    return _header(kind) + bytes([scale]) + unscaled.to_bytes(size, "little", signed=True)


def _string(value: str) -> bytes:
    text = _utf8(value)
    if len(text) <= MAX_SHORT_STRING_BYTES:
        return bytes([BasicType.SHORT_STRING | len(text) << 2]) + text
    return _sized(PrimitiveType.STRING, text)


def _sized(kind: PrimitiveType, content: bytes) -> bytes:
    if len(content) > _MAX_SIZE_BYTES:
        raise InvalidRequestError(
            "A string or binary value is larger than a variant can be",
            cause=f"It may have {_MAX_SIZE_BYTES} bytes",
            remedy="Split it, or keep it in a column of its own",
            size_bytes=len(content),
        )
    return _header(kind) + len(content).to_bytes(4, "little") + content


def _date(value: date | VariantDate) -> bytes:
    days = value.days if isinstance(value, VariantDate) else value.toordinal() - _EPOCH_ORDINAL
    if not -(1 << 31) <= days < 1 << 31:
        raise InvalidRequestError("A date is out of a variant's range", cause=f"{days} days since 1970")
    return _header(PrimitiveType.DATE) + days.to_bytes(4, "little", signed=True)


def _datetime(value: datetime) -> bytes:
    aware = value.tzinfo is not None and value.utcoffset() is not None
    return _datetime_of(utc=aware)(value)


def _datetime_of(*, utc: bool) -> Callable[[datetime], bytes]:
    kind, epoch = (PrimitiveType.TIMESTAMP, _EPOCH_UTC) if utc else (PrimitiveType.TIMESTAMP_NTZ, _EPOCH)

    def encode(value: datetime | VariantTimestamp) -> bytes:
        if isinstance(value, VariantTimestamp):
            return _timestamp(value, kind)
        return _signed(kind, 8)((value - epoch) // _MICROSECOND)

    return encode


def _timestamp(value: VariantTimestamp, kind: PrimitiveType | None = None) -> bytes:
    own = PrimitiveType[value.type_name.upper()]
    if kind not in (None, own):
        raise InvalidRequestError(f"A {value.type_name} is not a {kind.name.lower()}" if kind else "")
    if not -(1 << 63) <= value.count < 1 << 63:
        raise InvalidRequestError("A timestamp is out of a variant's range", cause=value.isoformat())
    return _signed(own, 8)(value.count)


def _nanos_of(kind: PrimitiveType) -> Callable[[VariantTimestamp], bytes]:
    return lambda value: _timestamp(value, kind)


def _time(value: time) -> bytes:
    if value.tzinfo is not None:
        raise InvalidRequestError("A variant's time of day has no time zone", cause=str(value))
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _signed(PrimitiveType.TIME, 8)(seconds * 1_000_000 + value.microsecond)


def _null(value: None) -> bytes:
    if value is not None:
        raise TypeError("not None")
    return _header(PrimitiveType.NULL)


def _boolean(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("neither True nor False")
    return _header(PrimitiveType.TRUE if value else PrimitiveType.FALSE)


def _double(value: float) -> bytes:
    return _header(PrimitiveType.DOUBLE) + struct.pack("<d", value)


def _float(value: float) -> bytes:
    return _header(PrimitiveType.FLOAT) + struct.pack("<f", value)


def _binary(value: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("no bytes")
    return _sized(PrimitiveType.BINARY, bytes(value))


def _uuid(value: UUID) -> bytes:
    return _header(PrimitiveType.UUID) + value.bytes


_BY_CLASS: dict[type, Callable[[VariantValue], bytes]] = {
    type(None): _null,
    bool: _boolean,
    int: _integer,
    float: _double,
    Decimal: _decimal,
    str: _string,
    bytes: _binary,
    bytearray: _binary,
    memoryview: _binary,
    datetime: _datetime,
    date: _date,
    time: _time,
    UUID: _uuid,
    VariantDate: _date,
    VariantTimestamp: _timestamp,
    TypedValue: _typed,
}

_BY_TYPE_NAME: dict[str, Callable[[VariantValue], bytes]] = {
    "null": _null,
    "boolean": _boolean,
    **{kind.name.lower(): _signed(kind, size) for kind, size in _INTEGERS},
    "double": _double,
    "float": _float,
    **{kind.name.lower(): _decimal_of(kind) for kind in DECIMAL_DIGITS},
    "date": _date,
    "timestamp": _datetime_of(utc=True),
    "timestamp_ntz": _datetime_of(utc=False),
    "timestamp_nanos": _nanos_of(PrimitiveType.TIMESTAMP_NANOS),
    "timestamp_ntz_nanos": _nanos_of(PrimitiveType.TIMESTAMP_NTZ_NANOS),
    "binary": _binary,
    "string": _string,
    "time": _time,
    "uuid": _uuid,
}


# JSON


def parse_json(text: str | bytes) -> Variant:
    """A variant from JSON text, as Spark's `parse_json` makes it.

    Whole numbers get the narrowest integer type. Other numbers without an exponent are decimals, up to 38 digits. The
    rest are doubles.

    Raises:
        InvalidRequestError: The text is not JSON, names a key of an object twice, is nested deeper than `MAX_DEPTH`
            levels, or holds a number beyond the doubles.
    """
    try:
        parsed = json.loads(
            text,
            parse_int=_parse_integer,
            parse_float=_parse_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_fields,
        )
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as e:
        cause = "It is nested too deeply" if isinstance(e, RecursionError) else str(e)
        raise InvalidRequestError("The text is not JSON that a variant can hold", cause=cause) from None
    return encode_variant(parsed)


def _parse_integer(text: str) -> int | Decimal | float:
    # Python refuses to convert very long integers, and they are doubles anyway.
    return int(text) if len(text.lstrip("-")) <= MAX_DECIMAL_DIGITS else _parse_double(text)


def _parse_number(text: str) -> Decimal | float:
    if "e" not in text and "E" not in text:
        digits, _, fraction = text.lstrip("-").partition(".")
        if len(fraction) <= MAX_DECIMAL_SCALE and len((digits + fraction).lstrip("0")) <= MAX_DECIMAL_DIGITS:
            return Decimal(text)
    return _parse_double(text)


def _parse_double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequestError("A number in the JSON text is too large for a variant", cause=text[:60])
    return value


def _refuse_constant(name: str) -> VariantValue:
    raise InvalidRequestError("The text is not JSON", cause=f"{name} is not a JSON value")


def _unique_fields(pairs: list[tuple[str, VariantValue]]) -> dict[str, VariantValue]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidRequestError("An object in the JSON text has the same key twice", remedy="Remove one of them")
    return fields
