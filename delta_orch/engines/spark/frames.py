"""DataFrames through public calls only, for classic sessions and Spark Connect alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.row_checks import type_checks
from delta_orch.errors import InvalidRequestError, ProtocolViolationError, SchemaMismatchError, UnsupportedError
from delta_orch.protocol.schema import (
    data_type_from_json,
    data_type_to_json,
    parse_schema,
)
from delta_orch.protocol.schema_edit import with_fields
from delta_orch.protocol.types import (
    DAY_TIME,
    LONG,
    STATED_DEFINITIONS,
    STRING,
    YEAR_MONTH,
    DataType,
    StructField,
    StructType,
    definitions_in,
    stored_schema,
    traits_of,
    types_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField as SparkField
    from pyspark.sql.types import StructType as SparkStructType

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Columns that only exist inside a plan.
FILE_COLUMN = "delta_orch_row_file"
POSITION_COLUMN = "delta_orch_row_position"
POSITION_FIELDS = (StructField(FILE_COLUMN, STRING), StructField(POSITION_COLUMN, LONG))

_ONE_TASK_BYTES = 32 << 20
"""Up to this size, the rows of a value become one file instead of one file for each core."""


def is_connect(session: SparkSession) -> bool:
    """Whether this is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def sql_functions(session: SparkSession) -> ModuleType:
    """Return the functions that make columns for this session. A process may have sessions of both kinds."""
    kind = "pyspark.sql.connect" if is_connect(session) else "pyspark.sql"
    return import_module(f"{kind}.functions")


def schema_of_rows(schema: SparkStructType) -> StructType:
    """Return the schema of a user's rows.

    Raises SchemaMismatchError for a Spark type that rows do not have, e.g. an interval, or two columns of one name.
    """
    try:
        for field in schema.fields:
            _ensure_is_of_tables(field)
        return StructType(tuple(map(_with_stated_definitions, parse_schema(schema.json()))))
    except ProtocolViolationError as e:
        # In the schema of a table, this would be a protocol violation.
        raise SchemaMismatchError(
            f"The data has two columns {e.context['column']}",
            remedy="Rename one of these columns",
            column=e.context["column"],
        ) from None


def _with_stated_definitions(field: StructField) -> StructField:
    stated = definitions_in(field.metadata)
    metadata = {**field.metadata, STATED_DEFINITIONS: stated} if stated else field.metadata
    return replace(field, data_type=with_fields(field.data_type, _with_stated_definitions), metadata=metadata)


_VALUES: Mapping[DataType, str] = {
    YEAR_MONTH: "the number, CAST(CAST(… AS INTERVAL MONTH) AS INT)",
    DAY_TIME: "the number, CAST(1000000 * CAST(CAST(… AS INTERVAL SECOND) AS DECIMAL(18,6)) AS BIGINT)",
}


def _ensure_is_of_tables(field: SparkField) -> None:
    problem = f"The data has the column {field.name} of type {field.dataType.simpleString()}, which "
    try:
        delta_type = data_type_from_json(field.dataType.jsonValue())
    except UnsupportedError as e:
        raise SchemaMismatchError(
            f"{problem}no table has",
            remedy="Cast it to a type that tables have, e.g. with CAST(… AS STRING)",
            column=field.name,
        ) from e
    for inner in types_of(delta_type):
        if traits_of(inner).stored is not None:
            values = _VALUES.get(inner, "the bytes, ST_AsBinary(…)")
            raise SchemaMismatchError(
                f"{problem}Arrow cannot hold",
                cause="A table's intervals are numbers in rows, and its shapes are WKB",
                remedy=f"Give {values}",
                column=field.name,
            )


def is_spark_frame(value: object) -> bool:
    """Whether this is a pyspark DataFrame, classic or Connect."""
    return any(c.__module__.startswith("pyspark.sql") and c.__name__ == "DataFrame" for c in type(value).__mro__)


def session_of(value: object) -> SparkSession:
    """Return the session of a DataFrame, or the session itself.

    Raises InvalidRequestError for anything else.
    """
    if any(kind.__module__.startswith("pyspark.sql") for kind in type(value).__mro__):
        if hasattr(value, "sparkSession"):
            return value.sparkSession
        if hasattr(value, "createDataFrame"):
            return value
    raise InvalidRequestError(
        f"A {type(value).__name__} is neither a Spark DataFrame nor a Spark session",
        remedy="Pass a pyspark DataFrame or SparkSession",
    )


def spark_schema(schema: StructType) -> SparkStructType:
    """Return pyspark's `StructType` of such rows. It has the same JSON as Delta's schema."""
    from pyspark.sql.types import StructType as SparkStructType

    return SparkStructType.fromJson(json.loads(json.dumps(data_type_to_json(stored_schema(schema)))))


def value_to_frame(session: SparkSession, value: object) -> DataFrame:
    """Return a source of the local engine (Arrow, pandas, Polars, …) as a DataFrame. All its rows are read now.

    Raises:
        SchemaMismatchError: A column's type has no counterpart in Delta, or nanoseconds would be lost.
        InvalidRequestError: The local engine cannot read the value.
    """
    relation = LocalEngine().relation(value)
    return arrow_to_frame(session, relation.to_reader().read_all(), relation.schema)


def arrow_to_frame(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return a table whose columns have the Arrow types of `schema` as a DataFrame of exactly that schema.

    Raises ConstraintViolationError: A column that the schema declares NOT NULL holds a null.
    """
    # Spark trusts the schema, and does not check columns that it declares NOT NULL.
    for check in type_checks(schema):
        for batch in table.to_batches():
            check(batch)
    target = spark_schema(schema)
    if table.num_rows == 0:
        return session.createDataFrame([], target)
    if is_connect(session):
        # A server of Spark 4.0 reads only the first batch of a table.
        table = table.combine_chunks()
    rows = session.createDataFrame(table, target)
    return rows.coalesce(1) if table.nbytes <= _ONE_TASK_BYTES else rows


def map_in_arrow(rows: DataFrame, function: BatchFunction, schema: SparkStructType | str) -> DataFrame:
    """Call `DataFrame.mapInArrow` for columns of any name. Spark's method interprets a dot or a backtick in a name as
    syntax."""
    names = rows.columns

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(call, schema)


def with_position(rows: DataFrame) -> DataFrame:
    """Return the rows of a file scan with their address: `FILE_COLUMN` and `POSITION_COLUMN`."""
    metadata = rows.metadataColumn("_metadata")
    return rows.select(
        "*",
        metadata.getField("file_path").alias(FILE_COLUMN),
        metadata.getField("row_index").alias(POSITION_COLUMN),
    )


def union_by_name(frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of several DataFrames, whose columns match by name."""
    pending = list(frames)
    # Unions are made pairwise, so that the plan stays flat enough for the analyser.
    while len(pending) > 1:
        pairs = [pending[i : i + 2] for i in range(0, len(pending), 2)]
        pending = [pair[0].unionByName(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return pending[0]
