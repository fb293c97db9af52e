"""JSON text of many variants at once: down level by level to the scalars, and up again with the text."""

from __future__ import annotations

from json.encoder import encode_basestring

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from delta_orch.protocol.arrow_building import longs_from_numpy
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    byte_strings,
    column_from_arrow,
    concatenate,
    constant,
    fixed_values,
    gather,
    join,
    missing,
    offsets_of,
)
from delta_orch.protocol.variant.convert import utf8_strings
from delta_orch.protocol.variant.decode import Level, blocks_of, levels_of
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MAX_DAYS,
    MIN_DAYS,
    Kind,
    VariantDate,
    VariantTimestamp,
    scalar_json,
)

_QUOTE = b'"'
_ESCAPED = np.zeros(256, np.bool_)
_ESCAPED[[*range(0x20), ord('"'), ord("\\")]] = True
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
_HYPHENS_AFTER = (8, 12, 16, 20)
_DIGITS = {"s": 0, "us": 6, "ns": 9}

Piece = tuple[Ints, ByteColumn]
"""Positions of values, and the text of each."""


def json_texts(located: Located, names: Names) -> ByteColumn:
    """The canonical JSON text of each value.

    Keys are in the order of their UTF-8 bytes. There is no white space. Decimals have all their digits, floats are
    Python's shortest text that reads back as the same double. Dates, times and timestamps are ISO 8601 (UTC as
    `+00:00`), binary is Base64, UUIDs are hyphenated hex. JSON has no NaN and no infinities: they become the strings
    `"NaN"`, `"Infinity"` and `"-Infinity"`, as in Spark.

    Raises:
        InvalidVariantError: A value is damaged, or nested deeper than `MAX_DEPTH` levels.
    """
    blocks = [_texts(block, names) for block in blocks_of(located)]
    return concatenate(blocks) if blocks else missing(0)


def unquoted_texts(located: Located, names: Names) -> pa.LargeStringArray:
    """The canonical JSON text of each value, without the quotes of strings, dates, binaries and the like."""
    texts = json_texts(located, names)
    quoted = (texts.data[texts.starts] == ord('"')).astype(np.int64)
    starts, sizes = texts.starts + quoted, texts.sizes - 2 * quoted
    ends_and_starts = np.empty(2 * len(texts) + 1, np.int64)
    ends_and_starts[0:-1:2], ends_and_starts[1:-1:2] = starts, starts + sizes
    ends_and_starts[-1] = texts.offsets[-1]
    column = ByteColumn(ends_and_starts, texts.data).take(np.arange(0, 2 * len(texts), 2))
    return pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(column.offsets), pa.py_buffer(column.data))


# Containers


def _texts(values: Located, names: Names) -> ByteColumn:
    # Text takes less memory than the arrays it is made of: levels are printed on the way down.
    printed = [(level, _scalar_texts(level), _leads(level, names)) for level in levels_of(values, names)]
    texts = missing(0)
    for level, scalars, leads in reversed(printed):
        texts = _assembled(level, scalars, join([leads, texts]))
    return texts


def _assembled(level: Level, scalars: ByteColumn, children: ByteColumn) -> ByteColumn:
    """The texts of a level.

    Args:
        scalars: The text of each scalar.
        children: The text of each child, with what stands before it.
    """
    owners = level.owners
    if not len(owners):
        return scalars
    order = np.argsort(owners, kind="stable")
    bodies = ByteColumn(children.offsets[level.bounds], children.data)
    if not (owners[1:] > owners[:-1]).all():
        bodies = bodies.take(order)
    bodies = bodies.expand(owners[order], len(scalars))
    return join([_brackets(level, b"{["), bodies, _brackets(level, b"}]"), scalars])


def _brackets(level: Level, pair: bytes) -> ByteColumn:
    is_container = level.kinds >= Kind.OBJECT
    characters = np.where(level.kinds[is_container] == Kind.OBJECT, pair[0], pair[1]).astype(np.uint8)
    return ByteColumn(offsets_of(is_container.astype(np.int64)), characters)


def _leads(level: Level, names: Names) -> ByteColumn:
    """The text before each child: a comma, except before the first one, and the name of a field."""
    has_comma = np.ones(level.bounds[-1], np.bool_)
    has_comma[level.bounds[:-1][np.diff(level.bounds) > 0]] = False
    num_fields = len(level.codes)
    of_elements = has_comma[num_fields:]
    commas = ByteColumn(offsets_of(of_elements.astype(np.int64)), np.full(of_elements.sum(), ord(","), np.uint8))
    if not num_fields:
        return commas
    used, positions = np.unique(level.codes, return_inverse=True)
    keys = [f"{encode_basestring(name)}:".encode() for name in names.dictionaries.names_at(used)]
    texts = byte_strings(text for key in keys for text in (key, b"," + key))
    return concatenate([texts.take(2 * positions.reshape(-1) + has_comma[:num_fields]), commas])


# Scalars


def _scalar_texts(level: Level) -> ByteColumn:
    """The text of each value; none of objects and arrays."""
    nulls = np.flatnonzero(level.kinds == Kind.NULL)
    pieces = [(positions, _array_texts(kind, array)) for kind, positions, array in level.scalars()]
    if len(nulls):
        pieces.append((nulls, constant(b"null", np.ones(len(nulls), np.bool_))))
    return _placed(pieces, len(level.kinds))


def _placed(pieces: list[Piece], length: int) -> ByteColumn:
    if not pieces:
        return missing(length)
    positions = np.concatenate([chosen for chosen, _ in pieces])
    texts = concatenate([texts for _, texts in pieces])
    order = np.argsort(positions, kind="stable")
    return (texts if len(pieces) == 1 else texts.take(order)).expand(positions[order], length)


def _array_texts(kind: Kind, array: pa.Array) -> ByteColumn:
    """The text of values that `convert.arrow_values` gave."""
    if kind is Kind.STRING:
        return _strings(column_from_arrow(array))
    if kind is Kind.BINARY:
        return byte_strings(scalar_json(value).encode() for value in array.to_pylist())
    if kind in DECIMAL_DIGITS:
        return _decimals(array)
    if kind is Kind.UUID:
        return _uuids(fixed_values(array, 16))
    if pa.types.is_floating(array.type):
        return _floats(np.frombuffer(array.cast(pa.float64()).buffers()[1], np.float64))
    if pa.types.is_temporal(array.type):
        return _moments(array)
    return _texts_of(array)


def _texts_of(array: pa.Array) -> ByteColumn:
    return column_from_arrow(array.cast(pa.large_string()))


def _quoted(*parts: ByteColumn) -> ByteColumn:
    quotes = constant(_QUOTE, np.ones(len(parts[0]), np.bool_))
    return join([quotes, *parts, quotes])


def _floats(values: npt.NDArray[np.float64]) -> ByteColumn:
    # Without exponents orjson writes what Python does, many times as fast. With them it does not.
    magnitudes = np.abs(values)
    usual = ((magnitudes >= 1e-4) & (magnitudes < 1e16)) | (magnitudes == 0)
    rows, others = np.flatnonzero(usual), np.flatnonzero(~usual)
    text = np.frombuffer(orjson.dumps(values[rows], option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
    commas = np.flatnonzero(text == ord(","))
    starts = np.concatenate([[1], commas + 1])[: len(rows)]
    plain = gather(text, starts, np.concatenate([commas, [len(text) - 1]])[: len(rows)] - starts)
    unusual = byte_strings(scalar_json(value).encode() for value in values[others].tolist())
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
    utf8_strings(content.to_arrow())
    first = content.offsets[0]
    escaped_at = np.flatnonzero(_ESCAPED[content.data[first : content.offsets[-1]]])
    if not len(escaped_at):
        return _quoted(content)
    rows = np.unique(np.searchsorted(content.offsets, escaped_at + first, side="right") - 1)
    plain = np.ones(len(content), np.bool_)
    plain[rows] = False
    texts = utf8_strings(content.take(rows).to_arrow()).to_pylist()
    escaped = byte_strings(encode_basestring(text)[1:-1].encode() for text in texts)
    return _quoted(content.only(plain), escaped.expand(rows, len(content)))


def _moments(array: pa.Array) -> ByteColumn:
    """Dates, times and timestamps."""
    t = array.type
    is_timestamp = pa.types.is_timestamp(t)
    unit = "s" if pa.types.is_date(t) else t.unit
    width = t.bit_width // 8
    counts = fixed_values(array, width).view(f"<i{width}")[:, 0].astype(np.int64)
    days = counts if pa.types.is_date(t) else counts // (86_400 * 10 ** _DIGITS[unit])
    usual = (days >= MIN_DAYS) & (days <= MAX_DAYS)
    near, far = np.flatnonzero(usual), np.flatnonzero(~usual)
    if len(far):
        array = array.take(longs_from_numpy(near))
    texts = _texts_of(array.view(pa.timestamp(unit)) if is_timestamp else array)
    sizes = texts.sizes
    if not pa.types.is_date(t):
        sizes -= np.where(counts[near] % 10 ** _DIGITS[unit], 0, _DIGITS[unit] + 1)
    zone = b""
    if is_timestamp:
        texts = ByteColumn(texts.offsets, texts.data.copy())
        texts.data[texts.starts + len("2000-01-01")] = ord("T")
        zone = b"+00:00" if t.tz else b""
    quoted = _quoted(gather(texts.data, texts.starts, sizes), constant(zone, np.ones(len(near), np.bool_)))
    if not len(far):
        return quoted
    beyond = counts[far].tolist()
    others = [VariantTimestamp(n, t.unit, t.tz is not None) if is_timestamp else VariantDate(n) for n in beyond]
    return _placed([(near, quoted), (far, byte_strings(scalar_json(value).encode() for value in others))], len(counts))
