"""One attempt of a task instance, as its context says: its unit, its order among attempts, its commit metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.unit import Attempt, Relation, Unit, escaped
from delta_orch.verbs.unit_records import RecordedUnit

if TYPE_CHECKING:
    from airflow.sdk import Context

TRIES = 1000
"""An order is the start of the run in milliseconds, times this, plus the number of the try. It stays below 2**53, so
that readers that parse JSON numbers as doubles see it exactly."""

CLOCKS_DIFFER_MS = 3_600_000
"""How far the clock of a writer may be behind Airflow's."""

_LONGEST_JSON = 120
"""Mapped arguments that are longer are named by their digest."""


class UnitName(NamedTuple):
    """The name of a unit of Airflow, taken apart.

    Attributes:
        writer: `airflow_writer` of the task.
        instance: Which of its mapped instances; empty for a task that is not mapped.
        part: `TaskRun.part` of the run.
    """

    writer: str
    instance: str
    part: str

    @classmethod
    def of(cls, name: str) -> UnitName | None:
        """None where another orchestrator has named it."""
        prefix, _, rest = name.partition(":")
        task, _, part = rest.partition(":")
        writer, _, instance = task.partition("[")
        return cls(f"{prefix}:{writer}", instance, part) if prefix == "airflow" else None

    @property
    def dag(self) -> str:
        """The DAG, as `airflow_writer` spells it."""
        return self.writer.partition(".")[0]

    @property
    def logical_date(self) -> datetime | None:
        """The run's; None where it has none."""
        return None if self.part.startswith("run:") else datetime.fromisoformat(self.part)


def airflow_writer(dag_id: str, task_id: str) -> str:
    """`airflow:{dag_id}.{task_id}`, percent-encoded where a name holds a separator.

    Args:
        dag_id: A dot in it is written `%2E`, so that the boundary to `task_id` stays visible.
        task_id: With its task groups, as Airflow spells it.
    """
    return f"airflow:{escaped(dag_id, '.:[]')}.{escaped(task_id, ':[]')}"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One attempt of one task instance.

    Attributes:
        dag_id: As Airflow spells it.
        task_id: With the task groups it is in.
        map_index: -1 for a task that is not mapped.
        run_id: The DAG run's.
        run_type: The DAG run's: `scheduled`, `manual`, `backfill`, `asset_triggered`.
        logical_date: The DAG run's; None for runs without one.
        data_interval: Start and end; None for runs without a logical date.
        run_after: The DAG run's.
        started_ms: When the run started; a run that had ended and was cleared has started anew.
        try_number: 1 for the first attempt. Each retry and each clear raises it.
        max_tries: Airflow's. A clear sets it to the try that it ends, plus `retries`; a retry leaves it.
        retries: The task's, as the DAG has them now.
        clear_number: How often a task of the run was cleared, as far as Airflow counts.
        attempt_id: Airflow's id of this try; later tries have later ones, also those of a run that was created anew.
        partition_key: The DAG run's, where it has one.
        log_url: The attempt's page in Airflow, where Airflow tells it.
    """

    dag_id: str
    task_id: str
    map_index: int
    run_id: str
    run_type: str
    logical_date: datetime | None
    data_interval: tuple[datetime, datetime] | None
    run_after: datetime
    started_ms: int
    try_number: int
    max_tries: int
    retries: int
    clear_number: int
    attempt_id: str
    partition_key: str | None = None
    log_url: str | None = None

    @classmethod
    def from_context(cls, context: Context) -> TaskRun:
        """Read it from the context that Airflow passes to `execute`."""
        ti, dag_run = context["ti"], context["dag_run"]
        return cls(
            dag_id=ti.dag_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            run_id=ti.run_id,
            run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
            logical_date=dag_run.logical_date,
            data_interval=_interval(dag_run.data_interval_start, dag_run.data_interval_end),
            run_after=dag_run.run_after,
            started_ms=_epoch_ms(dag_run.start_date or dag_run.run_after),
            try_number=ti.try_number,
            max_tries=ti.max_tries,
            retries=ti.task.retries or 0,
            clear_number=dag_run.clear_number or 0,
            attempt_id=str(ti.id),
            # 3.0 and 3.1 have none.
            partition_key=getattr(dag_run, "partition_key", None),
            log_url=getattr(ti, "log_url", None),
        )

    @property
    def part(self) -> str:
        """The part of the task's work that the run does: its logical date, else its id."""
        if self.logical_date is None:
            return f"run:{self.run_id}"
        return _utc(self.logical_date).isoformat()

    @property
    def order(self) -> int:
        """Where the attempt stands among those of its unit."""
        return self.started_ms * TRIES + min(self.try_number, TRIES - 1)

    def writer(self, writer: str | None = None, name: str | None = None) -> str:
        """The writer: this task, and which of its mapped instances.

        Args:
            writer: `{dag_id}.{task_id}`, in place of the task's own.
            name: `={identity}`, or the mapped arguments.
        """
        own = self.writer_of(self.task_id, writer)
        return own if name is None else f"{own}[{escaped(name, ':[]')}]"

    def writer_of(self, task_id: str, writer: str | None) -> str:
        """The writer of a task of this DAG, or of the task that it has replaced."""
        return airflow_writer(self.dag_id, task_id) if writer is None else f"airflow:{writer}"

    def attempt(self, writer: str) -> Attempt:
        """This attempt at the unit of a writer."""
        return Attempt((Unit(writer, self.part),), self.order, self.run_id, self.relation_to)

    def relation_to(self, recorded: RecordedUnit, order: int) -> Relation:
        """Compare this attempt with the one that wrote the unit before. A clear lies between two tries if `max_tries`
        differs: a retry keeps it. (`retries` counts, too: a DAG that changes them could make up for the difference.
        A retry that is taken for a clear replaces its rows.)
        Otherwise Airflow's ids tell, which are ordered by time: a run that was created anew has newer ones.

        Raises:
            InvalidRequestError: Another task or mapped instance of this run wrote it, and no clear lies between.
        """
        metadata = user_metadata_of(recorded.commit_info)
        attempt = metadata.get("attempt")
        if not isinstance(attempt, Mapping):
            return self._relation_by_order(recorded.order, order)
        tries, attempt_id = metadata.get("try_number"), str(attempt.get("id"))
        if attempt_id == self.attempt_id:
            return "own"
        if (metadata.get("dag_id"), attempt.get("run_started_ms")) == (self.dag_id, self.started_ms):
            task_id, map_index = metadata.get("task_id"), metadata.get("map_index")
            is_other = (task_id, map_index) != (self.task_id, self.map_index)
            if is_other and attempt.get("clear_number") == self.clear_number and not self._is_newer_than(recorded):
                raise _written_twice(self, recorded, task_id, map_index)
            if task_id == self.task_id and isinstance(tries, int) and tries < self.try_number:
                is_same = (attempt.get("max_tries"), attempt.get("retries")) == (self.max_tries, self.retries)
                return "own" if is_same and self.tries_before_clear < tries else "earlier"
        return "later" if attempt_id > self.attempt_id else "earlier"

    def _is_newer_than(self, recorded: RecordedUnit) -> bool:
        """Whether this is the first try of an instance that was created after a commit. The instances of one run are
        created before any of them begins; but `dag.test()` starts each run of a logical date at that date."""
        committed_ms = recorded.commit_info.get("timestamp")
        try:
            created_ms = int(self.attempt_id.replace("-", "")[:12], 16)  # Of an id of version 7 of RFC 9562.
        except ValueError:
            return False
        return self.try_number == 1 and isinstance(committed_ms, int) and committed_ms < created_ms

    def _relation_by_order(self, recorded: int, order: int) -> Relation:
        """As `relation_to`, where the log does not hold the commit any more."""
        if recorded > order:
            return "later"
        started, tries = divmod(recorded, TRIES)
        return "earlier" if started != self.started_ms or self.tries_before_clear >= tries else "own"

    @property
    def tries_before_clear(self) -> int:
        """The number of the last try before the newest clear of this task instance; 0 without one."""
        return max(0, self.max_tries - self.retries)

    def interval_order(self, writer: str) -> TxnId:
        """The place of a run among those that replace a whole table: the end of its data interval. Recorded is how far
        the table has come; the same place may be written again."""
        until = self.data_interval[1] if self.data_interval else self.run_after
        return TxnId(f"airflow-order:{writer.removeprefix('airflow:')}", _epoch_ms(until), ordered=True)

    def is_of_run(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made in this run, as `user_metadata` tells it."""
        metadata = user_metadata_of(commit_info)
        return (metadata.get("dag_id"), metadata.get("run_id")) == (self.dag_id, self.run_id)

    def is_of_task(self, commit_info: Mapping[str, object]) -> bool:
        """Whether a commit was made by an attempt of this task instance."""
        metadata = user_metadata_of(commit_info)
        own = (self.task_id, self.map_index)
        return self.is_of_run(commit_info) and (metadata.get("task_id"), metadata.get("map_index")) == own

    def is_same_life(self, commit_info: Mapping[str, object]) -> bool:
        """Whether no clear lies between this attempt and the one of this task instance that made a commit."""
        attempt = user_metadata_of(commit_info).get("attempt")
        own = (self.started_ms, self.max_tries, self.retries)
        return isinstance(attempt, Mapping) and own == tuple(
            attempt.get(name) for name in ("run_started_ms", "max_tries", "retries")
        )

    def user_metadata(self) -> str:
        """JSON for `commitInfo.userMetadata`: which run, task and attempt made the commit."""
        start_end = [moment.isoformat() for moment in self.data_interval] if self.data_interval else None
        return json.dumps(
            {
                "orchestrator": "airflow",
                "dag_id": self.dag_id,
                "task_id": self.task_id,
                "map_index": self.map_index,
                "run_id": self.run_id,
                "run_type": self.run_type,
                "try_number": self.try_number,
                "partition_key": self.partition_key,
                "data_interval": start_end,
                **({"log_url": self.log_url} if self.log_url else {}),
                "attempt": {
                    "id": self.attempt_id,
                    "run_started_ms": self.started_ms,
                    "max_tries": self.max_tries,
                    "retries": self.retries,
                    "clear_number": self.clear_number,
                },
            }
        )


def _written_twice(run: TaskRun, recorded: RecordedUnit, task_id: object, map_index: object) -> InvalidRequestError:
    if task_id != run.task_id:
        return InvalidRequestError(
            f"Tasks {task_id} and {run.task_id} write the same unit {recorded.name} in one run",
            cause="They have the same writer; the second would replace the rows of the first",
            remedy="Leave writer out, or give each task one of its own",
            unit=recorded.name,
        )
    return InvalidRequestError(
        f"Map indexes {map_index} and {run.map_index} of task {run.task_id} write the same unit {recorded.name}",
        cause="They have the same mapped arguments or identity; the second would replace the rows of the first",
        remedy="Take the duplicate out of the list, or name each instance: identity='{{ task.op_kwargs[\"region\"] }}'",
        unit=recorded.name,
    )


def mapped_name(arguments: Mapping[str, object]) -> str | None:
    """The mapped arguments of a task instance as text, whatever its index is; None if they are not JSON values."""
    if not is_json(arguments):
        return None
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=os.fspath)
    if len(text) <= _LONGEST_JSON:
        return text
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_json(value: object) -> bool:
    """Whether a value has one spelling in JSON, in each process. A path counts as its text."""
    if value is None or isinstance(value, str | int | float | os.PathLike):
        return True
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json(part) for key, part in value.items())
    return isinstance(value, list | tuple) and all(map(is_json, value))


def _utc(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise InvalidRequestError(
            "The DAG run has a logical date without a time zone",
            cause=f"{moment!r} is a naive datetime",
            remedy="Pass an aware datetime",
        )
    return moment.astimezone(UTC)


def _epoch_ms(moment: datetime) -> int:
    from delta_orch.protocol.epoch import micros_since_epoch

    return micros_since_epoch(_utc(moment)) // 1000


def _interval(start: datetime | None, end: datetime | None) -> tuple[datetime, datetime] | None:
    if (start is None) != (end is None):
        raise InvalidRequestError(
            "The DAG run has half a data interval", remedy="Let the timetable give both ends, or none"
        )
    return None if start is None or end is None else (start, end)
