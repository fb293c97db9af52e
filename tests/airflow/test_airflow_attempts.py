"""No green attempt keeps the rows of one that was cleared, and none adds rows twice: a task instance as Airflow counts
it, through every short story of deaths, retries and clearings, against what the page of events says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import needs_state
from tests.airflow.stories import (
    CERTAIN,
    HIDDEN,
    RETRIES,
    START,
    Died,
    Instance,
    carry_out,
    content,
    new_table,
    stories,
    tries,
)

pytestmark = needs_state


@pytest.mark.slow
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


@pytest.mark.parametrize("whole", [True, False])
def test_a_backfill_replaces_what_was_there_when_it_began(whole: bool) -> None:
    """It comes in the place of a run that was deleted, and had been cleared: that one was the newest."""
    table, began = new_table(), datetime.now(UTC)
    scheduled = Instance(table, True, whole=whole)
    scheduled.attempt()
    scheduled.clear()
    scheduled.attempt()
    backfill = {"run_id": "backfill", "run_type": "backfill", "whole": whole}
    assert Instance(table, True, start_date=began - timedelta(minutes=1), **backfill).attempt().skipped  # type: ignore[arg-type]
    later: dict[str, Any] = {"start_date": datetime.now(UTC) + timedelta(minutes=1), **backfill}
    assert Instance(table, True, **{**later, "run_type": "manual"}).attempt().skipped
    task = Instance(table, True, try_number=7, **later)
    with pytest.raises(Died):
        task.attempt("before")
    task.retry()
    task.attempt()
    assert content(table) == ["8"]


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
