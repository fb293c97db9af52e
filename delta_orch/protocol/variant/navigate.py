"""Steps into many encoded values at once: the field of a name, the element of an index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delta_orch.protocol.variant.byte_columns import ByteColumn, Bytes, Ints, gather
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.layouts import (
    Containers,
    basic_types,
    children_of,
    containers,
    read_uints_at,
    value_sizes,
)
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.values import BasicType


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
        """The children at one step of a path; a row whose value has none drops out.

        Args:
            step: A field's name or an element's index.
            names: The field names of all rows, by row number.

        Raises:
            InvalidVariantError: A container on the way is damaged.
        """
        if not len(self.rows):
            return self
        kind = BasicType.OBJECT if isinstance(step, str) else BasicType.ARRAY
        chosen = np.flatnonzero(basic_types(self.data, self.starts, self.ends) == kind)
        layout = containers(self.data, self.starts[chosen], self.ends[chosen], objects=kind is BasicType.OBJECT)
        if isinstance(step, str):
            return self._field(step.encode("utf-8", "surrogatepass"), chosen, layout, names)
        return self._element(step, chosen, layout)

    def _field(self, name: bytes, chosen: Ints, layout: Containers, names: Names) -> Located:
        children = children_of(self.data, layout)
        found_codes = names.dictionaries.codes_at(names.codes[self.rows[chosen]][children.rows], children.ids)
        hits = np.flatnonzero(found_codes == names.dictionaries.codes_of([name])[0])
        parents = children.rows[hits]
        if (parents[1:] == parents[:-1]).any():
            raise invalid_variant("an object has two fields of one name")
        starts = layout.values_start[parents] + children.offsets[hits]
        return Located(self.rows[chosen[parents]], self.data, starts, layout.ends[parents])

    def _element(self, index: int, chosen: Ints, layout: Containers) -> Located:
        parents = np.flatnonzero(layout.counts > index)
        widths = layout.offset_widths[parents]
        at = layout.offsets_start[parents] + index * widths
        low, high = read_uints_at(self.data, at, widths), read_uints_at(self.data, at + widths, widths)
        if ((low >= high) | (high > layout.values_size[parents])).any():
            raise invalid_variant("elements of an array overlap or have no bytes")
        starts = layout.values_start[parents]
        return Located(self.rows[chosen[parents]], self.data, starts + low, starts + high)
