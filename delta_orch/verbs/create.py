"""`create`: an empty table of a given schema, or the one that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from delta_orch.errors import (
    DeltaError,
    InvalidRequestError,
    MetadataChangedError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import CommitResult
from delta_orch.protocol.arrow_types import schema_from_arrow
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import StructField, StructType
from delta_orch.writing.joining import differs_in_physical_names
from delta_orch.writing.request import CommitOptions, TableDefinition
from delta_orch.writing.target import existing_target, new_target


def create(
    table_log: TableLog,
    snapshot: Snapshot | None,
    schema: Any,
    *,
    definition: TableDefinition,
    options: CommitOptions,
) -> CommitResult | None:
    """Create the table, or join one with the same columns and partitioning.

    Args:
        schema: `StructType`, its columns, Arrow schema, Spark `StructType`, or schema JSON as in the log.

    Returns: None where a fitting table is there already: then nothing was written.

    Raises:
        TableExistsError: A table of another schema or partitioning is there. It is unchanged.
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError: The definition cannot be a table's.
    """
    struct = parse_schema_argument(schema)
    if snapshot is not None:
        ensure_joins(snapshot, struct, definition)
        return None
    target = new_target(table_log.store, struct, definition)
    transaction = options.begin(
        table_log,
        None,
        "CREATE TABLE",
        {
            "partitionBy": orjson.dumps(target.partition_columns).decode(),
            "clusterBy": orjson.dumps(definition.cluster_by).decode(),
            "properties": orjson.dumps(dict(target.table.configuration)).decode(),
            "description": definition.description,
            "isManaged": "false",
        },
    )
    target.stage_creation(transaction)
    try:
        return transaction.commit()
    except MetadataChangedError as e:
        if not differs_in_physical_names(e):
            raise
    ensure_joins(table_log.snapshot(), struct, definition)
    return None


def ensure_joins(snapshot: Snapshot, schema: StructType, definition: TableDefinition) -> None:
    """Raise TableExistsError unless the table is what `create` asks for (properties are not compared)."""
    try:
        existing_target(snapshot, replace(definition, partition_by=definition.partition_by or ()))
        ensure_schema_fits(schema, snapshot.schema)
        ensure_schema_fits(snapshot.schema, schema)
    except InvalidRequestError as e:
        raise TableExistsError(
            f"A table with another definition exists at {snapshot.store.uri}",
            cause=e.problem,
            remedy="Create it elsewhere, or with the schema and partitioning it has",
            uri=snapshot.store.uri,
        ) from e


def parse_schema_argument(schema: Any) -> StructType:
    """A schema in any of the shapes a user may have one in."""
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, pa.Schema):
        return schema_from_arrow(schema)
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        if not all(isinstance(column, StructField) for column in schema):
            raise InvalidRequestError("A schema given as a sequence holds columns", remedy="Make them with column()")
        return StructType(tuple(schema))
    # Spark's StructType writes the same JSON as the log.
    text = schema if isinstance(schema, str) else _spark_schema_json(schema)
    try:
        return parse_schema(text)
    except DeltaError as e:
        raise SchemaMismatchError("The schema's JSON cannot be read", cause=str(e)) from e


def _spark_schema_json(schema: Any) -> str:
    to_json = getattr(schema, "json", None)
    if to_json is None or not type(schema).__module__.startswith("pyspark."):
        raise InvalidRequestError(
            f"{type(schema).__name__} is not a schema",
            remedy="Pass an Arrow schema, a Spark StructType, a delta_orch StructType or schema JSON",
        )
    return str(to_json())
