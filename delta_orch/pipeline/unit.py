"""Units of work, the attempts at them, and the report of a step: what makes a step exactly-once.

1. **A crash never doubles.** An attempt that finds the commit of an attempt of its own, which the orchestrator never
   saw succeed, changes nothing and reports that commit.
2. **Doing it again replaces.** A clear, rerun, re-execution or backfill of a unit that was written puts its new rows in
   the place of exactly the rows that the unit wrote before.
3. **Late never wins.** An attempt that began before the newest one of its unit changes nothing.

A unit is recorded as a transaction of the table (PROTOCOL, "Transaction Identifiers"), in the commit of its rows:
`Unit.name` is the application id, the order of the attempt its version.

Neither orchestrator needs to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal as OneOf

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.verbs.unit_records import LogWalk, RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.pipeline.audit import AuditFinding
    from delta_orch.pipeline.incremental import ChangeBatch, FileBatch
    from delta_orch.verbs.expect import ExpectationReport


OnRedo = OneOf["replace", "keep", "add"]
"""What a unit that is done again does. `replace`: its new rows take the place of those it wrote before. `keep`: a unit
that is done stays as it is. `add`: the new rows stand beside the old ones."""

ON_REDO: tuple[OnRedo, ...] = ("replace", "keep", "add")

Outcome = OneOf["written", "replaced", "recovered", "fenced", "nothing new"]
"""What became of a step. `written`: its units had not been written before. `replaced`: its new rows took the place of
those of an earlier attempt. `recovered`: the commit of an earlier attempt stands, and is reported. `fenced`: a newer
attempt has written the unit. `nothing new`: there was nothing to do. Only the first two make a commit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work that is written as a whole, and replaced as a whole.

    Attributes:
        writer: The step: `asset_writer` of Dagster, `airflow_writer` of Airflow.
        part: Which part of its work: a partition key, a logical date, a run.
        scope: A predicate over partition columns that selects the unit's rows; None where the write has one unit, or
            the table is partitioned otherwise. Scopes of two units of one attempt must not overlap.
    """

    writer: str
    part: str
    scope: Expression | None = None

    @property
    def name(self) -> str:
        """The application id under which the table records the unit, and the text in a `unit_column`."""
        return f"{self.writer}:{self.part}"


def escaped(part: str, separators: str) -> str:
    """A part of a unit's name, with `%` and the separators percent-encoded: distinct parts stay distinct."""
    for char in "%" + separators:
        part = part.replace(char, f"%{ord(char):02X}")
    return part


def recorded_order(snapshot: TableSnapshot, name: str) -> int | None:
    """The order under which a table has recorded a unit; None where it has not, or has taken it back."""
    order = snapshot.txn_version(name)
    return None if order is None or order < 0 else order


def find_txn_commit(table: DeltaTable, app_id: str, order: int | None = None) -> Commit | None:
    """The newest commit of a table that recorded an identifier, or exactly this version of it; None where the log does
    not hold it any more. Reads the log from its newest commit backwards.

    Raises:
        DeltaError: The log cannot be read.
    """
    return LogWalk(table.log, table.version()).find(app_id, order)


Relation = OneOf["own", "earlier", "later"]
"""What the recorded attempt is to this one. `own`: it crashed after its commit, and this one repeats it."""


def by_order(recorded: RecordedUnit, order: int) -> Relation:
    """Attempts that differ in nothing but their orders."""
    return "own" if recorded.order == order else "earlier" if recorded.order < order else "later"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a step: which units it writes, and where it stands among the attempts at them.

    Attributes:
        units: At least one. All of them are written by one commit, or each batch of changes by one.
        order: A later attempt has a higher order. An attempt that repeats another one may have the same order.
        run_id: The orchestrator's, for messages and `table.undo(run=…)`.
        relation: What a recorded attempt is to this one; by default the orders tell.
    """

    units: tuple[Unit, ...]
    order: int
    run_id: str
    relation: Callable[[RecordedUnit, int], Relation] = by_order

    def __post_init__(self) -> None:
        """Raises InvalidRequestError: No unit, or two of one name."""
        names = [unit.name for unit in self.units]
        if not names or len(set(names)) < len(names):
            raise InvalidRequestError(
                f"Run {self.run_id} writes {'a unit twice' if names else 'no unit'}",
                cause="An attempt names each unit that it writes once",
                remedy="Name at least one partition, and none twice",
                run_id=self.run_id,
            )

    def relation_to(self, recorded: RecordedUnit) -> Relation:
        """Compare this attempt with a recorded one."""
        return self.relation(recorded, self.order)

    def next_order(self, recorded: RecordedUnit | None) -> int:
        """The order under which this attempt commits. Clocks of two machines may differ, but the commit stands behind
        the one that it replaces."""
        return self.order if recorded is None else max(self.order, recorded.order + 1)


_ROWS = "numOutputRows"
_CHANGED_ROWS = {
    "numTargetRowsInserted": "inserted",
    "numTargetRowsUpdated": "updated",
    "numTargetRowsDeleted": "deleted",
}
"""The metrics of a merge, which also writes rows that it did not change."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of a step.

    Attributes:
        table: The table.
        version: The version it committed, or of `recovered` the commit that was found. Otherwise the version it found;
            None without a table, and of a staged write.
        outcome: See `unit.Outcome`.
        rows_replaced: For `replaced`: the number of removed rows, if the log has it.
        fenced_by: For `fenced`: the run that has written the unit.
        reason: Why it changed nothing.
        left_out: Units that the commit left as they are: a newer run has written them, or this one before.
        commit: The last commit; None where the step was over before it computed anything.
        recovered: The commit that stands for the one that this attempt would have made.
        batches: The batches of changes or files that an incremental step processed, in order.
        findings: What the audits found before the commit.
        expected: What the rules of the step found (`Step.expect`); None without rules, and of a step that computed
            nothing.
    """

    table: DeltaTable
    version: int | None
    outcome: Outcome
    rows_replaced: int | None = None
    fenced_by: str | None = None
    reason: str | None = None
    left_out: tuple[str, ...] = ()
    commit: CommitResult | None = None
    recovered: RecordedUnit | None = None
    batches: tuple[ChangeBatch | FileBatch, ...] = ()
    findings: tuple[AuditFinding, ...] = ()
    expected: ExpectationReport | None = None

    @property
    def has_written(self) -> bool:
        """Whether the step has made a commit of its own, or one that waits to be published."""
        return self.outcome in ("written", "replaced")

    def sentence(self) -> str:
        """The outcome in one line."""
        place = f"version {self.version} of {self.table.uri}"
        if self.version is None and self.has_written:
            place = f"staged for {self.table.uri}, and not published yet"
        if self.outcome == "written":
            return f"Written: {', '.join([*self._row_counts(), place])}"
        if self.outcome == "replaced" and self.rows_replaced == 0:
            return f"Done again: {place}"
        if self.outcome == "replaced":
            rows = "the rows" if self.rows_replaced is None else f"{self.rows_replaced:,} rows"
            return f"Replaced {rows} that an earlier attempt wrote: {place}"
        if self.outcome == "recovered":
            return f"Recovered: {self.reason}, {place}"
        if self.outcome == "fenced":
            return f"Fenced: {self.reason}, and {self.table.uri} stays as it is"
        return f"Nothing new: {self.reason or 'there was nothing to do'}"

    def _row_counts(self) -> list[str]:
        """The rows of the commit in words; nothing where the commit is one of several."""
        metrics = self.metrics if len(self.batches) < 2 else {}
        counted = {name: int(metrics[name]) for name in (*_CHANGED_ROWS, _ROWS) if str(metrics.get(name)).isdecimal()}
        if changed := [f"{counted[name]:,} {what}" for name, what in _CHANGED_ROWS.items() if counted.get(name)]:
            return changed
        return [] if _ROWS not in counted else [f"{counted[_ROWS]:,} rows"]

    @property
    def metrics(self) -> dict[str, int | str]:
        """`commitInfo.operationMetrics` of the last commit."""
        if self.recovered is not None:
            metrics = self.recovered.commit_info.get("operationMetrics")
            return dict(metrics) if isinstance(metrics, Mapping) else {}
        return {} if self.commit is None else dict(self.commit.operation_metrics)

    def snapshot(self) -> TableSnapshot:
        """The table as the step left it: the version it committed, else the newest.

        Raises:
            TableNotFoundError: There is no table.
        """
        newest = self.table.snapshot()
        # Others may have committed since.
        is_own = self.has_written or self.recovered is not None
        return (
            newest
            if self.version in (None, newest.version) or not is_own
            else self.table.snapshot(version=self.version)
        )
