"""A second reader of variants, one value at a time and as plain as can be: the judge of the package's own, which reads
columns. It follows the specification (Variant binary encoding) and shares no code with the package."""

from __future__ import annotations

import json
import math
import struct
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

DEEPEST = 1000
_LAYOUTS = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 7: "<d", 11: "<i", 12: "<q", 13: "<q", 14: "<f", 18: "<q", 19: "<q"}
_DECIMALS = {8: (4, 9), 9: (8, 18), 10: (16, 38)}
_FAR = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_DAY_US = 86_400_000_000


class BadVariantError(Exception):
    """The bytes break the encoding."""


class Typed(NamedTuple):
    """A scalar as its bytes have it: the id of its type, and a number, text, bytes or Decimal."""

    type_id: int
    value: Any


def decode(metadata: bytes, value: bytes) -> Any:
    """A variant as dicts, lists and `Typed` scalars. Raises BadVariantError."""
    _ensure(metadata != b"", "no metadata")
    with _deep_recursion():
        try:
            return _value(value, 0, len(value), _Names(metadata), 0)
        except (UnicodeDecodeError, struct.error, IndexError) as e:
            raise BadVariantError(str(e)) from e


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 4 * DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _ensure(holds: bool, problem: str) -> None:
    if not holds:
        raise BadVariantError(problem)


def _uint(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


class _Names:
    """The dictionary, read as a whole as soon as there is an object."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._names: list[bytes] | None = None

    def at(self, field_ids: list[int]) -> list[str]:
        if self._names is None:
            self._names = list(self._read())
        return [self._names[field_id].decode() for field_id in field_ids]

    def _read(self) -> Iterator[bytes]:
        data = self._metadata
        _ensure(len(data) >= 3 and data[0] & 15 == 1, "no metadata of version 1")
        width = (data[0] >> 6) + 1
        count = _uint(data, 1, width)
        text = 1 + width * (count + 2)
        _ensure(text <= len(data), "offsets beyond the end")
        for i in range(count):
            low, high = (_uint(data, 1 + width * (1 + place), width) for place in (i, i + 1))
            _ensure(low <= high and text + high <= len(data), "a name beyond the end")
            yield data[text + low : text + high]


def _value(data: bytes, at: int, end: int, names: _Names, depth: int) -> Any:
    _ensure(at < end, "no bytes")
    basic, upper = data[at] & 3, data[at] >> 2
    if basic < 2:
        return _scalar(data, at, end, basic, upper)
    _ensure(depth < DEEPEST, "too deep")
    is_object = basic == 2
    count_width = 4 if upper & (16 if is_object else 4) else 1
    id_width, width = ((upper >> 2 & 3) + 1 if is_object else 0), (upper & 3) + 1
    ids = at + 1 + count_width
    _ensure(ids <= end, "no count")
    count = _uint(data, at + 1, count_width)
    offsets = ids + count * id_width
    values = offsets + (count + 1) * width
    _ensure(values <= end, "offsets beyond the end")
    starts = [_uint(data, offsets + width * i, width) for i in range(count)]
    size = _uint(data, values - width, width)
    _ensure(values + size <= end and all(start < size for start in starts), "values beyond the end")
    following = [*sorted(starts), size]
    _ensure(len(set(following)) == count + 1, "values overlap")
    next_of = dict(pairwise(following))
    places = [(values + start, values + next_of[start]) for start in starts]
    if not is_object:
        return [_value(data, *place, names, depth + 1) for place in places]
    keys = names.at([_uint(data, ids + id_width * i, id_width) for i in range(count)])
    _ensure(len(set(keys)) == count, "two fields of one name")
    return {key: _value(data, *place, names, depth + 1) for key, place in zip(keys, places, strict=True)}


def _scalar(data: bytes, at: int, end: int, basic: int, upper: int) -> Typed:
    def taken(start: int, size: int) -> bytes:
        _ensure(start + size <= end, "cut short")
        return data[start : start + size]

    if basic == 1:
        return Typed(16, taken(at + 1, upper).decode())
    if upper <= 2:
        return Typed(upper, (None, True, False)[upper])
    if upper in _LAYOUTS:
        return Typed(upper, struct.unpack(_LAYOUTS[upper], taken(at + 1, struct.calcsize(_LAYOUTS[upper])))[0])
    if upper in _DECIMALS:
        width, digits = _DECIMALS[upper]
        scale, unscaled = taken(at + 1, 1)[0], int.from_bytes(taken(at + 2, width), "little", signed=True)
        _ensure(scale <= 38 and abs(unscaled) < 10**digits, "a decimal out of range")
        digits_of = tuple(map(int, str(abs(unscaled))))
        return Typed(upper, Decimal((int(unscaled < 0), digits_of, -scale)))
    if upper in (15, 16):
        content = taken(at + 5, int.from_bytes(taken(at + 1, 4), "little"))
        return Typed(upper, content if upper == 15 else content.decode())
    if upper == 17:
        micros = struct.unpack("<q", taken(at + 1, 8))[0]
        _ensure(0 <= micros < _DAY_US, "no time of day")
        return Typed(17, micros)
    _ensure(upper == 20, "an unknown type")
    return Typed(20, UUID(bytes=taken(at + 1, 16)))


def text_of(value: Any) -> str:
    """The canonical JSON text of what `decode` gave."""
    with _deep_recursion():
        return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    type_id, plain = value
    match type_id:
        case 0 | 1 | 2:
            return ("null", "true", "false")[type_id]
        case 7 | 14:
            return repr(plain) if math.isfinite(plain) else _FAR[str(plain)]
        case 8 | 9 | 10:
            return format(plain, "f")
        case 11:
            return f'"{_day(plain)}"'
        case 12 | 13 | 18 | 19:
            return f'"{_moment(plain, 9 if type_id > 13 else 6)}{"+00:00" if type_id in (12, 18) else ""}"'
        case 15:
            return f'"{b64encode(plain).decode()}"'
        case 16:
            return _quoted(plain)
        case 17:
            return f'"{_moment(plain, 6).partition("T")[2]}"'
        case 20:
            return f'"{plain}"'
    return str(plain)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _day(days: int) -> str:
    # The civil calendar by its eras of 400 years, which begin on the first of March.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    rest = day - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    year += 400 * era + (month >= 10)
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{month + 3 - 12 * (month >= 10):02}-{rest - (153 * month + 2) // 5 + 1:02}"


def _moment(count: int, digits: int) -> str:
    seconds, fraction = divmod(count, 10**digits)
    days, second = divmod(seconds, 86_400)
    text = f"{_day(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{text}.{fraction:0{digits}}" if fraction else text
