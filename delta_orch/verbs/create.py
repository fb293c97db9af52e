"""`create`: makes an empty table, or joins an existing one. `create_or_replace` replaces an existing table."""

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
    """Create the table. If a table with the same columns and partitioning exists, use it.

    Args:
        schema: A `StructType`, a list of its columns, an Arrow schema, a Spark `StructType`, a column list in Spark
            SQL, or schema JSON as in the log.

    Returns: `skipped` if a table with this definition exists already. In that case nothing was written.

    Raises:
        TableExistsError: A table with another schema or partitioning exists. It is unchanged.
        InvalidPropertyError, ColumnNotFoundError, SchemaMismatchError: The definition is invalid.
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
            # Two writers create the same table. Only the physical names that they generated differ.
            if e.context.get("differences") != [PHYSICAL_NAMES]:
                raise
        snapshot = log.snapshot()
    _ensure_joins(snapshot, struct, definition.get("partition_by") or ())
    return Transaction(log, snapshot, operation="CREATE TABLE", **commit).skip()


def create_or_replace(log: TableLog, snapshot: Snapshot | None, schema: object, options: WriteOptions) -> CommitResult:
    """Create the table, or replace it by an empty one with this definition. All its files are removed. Schema,
    partitioning, clustering, properties, name and description come only from the call. The properties in `_KEPT` stay.

    The new table continues the log of the old one, with a new table id. Older versions stay readable. The protocol
    keeps its features. Transaction ids, the user's metadata domains, row ids and column ids continue. Cursors are
    removed with the rows that they describe, and so are the marks of partitions that are written once.

    Returns: `skipped` if the transaction id is recorded already.

    Raises as `DeltaTable.create_or_replace`.
    """
    struct = parse_schema_argument(schema)
    definition, commit = split_options(options)
    ensure_unscoped(commit, "A whole table is replaced")
    # Required at every isolation level. Rows that another writer adds meanwhile belong to the replaced table.
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
    """Create or replace the table as `create_or_replace` does, with the columns and rows of `data`. The data may come
    from the table itself."""
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
"""Properties that a replaced table keeps if its new definition does not set them, as in Delta 4 on Spark."""


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
    """Return the new table with the state that must survive in the log: protocol features, row ids, column ids."""
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
    """Raise TableExistsError unless the table has the definition that `create` requests. Properties are not
    compared."""
    try:
        existing_target(snapshot, partition_by)
        ensure_schema_fits(schema, snapshot.schema)
        ensure_schema_fits(snapshot.schema, schema)
    except InvalidRequestError as e:
        raise TableExistsError(
            f"A table with another definition exists at {snapshot.store.uri}",
            cause=e.problem,
            remedy="Use another location, or pass the schema and partitioning of the existing table",
            uri=snapshot.store.uri,
        ) from e


_ARROW = "__arrow_c_schema__"
"""The method that exports a schema. Schemas of pyarrow, deltalake, Polars and others have it."""


def parse_schema_argument(schema: object) -> StructType:
    """Return a schema of this package from any form that users pass."""
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        if all(isinstance(column, StructField) for column in schema):
            return StructType(tuple(schema))
        if not all(hasattr(column, _ARROW) for column in schema):
            raise InvalidRequestError(
                "A schema that is a sequence must hold columns",
                remedy="Make each with column(), such as column('id', 'bigint')",
            )
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
    # Spark's StructType has the same JSON as the log.
    text = schema if isinstance(schema, str) else _spark_schema_json(schema)
    try:
        return parse_schema(text)
    except DeltaError as e:
        raise SchemaMismatchError("The JSON of the schema is invalid", cause=str(e)) from e


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
