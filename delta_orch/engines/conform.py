"""Converts Arrow data to the types and the column order of a table.

Columns and struct fields match by name, an exact match first, then without regard to case. Missing columns are null,
and extra columns are dropped. Every other change is a lossless cast, except for timestamps. Files may hold nanoseconds,
which Delta reads as microseconds.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import NamePositions
from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.arrow_building import children_of, literal_array, literal_scalar, with_children
from delta_orch.protocol.types import BINARY, INTEGER

Column = TypeVar("Column", pa.Array, pa.ChunkedArray)
_NANOS_PER_MICRO = 1_000
_MOST_BYTES = (1 << 31) - 1
"""Of `string` and `binary`, in one array. Batches are cut before (`batch_bytes`): only a single row can be longer."""


def conform_batch(batch: pa.RecordBatch, target: pa.Schema, *, lossless: bool) -> pa.RecordBatch:
    """A batch with exactly the columns of `target`. Raises as `conform_column`."""
    if batch.schema.equals(target):
        return batch
    if len(target) == 0:
        return batch.select([])
    names = NamePositions(batch.schema.names)
    columns = [_column_or_nulls(batch, names, field, lossless) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def conform_table(table: pa.Table, target: pa.Schema, *, lossless: bool) -> pa.Table:
    """Convert a table with at least one column, as `conform_batch` does."""
    if table.schema.equals(target):
        return table
    names = NamePositions(table.schema.names)
    return pa.Table.from_arrays([_column_or_nulls(table, names, field, lossless) for field in target], schema=target)


def _column_or_nulls(
    rows: pa.RecordBatch | pa.Table, names: NamePositions, field: pa.Field, lossless: bool
) -> pa.Array | pa.ChunkedArray:
    index = names.find(field.name)
    if index is None:
        return nulls_of(rows.num_rows, field.type)
    return conform_column(rows.column(index), field.type, lossless=lossless, path=field.name)


def conform_column(column: Column, target: pa.DataType, *, lossless: bool, path: str) -> Column:
    """A column in another type that can hold its values.

    Args:
        lossless: Refuse timestamps finer than a microsecond instead of truncating them.
        path: The name of the column in errors.

    Raises:
        SchemaMismatchError: A value does not fit the type.
    """
    if column.type.equals(target):
        return column
    if isinstance(column, pa.ChunkedArray):
        chunks = [conform_column(chunk, target, lossless=lossless, path=path) for chunk in column.chunks]
        return pa.chunked_array(chunks, target)
    try:
        return _conform_array(column, target, lossless, path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise SchemaMismatchError(
            f"Column {path} of type {column.type} does not fit {target}",
            cause=str(e),
            remedy="Cast the column before writing" if lossless else "The file was not written for this table's schema",
            column=path,
        ) from e


def _conform_array(array: pa.Array, target: pa.DataType, lossless: bool, path: str) -> pa.Array:
    types = pa.types
    if isinstance(array, pa.ExtensionArray):
        return conform_column(array.storage, target, lossless=lossless, path=path)
    if types.is_dictionary(array.type):
        return conform_column(_decoded(array), target, lossless=lossless, path=path)
    if types.is_run_end_encoded(array.type):
        return conform_column(pc.run_end_decode(array), target, lossless=lossless, path=path)
    if types.is_null(target) or types.is_null(array.type):
        if types.is_null(target) and array.null_count < len(array):
            raise SchemaMismatchError(
                f"Column {path} is void and accepts only nulls",
                remedy="Leave the column out, because its type is not known yet",
                column=path,
            )
        return nulls_of(len(array), target)
    if types.is_struct(target):
        return _conform_struct(array, target, lossless, path)
    if types.is_map(target):
        return _conform_map(array, target, lossless, path)
    if types.is_list(target):
        return _conform_list(array, target, lossless, path)
    if types.is_timestamp(target):
        return _conform_timestamp(array, target, lossless)
    if types.is_large_string(array.type) or types.is_large_binary(array.type):
        array = _rebased(array, path)
    return pc.cast(array, target)


def _rebased(array: pa.Array, path: str) -> pa.Array:
    """Long text or bytes whose offsets fit 32 bits: a slice has those of the array that it was cut from."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return array
    ends = (array.offset, array.offset + len(array))
    first, last = (int.from_bytes(offsets[8 * end : 8 * end + 8], "little") for end in ends)
    if last - first > _MOST_BYTES:
        raise SchemaMismatchError(
            f"Column {path} has a value of more than {_MOST_BYTES} bytes",
            cause="Parquet files and readers of Delta do not support longer values",
            remedy="Split the value, or store it as a file and its path in the table",
            column=path,
        )
    return array if last <= _MOST_BYTES else pa.concat_arrays([array])


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    # Arrow cannot take elements from views.
    kind, dictionary = array.type.value_type, array.dictionary
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        plain = pc.cast(dictionary, pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
        array = pa.DictionaryArray.from_arrays(array.indices, plain)
    return array.dictionary_decode()


def _conform_struct(array: pa.Array, target: pa.StructType, lossless: bool, path: str) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise pa.ArrowInvalid(f"{array.type} is not a struct")
    names = NamePositions([field.name for field in array.type])
    # `flatten` makes the fields of null structs null, which a field that is NOT NULL must not be.
    children = array.flatten()
    conformed = []
    for field in target:
        index = names.find(field.name)
        child = f"{path}.{field.name}"
        if index is None:
            conformed.append(nulls_of(len(array), field.type))
        else:
            values = children[index] if field.nullable else array.field(index)
            values = conform_column(values, field.type, lossless=lossless, path=child)
            conformed.append(values if field.nullable else _blank_below(array, values))
    if not conformed:
        return pa.array([{}] * len(array), target, mask=pc.is_null(array))
    return with_children(array, conformed, target)


def nulls_of(count: int, target: pa.DataType) -> pa.Array:
    """Nulls of a type, as a file can hold them: see `_blank_below`."""
    nulls = pa.nulls(count, target)
    if not pa.types.is_struct(target) or not target.num_fields:
        return nulls
    parts = ((f, nulls_of(count, f.type)) for f in target)
    fields = [part if f.nullable else _blank_below(nulls, part) for f, part in parts]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=pc.is_null(nulls))


def _blank_below(parent: pa.Array, values: pa.Array) -> pa.Array:
    """Placeholder bytes for a missing variant: Parquet refuses nulls in NOT NULL fields, even below a null."""
    if not pa.types.is_binary(values.type) or not values.null_count:
        return values
    return pc.if_else(pc.and_(pc.is_null(parent), pc.is_null(values)), literal_scalar(b"", BINARY), values)


def _conform_map(array: pa.Array, target: pa.MapType, lossless: bool, path: str) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise pa.ArrowInvalid(f"{array.type} is not a map")
    array = _own_elements(array)
    keys = conform_column(array.keys, target.key_type, lossless=lossless, path=f"{path}.key")
    items = conform_column(array.items, target.item_type, lossless=lossless, path=f"{path}.value")
    return with_children(array, [keys, items], target)


def _own_elements(array: pa.Array) -> pa.Array:
    """A list or map, which may be a slice, without the elements of the array that it was cut from."""
    offsets, children = array.offsets, children_of(array)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if last - first == len(children[0]):
        return array
    mask = pc.is_null(array) if array.null_count else None
    kind = pa.MapArray if pa.types.is_map(array.type) else pa.ListArray
    children = [child.slice(first, last - first) for child in children]
    return kind.from_arrays(pc.subtract(offsets, first), *children, type=array.type, mask=mask)


def _conform_list(array: pa.Array, target: pa.ListType, lossless: bool, path: str) -> pa.Array:
    element = f"{path}.element"
    if pa.types.is_list(array.type):
        array = _own_elements(array)
        values = conform_column(array.values, target.value_type, lossless=lossless, path=element)
        return with_children(array, [values], target)
    if not hasattr(array.type, "value_field"):
        raise pa.ArrowInvalid(f"{array.type} is not a list")
    # Large lists, fixed-size lists and list views share no layout: rebuild from lengths.
    lengths = pc.coalesce(pc.cast(pc.list_value_length(array), pa.int64()), 0)
    ends = pc.cast(pc.cumulative_sum(lengths), pa.int32())
    offsets = pa.concat_arrays([literal_array([0], INTEGER), ends])
    # Offsets have no nulls. Arrow 25 accepts no validity bitmap in them, even without nulls.
    offsets = pa.Array.from_buffers(offsets.type, len(offsets), [None, offsets.buffers()[1]])
    values = conform_column(pc.list_flatten(array), target.value_type, lossless=lossless, path=element)
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=pc.is_null(array) if array.null_count else None)


def _conform_timestamp(array: pa.Array, target: pa.DataType, lossless: bool) -> pa.Array:
    source = array.type
    if pa.types.is_timestamp(source) and source.unit == "ns" and not lossless:
        # Round towards the past, as Spark does. A cast would round towards 1970.
        nanos = array.view(pa.int64())
        cut = pc.divide(nanos, _NANOS_PER_MICRO)
        rest = pc.subtract(nanos, pc.multiply(cut, _NANOS_PER_MICRO))
        floored = pc.if_else(pc.less(rest, 0), pc.subtract(cut, 1), cut)
        return floored.view(target)
    if pa.types.is_timestamp(source) and (source.tz is None) != (target.tz is None):
        # Same ticks: zone-less values count as UTC, and the log decides what a column is.
        array = array.view(pa.int64()).view(pa.timestamp(source.unit, target.tz))
    return pc.cast(array, target)
