"""Rows near each other in several columns, in one order: Z-order and Hilbert curve over the ranks of values.

A sample of the rows cuts each column into ranges of about as many rows. The ranges that a row falls into are its cell
in a grid, and the curve gives each cell its place. The order only decides which rows share a file, so a sample is
enough: no row is lost or changed by a bad one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import longs_from_numpy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Curve = Literal["zorder", "hilbert"]
SAMPLED_ROWS = 50_000
MAX_COLUMNS = 16
_CELL_BITS = 16
_BITS_OF_ONE = 12


class CurveGrid(NamedTuple):
    """The cells, and their places on the curve.

    Attributes:
        bounds: Of each column the values at which its ranges but the first begin, ascending.
        bits: How many bits the number of a range has.
        places: The place of each cell, whose number is made of the ranges' numbers, the first column's highest.
    """

    bounds: tuple[pa.Array, ...]
    bits: int
    places: npt.NDArray[np.uint16]

    def places_of(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.uint16]:
        """The place of each row on the curve, from its values in the columns."""
        import numpy as np

        cells = np.zeros(len(columns[0]), np.int64)
        for values, bounds in zip(columns, self.bounds, strict=True):
            cells = (cells << self.bits) | _ranges(values, bounds)
        return self.places[cells]


def grid_of(sample: pa.Table, curve: Curve) -> CurveGrid:
    """The grid for rows like those of a sample, one column for each column of the order, at most `MAX_COLUMNS`."""
    count = sample.num_columns
    bits = _BITS_OF_ONE if count == 1 else _CELL_BITS // count
    bounds = tuple(_bounds(column, (1 << bits) - 2) for column in sample.columns)
    return CurveGrid(bounds, bits, curve_places(count, bits, curve))


def curve_places(count: int, bits: int, curve: Curve) -> npt.NDArray[np.uint16]:
    """The place on a curve of every cell of a grid of `count` dimensions with `1 << bits` ranges each.

    There are as many places as cells, 65,536 at most: NumPy sorts such numbers by radix.
    """
    import numpy as np

    cells = np.arange(1 << (count * bits), dtype=np.int64)
    if count == 1:
        return cells.astype(np.uint16)
    mask = (1 << bits) - 1
    axes = [(cells >> (bits * (count - 1 - i))) & mask for i in range(count)]
    if curve == "hilbert":
        axes = _transposed(axes, bits)
    places = np.zeros_like(cells)
    for bit in range(bits - 1, -1, -1):
        for axis in axes:
            places = (places << 1) | ((axis >> bit) & 1)
    return places.astype(np.uint16)


def _transposed(axes: list[npt.NDArray[np.int64]], bits: int) -> list[npt.NDArray[np.int64]]:
    """Coordinates as the transposed Hilbert index: interleaved, their bits are the place on the curve (J. Skilling,
    "Programming the Hilbert curve", 2004)."""
    import numpy as np

    count = len(axes)
    bit = 1 << (bits - 1)
    while bit > 1:
        low = bit - 1
        for i in range(count):
            is_set = (axes[i] & bit) != 0
            exchanged = (axes[0] ^ axes[i]) & low
            first = np.where(is_set, axes[0] ^ low, axes[0] ^ exchanged)
            if i:
                axes[i] = np.where(is_set, axes[i], axes[i] ^ exchanged)
            axes[0] = first
        bit >>= 1
    for i in range(1, count):
        axes[i] = axes[i] ^ axes[i - 1]
    turned = np.zeros_like(axes[0])
    bit = 1 << (bits - 1)
    while bit > 1:
        turned = np.where((axes[-1] & bit) != 0, turned ^ (bit - 1), turned)
        bit >>= 1
    return [axis ^ turned for axis in axes]


def _bounds(column: pa.ChunkedArray, most: int) -> pa.Array:
    """At most that many values, which cut the column into ranges of about as many rows. Null and NaN are none."""
    values = pc.drop_null(column.combine_chunks())
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], column.type)
    if pa.types.is_floating(values.type):
        values = pc.filter(values, pc.invert(pc.is_nan(values)))
    ordered = pc.take(values, pc.sort_indices(values))
    distinct = pc.unique(ordered)
    if len(distinct) <= most:
        return distinct
    places = pa.array([(i + 1) * len(ordered) // (most + 1) for i in range(most)], pa.int64())
    return pc.unique(pc.take(ordered, places))


def _ranges(values: pa.Array, bounds: pa.Array) -> npt.NDArray[np.int64]:
    """The number of the range of each value: 0 for null, then ascending, NaN last."""
    import numpy as np

    kind = bounds.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        finite_bounds, finite_values = bounds, values
    elif pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        finite_bounds, finite_values = bounds.view(width), values.view(width)
    else:
        encoded = pc.dictionary_encode(values)
        # Equal values stay in their order: a bound comes before a value like it.
        order = np.asarray(pc.sort_indices(pa.concat_arrays([bounds, encoded.dictionary])))
        is_bound = order < len(bounds)
        of_distinct = np.empty(len(encoded.dictionary), np.int64)
        of_distinct[order[~is_bound] - len(bounds)] = 1 + np.cumsum(is_bound)[~is_bound]
        numbers = pc.take(longs_from_numpy(of_distinct), encoded.indices)
        return np.asarray(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), np.int64)
    numbers = 1 + np.searchsorted(
        finite_bounds.to_numpy(zero_copy_only=False),
        pc.fill_null(finite_values, 0).to_numpy(zero_copy_only=False),
        side="right",
    )
    if finite_values.null_count:
        numbers[np.asarray(pc.is_null(finite_values).to_numpy(zero_copy_only=False))] = 0
    return np.asarray(numbers, np.int64)
