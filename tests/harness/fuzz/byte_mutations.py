"""Damage to bytes, whatever they mean."""

from __future__ import annotations

import struct
from random import Random

from tests.harness.fuzz.categories import Category, note

_SIZES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

_CATEGORIES = {
    "flip": Category.BIT_FLIPS,
    "flip_again": Category.BIT_FLIPS,
    "flip_once_more": Category.BIT_FLIPS,
    "flips": Category.OTHER_BYTES,
    "cut": Category.TRUNCATION,
    "cut_front": Category.TRUNCATION,
    "insert": Category.OTHER_BYTES,
    "erase": Category.TRUNCATION,
    "repeat": Category.OTHER_BYTES,
    "size": Category.SIZES_AND_OFFSETS,
    "fill": Category.OTHER_BYTES,
}
"""The more often the likelier."""


def damage_bytes(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Bytes that are (mostly) not the same, and what was done to them."""
    kind = rng.choice(tuple(_CATEGORIES))
    if not data:
        note(rng, Category.OTHER_BYTES)
        return rng.randbytes(rng.choice([1, 4, 12, 100])), "random bytes"
    note(rng, _CATEGORIES[kind])
    at = position(data, rng)
    match kind:
        case "flip" | "flip_again" | "flip_once_more":
            bit = rng.randrange(8)
            return _replace(data, at, bytes([data[at] ^ 1 << bit])), f"bit {bit} of byte {at} flipped"
        case "flips":
            count = rng.choice([2, 5, 20, 100])
            changed = bytearray(data)
            for _ in range(count):
                changed[position(data, rng)] = rng.randrange(256)
            return bytes(changed), f"{count} bytes replaced"
        case "cut":
            return data[:at], f"cut off at byte {at} of {len(data)}"
        case "cut_front":
            return data[at:], f"the first {at} bytes gone"
        case "insert":
            return data[:at] + rng.randbytes(rng.choice([1, 3, 4, 50])) + data[at:], f"bytes inserted at {at}"
        case "erase":
            length = rng.choice([1, 2, 4, 8, 64])
            return data[:at] + data[at + length :], f"{length} bytes at {at} gone"
        case "repeat":
            length = rng.choice([1, 4, 16, 256])
            return data[:at] + data[at : at + length] * rng.choice([2, 10, 100]) + data[at:], f"bytes at {at} repeated"
        case "size":
            number, order = rng.choice(_SIZES), rng.choice("<>")
            return _replace(data, at, struct.pack(f"{order}I", number)), f"the number {number} at byte {at}"
        case _:
            length = rng.choice([1, 4, 32, 500])
            return _replace(data, at, bytes([rng.choice((0, 0xFF, 0x80))]) * length), f"{length} bytes at {at} filled"


def position(data: bytes, rng: Random) -> int:
    """A place in the bytes; often near an end, where the headers and footers are."""
    region = rng.random()
    if region < 0.2:
        return rng.randrange(min(len(data), 24))
    if region < 0.4:
        return len(data) - 1 - rng.randrange(min(len(data), 400))
    return rng.randrange(len(data))


def _replace(data: bytes, at: int, piece: bytes) -> bytes:
    piece = piece[: len(data) - at]
    return data[:at] + piece + data[at + len(piece) :]
