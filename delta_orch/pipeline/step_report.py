"""What a step did: its outcome, its commit, and what an orchestrator tells its users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.pipeline.unit import Outcome
from delta_orch.verbs.unit_records import RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.pipeline.audit import AuditFinding
    from delta_orch.pipeline.file_reader import FileBatch
    from delta_orch.pipeline.incremental import ChangeBatch
    from delta_orch.verbs.expect import ExpectationReport


_ROWS = "numOutputRows"
_CHANGED_ROWS = {
    "numTargetRowsInserted": "inserted",
    "numTargetRowsUpdated": "updated",
    "numTargetRowsDeleted": "deleted",
}
"""The metrics of a merge, which also writes rows that it did not change."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did.

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
        """What happened, in one line."""
        place = f"version {self.version} of {self.table.uri}"
        if self.version is None and self.has_written:
            place = f"staged for {self.table.uri}, and not published yet"
        if self.outcome == "written":
            return f"Written: {', '.join([*self._rows_told(), place])}"
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

    def _rows_told(self) -> list[str]:
        """The rows of the commit in words; nothing where the commit is one of several."""
        metrics = self.metrics if len(self.batches) < 2 else {}
        counted = {name: int(metrics[name]) for name in (*_CHANGED_ROWS, _ROWS) if str(metrics.get(name)).isdecimal()}
        if told := [f"{counted[name]:,} {what}" for name, what in _CHANGED_ROWS.items() if counted.get(name)]:
            return told
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
