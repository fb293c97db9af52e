"""Several assets that replace rows of one table, each in a scope of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import UNIT_PREFIXES
from delta_orch.pipeline.file_units import units_replaced
from delta_orch.pipeline.unit import RecordedUnit
from delta_orch.verbs.units import REPLACING, StepRecord

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.staged_write import StagedWrite

BY_SCOPE = "assets by scope"
"""The owner of a table in which assets replace partitions, or the rows of a predicate. None replaces the whole."""


def scope_guard(
    table: DeltaTable, before: TableSnapshot | None, writer: str, where: str | Expression | None
) -> Callable[[StagedWrite], None] | None:
    """Looks at a staged write that it replaces no rows which another step has replaced others by. What others append or
    merge is replaced with the rows beside it. None where the table has no unit of another step.

    Args:
        writer: What the names of the units of the asset begin with.
        where: The scope of the write.

    Raises:
        InvalidRequestError: The guard: it does. The table is as before.
    """

    def others(snapshot: TableSnapshot) -> list[str]:
        recorded = snapshot.txns.named(UNIT_PREFIXES, but=(f"{writer}:",))
        return [name for name, order in recorded.items() if order >= 0]

    if before is None or not others(before):
        return None

    def look(staged: StagedWrite) -> None:
        replaced = units_replaced(table, staged, where, others)
        for name in sorted(replaced.intersection(others(before))):
            if _has_replaced(table, before, name):
                raise InvalidRequestError(
                    f"The write of {writer} would replace rows that {name} has written to {table.uri}",
                    cause="Two steps replace rows of one table, and their scopes overlap",
                    remedy="Give each partitions or a table of its own. To hand the rows over, delete them, or take "
                    f"them back first: DeltaTable({table.uri!r}).undo(unit={name!r})",
                    uri=table.uri,
                    unit=name,
                )

    return look


def _has_replaced(table: DeltaTable, before: TableSnapshot, unit: str) -> bool:
    """Whether a unit was written in place of other rows, or the log tells no more how it was written."""
    unit_commit = RecordedUnit.of(table, unit, before.txns[unit])
    record = StepRecord.of(unit_commit.commit_info)
    return unit_commit.version is None or (record is not None and record.write in REPLACING)
