"""The field names of a metadata column: all different dictionaries in it, parsed once and together.

One dictionary for all rows is the rule, one for each row an exception that must not be slow either; so there is no
loop over dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Ints,
    Mask,
    column_from_arrow,
    gather,
    offsets_of,
    ragged_positions,
)
from delta_orch.protocol.variant.layouts import read_uints_at
from delta_orch.protocol.variant.metadata import VERSION, invalid_variant


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
        found = pc.fill_null(pc.index_in(_byte_strings(names), value_set=self.vocabulary), -1)
        return np.frombuffer(found.buffers()[1], np.int32)[: len(names)].astype(np.int64)

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

    def ranks(self) -> Ints:
        """The place of each word of the vocabulary in the order of UTF-8 bytes."""
        order = np.frombuffer(pc.sort_indices(self.vocabulary).buffers()[1], np.uint64)[: len(self.vocabulary)]
        ranks = np.empty(len(order), np.int64)
        ranks[order.astype(np.int64)] = np.arange(len(order))
        return ranks


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


def distinct_metadata(metadata: ByteColumn, present: Mask) -> tuple[Ints, Dictionaries]:
    """For each row the number of its dictionary, and the dictionaries. Rows that are not present get number 0.

    Raises:
        InvalidVariantError: As `parse_dictionaries`; rows that are not present are not looked at.
    """
    rows = np.flatnonzero(present)
    encoded = pc.dictionary_encode(
        metadata.to_arrow() if len(rows) == len(metadata) else metadata.take(rows).to_arrow()
    )
    codes = np.zeros(len(metadata), np.int64)
    if len(rows):
        codes[rows] = np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(rows)]
    return codes, parse_dictionaries(column_from_arrow(encoded.dictionary))


def _ensure_inside(inside: Mask) -> None:
    if not inside.all():
        raise invalid_variant("its metadata is cut short or damaged")


def _byte_strings(strings: Sequence[bytes]) -> pa.LargeBinaryArray:
    offsets = offsets_of(np.fromiter((len(s) for s in strings), np.int64, len(strings)))
    return ByteColumn(offsets, np.frombuffer(b"".join(strings), np.uint8)).to_arrow()
