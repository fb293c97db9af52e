"""What a task instance's context says about who writes: the transaction id and the commit's user metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.recorded import said_by
from delta_orch.pipeline.run_identity import Idempotency, RunIdentity, airflow_version, airflow_writer, interval_text

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

CLOCKS_DIFFER_MS = 3_600_000
"""How far the clock of a writer may be behind Airflow's."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One attempt of one task instance.

    Attributes:
        dag_id: As Airflow spells it.
        task_id: With the task groups it is in.
        map_index: -1 for a task that is not mapped.
        run_id: The DAG run's.
        is_backfill: A user has asked for this run, or for its reprocessing.
        try_number: 1 for the first attempt. It is not part of the identity.
        partition_key: The DAG run's, where it has one.
        data_interval: Start and end; None for runs without a logical date.
        run_after: The DAG run's.
        ordered_at: Where the task stands in time: a later run may replace what an earlier one wrote, not the reverse.
        clear_count: 0 until the task is cleared; grows with each clearing that Airflow counts, never by a retry.
        max_tries: Airflow's. A clearing moves it, unless the task was running.
        clear_number: How often any task of the run was cleared, where its run was told.
        since_ms: In milliseconds since the epoch: no commit of the run is older, however clocks differ.
        started_ms: When the run started; a run that had ended and was cleared has started anew.
        log_url: The attempt's page in Airflow, where Airflow tells it.
        retries: The task's, as the DAG has them now.
        attempt_id: Airflow's; each try has another one, and later tries later ones.
        keeps_state: Airflow keeps state of tasks (`attempts`). Else commits tell how Airflow counted their attempts,
            and each attempt is newer than those before it (`stateless`).
    """

    dag_id: str
    task_id: str
    map_index: int
    run_id: str
    try_number: int
    partition_key: str | None
    data_interval: tuple[datetime, datetime] | None
    run_after: datetime
    ordered_at: datetime
    clear_count: int
    max_tries: int
    clear_number: int
    since_ms: float
    started_ms: float
    log_url: str | None = None
    retries: int = 0
    attempt_id: str = ""
    is_backfill: bool = False
    keeps_state: bool = True

    @classmethod
    def from_context(cls, context: Context) -> TaskRun:
        """Read it from the context that Airflow passes to `execute`."""
        ti, dag_run = context["ti"], context["dag_run"]
        clear_count = _clear_count(ti, dag_run.clear_number)
        return cls(
            dag_id=ti.dag_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            run_id=ti.run_id,
            try_number=ti.try_number,
            # 3.0 and 3.1 have none.
            partition_key=getattr(dag_run, "partition_key", None),
            data_interval=_interval(dag_run.data_interval_start, dag_run.data_interval_end),
            run_after=dag_run.run_after,
            ordered_at=_ordered_at(dag_run.run_after, dag_run.start_date, clear_count),
            clear_count=clear_count,
            max_tries=ti.max_tries,
            clear_number=dag_run.clear_number or 0,
            since_ms=dag_run.run_after.timestamp() * 1000 - CLOCKS_DIFFER_MS,
            started_ms=(dag_run.start_date or dag_run.run_after).timestamp() * 1000,
            log_url=getattr(ti, "log_url", None),
            retries=ti.task.retries or 0,
            attempt_id=str(getattr(ti, "id", "")),
            is_backfill=getattr(dag_run, "run_type", None) == "backfill",
            keeps_state=context.get("task_state_store") is not None,
        )

    def identity(self, name: str | None = None) -> RunIdentity:
        """Who writes; every attempt of this task instance has the same identity.

        Args:
            name: What is written, in place of the map index.
        """
        partition = self.partition_key
        if partition is None and self.data_interval is not None:
            partition = interval_text(*self.data_interval)
        return RunIdentity(
            airflow_writer(self.dag_id, self.task_id, self.map_index, name),
            airflow_version(self.ordered_at, self.clear_count if self.keeps_state else self.try_number),
            self.run_id,
            partition,
        )

    def write_txns(
        self, idempotency: Idempotency, name: str | None, *, replaces_table: bool, adds: bool = False
    ) -> tuple[TxnId, ...]:
        """The identifiers of a write: what is written and by which run, last; before it, for a write that replaces the
        whole table, how far the table has come in time.

        Rows that a write `adds` are its run's, once (`idempotency='run'`): no other run of the interval replaces them,
        so none keeps them out, in whatever order the two commit.

        Runs that replace the table are ordered by the end of their data interval: a late run of an older one, or one
        that is cleared, does not replace what a newer one wrote. A run without interval is ordered by its own time.

        Raises:
            InvalidRequestError: A mapped task without `name` writes once per partition, or `name` is empty.
        """
        if idempotency == "off":
            return ()
        if idempotency == "partition" and self.map_index >= 0 and name is None:
            raise InvalidRequestError(
                f"Task {self.task_id} is mapped and has idempotency='partition', but no identity",
                cause="A map index does not identify rows: when the list changes, the same index stands for other rows",
                remedy="Name what each mapped task writes: identity='{{ … }}'",
            )
        identity = self.identity(name)
        if identity.partition is None and idempotency == "partition" and name is not None:
            identity = replace(identity, partition="")
        if adds and idempotency == "run":
            identity = replace(identity, partition=None)
        unit = identity.txns(idempotency, by_run=not replaces_table)
        if not replaces_table or identity.partition is None:
            return unit
        until = self.data_interval[1] if self.data_interval else self.ordered_at
        table = airflow_writer(self.dag_id, self.task_id, identity=name)
        return (TxnId(f"{table}:", airflow_version(until), ordered=True), *unit)

    def as_newer_run(self) -> TaskRun:
        """This run, ordered by now: for one whose place in time another run of its name has taken."""
        return replace(self, ordered_at=max(self.ordered_at, datetime.now(UTC)))

    def newest(self, recorded: Iterable[tuple[str, int]]) -> int:
        """The highest version among transactions of this DAG: where the newest run that has recorded one stands.

        Args:
            recorded: App ids and versions.
        """
        dag = airflow_writer(self.dag_id, self.task_id).partition(".")[0] + "."
        return max((version for app_id, version in recorded if app_id.startswith(dag)), default=0)

    def is_behind(self, unit: TxnId, recorded: Iterable[tuple[str, int]]) -> bool:
        """Whether a newer run of this DAG is among those that have recorded transactions.

        Args:
            unit: The transaction of this run's write. A clearing makes it newer than all before; those of
                `idempotency="partition"` have no order.
            recorded: App ids and versions.
        """
        return 0 < unit.version < self.newest(recorded)

    def is_of_run(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made in this run, as `user_metadata` tells it."""
        return self._is_said(commit_info, "dag_id", "run_id")

    def is_asked_after(self, commit_info: Mapping[str, object]) -> bool:
        """Whether this is a backfill that was begun after a commit: whose ever it is, it is to be replaced."""
        at = commit_info.get("timestamp")
        return self.is_backfill and isinstance(at, int) and at < self.started_ms

    def is_of_task(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made by an attempt of this task instance."""
        return self._is_said(commit_info, "dag_id", "run_id", "task_id", "map_index")

    def is_of_another_task(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made in this run by another task, or another index of this one."""
        return self.is_of_run(commit_info) and not self.is_of_task(commit_info)

    def is_of_sibling(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made in this run by another index of this task."""
        return self._is_said(commit_info, "dag_id", "run_id", "task_id") and not self.is_of_task(commit_info)

    def map_index_of(self, commit_info: Mapping[str, object]) -> int:
        """Of the task instance that made a commit; -1 also where it is not said."""
        index = said_by(commit_info).get("map_index")
        return index if isinstance(index, int) else -1

    def is_this_attempt(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made by this attempt, in another process."""
        return self.counted_at(commit_info).get("id") == self.attempt_id

    def is_after(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit of this task instance was made by an attempt of fewer tries."""
        tries = said_by(commit_info).get("try_number")
        return isinstance(tries, int) and tries < self.try_number

    def is_before(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit of this task instance was made by an attempt that Airflow began after this one: of more
        tries, but not those of a run that was deleted before this one was created."""
        tries = said_by(commit_info).get("try_number")
        began = self.counted_at(commit_info).get("id")
        return isinstance(tries, int) and tries > self.try_number and str(began) > self.attempt_id

    def counted_at(self, commit_info: Mapping[str, object]) -> Mapping[str, object]:
        """How Airflow counted the attempt that made a commit, where `user_metadata` told it."""
        counted = said_by(commit_info).get("attempt")
        return counted if isinstance(counted, dict) else {}

    def _is_said(self, commit_info: Mapping[str, object], *names: str) -> bool:
        said = said_by(commit_info)
        return bool(said) and all(said.get(name) == getattr(self, name) for name in names)

    def user_metadata(self) -> str:
        """JSON for `commitInfo.userMetadata`: which run, task and attempt made the commit."""
        import orjson

        counted = {
            "id": self.attempt_id,
            "max_tries": self.max_tries,
            "clear_number": self.clear_number,
            "run_started_ms": self.started_ms,
        }
        start_end = [moment.isoformat() for moment in self.data_interval] if self.data_interval else None
        return orjson.dumps(
            {
                "orchestrator": "airflow",
                "dag_id": self.dag_id,
                "task_id": self.task_id,
                "map_index": self.map_index,
                "run_id": self.run_id,
                "try_number": self.try_number,
                "partition_key": self.partition_key,
                "data_interval": start_end,
                **({"log_url": self.log_url} if self.log_url else {}),
                **({} if self.keeps_state else {"attempt": counted}),
            }
        ).decode()


def are_siblings(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two commits were made in one run by two indexes of one mapped task, as `user_metadata` tells it."""
    said, also_said = said_by(one), said_by(other)
    in_one_run = all(said.get(name) == also_said.get(name) for name in ("dag_id", "run_id", "task_id"))
    return bool(said) and in_one_run and said.get("map_index") != also_said.get("map_index")


def _clear_count(ti: RuntimeTaskInstanceProtocol, run_clear_number: int | None) -> int:
    """How far clearing has moved this task instance on.

    The run counts the clearings of *any* of its tasks. Taken alone it would turn the retry of one task into a new write
    because somebody cleared another task in between. Clearing a task instance also moves its `max_tries` to the try it
    had reached plus `retries`, so the difference names that try: it too grows with every clearing, and it is the task's
    own. The smaller of the two grows exactly when both do.
    """
    own: int = max(0, ti.max_tries - (ti.task.retries or 0))
    return own if run_clear_number is None else min(own, run_clear_number)


def _ordered_at(run_after: datetime, start_date: datetime | None, clear_count: int) -> datetime:
    """`run_after`, or for a cleared task the moment its run was started again where that is later: clearing an old run
    after a newer one for the same data interval is meant to win."""
    if clear_count == 0 or start_date is None:
        return run_after
    return max(run_after, start_date)


def _interval(start: datetime | None, end: datetime | None) -> tuple[datetime, datetime] | None:
    if (start is None) != (end is None):
        raise InvalidRequestError(
            "The DAG run has half a data interval", remedy="Let the timetable give both ends, or none"
        )
    return None if start is None or end is None else (start, end)
