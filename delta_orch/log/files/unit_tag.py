"""Which unit of an exactly-once step wrote the rows of a file: a tag of its `add` action."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.protocol.arrow_building import (
    STRING_MAP,
    int32_array,
    int64_array,
    longs_from_numpy,
    longs_to_numpy,
    one_chunk,
    string_array,
    string_map_array,
)

UNIT_TAG = "delta_orch.unit"


def units_of(files: pa.Table) -> pa.Array:
    """The unit that wrote the rows of each file; null for a file without the tag, or whose rows are of several units.

    Args:
        files: With the column `tags`.
    """
    if "tags" not in files.column_names or FileTable(files).tags.null_count == files.num_rows:
        return pa.nulls(files.num_rows, pa.string())
    return one_chunk(pc.map_lookup(FileTable(files).tags, string_array([UNIT_TAG])[0], "first"))


def with_units(files: pa.Table, units: pa.Array) -> pa.Table:
    """The files, columns of `ADD_SCHEMA`, tagged with these units. A file whose unit is null keeps its tags."""
    if units.null_count == len(units):
        return files
    index = files.schema.get_field_index("tags")
    if index < 0 or files.column(index).null_count == files.num_rows:
        # Almost always: maps of one entry each, without a Python object a file.
        has_unit = pc.is_valid(units)
        ends = pc.cumulative_sum(pc.cast(has_unit, pa.int32()))
        offsets = pa.concat_arrays([int32_array([0]), ends])
        items = pc.drop_null(units)
        keys = pc.take(string_array([UNIT_TAG]), int64_array([0] * len(items)))
        tags = pa.MapArray.from_arrays(offsets, keys, items)
        column = pc.if_else(has_unit, tags.cast(STRING_MAP), pa.nulls(1, STRING_MAP)[0])
    else:
        recorded_tags = (dict(tags or ()) for tags in files.column(index).to_pylist())
        both = zip(recorded_tags, units.to_pylist(), strict=True)
        column = string_map_array([({**tags, UNIT_TAG: unit} if unit else tags) or None for tags, unit in both])
    field = ADD_SCHEMA.field("tags")
    return files.append_column(field, column) if index < 0 else files.set_column(index, field, column)


def shared_units(sources: pa.Table, keys: tuple[pa.Array, pa.Array] | None, num_files: int) -> pa.Array:
    """The unit of files that hold the rows of source files: the unit that all their sources share, or null.

    Args:
        sources: The source files.
        keys: A file has rows of the sources with the same key. The first array has one key for each file, the second
            one for each source. With None each file may have rows of every source.
        num_files: How many files there are.
    """
    units = units_of(sources)
    if units.null_count == len(units):
        return pa.nulls(num_files, pa.string())
    if keys is None:
        is_one = not units.null_count and pc.count_distinct(units).as_py() == 1
        return pc.take(string_array([units[0].as_py() if is_one else None]), int64_array([0] * num_files))
    of_files, of_sources = (pc.dictionary_encode(one_chunk(key)) for key in keys)
    names = pc.dictionary_encode(units)
    places = pc.take(pc.index_in(of_sources.dictionary, value_set=of_files.dictionary), of_sources.indices)
    is_there = pc.is_valid(places)
    place, code = (
        longs_to_numpy(one_chunk(pc.cast(pc.filter(column, is_there), pa.int64())))
        for column in (places, pc.fill_null(names.indices, -1))
    )
    most = np.full(len(of_files.dictionary), -1, np.int64)
    least = np.full_like(most, len(names.dictionary))
    np.maximum.at(most, place, code)
    np.minimum.at(least, place, code)
    # A source without a unit is -1, and the least of its group.
    unit = pc.take(
        string_array([None, *names.dictionary.to_pylist()]), longs_from_numpy(np.where(least == most, most, -1) + 1)
    )
    return pc.take(unit, of_files.indices)
