"""Values from Python to bytes (Variant binary encoding): sorted dictionary, narrowest integers, smallest offsets.

The caller's mistakes raise `InvalidRequestError`; nothing here reads a table.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.epoch import micros_since_epoch
from delta_orch.protocol.variant.values import (
    BOOLEANS,
    DECIMAL_BYTES,
    DECIMAL_DIGITS,
    EPOCH_ORDINAL,
    INTEGERS,
    MAX_CHILDREN_OF_SMALL,
    MAX_DECIMAL_SCALE,
    MAX_DEPTH,
    MAX_SHORT_STRING_BYTES,
    METADATA_VERSION,
    SIZE_BYTES,
    BasicType,
    Kind,
    TypedValue,
    VariantDate,
    VariantTimestamp,
    VariantValue,
    ensure_size,
    width_of,
)
from delta_orch.protocol.variant.variant import Variant

MAX_DECIMAL_DIGITS = 38
_SORTED_FLAG = 0x10
EMPTY_METADATA = bytes([METADATA_VERSION | _SORTED_FLAG, 0, 0])


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


# Metadata and containers


def serialize_metadata(names: Iterable[bytes]) -> bytes:
    """The dictionary of names that are in ascending order of their UTF-8 bytes and differ, in as few bytes as it takes.

    A name's id is its position.
    """
    listed = list(names)
    offsets = list(accumulate((len(name) for name in listed), initial=0))
    width = width_of(max(offsets[-1], len(listed)))
    header = METADATA_VERSION | _SORTED_FLAG | (width - 1) << 6
    return bytes([header]) + _uints([len(listed), *offsets], width) + b"".join(listed)


def build_object(field_ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """An object of encoded values. The ids must be in the order of the names they stand for, and differ."""
    offsets, offset_width, large, count = _layout(values)
    id_width = width_of(max(field_ids, default=0))
    header = BasicType.OBJECT | ((offset_width - 1) | (id_width - 1) << 2 | large << 4) << 2
    return bytes([header]) + count + _uints(field_ids, id_width) + offsets + b"".join(values)


def build_array(values: Sequence[bytes]) -> bytes:
    """An array of encoded values."""
    offsets, offset_width, large, count = _layout(values)
    header = BasicType.ARRAY | ((offset_width - 1) | large << 2) << 2
    return bytes([header]) + count + offsets + b"".join(values)


def _layout(values: Sequence[bytes]) -> tuple[bytes, int, bool, bytes]:
    offsets = list(accumulate((len(v) for v in values), initial=0))
    ensure_size("An object or array", offsets[-1])
    width = width_of(offsets[-1])
    large = len(values) > MAX_CHILDREN_OF_SMALL
    return _uints(offsets, width), width, large, _uints([len(values)], 4 if large else 1)


def _uints(numbers: Iterable[int], width: int) -> bytes:
    return b"".join(number.to_bytes(width, "little") for number in numbers)


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


def _fixed(kind: Kind, number: int) -> bytes:
    return bytes([kind << 2]) + number.to_bytes(SIZE_BYTES[kind] - 1, "little", signed=True)


def _integer(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length() + 1
    kind = next((kind for kind in INTEGERS if bits <= 8 * (SIZE_BYTES[kind] - 1)), None)
    return _decimal(Decimal(value)) if kind is None else _fixed(kind, value)


def _decimal(value: Decimal, kind: Kind | None = None) -> bytes:
    sign, parts, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidRequestError("A variant's decimals are finite", cause=str(value))
    if len(parts) + max(exponent, 0) > MAX_DECIMAL_DIGITS:
        raise InvalidRequestError("A number has more than 38 digits", cause=f"{len(parts)} digits, E{exponent}")
    unscaled: int = int("".join(map(str, parts))) * 10 ** max(exponent, 0)
    scale, digits = max(-exponent, 0), len(str(unscaled))
    if kind is None:
        # Some readers also compare the scale with the digits of the width.
        kind = next((k for k, most in DECIMAL_DIGITS.items() if max(digits, scale) <= most), None)
        if kind is None:
            cause = f"{digits} digits, {scale} after the point"
            raise InvalidRequestError("A number has more than 38 digits", cause=cause)
    elif digits > DECIMAL_DIGITS[kind] or scale > MAX_DECIMAL_SCALE:
        raise InvalidRequestError(f"A number does not fit into a {kind.type_name}", cause=f"{digits} digits")
    content = (-unscaled if sign else unscaled).to_bytes(DECIMAL_BYTES[kind], "little", signed=True)
    return bytes([kind << 2, scale]) + content


def _string(value: str) -> bytes:
    text = _utf8(value)
    if len(text) <= MAX_SHORT_STRING_BYTES:
        return bytes([BasicType.SHORT_STRING | len(text) << 2]) + text
    return _sized(Kind.STRING, text)


def _binary(value: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("no bytes")
    return _sized(Kind.BINARY, bytes(value))


def _sized(kind: Kind, content: bytes) -> bytes:
    ensure_size("A string or binary value", len(content))
    return bytes([kind << 2]) + _uints([len(content)], 4) + content


def _date(value: date | VariantDate) -> bytes:
    days = value.days if isinstance(value, VariantDate) else value.toordinal() - EPOCH_ORDINAL
    if not -(1 << 31) <= days < 1 << 31:
        raise InvalidRequestError("A date is out of a variant's range", cause=f"{days} days since 1970")
    return _fixed(Kind.DATE, days)


def _timestamp(value: datetime | VariantTimestamp, kind: Kind | None = None) -> bytes:
    if isinstance(value, VariantTimestamp):
        own, count = Kind[value.type_name.upper()], value.count
    elif value.utcoffset() is not None:
        own, count = Kind.TIMESTAMP, micros_since_epoch(value)
    else:
        own, count = Kind.TIMESTAMP_NTZ, micros_since_epoch(value)
    if kind not in (None, own):
        raise TypeError(f"It is a {own.type_name}")
    if not -(1 << 63) <= count < 1 << 63:
        raise InvalidRequestError("A timestamp is out of a variant's range", cause=value.isoformat())
    return _fixed(own, count)


def _time(value: time) -> bytes:
    if value.tzinfo is not None:
        raise InvalidRequestError("A variant's time of day has no time zone", cause=str(value))
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _fixed(Kind.TIME, seconds * 1_000_000 + value.microsecond)


def _null(value: None) -> bytes:
    if value is not None:
        raise TypeError("not None")
    return bytes([Kind.NULL << 2])


def _boolean(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("neither True nor False")
    return bytes([BOOLEANS[not value] << 2])


def _double(value: float) -> bytes:
    return struct.pack("<Bd", Kind.DOUBLE << 2, value)


def _uuid(value: UUID) -> bytes:
    return bytes([Kind.UUID << 2]) + value.bytes


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
    datetime: _timestamp,
    date: _date,
    time: _time,
    UUID: _uuid,
    VariantDate: _date,
    VariantTimestamp: _timestamp,
    TypedValue: _typed,
}

_TIMESTAMPS = (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS)
_BY_TYPE_NAME: dict[str, Callable[[VariantValue], bytes]] = {
    "null": _null,
    "boolean": _boolean,
    "double": _double,
    "float": lambda value: struct.pack("<Bf", Kind.FLOAT << 2, value),
    "date": _date,
    "binary": _binary,
    "string": _string,
    "time": _time,
    "uuid": _uuid,
    **{kind.type_name: partial(_fixed, kind) for kind in INTEGERS},
    **{kind.type_name: partial(_decimal, kind=kind) for kind in DECIMAL_DIGITS},
    **{kind.type_name: partial(_timestamp, kind=kind) for kind in _TIMESTAMPS},
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
