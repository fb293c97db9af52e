"""`append`: adds rows to a table."""

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
    """Add rows. The first append creates the table. If two writers append first, the second one adds its rows to the
    table that the other created.

    An append reads no rows of the table (a blind append), so it never conflicts with another append. If two appends
    generate values of the same identity column, the second one generates its values again, after those of the first.
    For this its data must be readable twice.

    With a `txn` that `replaces`, the same commit removes the files that its unit added before
    (`unit_files.files_of_unit`).

    Args:
        schema_mode: `merge` adds the columns that the table does not have, in the same commit.
        within: A predicate that every row must satisfy. Null is a violation.
        unit_column: A further column that holds the unit of each row.
        located: The files of replaced units, if the caller located them already.

    Returns: `skipped` if the transaction id is recorded already. In that case the data was not read. Also `skipped` if
    the data has no rows and no transaction id is given.

    Raises:
        SchemaMismatchError: The rows do not fit. Nothing was written.
        InvalidRequestError: `schema_mode` is `overwrite`, but an append keeps rows of the old schema. Nothing was
            written.
        ConstraintViolationError: A row breaks a rule of the table, or `within`. Nothing was committed. Files without a
            commit may stay until the next vacuum.
        RedoNotPossibleError: The rows of a replaced unit cannot be separated from other rows. Nothing was written.
        ConflictError: Another commit changed metadata or protocol, or recorded the same application id.
    """
    mode = None if schema_mode is None else parse_schema_mode(schema_mode)
    if mode is SchemaMode.OVERWRITE:
        raise InvalidRequestError(
            'An append cannot use schema_mode="overwrite", because it keeps the rows of the old schema',
            remedy='Use overwrite(), or schema_mode="merge"',
        )
    parameters = {"mode": "Append"}
    source = Source(data, mode, unit_column=unit_column)
    replaced = replaced_units(log, snapshot, options, located) if options.get("txn") is not None else ()

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
