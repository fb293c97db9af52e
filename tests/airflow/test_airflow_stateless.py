"""An Airflow that keeps no state of tasks (before 3.3): what replaces rows is exact by what commits tell, and what adds
them is exact once a partition, or refused when the DAG is parsed."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from airflow.sdk import DAG

import delta_orch.airflow
from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaSparkSubmitOperator,
    DeltaWriteOperator,
    decorators,
    delta_table_asset,
    delta_task,
    delta_write_audit_publish,
    versions,
)
from delta_orch.airflow.attempts import Attempts
from delta_orch.airflow.commit_trigger import DeltaCommitTrigger
from delta_orch.airflow.relay_operator import DeltaPartitionRelayOperator
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import DeltaError, InvalidRequestError
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
from tests.share import sample

RELEASES = [(3, 0), (3, 2)]
"""3.1 counts clearings as 3.0 does."""


@pytest.fixture(params=RELEASES, ids=lambda release: ".".join(map(str, release)))
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Of the Airflow that there seems to be."""
    monkeypatch.setattr(versions, "RELEASE", request.param)
    found: tuple[int, int] = request.param
    return found


Make = Callable[..., Instance]


@pytest.fixture
def instance(release: tuple[int, int]) -> Make:
    """A task instance of that Airflow."""

    def make(table: DeltaTable, replaces: bool, **others: Any) -> Instance:
        return Instance(table, replaces, keeps_state=False, counts_every_clearing=release >= (3, 2), **others)

    return make


def expected(story: list[str], release: tuple[int, int]) -> list[str]:
    """By the page of events; before 3.2 an attempt that cannot know whether it was cleared replaces its rows again."""
    if release >= (3, 2):
        return tries(story, replaces=True)
    return [str(max(number for number, fate in enumerate(story[::2], 1) if fate != "before"))]


@pytest.mark.slow
def test_every_short_story_of_what_replaces(instance: Make, release: tuple[int, int]) -> None:
    wrong = []
    for number, story in enumerate(sample([*stories()])):
        table, whole = new_table(), number % 2 == 0
        carry_out(instance(table, True, whole=whole), story)
        found = content(table)
        if found != expected(story, release):
            wrong.append((story, found, expected(story, release)))
    assert not wrong, f"{len(wrong)}, such as {wrong[:8]}"


@pytest.mark.slow
def test_every_short_story_of_what_is_added_once_a_partition(instance: Make) -> None:
    """Whoever has added the rows, they are there once; an attempt that finds those of its run reports them."""
    for story in [*stories()][::5]:
        table = new_table()
        task = instance(table, False, idempotency="partition")
        carry_out(task, story)
        assert len(content(table)) == 1, story
        task.retry()
        assert task.attempt().recovered is not None
        another = instance(table, False, idempotency="partition", run_id="another", run_after=START)
        assert another.attempt().skipped
        assert len(content(table)) == 1, story


@pytest.mark.parametrize("step", [*RETRIES, *CERTAIN, *HIDDEN])
@pytest.mark.parametrize("when", ["during", "after a death"])
def test_an_attempt_that_commits_late_is_not_kept(instance: Make, when: str, step: str) -> None:
    """The first attempt is taken for dead, and commits while the second works, or before the one that follows it."""
    table = new_table()
    task = instance(table, True)
    first = replace(task)
    with pytest.raises(Died):
        task.attempt("before")
    getattr(task, step)()
    if when == "after a death":
        with pytest.raises(Died):
            task.attempt("before")
        task.retry()
    wanted = [str(task.try_number)]

    def late() -> None:
        assert not first.attempt().skipped
        assert content(table) == ["1"]

    task.attempt(during=late)
    assert content(table) == wanted
    # And after it, nothing.
    assert first.attempt().skipped
    assert content(table) == wanted


@pytest.mark.parametrize("step", [*RETRIES, *CERTAIN, *HIDDEN])
def test_an_older_attempt_commits_nothing_after_a_newer_one(instance: Make, step: str) -> None:
    for whole in (False, True):
        table = new_table()
        task = instance(table, True, whole=whole)
        first = replace(task)

        def newer(task: Instance = task) -> None:
            getattr(task, step)()
            task.attempt()

        assert first.attempt(during=newer).skipped
        assert content(table) == ["2"]


@pytest.mark.parametrize("step", RETRIES)
def test_a_retry_finds_the_table_that_its_task_has_created(instance: Make, step: str) -> None:
    table = DeltaTable(f"memory://{uuid4()}")
    task = instance(table, False, creates=True)
    with pytest.raises(Died):
        task.attempt("after")
    getattr(task, step)()
    assert task.attempt().recovered is not None
    assert content(table) == ["1"]


def test_another_process_of_one_attempt_finds_its_commit(instance: Make) -> None:
    task = instance(new_table(), True)
    with pytest.raises(Died):
        task.attempt("after")
    assert task.attempt().recovered is not None
    assert task.table.version() == 1


def newer_run(make: Make, table: Any) -> Instance:
    return make(table, True, run_after=START + timedelta(hours=1), run_id="manual", try_number=7)


@pytest.mark.parametrize("step", CERTAIN)
def test_a_clearing_wins_over_a_newer_run_of_the_interval(instance: Make, step: str) -> None:
    table = new_table()
    scheduled = instance(table, True)
    scheduled.attempt()
    newer_run(instance, table).attempt()
    assert content(table) == ["7"]
    getattr(scheduled, step)()
    with pytest.raises(Died):
        scheduled.attempt("before")
    scheduled.retry()
    scheduled.attempt()
    assert content(table) == ["3"]
    # Its retries and clearings are still newer than what it wrote then.
    scheduled.clear_and_leave_the_run()
    scheduled.attempt()
    assert content(table) == ["4"]


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("step", [*RETRIES, *HIDDEN])
def test_a_retry_does_not_win_over_a_newer_run_of_the_interval(instance: Make, step: str, fate: str) -> None:
    table = new_table()
    scheduled = instance(table, True)
    with pytest.raises(Died):
        scheduled.attempt(fate)
    newer_run(instance, table).attempt()
    getattr(scheduled, step)()
    assert scheduled.attempt().skipped
    assert content(table) == ["7"]


@pytest.mark.parametrize("step", ["clear_and_leave_the_run", "clear_with_more_retries"])
def test_what_may_be_a_clearing_or_a_retry_is_refused_where_a_newer_run_has_written(instance: Make, step: str) -> None:
    table = new_table()
    scheduled = instance(table, True)
    with pytest.raises(Died):
        scheduled.attempt("before")
    newer_run(instance, table).attempt()
    getattr(scheduled, step)()
    with pytest.raises(InvalidRequestError, match="cannot be told whether this task was cleared"):
        scheduled.attempt()
    assert content(table) == ["7"]
    # As the error says.
    scheduled.retries = 2
    scheduled.clear()
    scheduled.attempt()
    assert content(table) == [str(scheduled.try_number)]


@pytest.mark.parametrize("steps", [(), ("clear",), ("clear", "clear_while_it_runs"), HIDDEN])
def test_a_run_that_was_cleared_and_then_created_anew_replaces_its_rows(instance: Make, steps: tuple[str, ...]) -> None:
    for first_dies in (False, True):
        table = new_table()
        before = instance(table, True, try_number=5)
        before.attempt()
        for step in steps:
            getattr(before, step)()
            before.attempt()
        for _ in range(2):
            anew = instance(table, True, start_date=datetime.now(UTC))
            if first_dies:
                with pytest.raises(Died):
                    anew.attempt("before")
                anew.retry()
            anew.attempt()
            assert content(table) == [str(anew.try_number)]


@pytest.mark.parametrize("step", [*RETRIES, *CERTAIN, *HIDDEN])
def test_what_its_arguments_say_is_done_again_only_when_it_was_cleared(instance: Make, step: str) -> None:
    table = new_table()
    task = instance(table, True, is_said=True)
    with pytest.raises(Died):
        task.attempt("after")
    table.append(pa.table({"v": ["another's"]}))
    getattr(task, step)()
    task.attempt()
    assert content(table) == (["2"] if step in CERTAIN else ["1", "another's"])


@pytest.mark.parametrize("step", [*RETRIES, *CERTAIN, *HIDDEN])
def test_mapped_tasks_that_replace_one_table_are_refused(instance: Make, step: str) -> None:
    table = new_table()
    first, second = (instance(table, True, whole=True, map_index=index) for index in (0, 1))
    first.attempt()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="would replace the rows of another one"):
            second.attempt()
        getattr(second, step)()
    assert content(table) == ["0:1"]


@pytest.mark.parametrize("step", [None, *RETRIES, *CERTAIN, *HIDDEN])
def test_an_append_is_refused_also_where_only_the_run_tells(instance: Make, step: str | None) -> None:
    table = new_table()
    task = instance(table, False)
    if step is not None:
        getattr(task, step)()
    with pytest.raises(InvalidRequestError, match=r"idempotency='run', which needs Airflow 3\.3") as told:
        task.attempt()
    assert "idempotency='partition'" in str(told.value.remedy)
    assert table.version() == 0


WRITE: dict[str, Any] = {"table_uri": "/t", "python_callable": lambda: None}
MERGE: dict[str, Any] = {**WRITE, "on": "target.id = source.id", "clauses": [{"when_not_matched_insert_all": {}}]}
ADDING: list[Callable[..., object]] = [
    lambda **more: DeltaWriteOperator(task_id="t", **WRITE, **more),
    lambda **more: DeltaWriteOperator(task_id="t", table_uri="/t", sql="SELECT 1 AS id", **more),
    lambda **more: DeltaWriteOperator.partial(task_id="t", table_uri="/t", python_callable=lambda: None, **more).expand(
        op_kwargs=[{}]
    ),
    lambda **more: delta_task(table_uri="/t", **more),
    lambda **more: DeltaMergeOperator(task_id="t", **MERGE, **more),
    lambda **more: DeltaMergeOperator.partial(task_id="t", **MERGE, **more).expand(op_kwargs=[{}]),
    lambda **more: DeltaSparkSubmitOperator(task_id="t", table_uri="/t", application="/a.py", **more),
    lambda **more: delta_write_audit_publish("g", checks={"c": {"min_rows": 1}}, **WRITE, **more),
]


@pytest.mark.parametrize("make", ADDING)
def test_what_adds_rows_is_refused_when_the_dag_is_parsed(
    make: Callable[..., object], release: tuple[int, int]
) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidRequestError, match=r"needs Airflow 3\.3"):
        make()
    with DAG("d", schedule=None):
        make(idempotency="partition")


OVERWRITES, APPENDS = {"mode": "overwrite"}, {"mode": "append"}
PARTIAL: dict[str, Any] = {"task_id": "t", "python_callable": lambda: None}


@pytest.mark.parametrize(
    ("given", "over", "adds"),
    [
        ({}, {"mode": ["overwrite", "ignore"]}, False),
        ({}, {"mode": ["overwrite", "append"]}, True),
        ({}, {"idempotency": ["partition", "off"]}, False),
        ({}, {"idempotency": ["partition", "run"]}, True),
        (OVERWRITES, {"idempotency": ["partition", "run"]}, False),
        ({}, {"mode": ["overwrite", "append"], "idempotency": ["partition"]}, False),
        ({}, [OVERWRITES, {**APPENDS, "idempotency": "partition"}], False),
        ({}, [OVERWRITES, {"op_kwargs": {}}], True),
        ({"idempotency": "partition"}, [OVERWRITES, {"op_kwargs": {}}], False),
        (APPENDS, [{"op_kwargs": {}}], True),
    ],
    ids=str,
)
@pytest.mark.usefixtures("release")
def test_what_a_mapped_task_adds_is_known_when_it_is_expanded(given: dict[str, Any], over: Any, adds: bool) -> None:
    with DAG("d", schedule=None):
        partial = DeltaWriteOperator.partial(**{"table_uri": "/t", **PARTIAL, **given})
        expand = (lambda: partial.expand(**over)) if isinstance(over, dict) else (lambda: partial.expand_kwargs(over))
        if not adds:
            expand()
            return
        with pytest.raises(InvalidRequestError, match=r"Task t adds rows .* needs Airflow 3\.3"):
            expand()


@pytest.mark.usefixtures("release")
def test_what_the_output_of_a_task_decides_is_refused_when_the_mapped_task_runs() -> None:
    with DAG("d", schedule=None):
        told = DeltaOptimizeOperator(task_id="told", table_uri="/o").output
        one = DeltaWriteOperator.partial(**PARTIAL, table_uri="/t").expand(mode=told)
        DeltaWriteOperator.partial(**{**PARTIAL, "task_id": "u"}).expand_kwargs(told)
        with pytest.raises(InvalidRequestError, match=r"needs Airflow 3\.3"):
            DeltaMergeOperator.partial(
                task_id="m", table_uri="/t", clauses=MERGE["clauses"], python_callable=len
            ).expand(on=told)
    one.unmap(OVERWRITES)
    with pytest.raises(InvalidRequestError, match=r"needs Airflow 3\.3"):
        one.unmap(APPENDS)


def exact() -> Iterator[Callable[[], object]]:
    def taken(kind: Any, **arguments: Any) -> Callable[[], object]:
        return lambda: kind(task_id="t", **arguments)

    for mode in ("overwrite", "error", "ignore"):
        yield taken(DeltaWriteOperator, mode=mode, **WRITE)
    yield taken(DeltaWriteOperator, idempotency="off", **WRITE)
    yield taken(DeltaMergeOperator, keys=["id"], **WRITE)
    yield taken(DeltaSparkSubmitOperator, table_uri="/t", application="/a.py", adds=False)
    for mode in ("append", "overwrite_partitions"):
        yield taken(DeltaIncrementalOperator, source="/s", target="/t", python_callable=lambda batch: batch, mode=mode)


@pytest.mark.parametrize("make", [*exact()])
def test_what_is_exact_without_state_is_taken(make: Callable[[], object], release: tuple[int, int]) -> None:
    make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeltaCommitTrigger("/t", "t"),
        lambda: delta_table_asset("t", "/t", watch=True),
        lambda: DeltaPartitionRelayOperator(task_id="t", table_uri="/t", outlets=[delta_table_asset("u", "/u")]),
    ],
)
def test_what_came_with_3_3_is_refused_by_name(make: Callable[[], object], release: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequestError, match=r"needs Airflow 3\.3 or newer, and .* is installed"):
        make()


def test_the_policy_of_retries_is_refused_by_name(release: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "delta_orch.airflow.retry_policy", raising=False)
    with pytest.raises(DeltaError, match=r"DELTA_RETRY_POLICY needs Airflow 3\.3"):
        _ = delta_orch.airflow.DELTA_RETRY_POLICY


@needs_state
def test_a_commit_tells_how_its_attempt_was_counted_only_without_state(instance: Make) -> None:
    task = instance(new_table(), True)
    counted = TaskRun.from_context(task.context()).counted_at
    task.attempt()
    info = task.table.log.read_commit(1).commit_info or {}
    assert set(counted(info)) == {"id", "max_tries", "clear_number", "run_started_ms"}
    keeping = Instance(new_table(), True)
    keeping.attempt()
    assert not counted(keeping.table.log.read_commit(1).commit_info or {})


@pytest.mark.slow
@needs_state
def test_an_airflow_that_is_newer_takes_on_what_an_older_one_has_written(instance: Make) -> None:
    """The task's rows are its own before and after Airflow was brought up to date."""
    for fate, step in itertools.product(("before", "after", "ok"), (*RETRIES, *CERTAIN, *HIDDEN)):
        if fate == "ok" and step in RETRIES:
            continue
        task = instance(new_table(), True)
        carry_out(task, [fate, step])
        task.keeps_state = True
        task.attempt()
        assert content(task.table) == ["2"], (fate, step)
        task.clear()
        task.attempt()
        assert content(task.table) == ["3"], (fate, step)


@pytest.mark.parametrize("store", ["missing", "None", pytest.param("there", marks=needs_state)])
def test_one_thing_says_whether_state_is_kept(store: str) -> None:
    """What a context says, and so the markers of attempts, the version of the transaction and what the commit tells."""
    context = Instance(new_table(), True, keeps_state=store == "there").context()
    context |= {"task_state_store": None} if store == "None" else {}
    run = TaskRun.from_context(context)
    attempts = Attempts(context, run)
    attempts.begin_or_continue(1, 0)
    keeps = store == "there"
    assert (run.keeps_state, attempts.marker is not None) == (keeps, keeps)
    assert ("attempt" in json.loads(run.user_metadata())) is not keeps


def test_decorated_tasks_have_what_airflow_3_0_reads() -> None:
    """Without it they failed there after their commit."""
    for kind in (decorators.DeltaDecoratedOperator, decorators.DeltaChangesDecoratedOperator):
        assert kind.xcom_push is None
