"""Reading the wire format of protocol buffers: fields go by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Message = Mapping[int, Sequence[int | bytes]]
"""The values of each field in order: varints as they stand (unsigned), everything else as bytes."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def parse_message(data: bytes) -> Message:
    """The fields of one message. Raises ValueError where the bytes are not a message."""
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            fields.setdefault(number, []).append(value)
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED_64, _FIXED_32):
            length = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"field {number} has the wire type {kind}")
        if position + length > len(data):
            raise ValueError(f"field {number} ends after the message")
        fields.setdefault(number, []).append(data[position : position + length])
        position += length
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a varint does not end")


def signed(value: int) -> int:
    """An int32 or int64 from its varint: negative ones are written in two's complement of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
