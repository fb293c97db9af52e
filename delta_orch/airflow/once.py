"""One write of one task, once: the table's transactions and Airflow's record of the attempts, taken together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.attempts import (
    Attempts,
    Clearing,
    Marker,
    Verdict,
    handed_on,
    judge,
    lived_on,
    recreated,
    renamed,
)
from delta_orch.airflow.neighbors import Neighbors
from delta_orch.airflow.rebuilds import ensure_in_time, newer_rebuilds, newer_removals, overtaken
from delta_orch.airflow.siblings import ensure_own_name, ensure_spared, has_to_spare
from delta_orch.airflow.stateless import CREATING, cannot_add, judge_by_table
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument
from delta_orch.airflow.taken import are_taken, ensure_last, forget
from delta_orch.errors import ConcurrentTransactionError, InvalidRequestError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit
from delta_orch.pipeline.run_identity import IDEMPOTENCY, Idempotency
from delta_orch.pipeline.step import ALREADY_COMMITTED, Look, Step, StepReport
from delta_orch.pipeline.submitted import carry_out
from delta_orch.pipeline.target_table import snapshot_or_none

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.staged_write import StagedWrite

BY_KEYS = ("merge", "scd2")
"""Modes of steps that leave the rows of other keys."""


@dataclass(frozen=True, kw_only=True)
class OnceWriter:
    """Runs a step under the transaction of a task, unless that is recorded.

    Attributes:
        tasks: Beside the one that writes.
        table: The table that is written.
        idempotency: See `Idempotency`.
        name: What is written, in the user's words.
        adds: The write leaves the rows that are there; done twice it doubles its own.
        replaces_table: The write replaces every row.
        is_said: Its arguments say all it does, so that an attempt which may have been cleared counts if it has done it.
            Where a function computes rows, those that an attempt computed before it was cleared do not.
        work: See `work_of`.
        clauses: Of a merge by clauses: their names.
        is_told: Whether Airflow has heard of this version from the task that commits it, if that is another one.
    """

    tasks: Neighbors
    table: DeltaTable
    idempotency: Idempotency
    name: str | None
    adds: bool
    replaces_table: bool = False
    is_said: bool = False
    work: str = ""
    clauses: Sequence[str] = ()
    is_told: Callable[[int | None], bool] | None = None

    def commit(self, name: str, verb: Callable[[tuple[TxnId, ...]], CommitResult]) -> StepReport:
        """As `run`, for a verb of the table that takes the identifiers."""
        return self._once(
            Step(name, self.table), lambda step: step.already_done() or report_of(self.table, verb(step.txns))
        )

    def submit(self, name: str, program: Callable[[tuple[TxnId, ...]], None]) -> StepReport:
        """As `commit`, for a program that makes the commit elsewhere; it is found again in the log.

        Raises:
            InvalidRequestError: As `run`; or the program has ended without the commit.
        """
        return self._once(Step(name, self.table), lambda step: carry_out(step, partial(program, step.txns)))

    def run(self, step: Step, rows: Callable[[], object]) -> StepReport:
        """The report of the step; `recovered` where an earlier attempt of this task had made its commit.

        Raises:
            InvalidRequestError: What is recorded is not this task's, and writing would double or replace rows.
            DeltaError: As `Step.run`.
        """

        def write(step: Step) -> StepReport:
            # An upsert rewrites whole files: those of a file do not tell whose keys it replaces.
            look: Look | None = None if step.mode in BY_KEYS else self.look(step.txns, step.where)
            if self.adds and self.idempotency == "run" and self.tasks.removing():
                look = partial(ensure_in_time, self.tasks, self.table)
            return (step if look is None else replace(step, look=look)).run(rows)

        return self._once(step, write)

    def look(self, txns: Sequence[TxnId], where: str | Expression | None) -> Callable[[StagedWrite], None] | None:
        """What is to look at a write that replaces or deletes rows, before it is published (`ensure_spared`). None
        where nobody else can have written them in this run, or a newer one."""
        now, deletes = snapshot_or_none(self.table), any(name.endswith("_delete") for name in self.clauses)
        known = {} if now is None else now.txns
        unit = txns[-1] if txns else None
        # A newer run may commit while this one works.
        may_be_late = unit is not None and not self.adds and not self.replaces_table
        if (self.adds and not deletes) or not (may_be_late or has_to_spare(self.tasks, known, is_merge=deletes)):
            return None
        given = (self.tasks, self.table, unit)
        return partial(ensure_spared, *given, replaces_table=self.replaces_table, where=where)

    def _once(self, step: Step, write: Callable[[Step], StepReport]) -> StepReport:
        txns = self._txns(self.tasks.run)
        if not txns:
            return write(step)
        if self.adds and self.idempotency == "run" and not self.tasks.run.keeps_state and step.mode not in CREATING:
            raise cannot_add(step.name)
        before = snapshot_or_none(self.table)
        attempts = Attempts(self.tasks.context, self.tasks.run)
        begin = partial(attempts.begin, work=self.work, table_version=-1 if before is None else before.version)
        recorded, marker = _recorded(before, txns[-1].app_id), attempts.marker
        if marker is not None and marker.app_id not in ("", txns[-1].app_id):
            if self._has_added(marker, _recorded(before, marker.app_id), txns[-1]):
                attempts.refuse()
                raise renamed(step.name)
            marker = None
        if self.adds and not self.tasks.run.keeps_state and recorded is None and before is not None:
            self._ensure_not_renamed(step.name, txns[-1].app_id)
        if self.adds and marker is not None and not self._is_heard_of(txns[-1].app_id, marker, recorded):
            # What it staged may be published all the same: by a task that died then.
            marker = replace(marker, acknowledged=False)
        txns = self._placed(txns, marker)
        if recorded is not None:
            self._ensure_own_name(txns[-1])
            if self._are_gone(attempts, marker, txns[-1], recorded):
                forget(self.tasks.run, self.table, txns[-1].app_id)
                recorded = None
        txns, verdict = self._judged(txns, recorded, marker, mode=step.mode)
        if verdict is Verdict.OWN:
            assert recorded is not None
            if self.clauses:
                ensure_last(self.tasks, self.table, txns[-1].app_id, recorded)
            if marker is not None:
                attempts.go_on(marker)
            return step.recover(replace(txns[-1], version=recorded))
        if self.adds and verdict is Verdict.WRITE:
            if _is_late(recorded, marker):
                attempts.refuse(txns[-1])
                raise lived_on(step.name)
            is_undecided = marker is None or (marker.refused and not marker.acknowledged)
            if self.name is not None and is_undecided and self._is_siblings(txns[-1].app_id, recorded):
                attempts.refuse(txns[-1])
                raise handed_on(step.name, self.name)
        if verdict is not Verdict.LEAVE:
            begin(txns[-1], recorded)
        if self.adds and verdict is Verdict.WRITE:
            # An attempt that was cleared, and lives on, may commit while this one works.
            txns = (*txns[:-1], replace(txns[-1], follows=-1 if recorded is None else recorded))
        rebuilds, removals = self._newer(before, step.mode)
        try:
            report = write(replace(step, txns=(*rebuilds, *removals, *txns)))
        except ConcurrentTransactionError as error:
            if txns[-1].app_id not in error.context.get("app_ids", ()):
                raise
            self._ensure_own_name(txns[-1])
            attempts.refuse(txns[-1])
            raise lived_on(step.name) from error
        late = [txn.app_id for txn in report.skipped_txns if txn in removals]
        if late and txns[-1] not in report.skipped_txns:
            raise overtaken(step.name, late[0].partition(".")[2].partition(":")[0].partition("[")[0])
        if verdict is not Verdict.LEAVE and (report.skipped or report.recovered is not None):
            self._ensure_own_name(txns[-1])
        if report.skipped and report.skipped_txns and verdict is not Verdict.LEAVE:
            unit = txns[-1]
            if self.table.snapshot().txn_version(unit.app_id) == unit.version:
                # Another process of this very attempt, which Airflow took for dead, came first.
                return step.recover(unit)
        return report

    def _newer(self, before: TableSnapshot | None, mode: str) -> tuple[tuple[TxnId, ...], tuple[TxnId, ...]]:
        """What keeps the write out. One that replaces the table has an order of its own; what stays beside the rows
        that are there must not come after those of a newer run."""
        is_beside = (self.adds or mode in BY_KEYS) and self.idempotency == "run"
        about = None if before is None else (self.tasks, self.table, before)
        rebuilds = newer_rebuilds(*about) if about and not self.replaces_table else ()
        return rebuilds, newer_removals(*about) if about and is_beside else ()

    def _is_heard_of(self, app_id: str, marker: Marker, recorded: int | None) -> bool:
        """Whether Airflow knows of what is committed. True where it is this task that commits."""
        if self.is_told is None or marker.refused:
            return True
        is_out = recorded == marker.version
        return is_out and self.is_told(find_txn_commit(self.table, app_id, recorded).version)

    def _ensure_own_name(self, unit: TxnId) -> None:
        """Raise, if another mapped task of the run has recorded the identifier; the table has it."""
        if self.tasks.run.map_index >= 0 and self.name is not None and self.idempotency != "partition":
            ensure_own_name(self.tasks, self.table, unit.app_id, self.name)

    def _is_siblings(self, app_id: str, recorded: int | None) -> bool:
        """Whether another index of this task has recorded the identifier in this run."""
        found = None if recorded is None else find_txn_commit(self.table, app_id, recorded)
        return found is not None and self.tasks.run.is_of_sibling(found.commit_info or {})

    def _ensure_not_renamed(self, name: str, app_id: str) -> None:
        """As `_has_added`, where commits alone tell. Of a mapped task they do not tell whether its list has changed."""
        run = self.tasks.run
        if (
            run.try_number > 1
            and run.map_index < 0
            and find_commit_after(
                self.table,
                -1,
                run.is_of_task,
                since_ms=run.since_ms,
                also=lambda commit: bool(commit.txns) and all(txn.app_id != app_id for txn in commit.txns),
            )
        ):
            raise renamed(name)

    def _are_gone(self, attempts: Attempts, marker: Marker | None, unit: TxnId, recorded: int) -> bool:
        """Whether rows that are recorded, and would be left so, are there no more."""
        is_once, is_asked = self.idempotency == "partition", marker is not None and marker.acknowledged
        if marker is not None and marker.refused and is_asked:
            return is_once
        if not self.adds and self.tasks.run.keeps_state and unit.version > recorded:
            return False  # What replaces its rows, and was cleared, does so, whatever has become of them.
        again = marker is not None and marker.clearing(self.tasks.run, unit.version) is Clearing.CERTAIN
        given, stands = (self.tasks, self.table, unit.app_id, recorded), is_once or not is_asked
        try:
            return are_taken(*given, stands=stands, again=again and not is_once) and stands
        except InvalidRequestError:
            attempts.refuse(unit)
            raise

    def _has_added(self, marker: Marker, recorded: int | None, unit: TxnId) -> bool:
        """Whether an attempt under another identity has added the rows of this one, and Airflow has not heard of it.
        A mapped task whose list has changed has other work; its retry has not."""
        if not self.adds or recorded != marker.version:
            return False
        if marker.acknowledged and self._is_heard_of(marker.app_id, marker, recorded):
            return False
        run = self.tasks.run
        is_retry = marker.clearing(run, unit.version) is Clearing.NONE
        return run.map_index < 0 or is_retry or marker.work == self.work

    def _txns(self, run: TaskRun) -> tuple[TxnId, ...]:
        return run.write_txns(self.idempotency, self.name, replaces_table=self.replaces_table, adds=self.adds)

    def _placed(self, txns: tuple[TxnId, ...], marker: Marker | None) -> tuple[TxnId, ...]:
        """The identifiers of this attempt: those of the attempt before it, or after a clearing newer ones."""
        if marker is None or self.idempotency == "partition":
            return txns
        clearing = marker.clearing(self.tasks.run, txns[-1].version)
        if clearing is Clearing.NONE or (clearing is Clearing.PERHAPS and self.is_said):
            return (*txns[:-1], replace(txns[-1], version=marker.version))
        if clearing is Clearing.CERTAIN:
            txns = self._txns(self.tasks.run.as_newer_run())
        return (*txns[:-1], replace(txns[-1], version=max(txns[-1].version, marker.version + 1)))

    def _judged(
        self,
        txns: tuple[TxnId, ...],
        recorded: int | None,
        marker: Marker | None,
        *,
        mode: str,
    ) -> tuple[tuple[TxnId, ...], Verdict]:
        unit, knows = txns[-1], self.tasks.run.keeps_state
        is_once = self.idempotency == "partition"
        if not knows:
            # What creates a table has nothing to do again, were it cleared or not.
            is_said = self.is_said or mode in CREATING
            verdict = judge_by_table(
                self.tasks.run, self.table, unit, recorded, once_a_partition=is_once, is_said=is_said
            )
        elif is_once:
            is_own = marker is not None and marker.version == recorded and not marker.acknowledged
            verdict = Verdict.WRITE if recorded is None else Verdict.OWN if is_own else Verdict.LEAVE
            return txns, verdict
        else:
            # An index stands for its arguments, where no name says what it writes.
            is_index = self.tasks.run.map_index >= 0 and self.name is None
            is_same = not is_index or marker is None or marker.work == self.work
            verdict = judge(unit.version, recorded, marker, is_same=is_same, adds=self.adds)
        if marker is None and knows and recorded is not None and verdict in (Verdict.LEAVE, Verdict.AGAIN):
            info = find_txn_commit(self.table, unit.app_id, recorded).commit_info or {}
            if self.tasks.run.is_of_run(info) or self.tasks.run.is_asked_after(info):
                # Not of a newer run, but of this one as it was before it was deleted and created again; or of one that
                # is to be replaced.
                verdict = Verdict.AGAIN
        if verdict is Verdict.AGAIN and mode == "ignore":
            return txns, Verdict.LEAVE
        if verdict is Verdict.AGAIN:
            if self.adds:
                raise recreated()
            txns = self._txns(self.tasks.run.as_newer_run())
            if recorded is not None and txns[-1].version <= recorded:
                raise InvalidRequestError(
                    "A run of the same name has written this before, and started later than this one",
                    remedy="Clear the task to write again",
                )
        return txns, verdict


class DeltaOnceOperator(DeltaTableOperator):
    """Base of the operators that make one commit under the task's transaction. `DeltaWriteOperator` describes the
    arguments."""

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "identity")
    choices: Mapping[str, Sequence[object]] = MappingProxyType({"idempotency": IDEMPOTENCY})

    def __init__(self, *, idempotency: str = "run", identity: str | None = None, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.idempotency = idempotency
        self.identity = identity
        self.ensure_text("identity", identity)
        if identity is not None and idempotency == "off":
            raise self.refusal("has identity, which idempotency='off' does not use")

    def once(self, context: Context, run: TaskRun, table: DeltaTable, **kind: Any) -> OnceWriter:
        """Under the task's transaction. `kind`: what `OnceWriter` is to know of the write."""
        return OnceWriter(
            tasks=Neighbors(context, run),
            table=table,
            idempotency=cast("Idempotency", self.idempotency),
            name=self.identity,
            work=work_of(self),
            **kind,
        )


def _recorded(table: TableSnapshot | None, app_id: str) -> int | None:
    """The version of a transaction in a table; None where a restore has undone it."""
    version = None if table is None else table.txn_version(app_id)
    return None if version is None or version < 0 else version


def _is_late(recorded: int | None, marker: Marker | None) -> bool:
    """Whether an attempt before the one that left the marker has committed after it was left."""
    if recorded is None or marker is None or marker.acknowledged or marker.recorded is None:
        return False
    return recorded not in (marker.recorded, marker.version)


def report_of(table: DeltaTable, result: CommitResult) -> StepReport:
    """What a verb has done."""
    stale = result.skipped_txns
    return StepReport(table, result.version, result.skipped, ALREADY_COMMITTED if stale else None, stale, result)


def work_of(operator: BaseOperator) -> str:
    """A digest of an operator's rendered arguments but for its identity, by which one expansion of a mapped task is
    told from another."""
    import hashlib
    import json

    names = sorted({*operator.template_fields} - {"identity"})
    fields = [[name, _comparable(getattr(operator, name, None))] for name in names]
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
