"""`create`: an empty table of a given schema, or the one that is there already."""

from __future__ import annotations

from collections.abc import Sequence

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
from delta_orch.log.write.commit_checks import PHYSICAL_NAMES
from delta_orch.log.write.commit_result import CommitResult
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_types import schema_from_arrow
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import StructField, StructType
from delta_orch.writing.target import WriteOptions, existing_target, new_target, split_options


def create(log: TableLog, snapshot: Snapshot | None, schema: object, options: WriteOptions) -> CommitResult:
    """Create the table, or join one with the same columns and partitioning.

    Args:
        schema: `StructType`, its columns, Arrow schema, Spark `StructType`, or schema JSON as in the log.

    Returns: `skipped` where a fitting table is there already: then nothing was written.

    Raises:
        TableExistsError: A table of another schema or partitioning is there. It is unchanged.
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError: The definition cannot be a table's.
    """
    struct = parse_schema_argument(schema)
    definition, commit = split_options(options)
    if snapshot is None:
        target = new_target(log.store, struct, definition)
        parameters = {
            "partitionBy": orjson.dumps(target.partition_columns).decode(),
            "clusterBy": orjson.dumps(tuple(definition.get("cluster_by") or ())).decode(),
            "properties": orjson.dumps(dict(target.table.configuration)).decode(),
            "description": definition.get("description"),
            "isManaged": "false",
        }
        transaction = Transaction(log, None, operation="CREATE TABLE", operation_parameters=parameters, **commit)
        target.stage_creation(transaction)
        try:
            return transaction.commit()
        except MetadataChangedError as e:
            # Two writers meant the same table, and have only made up other names for its columns in files.
            if e.context.get("differences") != [PHYSICAL_NAMES]:
                raise
        snapshot = log.snapshot()
    _ensure_joins(snapshot, struct, definition.get("partition_by") or ())
    return Transaction(log, snapshot, operation="CREATE TABLE", **commit).skip()


def _ensure_joins(snapshot: Snapshot, schema: StructType, partition_by: Sequence[str]) -> None:
    """Raise TableExistsError unless the table is what `create` asks for (properties are not compared)."""
    try:
        existing_target(snapshot, partition_by)
        ensure_schema_fits(schema, snapshot.schema)
        ensure_schema_fits(snapshot.schema, schema)
    except InvalidRequestError as e:
        raise TableExistsError(
            f"A table with another definition exists at {snapshot.store.uri}",
            cause=e.problem,
            remedy="Create it elsewhere, or with the schema and partitioning it has",
            uri=snapshot.store.uri,
        ) from e


def parse_schema_argument(schema: object) -> StructType:
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


def _spark_schema_json(schema: object) -> str:
    to_json = getattr(schema, "json", None)
    if to_json is None or not type(schema).__module__.startswith("pyspark."):
        raise InvalidRequestError(
            f"{type(schema).__name__} is not a schema",
            remedy="Pass an Arrow schema, a Spark StructType, a delta_orch StructType or schema JSON",
        )
    return str(to_json())
