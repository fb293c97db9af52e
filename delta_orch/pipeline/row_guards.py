"""Rows that a write must not take away: which units lose rows by it, and who objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.log.files.txn import UNIT_PREFIXES
from delta_orch.verbs.unit_files import units_losing_rows
from delta_orch.verbs.unit_records import LogWalk, RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.staged_write import StagedWrite

_CURSOR = "cdc:"


@dataclass(frozen=True, slots=True)
class RowGuard:
    """Whose rows a write must leave in the table.

    Attributes:
        applies: Whether a version of the table may have such rows. If not, the write is not looked at.
        concerns: Whether the guard is about a unit, by its name. The cursor of an incremental step counts as one.
        refusal: The error for a unit that loses rows by the write; None if it may lose them. The order of
            a unit that the table has not recorded, or that was taken back, is below 0.
    """

    applies: Callable[[TableSnapshot], bool]
    concerns: Callable[[str], bool]
    refusal: Callable[[RecordedUnit], InvalidRequestError | ConflictError | None]


def ensure_rows_stay(
    table: DeltaTable, staged: StagedWrite[TableSnapshot], where: str | Expression | None, guards: Collection[RowGuard]
) -> None:
    """Check that no guard objects to a staged write.

    Args:
        where: Which rows leave; None for all of the files that it removes.

    Raises:
        InvalidRequestError: One does. The table is unchanged.
        ConflictError: One does, and running the step again is the remedy. The table is unchanged.
    """
    if staged.read_version is None or not guards:
        return
    before = table.snapshot(staged.read_version)
    walk = LogWalk(table.log, before.version)

    def candidates() -> Iterator[str]:
        for name, order in before.txns.named((_CURSOR, *UNIT_PREFIXES)).items():
            if order >= 0 and any(guard.concerns(name) for guard in guards):
                yield name

    losing = units_losing_rows(table.log, before, staged.snapshot(), where, candidates)
    orders = before.txn_versions(sorted(losing))
    for name in sorted(losing):
        order = orders[name]
        unit = RecordedUnit(name, -1 if order is None else order, walk)
        for guard in guards:
            if guard.concerns(name) and (error := guard.refusal(unit)) is not None:
                raise error


def incremental_rows(table: DeltaTable, own: tuple[str, ...], *, is_incremental: bool) -> RowGuard:
    """Incremental steps share a table with others: nobody replaces their rows, as a cursor does not go back, and they
    replace nobody's.

    Args:
        own: What the names of the step's units and cursors begin with.
        is_incremental: Whether the step that writes is one of them. It leaves the rows of every other step.
    """
    starts = (_CURSOR, *UNIT_PREFIXES) if is_incremental else (_CURSOR,)

    def applies(before: TableSnapshot) -> bool:
        return any(order >= 0 for order in before.txns.named(starts, but=own).values())

    def refusal(unit: RecordedUnit) -> InvalidRequestError | None:
        is_kept = is_incremental or unit.name.startswith(_CURSOR) or unit.version is None
        if unit.order < 0 or not (is_kept or (unit.step is not None and unit.step.inputs)):
            return None
        return InvalidRequestError(
            f"The step would replace rows of {table.uri} that another step has written",
            cause=f"{unit.name} wrote them, and would not write them again",
            remedy="Let each step write partitions or a table of its own, or write by merge or append. To take a "
            "partition over, delete its rows first",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: not name.startswith(own), refusal)
