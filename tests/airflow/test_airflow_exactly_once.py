"""The table "What each event does" of docs/airflow.md: one test a row, in real DAG runs, against what must be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, task

from delta_orch import DeltaTable, TxnId
from delta_orch.airflow import DeltaIncrementalOperator, DeltaWriteOperator
from delta_orch.airflow.attempts import Marker, Verdict, judge
from delta_orch.airflow.run_context import TaskRun
from delta_orch.airflow.versions import keeps_state
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import needs_state

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY_5, DAY_6 = datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC)


def rows(*values: object) -> pa.Table:
    return pa.table({"v": pa.array([str(value) for value in values], pa.string())})


def content(uri: Path) -> list[str]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


def dag_of(name: str, uri: Path, function: Callable[..., pa.Table], **arguments: Any) -> DAG:
    with DAG(name, schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
        DeltaWriteOperator(task_id="load", python_callable=function, table_uri=uri, **arguments)
    return dag


def written(ds: str, ti: Any) -> pa.Table:
    return rows(f"{ds} try {ti.try_number}")


REPLACES: dict[str, Any] = {"mode": "overwrite"}
APPENDS: dict[str, Any] = {"mode": "append"}
NO_RETRY: dict[str, Any] = {"retries": 0, "post_execute": die_once}


@pytest.mark.slow
def test_whole_table_late_run_never_replaces_a_newer_one(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("late_whole", tmp_path / "t", written, **REPLACES)
    runs.run(dag, DAY_6, run_after=DAY_6 + timedelta(days=1))
    late = runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert content(tmp_path / "t") == ["2024-01-06 try 1"]
    assert runs.xcom(late, "load")["skipped"] is True
    # Cleared, it is late, too; and the newer one may be cleared and write again.
    runs.clear(dag, late, "load")
    assert content(tmp_path / "t") == ["2024-01-06 try 1"]


@pytest.mark.slow
def test_whole_table_cleared_newest_run_writes_again(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("newest_whole", tmp_path / "t", written, **REPLACES)
    runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    newest = runs.run(dag, DAY_6, run_after=DAY_6 + timedelta(days=1))
    runs.clear(dag, newest, "load")
    assert content(tmp_path / "t") == ["2024-01-06 try 2"]


@pytest.mark.slow
@pytest.mark.parametrize("way_out", [{"identity": "{{ ds }}"}, {"idempotency": "off"}], ids=str)
def test_whole_table_ways_out_of_the_order(runs: Runs, tmp_path: Path, way_out: dict[str, Any]) -> None:
    dag = dag_of(f"way_out_{len(way_out['identity' if 'identity' in way_out else 'idempotency'])}", tmp_path / "t",
                 written, **REPLACES, **way_out)  # fmt: skip
    runs.run(dag, DAY_6, run_after=DAY_6 + timedelta(days=1))
    runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert content(tmp_path / "t") == ["2024-01-05 try 1"]


@pytest.mark.slow
def test_append_cleared_after_an_attempt_that_was_never_acknowledged(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("unacknowledged", tmp_path / "t", written, **APPENDS, **NO_RETRY)
    run = runs.run(dag, DAY_5)
    assert runs.state(run, "load") == "failed"
    run = runs.clear(dag, run, "load")
    assert runs.state(run, "load") == "success"
    assert content(tmp_path / "t") == ["2024-01-05 try 1"]
    report = runs.xcom(run, "load")
    assert (report["version"], report["skipped"], report["recovered"]) == (0, False, True)
    # Acknowledged now: who clears it again wants the rows again.
    runs.clear(dag, run, "load")
    assert content(tmp_path / "t") == ["2024-01-05 try 1", "2024-01-05 try 3"]


@pytest.mark.slow
def test_append_cleared_after_success_adds_again_even_if_the_next_attempt_dies_early(
    runs: Runs, tmp_path: Path
) -> None:
    def fails_second(ti: Any) -> pa.Table:
        if ti.try_number == 2:
            raise RuntimeError("killed before the commit")
        return rows(ti.try_number)

    dag = dag_of("dies_early", tmp_path / "t", fails_second, **APPENDS)
    run = runs.run(dag, DAY_5)
    run = runs.clear(dag, run, "load")
    assert runs.state(run, "load") == "failed"
    run = runs.clear(dag, run, "load")
    assert content(tmp_path / "t") == ["1", "3"]


def test_replace_cleared_after_an_unacknowledged_attempt_writes_again(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("replace_unacknowledged", tmp_path / "t", written, **REPLACES, **NO_RETRY)
    run = runs.run(dag, DAY_5)
    runs.clear(dag, run, "load")
    assert content(tmp_path / "t") == ["2024-01-05 try 2"]


def test_retry_reports_its_own_commit_though_others_came_after_it(runs: Runs, tmp_path: Path) -> None:
    events: list[Any] = []

    def overtaken(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            DeltaTable(tmp_path / "t").append(rows("other"))
            raise RuntimeError("killed after the commit")
        events.append(context["outlet_events"][Asset(name="recovered", uri=f"delta://file{tmp_path}/t")].extra)

    dag = dag_of(
        "recovers", tmp_path / "t", written, retries=1, retry_delay=timedelta(0), post_execute=overtaken,
        outlets=[Asset(name="recovered", uri=f"delta://file{tmp_path}/t")],
    )  # fmt: skip
    report = runs.xcom(runs.run(dag, DAY_5), "load")
    assert (report["version"], report["skipped"], report["recovered"]) == (0, False, True)
    assert int(report["operation_metrics"]["numOutputRows"]) == 1
    assert (events[0]["version"], events[0]["recovered"], events[0]["rows"]) == (0, True, 1)


def test_incremental_retry_reports_its_own_commit(runs: Runs, tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "s")
    source.append(rows("a"))
    target = DeltaTable(tmp_path / "t")
    with DAG("incremental_recovers", schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="load", source=tmp_path / "s", target=tmp_path / "t", mode="append", bootstrap="changes",
            python_callable=lambda batch: batch.changes.to_arrow().select(["v"]),
            retries=1, retry_delay=timedelta(0), post_execute=die_once,
        )  # fmt: skip
    run = runs.run(dag)
    target.append(rows("other"))
    report = runs.xcom(run, "load")
    assert (report["version"], report["skipped"], report["recovered"]) == (0, False, True)
    assert (report["source_starting_version"], report["source_ending_version"]) == (0, 0)
    # Acknowledged: a clearing that finds nothing new has done nothing.
    run = runs.clear(dag, run, "load")
    assert runs.xcom(run, "load")["skipped"] is keeps_state()


@pytest.mark.slow
def test_deleted_and_recreated_dag_replaces_and_refuses_to_double(runs: Runs, tmp_path: Path) -> None:
    """`dag.test()` deletes the run of that date and makes a new one, as deleting the DAG does."""
    replaces = dag_of("recreated_replace", tmp_path / "r", written, mode="overwrite", replace_where="v >= ''")
    appends = dag_of("recreated_append", tmp_path / "a", written, **APPENDS)
    seeds = dag_of("recreated_ignore", tmp_path / "i", written, mode="ignore")
    for _ in range(2):
        seeded = runs.run(seeds, DAY_5, run_after=DAY_6)
        last = runs.run(replaces, DAY_5, run_after=DAY_6), runs.run(appends, DAY_5, run_after=DAY_6)
    assert (runs.state(seeded, "load"), runs.xcom(seeded, "load")["skipped"]) == ("success", True)
    assert content(tmp_path / "i") == ["2024-01-05 try 1"]
    assert [entry.operation for entry in DeltaTable(tmp_path / "r").history()].count("WRITE") == 2
    assert runs.xcom(last[0], "load")["skipped"] is False
    assert runs.state(last[1], "load") == "failed"
    assert content(tmp_path / "a") == ["2024-01-05 try 1"]
    # And as the error says: cleared, it adds them.
    runs.clear(appends, last[1], "load")
    assert content(tmp_path / "a") == ["2024-01-05 try 1", "2024-01-05 try 2"]


def mapped_dag(name: str, uri: Path, values: list[str], **arguments: Any) -> DAG:
    with DAG(name, schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:

        @task
        def names() -> list[str]:
            return list(values)

        @task.delta(table_uri=uri, **arguments)
        def load(name: str) -> pa.Table:
            return rows(name)

        load.expand(name=names())
    return dag


def test_mapped_partition_mode_needs_an_identity(runs: Runs, tmp_path: Path) -> None:
    dag = mapped_dag("mapped_refused", tmp_path / "t", ["b", "c"], idempotency="partition")
    run = runs.run(dag, DAY_5)
    assert runs.state(run, "load", 0) == "failed"
    assert not DeltaTable(tmp_path / "t").exists()


@pytest.mark.slow
def test_mapped_index_shifts_do_not_matter_to_an_identity(runs: Runs, tmp_path: Path) -> None:
    values = ["b", "c"]
    dag = mapped_dag(
        "mapped_named", tmp_path / "t", values, idempotency="partition", identity="{{ task.op_kwargs['name'] }}"
    )
    run = runs.run(dag, DAY_5)
    assert content(tmp_path / "t") == ["b", "c"]
    values.insert(0, "a")
    runs.run(dag, DAY_5)
    assert run is not None
    assert content(tmp_path / "t") == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("idempotency", ["run", "off"])
@pytest.mark.parametrize("where", [None, "v >= ''"])
def test_mapped_tasks_that_replace_the_same_rows_are_refused(
    runs: Runs, tmp_path: Path, where: str | None, idempotency: str
) -> None:
    dag = mapped_dag(
        f"mapped_{idempotency}_{where is None}", tmp_path / "t", ["a", "b"],
        mode="overwrite", replace_where=where, idempotency=idempotency,
    )  # fmt: skip
    run = runs.run(dag, DAY_5)
    assert {runs.state(run, "load", 0), runs.state(run, "load", 1)} == {"success", "failed"}


@pytest.mark.parametrize("where", [None, "v >= ''"])
def test_mapped_tasks_that_replace_the_same_rows_side_by_side_are_refused(
    runs: Runs, tmp_path: Path, where: str | None
) -> None:
    def overtaken(**context: Any) -> pa.Table:
        # While this one computes, another one commits.
        other = replace(TaskRun.from_context(context), map_index=5)
        txns = other.write_txns("run", None, replaces_table=where is None)
        DeltaTable(tmp_path / "t").append(rows("other"), txn=txns, user_metadata=other.user_metadata())
        return rows("late")

    with DAG(f"side_by_side_{where is None}", schedule="@daily", start_date=DAY_5) as dag:
        DeltaWriteOperator.partial(
            task_id="load", table_uri=tmp_path / "t", mode="overwrite", python_callable=overtaken
        ).expand(replace_where=[where])
    assert runs.state(runs.run(dag, DAY_5), "load", 0) == "failed"
    assert content(tmp_path / "t") == ["other"]


@needs_state
@pytest.mark.parametrize("idempotency", ["run", "partition"])
def test_a_retry_with_another_identity_does_not_add_the_rows_again(
    runs: Runs, tmp_path: Path, idempotency: str
) -> None:
    dag = dag_of(
        "identity_of_a_try", tmp_path / "t", written, identity="{{ ti.try_number }}", idempotency=idempotency,
        retries=1, retry_delay=timedelta(0), post_execute=die_once,
    )  # fmt: skip
    run = runs.run(dag, DAY_5)
    assert (runs.state(run, "load"), len(content(tmp_path / "t"))) == ("failed", 1)
    runs.clear(dag, run, "load")
    assert (runs.state(run, "load"), len(content(tmp_path / "t"))) == ("success", 2)


@pytest.mark.parametrize("identity", ["{{ params.none }}", "{{ '' }}"])
def test_identity_without_a_value_is_refused(runs: Runs, tmp_path: Path, identity: str) -> None:
    dag = dag_of("no_identity", tmp_path / "t", written, identity=identity, params={"none": None})
    assert runs.state(runs.run(dag, DAY_5), "load") == "failed"
    assert not DeltaTable(tmp_path / "t").exists()


@pytest.mark.slow
def test_nothing_new_emits_nothing(runs: Runs, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "s").append(rows("a"))

    def events_of(name: str, **more: Any) -> list[int]:
        with DAG(name, schedule=None) as dag:
            DeltaIncrementalOperator(
                task_id="load", source=tmp_path / "s", target=tmp_path / name, mode="append",
                python_callable=lambda batch: batch.scan().to_arrow(),
                outlets=[Asset(name=name, uri=f"delta://file{tmp_path}/{name}")], **more,
            )  # fmt: skip
        return [len(asset_events(runs.run(dag).dag_id)) for _ in range(2)]

    assert events_of("silent") == [1, 1]
    assert events_of("talking", emit_when_unchanged=True) == [1, 2]


def asset_events(dag_id: str) -> list[Any]:
    from airflow.models.asset import AssetEvent  # noqa: TID251 (looking at what Airflow stored)
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag_id)).all())


OLD, OWN, NEW = 10, 20, 30


@pytest.mark.parametrize(
    ("recorded", "marker", "adds", "expected"),
    [
        (None, None, True, Verdict.WRITE),
        (OLD, None, True, Verdict.WRITE),
        (NEW, None, False, Verdict.LEAVE),
        (OWN, Marker(OWN), True, Verdict.OWN),
        (OWN, Marker(OWN), False, Verdict.OWN),
        (OWN, None, False, Verdict.AGAIN),
        (OWN, None, True, Verdict.AGAIN),
        (OWN, Marker(OWN, "another"), True, InvalidRequestError),
        (OWN, Marker(OWN, "another"), False, Verdict.AGAIN),
        (NEW, Marker(NEW), False, Verdict.OWN),
        (OLD, Marker(OLD), True, Verdict.OWN),
        (OLD, Marker(OLD), False, Verdict.WRITE),
        (OLD, Marker(OLD, "another"), True, InvalidRequestError),
        (OLD, Marker(OLD, acknowledged=True), True, Verdict.WRITE),
        (OLD, Marker(OWN), True, Verdict.WRITE),
    ],
)
def test_verdicts(recorded: int | None, marker: Marker | None, adds: bool, expected: Any) -> None:
    is_same = marker is None or not marker.work
    if isinstance(expected, type):
        with pytest.raises(expected):
            judge(OWN, recorded, marker, is_same=is_same, adds=adds)
    else:
        assert judge(OWN, recorded, marker, is_same=is_same, adds=adds) is expected


def test_a_digest_takes_every_argument_there_is() -> None:
    from delta_orch.airflow.once import work_of

    def digest(value: object) -> str:
        return work_of(
            DeltaWriteOperator(task_id="t", table_uri="/t", python_callable=lambda a: {}, op_kwargs={"a": value})
        )

    odd = {1: "a", "b": [object(), DAY_5], (1, 2): {"x"}, None: float("nan")}
    assert digest(odd) == digest(dict(odd))
    assert len({digest(value) for value in ("a", "b", 1, DAY_5, DAY_6, ["a"], {"a": 1}, {"a": 2})}) == 8


def test_appends_of_two_runs_of_one_interval_are_both_there_in_any_order(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("append_late", tmp_path / "t", lambda run_id: rows(run_id), **APPENDS)
    newer = runs.run(dag, DAY_5, run_after=DAY_6 + timedelta(hours=2))
    older = runs.run(dag, DAY_5, run_after=DAY_6 + timedelta(hours=1))
    assert content(tmp_path / "t") == sorted([newer.run_id, older.run_id])


@needs_state
@pytest.mark.slow
@pytest.mark.parametrize("days", [(None, None), (DAY_6, DAY_5), (None, DAY_5), (DAY_5, None)], ids=str)
@pytest.mark.parametrize("which", [{"replace_where": "v >= 'newer'"}, {"partition_overwrite_mode": "dynamic"}])
def test_a_late_run_replaces_no_rows_of_a_newer_one(
    runs: Runs, tmp_path: Path, which: dict[str, str], days: tuple[datetime | None, datetime | None]
) -> None:
    """Runs of asset events start side by side, and so do those of a catch-up whose rows are not of their interval. One
    that brings other rows goes on, and so does one that is cleared."""
    uri, now, values = tmp_path / "t", datetime.now(UTC), ["newer"]
    DeltaTable(uri).append(pa.table({"v": ["older", "zero"], "n": [1, 1]}), partition_by=["v"])

    def load() -> pa.Table:
        return pa.table({"v": values, "n": [1]})

    dag = dag_of(tmp_path.name, uri, load, mode="overwrite", **which)
    runs.run(dag, days[0], run_after=now - timedelta(minutes=1))
    is_dynamic = "replace_where" not in which
    assert content(uri) == (["newer", "older", "zero"] if is_dynamic else ["newer"])
    version = DeltaTable(uri).version()
    late = runs.run(dag, days[1], run_after=now - timedelta(minutes=2))
    assert (runs.state(late, "load"), runs.tries(late, "load")) == ("failed", 1)
    assert DeltaTable(uri).version() == version
    runs.clear(dag, late, "load")
    assert (runs.state(late, "load"), DeltaTable(uri).version()) == ("success", version + 1)
    values[0] = "zero"
    other = runs.run(dag, None, run_after=now - timedelta(minutes=3))
    assert runs.state(other, "load") == ("success" if is_dynamic else "failed")


def test_an_attempt_that_lives_on_after_a_clearing_does_not_double_its_rows(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the first attempt sleeps; Airflow gives it up, it is cleared, wakes up and commits."""
    uri = tmp_path / "t"
    made: list[tuple[TxnId, ...]] = []
    write_txns = TaskRun.write_txns

    def noted(self: TaskRun, *args: Any, **kwargs: Any) -> tuple[TxnId, ...]:
        made.append(write_txns(self, *args, **kwargs))
        return made[-1]

    monkeypatch.setattr(TaskRun, "write_txns", noted)

    def work(ti: Any) -> pa.Table:
        if ti.try_number == 1:
            raise RuntimeError("given up")
        if ti.try_number == 2:
            DeltaTable(uri).append(rows("asleep"), txn=made[0])
        return rows("cleared")

    dag = dag_of("lives_on", uri, work, retries=0)
    run = runs.clear(dag, runs.run(dag, DAY_5), "load")
    assert (runs.state(run, "load"), content(uri)) == ("failed", ["asleep"])
    assert (runs.state(runs.clear(dag, run, "load"), "load"), content(uri)) == ("success", ["asleep", "cleared"])
