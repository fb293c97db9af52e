"""No green attempt keeps the rows of one that was cleared, and none adds rows twice: a task instance as Airflow counts
it, through every short story of deaths, retries and clearings, against what the page of events says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.airflow.once import OnceWriter
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.run_identity import Idempotency
from delta_orch.pipeline.step import Step, StepReport

DAY = datetime(2024, 1, 5, tzinfo=UTC)
START = datetime(2024, 1, 6, 0, 1, tzinfo=UTC)


class Died(Exception):
    """The process of an attempt has ended."""


@dataclass
class Instance:
    """A task instance and its run, as Airflow's database has them."""

    table: DeltaTable
    replaces: bool
    retries: int = 2
    max_tries: int = 2
    try_number: int = 1
    clear_number: int = 0
    start_date: datetime = START
    run_after: datetime = DAY + timedelta(days=1)
    run_id: str = "scheduled__2024-01-05"
    task_id: str = "t"
    map_index: int = -1
    whole: bool = False
    is_said: bool = False
    where: str = "v >= ''"
    dynamic: bool = False
    values: tuple[str, ...] = ()
    name: str | None = None
    idempotency: Idempotency = "run"
    returned: bool = False
    store: dict[str, Any] = field(default_factory=dict)

    def context(self) -> Any:
        task = SimpleNamespace(retries=self.retries, on_success_callback=None)
        ti = SimpleNamespace(
            dag_id="d", task_id=self.task_id, map_index=self.map_index, run_id=self.run_id, try_number=self.try_number,
            max_tries=self.max_tries, task=task,
            _ti_context_from_server=SimpleNamespace(xcom_keys_to_clear=["return_value"] if self.returned else []),
        )  # fmt: skip
        dag_run = SimpleNamespace(
            clear_number=self.clear_number, partition_key=None, data_interval_start=DAY, run_after=self.run_after,
            data_interval_end=DAY + timedelta(days=1), start_date=self.start_date,
        )  # fmt: skip
        kept = SimpleNamespace(get=self.store.get, set=lambda key, value, retention: self.store.update({key: value}))
        return {"ti": ti, "dag_run": dag_run, "task_state_store": kept}

    def attempt(self, fate: str = "ok", during: Callable[[], object] = lambda: None) -> StepReport:
        """One attempt; its rows name its try.

        Args:
            fate: `ok`; it dies `before` or `after` its commit, or when it has `returned` its report.
            during: Happens while it computes.
        """
        context, own = self.context(), self.try_number
        run = TaskRun.from_context(context)
        self.returned = False

        def rows() -> pa.Table:
            if fate == "before":
                raise Died
            during()
            if self.values:
                return pa.table({"v": list(self.values), "by": [self.map_index] * len(self.values)})
            return pa.table({"v": [f"{self.map_index}:{own}" if self.map_index >= 0 else str(own)]})

        where = self.where if self.replaces and not self.whole and not self.dynamic else None
        mode: Any = "overwrite_partitions" if self.dynamic else "overwrite" if self.replaces else "append"
        step = Step("Task t", self.table, mode, where=where, options={"user_metadata": run.user_metadata()})
        once = OnceWriter(
            context, run, self.table, idempotency=self.idempotency, name=self.name, adds=not self.replaces,
            replaces_table=self.whole, is_said=self.is_said,
        )  # fmt: skip
        report = once.run(step, rows)
        if fate in ("before", "after"):  # Or as it finds its work done.
            raise Died
        self.returned = True
        if fate == "returned":
            raise Died
        for callback in context["ti"].task.on_success_callback or []:
            callback(context)
        return report

    def retry(self) -> None:
        self.try_number += 1

    def retry_after_another_task_was_cleared(self) -> None:
        self.clear_number += 1
        self.retry()

    def clear(self) -> None:
        self.max_tries = self.try_number + self.retries
        self.start_date = max(self.start_date, datetime.now(UTC))
        self.retry_after_another_task_was_cleared()

    def clear_and_leave_the_run(self) -> None:
        """`reset_dag_runs: false` of the REST API."""
        self.max_tries = self.try_number + self.retries
        self.retry()

    def clear_in_a_run_that_goes_on(self) -> None:
        self.max_tries = self.try_number + self.retries
        self.retry_after_another_task_was_cleared()

    def clear_while_it_runs(self) -> None:
        self.retry_after_another_task_was_cleared()

    def clear_without_the_dag(self) -> None:
        """Airflow finds no serialized DAG, and leaves the tries."""
        self.max_tries = max(self.max_tries, self.try_number)
        self.retry_after_another_task_was_cleared()

    def clear_with_more_retries(self) -> None:
        """The file of the DAG has more retries than the version that the run is of."""
        self.clear()
        self.retries += 4

    def clear_with_fewer_retries(self) -> None:
        self.retries = 0
        self.clear()


RETRIES = ("retry", "retry_after_another_task_was_cleared")
CERTAIN = (
    "clear", "clear_and_leave_the_run", "clear_in_a_run_that_goes_on", "clear_with_more_retries",
    "clear_with_fewer_retries",
)  # fmt: skip
HIDDEN = ("clear_while_it_runs", "clear_without_the_dag")
"""Clearings that leave the tries as they are."""


def stories() -> Iterator[list[str]]:
    """Fates and what follows them, in turn; the last attempt lives."""
    fates, steps = ("before", "after", "returned", "ok"), (*RETRIES, *CERTAIN, *HIDDEN)
    one = [
        (fate, step)
        for fate, step in itertools.product(fates, steps)
        # What succeeded is not retried, and does not run.
        if fate != "ok" or step not in (*RETRIES, "clear_while_it_runs")
    ]
    again = [(fate, step) for fate, step in one if step in ("retry", "clear", "clear_while_it_runs")]
    for first, second in itertools.product(one, again):
        yield [*first, *second, "ok"]


def carry_out(instance: Instance, story: list[str]) -> None:
    for fate, step in itertools.zip_longest(story[::2], story[1::2]):
        with suppress(Died):
            instance.attempt(fate)
        if step is not None:
            getattr(instance, step)()


def new_table() -> DeltaTable:
    table = DeltaTable(f"memory://{uuid4()}")
    table.create(pa.schema([("v", pa.string())]))
    return table


def content(table: DeltaTable) -> list[str]:
    return sorted(table.snapshot().scan().to_arrow()["v"].to_pylist()) if table.exists() else []


def tries(story: list[str], *, replaces: bool) -> list[str]:
    """Whose rows are there at the end, by the page of events."""
    there: list[int] = []
    acknowledged = True
    since_clear: list[int] = []
    for number, (fate, step) in enumerate(itertools.zip_longest(story[::2], story[1::2]), 1):
        if fate != "before":
            commits = not since_clear if replaces else acknowledged
            if commits:
                there = [number] if replaces else [*there, number]
                since_clear.append(number)
            # What was found done is as good as committed.
            acknowledged = fate == "ok" or (fate == "returned" and step in CERTAIN)
        if step in (*CERTAIN, *HIDDEN, RETRIES[1]):
            since_clear = []
    return sorted(str(number) for number in there)


@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "appends"])
def test_every_short_story(replaces: bool) -> None:
    wrong = []
    for story in stories():
        table = new_table()
        carry_out(Instance(table, replaces), story)
        found, wanted = content(table), tries(story, replaces=replaces)
        if found != wanted:
            wrong.append((story, found, wanted))
    assert not wrong, f"{len(wrong)}, such as {wrong[:8]}"


@pytest.mark.parametrize("step", [*CERTAIN, *HIDDEN, RETRIES[1]])
@pytest.mark.parametrize("when", ["during", "after a death"])
@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "appends"])
def test_an_attempt_that_commits_late_is_neither_kept_nor_doubled(replaces: bool, when: str, step: str) -> None:
    """The first attempt is taken for dead, and commits while the second works, or before the one that follows it."""
    table = new_table()
    instance = Instance(table, replaces)
    refused = []

    def later() -> None:
        getattr(instance, step)()
        if when == "during":
            return
        with pytest.raises(Died):
            instance.attempt("before")
        instance.retry()

    def second() -> None:
        try:
            instance.attempt()
        except InvalidRequestError as error:
            refused.append(error)

    if when == "during":
        # Both plan before either commits: the older one comes first.
        first_context = instance.context()
        run = TaskRun.from_context(first_context)
        (txn,) = run.write_txns("run", None, replaces_table=False, adds=not replaces)
        with pytest.raises(Died):
            instance.attempt("before")
        later()

        def late() -> None:
            table.append(pa.table({"v": ["1"]}), txn=txn)

        try:
            instance.attempt(during=late)
        except InvalidRequestError as error:
            refused.append(error)
    else:
        with pytest.raises(Died):
            instance.attempt("after", during=later)
        second()
    if replaces:
        assert (content(table), refused) == ([str(instance.try_number)], [])
        return
    assert content(table) == ["1"]
    assert [error.problem for error in refused] == [
        "Task t has found rows that an attempt which was cleared has added meanwhile"
    ]
    # As the error says.
    instance.clear()
    instance.attempt()
    assert content(table) == ["1", str(instance.try_number)]


def test_an_older_attempt_commits_nothing_after_a_newer_one() -> None:
    for replaces, step in itertools.product((True, False), (*CERTAIN, *HIDDEN, RETRIES[1])):
        table = new_table()
        instance = Instance(table, replaces)

        def newer(instance: Instance = instance, step: str = step) -> None:
            getattr(instance, step)()
            instance.attempt()

        older = instance.attempt(during=newer)
        assert (content(table), older.skipped) == (["2"], True), (replaces, step)


@pytest.mark.parametrize("step", CERTAIN)
def test_a_clearing_wins_over_a_newer_run_of_the_interval(step: str) -> None:
    table = new_table()
    scheduled = Instance(table, replaces=True)
    scheduled.attempt()
    manual = Instance(table, True, run_after=START + timedelta(hours=1), run_id="manual", try_number=7)
    manual.attempt()
    assert content(table) == ["7"]
    getattr(scheduled, step)()
    scheduled.attempt()
    assert content(table) == ["2"]


def test_a_retry_does_not_win_over_a_newer_run_of_the_interval() -> None:
    for step in (*RETRIES, *HIDDEN):
        table = new_table()
        scheduled = Instance(table, replaces=True)
        with pytest.raises(Died):
            scheduled.attempt("before")
        Instance(table, True, run_after=START + timedelta(hours=1), run_id="manual", try_number=7).attempt()
        getattr(scheduled, step)()
        assert scheduled.attempt().skipped
        assert content(table) == ["7"], step


@pytest.mark.parametrize("steps", [(), ("clear",), ("clear", "clear_while_it_runs"), HIDDEN])
def test_a_run_that_was_cleared_and_then_created_anew(steps: tuple[str, ...]) -> None:
    """It is older than what is recorded, and yet not late. Twice: the first one is recorded as of now."""
    for replaces in (True, False):
        table = new_table()
        before = Instance(table, replaces, try_number=5)
        before.attempt()
        for step in steps:
            getattr(before, step)()
            before.attempt()
        there = content(table)
        for number in (1, 2):
            anew = Instance(table, replaces, try_number=number)
            if replaces:
                anew.attempt()
                assert content(table) == [str(number)]
            else:
                with pytest.raises(InvalidRequestError, match="was deleted and created again"):
                    anew.attempt()
                assert content(table) == there


@pytest.mark.parametrize("step", [*CERTAIN, *HIDDEN])
def test_mapped_tasks_that_replace_one_table_are_refused_after_a_clearing_too(step: str) -> None:
    table = new_table()
    first, second = (Instance(table, True, whole=True, map_index=index) for index in (0, 1))
    first.attempt()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="would replace the rows of another one"):
            second.attempt()
        getattr(second, step)()
    # Another run may give the only element another index.
    next_run = {"run_after": START + timedelta(days=1), "run_id": "next", "start_date": datetime.now(UTC)}
    Instance(table, True, whole=True, map_index=1, **next_run).attempt()  # type: ignore[arg-type]
    assert content(table) == ["1:1"]


@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "appends"])
def test_mapped_tasks_that_share_an_identity_are_refused(replaces: bool) -> None:
    table = new_table()
    started = datetime.now(UTC) - timedelta(minutes=1)
    first, second = (
        Instance(table, replaces, name="same", map_index=index, start_date=started) for index in (0, 1)
    )  # fmt: skip
    first.attempt()
    with pytest.raises(InvalidRequestError, match="has written under the identity 'same'"):
        second.attempt()
    assert content(table) == ["0:1"]
    if replaces:
        # A list that has changed gives the name to another index, in a run that was started again.
        second.start_date = datetime.now(UTC) + timedelta(minutes=1)
        second.attempt()
        assert content(table) == ["1:1"]


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("how", ["where", "dynamic"])
@pytest.mark.parametrize("name", ["", "named"])
def test_mapped_tasks_do_not_replace_rows_of_each_other(how: str, name: str, partitioned: bool) -> None:
    if how == "dynamic" and not partitioned:
        return
    table = DeltaTable(f"memory://{uuid4()}")
    schema = pa.schema([("v", pa.string()), ("by", pa.int64())])
    table.create(schema, partition_by=["v"] if partitioned else [])

    def task(index: int, *values: str, run_id: str = "run") -> Instance:
        listed = ", ".join(repr(value) for value in values)
        identity = f"{name}{index}" if name else None
        return Instance(
            table, True, map_index=index, name=identity, values=values, where=f"v IN ({listed})", run_id=run_id,
            dynamic=how == "dynamic", run_after=datetime.now(UTC),
        )  # fmt: skip

    def content_by() -> list[tuple[str, int]]:
        found = table.snapshot().scan().to_arrow()
        return sorted(zip(found["v"].to_pylist(), found["by"].to_pylist(), strict=True))

    first, second, third = task(0, "a", "b"), task(1, "c"), task(2, "b", "d")
    first.attempt()
    second.attempt()
    before = table.version()
    with pytest.raises(InvalidRequestError, match="Map index 2 of task t would replace the rows of another one"):
        third.attempt()
    assert (table.version(), content_by()) == (before, [("a", 0), ("b", 0), ("c", 1)])
    # What another task has written is there to be replaced; so is what it has written itself, and another run.
    replace(task(-1, "c"), task_id="upstream", name=None).attempt()
    second.clear()
    assert second.attempt().commit is not None
    later = task(2, "b", "d", run_id="later")
    later.run_after = later.start_date = datetime.now(UTC) + timedelta(hours=2)
    later.attempt()
    assert content_by()[-2:] == [("c", 1), ("d", 2)]


@pytest.mark.parametrize("step", [*RETRIES, *CERTAIN, *HIDDEN])
def test_what_its_arguments_say_is_done_again_only_when_it_was_cleared(step: str) -> None:
    """A retry that restores a table once more would undo what others have committed since."""
    table = new_table()
    instance = Instance(table, replaces=True, is_said=True)
    with pytest.raises(Died):
        instance.attempt("after")
    table.append(pa.table({"v": ["another's"]}))
    getattr(instance, step)()
    instance.attempt()
    assert content(table) == (["2"] if step in CERTAIN else ["1", "another's"])
