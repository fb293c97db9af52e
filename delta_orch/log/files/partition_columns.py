"""Partition values of files: the maps of the log as columns, and keys that compare partitions.

PROTOCOL, "Partition Value Serialization": one value may be spelled in several ways, so texts do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import (
    int64_range,
    longs_from_numpy,
    map_entries,
    one_chunk,
    string_array,
)
from delta_orch.protocol.partition_values import partition_column_from_arrow, partition_column_to_arrow
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import DOUBLE, FLOAT, STRING, StructField, StructType
from delta_orch.table.column_mapping import physical_path

_ESCAPE = "\x1f"


def partition_strings(partition_values: pa.Array | pa.ChunkedArray, partition_columns: Sequence[str]) -> pa.Table:
    """One string column a partition column, spelled as in the log; null where a file names no value.

    Args:
        partition_values: Type `file_columns.STRING_MAP`. Names match exactly, or else without regard to case.
    """
    maps = one_chunk(partition_values)
    rows, keys, items = map_entries(maps)
    columns = [_column_of(name, keys, items, rows, len(maps)) for name in partition_columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([(name, pa.string()) for name in partition_columns]))


def _column_of(name: str, keys: pa.Array, items: pa.Array, rows: pa.Array, num_rows: int) -> pa.Array:
    every_row = pc.cast(int64_range(0, num_rows), rows.type)
    mine = pc.equal(keys, name)
    named, values = pc.filter(rows, mine), pc.filter(items, mine)
    if named.equals(every_row):
        return values
    indices = pc.index_in(every_row, value_set=named)
    if indices.null_count:
        # Each file is resolved by itself, so that the result does not depend on the other files.
        folded = pc.equal(pc.utf8_lower(keys), name.lower())
        others, other_values = pc.filter(rows, folded), pc.filter(items, folded)
        by_folded = pc.take(other_values, pc.index_in(every_row, value_set=others))
        return pc.if_else(pc.is_null(indices), by_folded, pc.take(values, indices))
    return pc.take(values, indices)


def partition_keys(strings: pa.Table, schema: StructType, *, equal_zeros: bool = False) -> pa.Array:
    """One string for each row. Two strings are equal exactly if the partition values are equal.

    Args:
        strings: One string column a partition column, as `partition_strings` gives them.
        schema: The table's schema, for the types of the columns.
        equal_zeros: Whether 0.0 and -0.0 are the same, as they are for a comparison. They lie in two partitions.
    """
    parts = [
        _comparable(one_chunk(column), name, schema, equal_zeros)
        for name, column in zip(strings.column_names, strings.columns, strict=True)
    ]
    if not parts:
        return string_array([""] * strings.num_rows)
    return pc.binary_join_element_wise(*parts, _ESCAPE + ",")


def file_partition_strings(files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Table:
    """The partition values of files (column `partition_values`), one string column a partition column, spelled as in
    the log.

    Args:
        partition_columns: Logical names, which the columns get; the log knows them by their physical ones.
    """
    physical = [physical_path(schema, [name])[0] for name in partition_columns]
    return partition_strings(FileTable(files).partition_values, physical).rename_columns(list(partition_columns))


def file_partition_keys(
    files: pa.Table, schema: StructType, partition_columns: Sequence[str], *, equal_zeros: bool = False
) -> pa.Array:
    """One string for each file. Two strings are equal exactly if the files lie in the same partition. See
    `file_partition_strings` and `partition_keys`."""
    if not partition_columns:
        return string_array([""] * files.num_rows)
    strings = file_partition_strings(files, schema, partition_columns)
    return one_chunk(partition_keys(strings, schema, equal_zeros=equal_zeros))


def row_codes(columns: pa.Table) -> pa.Array:
    """A number a row, int64: two rows have the same one exactly if they are equal, null equal to null."""
    code = longs_from_numpy(np.zeros(columns.num_rows, np.int64))
    for column in columns.columns:
        encoded = pc.dictionary_encode(one_chunk(column), null_encoding="encode")
        digits = pc.cast(encoded.indices, pa.int64())
        # Re-encoding after each column keeps the code below rows x values, far from overflowing.
        code = pc.add(pc.multiply(code, len(encoded.dictionary)), digits)
        code = pc.cast(pc.dictionary_encode(code).indices, pa.int64())
    return code


def distinct_rows(columns: pa.Table) -> pa.Table:
    """Each row once. Grouping by Arrow would import its query engine, and with it pandas."""
    code = row_codes(columns)
    return pc.take(columns, pc.index_in(pc.unique(code), value_set=code))


def typed_partitions(files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Table:
    """The partition values of files in the Arrow types of their columns, one row a file. See
    `file_partition_strings`."""
    strings = file_partition_strings(files, schema, partition_columns)
    fields = [field for name in partition_columns if (field := schema.find(name)) is not None]
    columns = [
        filled_up(partition_column_to_arrow(column, field.data_type), field)
        for column, field in zip(strings.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=list(partition_columns))


def filled_up(values: pa.Array | pa.ChunkedArray, field: StructField) -> pa.Array:
    """The values of a partition column as readers see them: those of a `char(n)` with spaces."""
    width = char_width(field)
    return values if width is None else pc.utf8_rpad(values, width=width, padding=" ")


def _comparable(texts: pa.Array, name: str, schema: StructType, equal_zeros: bool) -> pa.Array:
    field = schema.find(name)
    data_type = STRING if field is None else field.data_type
    values = partition_column_to_arrow(texts, data_type)
    if equal_zeros and data_type in (FLOAT, DOUBLE):
        values = pc.add(values, pa.scalar(0.0, values.type))
    texts = partition_column_from_arrow(values if field is None else filled_up(values, field), data_type)
    escaped = pc.replace_substring(texts, pattern=_ESCAPE, replacement=_ESCAPE * 2)
    return pc.coalesce(escaped, _ESCAPE + "null")
