"""One write of one task, once: the table's transactions and Airflow's record of the attempts, taken together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from delta_orch.airflow.attempts import Attempts, Verdict, judge
from delta_orch.errors import ConcurrentTransactionError, InvalidRequestError
from delta_orch.pipeline.recorded import find_txn_commit
from delta_orch.pipeline.run_identity import Idempotency, airflow_writer
from delta_orch.pipeline.step import ALREADY_COMMITTED, Step, StepReport, snapshot_or_none

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.write.commit_result import CommitResult


class OnceWriter:
    """Runs a step under the transaction of a task, unless that is recorded.

    Args:
        context: Airflow's.
        run: Of the context.
        table: The table that is written.
        idempotency: See `Idempotency`.
        name: What is written, in the user's words.
        adds: The write leaves the rows that are there; done twice it doubles its own.
        replaces_table: The write replaces every row.
        work: See `work_of`.
    """

    def __init__(
        self,
        context: Context,
        run: TaskRun,
        table: DeltaTable,
        *,
        idempotency: Idempotency,
        name: str | None,
        adds: bool,
        replaces_table: bool = False,
        work: str = "",
    ) -> None:
        self._context = context
        self._run = run
        self._table = table
        self._idempotency = idempotency
        self._name = name
        self._adds = adds
        self._replaces_table = replaces_table
        self._work = work if run.map_index >= 0 and name is None else ""

    def commit(self, name: str, verb: Callable[[tuple[TxnId, ...]], CommitResult]) -> StepReport:
        """As `run`, for a verb of the table that takes the identifiers."""
        return self._once(
            Step(name, self._table), lambda step: step.already_done() or _report(self._table, verb(step.txns))
        )

    def submit(self, name: str, program: Callable[[tuple[TxnId, ...]], None]) -> StepReport:
        """As `commit`, for a program that makes the commit elsewhere; it is found again in the log.

        Raises:
            InvalidRequestError: As `run`; or the program has ended without the commit.
        """

        def carried_out(step: Step) -> StepReport:
            done = step.already_done()
            if done is not None:
                return done
            program(step.txns)
            txn = step.txns[-1]
            found = find_txn_commit(self._table, txn.app_id, txn.version) if self._table.exists() else None
            if found is None or found.version is None:
                raise InvalidRequestError(
                    f"{name} ran a program that has not committed to {self._table.uri} under the run's transaction",
                    cause="Without it a retry could not tell whether the work is done",
                    remedy="Pass submitted_run().options to the verb that writes: table.append(rows, **run.options)",
                )
            return StepReport(self._table, found.version, False, recovered=found)

        return self._once(Step(name, self._table), carried_out)

    def run(self, step: Step, rows: Callable[[], object]) -> StepReport:
        """The report of the step; `recovered` where an earlier attempt of this task had made its commit.

        Raises:
            InvalidRequestError: What is recorded is not this task's, and writing would double or replace rows.
            DeltaError: As `Step.run`.
        """
        return self._once(step, lambda step: step.run(rows))

    def _once(self, step: Step, write: Callable[[Step], StepReport]) -> StepReport:
        txns = self._txns(self._run)
        if not txns:
            return write(step)
        before = snapshot_or_none(self._table)
        self._ensure_alone(txns[-1], before)
        attempts = Attempts(self._context)
        txns, verdict, recorded = self._judged(txns, before, attempts)
        if verdict is Verdict.OWN:
            attempts.note_acknowledgement()
            assert recorded is not None
            return step.recover(replace(txns[-1], version=recorded))
        if self._adds and verdict is Verdict.WRITE:
            # An attempt that was cleared, and lives on, may commit while this one works.
            txns = (*txns[:-1], replace(txns[-1], follows=-1 if recorded is None else recorded))
        if verdict is not Verdict.LEAVE:
            attempts.begin(txns[-1].version, self._work, -1 if before is None else before.version)
        try:
            report = write(replace(step, txns=txns))
        except ConcurrentTransactionError as error:
            if txns[-1].app_id not in error.context.get("app_ids", ()):
                raise
            raise InvalidRequestError(
                f"{step.name} has found rows that an attempt which was cleared has added meanwhile",
                cause="That attempt was not dead; adding the rows again would double them",
                remedy="Clear the task again to add them a second time, or mark it as a success",
            ) from error
        if report.skipped and report.skipped_txns and verdict is not Verdict.LEAVE:
            unit = txns[-1]
            if self._table.snapshot().txn_version(unit.app_id) == unit.version:
                # Another process of this very attempt, which Airflow took for dead, came first.
                return step.recover(unit)
        return report

    def _txns(self, run: TaskRun) -> tuple[TxnId, ...]:
        return run.write_txns(self._idempotency, self._name, replaces_table=self._replaces_table, adds=self._adds)

    def _judged(
        self, txns: tuple[TxnId, ...], before: TableSnapshot | None, attempts: Attempts
    ) -> tuple[tuple[TxnId, ...], Verdict, int | None]:
        unit = txns[-1]
        recorded = None if before is None else before.txn_version(unit.app_id)
        if self._idempotency == "partition":
            marker = attempts.marker
            is_own = marker is not None and marker.version == recorded and not marker.acknowledged
            verdict = Verdict.WRITE if recorded is None else Verdict.OWN if is_own else Verdict.LEAVE
            return txns, verdict, recorded
        verdict = judge(unit.version, recorded, attempts.marker, self._work, adds=self._adds, knows=attempts.knows)
        if verdict is Verdict.AGAIN:
            txns = self._txns(self._run.as_newer_run())
            if recorded is not None and txns[-1].version <= recorded:
                raise InvalidRequestError(
                    "A run of the same name has written this before, and started later than this one",
                    remedy="Clear the task to write again",
                )
        return txns, verdict, recorded

    def _ensure_alone(self, unit: TxnId, before: TableSnapshot | None) -> None:
        """Mapped tasks that each replace the whole of one table leave the rows of the last."""
        run = self._run
        if not self._replaces_table or run.map_index < 0 or before is None:
            return
        step = airflow_writer(run.dag_id, run.task_id) + "["
        partition = unit.app_id.partition("]:")[2]
        for app_id, version in before.txns.items():
            other = app_id.startswith(step) and app_id.endswith(f"]:{partition}") and app_id != unit.app_id
            if other and version // 1000 == unit.version // 1000:
                raise InvalidRequestError(
                    f"Map index {run.map_index} of task {run.task_id} would replace the rows of another one",
                    cause="Each mapped task of one run replaces the whole table",
                    remedy="Pass replace_where, partition_overwrite_mode='dynamic' or mode='append'",
                )


def _report(table: DeltaTable, result: CommitResult) -> StepReport:
    stale = result.skipped_txns
    return StepReport(table, result.version, result.skipped, ALREADY_COMMITTED if stale else None, stale, result)


def work_of(operator: BaseOperator) -> str:
    """A digest of an operator's rendered arguments, by which one expansion of a mapped task is told from another."""
    import hashlib
    import json

    fields = [[name, _comparable(getattr(operator, name, None))] for name in sorted(operator.template_fields)]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


def _comparable(value: object) -> object:
    """A value as JSON. What JSON does not have counts by its type: two attempts must not differ by an address."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, date | timedelta):
        return str(value)
    if isinstance(value, Mapping):
        return sorted(([str(key), _comparable(part)] for key, part in value.items()), key=lambda pair: str(pair[0]))
    if isinstance(value, list | tuple):
        return [_comparable(part) for part in value]
    return type(value).__qualname__
