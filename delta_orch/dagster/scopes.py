"""Who owns a table: an asset that replaces all of it, or several of which each replaces rows of its own scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.dagster.run import asset_writer
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import UNIT_PREFIXES, is_unit_name
from delta_orch.pipeline.row_guards import RowGuard
from delta_orch.pipeline.table_owner import asset_owner
from delta_orch.verbs.unit_records import REPLACING, RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot

BY_SCOPE = "assets by scope"
"""The owner of a table in which assets replace partitions, or the rows of a predicate. None replaces the whole."""


def owner_of_write(
    table: DeltaTable, before: TableSnapshot | None, key: Sequence[str], *, is_scoped: bool
) -> tuple[str, RowGuard | None]:
    """The owner that a write of an asset needs, and whose rows it leaves.

    Args:
        key: The asset's.
        is_scoped: The write replaces partitions, or the rows of a predicate.
    """
    owner = asset_owner(key)
    # An asset may get partitions when it has a table of its own already.
    if not is_scoped or (before is not None and before.properties.owner == owner):
        return owner, None
    return BY_SCOPE, _guard(table, asset_writer(key))


def _guard(table: DeltaTable, writer: str) -> RowGuard:
    """No rows are replaced which another step has replaced others by. What others append or merge is replaced with the
    rows beside it.

    Args:
        writer: What the names of the units of the asset begin with.
    """

    def applies(before: TableSnapshot) -> bool:
        return any(order >= 0 for order in before.txns.named(UNIT_PREFIXES, but=(f"{writer}:",)).values())

    def refusal(unit: RecordedUnit) -> InvalidRequestError | None:
        has_replaced = unit.version is None or (unit.step is not None and unit.step.write in REPLACING)
        if unit.order < 0 or not has_replaced:
            return None
        return InvalidRequestError(
            f"The write of {writer} would replace rows that {unit.name} has written to {table.uri}",
            cause="Two steps replace rows of one table, and their scopes overlap",
            remedy="Give each partitions or a table of its own. To hand the rows over, delete them, or take "
            f"them back first: DeltaTable({table.uri!r}).undo(unit={unit.name!r})",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: is_unit_name(name) and not name.startswith(f"{writer}:"), refusal)
