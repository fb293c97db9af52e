"""JSON text of many variants at once: down level by level to the scalars, and up again with the text.

The text is that of `values.to_json`, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    Mask,
    byte_strings,
    column_from_arrow,
    concatenate,
    constant,
    fixed_values,
    gather,
    join,
    missing,
    offsets_of,
    present_bytes,
)
from delta_orch.protocol.variant.convert import arrow_values
from delta_orch.protocol.variant.dictionaries import Dictionaries, Located, Names
from delta_orch.protocol.variant.layouts import KINDS, ensure_distinct, value_sizes
from delta_orch.protocol.variant.values import (
    DECIMAL_DIGITS,
    MAX_DAYS,
    MAX_DEPTH,
    MIN_DAYS,
    BasicType,
    Kind,
    VariantDate,
    VariantTimestamp,
    invalid_variant,
    to_json,
)

_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23
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

    Raises:
        InvalidVariantError: A value is damaged, or nested deeper than `MAX_DEPTH` levels.
    """
    sizes = located.ends - located.starts
    blocks: list[ByteColumn] = []
    first, length = 0, len(located.rows)
    while first < length or not blocks:
        last = first + max(1, int(np.searchsorted(np.cumsum(sizes[first : first + _BLOCK_ROWS]), _BLOCK_BYTES)))
        blocks.append(_texts(located.some(slice(first, last)), names))
        first = last
    return concatenate(blocks)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The state of a level before the text of the next level is known.

    Attributes:
        scalars: The text of the scalars.
        kinds: The basic type of each value.
        owners: Values with children, objects first: the order in which their children make up the next level.
        bounds: For each of them its first child, and one more.
        leads: The text before each child: a comma and a name, if they are needed.
    """

    scalars: ByteColumn
    kinds: Bytes
    owners: Ints
    bounds: Ints
    leads: ByteColumn

    def assemble(self, children: ByteColumn) -> ByteColumn:
        if not len(self.owners):
            return self.scalars
        led = join([self.leads, children])
        order = np.argsort(self.owners, kind="stable")
        bodies = ByteColumn(led.offsets[self.bounds], led.data)
        if not (self.owners[1:] > self.owners[:-1]).all():
            bodies = bodies.take(order)
        bodies = bodies.expand(self.owners[order], len(self.scalars))
        return join([self._brackets(b"{["), bodies, self._brackets(b"}]"), self.scalars])

    def _brackets(self, pair: bytes) -> ByteColumn:
        is_container = self.kinds >= BasicType.OBJECT
        characters = np.where(self.kinds[is_container] == BasicType.OBJECT, pair[0], pair[1]).astype(np.uint8)
        return ByteColumn(offsets_of(is_container.astype(np.int64)), characters)


def _texts(values: Located, names: Names) -> ByteColumn:
    levels: list[_Level] = []
    while len(values.starts) or not levels:
        level, values = _open(values, names)
        levels.append(level)
        if len(levels) > MAX_DEPTH and len(values.starts):
            raise invalid_variant(f"it is nested deeper than {MAX_DEPTH} levels")
    texts = missing(0)
    for level in reversed(levels):
        texts = level.assemble(texts)
    return texts


def _open(values: Located, names: Names) -> tuple[_Level, Located]:
    sizes = value_sizes(values.data, values.starts, values.ends)
    values = Located(values.rows, values.data, values.starts, values.starts + sizes)
    kinds = values.data[values.starts] & np.uint8(3)
    objects, arrays = np.flatnonzero(kinds == BasicType.OBJECT), np.flatnonzero(kinds == BasicType.ARRAY)
    parts = []
    if len(objects):
        parts.append(_fields(values.some(objects), names))
    if len(arrays) or not len(objects):
        parts.append(_elements(values.some(arrays)))
    counts, leads, below = zip(*parts, strict=True)
    owners = np.concatenate([objects, arrays])
    level = _Level(_scalar_texts(values, sizes), kinds, owners, offsets_of(np.concatenate(counts)), concatenate(leads))
    return level, Located(
        np.concatenate([children.rows for children in below]),
        values.data,
        np.concatenate([children.starts for children in below]),
        np.concatenate([children.ends for children in below]),
    )


def _fields(objects: Located, names: Names) -> tuple[Ints, ByteColumn, Located]:
    """How many fields each object has, what stands before each, and where each lies; in the order of names."""
    children, fields, codes = objects.fields(names)
    rows, ranks = children.rows, names.dictionaries.ranks[codes]
    if not ((rows[1:] > rows[:-1]) | (ranks[1:] > ranks[:-1])).all():
        order = np.lexsort((ranks, rows))
        rows, ranks, codes, fields = rows[order], ranks[order], codes[order], fields.some(order)
        ensure_distinct(rows, ranks)
    first = np.ones(len(rows), np.bool_)
    first[1:] = rows[1:] > rows[:-1]
    counts = np.bincount(rows, minlength=len(objects.rows))
    return counts, _name_leads(codes, first, names.dictionaries), fields


def _name_leads(codes: Ints, first: Mask, dictionaries: Dictionaries) -> ByteColumn:
    used, positions = np.unique(codes, return_inverse=True)
    names = dictionaries.names_at(used)
    leads: list[bytes] = []
    for name in names:
        try:
            text = f"{encode_basestring(name.decode())}:".encode()
        except UnicodeDecodeError as e:
            raise invalid_variant("a field's name is not UTF-8", str(e)) from None
        leads.extend((b"," + text, text))
    return byte_strings(leads).take(2 * positions.reshape(-1) + first)


def _elements(arrays: Located) -> tuple[Ints, ByteColumn, Located]:
    children, elements = arrays.children(BasicType.ARRAY)
    rows = children.rows
    comma = np.zeros(len(rows), np.int64)
    comma[1:] = rows[1:] == rows[:-1]
    leads = ByteColumn(offsets_of(comma), np.full(int(comma.sum()), ord(","), np.uint8))
    return np.bincount(rows, minlength=len(arrays.rows)), leads, elements


# Scalars


def _scalar_texts(values: Located, sizes: Ints) -> ByteColumn:
    """The text of each value; none of objects and arrays."""
    kinds = KINDS[values.data[values.starts]]
    pieces: list[Piece] = []
    for kind in map(Kind, present_bytes(kinds)):
        chosen = np.flatnonzero(kinds == kind)
        if kind is Kind.NULL:
            pieces.append((chosen, constant(b"null", np.ones(len(chosen), np.bool_))))
        elif kind < Kind.OBJECT:
            arrays = arrow_values(kind, values.data, values.starts[chosen], sizes[chosen])
            pieces.extend((chosen[positions], _array_texts(kind, array)) for positions, array in arrays)
    return _placed(pieces, len(kinds))


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
        return byte_strings(to_json(value).encode() for value in array.to_pylist())
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
    return _placed([(near, quoted), (far, byte_strings(to_json(value).encode() for value in others))], len(counts))
