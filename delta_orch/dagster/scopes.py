"""Who owns a table: an asset that replaces all of it, or several of which each replaces rows of its own scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.dagster.run import asset_writer
from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.log.files.txn import UNIT_PREFIXES, is_unit_name
from delta_orch.pipeline.row_guards import RowGuard
from delta_orch.pipeline.table_owner import asset_owner
from delta_orch.verbs.unit_records import REPLACING, RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.pipeline.unit import Attempt

BY_SCOPE = "assets by scope"
"""The owner of a table in which assets replace partitions, or the rows of a predicate. None replaces the whole."""


def owner_of_write(
    table: DeltaTable,
    before: TableSnapshot | None,
    key: Sequence[str],
    attempt: Attempt | None,
    write: str,
    *,
    is_scoped: bool,
) -> tuple[str, tuple[RowGuard, ...]]:
    """The owner that a write of an asset needs, and whose rows it leaves.

    Args:
        key: The asset's.
        attempt: The attempt that writes; None for `exactly_once=False`.
        write: How it writes.
        is_scoped: An overwrite replaces partitions, or the rows of a predicate.
    """
    owner, writer = asset_owner(key), asset_writer(key)
    is_dynamic = write == "overwrite_partitions"
    if not is_dynamic and not (is_scoped and write == "overwrite"):
        return owner, ()
    guards = (_rows_of_newer_runs(table, writer, attempt),) if is_dynamic and attempt is not None else ()
    # An asset may get partitions when it has a table of its own already.
    if before is not None and before.properties.owner == owner:
        return owner, guards
    return BY_SCOPE, (*guards, _rows_of_others(table, writer))


def _rows_of_newer_runs(table: DeltaTable, writer: str, attempt: Attempt) -> RowGuard:
    """No partition is replaced which a run that began later has written. Each run is a unit of its own, so their order
    alone would not keep a late run out."""
    own = {unit.name for unit in attempt.units}

    def applies(before: TableSnapshot) -> bool:
        return any(order > attempt.order for order in before.txns.named((f"{writer}:",)).values())

    def refusal(unit: RecordedUnit) -> ConflictError | None:
        if unit.order <= attempt.order:
            return None
        return ConflictError(
            f"The write of {writer} would replace rows that {unit.name} has written to {table.uri}",
            cause="That run began later",
            remedy="Run the step again, so that it computes the newest rows",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: name.startswith(f"{writer}:") and name not in own, refusal)


def _rows_of_others(table: DeltaTable, writer: str) -> RowGuard:
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
