"""Users' values as DataFrames: Arrow, pandas and Polars, through Arrow always."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from delta_orch.engines.spark.host import DataFrame
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.arrow_types import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.schema import data_type_to_json
from delta_orch.protocol.types import StructType

_ONE_TASK_BYTES = 32 << 20
"""Up to here the rows of a value make one file instead of one a core."""


def is_spark_frame(value: Any) -> bool:
    """Whether this is a pyspark DataFrame, classic or Connect."""
    return any(c.__module__.startswith("pyspark.sql") and c.__name__ == "DataFrame" for c in type(value).__mro__)


def is_arrow_like(value: Any) -> bool:
    """Whether Arrow can take the value over: Arrow's own, pandas, Polars, or anything with the C stream interface."""
    return (
        isinstance(value, (pa.Table, pa.RecordBatch, pa.RecordBatchReader))
        or hasattr(value, "__arrow_c_stream__")
        or _is_pandas(value)
        or _is_polars_lazy(value)
    )


def _is_pandas(value: Any) -> bool:
    return type(value).__module__.startswith("pandas.") and type(value).__name__ == "DataFrame"


def _is_polars_lazy(value: Any) -> bool:
    return type(value).__module__.startswith("polars.") and type(value).__name__ == "LazyFrame"


def to_arrow_table(value: Any) -> pa.Table:
    """The value as one Arrow table; a reader is read to its end.

    Raises InvalidRequestError for a value of another kind.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if _is_pandas(value):
        return pa.Table.from_pandas(value, preserve_index=False)
    if _is_polars_lazy(value):
        value = value.collect()
    if hasattr(value, "__arrow_c_stream__"):
        return pa.table(value)
    raise InvalidRequestError(
        f"The Spark engine does not take a {type(value).__name__}",
        remedy="Pass a Spark DataFrame, an Arrow table or reader, or a pandas or Polars DataFrame",
    )


def spark_schema(schema: StructType) -> Any:
    """pyspark's `StructType`: its JSON is Delta's."""
    from pyspark.sql.types import StructType as SparkStructType

    return SparkStructType.fromJson(json.loads(json.dumps(data_type_to_json(schema))))


def value_to_frame(session: Any, value: Any) -> DataFrame:
    """A user's value as a DataFrame.

    Raises:
        SchemaMismatchError: A column's type has no counterpart, or nanoseconds would be lost.
        InvalidRequestError: Not a value this engine takes.
    """
    table = to_arrow_table(value)
    schema = schema_from_arrow(table.schema)
    try:
        table = table.cast(schema_to_arrow(schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaMismatchError(
            "The data cannot be represented in Delta's types",
            cause=str(e),
            remedy="Cast the column before writing; timestamps have microseconds",
        ) from e
    return arrow_to_frame(session, table, schema)


def arrow_to_frame(session: Any, table: pa.Table, schema: StructType) -> DataFrame:
    """A table whose columns have the Arrow types of `schema` as a DataFrame of exactly that schema."""
    target = spark_schema(schema)
    if table.num_rows == 0:
        return session.createDataFrame([], target)
    rows = session.createDataFrame(table, target)
    return rows.coalesce(1) if table.nbytes <= _ONE_TASK_BYTES else rows
