"""One output of one step, written to its table: which verb, which rows, which transaction ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_orch.dagster.identity import RunIdentity
from delta_orch.dagster.partition_selection import PartitionSelection
from delta_orch.dagster.settings import AssetSettings
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError, TableExistsError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.transaction import CommitResult
from delta_orch.pipeline.first_write import ensure_table_for, schema_of_new_table
from delta_orch.pipeline.partitions import looks_only_at
from delta_orch.pipeline.run_identity import (
    ONCE_PER_PARTITION,
    dagster_app_id,
    dagster_range_txns,
    dagster_txn,
    dagster_version,
)
from delta_orch.protocol.types import StructType

IDEMPOTENCY = ("run", "partition", "off")
PARTITION_OVERWRITE = ("replace_where", "dynamic")


@dataclass(frozen=True, slots=True)
class OutputWrite:
    """What is to be written.

    Attributes:
        step: The asset key's parts, or what stands for them where an op's output is no asset.
        selection: The run's partitions; None for a step without partitions.
        identity: None only with `idempotency='off'`.
    """

    table: DeltaTable
    step: tuple[str, ...]
    settings: AssetSettings
    selection: PartitionSelection | None
    identity: RunIdentity | None
    idempotency: str = "run"
    partition_overwrite: str = "replace_where"
    engine: str = "auto"
    table_properties: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    """How it ended. `scopes` maps each partition key of the run to its rows."""

    result: CommitResult | None
    snapshot: TableSnapshot
    scopes: Mapping[str, Expression]


def write_output(write: OutputWrite, data: Any) -> WrittenOutput:
    """Write a step's value; nothing is replaced but the rows of the run's own partitions.

    What overwrites a partitioned step's rows must lie in the run's partitions (so must what is appended to a table
    partitioned by them); where the partitions cannot be told from the table's columns, the write is refused. An asset
    without partitions overwrites its table.

    Returns: `result` is None where mode `ignore` found data.

    Raises:
        InvalidRequestError: Partitions and columns do not go together. The table is unchanged.
        ConstraintViolationError: A row lies outside the run's partitions. The table is unchanged.
        TableExistsError: Mode `error` found data. The table is unchanged.
        DeltaError: What the verbs raise.
    """
    before = write.table.snapshot() if write.table.exists() else None
    schema = before.schema if before is not None else schema_of_new_table(data, write.engine)
    partition_columns = before.partition_columns if before is not None else new_partition_columns(write)
    scopes = write.selection.scopes(schema) if write.selection is not None else {}
    txns = plan_txns(write, scopes, partition_columns)
    _ensure_rows_can_be_checked(write, txns)
    if not _is_recorded(before, txns) and _holds_data(write, before) and write.settings.mode in ("error", "ignore"):
        if write.settings.mode == "error":
            raise _data_exists(write)
        assert before is not None
        return WrittenOutput(None, before, scopes)
    result = _commit(write, data, schema, txns, is_new=before is None)
    return WrittenOutput(result, _snapshot_after(write.table, result), scopes)


def new_partition_columns(write: OutputWrite) -> tuple[str, ...]:
    """The partition columns a table gets that this write creates."""
    if write.settings.partition_by is not None:
        return write.settings.partition_by
    return write.selection.columns if write.selection is not None else ()


def plan_txns(
    write: OutputWrite, scopes: Mapping[str, Expression], partition_columns: tuple[str, ...]
) -> tuple[TxnId, ...]:
    """The transaction ids of the write.

    Raises:
        InvalidRequestError: A run over several partitions of a table that is not partitioned by their column: a retry
            could not tell which of them were written.
    """
    if write.idempotency == "off":
        return ()
    identity = write.identity
    assert identity is not None
    location, created = identity.code_location, identity.root_run_created
    if write.selection is None:
        if write.idempotency == "partition":
            raise InvalidRequestError(
                f"{'/'.join(write.step)} has no partitions, so idempotency='partition' means nothing for it",
                remedy="Use idempotency='run'",
            )
        # An appending step adds what it found; an older run that ends later must not lose it.
        run_id = identity.root_run_id if write.settings.mode == "append" else None
        return (
            dagster_txn(code_location=location, asset_key=write.step, root_run_created=created, root_run_id=run_id),
        )
    is_scoped = {name.lower() for name in write.selection.columns} <= {name.lower() for name in partition_columns}
    if len(scopes) > 1 and not is_scoped:
        raise InvalidRequestError(
            f"A run over {len(scopes)} partitions cannot be exactly-once in a table that is not partitioned by them",
            cause=f"The table is partitioned by {', '.join(partition_columns) or 'nothing'}, "
            f"the partitions are about {', '.join(write.selection.columns)}",
            remedy="Run one partition at a time (BackfillPolicy.multi_run), or partition the table by that column",
        )
    if write.idempotency == "partition":
        version = ONCE_PER_PARTITION
        return tuple(
            TxnId(dagster_app_id(location, write.step, key), version, scope if is_scoped else None)
            for key, scope in scopes.items()
        )
    if is_scoped:
        return dagster_range_txns(code_location=location, asset_key=write.step, root_run_created=created, scopes=scopes)
    (key,) = scopes
    return (TxnId(dagster_app_id(location, write.step, key), dagster_version(created)),)


def _ensure_rows_can_be_checked(write: OutputWrite, txns: tuple[TxnId, ...]) -> None:
    """With `dynamic` the rows decide what is replaced: that they lie in the run's partitions is checked by scopes."""
    is_dynamic = write.settings.mode == "overwrite" and write.partition_overwrite == "dynamic"
    if not is_dynamic or write.selection is None or (txns and all(txn.scope is not None for txn in txns)):
        return
    raise InvalidRequestError(
        "partition_overwrite='dynamic' could replace other partitions than those of the run",
        cause=f"Nothing ties the table's partitions to {', '.join(write.selection.columns)}: "
        "it is partitioned by other columns, or idempotency is off",
        remedy="Use partition_overwrite='replace_where'",
    )


def _commit(
    write: OutputWrite, data: Any, schema: StructType, txns: tuple[TxnId, ...], *, is_new: bool
) -> CommitResult:
    settings, table = write.settings, write.table
    partition_by = new_partition_columns(write) if is_new else settings.partition_by
    extras: dict[str, Any] = {
        "txn": txns,
        "partition_by": partition_by,
        "properties": write.table_properties,
        "engine": write.engine,
        "user_metadata": write.user_metadata,
        "schema_mode": settings.schema_mode,
    }
    if settings.mode != "overwrite":
        return table.append(data, **extras)
    if is_new:
        ensure_table_for(table, data, engine=write.engine, partition_by=partition_by, properties=write.table_properties)
    if write.partition_overwrite == "dynamic":
        return table.overwrite(data, partition_overwrite_mode="dynamic", **extras)
    if write.selection is None:
        return table.overwrite(data, **extras)
    return table.overwrite(data, replace_where=write.selection.predicate(schema), **extras)


def _holds_data(write: OutputWrite, before: TableSnapshot | None) -> bool:
    if before is None:
        return False
    if write.selection is None:
        return before.num_files > 0
    where = resolve_expression(write.selection.predicate(before.schema), before.schema)
    if looks_only_at(where, before.partition_columns):
        return bool(before.files(["path"], where).num_rows)
    # Statistics can tell that a file holds no such row, but not that it holds one: look.
    return any(batch.num_rows for batch in before.scan([before.schema.names[0]], where).to_reader())


def _is_recorded(before: TableSnapshot | None, txns: tuple[TxnId, ...]) -> bool:
    if before is None or not txns:
        return False
    recorded = (before.txn_version(txn.app_id) for txn in txns)
    return all(version is not None and version >= txn.version for version, txn in zip(recorded, txns, strict=True))


def _data_exists(write: OutputWrite) -> TableExistsError:
    what = "The table" if write.selection is None else f"Partition {', '.join(write.selection.keys)} of the table"
    return TableExistsError(
        f"{what} at {write.table.uri} already holds data",
        cause="mode='error' writes only where nothing is",
        remedy="Use mode='overwrite' to replace it, or mode='ignore' to keep it",
        uri=write.table.uri,
    )


def _snapshot_after(table: DeltaTable, result: CommitResult) -> TableSnapshot:
    newest = table.snapshot()
    # Others may have committed since: what this run reports is the version it made.
    return newest if result.skipped or newest.version == result.version else table.snapshot(version=result.version)
