"""Shredded columns back into variants (Variant Shredding, "Reconstructing a Shredded Variant").

Column by column, not row by row: typed columns are encoded whole, objects and arrays get their headers from numpy and
are put together by one Arrow kernel; what the writer left in a `value` column is copied as it stands.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from delta_orch.protocol.arrow_types import VARIANT_STORAGE
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Ints,
    Mask,
    boolean_array,
    column_from_arrow,
    concatenate,
    constant,
    gather,
    join,
    valid_mask,
)
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.layouts import (
    Children,
    basic_types,
    children_of,
    container_headers,
    containers,
    uniform_object_headers,
    value_sizes,
)
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.primitive_columns import encode_primitives, plain_storage
from delta_orch.protocol.variant.shredding import (
    TypedArray,
    TypedObject,
    TypedPrimitive,
    VariantGroup,
    parse_variant_type,
)
from delta_orch.protocol.variant.values import BasicType

VARIANT_NULL = b"\x00"
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23


def reconstruct_variant(array: pa.Array | pa.ChunkedArray) -> pa.StructArray | pa.ChunkedArray:
    """A variant column, shredded or not, as struct<metadata: binary, value: binary>.

    An unshredded column is passed through without looking at its values. Nulls of the struct stay nulls; a row that is
    there but has no value is a variant null.

    Args:
        array: As a Parquet reader gives it; module `shredding` says which types are understood. A chunked array comes
            back chunked.

    Returns:
        Arrow type `arrow_types.VARIANT_STORAGE`.

    Raises:
        InvalidVariantError: The columns, or the values in them, break the rules: a `value` beside a `typed_value` that
            is no object, a shredded field in the `value` too, an object in `value` that should have been shredded, …
        InvalidRequestError: An array's result takes more than 2 GiB.
    """
    if isinstance(array, pa.ChunkedArray):
        parse_variant_type(array.type)
        return pa.chunked_array([reconstruct_variant(chunk) for chunk in array.chunks], type=VARIANT_STORAGE)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    group = parse_variant_type(array.type)
    if group.typed is None and array.type.equals(VARIANT_STORAGE) and not array.field(group.value_index).null_count:
        return array
    present = valid_mask(array)
    metadata = metadata_column(group, array, present)
    if group.typed is None:
        values = required(value_column(group, array, present), present)
    else:
        values = _reconstruct_blocks(group, array, metadata, present)
    return variant_array(metadata, values, present)


def variant_array(metadata: ByteColumn, values: ByteColumn, present: Mask) -> pa.StructArray:
    """Put a column of variants together; rows that are not present are null."""
    mask = None if present.all() else boolean_array(~present)
    children = [metadata.to_binary(), values.to_binary()]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT_STORAGE), mask=mask)


def metadata_column(group: VariantGroup, array: pa.StructArray, present: Mask) -> ByteColumn:
    """The metadata of each row that is present.

    Raises:
        InvalidVariantError: One has none.
    """
    if group.metadata_index is None:
        raise invalid_variant("its metadata was not read", "Values that are not shredded need it")
    metadata = column_from_arrow(plain_storage(array.field(group.metadata_index)), present)
    if (metadata.sizes[present] == 0).any():
        raise invalid_variant("it has no metadata")
    return metadata


def required(column: ByteColumn, present: Mask) -> ByteColumn:
    """The column, with a variant null in each present row that has no value."""
    missing = present & (column.sizes == 0)
    return join([column, constant(VARIANT_NULL, missing)]) if missing.any() else column


def _reconstruct_blocks(group: VariantGroup, array: pa.StructArray, metadata: ByteColumn, present: Mask) -> ByteColumn:
    block_rows = block_rows_of(array)
    blocks = []
    for start in range(0, max(len(array), 1), block_rows):
        rows = slice(start, start + block_rows)
        block = array.slice(start, block_rows)
        block_metadata = ByteColumn(metadata.offsets[start : start + block_rows + 1], metadata.data)
        names = Names.of(block_metadata, present[rows])
        blocks.append(required(encode_group(group, block, present[rows], names), present[rows]))
    return concatenate(blocks)


def block_rows_of(array: pa.Array) -> int:
    """How many rows to work on at once: that keeps intermediate columns small."""
    return int(min(_BLOCK_ROWS, max(1, _BLOCK_BYTES * len(array) // max(array.nbytes, 1))))


def list_offsets(lists: pa.Array) -> Ints:
    """The offsets of a list array into its `values`, as int64."""
    if not len(lists):
        return np.zeros(1, np.int64)
    stored = np.frombuffer(lists.buffers()[1], np.int64 if pa.types.is_large_list(lists.type) else np.int32)
    offsets: Ints = stored[lists.offset : lists.offset + len(lists) + 1].astype(np.int64, copy=False)
    return offsets


def encode_group(group: VariantGroup, array: pa.StructArray, present: Mask, names: Names) -> ByteColumn:
    """The values of a group, missing where it has none.

    Args:
        group: The group's shape.
        array: Its columns. The validity of the struct itself is not looked at.
        present: Rows in which there may be a value.
        names: The field names of the rows.
    """
    value = value_column(group, array, present)
    if group.typed is None:
        return trimmed(value)
    typed_array = array.field(group.typed_index)
    typed = present & valid_mask(typed_array)
    if isinstance(group.typed, TypedObject):
        return _encode_objects(group.typed, typed_array, typed, value, names)
    ensure_one(value, typed)
    if isinstance(group.typed, TypedPrimitive):
        return join([*encode_primitives(group.typed, typed_array, typed), trimmed(value)])
    return _encode_arrays(group.typed, typed_array, typed, trimmed(value), names)


def ensure_one(value: ByteColumn, typed: Mask) -> None:
    """Check that no row has a value beside a typed_value that is no object."""
    if not value.is_empty and (typed & (value.sizes > 0)).any():
        raise invalid_variant("it has a value beside a typed_value", "Only objects can be shredded in part")


def value_column(group: VariantGroup, array: pa.StructArray, present: Mask) -> ByteColumn:
    """What the rows have in their value column, missing where that is null or absent."""
    values = None if group.value_index is None else plain_storage(array.field(group.value_index))
    if values is None or values.null_count == len(values):
        return ByteColumn(np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8))
    column = column_from_arrow(values, present)
    if (present & valid_mask(values) & (column.sizes == 0)).any():
        raise invalid_variant("a value has no bytes")
    return column


def trimmed(values: ByteColumn) -> ByteColumn:
    """Values that are copied into others must have the size their headers say, or they would run into their
    neighbours."""
    rows = np.flatnonzero(values.sizes)
    if not len(rows):
        return values
    starts = values.starts[rows]
    sizes = value_sizes(values.data, starts, values.ends[rows])
    if (sizes == values.sizes[rows]).all():
        return values
    return gather(values.data, starts, sizes).expand(rows, len(values))


def _encode_arrays(
    typed: TypedArray, lists: pa.Array, present: Mask, unshredded: ByteColumn, names: Names
) -> ByteColumn:
    rows = np.flatnonzero(present)
    if len(rows) < len(lists):
        lists = lists.filter(boolean_array(present))
    offsets = list_offsets(lists)
    elements = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    counts = np.diff(offsets)
    # An element has to be there: one without value and typed_value is a variant null.
    there = np.ones(len(elements), np.bool_)
    inside = names.take(np.repeat(rows, counts))
    encoded = required(encode_group(typed.element, elements, valid_mask(elements), inside), there)
    bounds = encoded.offsets[offsets - offsets[0]]
    of_list = np.repeat(np.arange(len(rows)), counts)
    value_bytes = np.zeros(len(present), np.int64)
    value_bytes[rows] = np.diff(bounds)
    children = Children(rows[of_list], np.zeros(len(of_list), np.int64), encoded.starts - bounds[of_list])
    headers = container_headers(present, children, value_bytes, objects=False)
    return join([headers, ByteColumn(bounds, encoded.data).expand(rows, len(present)), unshredded])


# Objects


def _encode_objects(
    typed: TypedObject, array: pa.StructArray, present: Mask, value: ByteColumn, names: Names
) -> ByteColumn:
    unshredded, residual = split_values(value, present)
    fields = []
    for field in typed.fields:
        group_array = array.field(field.index)
        fields.append(encode_group(field.group, group_array, present & valid_mask(group_array), names))
    sizes = np.column_stack([field.sizes for field in fields]) if fields else np.zeros((len(present), 0), np.int64)
    ends = np.cumsum(sizes, axis=1)
    ids = names.dictionaries.ids_of([field.name.encode() for field in typed.fields])
    if residual.is_empty and fields and len(ids) == 1 and (ids >= 0).all() and (sizes > 0).all():
        # Every object has every field, under one dictionary: the rule, where a schema was shredded.
        headers = uniform_object_headers(ids[0], ends)
        if headers is not None:
            return join([headers, *fields])
    children = _shredded_children(typed, sizes, ends, ids, names.codes)
    field_bytes = ends[:, -1].copy() if fields else np.zeros(len(present), np.int64)
    if residual.is_empty:
        headers = container_headers(present, children, field_bytes, objects=True)
        return join([headers, *fields, unshredded])
    rows = np.flatnonzero(residual.sizes)
    layout = containers(residual.data, residual.starts[rows], residual.ends[rows], objects=True)
    left_over = children_of(residual.data, layout)
    # The left-over fields stay together behind the shredded ones; only the header puts them in the order of names.
    left_over = Children(rows[left_over.rows], left_over.ids, left_over.offsets + field_bytes[rows[left_over.rows]])
    merged = _merged(typed, children, left_over, names)
    value_bytes = field_bytes
    value_bytes[rows] += layout.values_size
    headers = container_headers(present, merged, value_bytes, objects=True)
    left_over_values = gather(residual.data, layout.values_start, layout.values_size).expand(rows, len(present))
    return join([headers, *fields, left_over_values, unshredded])


def split_values(value: ByteColumn, typed: Mask) -> tuple[ByteColumn, ByteColumn]:
    """Values that are no objects, and what is left of objects that are shredded in part."""
    rows = np.flatnonzero(value.sizes)
    if not len(rows):
        return value, value
    is_object = basic_types(value.data, value.starts[rows], value.ends[rows]) == BasicType.OBJECT
    if (typed[rows] & ~is_object).any():
        raise invalid_variant("it has a value that is not an object beside shredded fields")
    if (~typed[rows] & is_object).any():
        raise invalid_variant("it has an object in its value column where the object's fields should be shredded")
    if not typed[rows].any():
        return trimmed(value), ByteColumn(np.zeros(len(value) + 1, np.int64), value.data)
    return trimmed(value.only(~typed)), value.only(typed)


def _shredded_children(typed: TypedObject, sizes: Ints, ends: Ints, ids: Ints, codes: Ints) -> Children:
    """The fields that are there, row by row and in the order of names.

    Args:
        typed: What fields there may be.
        sizes: The size of each field, a row for each object.
        ends: Where each ends, counted from the first one's start.
        ids: Their ids, a row for each dictionary.
        codes: The number of each object's dictionary.
    """
    rows, columns = np.nonzero(sizes)
    of_field = ids[codes[rows], columns]
    if (of_field < 0).any():
        name = typed.fields[int(columns[of_field < 0][0])].name
        raise invalid_variant("the name of a shredded field is not in its metadata", f"Field {name}")
    return Children(rows, of_field, (ends - sizes)[rows, columns])


def _merged(typed: TypedObject, shredded: Children, left_over: Children, names: Names) -> Children:
    dictionaries = names.dictionaries
    codes = dictionaries.codes_at(names.codes[left_over.rows], left_over.ids)
    shredded_codes = dictionaries.codes_of([field.name.encode() for field in typed.fields])
    if np.isin(codes, shredded_codes[shredded_codes >= 0]).any():
        raise invalid_variant("a field is shredded and in the value column too")
    ranks = names.ranks
    shredded_ranks = ranks[dictionaries.codes_at(names.codes[shredded.rows], shredded.ids)]
    rows = np.concatenate([shredded.rows, left_over.rows])
    rank = np.concatenate([shredded_ranks, ranks[codes]])
    order = np.lexsort((rank, rows))
    rows, rank = rows[order], rank[order]
    if ((rows[1:] == rows[:-1]) & (rank[1:] == rank[:-1])).any():
        raise invalid_variant("an object has two fields of one name")
    ids = np.concatenate([shredded.ids, left_over.ids])[order]
    return Children(rows, ids, np.concatenate([shredded.offsets, left_over.offsets])[order])
