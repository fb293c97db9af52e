"""Variants that come as structs of `metadata` and `value`, as Arrow has them, in Spark's own type.

No function of Spark makes a variant of the two; rows that come back from Python are variants where Spark is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.spark.errors import MISMATCH_MARK
from delta_orch.engines.spark.frames import spark_schema
from delta_orch.engines.spark.in_tasks import BatchFunction
from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import (
    VARIANT,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    is_variant_storage,
)
from delta_orch.protocol.variant.validate import ensure_variants

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_variants(rows: DataFrame, target: StructType) -> DataFrame:
    """The rows with variants where the table has some. Only rows with such structs pass through Python for it.

    Raises:
        SchemaMismatchError: A value is no variant (when rows are pulled).
        MissingDependencyError: `delta_orch` is not installed on the workers (likewise).
    """
    source = parse_schema(rows.schema.json())
    typed = _with_variants(source, target)
    if typed == source:
        return rows
    from pyspark.sql.pandas.types import to_arrow_type

    schema = spark_schema(typed)
    changed = {
        index: _nullable(to_arrow_type(to.dataType))
        for index, (to, before, after) in enumerate(zip(schema, source, typed, strict=True))
        if before != after
    }
    return rows.mapInArrow(_converter(changed, typed), schema)


def _nullable(arrow_type: pa.DataType) -> pa.DataType:
    """With fields that may be null. Arrow does not cast to others what is null under a null, which is no harm."""
    if pa.types.is_struct(arrow_type):
        return pa.struct([f.with_type(_nullable(f.type)).with_nullable(True) for f in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_nullable(arrow_type.value_type)))
    if pa.types.is_map(arrow_type):
        return pa.map_(arrow_type.key_field, arrow_type.item_field.with_type(_nullable(arrow_type.item_type)))
    return arrow_type


def _with_variants(source: StructType, target: StructType) -> StructType:
    fields = (
        f if (column := target.find(f.name)) is None else replace(f, data_type=_typed(f.data_type, column.data_type))
        for f in source
    )
    return StructType(tuple(fields))


def _typed(source: DataType, target: DataType) -> DataType:
    match source, target:
        case ArrayType(), ArrayType():
            return replace(source, element_type=_typed(source.element_type, target.element_type))
        case MapType(), MapType():
            return replace(
                source,
                key_type=_typed(source.key_type, target.key_type),
                value_type=_typed(source.value_type, target.value_type),
            )
        case StructType(), StructType():
            return _with_variants(source, target)
        case _:
            return VARIANT if target == VARIANT and is_variant_storage(source) else source


def _converter(types: Mapping[int, pa.DataType], schema: StructType) -> BatchFunction:
    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                _converted(column, schema.fields[index], types[index]) if index in types else column
                for index, column in enumerate(batch.columns)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    return convert


def _converted(column: pa.Array, field: StructField, arrow_type: pa.DataType) -> pa.Array:
    try:
        ensure_variants(column, field.data_type)
    except InvalidVariantError as e:
        # A worker's exception reaches the driver as text.
        cause = f"The column {field.name} holds a value that is no variant: {e.cause or e.problem}"
        raise ValueError(f"[{MISMATCH_MARK}]{cause}[end of {MISMATCH_MARK}]") from e
    return column.cast(arrow_type)
