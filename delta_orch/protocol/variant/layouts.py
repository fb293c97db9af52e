"""Headers of many encoded values at once (Variant binary encoding, "Value encoding"): read and written with numpy.

Every size is checked against the space there is before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delta_orch.protocol.variant.byte_columns import ByteColumn, Bytes, Ints, Mask, offsets_of, ragged_positions
from delta_orch.protocol.variant.values import (
    MAX_CHILDREN_OF_SMALL,
    SIZE_BYTES,
    BasicType,
    ensure_size,
    invalid_variant,
    kind_of,
    width_of,
)

_UNKNOWN, _SIZED = -1, 0
_SIZES = np.full(64, _UNKNOWN, np.int64)
_SIZES[: len(SIZE_BYTES)] = SIZE_BYTES
KINDS = np.array([255 if (kind := kind_of(byte)) is None else kind for byte in range(256)], np.uint8)
"""The `Kind` of a value by its first byte, as a number; 255 where the type does not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Containers:
    """Where the parts of many objects, or of many arrays, lie; all int64, one entry each.

    Attributes:
        counts: Number of children.
        ids_start, id_widths: Field ids, one per child (objects only).
        offsets_start, offset_widths: Offsets, one more than children.
        values_start: What the offsets count from.
        values_size: Size of all children, the last offset.
    """

    counts: Ints
    ids_start: Ints
    id_widths: Ints
    offsets_start: Ints
    offset_widths: Ints
    values_start: Ints
    values_size: Ints

    @property
    def ends(self) -> Ints:
        return self.values_start + self.values_size


def read_uints_at(data: Bytes, at: Ints, widths: Ints) -> Ints:
    """Little-endian unsigned integers of 1 to 4 bytes. The caller checked that they exist."""
    numbers = data[at].astype(np.int64)
    for byte in range(1, 4):
        wide = np.flatnonzero(widths > byte)
        if not len(wide):
            break
        numbers[wide] |= data[at[wide] + byte].astype(np.int64) << 8 * byte
    return numbers


def basic_types(data: Bytes, starts: Ints, ends: Ints) -> Bytes:
    """Basic types of values that must have at least one byte each."""
    if (starts >= ends).any():
        raise invalid_variant("a value has no bytes")
    kinds: Bytes = data[starts] & np.uint8(3)
    return kinds


def containers(data: Bytes, starts: Ints, ends: Ints, *, objects: bool) -> Containers:
    """The layout of values that all are objects, or all arrays.

    Raises:
        InvalidVariantError: One does not fit into its space.
    """
    headers = data[starts].astype(np.int64) >> 2
    offset_widths = (headers & 3) + 1
    id_widths = (headers >> 2 & 3) + 1 if objects else np.zeros_like(headers)
    count_widths = np.where(headers & (0x10 if objects else 4), 4, 1)
    ids_start = starts + 1 + count_widths
    _ensure(ids_start <= ends)
    counts = read_uints_at(data, starts + 1, count_widths)
    offsets_start = ids_start + counts * id_widths
    values_start = offsets_start + (counts + 1) * offset_widths
    _ensure(values_start <= ends)
    values_size = read_uints_at(data, values_start - offset_widths, offset_widths)
    _ensure(values_start + values_size <= ends)
    return Containers(counts, ids_start, id_widths, offsets_start, offset_widths, values_start, values_size)


def _ensure(fits: Mask) -> None:
    if not fits.all():
        raise invalid_variant("an object or array is cut short")


def value_sizes(data: Bytes, starts: Ints, ends: Ints) -> Ints:
    """How many bytes each value takes of the space it has.

    Raises:
        InvalidVariantError: One takes more, or its type does not exist.
    """
    kinds = basic_types(data, starts, ends)
    upper = data[starts] >> 2
    sizes = np.where(kinds == BasicType.SHORT_STRING, upper.astype(np.int64) + 1, _SIZES[upper])
    for kind in (BasicType.OBJECT, BasicType.ARRAY):
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            layout = containers(data, starts[rows], ends[rows], objects=kind == BasicType.OBJECT)
            sizes[rows] = layout.ends - starts[rows]
    if (sizes == _UNKNOWN).any():
        raise invalid_variant("a value has an unknown type")
    rows = np.flatnonzero(sizes == _SIZED)
    if len(rows):
        if (starts[rows] + 5 > ends[rows]).any():
            raise invalid_variant("a string or binary value is cut short")
        sizes[rows] = 5 + read_uints_at(data, starts[rows] + 1, np.full(len(rows), 4))
    if (starts + sizes > ends).any():
        raise invalid_variant("a value is cut short")
    return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """The children of many containers, in the order of their headers.

    Attributes:
        rows: Which container each belongs to, ascending.
        ids: Field ids; all 0 in arrays.
        offsets: Where each starts, counted from its container's `values_start`.
    """

    rows: Ints
    ids: Ints
    offsets: Ints


def children_of(data: Bytes, layout: Containers) -> Children:
    """All children of some containers.

    Raises:
        InvalidVariantError: One starts beyond its container's end.
    """
    rows, id_at = ragged_positions(layout.ids_start, layout.counts, layout.id_widths)
    _, offset_at = ragged_positions(layout.offsets_start, layout.counts, layout.offset_widths)
    offsets = read_uints_at(data, offset_at, layout.offset_widths[rows])
    if (offsets >= layout.values_size[rows]).any():
        raise invalid_variant("an object or array is cut short")
    ids = read_uints_at(data, id_at, layout.id_widths[rows])
    return Children(rows, ids, offsets)


def child_spaces(data: Bytes, layout: Containers) -> tuple[Children, Ints, Ints]:
    """All children of some containers, the first byte of each, and the end of the space it has: the next one's start.

    Raises:
        InvalidVariantError: Two children of a container start at one place, or one beyond its end.
    """
    children = children_of(data, layout)
    rows, starts = children.rows, layout.values_start[children.rows] + children.offsets
    order: Ints | None = None
    if ((rows[1:] == rows[:-1]) & (starts[1:] <= starts[:-1])).any():
        order = np.lexsort((starts, rows))
        starts = starts[order]
        if ((rows[1:] == rows[:-1]) & (starts[1:] == starts[:-1])).any():
            raise invalid_variant("children of an object or array overlap")
    ends = layout.ends[rows]
    inner = np.flatnonzero(rows[1:] == rows[:-1])
    ends[inner] = starts[inner + 1]
    if order is not None:
        unordered_starts, unordered_ends = np.empty_like(starts), np.empty_like(ends)
        unordered_starts[order], unordered_ends[order] = starts, ends
        return children, unordered_starts, unordered_ends
    return children, starts, ends


def container_headers(is_container: Mask, children: Children, value_bytes: Ints, *, objects: bool) -> ByteColumn:
    """The headers of containers, everything but their values, in as few bytes as it takes.

    Args:
        is_container: Rows that are one; the others get no bytes.
        children: Of these rows, in the order they are to have.
        value_bytes: Size of all values of each row.
        objects: Objects or arrays.
    """
    ensure_size("An object or array", int(value_bytes.max(initial=0)))
    counts = np.bincount(children.rows, minlength=len(is_container))
    large = counts > MAX_CHILDREN_OF_SMALL
    offset_widths = _widths(value_bytes)
    id_widths = _id_widths(children, counts) if objects else np.zeros(len(counts), np.int64)
    ids_start = np.where(large, 5, 2)
    offsets_start = ids_start + counts * id_widths
    offsets = offsets_of(np.where(is_container, offsets_start + (counts + 1) * offset_widths, 0))
    data = np.zeros(offsets[-1], np.uint8)
    starts = offsets[:-1]
    rows = np.flatnonzero(is_container)
    upper = offset_widths - 1
    upper |= (id_widths - 1) << 2 | large << 4 if objects else large << 2
    data[starts[rows]] = (upper << 2 | (BasicType.OBJECT if objects else BasicType.ARRAY))[rows]
    _write_uints(data, starts[rows] + 1, counts[rows], np.where(large, 4, 1)[rows])
    within = np.arange(len(children.rows)) - (np.cumsum(counts) - counts)[children.rows]
    if objects:
        _write_list(data, starts + ids_start, id_widths, children.rows, within, children.ids)
    _write_list(data, starts + offsets_start, offset_widths, children.rows, within, children.offsets)
    _write_uints(data, offsets[1:][rows] - offset_widths[rows], value_bytes[rows], offset_widths[rows])
    return ByteColumn(offsets, data)


def uniform_object_headers(ids: Ints, ends: Ints) -> ByteColumn | None:
    """As `container_headers` for objects that all have the same fields, in a fraction of the time.

    Args:
        ids: The fields' ids, in the order of their names.
        ends: Where each field ends, counted from the first one's start; a row for each object.

    Returns:
        None where the objects need offsets of different widths, or have too many fields.
    """
    count = len(ids)
    widths = _widths(ends[:, -1])
    if count > MAX_CHILDREN_OF_SMALL or not len(ends) or widths.min() != widths.max():
        return None
    width, id_width = int(widths[0]), width_of(int(ids.max()))
    offsets_start = 2 + count * id_width
    size = offsets_start + (count + 1) * width
    headers = np.zeros((len(ends), size), np.uint8)
    lead = [BasicType.OBJECT | ((width - 1) | (id_width - 1) << 2) << 2, count]
    id_bytes = b"".join(int(field_id).to_bytes(id_width, "little") for field_id in ids)
    headers[:, :offsets_start] = np.array([*lead, *id_bytes], np.uint8)
    for byte in range(width):
        headers[:, offsets_start + width + byte :: width] = ends >> 8 * byte & 0xFF
    return ByteColumn(np.arange(len(ends) + 1) * size, headers.reshape(-1))


def ensure_distinct(rows: Ints, names: Ints) -> None:
    """Check fields in the order of objects and names: no object has two of one name."""
    if ((rows[1:] == rows[:-1]) & (names[1:] == names[:-1])).any():
        raise invalid_variant("an object has two fields of one name")


def _widths(largest: Ints) -> Ints:
    return 1 + (largest > 0xFF).astype(np.int64) + (largest > 0xFFFF) + (largest > 0xFFFFFF)


def _id_widths(children: Children, counts: Ints) -> Ints:
    widths = np.ones(len(counts), np.int64)
    if children.ids.max(initial=0) > 0xFF:
        filled = np.flatnonzero(counts)
        first = (np.cumsum(counts) - counts)[filled]
        widths[filled] = _widths(np.maximum.reduceat(children.ids, first))
    return widths


def _write_list(data: Bytes, starts: Ints, widths: Ints, rows: Ints, within: Ints, numbers: Ints) -> None:
    of_row = widths[rows]
    _write_uints(data, starts[rows] + within * of_row, numbers, of_row)


def _write_uints(data: Bytes, at: Ints, numbers: Ints, widths: Ints) -> None:
    data[at] = numbers & 0xFF
    for byte in range(1, 4):
        wide = np.flatnonzero(widths > byte)
        if not len(wide):
            break
        data[at[wide] + byte] = numbers[wide] >> 8 * byte & 0xFF
