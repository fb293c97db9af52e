"""The schema of the data files of a write: columns, names and field ids.

Everything above an engine's writer speaks the table's logical names. Files know columns by their physical names and
carry the ids of column mapping, and where the schema has them those of array elements, map keys and map values
(PROTOCOL, "Writer Requirements for Column Mapping", "Writer Requirements for IcebergCompatV2").
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.arrow_building import type_to_arrow
from delta_orch.protocol.types import (
    STRING,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    fields_of,
    may_be_null,
)
from delta_orch.table.column_mapping import ColumnMappingMode, field_id, nested_field_ids, to_physical

CHANGE_TYPE = "_change_type"
_ARROW_ID = b"PARQUET:field_id"


class FileColumns(NamedTuple):
    """The columns of the files of a write in their order, all nullable, without void fields.

    Attributes:
        table: The table's own, under logical names.
        foreign: Others, that are mapped to nothing: they stand last, as they are called, with the ids they came with.
    """

    table: StructType
    foreign: StructType

    @property
    def logical(self) -> StructType:
        return StructType((*self.table, *self.foreign))

    def physical(self, mode: ColumnMappingMode) -> StructType:
        """As files name them. Raises ProtocolViolationError where a mapped column lacks its physical name or id."""
        return StructType((*to_physical(self.table, mode), *self.foreign))


def columns_in_files(spec: WriteSpec) -> FileColumns:
    """Which columns the files of a write have.

    Partition columns are in the log alone unless they are to be kept; void columns are in no file (Delta's texts leave
    them to the writer), nor are void fields of structs.

    Raises:
        SchemaMismatchError: Nothing is left to write, or a void stands where it cannot be left out.
    """
    return _columns_in_files(
        spec.schema, spec.partition_columns, spec.keep_partition_columns, spec.extra_columns, spec.change_type
    )


@lru_cache(maxsize=64)
def _columns_in_files(
    schema: StructType,
    partition_columns: tuple[str, ...],
    keeps_partition_columns: bool,
    extra_columns: tuple[StructField, ...],
    change_type: str | None,
) -> FileColumns:
    partitions = {name.lower() for name in partition_columns}
    data = [f for f in schema if f.name.lower() not in partitions]
    if not any(f.data_type != VOID for f in data) and not keeps_partition_columns:
        raise SchemaMismatchError(
            "The table has no column that a data file could hold",
            cause="It needs at least one column that is neither void nor a partition column",
        )
    if change_type is not None and schema.find(CHANGE_TYPE) is not None:
        raise SchemaMismatchError(
            f"The table has a column {CHANGE_TYPE}, and change data files have one of their own",
            remedy="Rename the column, or set delta.enableChangeDataFeed to false",
            column=CHANGE_TYPE,
        )
    kept = [f for f in schema if f.name.lower() in partitions] if keeps_partition_columns else []
    change = (StructField(CHANGE_TYPE, STRING),) if change_type is not None else ()
    table = (
        replace(f, data_type=_without_void(f.data_type, f.name), nullable=True)
        for f in (*data, *kept)
        if f.data_type != VOID
    )
    return FileColumns(StructType(tuple(table)), as_nullable(StructType((*extra_columns, *change))))


def _without_void(data_type: DataType, path: str) -> DataType:
    match data_type:
        case StructType(fields):
            kept = tuple(
                replace(f, data_type=_without_void(f.data_type, f"{path}.{f.name}"), nullable=True)
                for f in fields
                if f.data_type != VOID
            )
            if not kept:
                raise _no_place(path, "It has no field that a file could hold")
            return StructType(kept)
        case ArrayType(element_type):
            return ArrayType(_inside(element_type, f"{path}.element"), True)
        case MapType(key_type, value_type):
            return MapType(_inside(key_type, f"{path}.key"), _inside(value_type, f"{path}.value"), True)
    return data_type


def _inside(data_type: DataType, path: str) -> DataType:
    if data_type == VOID:
        raise _no_place(path, "No file holds a void inside an array or map")
    return _without_void(data_type, path)


def _no_place(path: str, cause: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"The column {path} cannot be written",
        cause=cause,
        remedy="Give the column a type other than void",
        column=path,
    )


def random_prefix(length: int) -> str:
    """Letters and digits that name a directory no reader takes for hidden."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=length))


@lru_cache(maxsize=64)
def as_nullable(schema: StructType) -> StructType:
    """The schema of the written rows. NOT NULL is verified row by row and stands in the log; in Parquet, a required
    field inside an optional struct would only keep writers from writing null structs."""
    nullable = may_be_null(schema)
    assert isinstance(nullable, StructType)
    return nullable


@lru_cache(maxsize=64)
def arrow_file_schema(columns: FileColumns, mode: ColumnMappingMode) -> pa.Schema:
    """The Arrow schema that makes a Parquet writer write the columns as files have them.

    Raises ProtocolViolationError where a mapped column lacks its physical name, or in mode `id` its id.
    """
    if mode is ColumnMappingMode.NONE:
        return pa.schema([pa.field(f.name, type_to_arrow(f.data_type)) for f in columns.logical])
    return pa.schema(list(map(_mapped_arrow_field, columns.logical, columns.physical(mode))))


def _mapped_arrow_field(field: StructField, physical: StructField) -> pa.Field:
    arrow_type = _mapped_arrow_type(field.data_type, physical.data_type, nested_field_ids(field), ())
    return pa.field(physical.name, arrow_type, metadata=_id_metadata(field_id(field)))


def _mapped_arrow_type(
    data_type: DataType, physical: DataType, nested: Mapping[str, int], path: tuple[str, ...]
) -> pa.DataType:
    match data_type, physical:
        case StructType(), StructType():
            return pa.struct([_mapped_arrow_field(f, p) for f, p in zip(data_type, physical, strict=True)])
        case ArrayType(), ArrayType():
            return pa.list_(_item_field("element", data_type.element_type, physical.element_type, nested, path))
        case MapType(), MapType():
            return pa.map_(
                _item_field("key", data_type.key_type, physical.key_type, nested, path).with_nullable(False),
                _item_field("value", data_type.value_type, physical.value_type, nested, path),
            )
    return type_to_arrow(data_type)


def _item_field(
    name: str, data_type: DataType, physical: DataType, nested: Mapping[str, int], path: tuple[str, ...]
) -> pa.Field:
    below = (*path, name)
    arrow_type = _mapped_arrow_type(data_type, physical, nested, below)
    return pa.field(name, arrow_type, metadata=_id_metadata(nested.get(".".join(below))))


def _id_metadata(number: int | None) -> dict[bytes, bytes] | None:
    return None if number is None else {_ARROW_ID: str(number).encode()}


def has_nested_ids(columns: FileColumns, mode: ColumnMappingMode) -> bool:
    """Whether files need field ids on array elements, map keys or map values."""
    return mode is not ColumnMappingMode.NONE and any(map(nested_field_ids, fields_of(columns.table)))
