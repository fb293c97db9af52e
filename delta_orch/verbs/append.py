"""`append`: new rows beside the old ones."""

from __future__ import annotations

from typing import Any

from delta_orch.engines.base import Engine
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import CommitResult, Transaction
from delta_orch.table.schema_evolution import SchemaMode
from delta_orch.writing.identity import allocate_again
from delta_orch.writing.joining import write_or_join
from delta_orch.writing.request import CommitOptions, TableDefinition
from delta_orch.writing.write_session import begin_write, write_metrics


def append(
    table_log: TableLog,
    snapshot: Snapshot | None,
    engine: Engine,
    data: Any,
    *,
    definition: TableDefinition,
    options: CommitOptions,
    schema_mode: SchemaMode | None = None,
) -> CommitResult:
    """Add rows; the first append creates the table, and of two first appends the second joins it.

    Reads nothing (a blind append), so it never conflicts with another append. Of two that take values of the same
    identity column one begins again, behind the values of the other, as long as its data can be read twice.

    Args:
        schema_mode: `MERGE` adds the columns the table does not have, in the same commit.

    Returns: `skipped` where a transaction id was already recorded: then the data was not consumed and nothing written.

    Raises:
        SchemaMismatchError: The rows do not fit. Nothing was written.
        InvalidRequestError: `schema_mode` is `OVERWRITE`: rows of the old schema would stay. Nothing was written.
        ConstraintViolationError: A row breaks a rule of the table. Nothing was committed; orphan files may stay.
        ConflictError: Another commit changed metadata or protocol, or recorded the same application id.
    """
    if schema_mode is SchemaMode.OVERWRITE:
        raise InvalidRequestError(
            'schema_mode="overwrite" replaces the schema, and an append keeps the rows that have it',
            remedy='Use overwrite(), or schema_mode="merge"',
        )

    def write(base: Snapshot | None) -> CommitResult:
        session = begin_write(
            table_log,
            base,
            engine,
            data,
            operation_parameters={"mode": "Append"},
            definition=definition,
            options=options,
            schema_mode=schema_mode,
        )
        if isinstance(session, Transaction):
            return session.commit()
        adds = session.write_rows()
        session.transaction.set_operation_metrics(write_metrics(adds))
        return session.transaction.commit()

    return write_or_join(table_log, snapshot, data, lambda base: allocate_again(table_log, base, data, write))
