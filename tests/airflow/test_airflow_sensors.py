"""The sensors that wait for a condition, in their three modes; and outages, which every sensor rides out."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable, TxnId
from delta_orch.airflow import (
    DeltaFreshnessSensor,
    DeltaPartitionSensor,
    DeltaRowSensor,
    DeltaTableVersionSensor,
    DeltaTxnSensor,
)
from delta_orch.errors import DeltaError, InvalidRequestError, StorageError
from delta_orch.pipeline.conditions import (
    Condition,
    ConditionWatch,
    FreshnessCondition,
    PartitionCondition,
    RowCondition,
    TxnCondition,
    VersionWatch,
    condition_from_json,
)
from tests.airflow.internals import needs_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.airflow.conftest import Runs

MODES: dict[str, dict[str, Any]] = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}
WAITING: dict[str, Any] = {"poke_interval": 0.05, "timeout": 20, "retries": 0}


def rows(day: str | None, *values: int) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(values), pa.string()), "value": pa.array(values, pa.int64())})


def add_wanted(table: DeltaTable) -> None:
    table.append(rows("b", 7, 8), txn=TxnId("dagster:loc:gold", 3))


SENSORS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "partition": (DeltaPartitionSensor, {"partitions": {"day": "{{ params.day }}"}, "params": {"day": "b"}}),
    "rows": (DeltaRowSensor, {"where": "value > 6", "min_rows": 2}),
    "txn": (DeltaTxnSensor, {"app_id": "dagster:loc:gold", "min_version": "{{ 3 }}"}),
    "freshness": (DeltaFreshnessSensor, {"max_age": timedelta(hours=1)}),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SENSORS)
def test_waits_for_its_condition(
    runs: Runs, tmp_path: Path, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look is preceded by the commit that fulfills the condition."""
    table = DeltaTable(tmp_path / "t")
    # A table without data: its creation is no news for freshness.
    table.create(rows("a").schema, partition_by=["day"])
    check, looks = ConditionWatch.check, 0

    def commit_before_second(self: ConditionWatch) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            add_wanted(table)
        return check(self)

    monkeypatch.setattr(ConditionWatch, "check", commit_before_second)
    sensor, arguments = SENSORS[kind]
    with DAG(f"{kind}_{mode}", schedule=None) as dag:
        sensor(task_id="wait", table_uri=tmp_path / "t", **WAITING, **MODES[mode], **arguments)
    run = runs.run(dag)
    assert (runs.state(run, "wait"), looks) == ("success", 2)
    assert runs.xcom(run, "wait")["version"] == 1


def fails_twice(monkeypatch: pytest.MonkeyPatch, error: DeltaError) -> None:
    check, looks = VersionWatch.check, 0

    def fail_first(self: VersionWatch) -> Any:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise error
        return check(self)

    monkeypatch.setattr(VersionWatch, "check", fail_first)


def outage() -> StorageError:
    error = StorageError("The store cannot be reached")
    error.retryable = True
    return error


@pytest.mark.long
@pytest.mark.parametrize("soft_fail", [False, True])
def test_what_never_comes_true_ends_at_the_timeout(runs: Runs, tmp_path: Path, soft_fail: bool) -> None:
    """`dag.test()` runs triggers inline and knows no time-out of deferrals."""
    DeltaTable(tmp_path / "t").append(rows("a", 1), partition_by=["day"])
    never: dict[str, tuple[type[Any], dict[str, Any]]] = {
        **SENSORS,
        "version": (DeltaTableVersionSensor, {"after_version": 7}),
        "time": (DeltaTableVersionSensor, {"after_timestamp": "2120-01-01T00:00:00Z"}),
        "freshness": (DeltaFreshnessSensor, {"max_age": 1e-6}),
    }
    with DAG(f"never_{soft_fail}", schedule=None) as dag:
        for name, (kind, arguments) in never.items():
            for mode, waiting in MODES.items():
                kind(
                    task_id=f"{name}_{mode}", table_uri=tmp_path / "t", poke_interval=0.05, timeout=0.2,
                    soft_fail=soft_fail, retries=3, **waiting, **arguments,
                )  # fmt: skip
    run = runs.run(dag)
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    assert states == dict.fromkeys(states, "skipped" if soft_fail else "failed")
    assert len(states) == 18


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_an_outage_is_ridden_out(runs: Runs, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DeltaTable(tmp_path / "t").append(rows("a", 1))
    fails_twice(monkeypatch, outage())
    with DAG(f"outage_{mode}", schedule=None) as dag:
        DeltaTableVersionSensor(task_id="wait", table_uri=tmp_path / "t", after_version=-1, **WAITING, **MODES[mode])
    run = runs.run(dag)
    assert (runs.state(run, "wait"), runs.tries(run, "wait")) == ("success", 1)


# `dag.test()` runs triggers without their timeout, which a triggerer keeps.
@pytest.mark.long
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_outage_lasts_no_longer_than_the_timeout(
    runs: Runs, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(self: VersionWatch) -> Any:
        raise outage()

    monkeypatch.setattr(VersionWatch, "check", always)
    with DAG(f"long_outage_{mode}", schedule=None) as dag:
        DeltaTableVersionSensor(
            task_id="wait",
            table_uri=tmp_path / "t",
            after_version=-1,
            **{**WAITING, "timeout": 0.3},
            **MODES[mode],
        )
    assert runs.state(runs.run(dag), "wait") == "failed"


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_soft_fail_skips_what_cannot_be_read(runs: Runs, tmp_path: Path, mode: str) -> None:
    """The first poke of a deferrable sensor, too."""
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    (tmp_path / "t/_delta_log/00000000000000000000.json").write_text("{broken\n")
    with DAG(f"soft_{mode}", schedule=None) as dag:
        DeltaRowSensor(task_id="wait", table_uri=tmp_path / "t", soft_fail=True, **WAITING, **MODES[mode])
    assert runs.state(runs.run(dag), "wait") == "skipped"


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeltaPartitionSensor(task_id="w", table_uri="/t", partitions={}),
        lambda: DeltaPartitionSensor(task_id="w", table_uri="/t", partitions={"a": 1}, partition_operator="LIKE"),
        lambda: DeltaRowSensor(task_id="w", table_uri="/t", min_rows=0),
        lambda: DeltaRowSensor(task_id="w", table_uri="/t", min_rows="many"),
        lambda: DeltaRowSensor(task_id="w", table_uri="/t", where=" "),
        lambda: DeltaRowSensor(task_id="w", table_uri="/t", deferrable="yes"),
        lambda: DeltaPartitionSensor(task_id="w", table_uri="/t", partitions={"a": []}),
        lambda: DeltaTableVersionSensor(task_id="w", table_uri="/t", after_version=cast("Any", 1.5)),
        lambda: DeltaTxnSensor(task_id="w", table_uri="/t", app_id=""),
        lambda: DeltaFreshnessSensor(task_id="w", table_uri="/t", max_age=0),
        lambda: DeltaTableVersionSensor(task_id="w", table_uri="/t"),
        lambda: DeltaTableVersionSensor(task_id="w", table_uri="/t", after_version=-2),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequestError):
        make()


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        (PartitionCondition({"day": "a"}), True),
        (PartitionCondition({"day": "A"}), False),
        (PartitionCondition({"DAY": "a"}), True),
        (PartitionCondition({"day": ["x", "a"]}), True),
        (PartitionCondition({"day": ["x", None]}), True),
        (PartitionCondition({"day": None}), True),
        (PartitionCondition({"day": "a"}, ">"), False),
        (PartitionCondition({"day": ""}, ">="), True),
        (RowCondition(), True),
        (RowCondition(min_rows=3), True),
        (RowCondition(min_rows=4), False),
        (RowCondition("day = 'a'", 2), True),
        (RowCondition("value = 2"), True),
        (RowCondition("value > 3"), False),
        (TxnCondition("x"), False),
        (FreshnessCondition(3600), True),
        (FreshnessCondition(1e-9), False),
    ],
)
def test_conditions(tmp_path: Path, condition: Condition, is_met: bool) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.concat_tables([rows("a", 1, 2), rows(None, 3)]), partition_by=["day"])
    found = ConditionWatch(table, condition).check()
    assert (found is not None) == is_met
    assert condition_from_json(condition.as_json()) == condition


def test_compaction_is_no_news(tmp_path: Path) -> None:
    import os

    table = DeltaTable(tmp_path / "t")
    for value in (1, 2):
        table.append(rows("a", value))
        os.utime(tmp_path / f"t/_delta_log/{table.version():020}.json", (1_000_000_000, 1_000_000_000 + value))
    assert not table.optimize().skipped
    assert ConditionWatch(DeltaTable(tmp_path / "t"), FreshnessCondition(3600)).check() is None


@pytest.mark.parametrize(("ahead_s", "is_met"), [(1800, True), (7200, False)])
def test_data_of_a_clock_that_is_far_ahead_is_no_news(tmp_path: Path, ahead_s: int, is_met: bool) -> None:
    import os
    import time

    table = DeltaTable(tmp_path / "t")
    table.append(rows("a", 1))
    os.utime(tmp_path / f"t/_delta_log/{0:020}.json", (time.time() + ahead_s,) * 2)
    found = ConditionWatch(DeltaTable(tmp_path / "t"), FreshnessCondition(3600)).check()
    assert (found is not None) == is_met


def test_a_partition_that_cannot_be_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"n": pa.array([1], pa.int32()), "v": [1]}), partition_by=["n"])
    for partitions in ({"v": 1}, {"nope": 1}, {"n": "one"}, {"n": 1.5}):
        with pytest.raises(InvalidRequestError):
            ConditionWatch(table, PartitionCondition(partitions)).check()  # type: ignore[arg-type]
    assert ConditionWatch(table, PartitionCondition({"n": "1"})).check() is not None


@pytest.mark.parametrize("is_rescheduled", [False, pytest.param(True, marks=needs_state)])
@pytest.mark.parametrize("commits", [1, 3])
@pytest.mark.parametrize("goal", ["rows", "time"])
def test_a_recreated_table_that_is_not_longer_is_seen(
    tmp_path: Path, commits: int, goal: str, is_rescheduled: bool
) -> None:
    uri = tmp_path / "t"
    for _ in range(3):
        DeltaTable(uri).append(rows("a", 1))
    until = datetime.fromtimestamp(DeltaTable(uri).snapshot().timestamp_ms / 1000, UTC)
    about: dict[str, Any] = {"task_id": "s", "table_uri": uri, "mode": "reschedule" if is_rescheduled else "poke"}
    kept: dict[str, Any] = {}
    store = SimpleNamespace(get=kept.get, set=kept.__setitem__)

    def sensor() -> Any:
        if goal == "rows":
            return DeltaRowSensor(where="value = 9", **about)
        return DeltaTableVersionSensor(after_timestamp=until, **about)

    one, looks = sensor(), iter(range(20))

    def poke() -> bool:
        context: Any = {"task_state_store": store, "task_reschedule_count": next(looks)}
        return bool((sensor() if is_rescheduled else one).poke(context))

    assert not poke()
    shutil.rmtree(uri)
    for _ in range(commits):
        DeltaTable(uri).append(rows("a", 9))
    assert any(poke() for _ in range(12))
