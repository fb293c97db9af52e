"""JSON text of many scalars at once, type by type. The text is that of `json_text.to_json`, to the letter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    column_from_arrow,
    concatenate,
    constant,
    gather,
    join,
    offsets_of,
    present_bytes,
)
from delta_orch.protocol.variant.convert import PLAIN_ARROW, decimal_array, ensure_inside_a_day, fixed_width
from delta_orch.protocol.variant.decode import MAX_DAYS, MIN_DAYS, decode_scalar
from delta_orch.protocol.variant.json_text import to_json
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.values import BasicType, PrimitiveType

_QUOTE = b'"'
_CONSTANTS = {PrimitiveType.NULL: b"null", PrimitiveType.TRUE: b"true", PrimitiveType.FALSE: b"false"}
_INTEGERS = (PrimitiveType.INT8, PrimitiveType.INT16, PrimitiveType.INT32, PrimitiveType.INT64)
_DECIMALS = (PrimitiveType.DECIMAL4, PrimitiveType.DECIMAL8, PrimitiveType.DECIMAL16)
_UNITS_OF_A_DAY = {"us": 86_400_000_000, "ns": 86_400_000_000_000}
_ESCAPED = np.zeros(256, np.bool_)
_ESCAPED[[*range(0x20), ord('"'), ord("\\")]] = True
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
_HYPHENS_AFTER = (8, 12, 16, 20)

Piece = tuple[Ints, ByteColumn]
"""Positions of values, and the text of each."""


def scalar_texts(data: Bytes, starts: Ints, sizes: Ints) -> ByteColumn:
    """The text of each value; none of objects and arrays.

    Args:
        data: The bytes they lie in.
        starts: The first byte of each.
        sizes: The size of each, as `layouts.value_sizes` found it.

    Raises:
        InvalidVariantError: A string is not UTF-8, or a number is out of its type's range.
    """
    first_bytes = data[starts]
    pieces: list[Piece] = []
    short = np.flatnonzero((first_bytes & 3) == BasicType.SHORT_STRING)
    if len(short):
        pieces.append((short, _strings(gather(data, starts[short] + 1, sizes[short] - 1))))
    for first_byte in present_bytes(first_bytes[(first_bytes & 3) == BasicType.PRIMITIVE]):
        chosen = np.flatnonzero(first_bytes == first_byte)
        pieces.extend(_of_kind(PrimitiveType(first_byte >> 2), data, starts, sizes, chosen))
    return _placed(pieces, len(starts))


def _placed(pieces: list[Piece], length: int) -> ByteColumn:
    if not pieces:
        return ByteColumn(np.zeros(length + 1, np.int64), np.zeros(0, np.uint8))
    positions = np.concatenate([chosen for chosen, _ in pieces])
    texts = concatenate([texts for _, texts in pieces])
    order = np.argsort(positions, kind="stable")
    return (texts if len(pieces) == 1 else texts.take(order)).expand(positions[order], length)


def _of_kind(kind: PrimitiveType, data: Bytes, starts: Ints, sizes: Ints, chosen: Ints) -> Iterator[Piece]:
    at = starts[chosen] + 1
    if kind in _CONSTANTS:
        yield chosen, constant(_CONSTANTS[kind], np.ones(len(chosen), np.bool_))
    elif kind is PrimitiveType.BINARY:
        yield chosen, _one_by_one(data, starts[chosen], sizes[chosen])
    elif kind is PrimitiveType.STRING:
        yield chosen, _strings(gather(data, at + 4, sizes[chosen] - 5))
    elif kind in _DECIMALS:
        for scale in present_bytes(data[at]):
            same = np.flatnonzero(data[at] == scale)
            yield chosen[same], _decimals(decimal_array(kind, scale, data, at[same] + 1))
    elif kind is PrimitiveType.UUID:
        yield chosen, _uuids(fixed_width(data, at, 16))
    elif kind in _INTEGERS or kind in (PrimitiveType.FLOAT, PrimitiveType.DOUBLE):
        numbers = fixed_width(data, at, PLAIN_ARROW[kind].bit_width // 8)
        if kind in _INTEGERS:
            yield chosen, _texts_of(pa.Array.from_buffers(PLAIN_ARROW[kind], len(at), [None, pa.py_buffer(numbers)]))
        else:
            floats = numbers.view(np.float32 if kind is PrimitiveType.FLOAT else np.float64)[:, 0]
            with np.errstate(invalid="ignore"):  # signalling NaNs
                yield chosen, _floats(floats.astype(np.float64))
    else:
        yield from _moments(kind, data, starts, chosen)


def _texts_of(array: pa.Array) -> ByteColumn:
    return column_from_arrow(array.cast(pa.large_string()))


def _quoted(*parts: ByteColumn) -> ByteColumn:
    quotes = constant(_QUOTE, np.ones(len(parts[0]), np.bool_))
    return join([quotes, *parts, quotes])


def _one_by_one(data: Bytes, starts: Ints, sizes: Ints) -> ByteColumn:
    ends = starts + sizes
    encoded = (data[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    return byte_strings(to_json(decode_scalar(value, 0, len(value))).encode() for value in encoded)


def byte_strings(strings: Iterable[bytes]) -> ByteColumn:
    """A column of Python's byte strings."""
    listed = list(strings)
    offsets = offsets_of(np.fromiter(map(len, listed), np.int64, len(listed)))
    return ByteColumn(offsets, np.frombuffer(b"".join(listed), np.uint8))


def _floats(values: npt.NDArray[np.float64]) -> ByteColumn:
    # Without exponents orjson writes what Python does, many times as fast. With them it does not.
    magnitudes = np.abs(values)
    usual = ((magnitudes >= 1e-4) & (magnitudes < 1e16)) | (magnitudes == 0)
    rows, others = np.flatnonzero(usual), np.flatnonzero(~usual)
    text = np.frombuffer(orjson.dumps(values[rows], option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
    commas = np.flatnonzero(text == ord(","))
    starts = np.concatenate([[1], commas + 1])[: len(rows)]
    plain = gather(text, starts, np.concatenate([commas, [len(text) - 1]])[: len(rows)] - starts)
    unusual = byte_strings(to_json(value).encode() for value in values[others].tolist())
    return _placed([(rows, plain), (others, unusual)], len(values))


def _decimals(array: pa.Array) -> ByteColumn:
    texts = array.cast(pa.large_string())
    # Arrow writes small numbers with an exponent.
    if ord("E") in np.frombuffer(texts.buffers()[2] or b"", np.uint8):
        return byte_strings(format(value, "f").encode() for value in array.to_pylist())
    return column_from_arrow(texts)


def _uuids(values: Bytes) -> ByteColumn:
    digits = _HEX[values].reshape(len(values), 32)
    text = np.insert(digits, _HYPHENS_AFTER, ord("-"), axis=1)
    return _quoted(ByteColumn(np.arange(len(values) + 1) * 36, np.ascontiguousarray(text).reshape(-1)))


def _strings(content: ByteColumn) -> ByteColumn:
    try:
        content.to_arrow().cast(pa.large_string())
    except pa.ArrowInvalid as e:
        raise invalid_variant("a string is not UTF-8", str(e)) from None
    first = content.offsets[0]
    escaped_at = np.flatnonzero(_ESCAPED[content.data[first : content.offsets[-1]]])
    if not len(escaped_at):
        return _quoted(content)
    rows = np.unique(np.searchsorted(content.offsets, escaped_at + first, side="right") - 1)
    plain = np.ones(len(content), np.bool_)
    plain[rows] = False
    texts = content.take(rows).to_arrow().cast(pa.large_string()).to_pylist()
    escaped = byte_strings(encode_basestring(text)[1:-1].encode() for text in texts)
    return _quoted(content.only(plain), escaped.expand(rows, len(content)))


# Dates and times


def _moments(kind: PrimitiveType, data: Bytes, starts: Ints, chosen: Ints) -> Iterator[Piece]:
    t = PLAIN_ARROW[kind]
    numbers = fixed_width(data, starts[chosen] + 1, t.bit_width // 8)
    if kind is PrimitiveType.TIME:
        counts = numbers.view(np.int64)[:, 0]
        ensure_inside_a_day(counts)
        for rows, text in _times(counts, "us"):
            yield chosen[rows], _quoted(text)
        return
    if kind is PrimitiveType.DATE:
        days, within, unit = numbers.view(np.int32)[:, 0].astype(np.int64), None, "us"
    else:
        unit = t.unit
        days, within = np.divmod(numbers.view(np.int64)[:, 0], _UNITS_OF_A_DAY[unit])
    usual = (days >= MIN_DAYS) & (days <= MAX_DAYS)
    beyond = np.flatnonzero(~usual)
    if len(beyond):
        far = chosen[beyond]
        yield far, _one_by_one(data, starts[far], np.full(len(far), 1 + t.bit_width // 8))
    near = np.flatnonzero(usual)
    if within is None:
        yield chosen[near], _quoted(_dates(days[near]))
        return
    zone = b"+00:00" if t.tz else b""
    for rows, text in _times(within[near], unit):
        every = np.ones(len(rows), np.bool_)
        moments = _quoted(_dates(days[near][rows]), constant(b"T", every), text, constant(zone, every))
        yield chosen[near][rows], moments


def _dates(days: Ints) -> ByteColumn:
    numbers = pa.py_buffer(days.astype(np.int32))
    return _texts_of(pa.Array.from_buffers(pa.date32(), len(days), [None, numbers]))


def _times(counts: Ints, unit: str) -> Iterator[Piece]:
    """Times of day: without a fraction where that is zero."""
    per_second = _UNITS_OF_A_DAY[unit] // 86_400
    seconds, fractions = np.divmod(counts, per_second)
    whole, broken = np.flatnonzero(fractions == 0), np.flatnonzero(fractions)
    if len(whole):
        buffer = pa.py_buffer(seconds[whole].astype(np.int32))
        yield whole, _texts_of(pa.Array.from_buffers(pa.time32("s"), len(whole), [None, buffer]))
    if len(broken):
        buffer = pa.py_buffer(np.ascontiguousarray(counts[broken]))
        yield broken, _texts_of(pa.Array.from_buffers(pa.time64(unit), len(broken), [None, buffer]))
