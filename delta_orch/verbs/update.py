"""`update`: sets columns of the rows that satisfy a predicate."""

from __future__ import annotations

import time
from collections.abc import Mapping

from delta_orch.engines.base import ComputedColumn, as_they_are
from delta_orch.engines.select import EngineChoice
from delta_orch.expressions.clock import one_moment
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.log.write.staging import Metrics
from delta_orch.protocol.types import STRING
from delta_orch.writing.assignments import (
    Assignment,
    assigned_column,
    ensure_value_fits,
    parse_assignments,
    recomputed_columns,
    resolve_value,
)
from delta_orch.writing.plan import Write, WritePlan, run_plan
from delta_orch.writing.row_address import change_metrics, predicate_parameters
from delta_orch.writing.row_changes import ADDRESS, UPDATE, RowChanges


@one_moment()
def update(
    log: TableLog,
    snapshot: Snapshot,
    assigned: Mapping[str, object],
    where: str | Expression | None,
    engine: EngineChoice,
    options: CommitOptions,
) -> CommitResult:
    """Set columns of the rows for which `where` is true, not false and not null. None updates every row.

    Values are computed from the old row and cast to the type of their column. A value that does not fit raises an
    error. A single field of a struct may be assigned. If the struct is null, its other fields are then null. Generated
    columns are computed again. An assigned generated column is verified instead. Defaults are not applied, but the word
    DEFAULT assigns the column's default. Rows keep their ids.

    Files are selected, marked and written as in `delete`.

    Returns: `skipped` if no row matches. In that case nothing is committed, unless there is a `txn`.

    Raises:
        InvalidRequestError, ColumnNotFoundError, InvalidExpressionError, SchemaMismatchError: A column is unknown,
            assigned twice, or an identity column. Or a value or `where` does not fit the table, uses more than one row,
            or is not deterministic. Nothing was read.
        UnsupportedExpressionError: The engine cannot evaluate a value or `where`. Nothing was committed.
        InvalidExpressionError: A value cannot be computed for a row, or does not fit its column. Nothing was committed.
        ConstraintViolationError: A new row breaks a rule of the table, or a row moves into a partition whose scoped
            transaction id is recorded. Nothing was committed.
        AppendOnlyError, ConflictError: As `delete`.
    """
    started = time.monotonic()
    assignments = parse_assignments(assigned, snapshot.configuration)
    for assignment in assignments:
        resolve_value(assignment.value, snapshot.schema)

    def change(write: Write) -> Metrics | None:
        files, condition = write.candidate_files(where)
        write.transaction.note_predicate(where)
        changes = RowChanges(write, files)
        # Values are checked even if no file can hold a matching row.
        columns = _columns(write, changes, assignments)
        if not files.num_rows:
            return None
        # The updated rows are known now. Other rows of these files do not matter for conflicts.
        write.transaction.read_rows(files)
        rows = write.engine.project(changes.scan(condition), columns)
        recomputed = recomputed_columns(write.target.table, assignments)
        if not {*recomputed, *(assignment.path[0] for assignment in assignments)}.isdisjoint(
            write.target.partition_columns
        ):
            write.moves_across_partitions = True
            write.transaction.move_across_scopes()
        address = [*as_they_are(changes.address_columns), ComputedColumn(ADDRESS.kind, Literal(UPDATE, STRING))]
        addresses = write.engine.project(changes.scan(condition, ()), address)
        counts = changes.apply(rows, addresses=addresses, recomputed=recomputed)
        return None if counts.changes_nothing else change_metrics(counts, started, is_update=True)

    return run_plan(log, snapshot, WritePlan("UPDATE", predicate_parameters(where), change, options, engine=engine))


def _columns(write: Write, changes: RowChanges, assignments: tuple[Assignment, ...]) -> list[ComputedColumn]:
    """Return the updated row: the table's columns, the address, and the mark of an update."""
    engine, schema = write.engine, write.target.schema
    values = [resolve_value(assignment.value, schema) for assignment in assignments]
    # Only the engine knows the type of a value.
    typed = [ComputedColumn(f"value {index}", value) for index, value in enumerate(values)]
    types = [f.data_type for f in engine.schema(engine.project(changes.scan(), typed))]
    for assignment, value, data_type in zip(assignments, values, types, strict=True):
        ensure_value_fits(value, data_type, assignment.path, schema, fill_nulls=False)
    by_place = {
        assignment.path: (value, data_type)
        for assignment, value, data_type in zip(assignments, values, types, strict=True)
    }
    address = as_they_are(changes.address_columns)
    return [
        *(ComputedColumn(field.name, assigned_column(field, by_place)) for field in schema),
        *address,
        ComputedColumn(ADDRESS.kind, Literal(UPDATE, STRING)),
    ]
