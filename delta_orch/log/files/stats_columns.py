"""The JSON of `stats` as columns, `stats_parsed`, for checkpoints (PROTOCOL, "Per-file Statistics", "Checkpoints")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.files.file_columns import members_of
from delta_orch.log.files.stats_json import read_stats_json
from delta_orch.protocol.actions import JsonObject
from delta_orch.protocol.arrow_building import one_chunk, string_array, struct_array, type_to_arrow
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import (
    DataType,
    StructField,
    StructType,
    traits_of,
)
from delta_orch.table.clustering import indexed_columns
from delta_orch.table.column_mapping import ColumnMappingMode, physical_name


def stats_type(
    schema: StructType,
    partition_columns: Sequence[str],
    properties: TableProperties,
    mode: ColumnMappingMode = ColumnMappingMode.NONE,
    also: Collection[tuple[str, ...]] = (),
) -> pa.StructType:
    """The type of `stats_parsed`: bounds and null counts of the columns that statistics are collected for, by the names
    that statistics know them by.

    Args:
        also: Logical paths of columns that have statistics whatever the properties say.
    """
    name_of = physical_name if mode is not ColumnMappingMode.NONE else _logical_name
    in_files = StructType(tuple(f for f in schema if f.name not in partition_columns))
    indexed = {*indexed_columns(in_files, properties), *also}
    bounds = _nested(schema, (), indexed, name_of, lambda t: None if _is_unbounded(t) else _bound_type(t))
    counts = _nested(schema, (), indexed, name_of, lambda _: pa.int64())
    fields = [pa.field("numRecords", pa.int64()), pa.field("tightBounds", pa.bool_())]
    # Parquet has no structs without fields.
    fields += [pa.field(name, bounds) for name in ("minValues", "maxValues") if bounds.num_fields]
    fields += [pa.field("nullCount", counts)] if counts.num_fields else []
    return pa.struct(fields)


def parse_stats(texts: pa.ChunkedArray, stats_type: pa.StructType) -> pa.StructArray:
    """Statistics as structs of type `stats_type`; null if the statistics are missing or malformed."""
    column = one_chunk(texts)
    if column.null_count == len(column):
        return pa.nulls(len(column), stats_type)
    parsed = _read_json(column, stats_type)
    if parsed is None:
        # Somebody spelled a value in another way (`NaN` as text, say): find out who, one by one.
        column = string_array([_understandable(text, stats_type) for text in column.to_pylist()])
        parsed = _read_json(column, stats_type)
        assert parsed is not None
    return pc.if_else(pc.is_valid(column), parsed, pa.nulls(len(column), stats_type))


def _read_json(column: pa.StringArray, stats_type: pa.StructType) -> pa.StructArray | None:
    """None if a value has another type, or if a text is not one JSON object."""
    read_type = _json_type(stats_type)
    try:
        table = read_stats_json(column, pa.schema(list(read_type)))
        return pc.cast(struct_array(read_type, [one_chunk(table[field.name]) for field in read_type]), stats_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _understandable(text: str | None, stats_type: pa.StructType) -> str | None:
    """The statistics of one file without the bounds that cannot be read; None where nothing can."""
    if text is None:
        return None
    values = members_of(text)
    kept = {name: part for name, part in values.items() if _can_read({name: part}, stats_type)}
    for bounds in ("minValues", "maxValues"):
        if isinstance(values.get(bounds), dict) and bounds not in kept:
            kept[bounds] = {c: v for c, v in values[bounds].items() if _can_read({bounds: {c: v}}, stats_type)}
    return orjson.dumps(kept).decode() if kept else None


def _can_read(values: JsonObject, stats_type: pa.StructType) -> bool:
    return _read_json(string_array([orjson.dumps(values).decode()]), stats_type) is not None


def _json_type(data_type: pa.DataType) -> pa.DataType:
    """The type to ask Arrow's JSON reader for: it knows no dates."""
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(f.name, _json_type(f.type)) for f in data_type])
    return pa.string() if pa.types.is_date(data_type) else data_type


def _nested(
    schema: StructType,
    prefix: tuple[str, ...],
    indexed: set[tuple[str, ...]],
    name_of: Callable[[StructField], str],
    leaf_type: Callable[[DataType], pa.DataType | None],
) -> pa.StructType:
    fields = []
    for field in schema:
        path = (*prefix, field.name)
        if isinstance(field.data_type, StructType):
            child = _nested(field.data_type, path, indexed, name_of, leaf_type)
            indexed_type = child if child.num_fields else None
        else:
            indexed_type = leaf_type(field.data_type) if path in indexed else None
        if indexed_type is not None:
            fields.append(pa.field(name_of(field), indexed_type))
    return pa.struct(fields)


def _logical_name(field: StructField) -> str:
    return field.name


def _bound_type(data_type: DataType) -> pa.DataType:
    # Corners of a box as text: POINT(1.0 2.0).
    return pa.string() if traits_of(data_type).has_box else type_to_arrow(data_type)


def _is_unbounded(data_type: DataType) -> bool:
    traits = traits_of(data_type)
    return not (traits.has_bounds or traits.has_box)
