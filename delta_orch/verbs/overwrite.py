"""`overwrite`: all rows, the rows a predicate names, or the partitions the data brings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import Engine, RowCheck
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import conjunction
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.read.partition_keys import partition_keys, partition_strings
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import CommitResult, Transaction
from delta_orch.protocol.types import StructType
from delta_orch.scan.scan import scan_of_files
from delta_orch.table.schema_evolution import SchemaMode
from delta_orch.writing.change_files import INSERT, tells_changes, write_deleted_rows
from delta_orch.writing.joining import write_or_join
from delta_orch.writing.request import CommitOptions, TableDefinition
from delta_orch.writing.row_copies import RowCopies
from delta_orch.writing.write_session import (
    WriteSession,
    begin_write,
    is_not_true,
    write_metrics,
)

# A remove repeats what the add said, but for the statistics: they are the largest part, and nobody reads them there.
REMOVED_FILE_COLUMNS = tuple(name for name in ADD_SCHEMA.names if name != "stats")


@dataclass(frozen=True, slots=True)
class ReplacedFiles:
    """Files an overwrite takes out: `whole` holds nothing but rows to replace, `partial` may also hold others."""

    whole: pa.Table
    partial: pa.Table


def plan_replaced_files(snapshot: Snapshot, where: Expression | None) -> ReplacedFiles:
    """Which files hold rows for which `where` (resolved; None means all) is true."""
    files = snapshot.files(REMOVED_FILE_COLUMNS, where)
    if where is None:
        return ReplacedFiles(files, files.slice(0, 0))
    whole = match_files(files, where, snapshot.schema, snapshot.partition_columns).all_match
    return ReplacedFiles(files.filter(whole), files.filter(pc.invert(whole)))


def overwrite(
    table_log: TableLog,
    snapshot: Snapshot | None,
    engine: Engine,
    data: Any,
    *,
    replace_where: str | Expression | None = None,
    partition_overwrite_mode: str = "static",
    definition: TableDefinition,
    options: CommitOptions,
    schema_mode: SchemaMode | None = None,
) -> CommitResult:
    """Replace all rows, or with `replace_where` exactly those for which the predicate is true, by the rows given.

    All rows given must satisfy the predicate (null is a violation). Files that hold nothing else are dropped, others
    rewritten without the replaced rows. Data without rows clears the range. No file is deleted: readers of older
    versions, and the data itself if it is read from this table, keep theirs. A table that does not exist is created.

    Args:
        partition_overwrite_mode: `static` as described; `dynamic` leaves it to `overwrite_partitions`.
        schema_mode: `MERGE` adds the columns the table does not have; `OVERWRITE`, which only a write that replaces
            every row may use, takes the data's columns and, where `definition` names one, another partitioning.

    Raises:
        SchemaMismatchError, InvalidExpressionError, AppendOnlyError: The request cannot be right. Nothing was written.
        ConstraintViolationError: A row lies outside `replace_where` or breaks NOT NULL. Nothing was committed.
        ConflictError: Another commit changed what is replaced.
    """
    if _is_dynamic(partition_overwrite_mode, replace_where):
        return overwrite_partitions(
            table_log, snapshot, engine, data, definition=definition, options=options, schema_mode=schema_mode
        )
    if schema_mode is SchemaMode.OVERWRITE and replace_where is not None:
        raise schema_overwrite_refused("replace_where keeps rows")

    def write(base: Snapshot | None) -> CommitResult:
        return _overwrite(table_log, base, engine, data, replace_where, definition, options, schema_mode)

    return write_or_join(table_log, snapshot, data, write, only_empty=True)


def _overwrite(
    table_log: TableLog,
    snapshot: Snapshot | None,
    engine: Engine,
    data: Any,
    replace_where: str | Expression | None,
    definition: TableDefinition,
    options: CommitOptions,
    schema_mode: SchemaMode | None,
) -> CommitResult:
    where = None
    parameters: dict[str, Any] = {"mode": "Overwrite"}
    if replace_where is not None:
        parameters["predicate"] = predicate_text(replace_where)
        if snapshot is not None:
            where = resolve_predicate(replace_where, snapshot.schema)
    session = begin_write(
        table_log,
        snapshot,
        engine,
        data,
        operation_parameters=parameters,
        definition=definition,
        options=options,
        schema_mode=schema_mode,
    )
    if isinstance(session, Transaction):
        return session.commit()
    transaction = session.transaction
    if snapshot is None:
        return _fill_new_table(session, replace_where)
    session.target.ensure_rows_may_leave()
    if session.stale_scope is not None and schema_mode is SchemaMode.OVERWRITE:
        raise schema_overwrite_refused("some of the txn scopes are recorded already, and their rows stay")
    effective = outside_stale(where, session)
    # The same predicate over the columns as they are written, some of which may have become wider.
    written = where if replace_where is None else resolve_predicate(replace_where, session.target.schema)
    replaced = plan_replaced_files(snapshot, effective)
    change_type = None
    if replaced.partial.num_rows and tells_changes(session.target):
        replaced = write_changes(session, snapshot, replaced, outside_stale(written, session))
        # Without rows to rewrite, the files added and removed tell the changes on their own.
        change_type = INSERT if replaced.partial.num_rows else None
    adds = session.write_rows(replacement_checks(written), change_type=change_type)
    kept = write_kept_rows(session, snapshot, replaced.partial, outside_stale(written, session))
    removed = pa.concat_tables([replaced.whole, replaced.partial])
    if effective is None:
        transaction.read_whole_table()
    else:
        transaction.read_where(effective)
        transaction.read_files(replaced.partial)
    transaction.remove_files(removed)
    transaction.set_operation_metrics(write_metrics(pa.concat_tables([adds, kept]), removed))
    return transaction.commit()


def _fill_new_table(session: WriteSession, replace_where: str | Expression | None) -> CommitResult:
    where, transaction = None, session.transaction
    # Whoever creates the table meanwhile may have put rows into it, which this write has promised to replace.
    if replace_where is None:
        transaction.read_whole_table()
    else:
        where = resolve_predicate(replace_where, session.target.schema)
        transaction.read_where(where)
    adds = session.write_rows(replacement_checks(where))
    transaction.set_operation_metrics(write_metrics(adds))
    return transaction.commit()


def schema_overwrite_refused(cause: str) -> InvalidRequestError:
    """The error for replacing a schema that rows of the table still need."""
    return InvalidRequestError(
        'schema_mode="overwrite" needs a write that replaces every row',
        cause=cause,
        remedy='Overwrite the whole table, or use schema_mode="merge"',
    )


def outside_stale(where: Expression | None, session: WriteSession) -> Expression | None:
    """The rows to replace, without those of the partitions this write leaves out."""
    return where if session.stale_scope is None else conjunction(where, is_not_true(session.stale_scope))


def predicate_text(predicate: str | Expression) -> str:
    """The predicate for `operationParameters`: the user's own words where there are any."""
    return to_spark_sql(predicate) if isinstance(predicate, Expression) else str(predicate)


def replacement_checks(where: Expression | None) -> tuple[RowCheck, ...]:
    """What rows must satisfy to replace those of `where`."""
    return () if where is None else (RowCheck("replace_where", where),)


def write_kept_rows(
    session: WriteSession, snapshot: Snapshot, partial: pa.Table, replaced_where: Expression | None
) -> pa.Table:
    """Write again the rows of `partial` that are not replaced, and stage their files."""
    if partial.num_rows == 0 or replaced_where is None:
        return ADD_SCHEMA.empty_table()
    # Read as this write leaves the table: a column it has just added is null in rows that were there before.
    plan = replace(scan_of_files(snapshot, partial, where=is_not_true(replaced_where)), schema=session.target.schema)
    copies = RowCopies(snapshot)
    rows = session.engine.scan(copies.plan(plan))
    kept = session.engine.write(rows, copies.spec(session.target.write_spec()))
    session.transaction.add_files(kept, just_written=True)
    copies.note_in(session.transaction)
    return kept


def write_changes(
    session: WriteSession, snapshot: Snapshot, replaced: ReplacedFiles, where: Expression | None
) -> ReplacedFiles:
    """Write the rows that leave the table as change data, since the feed would show the rows kept as deleted and
    inserted otherwise.

    Returns: The files to replace: where no row leaves, those that were only suspected to hold one stay.
    """
    assert where is not None
    deleted = write_deleted_rows(session, snapshot, pa.concat_tables([replaced.whole, replaced.partial]), where)
    return replaced if deleted.num_rows else ReplacedFiles(replaced.whole, replaced.partial.slice(0, 0))


def _is_dynamic(partition_overwrite_mode: str, replace_where: str | Expression | None) -> bool:
    if partition_overwrite_mode not in ("static", "dynamic"):
        raise InvalidRequestError(
            f"There is no partition_overwrite_mode {partition_overwrite_mode!r}", remedy='Use "static" or "dynamic"'
        )
    if partition_overwrite_mode == "dynamic" and replace_where is not None:
        raise InvalidRequestError(
            'replace_where and partition_overwrite_mode="dynamic" exclude each other',
            remedy="Name the rows by a predicate, or let the data decide which partitions are replaced",
        )
    return partition_overwrite_mode == "dynamic"


def overwrite_partitions(
    table_log: TableLog,
    snapshot: Snapshot | None,
    engine: Engine,
    data: Any,
    *,
    definition: TableDefinition,
    options: CommitOptions,
    schema_mode: SchemaMode | None = None,
) -> CommitResult:
    """Replace each partition for which the data has rows; leave all others alone. Data without rows changes nothing.

    Raises:
        InvalidRequestError: The table is not partitioned. Nothing was written.
        Otherwise as `overwrite`.
    """
    if schema_mode is SchemaMode.OVERWRITE:
        raise schema_overwrite_refused("other partitions keep their rows")
    session = begin_write(
        table_log,
        snapshot,
        engine,
        data,
        operation_parameters={"mode": "Overwrite", "isDynamicPartitionOverwrite": True},
        definition=definition,
        options=options,
        schema_mode=schema_mode,
    )
    if isinstance(session, Transaction):
        return session.commit()
    columns = session.target.partition_columns
    if not columns:
        raise InvalidRequestError(
            'partition_overwrite_mode="dynamic" needs a partitioned table',
            cause="The table has no partition column, so every row would be replaced",
            remedy='Use partition_overwrite_mode="static" if that is what you want',
        )
    if snapshot is not None:
        session.target.ensure_rows_may_leave()
    adds = session.write_rows()
    session.transaction.read_partitions(distinct_partitions(adds, session.target.schema, columns))
    removed = None
    if snapshot is not None:
        removed = files_in_same_partitions(snapshot, adds, session.target.schema)
        session.transaction.remove_files(removed)
    session.transaction.set_operation_metrics(write_metrics(adds, removed))
    return session.transaction.commit()


def files_in_same_partitions(snapshot: Snapshot, adds: pa.Table, schema: StructType) -> pa.Table:
    """The live files whose partition has a file among `adds`; values compare as values, not as text.

    Args:
        schema: In whose types: the table's as the write leaves it, as it may have widened a partition column.
    """
    files = snapshot.files(REMOVED_FILE_COLUMNS)
    if files.num_rows == 0 or adds.num_rows == 0:
        return files.slice(0, 0)
    columns = snapshot.partition_columns
    written = pc.unique(partition_keys(adds, schema, columns))
    return files.filter(pc.is_in(partition_keys(files, schema, columns), value_set=written))


def distinct_partitions(adds: pa.Table, schema: StructType, partition_columns: tuple[str, ...]) -> pa.Table:
    """The partitions of files, as string columns spelled as in the log."""
    return partition_strings(adds, schema, partition_columns).group_by(list(partition_columns)).aggregate([])
