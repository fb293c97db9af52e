"""Facts from footers: the number of rows, and content that only readers of a table feature understand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_lookup import Candidates, find_in_file
from delta_orch.engines.read_errors import reading
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts, with_record_count
from delta_orch.protocol.arrow_building import bool_array, one_chunk, string_array, type_to_arrow
from delta_orch.protocol.schema import TYPE_CHANGES
from delta_orch.protocol.types import VARIANT, ArrayType, DataType, MapType, StructField, StructType, holds_variant
from delta_orch.storage.base import LogStore
from delta_orch.storage.parquet_footer import read_footer
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.configuration import TableConfiguration

T = TypeVar("T")
_TYPED_VALUE = "typed_value"


def have_older_types(store: LogStore, paths: Sequence[str], schema: StructType, mode: ColumnMappingMode) -> pa.Array:
    """Return for each file whether it holds a column in another type than the table (PROTOCOL, "Type Widening"). Only
    columns whose type was widened are checked.

    Args:
        paths: The paths, as in the log.
        mode: The mode of column mapping.

    Raises:
        MissingFileError, StorageError, TableError: A footer cannot be read.
    """
    return _have(store, paths, lambda file: _has_older_types(schema, file, mode))


def have_shredded_variants(
    store: LogStore, paths: Sequence[str], schema: StructType, mode: ColumnMappingMode
) -> pa.Array:
    """Return for each file whether it holds a shredded variant. Arguments and errors are those of
    `have_older_types`."""
    return _have(store, paths, lambda file: _has_shredded(schema, file, mode))


def have_unknown_columns(
    store: LogStore, paths: Sequence[str], schema: StructType, mode: ColumnMappingMode, known: Collection[str]
) -> pa.Array:
    """Return for each file whether it holds a column, or a field of a struct, that the table no longer has.

    Args:
        known: Names of columns that files have in addition to the schema.

    Other arguments and errors as `have_older_types`.
    """

    def has_unknown(file: Candidates) -> bool:
        return _has_unknown(schema, Candidates(field for field in file if field.name not in known), mode)

    return _have(store, paths, has_unknown)


def read_num_rows(store: LogStore, paths: Sequence[str]) -> list[int]:
    """Return the number of rows of each file, including deleted rows. Arguments and errors are those of
    `have_older_types`."""
    return _each(store, paths, lambda metadata: metadata.num_rows)


def with_record_counts(store: LogStore, files: pa.Table, table: TableConfiguration) -> pa.Table:
    """Return files that a commit may add to a table. If the commit needs the number of records, and the statistics lack
    it (a checkpoint may omit them), it is read from the footer.

    Args:
        store: The store of the table of `files`, which are rows of `file_columns.ADD_SCHEMA`.
        table: The table to which the files are added.

    Raises as `have_older_types`.
    """
    needs = table.assigns_row_ids or table.properties.is_iceberg_compatible
    is_asked = pc.is_null(record_counts(files))
    if not needs:
        is_asked = pc.and_(is_asked, pc.is_valid(one_chunk(FileTable(files).deletion_vector)))
    places = pc.indices_nonzero(is_asked)
    if not len(places):
        return files
    without_counts = pc.take(files, places)
    counts = read_num_rows(store, FileTable(without_counts).path.to_pylist())
    completed = string_array(list(map(with_record_count, FileTable(without_counts).stats.to_pylist(), counts)))
    stats = pc.replace_with_mask(one_chunk(FileTable(files).stats), is_asked, completed)
    return files.set_column(files.schema.get_field_index("stats"), ADD_SCHEMA.field("stats"), stats)


def _have(store: LogStore, paths: Sequence[str], has_trait: Callable[[Candidates], bool]) -> pa.Array:
    return bool_array(_each(store, paths, lambda metadata: has_trait(Candidates(metadata.schema.to_arrow_schema()))))


def _each(store: LogStore, paths: Sequence[str], look: Callable[[pq.FileMetaData], T]) -> list[T]:
    filesystem, _ = store.data_filesystem()

    def read(path: str) -> T:
        store.ensure_regular([path])
        with reading(path), filesystem.open_input_file(path) as source:
            return look(read_footer(source).metadata)

    return list(map_ahead(read, map(store.resolve, paths), FAR_THREADS))


def _has_older_types(struct: StructType, candidates: Candidates, mode: ColumnMappingMode) -> bool:
    for field in struct:
        index = _find(field, candidates, mode)
        if index is None:
            continue
        if field.metadata.get(TYPE_CHANGES) and not _has_type(field.data_type, index.type):
            return True
        if any(_has_older_types(inner, fields, mode) for inner, fields in _structs(field.data_type, index.type)):
            return True
    return False


def _has_unknown(struct: StructType, candidates: Candidates, mode: ColumnMappingMode) -> bool:
    known_indexes = {find_in_file(field, candidates, mode) for field in struct} - {None}
    if len(known_indexes) < len(candidates):
        return True
    pairs = ((field.data_type, _find(field, candidates, mode)) for field in struct)
    return any(
        _has_unknown(inner, fields, mode)
        for data_type, column in pairs
        if column is not None
        for inner, fields in _structs(data_type, column.type)
    )


def _has_shredded(struct: StructType, candidates: Candidates, mode: ColumnMappingMode) -> bool:
    for field in struct:
        index = _find(field, candidates, mode) if holds_variant(field.data_type) else None
        if index is not None and _is_shredded(field.data_type, index.type, mode):
            return True
    return False


def _is_shredded(data_type: DataType, arrow_type: pa.DataType, mode: ColumnMappingMode) -> bool:
    if data_type == VARIANT:
        return bool(pa.types.is_struct(arrow_type) and arrow_type.get_field_index(_TYPED_VALUE) >= 0)
    match data_type:
        case StructType() if pa.types.is_struct(arrow_type):
            return _has_shredded(data_type, Candidates(arrow_type), mode)
        case ArrayType(element_type) if _is_list(arrow_type):
            return _is_shredded(element_type, arrow_type.value_type, mode)
        case MapType(_, value_type) if pa.types.is_map(arrow_type):
            return _is_shredded(value_type, arrow_type.item_type, mode)
    return False


def _has_type(data_type: DataType, arrow_type: pa.DataType) -> bool:
    """Whether a column of a file has the table's type. Structs in it have histories of their own."""
    match data_type:
        case StructType():
            return True
        case ArrayType(element_type) if _is_list(arrow_type):
            return _has_type(element_type, arrow_type.value_type)
        case MapType(key_type, value_type) if pa.types.is_map(arrow_type):
            return _has_type(key_type, arrow_type.key_type) and _has_type(value_type, arrow_type.item_type)
    expected = type_to_arrow(data_type)
    if pa.types.is_timestamp(expected):
        return bool(pa.types.is_timestamp(arrow_type))
    return bool(arrow_type.equals(expected))


def _structs(data_type: DataType, arrow_type: pa.DataType) -> list[tuple[StructType, Candidates]]:
    """Return the topmost structs below a column, in the table and in the file."""
    match data_type:
        case StructType() if pa.types.is_struct(arrow_type):
            return [(data_type, Candidates(arrow_type))]
        case ArrayType(element_type) if _is_list(arrow_type):
            return _structs(element_type, arrow_type.value_type)
        case MapType(key_type, value_type) if pa.types.is_map(arrow_type):
            return _structs(key_type, arrow_type.key_type) + _structs(value_type, arrow_type.item_type)
    return []


def _is_list(arrow_type: pa.DataType) -> bool:
    """This includes lists with large offsets or of fixed size, which other writers use."""
    return hasattr(arrow_type, "value_field")


def _find(field: StructField, candidates: Candidates, mode: ColumnMappingMode) -> pa.Field | None:
    index = find_in_file(field, candidates, mode)
    return None if index is None else candidates[index]
