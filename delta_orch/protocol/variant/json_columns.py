"""JSON text of many variants at once: down level by level to the scalars, and up again with the text.

The text is that of `json_text.to_json`, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa

from delta_orch.protocol.variant.byte_columns import ByteColumn, Bytes, Ints, Mask, concatenate, join, offsets_of
from delta_orch.protocol.variant.dictionaries import Dictionaries, Names
from delta_orch.protocol.variant.layouts import child_spaces, containers, value_sizes
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.navigate import Located
from delta_orch.protocol.variant.scalar_texts import byte_strings, scalar_texts
from delta_orch.protocol.variant.values import MAX_DEPTH, BasicType

_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23


def json_texts(located: Located, names: Names) -> ByteColumn:
    """The canonical JSON text of each value.

    Raises:
        InvalidVariantError: A value is damaged, or nested deeper than `MAX_DEPTH` levels.
    """
    sizes = located.ends - located.starts
    blocks: list[ByteColumn] = []
    first, length = 0, len(located.rows)
    codes = names.codes[located.rows]
    while first < length or not blocks:
        last = first + max(1, int(np.searchsorted(np.cumsum(sizes[first : first + _BLOCK_ROWS]), _BLOCK_BYTES)))
        block = slice(first, last)
        nodes = _Nodes(located.starts[block], located.ends[block], codes[block])
        blocks.append(_texts(located.data, nodes, names))
        first = last
    return concatenate(blocks)


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """Values of one level of nesting: where each lies, and the number of its dictionary."""

    starts: Ints
    ends: Ints
    dictionaries: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """What is known of a level before the text of the next one is.

    Attributes:
        scalars: The text of the scalars.
        is_object, is_array: Which nodes have children.
        owners: Nodes with children, objects first: the order in which their children make up the next level.
        bounds: For each of them its first child, and one more.
        leads: What stands before each child: a comma and a name, as far as they are needed.
    """

    scalars: ByteColumn
    is_object: Mask
    is_array: Mask
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
        is_container = self.is_object | self.is_array
        characters = np.where(self.is_object[is_container], pair[0], pair[1]).astype(np.uint8)
        return ByteColumn(offsets_of(is_container.astype(np.int64)), characters)


def _texts(data: Bytes, nodes: _Nodes, names: Names) -> ByteColumn:
    levels: list[_Level] = []
    while len(nodes.starts) or not levels:
        level, nodes = _open(data, nodes, names)
        levels.append(level)
        if len(levels) > MAX_DEPTH and len(nodes.starts):
            raise invalid_variant(f"it is nested deeper than {MAX_DEPTH} levels")
    texts = ByteColumn(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    for level in reversed(levels):
        texts = level.assemble(texts)
    return texts


def _open(data: Bytes, nodes: _Nodes, names: Names) -> tuple[_Level, _Nodes]:
    sizes = value_sizes(data, nodes.starts, nodes.ends)
    kinds = data[nodes.starts] & 3
    is_object, is_array = kinds == BasicType.OBJECT, kinds == BasicType.ARRAY
    object_rows, array_rows = np.flatnonzero(is_object), np.flatnonzero(is_array)
    ends = nodes.starts + sizes
    parts = []
    if len(object_rows):
        parts.append(_fields(data, _taken(nodes, object_rows, ends), names))
    if len(array_rows):
        parts.append(_elements(data, _taken(nodes, array_rows, ends)))
    counts = np.concatenate([part.counts for part in parts]) if parts else np.zeros(0, np.int64)
    level = _Level(
        scalar_texts(data, nodes.starts, sizes),
        is_object,
        is_array,
        np.concatenate([object_rows, array_rows]),
        offsets_of(counts),
        concatenate([part.leads for part in parts]) if parts else ByteColumn(np.zeros(1, np.int64), data[:0]),
    )
    if not parts:
        return level, _taken(nodes, counts, ends)
    below = [part.nodes for part in parts]
    return level, _Nodes(
        np.concatenate([n.starts for n in below]),
        np.concatenate([n.ends for n in below]),
        np.concatenate([n.dictionaries for n in below]),
    )


def _taken(nodes: _Nodes, rows: Ints, ends: Ints) -> _Nodes:
    return _Nodes(nodes.starts[rows], ends[rows], nodes.dictionaries[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Children:
    counts: Ints
    leads: ByteColumn
    nodes: _Nodes


def _fields(data: Bytes, objects: _Nodes, names: Names) -> _Children:
    layout = containers(data, objects.starts, objects.ends, objects=True)
    children, starts, ends = child_spaces(data, layout)
    owners = objects.dictionaries[children.rows]
    codes = names.dictionaries.codes_at(owners, children.ids)
    ranks = names.ranks[codes]
    rows = children.rows
    ascending = (rows[1:] > rows[:-1]) | (ranks[1:] > ranks[:-1])
    if not ascending.all():
        order = np.lexsort((ranks, rows))
        rows, ranks, codes = rows[order], ranks[order], codes[order]
        starts, ends, owners = starts[order], ends[order], owners[order]
        if ((rows[1:] == rows[:-1]) & (ranks[1:] == ranks[:-1])).any():
            raise invalid_variant("an object has two fields of one name")
    first = np.ones(len(rows), np.bool_)
    first[1:] = rows[1:] > rows[:-1]
    return _Children(layout.counts, _name_leads(codes, first, names.dictionaries), _Nodes(starts, ends, owners))


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


def _elements(data: Bytes, arrays: _Nodes) -> _Children:
    layout = containers(data, arrays.starts, arrays.ends, objects=False)
    children, starts, ends = child_spaces(data, layout)
    rows = children.rows
    comma = np.zeros(len(rows), np.int64)
    comma[1:] = rows[1:] == rows[:-1]
    leads = ByteColumn(offsets_of(comma), np.full(int(comma.sum()), ord(","), np.uint8))
    return _Children(layout.counts, leads, _Nodes(starts, ends, arrays.dictionaries[rows]))


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
