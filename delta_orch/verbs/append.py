"""`append`: new rows beside the old ones."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.log.write.staging import write_metrics
from delta_orch.table.schema_evolution import SchemaMode, parse_schema_mode
from delta_orch.verbs.unit_files import UnitFiles, replaced_units
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Source, UnitColumn, Write, WritePlan, run_plan
from delta_orch.writing.target import WriteOptions


def append(
    log: TableLog,
    snapshot: Snapshot | None,
    data: object,
    schema_mode: str | None,
    engine: EngineChoice,
    options: WriteOptions,
    within: Expression | None = None,
    unit_column: UnitColumn | None = None,
    located: Sequence[UnitFiles] = (),
) -> CommitResult:
    """Add rows; the first append creates the table, and of two first appends the second joins it.

    Reads nothing (a blind append), so it never conflicts with another append. Of two that take values of the same
    identity column one runs again, behind the values of the other, if its data can be read twice.

    With a `txn` that `replaces`, the files that its unit added leave in the same commit (`unit_files.files_of_unit`).

    Args:
        schema_mode: `merge` adds the columns that the table does not have, in the same commit.
        within: What every row must satisfy; null is a violation.
        unit_column: A further column of the rows, with their unit.
        located: The files of replaced units, if the caller located them already.

    Returns: `skipped` where a transaction id is recorded: then the data was not consumed. Also where the data has no
        rows, and no transaction id is given.

    Raises:
        SchemaMismatchError: The rows do not fit. Nothing was written.
        InvalidRequestError: `schema_mode` is `overwrite`: rows of the old schema would stay. Nothing was written.
        ConstraintViolationError: A row breaks a rule of the table, or `within`. Nothing was committed; orphan
            files may stay.
        RedoNotPossibleError: The rows of a replaced unit cannot be told from others. Nothing was written.
        ConflictError: Another commit changed metadata or protocol, or recorded the same application id.
    """
    mode = None if schema_mode is None else parse_schema_mode(schema_mode)
    if mode is SchemaMode.OVERWRITE:
        raise InvalidRequestError(
            'schema_mode="overwrite" replaces the schema, and an append keeps the rows that have it',
            remedy='Use overwrite(), or schema_mode="merge"',
        )
    parameters = {"mode": "Append"}
    source = Source(data, mode, unit_column=unit_column)
    replaced = replaced_units(log, snapshot, options, located)

    def change(write: Write) -> dict[str, int]:
        if not replaced:
            return write_metrics(write.insert())
        write.target.table.ensure_rows_may_leave()
        for unit in replaced:
            unit.ensure_exact(log.store.uri)
        adds = write.insert()
        leaving = pa.concat_tables([unit.files for unit in replaced]).select(REMOVED_FILE_COLUMNS)
        write.transaction.remove_files(leaving)
        return write_metrics(adds, leaving)

    plan = WritePlan("WRITE", parameters, change, options, source, engine, is_blind=not replaced, within=within)
    return run_plan(log, snapshot, plan)
