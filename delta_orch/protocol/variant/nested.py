"""Variants anywhere inside a column: in structs, arrays and maps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.protocol.types import VARIANT, ArrayType, DataType, MapType, StructType, holds_variant
from delta_orch.protocol.variant.byte_columns import (
    Ints,
    Mask,
    boolean_array,
    column_from_arrow,
    int64_array,
    valid_mask,
)
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.layouts import value_sizes
from delta_orch.protocol.variant.metadata import invalid_variant
from delta_orch.protocol.variant.reconstruct import list_offsets, reconstruct_variant


def reconstruct_columns(array: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.Array | pa.ChunkedArray:
    """A column with every variant in it as struct<metadata: binary, value: binary>; all else stays as it is.

    Args:
        array: As a Parquet reader gives it. A chunked array comes back chunked.
        data_type: The column's Delta type; structs name their fields as the file does. Fields that only one side has
            are left alone. So is a column that is not a struct, list or map although its type is one.

    Raises:
        InvalidVariantError: As `reconstruct.reconstruct_variant` has it; also where a variant is no group at all.
    """
    if not holds_variant(data_type):
        return array
    if isinstance(array, pa.ChunkedArray):
        chunks = [reconstruct_columns(chunk, data_type) for chunk in array.chunks]
        # No chunk, no type: an empty array has it.
        chunks = chunks or [reconstruct_columns(pa.nulls(0, array.type), data_type)]
        return pa.chunked_array(chunks)
    match data_type:
        case StructType() if pa.types.is_struct(array.type):
            return _struct(array, data_type)
        case ArrayType(element_type, _) if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            return _list(array, element_type)
        case MapType() if pa.types.is_map(array.type):
            return _map(array, data_type)
        case StructType() | ArrayType() | MapType():
            return array
        case _:
            return reconstruct_variant(array)


def _struct(array: pa.StructArray, data_type: StructType) -> pa.StructArray:
    known = {f.name: f.data_type for f in data_type}
    children, fields = [], []
    # Flattened children are null where the struct is; what lies under a null must not be looked at.
    for field, child in zip(array.type, array.flatten(), strict=True):
        if field.name in known:
            child = reconstruct_columns(child, known[field.name])
        children.append(child)
        fields.append(field.with_type(child.type))
    return pa.StructArray.from_arrays(children, fields=fields, mask=_null_mask(valid_mask(array)))


def _list(array: pa.Array, element_type: DataType) -> pa.Array:
    array, offsets = _compact(array)
    values = reconstruct_columns(array.values.slice(offsets[0], offsets[-1] - offsets[0]), element_type)
    large = pa.types.is_large_list(array.type)
    field = array.type.value_field.with_type(values.type)
    return _from_parts(pa.large_list(field) if large else pa.list_(field), array, offsets, values)


def _map(array: pa.MapArray, data_type: MapType) -> pa.MapArray:
    array, offsets = _compact(array)
    part = slice(offsets[0], offsets[-1])
    keys = reconstruct_columns(array.keys[part], data_type.key_type)
    items = reconstruct_columns(array.items[part], data_type.value_type)
    key_field, item_field = array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[key_field, item_field])
    return _from_parts(pa.map_(key_field, item_field), array, offsets, entries)


def _compact(array: pa.Array) -> tuple[pa.Array, Ints]:
    """The array without elements under its nulls, and its offsets."""
    offsets = list_offsets(array)
    if array.null_count and np.diff(offsets)[~valid_mask(array)].any():
        array = pc.take(array, int64_array(np.arange(len(array))))
        offsets = list_offsets(array)
    return array, offsets


def _from_parts(t: pa.DataType, array: pa.Array, offsets: Ints, children: pa.Array) -> pa.Array:
    moved = (offsets - offsets[0]).astype(np.int64 if pa.types.is_large_list(t) else np.int32)
    valid = valid_mask(array)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(t, len(array), [bitmap, pa.py_buffer(moved)], children=[children])


def _null_mask(valid: Mask) -> pa.BooleanArray | None:
    return None if valid.all() else boolean_array(~valid)


def ensure_variants(array: pa.Array, data_type: DataType) -> None:
    """Check the variants anywhere in a column: each has metadata of a known version and exactly one value. What is
    inside objects and arrays is not looked at.

    Args:
        array: In the Arrow type of `data_type`; variants are struct<metadata: binary, value: binary>.

    Raises:
        InvalidVariantError: One is none.
    """
    match data_type:
        case StructType(fields):
            for field, child in zip(fields, array.flatten(), strict=True):
                if holds_variant(field.data_type):
                    ensure_variants(child, field.data_type)
        case ArrayType(element_type, _):
            ensure_variants(array.flatten(), element_type)
        case MapType(_, value_type, _):
            entries = pa.ListArray.from_arrays(array.offsets, array.items, mask=_nulls_of(array))
            ensure_variants(entries.flatten(), value_type)
        case _ if data_type == VARIANT:
            _ensure_column(array)


def _nulls_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count and not array.offset else None


def _ensure_column(array: pa.StructArray) -> None:
    present = valid_mask(array)
    parts = {name: column_from_arrow(array.field(name), present) for name in ("metadata", "value")}
    for name, column in parts.items():
        if (column.sizes[present] == 0).any():
            raise invalid_variant(f"it has no {name}")
    rows = np.flatnonzero(present)
    if not len(rows):
        return
    value = parts["value"]
    sizes = value_sizes(value.data, value.starts[rows], value.ends[rows])
    if (sizes != value.sizes[rows]).any():
        raise invalid_variant("bytes follow its value")
    _ = Names.of(parts["metadata"], present).dictionaries
