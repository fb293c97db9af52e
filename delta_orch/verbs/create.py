"""`create`: an empty table of a given schema, or the one that is there already. `create_or_replace`: in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pyarrow as pa

from delta_orch.engines.select import EngineChoice
from delta_orch.errors import (
    DeltaError,
    InvalidRequestError,
    MetadataChangedError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.log.files.txn import gone_with_rows
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_checks import PHYSICAL_NAMES
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitResult, ensure_unscoped, parse_txns
from delta_orch.log.write.staging import write_metrics
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.type_text import parse_columns
from delta_orch.protocol.types import StructField, StructType
from delta_orch.table.column_definitions import ensure_none_stated
from delta_orch.table.iceberg import ensure_same_partitioning
from delta_orch.table.protocol_upgrade import (
    PROTECTED_BEFORE,
    requested_versions,
    united_protocol,
    upgraded_versions,
    with_own_commit_times,
)
from delta_orch.table.schema_evolution import SchemaMode
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Source, Write, WritePlan, run_plan
from delta_orch.writing.target import (
    TableDefinition,
    WriteOptions,
    WriteTarget,
    existing_target,
    new_target,
    split_options,
)


def create(log: TableLog, snapshot: Snapshot | None, schema: object, options: WriteOptions) -> CommitResult:
    """Create the table, or join one with the same columns and partitioning.

    Args:
        schema: `StructType`, its columns, Arrow schema, Spark `StructType`, columns as Spark SQL lists them, or schema
            JSON as in the log.

    Returns: `skipped` where a fitting table is there already: then nothing was written.

    Raises:
        TableExistsError: A table with another schema or partitioning exists. It is unchanged.
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError: The definition cannot be a table's.
    """
    struct = parse_schema_argument(schema)
    definition, commit = split_options(options)
    if snapshot is None:
        target = _new_target(log, struct, definition)
        parameters = _parameters(target.partition_columns, target.table.configuration, definition)
        transaction = Transaction(log, None, operation="CREATE TABLE", operation_parameters=parameters, **commit)
        target.stage_metadata(transaction)
        try:
            return transaction.commit()
        except MetadataChangedError as e:
            # Two writers meant the same table, and have only made up other names for its columns in files.
            if e.context.get("differences") != [PHYSICAL_NAMES]:
                raise
        snapshot = log.snapshot()
    _ensure_joins(snapshot, struct, definition.get("partition_by") or ())
    return Transaction(log, snapshot, operation="CREATE TABLE", **commit).skip()


def create_or_replace(log: TableLog, snapshot: Snapshot | None, schema: object, options: WriteOptions) -> CommitResult:
    """Create the table, or replace it by an empty one with this definition. All its files are removed. Schema,
    partitioning, clustering, properties, name and description are the given ones only. The properties in `_KEPT` stay.

    The new table has its own id in the old log. Older versions stay readable. The protocol keeps its features.
    Transaction ids, the user's metadata domains, row ids and column ids continue. Cursors, and marks of partitions that
    are written once, are removed with the rows that they describe.

    Returns: `skipped` where a transaction id is recorded.

    Raises as `DeltaTable.create_or_replace`.
    """
    struct = parse_schema_argument(schema)
    definition, commit = split_options(options)
    ensure_unscoped(commit, "A whole table is replaced")
    # For every level that the caller passes: rows that another writer adds meanwhile belong to the replaced table.
    commit = {**commit, "isolation_level": SERIALIZABLE}
    before = None if snapshot is None else existing_target(snapshot)
    target = _new_target(log, struct, definition, before)
    if before is not None:
        target = _in_place_of(before, target, definition)
    transaction = Transaction(
        log,
        snapshot,
        operation="CREATE OR REPLACE TABLE",
        operation_parameters=_parameters(target.partition_columns, target.table.configuration, definition),
        **commit,
    )
    if transaction.stale_txns():
        return transaction.commit()
    transaction.ensure_follows()
    transaction.read_whole_table()
    target.stage_metadata(transaction, before)
    if snapshot is not None and snapshot.num_files:
        transaction.remove_files(snapshot.files(REMOVED_FILE_COLUMNS))
    if snapshot is not None:
        app_ids = {txn.app_id for txn in parse_txns(commit.get("txn"))}
        transaction.take_back({name: -1 for name in gone_with_rows(snapshot.txns) if name not in app_ids})
    return transaction.commit()


def create_or_replace_as(
    log: TableLog, snapshot: Snapshot | None, data: object, engine: EngineChoice, options: WriteOptions
) -> CommitResult:
    """As `create_or_replace`, with the columns and the rows of `data`. The data may come from the table itself."""
    definition, commit = split_options(options)
    ensure_unscoped(commit, "A whole table is replaced")
    serializable_options: WriteOptions = {**options, "isolation_level": SERIALIZABLE}
    parameters = _parameters(definition.get("partition_by"), definition.get("properties"), definition)

    def redefine(before: WriteTarget, columns: StructType, new_definition: TableDefinition) -> WriteTarget:
        return _in_place_of(before, _new_target(log, columns, new_definition, before), new_definition)

    def change(write: Write) -> dict[str, int]:
        write.transaction.read_whole_table()
        adds = write.insert()
        if write.snapshot is None:
            return write_metrics(adds)
        removed = write.snapshot.files(REMOVED_FILE_COLUMNS)
        write.transaction.remove_files(removed)
        return write_metrics(adds, removed)

    source = Source(data, SchemaMode.OVERWRITE, redefine)
    return run_plan(
        log,
        snapshot,
        WritePlan("CREATE OR REPLACE TABLE AS SELECT", parameters, change, serializable_options, source, engine),
    )


_KEPT = ("delta.enableDeletionVectors", "delta.enableRowTracking", "delta.checkpointPolicy")
"""Properties that a table keeps where its new definition does not name them: as Delta 4 on Spark."""


def _new_target(
    log: TableLog, schema: StructType, definition: TableDefinition, replaced: WriteTarget | None = None
) -> WriteTarget:
    if replaced is not None:
        configuration = replaced.table.configuration
        kept = {key: configuration[key] for key in _KEPT if key in configuration}
        definition = {**definition, "properties": {**kept, **(definition.get("properties") or {})}}
    target = new_target(log.store, schema, definition, replaced)
    if any(field.metadata for field in schema):
        from delta_orch.writing.row_rules import ensure_own_values_fit

        ensure_own_values_fit(target.schema)
    return target


def _in_place_of(before: WriteTarget, target: WriteTarget, definition: TableDefinition) -> WriteTarget:
    """A new table with what the log has promised of the one whose place it takes."""
    ensure_same_partitioning(before.table, target.table)
    properties = with_own_commit_times(target.table.configuration, target.table, before.table)
    if PROTECTED_BEFORE in before.table.configuration:
        properties[PROTECTED_BEFORE] = before.table.configuration[PROTECTED_BEFORE]
    requested = requested_versions(definition.get("properties") or {})
    protocol = united_protocol(upgraded_versions(before.table.protocol, *requested), target.table.protocol)
    table = target.table.with_properties(properties).after(protocol, None).for_writing()
    was_clustered = target.clustering is None and before.clustering
    return replace(target, table=table, clustering=() if was_clustered else target.clustering)


def _parameters(
    partition_by: Sequence[str] | None, properties: Mapping[str, str] | None, definition: TableDefinition
) -> dict[str, object]:
    return {
        "partitionBy": orjson.dumps(tuple(partition_by or ())).decode(),
        "clusterBy": orjson.dumps(tuple(definition.get("cluster_by") or ())).decode(),
        "properties": orjson.dumps(dict(properties or {})).decode(),
        "description": definition.get("description"),
        "isManaged": "false",
    }


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


_ARROW = "__arrow_c_schema__"
"""The method that schemas and fields of pyarrow, deltalake, Polars and others have."""


def parse_schema_argument(schema: object) -> StructType:
    """A schema in any of the shapes a user may have one in."""
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        if all(isinstance(column, StructField) for column in schema):
            return StructType(tuple(schema))
        if not all(hasattr(column, _ARROW) for column in schema):
            raise InvalidRequestError("A schema given as a sequence holds columns", remedy="Make them with column()")
        schema = pa.schema([pa.field(column) for column in schema])
    if hasattr(schema, _ARROW):
        try:
            arrow = pa.schema(schema)
        except pa.ArrowInvalid as e:
            raise _not_a_schema(schema, str(e)) from e
        columns = schema_from_arrow(arrow)
        ensure_none_stated(columns)
        return columns
    if isinstance(schema, str) and not schema.lstrip().startswith("{"):
        return parse_columns(schema)
    # Spark's StructType writes the same JSON as the log.
    text = schema if isinstance(schema, str) else _spark_schema_json(schema)
    try:
        return parse_schema(text)
    except DeltaError as e:
        raise SchemaMismatchError("The schema's JSON cannot be read", cause=str(e)) from e


def _spark_schema_json(schema: object) -> str:
    to_json = getattr(schema, "json", None)
    if to_json is None or not type(schema).__module__.startswith("pyspark."):
        raise _not_a_schema(schema)
    return str(to_json())


def _not_a_schema(schema: object, cause: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(
        f"{type(schema).__name__} is not a schema",
        cause=cause,
        remedy="Pass an Arrow schema, a Spark StructType, a delta_orch StructType, schema JSON or 'id bigint, …'",
    )
