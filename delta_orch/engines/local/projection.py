"""Columns computed batch by batch: what is only passed on stays in Arrow, whatever its type, and so do constants and
plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.conform import conform_column, nulls_of
from delta_orch.engines.local.arithmetic import Arithmetic
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import column_indexes, ensure_distinct, fields_on, value_at
from delta_orch.expressions.nodes import Column, Literal
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import natural_type
from delta_orch.protocol.arrow_building import literal_scalar
from delta_orch.protocol.arrow_types import type_to_arrow
from delta_orch.protocol.types import VOID, DataType, StructField, StructType


def projected_batches(relation: LocalRelation, columns: Sequence[ComputedColumn]) -> LocalRelation:
    """Exactly these columns, rows in their order; see `Engine.project`.

    Raises:
        UnsupportedExpressionError: A value is not proven to mean the same in DuckDB as in Spark.
    """
    ensure_distinct([column.name for column in columns])
    computed = [column for column in columns if _is_computed(column, relation.schema)]
    in_arrow = {c.name: found for c in computed if (found := Arithmetic.of(c.value, relation.schema)) is not None}
    in_duckdb = [column for column in computed if column.name not in in_arrow]
    types = dict(zip((c.name for c in in_duckdb), _types(in_duckdb, relation.schema), strict=True))
    types |= {name: found.data_type for name, found in in_arrow.items()}
    fields = tuple(_field(column, relation.schema, types) for column in columns)

    def batches() -> Iterator[pa.RecordBatch]:
        evaluate = None
        if in_duckdb:
            from delta_orch.engines.local.duckdb_requests import evaluator

            evaluate = evaluator(in_duckdb, _known(relation.schema))
        for batch in relation.to_reader():
            values = {name: found.values(batch, name) for name, found in in_arrow.items()}
            if evaluate is not None:
                values |= zip((column.name for column in in_duckdb), evaluate(batch), strict=True)
            arrays = [
                conform_column(values[column.name], type_to_arrow(field.data_type), lossless=True, path=column.name)
                if column.name in values
                else _taken(column, field, batch, relation.schema)
                for column, field in zip(columns, fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])

    return LocalRelation(StructType(fields), batches)


def _known(schema: StructType) -> StructType:
    """What DuckDB may look at: a column without a type is no column there."""
    return StructType(tuple(field for field in schema if field.data_type != VOID))


def _is_computed(column: ComputedColumn, schema: StructType) -> bool:
    if isinstance(column.value, Literal):
        return False
    return not (isinstance(column.value, Column) and find_column(column.value.path, schema)[1] is not None)


def _types(columns: Sequence[ComputedColumn], schema: StructType) -> list[DataType]:
    if not columns:
        return []
    from delta_orch.engines.local.duckdb_requests import value_types

    return value_types(columns, _known(schema))


def _field(column: ComputedColumn, schema: StructType, types: dict[str, DataType]) -> StructField:
    match column.value:
        case Literal(value, data_type):
            return StructField(column.name, data_type or (VOID if value is None else natural_type(value)))
        case Column(path) if column.name not in types:
            *_, innermost = fields_on(find_column(path, schema)[0], schema)
            return StructField(column.name, innermost.data_type, metadata=innermost.metadata)
    return StructField(column.name, types[column.name])


def _taken(column: ComputedColumn, field: StructField, batch: pa.RecordBatch, schema: StructType) -> pa.Array:
    match column.value:
        case Literal(value):
            if value is None:
                return nulls_of(batch.num_rows, type_to_arrow(field.data_type))
            return pa.repeat(literal_scalar(value, field.data_type), batch.num_rows)
        case Column(path):
            return value_at(batch, column_indexes(find_column(path, schema)[0], schema))
    raise AssertionError("computed elsewhere")
