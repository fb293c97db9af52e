"""What every verb that writes rows has in common: idempotency before work, schema check, one transaction.

The order is the guarantee. A write whose `txn` is already recorded ends before its data is looked at; a write that does
not fit the table ends before the first file is written; and all it has written becomes visible in one commit or not at
all. What fails in between leaves at most orphan files that no commit names, for vacuum to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import Engine, Relation, RowCheck
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, Literal, Not
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import columns_of, disjunction
from delta_orch.log.files.txn import TxnId
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.types import BOOLEAN
from delta_orch.table.schema_evolution import SchemaMode, as_created_from_data
from delta_orch.writing.evolve import evolve_target
from delta_orch.writing.identity import with_moved_marks
from delta_orch.writing.rehearsal import RehearsalEngine
from delta_orch.writing.request import CommitOptions, TableDefinition, resolve_txns
from delta_orch.writing.row_shaping import RowShape, shape_rows
from delta_orch.writing.target import WriteTarget, existing_target, new_target

TRUE = Literal(True, BOOLEAN)


@dataclass(frozen=True, slots=True)
class WriteSession:
    """One write between its checks and its commit.

    Attributes:
        relation: The caller's rows without those whose `txn` was stale at the start, as far as their columns tell.
        stale_scope: A predicate that is true for the partitions left out, None where there are none.
        shape: How they become rows of the table.
    """

    engine: Engine
    target: WriteTarget
    transaction: Transaction
    txns: tuple[TxnId, ...]
    relation: Relation
    stale_scope: Expression | None
    shape: RowShape

    def write_rows(self, checks: Sequence[RowCheck] = (), *, change_type: str | None = None) -> pa.Table:
        """Write the caller's rows and stage the new files, and with them the identity values they used.

        Args:
            change_type: What the rows are in the change data feed, where the commit has change files: then these files
                are among them.

        Raises:
            ConstraintViolationError: A row breaks a check, a rule of the table or NOT NULL, or lies in none of the
                txns' scopes.
        """
        spec = replace(self.shape.applied_to(self.target.write_spec(checks)), change_type=change_type)
        adds = self.engine.write(self.relation, spec)
        ensure_inside_scopes(adds, self.txns, self.target)
        self.transaction.add_files(adds, just_written=True)
        if change_type is not None:
            self.transaction.add_change_files(adds)
        if self.shape.identities:
            moved = with_moved_marks(self.target, adds, self.shape.identities)
            if moved is not self.target:
                self.transaction.update_metadata(moved.table.metadata)
        return adds


def begin_write(
    table_log: TableLog,
    snapshot: Snapshot | None,
    engine: Engine,
    data: Any,
    *,
    operation_parameters: Mapping[str, Any],
    definition: TableDefinition,
    options: CommitOptions,
    schema_mode: SchemaMode | None = None,
) -> WriteSession | Transaction:
    """Open the transaction and check everything that can be checked without touching rows.

    Args:
        schema_mode: How the table's schema follows the data; None: not at all.

    Returns: The session, or the bare transaction where all of the write is stale: committing it reports the skip.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError, InvalidRequestError (and its kinds): The table is unchanged.
        ConcurrentTransactionError: A `TxnId` follows another version than is recorded. The data was not consumed.
    """
    if options.dry_run:
        engine = RehearsalEngine(engine)
    if snapshot is None:
        relation = engine.relation(data)
        source = engine.schema(relation)
        target = new_target(table_log.store, as_created_from_data(source), definition)
    else:
        # Where the schema is overwritten, so may be the partitioning.
        may_repartition = schema_mode is SchemaMode.OVERWRITE
        target = existing_target(snapshot, replace(definition, partition_by=None) if may_repartition else definition)
    txns = resolve_txns(options.txns, target.schema, target.partition_columns)
    parameters = {**operation_parameters, "partitionBy": orjson.dumps(target.partition_columns).decode()}
    transaction = options.begin(table_log, snapshot, "WRITE", parameters, txns)
    stale = transaction.stale_txns()
    if is_wholly_stale(txns, stale):
        return transaction
    transaction.ensure_follows()
    if snapshot is None:
        target.stage_creation(transaction)
    else:
        relation = engine.relation(data)
        source = engine.schema(relation)
        before, target = target, evolve_target(target, source, schema_mode, definition.partition_by)
        if target is not before:
            stage_evolution(transaction, before, target)
    # The schema that is merged may have columns of which the data knows nothing.
    shape = shape_rows(source, target, fill_nulls=schema_mode is SchemaMode.MERGE)
    stale_scopes = [t.scope for t in stale if t.scope is not None]
    stale_scope = any_of(stale_scopes) if stale_scopes else None
    if stale_scope is not None and all(source.find(column.path[0]) for column in columns_of(stale_scope)):
        # Otherwise the files of those partitions are left out of the commit, as they are in any case.
        relation = engine.filter(relation, resolve_expression(is_not_true(stale_scope), source))
    return WriteSession(engine, target, transaction, txns, relation, stale_scope, shape)


def stage_evolution(transaction: Transaction, before: WriteTarget, after: WriteTarget) -> None:
    """Stage the metadata and the protocol that a write changes along with its rows."""
    if after.table.protocol != before.table.protocol:
        transaction.update_protocol(after.table.protocol)
    transaction.update_metadata(after.table.metadata)


def is_wholly_stale(txns: Sequence[TxnId], stale: Sequence[TxnId]) -> bool:
    """Whether nothing of the write is left to do: a key for the whole write is stale, or every scoped one is."""
    return bool(stale) and (any(t.scope is None for t in stale) or len(stale) == len(txns))


def is_not_true(condition: Expression) -> Expression:
    """False and null alike: the rows that `WHERE condition` leaves out."""
    if isinstance(condition, Literal):
        return Literal(condition.value is not True, BOOLEAN)
    return Not(Comparison("<=>", condition, TRUE))


def any_of(conditions: Sequence[Expression]) -> Expression:
    """Their disjunction. Equalities on one column become one IN, so that a year of days stays a short predicate."""
    values: dict[Column, list[Literal]] = {}
    rest: list[Expression] = []
    for condition in conditions:
        match condition:
            case Comparison("=", Column() as column, Literal(value) as literal) if value is not None:
                values.setdefault(column, []).append(literal)
            case _:
                rest.append(condition)
    return disjunction(*(In(column, tuple(literals)) for column, literals in values.items()), *rest)


def ensure_inside_scopes(adds: pa.Table, txns: Sequence[TxnId], target: WriteTarget) -> None:
    """Every row must belong to one of the keys: a row outside would be written again by each retry.

    Raises:
        ConstraintViolationError: A file lies in a partition that no scope covers. Nothing was committed.
    """
    scopes = [t.scope for t in txns if t.scope is not None]
    if not scopes or len(scopes) < len(txns) or adds.num_rows == 0:
        return
    covered = match_files(adds, any_of(scopes), target.schema, target.partition_columns).all_match
    if pc.all(covered).as_py():
        return
    outside = adds.filter(pc.invert(covered)).column("partition_values")[0].as_py()
    partition = dict(outside or ())
    raise ConstraintViolationError(
        f"The data holds rows for the partition {partition}, which none of the txn scopes covers",
        cause="With scoped transaction ids every row must belong to one of them, or a retry would write it twice",
        remedy="Pass rows of the named partitions only, or a TxnId without scope",
        constraint="txn scope",
        partition=partition,
    )


def count_rows(adds: pa.Table) -> int | None:
    """Rows in files an engine has just written, from their statistics; None where one has none."""
    total = 0
    for stats in adds.column("stats").to_pylist():
        records = orjson.loads(stats).get("numRecords") if stats else None
        if records is None:
            return None
        total += records
    return total


def write_metrics(adds: pa.Table, removed: pa.Table | None = None) -> dict[str, int]:
    """`operationMetrics` of a write, under the names the reference implementation uses."""
    metrics = {"numFiles": adds.num_rows, "numOutputBytes": pc.sum(adds.column("size")).as_py() or 0}
    rows = count_rows(adds)
    if rows is not None:
        metrics["numOutputRows"] = rows
    if removed is not None:
        metrics["numRemovedFiles"] = removed.num_rows
        metrics["numRemovedBytes"] = pc.sum(removed.column("size")).as_py() or 0
    return metrics
