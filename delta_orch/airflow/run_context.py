"""The run of a task: its unit, its order among attempts, its commit metadata, and the rows that it must leave.

`TaskRun` describes one attempt of a task instance. `OtherTasks` describes the other tasks of the DAG. The guards keep
the rows of other tasks of the run, of newer runs and of other DAGs, and tables that a newer run replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from delta_orch.airflow.locations import is_same_table, is_template, location_text
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.files.txn import TxnId, is_unit_name
from delta_orch.pipeline.target_table import RowGuard, snapshot_or_none
from delta_orch.pipeline.unit import Attempt, Relation, Unit, escaped, find_txn_commit, recorded_order
from delta_orch.verbs.unit_records import ADDING, REPLACING, RecordedUnit

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.step import Step


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
        """The order of the attempt among those of its unit."""
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
    """The mapped arguments of a task instance as text, without its index. None if they are not JSON values."""
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


_CLEARED = (None, "removed", "skipped")
"""States of a task instance that was cleared, and maybe skipped then. Its next attempt replaces the rows that it wrote
before. (A retry does not: it may find its commit, and change nothing.)"""


@dataclass(frozen=True)
class OtherTasks:
    """The other tasks of a DAG, as one of them that is running sees them.

    Attributes:
        context: Airflow's.
        run: Of the context.
    """

    context: Context
    run: TaskRun

    @property
    def _tasks(self) -> Mapping[str, Any]:
        dag: Any = self.context["dag"]
        tasks: Mapping[str, Any] = dag.task_dict
        return tasks

    @cached_property
    def writers(self) -> Mapping[str, str]:
        """Writer of units → task id, of the other tasks."""
        writers = {}
        for name, task in self._tasks.items():
            if name != self.run.task_id and _has_units(task):
                writers[self.run.writer_of(name, _arguments(task).get("writer"))] = name
        return writers

    @cached_property
    def before(self) -> frozenset[str]:
        """The tasks that this task waits for."""
        return frozenset(self.context["ti"].task.get_flat_relative_ids(upstream=True))

    def begins_again(self, task_id: str, logical_date: datetime | None = None) -> bool:
        """Whether a task was cleared, and has not begun since.

        Args:
            task_id: With its task groups. Of a mapped one, an instance will do.
            logical_date: Of the run; this one by default.
        """
        which = {"run_ids": [self.run.run_id]} if logical_date is None else {"logical_dates": [logical_date]}
        of_runs = self.context["ti"].get_task_states(dag_id=self.run.dag_id, task_ids=[task_id], **which)
        states = [state for of_run in of_runs.values() for state in of_run.values()]
        return not states or any(state in _CLEARED for state in states)

    def count_instances(self, writer: str) -> int:
        """How many instances the tasks with a writer have in this run, this task among them; 0 if Airflow does not
        tell. A task whose writer is a template may have this writer."""
        if writer not in self._counts:
            self._counts[writer] = self._count_instances(writer)
        return self._counts[writer]

    @cached_property
    def _counts(self) -> dict[str, int]:
        # Airflow makes all instances before one begins, so one request of many rows is enough.
        return {}

    def _count_instances(self, writer: str) -> int:
        names = [self.run.task_id]
        for name, task in self._tasks.items():
            if name != self.run.task_id and _has_units(task):
                of_task = _arguments(task).get("writer")
                if is_template(of_task) or self.run.writer_of(name, of_task) == writer:
                    names.append(name)
        which = {"task_ids": names, "run_ids": [self.run.run_id]}
        states = self.context["ti"].get_task_states(dag_id=self.run.dag_id, **which)
        return sum(state != "removed" for of_run in states.values() for state in of_run.values())

    def is_read_later(self, table_uri: object, own: str | None = None) -> bool:
        """Whether a later task takes the XCom of a task, or reads its table in order to write another one.

        Args:
            own: The task; this one by default.
        """
        from airflow.sdk.definitions.xcom_arg import XComArg

        own = own or self.run.task_id
        locations = [table_uri, getattr(self._tasks[own], "table_uri", None)]
        for name in self._tasks[own].get_flat_relative_ids(upstream=False):
            task = self._tasks[name]
            arguments = _arguments(task)
            if _has_units(task):
                sources = [*_locations(arguments.get("tables")), *_locations(arguments.get("source"))]
                if any(is_same_table(one, each) for one in sources for each in locations):
                    return True
            elif hasattr(getattr(task, "operator_class", type(task)), "outcome"):
                continue  # A check, a sensor or upkeep reads the table and hands nothing on.
            if any(one.task_id == own for one, _ in XComArg.iter_xcom_references(list(arguments.values()))):
                return True
            if any("xcom_pull" in text and own in text for text in _texts(arguments)):
                return True
        return False

    def ordered_before(self, table_uri: object) -> list[str]:
        """The writers of the tasks before this one that replace this whole table, in the order of data intervals."""
        locations = [table_uri, getattr(self._tasks[self.run.task_id], "table_uri", None)]
        writers = []
        for name in sorted(self.before):
            arguments = _arguments(self._tasks[name])
            is_whole = _has_units(self._tasks[name]) and arguments.get("exactly_once") and _is_whole(arguments)
            if not is_whole or not any(is_same_table(arguments.get("table_uri"), each) for each in locations):
                continue
            if arguments.get("stage") or not self.is_read_later(table_uri, name):
                writers.append(self.run.writer_of(name, arguments.get("writer")))
        return writers

    def versions_written(self) -> Mapping[str, int]:
        """Table URI → version, of the tasks before this one that replace a whole table in each run."""
        names = [
            name
            for name in sorted(self.before)
            if _has_units(self._tasks[name]) and _is_whole(_arguments(self._tasks[name]))
        ]
        xcoms = self.context["ti"].xcom_pull(task_ids=names) if names else ()
        return {
            str(xcom["table_uri"]): xcom["version"]
            for xcom in xcoms or ()
            if isinstance(xcom, Mapping) and isinstance(xcom.get("version"), int) and "table_uri" in xcom
        }


def _has_units(task: Any) -> bool:
    return bool(getattr(getattr(task, "operator_class", type(task)), "has_units", False))


def _arguments(task: Any) -> Mapping[str, Any]:
    """The arguments of a task, also of a mapped one."""
    if (arguments := getattr(task, "partial_kwargs", None)) is not None:
        return {**arguments, "": getattr(task._get_specified_expand_input(), "value", None)}
    return {name: getattr(task, name, None) for name in (*task.template_fields, "write", "exactly_once", "stage")}


def _is_whole(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("write") == "overwrite" and arguments.get("replace_where") is None


def _locations(arguments: object) -> Iterator[str]:
    """The tables among an argument's values: one, or several by name."""
    for one in arguments.values() if isinstance(arguments, Mapping) else () if arguments is None else (arguments,):
        if not is_template(one):
            yield location_text(one["table_uri"] if isinstance(one, Mapping) else one)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def after_overwrites(tasks: OtherTasks, step: Step, table_uri: object) -> Step:
    """The step, fenced by the whole-table overwrites that its task waits for: a late run changes nothing in a table
    that a newer run has replaced."""
    if step.attempt is None:
        return step
    writers = tasks.ordered_before(table_uri)
    return replace(step, fences=tuple(_interval_order(tasks.run, step.table, one) for one in writers))


def in_interval_order(tasks: OtherTasks, step: Step) -> Step:
    """The step, which replaces the whole table, ordered by data interval among all runs of its task."""
    if step.attempt is None:
        return step
    return replace(step, fences=(_interval_order(tasks.run, step.table, step.attempt.units[0].writer),))


def _interval_order(run: TaskRun, table: DeltaTable, writer: str) -> TxnId:
    """The place of a run among those of a writer that replace the whole table (`TaskRun.interval_order`). A manual run
    has no place in the schedule, so a run of the schedule that is cleared takes its place."""
    own = run.interval_order(writer)
    before = snapshot_or_none(table)
    recorded = None if before is None else recorded_order(before, own.app_id)
    if before is None or recorded is None or recorded <= own.version:
        return own
    is_redo = recorded_order(before, f"{writer}:{run.part}") is not None
    commit = find_txn_commit(table, own.app_id, recorded)
    metadata = {} if commit is None else user_metadata_of(commit.commit_info)
    is_off_schedule = metadata.get("run_type") == "manual" and (
        metadata.get("data_interval") is None or run.run_type != "manual"
    )
    return replace(own, version=recorded) if is_redo and is_off_schedule else own


def leaves_rows(tasks: OtherTasks, step: Step, *, replaces: bool, whole: bool) -> Step:
    """The step, which fails before its commit if it would remove rows that are not its own to remove.

    Args:
        tasks: Beside the one that writes.
        step: Its write.
        replaces: The write replaces rows of others. A delete removes rows of any writer.
        whole: It replaces every row: its runs have an order of their own.
    """
    if step.attempt is None:
        return step
    run, table, writer = tasks.run, step.table, step.attempt.units[0].writer
    own = UnitName.of(f"{writer}:{run.part}")
    assert own is not None

    def concerns(name: str) -> bool:
        unit = UnitName.of(name)
        if unit is None or unit.dag != own.dag:
            return replaces and is_unit_name(name)
        if unit.part == own.part:
            return True
        date = None if whole or unit.writer != own.writer else unit.logical_date
        # A newer data interval has its logical date in this one, or behind it.
        return date is not None and run.data_interval is not None and date >= run.data_interval[0]

    def refusal(recorded: RecordedUnit) -> InvalidRequestError | None:
        unit = UnitName.of(recorded.name)
        if unit is None or unit.dag != own.dag:
            return _of_another(run, table, recorded, own.dag)
        if unit.part == own.part:
            return _beside(tasks, unit, own)
        return _newer(tasks, unit, recorded)

    return replace(step, guards=(RowGuard(lambda _: True, concerns, refusal),))


def _beside(tasks: OtherTasks, unit: UnitName, own: UnitName) -> InvalidRequestError | None:
    """(a) Rows that another task of the run wrote leave only by a task that waits for it, or if it begins again."""
    run = tasks.run
    if unit.writer == own.writer:
        # A task that was mapped since, or is no longer, replaces what it wrote before.
        if unit.instance == own.instance or not (unit.instance and own.instance):
            return None
        return InvalidRequestError(
            f"Map index {run.map_index} of task {run.task_id} would replace the rows of instance {unit.instance}",
            cause="Mapped tasks have no order, and select the same rows, or rows of the same partitions",
            remedy="Give each instance rows of its own (replace_where, partitions), or add them: write='append'",
        )
    name = tasks.writers.get(unit.writer)
    if name is None or name in tasks.before or tasks.begins_again(name):
        return None
    return InvalidRequestError(
        f"Task {run.task_id} would remove rows that task {name} has written in this run",
        cause=f"Task {run.task_id} does not wait for {name}, which does not write them again: they would be lost",
        remedy=f"Clear {name} together with this task ('downstream'). Or let this task wait for {name}: "
        f"{name} >> {run.task_id}. Or give each rows of its own",
    )


def ensure_same_instances(tasks: OtherTasks, step: Step) -> None:
    """Check that each unit which this run of the task has recorded still has an instance: nobody would replace the rows
    of the others.

    Raises:
        InvalidRequestError: A mapped task was cleared, and its list or its mapped arguments have changed meanwhile; or
            the task is mapped since, or is no longer.
    """
    before = snapshot_or_none(step.table)
    if before is None or step.attempt is None or step.on_redo != "replace":
        return
    run = tasks.run
    own = UnitName.of(step.attempt.units[0].name)
    # An overwrite replaces the rows that it selects, of any writer.
    is_checked = step.mode in ADDING or step.mode == "overwrite_partitions" or run.map_index >= 0
    if own is None or not is_checked or step.mode not in (*ADDING, *REPLACING):
        return
    orders = before.txns.named((f"{own.writer}:", f"{own.writer}["), f":{own.part}")
    recorded = {unit.instance: name for name, order in orders.items() if order >= 0 and (unit := UnitName.of(name))}
    recorded.pop(own.instance, None)
    if not recorded:
        return
    is_mapped_since = "" in recorded and step.mode not in REPLACING and own.writer not in tasks.writers
    count = tasks.count_instances(own.writer)
    if not is_mapped_since and (count == 0 or len(recorded) < count):
        return
    others = sorted(recorded.values())
    example = repr(others[0]) if len(others) == 1 else "'…'"
    raise InvalidRequestError(
        f"Task {run.task_id} has {count} instances in this run, and {len(others)} other units of the run are in "
        f"{step.table.uri}: {', '.join(others[:5])}",
        cause="The list or the mapped arguments have changed since. Rows of a unit that no instance names any more "
        "would stay beside the new ones",
        remedy="Undo the units that no instance names any more, and clear all instances of the task: "
        f"DeltaTable({step.table.uri!r}).undo(unit={example}). The method units() lists them. "
        "To keep their rows, pass on_redo='keep'",
        unit=others[0],
    )


def _newer(tasks: OtherTasks, unit: UnitName, recorded: RecordedUnit) -> InvalidRequestError | None:
    """Guard (b): an older run must not remove rows of a newer run, unless the newer run is cleared as well."""
    run = tasks.run
    if unit.logical_date is None or run.logical_date is None:
        return None
    metadata = user_metadata_of(recorded.commit_info)
    interval, own = metadata.get("data_interval"), run.data_interval
    if isinstance(interval, list) and own is not None:
        is_newer = datetime.fromisoformat(interval[1]) > own[1]
    else:
        is_newer = unit.logical_date > run.logical_date
    if not is_newer or tasks.begins_again(run.task_id, unit.logical_date):
        return None
    return InvalidRequestError(
        f"Task {run.task_id} would replace rows of its newer run {metadata.get('run_id', unit.part)}",
        cause="That run does not write them again. Runs whose rows overlap replace each other's in their order",
        remedy="Clear this task together with the newer runs ('future'), with max_active_runs=1 in the DAG. "
        "Or mark this task as a success: the newer rows stay",
        unit=recorded.name,
    )


def _of_another(run: TaskRun, table: DeltaTable, recorded: RecordedUnit, dag: str) -> InvalidRequestError | None:
    """(c) Rows that another DAG has replaced, or all rows of a table that this DAG has never written, belong to that
    DAG. What others have only added to rows of this one is replaced with them."""
    if recorded.order >= 0 and table.snapshot().txns.named((f"{dag}.",)):
        record = recorded.step
        if record is not None and record.write not in REPLACING:
            return None
    name = recorded.name
    unit = UnitName.of(name)
    owner = name.rpartition(":")[0] if unit is None else unit.writer.removeprefix("airflow:")
    rename = "" if unit is None else f"If this task has taken the place of that one, pass writer={owner!r}. "
    return InvalidRequestError(
        f"Task {run.task_id} of DAG {run.dag_id} would replace rows that {owner} has written to {table.uri}",
        cause="Rows belong to the DAG or the asset that wrote them; the copy of a DAG needs a table of its own",
        remedy=f"Name another table. {rename}To take the rows away first: "
        f"DeltaTable({table.uri!r}).undo(unit={name!r})",
        unit=name,
    )
