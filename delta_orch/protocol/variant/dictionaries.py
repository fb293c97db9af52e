"""The field names of a metadata column: all different dictionaries in it, parsed once and together.

One dictionary for all rows is the rule, one for each row an exception that must not be slow either; so there is no
loop over dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Ints,
    Mask,
    column_from_arrow,
    gather,
    int64_array,
    offsets_of,
    ragged_positions,
    valid_mask,
)
from delta_orch.protocol.variant.layouts import read_uints_at
from delta_orch.protocol.variant.metadata import VERSION, MetadataReader, invalid_variant

_MAX_READERS = 4096
"""Parsed dictionaries to keep: where every row has its own, keeping them all would fill the memory for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Dictionaries:
    """The different dictionaries of a column.

    Attributes:
        sizes: Number of names of each.
        first: Position of each one's first name in `codes`.
        codes: For every name of every dictionary, its position in `vocabulary`.
        vocabulary: Every name once, in UTF-8, large_binary.
    """

    sizes: Ints
    first: Ints
    codes: Ints
    vocabulary: pa.LargeBinaryArray

    def codes_of(self, names: Sequence[bytes]) -> Ints:
        """Positions of names in the vocabulary, -1 where no dictionary has them."""
        found = pc.index_in(_byte_strings(names), value_set=self.vocabulary)
        codes = np.frombuffer(found.buffers()[1], np.int32)[: len(names)].astype(np.int64)
        codes[~valid_mask(found)] = -1
        return codes

    def ids_of(self, names: Sequence[bytes]) -> Ints:
        """For each dictionary a row, for each name a column: its id, -1 where it has none."""
        column_of = np.full(len(self.vocabulary) + 1, -1)
        column_of[self.codes_of(names)] = np.arange(len(names))
        column_of[-1] = -1
        columns = column_of[self.codes]
        found = np.flatnonzero(columns >= 0)
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)[found]
        ids = np.full((len(self.sizes), len(names)), -1)
        ids[owners, columns[found]] = found - self.first[owners]
        return ids

    def codes_at(self, dictionaries: Ints, ids: Ints) -> Ints:
        """Positions in the vocabulary of names given by dictionary and id.

        Raises:
            InvalidVariantError: A dictionary has no such id.
        """
        if (ids >= self.sizes[dictionaries]).any():
            raise invalid_variant("a field has no name", "Its id is beyond the dictionary's end")
        codes: Ints = self.codes[self.first[dictionaries] + ids]
        return codes

    def names_at(self, codes: Ints) -> list[bytes]:
        """Words of the vocabulary."""
        return list(pc.take(self.vocabulary, int64_array(codes)).to_pylist())


def parse_dictionaries(metadata: ByteColumn) -> Dictionaries:
    """Parse different metadata values.

    Raises:
        InvalidVariantError: One has another version than 1, or is damaged.
    """
    data, starts, ends = metadata.data, metadata.starts, metadata.ends
    if (ends - starts < 3).any():
        raise invalid_variant("its metadata is cut short")
    headers = data[starts].astype(np.int64)
    if ((headers & 0x0F) != VERSION).any():
        raise invalid_variant("its metadata has an unknown version")
    widths = (headers >> 6) + 1
    _ensure_inside(starts + 1 + 2 * widths <= ends)
    sizes = read_uints_at(data, starts + 1, widths)
    strings = starts + 1 + widths * (sizes + 2)
    _ensure_inside(strings <= ends)
    rows, at = ragged_positions(starts + 1 + widths, sizes, widths)
    low, high = read_uints_at(data, at, widths[rows]), read_uints_at(data, at + widths[rows], widths[rows])
    _ensure_inside((low <= high) & (strings[rows] + high <= ends[rows]))
    names = gather(data, strings[rows] + low, high - low).to_arrow()
    encoded = pc.dictionary_encode(names)
    codes = np.frombuffer(encoded.indices.buffers()[1] or b"", np.int32)[: len(names)].astype(np.int64)
    return Dictionaries(sizes, offsets_of(sizes)[:-1], codes, encoded.dictionary)


class _DistinctMetadata:
    """The different values of a metadata column, and what was parsed of them so far."""

    __slots__ = ("_dictionaries", "_ranks", "_readers", "codes", "column")

    def __init__(self, metadata: ByteColumn, present: Mask) -> None:
        rows = np.flatnonzero(present)
        looked_at = metadata if len(rows) == len(metadata) else metadata.take(rows)
        encoded = pc.dictionary_encode(looked_at.to_arrow())
        self.codes: Ints = np.zeros(len(metadata), np.int64)
        if len(rows):
            self.codes[rows] = np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(rows)]
        self.column = column_from_arrow(encoded.dictionary)
        self._dictionaries: Dictionaries | None = None
        self._ranks: Ints | None = None
        self._readers: dict[int, MetadataReader] = {}

    def dictionaries(self) -> Dictionaries:
        if self._dictionaries is None:
            self._dictionaries = parse_dictionaries(self.column)
        return self._dictionaries

    def ranks(self) -> Ints:
        if self._ranks is None:
            self._ranks = _ranks(self.dictionaries().vocabulary)
        return self._ranks

    def reader(self, code: int) -> MetadataReader:
        if code not in self._readers:
            if len(self._readers) >= _MAX_READERS:
                self._readers.clear()
            start, end = self.column.offsets[code : code + 2]
            self._readers[code] = MetadataReader(self.column.data[start:end].tobytes())
        return self._readers[code]


class Names:
    """The field names of some rows. Parsed when they are asked for: what holds no objects needs none.

    All its methods raise `InvalidVariantError` where a metadata value is damaged or of another version than 1.
    """

    __slots__ = ("_lazy_distinct", "_rows")

    def __init__(self, distinct: Callable[[], _DistinctMetadata], rows: Ints | None) -> None:
        self._lazy_distinct = distinct
        self._rows = rows

    @staticmethod
    def of(metadata: ByteColumn, present: Mask) -> Names:
        """Of all rows of a metadata column; those that are not present are not looked at."""
        return Names.of_lazy(lambda: metadata, present)

    @staticmethod
    def of_lazy(metadata: Callable[[], ByteColumn], present: Mask) -> Names:
        """The same, of a column that is fetched on first use."""
        return Names(cache(lambda: _DistinctMetadata(metadata(), present)), None)

    def take(self, rows: Ints) -> Names:
        """Of some of the rows, or of some more than once."""
        return Names(self._lazy_distinct, rows if self._rows is None else self._rows[rows])

    @property
    def codes(self) -> Ints:
        """For each row the number of its dictionary. Rows that are not present have number 0."""
        codes = self._lazy_distinct().codes
        return codes if self._rows is None else codes[self._rows]

    @property
    def dictionaries(self) -> Dictionaries:
        return self._lazy_distinct().dictionaries()

    @property
    def ranks(self) -> Ints:
        """The place of each word of the dictionaries' vocabulary in the order of UTF-8 bytes."""
        return self._lazy_distinct().ranks()

    def reader(self, code: int) -> MetadataReader:
        """The dictionary of a number, for one value at a time."""
        return self._lazy_distinct().reader(code)


def _ensure_inside(inside: Mask) -> None:
    if not inside.all():
        raise invalid_variant("its metadata is cut short or damaged")


def _byte_strings(strings: Sequence[bytes]) -> pa.LargeBinaryArray:
    offsets = offsets_of(np.fromiter((len(s) for s in strings), np.int64, len(strings)))
    return ByteColumn(offsets, np.frombuffer(b"".join(strings), np.uint8)).to_arrow()


def _ranks(vocabulary: pa.LargeBinaryArray) -> Ints:
    order = np.frombuffer(pc.sort_indices(vocabulary).buffers()[1], np.uint64)[: len(vocabulary)]
    ranks = np.empty(len(order), np.int64)
    ranks[order.astype(np.int64)] = np.arange(len(order))
    return ranks
