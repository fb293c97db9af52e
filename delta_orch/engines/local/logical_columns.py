"""Columns of a data file as readers of the table see them: under their logical names at every level, and texts declared
`char(n)` filled up with spaces.

Files know a column by its physical name, and in mode `id` by its field id (PROTOCOL, "Reader Requirements for Column
Mapping"). Renaming copies no values.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import Candidates, find_in_file
from delta_orch.protocol.arrow_building import children_of, with_children
from delta_orch.protocol.schema import Places, below
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType, types_of
from delta_orch.table.column_mapping import ColumnMappingMode


def with_logical_names(rows: pa.Table, schema: StructType, mode: ColumnMappingMode) -> pa.Table:
    """The columns of `rows` that belong to the schema, named and nested as the schema has them; others are left out."""
    fields, columns = Candidates(rows.schema), {}
    for field in schema:
        index = find_in_file(field, fields, mode)
        if index is not None:
            columns[field.name] = _renamed_column(rows.column(index), field.data_type, mode)
    return pa.table(columns) if columns else rows.select([])


def _renamed_column(column: pa.ChunkedArray, data_type: DataType, mode: ColumnMappingMode) -> pa.ChunkedArray:
    if not _holds_struct(data_type):
        return column
    chunks = [_renamed(chunk, data_type, mode) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def _renamed(array: pa.Array, data_type: DataType, mode: ColumnMappingMode) -> pa.Array:
    match data_type:
        case StructType() if pa.types.is_struct(array.type):
            return _renamed_struct(array, data_type, mode)
        case ArrayType(element_type) if pa.types.is_list(array.type) and _holds_struct(element_type):
            elements = _renamed(array.values, element_type, mode)
            return with_children(array, [elements], pa.list_(elements.type))
        case MapType(key_type, value_type) if pa.types.is_map(array.type) and _holds_struct(data_type):
            keys, items = _renamed(array.keys, key_type, mode), _renamed(array.items, value_type, mode)
            return with_children(array, [keys, items], pa.map_(keys.type, items.type))
        case _:
            # A type that does not fit is for the conversion that follows to refuse.
            return array


def _renamed_struct(array: pa.StructArray, struct: StructType, mode: ColumnMappingMode) -> pa.Array:
    candidates, children, names = Candidates(array.type), [], []
    parts = array.flatten()
    for field in struct:
        index = find_in_file(field, candidates, mode)
        if index is not None:
            children.append(_renamed(parts[index], field.data_type, mode))
            names.append(field.name)
    mask = pc.is_null(array) if array.null_count else None
    if not children:
        # A struct without fields in the file: null or a struct of nulls, as the parent requires.
        children, names = [pa.nulls(len(array))], [struct.fields[0].name if struct.fields else ""]
    return pa.StructArray.from_arrays(children, names, mask=mask)


def _holds_struct(data_type: DataType) -> bool:
    return any(isinstance(inner, StructType) for inner in types_of(data_type))


def filled_up(rows: pa.Table, columns: Mapping[str, Places]) -> pa.Table:
    """Rows in the types of a table. A text that is longer than declared is not cut."""
    for index, field in enumerate(rows.schema):
        if (places := columns.get(field.name)) is not None:
            chunks = [_filled(chunk, places) for chunk in rows.column(index).chunks]
            rows = rows.set_column(index, field, pa.chunked_array(chunks, field.type))
    return rows


def _filled(array: pa.Array, places: Places) -> pa.Array:
    if not places:
        return array
    if () in places:
        return pc.utf8_rpad(array, width=places[()], padding=" ")
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
    else:
        names = ["key", "value"] if pa.types.is_map(array.type) else ["element"]
    parts = [_filled(child, below(places, name)) for child, name in zip(children_of(array), names, strict=True)]
    return with_children(array, parts, array.type)
