"""`DeltaTableVersionSensor` in its three modes, its trigger, and what a poll costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaTableVersionSensor, DeltaVersionTrigger
from delta_orch.airflow.versions import keeps_state
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.conditions import VersionWatch, WatchGoal
from delta_orch.storage.local import LocalStore
from delta_orch.testing import open_table
from tests.airflow.internals import encode_trigger

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

HOUR = timedelta(hours=1)


def add_rows(uri: Path) -> DeltaTable:
    table = DeltaTable(str(uri))
    table.append(pa.table({"n": [1]}))
    return table


class CountingStore(LocalStore):
    """The local store, counting what is asked of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.asked: Counter[str] = Counter()

    def head(self, path: str) -> Any:
        self.asked["head"] += 1
        return super().head(path)

    def list_from(self, directory: str, start_name: str = "") -> Any:
        self.asked["list"] += 1
        return super().list_from(directory, start_name)

    def read_bytes(self, path: str) -> bytes:
        self.asked["read"] += 1
        return super().read_bytes(path)


def waiting_dag(name: str, uri: Path, **arguments: Any) -> DAG:
    with DAG(name, schedule=None) as dag:
        DeltaTableVersionSensor(
            task_id="wait", table_uri=str(uri), **{"poke_interval": 0.05, "timeout": 20, "retries": 0, **arguments}
        )
    return dag


MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_finds_what_is_there_already(runs: Runs, tmp_path: Path, mode: str) -> None:
    add_rows(tmp_path / "t")
    add_rows(tmp_path / "t")
    run = runs.run(waiting_dag(f"there_{mode}", tmp_path / "t", after_version=0, **MODES[mode]))
    assert runs.state(run, "wait") == "success"
    xcom = runs.xcom(run, "wait")
    assert (xcom["table_uri"], xcom["version"]) == (f"file://{tmp_path}/t", 1)
    assert xcom["timestamp_ms"] == DeltaTable(str(tmp_path / "t")).snapshot().timestamp_ms


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("goal", ["version", "timestamp"])
def test_waits_for_the_commit(
    runs: Runs, tmp_path: Path, mode: str, goal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third look is preceded by the commit that is waited for. All looks but the first know where the table stood,
    whichever process makes them, where Airflow keeps state of tasks."""
    table = add_rows(tmp_path / "t")
    looks: list[int | None] = []
    check = VersionWatch.check

    def commit_before_third(self: VersionWatch) -> Any:
        looks.append(self.seen_version)
        if len(looks) == 3:
            add_rows(tmp_path / "t")
        return check(self)

    monkeypatch.setattr(VersionWatch, "check", commit_before_third)
    newest_ms = table.snapshot().timestamp_ms
    reached = datetime.fromtimestamp(newest_ms / 1000, UTC) + timedelta(milliseconds=1)
    target = {"after_version": 0} if goal == "version" else {"after_timestamp": reached}
    run = runs.run(waiting_dag(f"waits_{mode}_{goal}", tmp_path / "t", **target, **MODES[mode]))
    assert runs.state(run, "wait") == "success"
    # Without state of tasks a process that looks again finds out anew: more requests, the same answer.
    assert looks == ([None, 0, 0] if keeps_state() or mode != "reschedule" else [None] * 3)
    assert runs.xcom(run, "wait")["version"] == 1


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_waits_for_a_table_that_is_not_there_yet(
    runs: Runs, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    check = VersionWatch.check

    def create_before_second(self: VersionWatch) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            add_rows(tmp_path / "t")
        return check(self)

    monkeypatch.setattr(VersionWatch, "check", create_before_second)
    run = runs.run(waiting_dag(f"creates_{mode}", tmp_path / "t", after_version=-1, **MODES[mode]))
    assert runs.xcom(run, "wait")["version"] == 0


def test_templates_render(runs: Runs, tmp_path: Path) -> None:
    add_rows(tmp_path / "t")
    add_rows(tmp_path / "t")
    with DAG("sensor_templates", schedule=None, params={"seen": 0, "table": str(tmp_path / "t")}) as dag:
        DeltaTableVersionSensor(
            task_id="wait", table_uri="{{ params.table }}", after_version="{{ params.seen }}", timeout=1
        )
        DeltaTableVersionSensor(
            task_id="since", table_uri="{{ params.table }}", after_timestamp="{{ data_interval_end }}", timeout=1
        )
    run = runs.run(dag)
    assert runs.xcom(run, "wait")["version"] == 1
    assert runs.xcom(run, "since")["version"] == 1


def test_times_out(runs: Runs, tmp_path: Path) -> None:
    add_rows(tmp_path / "t")
    run = runs.run(waiting_dag("times_out", tmp_path / "t", after_version=0, timeout=0.2))
    assert runs.state(run, "wait") == "failed"
    run = runs.run(waiting_dag("gives_up", tmp_path / "t", after_version=0, timeout=0.2, soft_fail=True))
    assert runs.state(run, "wait") == "skipped"


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_corrupt_log_fails_without_retry(runs: Runs, tmp_path: Path, mode: str) -> None:
    add_rows(tmp_path / "t")
    (tmp_path / "t/_delta_log/00000000000000000000.json").write_text("{broken\n")
    dag = waiting_dag(f"corrupt_{mode}", tmp_path / "t", after_timestamp=datetime.now(UTC), retries=2, **MODES[mode])
    run = runs.run(dag)
    assert (runs.state(run, "wait"), runs.tries(run, "wait")) == ("failed", 1)


def test_trigger_survives_serialisation() -> None:
    trigger = DeltaVersionTrigger("s3://lake/t", "lake", after_version=3, seen_version=3, poll_interval_s=5.0)
    path, arguments = trigger.serialize()
    module, name = path.rsplit(".", 1)
    again = getattr(__import__(module, fromlist=[name]), name)(**arguments)
    assert again.serialize() == trigger.serialize()
    assert encode_trigger(trigger)["classpath"] == path


def test_trigger_reports_what_it_cannot_read(tmp_path: Path, airflow_database: None) -> None:
    add_rows(tmp_path / "t")
    (tmp_path / "t/_delta_log/00000000000000000000.json").write_text("{broken\n")
    trigger = DeltaVersionTrigger(str(tmp_path / "t"), after_timestamp_ms=2**50)

    async def first_event() -> Any:
        return await anext(aiter(trigger.run()))

    payload = asyncio.run(first_event()).payload
    assert payload["status"] == "failed"
    assert payload["retryable"] is False
    assert payload["code"]


def test_trigger_does_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    check = VersionWatch.check

    def slow(self: VersionWatch) -> Any:
        time.sleep(0.3)
        return check(self)

    monkeypatch.setattr(VersionWatch, "check", slow)
    add_rows(tmp_path / "t")
    trigger = DeltaVersionTrigger(str(tmp_path / "t"), after_version=-1)

    async def beats_while_waiting() -> int:
        waiting = asyncio.ensure_future(anext(aiter(trigger.run())))
        beats = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats

    assert asyncio.run(beats_while_waiting()) > 5


@pytest.mark.parametrize("goal", [WatchGoal(after_version=1), WatchGoal(after_timestamp_ms=2**50)])
def test_a_poll_without_news_costs_one_stat(tmp_path: Path, goal: WatchGoal) -> None:
    for _ in range(2):
        add_rows(tmp_path / "t")
    store = CountingStore(tmp_path / "t")
    watch = VersionWatch(open_table(store).log, goal)
    assert watch.check() is None
    store.asked.clear()
    for _ in range(5):
        assert watch.check() is None
    assert store.asked == {"head": 5}


def test_even_the_first_poll_lists_nothing_when_the_version_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        add_rows(tmp_path / "t")
    store = CountingStore(tmp_path / "t")
    assert VersionWatch(open_table(store).log, WatchGoal(after_version=1)).check() is None
    assert set(store.asked) == {"head"}


def test_resumed_watch_costs_one_stat_from_the_start(tmp_path: Path) -> None:
    add_rows(tmp_path / "t")
    store = CountingStore(tmp_path / "t")
    assert VersionWatch(open_table(store).log, WatchGoal(after_version=0), seen_version=0).check() is None
    assert store.asked == {"head": 1}


def test_version_whose_successors_were_cleaned_up_is_found(tmp_path: Path) -> None:
    """`after_version=0` of a table that is at 3, with versions 0 to 2 only in a checkpoint any more."""
    for _ in range(4):
        add_rows(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).checkpoint()
    for version in range(3):
        (tmp_path / f"t/_delta_log/{version:020}.json").unlink()
    found = VersionWatch(DeltaTable(str(tmp_path / "t")).log, WatchGoal(after_version=0)).check()
    assert found is not None
    assert found.version == 3


def test_version_far_ahead_is_waited_for(tmp_path: Path) -> None:
    add_rows(tmp_path / "t")
    watch = VersionWatch(DeltaTable(str(tmp_path / "t")).log, WatchGoal(after_version=1))
    assert watch.check() is None
    add_rows(tmp_path / "t")
    assert watch.check() is None
    add_rows(tmp_path / "t")
    found = watch.check()
    assert found is not None
    assert found.version == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((None, None), "exactly one"),
        ((1, datetime.now(UTC)), "exactly one"),
        (("soon", None), "not a whole number"),
        ((-2, None), "not a whole number"),
        ((True, None), "not a whole number"),
        ((None, datetime(2024, 1, 1)), "not a moment in time"),
        ((None, "2024-01-01T00:00:00"), "not a moment in time"),
        ((None, "yesterday"), "not a moment in time"),
    ],
)
def test_wrong_goals_are_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        WatchGoal.parse(*arguments)


def test_goals_are_read_from_rendered_text() -> None:
    assert WatchGoal.parse("7", None) == WatchGoal(after_version=7)
    moment = datetime(2024, 1, 1, 1, tzinfo=UTC)
    assert WatchGoal.parse(None, "2024-01-01 00:30:00-00:30") == WatchGoal.parse(None, moment)
    assert WatchGoal.parse(None, moment).after_timestamp_ms == 1704070800000
