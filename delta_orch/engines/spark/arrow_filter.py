"""Filters that only Arrow can evaluate, in Spark: Python workers decide which rows to keep.

Parts of a pyarrow expression with a counterpart in Spark SQL are handled elsewhere (`expressions.from_arrow`). Workers
need pyarrow, but not this package, because the function is sent to them with its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.spark.frames import BatchFunction, is_connect, map_in_arrow
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


def arrow_filtered(rows: DataFrame, expression: pc.Expression, schema: StructType) -> DataFrame:
    """Return the rows for which the expression is true.

    Args:
        rows: Rows with all columns of `schema`, in its order.
        expression: An expression over these columns, in Arrow's types.

    Raises:
        UnsupportedExpressionError: pyarrow cannot send the expression to another process.
    """
    _ensure_can_travel(expression)
    columns = used_columns(expression, schema_to_arrow(schema))
    keeps = _row_keeper(expression, columns)
    filter_type = _arrow_udf_type()
    if filter_type is None:
        # Before Spark 4.1, all columns have to pass through Python.
        return map_in_arrow(rows, _batch_filter(keeps, columns.names), rows.schema)
    keep = _udf_class(rows.sparkSession)(keeps, returnType="boolean", evalType=filter_type, name="arrow_filter")
    return rows.where(keep(*[rows[quote_identifier(name)] for name in columns.names]))


def _ensure_can_travel(expression: pc.Expression) -> None:
    try:
        pickle.dumps(expression)
    except pa.ArrowNotImplementedError as e:
        raise UnsupportedExpressionError(
            f"The expression {expression} cannot be sent to Spark's workers",
            cause=f"pyarrow does not serialize it: {e}",
            remedy="Refer to columns by name, not by position, or read on the local engine",
            expression=str(expression),
        ) from e


def used_columns(expression: pc.Expression, schema: pa.Schema) -> pa.Schema:
    """Return the columns that an expression uses, at least one."""
    # pyarrow has no API for this. An expression uses a column if it does not bind without the column.
    used = [f for i, f in enumerate(schema) if not _binds(expression, schema.set(i, f.with_name("\0")))]
    return pa.schema(used or list(schema)[:1])


def _binds(expression: pc.Expression, schema: pa.Schema) -> bool:
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, KeyError):
        return False
    return True


def _row_keeper(expression: pc.Expression, columns: pa.Schema) -> Callable[..., pa.Array]:
    # A function inside a function goes to workers by value, and must import what it needs.
    def keeps(*arrays: pa.Array) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        # Spark labels timestamps with the session's time zone, and swaps the two parts of a variant.
        cast = [array.cast(field.type) for array, field in zip(arrays, columns, strict=True)]
        row = pa.array(np.arange(len(arrays[0])))
        rows = pa.Table.from_arrays([*cast, row], names=[*columns.names, "\0row"])
        kept = np.zeros(len(row), dtype=np.bool_)
        try:
            kept[rows.filter(expression).column("\0row").to_numpy()] = True
        except pa.ArrowException as e:
            # Read by `errors.spark_errors`.
            message = f"The filter {str(expression)[:200]} failed for a row. {e}".split("\n")[0]
            raise ValueError(f"[delta_orch error] InvalidExpressionError: {message}") from None
        return pa.array(kept)

    return keeps


def _batch_filter(keeps: Callable[..., pa.Array], names: list[str]) -> BatchFunction:
    def filtered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(keeps(*[batch.column(name) for name in names]))

    return filtered


def _arrow_udf_type() -> int | None:
    """Return Spark's number for scalar Arrow functions. None in releases without them."""
    from pyspark.util import PythonEvalType

    eval_type: int | None = getattr(PythonEvalType, "SQL_SCALAR_ARROW_UDF", None)
    return eval_type


def _udf_class(session: SparkSession) -> Callable[..., UserDefinedFunction]:
    # `pyspark.sql.functions.arrow_udf` chooses by an environment variable, not by the session.
    if is_connect(session):
        from pyspark.sql.connect.udf import UserDefinedFunction
    else:
        from pyspark.sql.udf import UserDefinedFunction
    made: Callable[..., UserDefinedFunction] = UserDefinedFunction
    return made
