"""Columns of byte strings, and the way between Arrow's buffers and numpy's arrays.

Only buffers are exchanged: `pa.array` of a numpy array would import pandas, which costs more than most reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import booleans_from_numpy, longs_from_numpy, valid_mask
from delta_orch.protocol.variant.values import invalid_variant

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_MAX_BINARY_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ByteColumn:
    """Byte strings that lie back to back. An empty one stands for a missing value: no variant has zero bytes.

    Attributes:
        offsets: int64, one more than there are strings; the first need not be 0.
        data: uint8; may reach beyond both ends.
    """

    offsets: Ints
    data: Bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def starts(self) -> Ints:
        return self.offsets[:-1]

    @property
    def ends(self) -> Ints:
        return self.offsets[1:]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def is_empty(self) -> bool:
        """Every string is missing."""
        return bool(self.offsets[0] == self.offsets[-1])

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Without a copy."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    def to_binary(self) -> pa.BinaryArray:
        """As Arrow's `binary`, without a copy of the bytes.

        Raises:
            InvalidRequestError: More than 2 GiB.
        """
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if last - first > _MAX_BINARY_BYTES:
            raise InvalidRequestError(
                "The variants of one batch take more than 2 GiB", remedy="Read them in smaller batches"
            )
        offsets = (self.offsets - first).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data[first:last])]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self), buffers)

    def only(self, keep: Mask) -> ByteColumn:
        """The strings of some rows; those of the others are missing."""
        return column_from_arrow(pc.if_else(booleans_from_numpy(keep), self.to_arrow(), _EMPTY_STRING))

    def take(self, rows: Ints) -> ByteColumn:
        return column_from_arrow(pc.take(self.to_arrow(), longs_from_numpy(rows)))

    def expand(self, rows: Ints, length: int) -> ByteColumn:
        """A column of `length` strings that has this one's at the ascending positions `rows`, and no others."""
        if len(rows) == length:
            return self
        sizes = np.zeros(length, np.int64)
        sizes[rows] = self.sizes
        return ByteColumn(offsets_of(sizes, int(self.offsets[0])), self.data)


def offsets_of(sizes: npt.NDArray[np.integer], first: int = 0) -> Ints:
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = first
    np.cumsum(sizes, out=offsets[1:])
    if first:
        offsets[1:] += first
    return offsets


def join(columns: Sequence[ByteColumn]) -> ByteColumn:
    """The concatenation of the columns' strings, row by row."""
    filled = [column for column in columns if not column.is_empty]
    if len(filled) < 2:
        return filled[0] if filled else columns[0]
    return column_from_arrow(pc.binary_join_element_wise(*(column.to_arrow() for column in filled), _EMPTY_STRING))


def concatenate(columns: Sequence[ByteColumn]) -> ByteColumn:
    """The columns one below the other."""
    if len(columns) == 1:
        return columns[0]
    data = [column.data[column.offsets[0] : column.offsets[-1]] for column in columns]
    sizes = [column.sizes for column in columns]
    return ByteColumn(offsets_of(np.concatenate(sizes)), np.concatenate(data))


def gather(data: Bytes, starts: Ints, sizes: Ints) -> ByteColumn:
    """Byte strings from anywhere in `data`, in the order given.

    Raises:
        InvalidVariantError: They overlap. (Few bytes could claim to be many otherwise.)
    """
    rows = np.flatnonzero(sizes)
    starts, ends = starts[rows], starts[rows] + sizes[rows]
    order: Ints | None = None
    if not (starts[1:] >= ends[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        if not (starts[1:] >= ends[:-1]).all():
            raise invalid_variant("children of an object or array overlap")
    # Requested strings and the gaps between them, alternating; every second one is used.
    offsets = np.empty(2 * len(starts), np.int64)
    offsets[0::2], offsets[1::2] = starts, ends
    pieces = np.empty(len(starts), np.int64)
    pieces[slice(None) if order is None else order] = np.arange(0, 2 * len(starts), 2)
    if not len(rows):
        return missing(len(sizes))
    return ByteColumn(offsets, data).take(pieces).expand(rows, len(sizes))


def byte_strings(strings: Iterable[bytes]) -> ByteColumn:
    """A column of Python's byte strings."""
    listed = list(strings)
    offsets = offsets_of(np.fromiter(map(len, listed), np.int64, len(listed)))
    return ByteColumn(offsets, np.frombuffer(b"".join(listed), np.uint8))


def missing(length: int) -> ByteColumn:
    """A column of missing values."""
    return ByteColumn(np.zeros(length + 1, np.int64), np.zeros(0, np.uint8))


def present_bytes(values: Bytes) -> list[int]:
    """Which bytes there are, ascending."""
    return [int(byte) for byte in np.flatnonzero(np.bincount(values, minlength=256))]


def constant(value: bytes, rows: Mask) -> ByteColumn:
    """A column with one string in some rows and nulls in the others."""
    count = int(np.count_nonzero(rows))
    return ByteColumn(offsets_of(rows * np.int64(len(value))), np.tile(np.frombuffer(value, np.uint8), count))


def ragged_positions(starts: Ints, counts: Ints, steps: Ints | int = 1) -> tuple[Ints, Ints]:
    """For each row `counts` positions from `starts` on, `steps` apart: the row of each position, and the position."""
    rows: Ints = np.repeat(np.arange(len(counts)), counts)
    first: Ints = np.cumsum(counts) - counts
    within = np.arange(len(rows)) - first[rows]
    return rows, starts[rows] + within * (steps if isinstance(steps, int) else steps[rows])


# Arrow's buffers


def with_validity(array: pa.Array, valid: Mask) -> pa.Array:
    """The array with other nulls, the values not copied. Not for nested and extension types."""
    if valid.all():
        if not array.null_count:
            return array
        bitmap = None
    else:
        bits = np.concatenate([np.zeros(array.offset, np.bool_), valid]) if array.offset else valid
        bitmap = pa.py_buffer(np.packbits(bits, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *array.buffers()[1:]], offset=array.offset)


def dictionary_codes(encoded: pa.DictionaryArray) -> Ints:
    """The indices of an array that has no nulls."""
    return np.frombuffer(encoded.indices.buffers()[1] or b"", np.int32)[: len(encoded)].astype(np.int64)


def fixed_values(array: pa.Array, width: int) -> Bytes:
    """The bytes of a fixed-width array, one row each; those of nulls are arbitrary."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros((len(array), width), np.uint8)
    rows = np.frombuffer(buffer, np.uint8)[width * array.offset : width * (array.offset + len(array))]
    return rows.reshape(len(array), width)


def column_from_arrow(array: pa.Array, present: Mask | None = None) -> ByteColumn:
    """The strings of a binary or string array of 32 or 64 bit offsets, without a copy where that is possible.

    Args:
        array: Nulls become missing.
        present: Other rows become missing as well.
    """
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    if not len(array) or offsets_buffer is None:
        return missing(len(array))
    stored = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets: Ints = stored[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    column = ByteColumn(offsets, data)
    if array.null_count:
        present = valid_mask(array) if present is None else present & valid_mask(array)
    # Nulls may have bytes all the same.
    if present is not None and (column.sizes[~present] != 0).any():
        return column.only(present)
    return column


def _empty_string() -> pa.LargeBinaryScalar:
    return ByteColumn(np.zeros(2, np.int64), np.zeros(0, np.uint8)).to_arrow()[0]


_EMPTY_STRING = _empty_string()
