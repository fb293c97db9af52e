"""`delete`: remove the rows that satisfy a predicate."""

from __future__ import annotations

import time

from delta_orch.engines.base import ComputedColumn, as_they_are
from delta_orch.engines.select import EngineChoice
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.log.write.staging import Metrics
from delta_orch.protocol.types import STRING
from delta_orch.writing.plan import Write, WritePlan, run_plan
from delta_orch.writing.row_address import change_metrics, predicate_parameters
from delta_orch.writing.row_changes import ADDRESS, DELETE, RowChanges


def delete(
    log: TableLog,
    snapshot: Snapshot,
    where: str | Expression | None,
    engine: EngineChoice,
    options: CommitOptions,
) -> CommitResult:
    """Delete the rows for which `where` is true, not false and not null. None deletes every row.

    Partition values and statistics decide for most files, which are not opened. A file without such rows stays. A file
    that has only such rows is removed. Other files are opened, and only the columns of the predicate are read. These
    files get a deletion vector, or are rewritten (`RowChanges.apply`).

    Returns: `skipped` if no row matches. In that case nothing is committed, unless there is a `txn`.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: `where` does not fit the table, uses more than one row, or is not
            deterministic. Nothing was read.
        UnsupportedExpressionError: The engine cannot evaluate `where`. Nothing was committed.
        AppendOnlyError: The table is append-only.
        ConflictError: Another commit changed rows that the predicate reads. Nothing was committed.
    """
    started = time.monotonic()

    def change(write: Write) -> Metrics | None:
        selected = write.select_leaving(where)
        write.transaction.note_predicate(where)
        # The deleted rows are known now. Other rows of these files do not matter for conflicts.
        write.transaction.read_rows(selected.partial)
        changes = RowChanges(write, selected.partial)
        rows = None
        if selected.partial.num_rows:
            matching_rows = changes.scan(selected.leaving, ())
            address = as_they_are((ADDRESS.file_number, ADDRESS.row_position))
            rows = write.engine.project(
                matching_rows, [*address, ComputedColumn(ADDRESS.kind, Literal(DELETE, STRING))]
            )
        counts = changes.apply(rows, whole=selected.leaving_files)
        return None if counts.changes_nothing else change_metrics(counts, started, is_update=False)

    return run_plan(log, snapshot, WritePlan("DELETE", predicate_parameters(where), change, options, engine=engine))
