"""Arrow's many encodings of one thing, reduced to the one the log uses: a file remembers the encoding its writer had in
memory, and Arrow's kernels do not work on all of them. And the few kernels that a plain open needs, without
`pyarrow.compute`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt


def plain(column: pa.Array) -> pa.Array:
    """The same values with plain strings, binaries and lists at every depth; the column itself where it has them."""
    target = plain_type(column.type)
    return column if target == column.type else column.cast(target)


def valid_runs(column: pa.Array) -> list[tuple[int, int]]:
    """The runs of values that are not null, as (start, stop): for columns with few of them. `pyarrow.compute`, which
    `is_valid` and `filter` load, costs a cold process more than reading them."""
    if not column.null_count:
        return [(0, len(column))] if len(column) else []
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    edges = np.diff(bits[column.offset : column.offset + len(column)].astype(np.int8), prepend=0, append=0)
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def plain_type(t: pa.DataType) -> pa.DataType:
    """A type without dictionaries, views and 64-bit offsets."""
    if pt.is_dictionary(t) or pt.is_run_end_encoded(t):
        return plain_type(t.value_type)
    if pt.is_large_string(t) or pt.is_string_view(t):
        return pa.string()
    if pt.is_large_binary(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t):
        return pa.binary()
    if pt.is_map(t):
        return pa.map_(t.key_field.with_type(plain_type(t.key_type)), t.item_field.with_type(plain_type(t.item_type)))
    if pt.is_list(t) or pt.is_large_list(t) or pt.is_list_view(t) or pt.is_large_list_view(t):
        return pa.list_(t.value_field.with_type(plain_type(t.value_type)))
    if pt.is_struct(t):
        return pa.struct([field.with_type(plain_type(field.type)) for field in t])
    return t
