"""Many encoded values at once: where they lie, their field names, and the steps from a container to its children.

All different dictionaries of a metadata column are parsed once and together. One dictionary for all rows is the rule.
One dictionary for each row is the exception. It must be fast as well, so nothing loops over dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import longs_from_numpy, valid_mask
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Bytes,
    Ints,
    Mask,
    byte_strings,
    column_from_arrow,
    dictionary_codes,
    gather,
    offsets_of,
    ragged_positions,
)
from delta_orch.protocol.variant.layouts import (
    Children,
    basic_types,
    child_spaces,
    children_of,
    containers,
    ensure_distinct,
    read_uints_at,
    value_sizes,
)
from delta_orch.protocol.variant.values import METADATA_VERSION, BasicType, invalid_variant


@dataclass(frozen=True, eq=False)
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
        indexes = pc.index_in(byte_strings(names).to_arrow(), value_set=self.vocabulary)
        codes = np.frombuffer(indexes.buffers()[1], np.int32)[: len(names)].astype(np.int64)
        codes[~valid_mask(indexes)] = -1
        return codes

    def ids_of(self, names: Sequence[bytes]) -> Ints:
        """A row for each dictionary and a column for each name: the name's id, or -1."""
        column_of = np.full(len(self.vocabulary) + 1, -1)
        column_of[self.codes_of(names)] = np.arange(len(names))
        column_of[-1] = -1
        columns = column_of[self.codes]
        places = np.flatnonzero(columns >= 0)
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)[places]
        ids = np.full((len(self.sizes), len(names)), -1)
        ids[owners, columns[places]] = places - self.first[owners]
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

    @cached_property
    def ranks(self) -> Ints:
        """The place of each word of the vocabulary in the order of UTF-8 bytes."""
        order = np.frombuffer(pc.sort_indices(self.vocabulary).buffers()[1], np.uint64)[: len(self.vocabulary)]
        ranks = np.empty(len(order), np.int64)
        ranks[order.astype(np.int64)] = np.arange(len(order))
        return ranks

    def names_at(self, codes: Ints) -> list[str]:
        """Words of the vocabulary.

        Raises:
            InvalidVariantError: One is not UTF-8.
        """
        try:
            return list(pc.take(self.vocabulary, longs_from_numpy(codes)).cast(pa.large_string()).to_pylist())
        except pa.ArrowInvalid as e:
            raise invalid_variant("a field's name is not UTF-8", str(e)) from None


def parse_dictionaries(metadata: ByteColumn) -> Dictionaries:
    """Parse different metadata values.

    Raises:
        InvalidVariantError: One has another version than 1, or is damaged.
    """
    data, starts, ends = metadata.data, metadata.starts, metadata.ends
    if (ends - starts < 3).any():
        raise invalid_variant("its metadata is cut short")
    headers = data[starts].astype(np.int64)
    if ((headers & 0x0F) != METADATA_VERSION).any():
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
    return Dictionaries(sizes, offsets_of(sizes)[:-1], dictionary_codes(encoded), encoded.dictionary)


class _DistinctMetadata:
    """The different values of a metadata column, and what was parsed of them so far."""

    def __init__(self, metadata: ByteColumn, present: Mask) -> None:
        rows = np.flatnonzero(present)
        looked_at = metadata if len(rows) == len(metadata) else metadata.take(rows)
        encoded = pc.dictionary_encode(looked_at.to_arrow())
        self.codes: Ints = np.zeros(len(metadata), np.int64)
        self.codes[rows] = dictionary_codes(encoded)
        self.column = column_from_arrow(encoded.dictionary)

    @cached_property
    def dictionaries(self) -> Dictionaries:
        return parse_dictionaries(self.column)


class Names:
    """The field names of some rows. Parsed on first use, because columns without objects need none.

    All its methods raise `InvalidVariantError` where a metadata value is damaged or of another version than 1.
    """

    __slots__ = ("_lazy_distinct", "_rows")

    def __init__(self, distinct: Callable[[], _DistinctMetadata], rows: Ints | None) -> None:
        self._lazy_distinct = distinct
        self._rows = rows

    @staticmethod
    def of(metadata: Callable[[], ByteColumn], present: Mask) -> Names:
        """The dictionaries of all rows of a metadata column, fetched on first use. Rows that are not present are not
        read."""
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
        return self._lazy_distinct().dictionaries


def _ensure_inside(inside: Mask) -> None:
    if not inside.all():
        raise invalid_variant("its metadata is cut short or damaged")


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where the values of some rows lie.

    Attributes:
        rows: Which rows, ascending; the others have no value.
        data: The bytes they all lie in.
        starts, ends: First byte of each, and the end of the space it has.
    """

    rows: Ints
    data: Bytes
    starts: Ints
    ends: Ints

    @staticmethod
    def of(column: ByteColumn, rows: Ints) -> Located:
        """The values of a column that are not missing; `rows` numbers the column's rows."""
        there = np.flatnonzero(column.sizes)
        return Located(rows[there], column.data, column.starts[there], column.ends[there])

    def to_column(self, length: int) -> ByteColumn:
        """Their bytes, each in its row of a column of `length`."""
        sizes = value_sizes(self.data, self.starts, self.ends)
        return gather(self.data, self.starts, sizes).expand(self.rows, length)

    def step(self, step: str | int, names: Names) -> Located:
        """The children at one step of a path. Rows without such a child are dropped.

        Args:
            step: A field's name or an element's index.
            names: The field names of all rows, by row number.

        Raises:
            InvalidVariantError: A container on the way is damaged.
        """
        if not len(self.rows):
            return self
        kind = BasicType.OBJECT if isinstance(step, str) else BasicType.ARRAY
        inside = self.some(basic_types(self.data, self.starts, self.ends) == kind)
        return inside._field(step, names) if isinstance(step, str) else inside._element(step)

    def some(self, chosen: Mask | Ints | slice) -> Located:
        """Some of the values."""
        return Located(self.rows[chosen], self.data, self.starts[chosen], self.ends[chosen])

    def children(self, kind: BasicType) -> tuple[Children, Located]:
        """The children of values that all are objects, or all arrays, and where they lie, by their containers' rows.

        Raises:
            InvalidVariantError: A container is damaged, or its children overlap.
        """
        layout = containers(self.data, self.starts, self.ends, objects=kind is BasicType.OBJECT)
        children, starts, ends = child_spaces(self.data, layout)
        return children, Located(self.rows[children.rows], self.data, starts, ends)

    def fields(self, names: Names) -> tuple[Children, Located, Ints]:
        """The same for objects, in the order of names, and the position of each name in the vocabulary of `names`.

        Raises:
            InvalidVariantError: As `children`; also where an object has two fields of one name.
        """
        children, fields = self.children(BasicType.OBJECT)
        codes = names.dictionaries.codes_at(names.codes[fields.rows], children.ids)
        rows, ranks = children.rows, names.dictionaries.ranks[codes]
        if ((rows[1:] > rows[:-1]) | (ranks[1:] > ranks[:-1])).all():
            return children, fields, codes
        order = np.lexsort((ranks, rows))
        ensure_distinct(rows[order], ranks[order])
        children = Children(rows[order], children.ids[order], children.offsets[order])
        return children, fields.some(order), codes[order]

    def _field(self, name: str, names: Names) -> Located:
        # Without `fields`, so that only the requested one gets a place.
        layout = containers(self.data, self.starts, self.ends, objects=True)
        children = children_of(self.data, layout)
        codes = names.dictionaries.codes_at(names.codes[self.rows][children.rows], children.ids)
        hits = np.flatnonzero(codes == names.dictionaries.codes_of([name.encode("utf-8", "surrogatepass")])[0])
        parents = children.rows[hits]
        ensure_distinct(parents, codes[hits])
        starts = layout.values_start[parents] + children.offsets[hits]
        return Located(self.rows[parents], self.data, starts, layout.ends[parents])

    def of_code(self, codes: Ints, code: int) -> Located:
        """The fields of one name, by the codes that `fields` gave."""
        return self.some(codes == code)

    def _element(self, index: int) -> Located:
        layout = containers(self.data, self.starts, self.ends, objects=False)
        parents = np.flatnonzero(layout.counts > index)
        widths = layout.offset_widths[parents]
        at = layout.offsets_start[parents] + index * widths
        low, high = read_uints_at(self.data, at, widths), read_uints_at(self.data, at + widths, widths)
        if ((low >= high) | (high > layout.values_size[parents])).any():
            raise invalid_variant("elements of an array overlap or have no bytes")
        starts = layout.values_start[parents]
        return Located(self.rows[parents], self.data, starts + low, starts + high)


def concatenated(parts: Sequence[Located]) -> Located:
    """Values in the same bytes, one after the other."""
    rows, starts, ends = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "starts", "ends")
    )
    return Located(rows, parts[0].data, starts, ends)
