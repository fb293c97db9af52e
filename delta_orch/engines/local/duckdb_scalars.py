"""Scalar expressions over batches, in DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.local.duckdb_query import connect
from delta_orch.engines.local.sql_query import qualified, translate_scalar
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.protocol.types import StructType

_INPUT = "input_0"


def scalar_evaluator(
    columns: Sequence[ComputedColumn], schema: StructType
) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """A function that evaluates expressions over the columns of `schema`, for each row of a batch in its order.

    Raises:
        UnsupportedExpressionError: An expression is not proven to mean the same in DuckDB as in Spark.
        InvalidExpressionError, ColumnNotFoundError: Spark would refuse it, too. While it runs, InvalidExpressionError
            for what Spark refuses then: overflow, division by zero.
    """
    import duckdb

    known = {f.name: qualified(_INPUT, f.name) for f in schema}
    translated = [translate_scalar(column.sql, known, schema) for column in columns]
    values = ", ".join(f"{typed.sql} AS c{i}" for i, typed in enumerate(translated))
    query = f"SELECT {values} FROM {quote_duckdb_identifier(_INPUT)}"
    connection = connect()

    def evaluate(batch: pa.RecordBatch) -> list[pa.Array]:
        used = batch.select([name for name in batch.schema.names if name in known] or batch.schema.names[:1])
        try:
            connection.register(_INPUT, pa.Table.from_batches([used]))
            result = connection.sql(query).to_arrow_table()
        except duckdb.Error as e:
            names = ", ".join(column.name for column in columns)
            raise InvalidExpressionError(
                f"The expression of column {names} failed for a row", cause=str(e).split("\n")[0], columns=names
            ) from e
        return [column.combine_chunks() for column in result.columns]

    return evaluate
