"""Batches of bounded size: rows are split by their bytes in plain Arrow types, not only by their number.

Dictionaries, runs and views hold in little memory what takes gigabytes as plain text, and `string` holds 2 GiB in a
batch at most. Rows are cut before they are made plain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import valid_mask

BATCH_BYTES = 64 * 1024 * 1024
"""The most bytes that the rows of a batch take, if it has more than one."""

_PLACES, _TEXTS, _BYTES = pa.int32(), pa.string(), pa.binary()

Lengths = npt.NDArray[np.int64] | int
"""The bytes of each value, or of every value."""


def cut_by_bytes(
    batch: pa.RecordBatch, kept: Collection[str] = (), most: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The same rows in slices of at most so many bytes, or of one row. Nothing is copied.

    Args:
        kept: Columns that stay dictionaries: the places in it count.
        most: None for `BATCH_BYTES`.
    """
    num_rows, most = batch.num_rows, BATCH_BYTES if most is None else most
    if most_bytes(batch, kept, most) <= most:
        yield batch
        return
    columns = zip(batch.schema.names, batch.columns, strict=True)
    parts = [4 if name in kept else value_bytes(column) for name, column in columns]
    ends = np.cumsum(np.broadcast_to(sum(parts, start=np.zeros(1, np.int64)), num_rows))
    start, before = 0, 0
    while start < num_rows or not num_rows:
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield batch.slice(start, stop - start)
        if stop >= num_rows:
            return
        start, before = stop, int(ends[stop - 1])


def most_bytes(batch: pa.RecordBatch, kept: Collection[str] = (), most: int = BATCH_BYTES) -> int:
    """The maximum size of a batch in plain types, if it is known without reading the rows; else more than `most`.
    Arguments as of `cut_by_bytes`."""
    size = int(batch.nbytes)
    for index, declared in enumerate(batch.schema):
        if size > most or declared.name in kept or not _may_grow(declared.type):
            continue
        column = batch.column(index)
        if not is_text_dictionary(column.type):
            return most + 1
        # Every value may be the longest.
        size += batch.num_rows * (pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return size


def value_bytes(array: pa.Array) -> Lengths:
    """The bytes that each value takes in plain Arrow types, at least one."""
    types, kind, count = pa.types, array.type, len(array)
    if isinstance(array, pa.ExtensionArray):
        return value_bytes(array.storage)
    if types.is_dictionary(kind):
        return _chosen(value_bytes(array.dictionary), pc.cast(pc.fill_null(array.indices, 0), pa.int64(), safe=False))
    if types.is_run_end_encoded(kind):
        ends = pc.cast(array.run_ends, pa.int64())
        runs = np.searchsorted(_numpy(ends), np.arange(array.offset, array.offset + count), "right")
        return _chosen(value_bytes(array.values), runs)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view begins with the length of its value.
        views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)
        return np.where(valid_mask(array), views[array.offset : array.offset + count, 0].astype(np.int64), 0) + 1
    if types.is_struct(kind):
        total = np.ones(count, np.int64)
        for index in range(kind.num_fields):
            total += value_bytes(array.field(index))
        return total
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        inside = value_bytes(array.values.slice(array.offset * size, count * size))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.broadcast_to(inside, count * size))])
        return np.diff(ends[:: max(size, 1)][: count + 1]).astype(np.int64) + 1 if size else 1
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        firsts = _numpy(pc.cast(array.offsets, pa.int64()))
        return _spans([array.values], firsts, firsts + _numpy(pc.cast(array.sizes, pa.int64())))
    if types.is_list(kind) or types.is_large_list(kind):
        return _spans([array.values], *_bounds(array.offsets))
    if types.is_map(kind):
        return _spans([array.keys, array.items], *_bounds(array.offsets))
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        is_large = types.is_large_string(kind) or types.is_large_binary(kind)
        offsets = array.buffers()[1]
        if offsets is None or not offsets.size:
            return 1
        wide = np.int64 if is_large else np.int32
        bounds = np.frombuffer(offsets, wide, count + 1, array.offset * np.dtype(wide).itemsize)
        return np.diff(bounds).astype(np.int64) + 1
    return 1 if types.is_null(kind) else max(kind.bit_width // 8, 1)


def _may_grow(kind: pa.DataType) -> bool:
    """Whether values may be larger in plain types than Arrow reports."""
    # Extension types are not all hashable.
    return _may_grow(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else _plain_may_grow(kind)


@lru_cache(maxsize=256)
def _plain_may_grow(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return True
    is_view = types.is_string_view(kind) or types.is_binary_view(kind) or types.is_null(kind)
    is_view = is_view or types.is_list_view(kind) or types.is_large_list_view(kind)
    return is_view or any(_may_grow(kind.field(i).type) for i in range(kind.num_fields))


def _chosen(lengths: Lengths, places: pa.Array | npt.NDArray[np.int64]) -> Lengths:
    if isinstance(lengths, int):
        return lengths
    at = _numpy(places) if isinstance(places, pa.Array) else places
    numbers: npt.NDArray[np.int64] = lengths if len(lengths) else np.ones(1, np.int64)
    return np.take(numbers, at, mode="clip")


def _bounds(offsets: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    bounds = _numpy(pc.cast(offsets, pa.int64()))
    return bounds[:-1], bounds[1:]


def _spans(children: list[pa.Array], firsts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> Lengths:
    """The bytes that runs of elements take."""
    if not len(firsts):
        return 1
    least, most = int(firsts.min()), int(stops.max())
    total = np.ones(len(firsts), np.int64)
    for child in children:
        inside = value_bytes(child.slice(least, most - least))
        if isinstance(inside, int):
            total += (stops - firsts) * inside
        else:
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])
            total += ends[stops - least] - ends[firsts - least]
    return total


def _numpy(values: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = np.frombuffer(values.buffers()[1] or b"", np.int64)
    return numbers[values.offset : values.offset + len(values)]


def holds_dictionaries(schema: pa.Schema) -> bool:
    """Whether a column, not one inside another, is in a dictionary."""
    return any(map(pa.types.is_dictionary, schema.types))


def is_text_dictionary(kind: pa.DataType) -> bool:
    """Whether these are texts or bytes in a dictionary as readers of files make it."""
    is_known = isinstance(kind, pa.DictionaryType) and kind.index_type.equals(_PLACES)
    return bool(is_known and (kind.value_type.equals(_TEXTS) or kind.value_type.equals(_BYTES)))


def repeated(value: pa.Scalar, count: int) -> pa.Array:
    """The same value so many times; a text that would then take more than a batch may, in a dictionary of one."""
    values = pa.repeat(value, 1)
    size = value_bytes(values)
    if (size if isinstance(size, int) else int(size[0])) * count <= BATCH_BYTES:
        return pa.repeat(value, count)
    kind = pa.dictionary(pa.int32(), value.type)
    return pa.DictionaryArray.from_buffers(kind, count, [None, pa.py_buffer(bytes(4 * count))], values)


def decoded(batch: pa.RecordBatch, kept: Collection[str]) -> pa.RecordBatch:
    """The batch with plain texts in the columns that are not to be kept."""
    for index, column in enumerate(batch.schema):
        if is_text_dictionary(column.type) and column.name not in kept:
            # The field keeps its metadata: columns may be found by the ids in it.
            plain = batch.column(index).dictionary_decode()
            batch = batch.set_column(index, column.with_type(plain.type), plain)
    return batch


def keeping_dictionaries(target: pa.Schema, source: pa.Schema, kept: Collection[str] | None = None) -> pa.Schema:
    """The target with the types of those columns of the source that are the same texts in a dictionary.

    Args:
        kept: Which columns may be; None for all.
    """
    if not holds_dictionaries(source):
        return target
    kinds = {column.name: column.type for column in source if is_text_dictionary(column.type)}
    return pa.schema(
        [
            column.with_type(kinds[column.name])
            if column.name in kinds
            and (kept is None or column.name in kept)
            and kinds[column.name].value_type.equals(column.type)
            else column
            for column in target
        ]
    )


def text_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> list[str]:
    """The columns, of those named, that are texts in dictionaries without null."""
    return [
        declared.name
        for index, declared in enumerate(batch.schema)
        if is_text_dictionary(declared.type)
        and declared.name in names
        and not batch.column(index).dictionary.null_count
    ]


def plain_size(batch: pa.RecordBatch) -> int:
    """The bytes that a batch takes without dictionaries."""
    if not holds_dictionaries(batch.schema):
        return int(batch.nbytes)
    names = text_dictionaries(batch, batch.schema.names)
    held = sum(int(np.sum(np.broadcast_to(value_bytes(batch.column(name)), batch.num_rows))) for name in names)
    return held + int(batch.nbytes)


def of_types(batch: pa.RecordBatch, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in the types of a schema that differs in which texts are in dictionaries: those that are not any more
    are cut by bytes."""
    if batch.schema.equals(target):
        yield batch
        return
    kept = [column.name for column in target if is_text_dictionary(column.type)]
    for part in cut_by_bytes(batch, kept):
        columns = [
            pc.dictionary_encode(column)
            if is_text_dictionary(kind) and not is_text_dictionary(column.type)
            else column.dictionary_decode()
            if is_text_dictionary(column.type) and not is_text_dictionary(kind)
            else column
            for column, kind in zip(part.columns, target.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)
