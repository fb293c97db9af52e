"""Several assets that replace rows of one table, each in a scope of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import UNIT_PREFIXES
from delta_orch.pipeline.file_units import units_replaced

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.staged_write import StagedWrite

BY_SCOPE = "assets by scope"
"""The owner of a table in which assets replace partitions, or the rows of a predicate. None replaces the whole."""


def scope_guard(
    table: DeltaTable, before: TableSnapshot | None, writer: str, where: str | Expression | None
) -> Callable[[StagedWrite], None] | None:
    """Looks at a staged write that it replaces no rows of another step. None where the table has none of another.

    Args:
        writer: What the names of the units of the asset begin with.
        where: The scope of the write.

    Raises:
        InvalidRequestError: The guard: it does. The table is as before.
    """

    def others(snapshot: TableSnapshot) -> list[str]:
        recorded = snapshot.txns.named(UNIT_PREFIXES)
        return [name for name, order in recorded.items() if order >= 0 and not name.startswith(f"{writer}:")]

    if before is None or not others(before):
        return None

    def look(staged: StagedWrite) -> None:
        found = units_replaced(table, staged, where, others)
        theirs = sorted(name for name in found if not name.startswith(f"{writer}:"))
        if theirs:
            raise InvalidRequestError(
                f"The write of {writer} would replace rows that {theirs[0]} has written to {table.uri}",
                cause="Two steps replace rows of one table, and their scopes overlap",
                remedy="Give each partitions or a table of its own. To hand the rows over, take them back first: "
                f"DeltaTable({table.uri!r}).undo(unit={theirs[0]!r})",
                uri=table.uri,
                unit=theirs[0],
            )

    return look
