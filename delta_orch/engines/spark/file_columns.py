"""The names and field ids under which Spark writes columns into files (PROTOCOL, "Writer Requirements for Column
Mapping"). Spark takes both from a column's own name and metadata, at every level but elements, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta_orch.engines.file_schema import FileColumns
from delta_orch.engines.spark.host import DataFrame
from delta_orch.engines.spark.values import spark_schema
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructField, StructType
from delta_orch.table.column_mapping import ColumnMappingMode, field_id

_SPARK_ID = "parquet.field.id"


def with_file_names(rows: DataFrame, columns: FileColumns, mode: ColumnMappingMode, others: Sequence[str]) -> DataFrame:
    """The columns of files under their physical names and with ids, and `others` as they are."""
    if mode is ColumnMappingMode.NONE:
        return rows
    physical = columns.physical(mode)
    with_ids = StructType((*(_with_id(p, f) for p, f in zip(physical, columns.table, strict=False)), *columns.foreign))
    selected = []
    for logical, field in zip(columns.logical, spark_schema(with_ids), strict=True):
        column = rows[quote_identifier(logical.name)]
        if isinstance(logical.data_type, StructType | ArrayType | MapType):
            # Between types that differ in names alone a cast keeps every value.
            column = column.cast(field.dataType)
        selected.append(column.alias(field.name, metadata=field.metadata))
    return rows.select(*selected, *(rows[quote_identifier(name)] for name in others))


def _with_id(physical: StructField, logical: StructField) -> StructField:
    number = field_id(logical)
    return replace(
        physical,
        data_type=_with_ids(physical.data_type, logical.data_type),
        metadata={} if number is None else {_SPARK_ID: number},
    )


def _with_ids(physical: DataType, logical: DataType) -> DataType:
    match physical, logical:
        case StructType(), StructType():
            return StructType(tuple(_with_id(p, f) for p, f in zip(physical, logical, strict=True)))
        case ArrayType(), ArrayType():
            return ArrayType(_with_ids(physical.element_type, logical.element_type), physical.contains_null)
        case MapType(), MapType():
            return MapType(
                _with_ids(physical.key_type, logical.key_type),
                _with_ids(physical.value_type, logical.value_type),
                physical.value_contains_null,
            )
    return physical
