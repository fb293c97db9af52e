"""Columns that the data of a write lacks: defaults, identity values and generated columns, batch by batch.

Constants are evaluated once, other values in DuckDB where they are proven to mean the same as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from delta_orch.engines.base import ComputedColumn, IdentityValues, WriteSpec
from delta_orch.engines.batch_bytes import repeated
from delta_orch.engines.conform import conform_column
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.fit_comparison import fit_comparison
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal, Opaque
from delta_orch.expressions.parse import syntax_of
from delta_orch.expressions.spark_literals import natural_type
from delta_orch.protocol.arrow_building import literal_array, type_to_arrow
from delta_orch.protocol.types import STRING, DataType, StructType

Filler = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
"""Takes a batch with all columns of the table and puts values into some of them: into parts of it where these are long,
and texts that are all the same in a dictionary."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


def column_fillers(spec: WriteSpec) -> tuple[Filler, ...]:
    """The steps that fill the columns the data lacks, in the order to take them.

    Raises:
        UnsupportedExpressionError: An expression is outside what is proven to mean the same as in Spark.
        InvalidExpressionError: Spark would also refuse it.
    """
    fillers: list[Filler] = [_default(column, spec.schema) for column in spec.defaults]
    fillers.extend(_identity(values) for values in spec.identities)
    if spec.generated:
        fillers.append(_generated(spec.generated, spec.schema))
    return tuple(fillers)


def _put(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    field = batch.schema.field(index)
    return batch.set_column(index, field, conform_column(values, field.type, lossless=True, path=name))


def _default(column: ComputedColumn, schema: StructType) -> Filler:
    field = schema.find(column.name)
    assert field is not None
    literal = _constant(column.value)
    if literal is None:
        value = _evaluated(column)
    elif literal.value is None:
        return lambda batch: [batch]
    else:
        value = _fitted(literal, field.data_type)
    value = conform_column(value, type_to_arrow(field.data_type), lossless=True, path=column.name)
    index_of = schema.names.index(field.name)

    def fill(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return [batch.set_column(index_of, field.name, repeated(value[0], batch.num_rows))]

    return fill


def _fitted(literal: Literal, data_type: DataType) -> pa.Array:
    """A constant as a column. Text for a column of another type is read as Spark reads it."""
    if isinstance(literal.value, str) and data_type != STRING:
        comparison = fit_comparison("=", Column(("value",)), data_type, literal)
        if isinstance(comparison, Comparison) and isinstance(comparison.right, Literal):
            literal = comparison.right
    return literal_array([literal.value], literal.data_type or natural_type(literal.value))


def _constant(value: Expression) -> Literal | None:
    if not isinstance(value, Opaque):
        return value if isinstance(value, Literal) else None
    return constant_of(syntax_of(value))


def _evaluated(column: ComputedColumn) -> pa.Array:
    from delta_orch.engines.local.duckdb_requests import evaluator

    [(_, [values])] = evaluator([column], StructType(()))(pa.RecordBatch.from_arrays([pa.nulls(1)], names=["row"]))
    return values


def _generated(columns: Sequence[ComputedColumn], schema: StructType) -> Filler:
    from delta_orch.engines.local.duckdb_requests import evaluator

    names = {column.name for column in columns}
    others = StructType(tuple(f for f in schema if f.name not in names))
    evaluate = evaluator(columns, others)

    def fill(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for rows, computed in evaluate(batch):
            for column, values in zip(columns, computed, strict=True):
                rows = _put(rows, column.name, values)
            yield rows

    return fill


def _identity(identity: IdentityValues) -> Filler:
    upcoming = identity.first

    def fill(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        nonlocal upcoming
        if not batch.num_rows:
            return [batch]
        last = upcoming + identity.step * (batch.num_rows - 1)
        if not _LONG_MIN <= last <= _LONG_MAX:
            raise ConstraintViolationError(
                f"The identity column {identity.name} has not enough values left",
                cause=f"A row would need {last}, which does not fit into 64 bits",
                remedy="Give the values yourself where the column allows it; the table is unchanged",
                constraint=f"range of identity column {identity.name}",
            )
        values = upcoming + identity.step * np.arange(batch.num_rows, dtype=np.int64)
        upcoming = last + identity.step
        return [_put(batch, identity.name, pa.array(values))]

    return fill
