"""Shredded columns back into variants (Variant Shredding, "Reconstructing a Shredded Variant").

Column by column, not row by row: typed columns are encoded whole, objects and arrays get their headers from numpy and
are put together by one Arrow kernel; what the writer left in a `value` column is copied as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import (
    VARIANT_STORAGE,
    booleans_from_numpy,
    children_of,
    longs_from_numpy,
    valid_mask,
    with_children,
)
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType, holds_variant, parts_of
from delta_orch.protocol.variant.byte_columns import (
    ByteColumn,
    Ints,
    Mask,
    column_from_arrow,
    constant,
    gather,
    join,
    missing,
)
from delta_orch.protocol.variant.convert import encode_primitives, plain_storage
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.layouts import (
    Children,
    basic_types,
    container_headers,
    containers,
    ensure_distinct,
    uniform_object_headers,
    value_sizes,
)
from delta_orch.protocol.variant.layouts import (
    children_of as fields_or_elements,
)
from delta_orch.protocol.variant.shredding import (
    TypedArray,
    TypedObject,
    VariantGroup,
    parse_variant_type,
)
from delta_orch.protocol.variant.values import BasicType, Kind, invalid_variant

Change = Callable[[pa.Array], pa.Array]

VARIANT_NULL = b"\x00"
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 1 << 23


def reconstruct_variant(array: pa.Array | pa.ChunkedArray) -> pa.StructArray | pa.ChunkedArray:
    """A variant column, shredded or not, as struct<metadata: binary, value: binary>.

    An unshredded column is passed through without looking at its values. Nulls of the struct stay nulls; a row that is
    there but has no value is a variant null.

    Args:
        array: As a Parquet reader returns it; module `shredding` lists the supported types. A chunked array comes back
            chunked.

    Returns:
        Arrow type `arrow_building.VARIANT_STORAGE`.

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
    if group.typed is None and array.type.equals(VARIANT_STORAGE) and not array.field("value").null_count:
        return array
    return in_blocks(array, lambda block: _reconstruct(group, block))


def _reconstruct(group: VariantGroup, array: pa.StructArray) -> pa.StructArray:
    present = valid_mask(array)
    metadata = metadata_column(group, array, present)
    values = encode_group(group, array, present, Names.of(lambda: metadata, present))
    return variant_array(metadata, required(values, present), present)


def located_variants(variants: pa.StructArray) -> tuple[Located, Names]:
    """Where the values of an unshredded column lie, and their field names.

    Raises:
        InvalidVariantError: A row that is not null has no value.
    """
    present = valid_mask(variants)
    values = column_from_arrow(variants.field("value"), present)
    if (values.sizes[present] == 0).any():
        raise invalid_variant("a value has no bytes")
    names = Names.of(lambda: column_from_arrow(variants.field("metadata")), present)
    return Located.of(values, np.arange(len(variants))), names


def variant_array(metadata: ByteColumn, values: ByteColumn, present: Mask) -> pa.StructArray:
    """Put a column of variants together; rows that are not present are null."""
    children = [metadata.to_binary(), values.to_binary()]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT_STORAGE), mask=null_mask(present))


def metadata_column(group: VariantGroup, array: pa.StructArray, present: Mask) -> ByteColumn:
    """The metadata of each row that is present.

    Raises:
        InvalidVariantError: A row has no metadata.
    """
    if not group.has_metadata:
        raise invalid_variant("its metadata was not read", "Values that are not shredded need it")
    metadata = column_from_arrow(plain_storage(array.field("metadata")), present)
    if (metadata.sizes[present] == 0).any():
        raise invalid_variant("it has no metadata")
    return metadata


def required(column: ByteColumn, present: Mask) -> ByteColumn:
    """The column, with a variant null in each present row that has no value."""
    missing = present & (column.sizes == 0)
    return join([column, constant(VARIANT_NULL, missing)]) if missing.any() else column


def in_blocks(array: pa.Array, work: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Apply `work` to an array block by block, which keeps intermediate columns small.

    Raises:
        InvalidRequestError: The result takes more than 2 GiB.
    """
    rows = int(min(_BLOCK_ROWS, max(1, _BLOCK_BYTES * len(array) // max(array.nbytes, 1))))
    blocks = [work(array.slice(start, rows)) for start in range(0, max(len(array), 1), rows)]
    try:
        return blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks)
    except pa.ArrowInvalid as e:
        raise InvalidRequestError(
            "The values of one batch take more than 2 GiB", cause=str(e), remedy="Read them in smaller batches"
        ) from None


def list_offsets(lists: pa.Array) -> Ints:
    """The offsets of a list array into its `values`, as int64."""
    if not len(lists):
        return np.zeros(1, np.int64)
    stored = np.frombuffer(lists.buffers()[1], np.int64 if pa.types.is_large_list(lists.type) else np.int32)
    offsets: Ints = stored[lists.offset : lists.offset + len(lists) + 1].astype(np.int64, copy=False)
    return offsets


def encode_group(group: VariantGroup, array: pa.StructArray, present: Mask, names: Names) -> ByteColumn:
    """The values of a group; missing in rows without a value.

    Args:
        group: The group's shape.
        array: Its columns. The validity of the struct itself is ignored.
        present: Rows in which there may be a value.
        names: The field names of the rows.
    """
    parts = split_group(group, array, present)
    if isinstance(group.typed, TypedObject):
        return _encode_objects(group.typed, parts, names)
    unshredded = trimmed(parts.value)
    if group.typed is None:
        return unshredded
    if isinstance(group.typed, Kind):
        return join([*encode_primitives(group.typed, parts.typed_array, parts.typed), unshredded])
    return _encode_arrays(group.typed, parts.typed_array, parts.typed, unshredded, names)


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """The columns of a group for some rows.

    Attributes:
        typed_array: The typed column, or None.
        typed: Rows that have a typed value.
        value: Values that are not shredded.
        residual: What is left of objects that are shredded in part; `value` where objects are not shredded.
    """

    typed_array: pa.Array
    typed: Mask
    value: ByteColumn
    residual: ByteColumn


def split_group(group: VariantGroup, array: pa.StructArray, present: Mask) -> GroupParts:
    """Tell the values in a group's columns apart.

    Raises:
        InvalidVariantError: A row has a value beside a typed value that it must not have.
    """
    value = _value_column(group, array, present)
    if group.typed is None:
        return GroupParts(None, np.zeros_like(present), value, value)
    typed_array = array.field("typed_value")
    typed = present & valid_mask(typed_array)
    if isinstance(group.typed, TypedObject):
        return GroupParts(typed_array, typed, *_split_values(value, typed))
    if not value.is_empty and (typed & (value.sizes > 0)).any():
        raise invalid_variant("it has a value beside a typed_value", "Only objects can be shredded in part")
    return GroupParts(typed_array, typed, value, value)


def _value_column(group: VariantGroup, array: pa.StructArray, present: Mask) -> ByteColumn:
    """The value column of the rows; missing if it is null or absent."""
    values = plain_storage(array.field("value")) if group.has_value else None
    if values is None or values.null_count == len(values):
        return missing(len(array))
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
        lists = lists.filter(booleans_from_numpy(present))
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


def _encode_objects(typed: TypedObject, parts: GroupParts, names: Names) -> ByteColumn:
    present, residual, unshredded = parts.typed, parts.residual, parts.value
    fields = []
    for name, group in typed.fields.items():
        group_array = parts.typed_array.field(name)
        fields.append(encode_group(group, group_array, present & valid_mask(group_array), names))
    sizes = np.column_stack([field.sizes for field in fields]) if fields else np.zeros((len(present), 0), np.int64)
    ends = np.cumsum(sizes, axis=1)
    ids = names.dictionaries.ids_of([name.encode() for name in typed.fields])
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
    left_over = fields_or_elements(residual.data, layout)
    # The left-over fields stay together behind the shredded ones; only the header puts them in the order of names.
    left_over = Children(rows[left_over.rows], left_over.ids, left_over.offsets + field_bytes[rows[left_over.rows]])
    merged = _merged(typed, children, left_over, names)
    value_bytes = field_bytes
    value_bytes[rows] += layout.values_size
    headers = container_headers(present, merged, value_bytes, objects=True)
    left_over_values = gather(residual.data, layout.values_start, layout.values_size).expand(rows, len(present))
    return join([headers, *fields, left_over_values, unshredded])


def _split_values(value: ByteColumn, typed: Mask) -> tuple[ByteColumn, ByteColumn]:
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
        return trimmed(value), missing(len(value))
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
        name = list(typed.fields)[int(columns[of_field < 0][0])]
        raise invalid_variant("the name of a shredded field is not in its metadata", f"Field {name}")
    return Children(rows, of_field, (ends - sizes)[rows, columns])


def _merged(typed: TypedObject, shredded: Children, left_over: Children, names: Names) -> Children:
    dictionaries = names.dictionaries
    codes = dictionaries.codes_at(names.codes[left_over.rows], left_over.ids)
    shredded_codes = dictionaries.codes_of([name.encode() for name in typed.fields])
    if np.isin(codes, shredded_codes[shredded_codes >= 0]).any():
        raise invalid_variant("a field is shredded and in the value column too")
    ranks = dictionaries.ranks
    shredded_ranks = ranks[dictionaries.codes_at(names.codes[shredded.rows], shredded.ids)]
    rows = np.concatenate([shredded.rows, left_over.rows])
    rank = np.concatenate([shredded_ranks, ranks[codes]])
    order = np.lexsort((rank, rows))
    rows = rows[order]
    ensure_distinct(rows, rank[order])
    ids = np.concatenate([shredded.ids, left_over.ids])[order]
    return Children(rows, ids, np.concatenate([shredded.offsets, left_over.offsets])[order])


# Variants anywhere inside a column


def reconstruct_columns(array: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.Array | pa.ChunkedArray:
    """A column with every variant in it as struct<metadata: binary, value: binary>. Other values stay as they are.

    Args:
        array: As a Parquet reader gives it. A chunked array comes back chunked.
        data_type: The column's Delta type; structs name their fields as the file does. Fields that only one side has do
            not change. So is a column that is not a struct, list or map although its type is one.

    Raises:
        InvalidVariantError: As `reconstruct_variant` has it; also where a variant is not a group.
    """
    if not holds_variant(data_type):
        return array
    if isinstance(array, pa.ChunkedArray):
        # No chunk, no type: an empty array has it.
        chunks = array.chunks or [pa.nulls(0, array.type)]
        return pa.chunked_array([reconstruct_columns(chunk, data_type) for chunk in chunks])
    return _with_variants(array, data_type, reconstruct_variant)


def ensure_variants(array: pa.Array, data_type: DataType) -> None:
    """Check the variants anywhere in a column: each has metadata of a known version and exactly one value. The inside
    of objects and arrays is not checked.

    Args:
        array: In the Arrow type of `data_type`; variants are struct<metadata: binary, value: binary>.

    Raises:
        InvalidVariantError: A value is not a variant.
    """
    _with_variants(array, data_type, _ensured)


def _ensured(array: pa.StructArray) -> pa.StructArray:
    present = valid_mask(array)
    parts = {name: column_from_arrow(array.field(name), present) for name in ("metadata", "value")}
    for name, column in parts.items():
        if (column.sizes[present] == 0).any():
            raise invalid_variant(f"it has no {name}")
    if present.any():
        value = Located.of(parts["value"], np.arange(len(array)))
        if (value_sizes(value.data, value.starts, value.ends) != value.ends - value.starts).any():
            raise invalid_variant("bytes follow its value")
        _ = Names.of(lambda: parts["metadata"], present).dictionaries
    return array


def _with_variants(array: pa.Array, data_type: DataType, change: Change) -> pa.Array:
    """The array with every variant in it replaced by what `change` makes of it."""
    if not holds_variant(data_type):
        return array
    if not isinstance(data_type, StructType | ArrayType | MapType):
        return change(array)
    kind = array.type
    types = dict(parts_of(data_type))
    if pa.types.is_struct(kind) and isinstance(data_type, StructType):
        # Flattened children are null where the struct is null, because values under a null must not be read.
        names, inside = [field.name for field in kind], array.flatten()
    elif pa.types.is_map(kind) and isinstance(data_type, MapType):
        names, inside = ["key", "value"], children_of(array := _compact(array))
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(data_type, ArrayType):
        names, inside = ["element"], children_of(array := _compact(array))
    else:
        return array
    children = [
        _with_variants(child, types[name], change) if name in types else child
        for name, child in zip(names, inside, strict=True)
    ]
    return with_children(array, children, _with_types(kind, [child.type for child in children]))


def _compact(array: pa.Array) -> pa.Array:
    """A copy without elements under nulls and beside a slice: they must not be read."""
    return pc.take(array, longs_from_numpy(np.arange(len(array))))


def _with_types(kind: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a struct, list or map whose parts have other types."""
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(types[0]), kind.item_field.with_type(types[1]))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(t) for field, t in zip(kind, types, strict=True)])
    make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
    return make(kind.value_field.with_type(types[0]))


def null_mask(valid: Mask) -> pa.BooleanArray | None:
    """The mask that structs are built with: which rows are null, None where no row is."""
    return None if valid.all() else booleans_from_numpy(~valid)
