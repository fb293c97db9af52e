"""One task of a DAG removes rows, another adds them: whatever is cleared, the table has the rows of both, or the task
that would lose some fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.providers.standard.operators.python import BranchPythonOperator, PythonOperator
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaWriteOperator,
    delta_write_audit_publish,
)
from delta_orch.airflow.run_context import TaskRun
from delta_orch.airflow.siblings import ensure_spared
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.run_identity import airflow_version, airflow_writer, interval_text
from tests.airflow.internals import ADDS_ONCE, needs_state

if TYPE_CHECKING:
    from delta_orch.airflow.neighbors import Neighbors
    from tests.airflow.conftest import Runs

DAY = datetime(2024, 1, 5, tzinfo=UTC)
LATER = airflow_version(datetime(2100, 1, 1, tzinfo=UTC))
ONCE: dict[str, Any] = {"idempotency": "partition"}


def rows(ds: str, *values: str) -> pa.Table:
    return pa.table({"day": [ds] * len(values), "v": list(values)})


def content(uri: Path) -> list[str]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


def loaded(ds: str, ti: Any) -> pa.Table:
    return rows(ds, f"load {ti.try_number}")


def added(ds: str, ti: Any) -> pa.Table:
    return rows(ds, f"more {ti.try_number}")


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


def first(kind: str, uri: Path, where: str, **more: Any) -> Any:
    if kind == "delete":
        return DeltaDeleteOperator(task_id="first", table_uri=uri, where=where)
    if kind == "merge":
        return DeltaMergeOperator(
            task_id="first", table_uri=uri, python_callable=loaded, on="source.v = target.v", clauses=[
                {"when_not_matched_insert_all": {}},
                {"when_not_matched_by_source_delete": {"condition": f"target.{where}"}},
            ],
            **more,
        )  # fmt: skip
    if kind == "mapped":
        return DeltaDeleteOperator.partial(task_id="first", table_uri=uri).expand(where=["v = 'x'", where])
    replaces: dict[str, Any] = {"whole": {}, "dynamic": {"partition_overwrite_mode": "dynamic"}}.get(
        kind, {"replace_where": where}
    )
    return DeltaWriteOperator(task_id="first", table_uri=uri, python_callable=loaded, mode="overwrite", **replaces)


def dag_of(
    kind: str, uri: Path, *, in_order: bool = True, where: str = "day = '{{ ds }}'", does: Any = added, **more: Any
) -> DAG:
    if not DeltaTable(uri).exists():
        DeltaTable(uri).create(rows("", "").schema, partition_by=["day"] if kind == "dynamic" else [])
    with DAG(f"removed_{uri.parent.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        one = first(kind, uri, where)
        two = DeltaWriteOperator(task_id="more", table_uri=uri, python_callable=does, mode="append", **more)
        if in_order:
            one >> two
    return dag


def gated(kind: str, uri: Path, is_open: list[bool]) -> DAG:
    """Runs that remove the same rows, whatever their interval is, and wait before they add their own."""

    def opens() -> None:
        assert is_open[0]

    dag = dag_of(kind, uri, where="day = 'x'", does=lambda run_id: rows("x", run_id))
    with dag:
        gate = PythonOperator(task_id="gate", python_callable=opens)
        dag.task_dict["first"].python_callable = lambda: rows("x", "load")
        dag.task_dict["first"] >> gate >> dag.task_dict["more"]
    return dag


def both(kind: str, number: int) -> list[str]:
    return [*([] if kind in ("delete", "mapped") else [f"load {number}"]), f"more {number}"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delete", "replace_where", "dynamic", pytest.param("merge", marks=needs_state)])
@pytest.mark.parametrize(
    "more",
    [pytest.param({"post_execute": die_once, "retries": 0}, marks=needs_state, id="unacknowledged"), ONCE],
    ids=str,
)
def test_what_was_removed_is_added_again(runs: Runs, tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    dag = dag_of(kind, tmp_path / "t", **more)
    run = runs.run(dag, DAY)
    assert content(tmp_path / "t") == both(kind, 1)
    runs.clear(dag, run, "first", "more")
    assert content(tmp_path / "t") == both(kind, 2)
    runs.clear(dag, run, "more")
    assert content(tmp_path / "t")[-1 if more == ONCE else -2 :] == ["more 2", "more 3"][: 1 if more == ONCE else 2]


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("kind", ["delete", "replace_where", "dynamic"])
def test_what_a_newer_run_has_removed_is_added_again_by_a_run_that_is_cleared(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    dag = dag_of(kind, tmp_path / "t", post_execute=die_once, retries=0)
    run = runs.run(dag, DAY)
    assert runs.state(run, "more") == "failed"
    newer = runs.run(dag, DAY + timedelta(hours=3))
    runs.clear(dag, newer, "more")
    assert content(tmp_path / "t") == both(kind, 1)
    runs.clear(dag, run, "first", "more")
    assert (runs.state(run, "more"), content(tmp_path / "t")) == ("success", both(kind, 2))


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("how", ["newer run", "user", "restore", "nobody"])
def test_a_clearing_adds_rows_again_that_are_all_gone(runs: Runs, tmp_path: Path, how: str) -> None:
    table = DeltaTable(tmp_path / "t")
    is_newer: list[bool] = []

    def does(ds: str, ti: Any) -> pa.Table:
        return rows(ds)[:0] if is_newer else added(ds, ti)

    dag = dag_of("delete", tmp_path / "t", does=does, post_execute=die_once, retries=0)
    run = runs.run(dag, DAY)
    if how == "newer run":
        is_newer.append(True)
        runs.run(dag, DAY + timedelta(hours=3))
        is_newer.clear()
    elif how == "restore":
        table.restore(0)
    else:
        table.delete("true")
        if how == "nobody":
            table.restore(table.version() - 1)
    assert content(tmp_path / "t") == (["more 1"] if how == "nobody" else [])
    runs.clear(dag, run, "more", *(["first"] if how == "newer run" else []))
    assert (runs.state(run, "more"), content(tmp_path / "t")) == (
        "success",
        ["more 1" if how == "nobody" else "more 2"],
    )


@pytest.mark.slow
@needs_state
def test_a_clearing_adds_rows_where_the_attempt_that_died_had_none(runs: Runs, tmp_path: Path) -> None:
    def does(ds: str, ti: Any) -> pa.Table:
        return added(ds, ti)[: ti.try_number - 1]

    dag = dag_of("delete", tmp_path / "t", does=does, post_execute=die_once, retries=0)
    run = runs.run(dag, DAY)
    assert (runs.state(run, "more"), content(tmp_path / "t")) == ("failed", [])
    runs.clear(dag, run, "more")
    assert (runs.state(run, "more"), content(tmp_path / "t")) == ("success", ["more 2"])


@pytest.mark.slow
@needs_state
def test_a_retry_does_not_add_again_what_a_user_has_deleted(runs: Runs, tmp_path: Path) -> None:
    def die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            DeltaTable(tmp_path / "t").delete("true")
            raise RuntimeError("killed after the commit")

    dag = dag_of("delete", tmp_path / "t", post_execute=die, retries=1, retry_delay=timedelta(0))
    run = runs.run(dag, DAY)
    assert (runs.state(run, "more"), runs.tries(run, "more"), content(tmp_path / "t")) == ("success", 2, [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delete", "replace_where", "whole", pytest.param("merge", marks=needs_state)])
def test_a_task_that_is_cleared_alone_removes_no_rows_of_one_after_it(runs: Runs, tmp_path: Path, kind: str) -> None:
    dag = dag_of(kind, tmp_path / "t", **ADDS_ONCE)
    run = runs.run(dag, DAY)
    version = DeltaTable(tmp_path / "t").version()
    runs.clear(dag, run, "first")
    assert runs.state(run, "first") == "failed"
    assert DeltaTable(tmp_path / "t").version() == version
    runs.clear(dag, run, "first", "more")
    assert content(tmp_path / "t") in ([*both(kind, 3)[:-1], "more 2"],)


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("before", [[], ["load 1", "more"]], ids=["inserted", "rewritten"])
def test_a_merge_that_is_cleared_alone_removes_no_rows_of_an_upsert_after_it(
    runs: Runs, tmp_path: Path, before: list[str]
) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).append(rows("2024-01-04", "other", *before))
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        upsert: dict[str, Any] = {"python_callable": lambda ds: rows(ds, "more"), "keys": ["v"]}
        first("merge", uri, "day = '{{ ds }}'") >> DeltaMergeOperator(task_id="more", table_uri=uri, **upsert)
    run = runs.run(dag, DAY)
    there = content(uri)
    assert "more" in there
    runs.clear(dag, run, "first")
    assert runs.state(run, "first") == "failed"
    assert content(uri) == there
    runs.clear(dag, run, "first", "more")
    assert [runs.state(run, name) for name in ("first", "more")] == ["success"] * 2
    assert "more" in content(uri)


@pytest.mark.slow
@needs_state
def test_a_merge_of_an_attempt_that_died_does_not_stand_where_a_task_before_it_has_written_again(
    runs: Runs, tmp_path: Path
) -> None:
    uri = tmp_path / "t"
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        last = first("merge", uri, "day = '{{ ds }}'", post_execute=die_once, retries=0)
        DeltaWriteOperator(task_id="more", table_uri=uri, python_callable=added) >> last
    run = runs.run(dag, DAY)
    assert content(uri) == ["load 1"]
    runs.clear(dag, run, "first")
    assert (runs.state(run, "first"), content(uri)) == ("success", ["load 1"])
    other = runs.run(dag, DAY + timedelta(days=1))
    runs.clear(dag, other, "first", "more")
    assert [runs.state(other, name) for name in ("more", "first")] == ["success", "failed"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["1 = 1", "v = 'a'"], ids=["all", "some"])
@pytest.mark.parametrize(
    "more",
    [pytest.param({"post_execute": die_once, "retries": 0}, marks=needs_state, id="unacknowledged"), ONCE],
    ids=str,
)
def test_what_a_later_task_has_removed_is_there_for_the_tasks_between(
    runs: Runs, tmp_path: Path, more: dict[str, Any], where: str
) -> None:
    """Where that one runs again. It is left to it what it removes in part."""
    read: list[list[str]] = []
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("", "").schema)
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        writes: dict[str, Any] = {"python_callable": lambda ds: rows(ds, "a", "b"), "mode": "append", **more}
        between = PythonOperator(task_id="between", python_callable=lambda: read.append(content(uri)))
        last = DeltaDeleteOperator(task_id="last", table_uri=uri, where=where, trigger_rule="all_done")
        DeltaWriteOperator(task_id="stage", table_uri=uri, **writes) >> between >> last
    run = runs.run(dag, DAY)
    left = content(uri)
    assert left == ([] if where == "1 = 1" else ["b"])
    runs.clear(dag, run, "stage", "between", "last")
    assert [runs.state(run, name) for name in ("stage", "between", "last")] == ["success"] * 3
    assert read[-1] == (left or ["a", "b"])
    assert content(uri) == left
    runs.clear(dag, run, "stage")
    assert (more == ONCE) == (content(uri) == left)


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("cleared", [["stage"], ["stage", "last"]], ids=["alone", "both"])
def test_what_was_cleaned_up_after_a_failure_is_added_again(runs: Runs, tmp_path: Path, cleared: list[str]) -> None:
    """The task that failed after its commit is cleared, and what cleaned up behind it does not run again."""
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("", "").schema)
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        writes: dict[str, Any] = {"python_callable": added, "post_execute": die_once, "retries": 0}
        last = DeltaDeleteOperator(task_id="last", table_uri=uri, where="day = '{{ ds }}'", trigger_rule="one_failed")
        DeltaWriteOperator(task_id="stage", table_uri=uri, **writes) >> last
    run = runs.run(dag, DAY)
    assert [runs.state(run, name) for name in ("stage", "last")] == ["failed", "success"]
    assert content(uri) == []
    runs.clear(dag, run, *cleared)
    assert runs.state(run, "stage") == "success"
    assert content(uri) == ["more 2"]


@pytest.mark.slow
def test_what_a_task_without_an_order_has_removed_is_added_again(runs: Runs, tmp_path: Path) -> None:
    """It may, as that one was cleared, and has not begun."""
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("", "").schema)
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        waits = PythonOperator(task_id="waits", python_callable=lambda: None)
        waits >> DeltaWriteOperator(task_id="more", table_uri=uri, python_callable=added, **ONCE)
        DeltaDeleteOperator(task_id="first", table_uri=uri, all_rows=True)
    run = runs.run(dag, DAY)
    assert content(uri) == ["more 1"]
    runs.clear(dag, run, "waits", "first", "more")
    assert runs.state(run, "first") == "success"
    assert content(uri) == ["more 2"]


@pytest.mark.slow
def test_tasks_without_an_order_do_not_remove_rows_of_each_other(runs: Runs, tmp_path: Path) -> None:
    """Which of them comes first is chance."""
    dag = dag_of("replace_where", tmp_path / "t", in_order=False, **ADDS_ONCE)
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "first")
    assert "more 1" in content(tmp_path / "t")
    assert runs.state(run, "first") == "failed"


def test_rows_of_a_task_without_an_order_that_come_meanwhile_are_not_removed(runs: Runs, tmp_path: Path) -> None:
    def overtaken(**context: Any) -> pa.Table:
        other = replace(TaskRun.from_context(context), task_id="more")
        options: dict[str, Any] = {"user_metadata": other.user_metadata()}
        DeltaTable(tmp_path / "t").append(rows("2024-01-05", "other"), **options)
        return rows("2024-01-05", "load")

    with DAG("removed_meanwhile", schedule="@daily", start_date=DAY, catchup=False) as dag:
        DeltaWriteOperator(task_id="first", table_uri=tmp_path / "t", python_callable=overtaken, mode="overwrite")
        DeltaWriteOperator(task_id="more", table_uri=tmp_path / "t", python_callable=added, **ONCE)
    run = runs.run(dag, DAY)
    assert runs.state(run, "first") == "failed"
    assert "other" in content(tmp_path / "t")


@pytest.mark.slow
def test_rows_that_are_removed_in_part_are_not_added_again(runs: Runs, tmp_path: Path) -> None:
    dag = dag_of("delete", tmp_path / "t", where="v = 'a'", does=lambda ds: rows(ds, "a", "b"), **ONCE)
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "first", "more")
    assert (runs.state(run, "first"), runs.state(run, "more")) == ("success", "failed")
    assert content(tmp_path / "t") == ["b"]


@pytest.mark.slow
def test_a_task_may_remove_other_rows(runs: Runs, tmp_path: Path) -> None:
    """Of one file, too: nothing of the other task goes with them."""
    dag = dag_of("replace_where", tmp_path / "t", where="v LIKE 'load%'", **ONCE)
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "first")
    assert content(tmp_path / "t") == ["load 2", "more 1"]
    runs.clear(dag, run, "first", "more")
    assert content(tmp_path / "t") == ["load 3", "more 1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delete", "replace_where"])
def test_rows_are_known_after_a_compaction(runs: Runs, tmp_path: Path, kind: str) -> None:
    """Also in one file with those of other days, which other runs have deleted and written again."""
    dag = dag_of(kind, tmp_path / "t", **ONCE)
    with dag:
        dag.task_dict["more"] >> DeltaOptimizeOperator(task_id="optimize", table_uri=tmp_path / "t")
    run, other = runs.run(dag, DAY), runs.run(dag, DAY + timedelta(days=1))
    assert DeltaTable(tmp_path / "t").snapshot().num_files == 1
    runs.clear(dag, run, "first")
    assert runs.state(run, "first") == "failed"
    runs.clear(dag, other, "first", "more", "optimize")
    runs.clear(dag, run, "first", "more")
    assert content(tmp_path / "t") == sorted([*both(kind, 2), *both(kind, 3)[:-1], "more 2"])


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("kind", ["delete", "replace_where", "mapped"])
def test_a_late_run_of_the_interval_adds_nothing_beside_the_rows_of_a_newer_one(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    """What its first task would have removed is left to the newer run."""
    DeltaTable(tmp_path / "t").append(rows("2024-01-05", "old"))
    dag = dag_of(kind, tmp_path / "t")
    newer = runs.run(dag, DAY, run_after=DAY + timedelta(days=2))
    expected = both(kind, 1)
    assert content(tmp_path / "t") == expected
    late = runs.run(dag, DAY, run_after=DAY + timedelta(days=1))
    assert late.run_id != newer.run_id
    assert runs.state(late, "first", 1 if kind == "mapped" else -1) == "success"
    assert runs.state(late, "more") == "failed"
    assert content(tmp_path / "t") == expected
    runs.clear(dag, late, "first", "more")
    assert content(tmp_path / "t") == both(kind, 2)


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("index", [0, 1])
def test_a_late_run_sees_what_mapped_tasks_of_a_newer_one_remove_meanwhile(
    runs: Runs, tmp_path: Path, index: int
) -> None:
    def overtaken(ds: str, ti: Any, data_interval_start: Any, data_interval_end: Any) -> pa.Table:
        writer = airflow_writer(ti.dag_id, "first", index)
        newer = TxnId(f"{writer}:{interval_text(data_interval_start, data_interval_end)}", LATER, ordered=True)
        DeltaTable(tmp_path / "t").overwrite(rows(ds, "newer"), txn=newer)
        return rows(ds, "late")

    dag = dag_of("mapped", tmp_path / "t", does=overtaken)
    late = runs.run(dag, DAY)
    assert [runs.state(late, "first", each) for each in (0, 1)] == ["success"] * 2
    assert runs.state(late, "more") == "failed"
    assert content(tmp_path / "t") == ["newer"]


@pytest.mark.slow
def test_what_a_branch_has_passed_over_is_replaced(runs: Runs, tmp_path: Path) -> None:
    """Cleared together: the branch goes another way now."""
    ways = ["left", "right"]
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        branch = BranchPythonOperator(task_id="branch", python_callable=lambda: ways.pop(0))
        about: dict[str, Any] = {"table_uri": tmp_path / "t", "mode": "overwrite", "replace_where": "day = '{{ ds }}'"}
        branch >> [
            DeltaWriteOperator(task_id="left", python_callable=lambda ds: rows(ds, "left"), **about),
            DeltaWriteOperator(task_id="right", python_callable=lambda ds: rows(ds, "right"), **about),
        ]
    run = runs.run(dag, DAY)
    assert content(tmp_path / "t") == ["left"]
    runs.clear(dag, run, "branch", "left", "right")
    assert [runs.state(run, name) for name in ("left", "right")] == ["skipped", "success"]
    assert content(tmp_path / "t") == ["right"]


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("kind", ["delete", "replace_where", "dynamic"])
def test_what_an_older_run_adds_late_stands_beside_no_rows_of_a_newer_run(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    """Of whichever intervals, if it is the same rows that they remove. In its order, or cleared, each run goes on."""
    uri, is_open = tmp_path / "t", [False]
    dag = gated(kind, uri, is_open)
    older = runs.run(dag, DAY, run_after=DAY + timedelta(days=1))
    is_open[0] = True
    newer = runs.run(dag, DAY + timedelta(days=1), run_after=DAY + timedelta(days=2))
    there = content(uri)
    assert newer.run_id in there
    version = DeltaTable(uri).version()
    runs.clear(dag, older, "gate", "more")
    assert runs.state(older, "more") == "failed"
    assert DeltaTable(uri).version() == version
    runs.clear(dag, older, "first", "gate", "more")
    assert content(uri) == sorted({*there} - {newer.run_id} | {older.run_id})


@pytest.mark.slow
@needs_state
def test_a_late_run_deletes_no_rows_that_a_newer_one_has_added_behind_its_own_deletion(
    runs: Runs, tmp_path: Path
) -> None:
    uri = tmp_path / "t"
    dag = dag_of("delete", uri, where="day = 'x'", does=lambda run_id: rows("x", run_id))
    newer = runs.run(dag, DAY + timedelta(days=1), run_after=DAY + timedelta(days=2))
    late = runs.run(dag, DAY, run_after=DAY + timedelta(days=1))
    assert (runs.state(late, "first"), content(uri)) == ("failed", [newer.run_id])
    runs.clear(dag, late, "first", "more")
    assert content(uri) == [late.run_id]


@pytest.mark.slow
@needs_state
def test_where_vacuum_has_deleted_what_would_tell_whose_rows_are_removed_the_task_is_refused(
    runs: Runs, tmp_path: Path
) -> None:
    uri = tmp_path / "t"
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        first("replace_where", uri, "day = 'x'").python_callable = lambda: rows("x", "load")
        DeltaWriteOperator(task_id="more", table_uri=uri, python_callable=lambda: rows("x", "more"))
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "more")
    table = DeltaTable(uri)
    table.optimize()
    table.vacuum(0, enforce_retention=False)
    there = content(uri)
    runs.clear(dag, run, "first")
    assert (runs.state(run, "first"), runs.tries(run, "first"), content(uri)) == ("failed", 2, there)


@pytest.mark.slow
@needs_state
def test_what_an_older_run_has_staged_is_not_published_beside_rows_of_a_newer_run(runs: Runs, tmp_path: Path) -> None:
    """The newer run comes between the look of the task that stages and the publication."""
    uri, is_open = tmp_path / "t", [False]
    DeltaTable(uri).create(rows("", "").schema)

    def opens() -> None:
        assert is_open[0]

    with DAG(f"removed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        group = delta_write_audit_publish(
            "wap", table_uri=uri, python_callable=lambda run_id: rows("x", run_id), checks={"some": {"min_rows": 1}},
            if_unchanged=False,
        )  # fmt: skip
        gate = PythonOperator(task_id="gate", python_callable=opens)
        DeltaDeleteOperator(task_id="first", table_uri=uri, where="day = 'x'") >> group.children["wap.stage"] >> gate
        gate >> group.children["wap.publish"]
    older = runs.run(dag, DAY, run_after=DAY + timedelta(days=1))
    is_open[0] = True
    newer = runs.run(dag, DAY + timedelta(days=1), run_after=DAY + timedelta(days=2))
    assert content(uri) == [newer.run_id]
    runs.clear(dag, older, "gate", "wap.publish")
    assert (runs.state(older, "wap.publish"), content(uri)) == ("failed", [newer.run_id])
    runs.clear(dag, older, "first", "wap.stage", "wap.some", "gate", "wap.publish")
    assert content(uri) == [older.run_id]


@pytest.mark.parametrize("removes", ["delete", "replace_where"])
def test_a_removal_whose_rows_another_writer_changes_meanwhile_is_retried(
    runs: Runs, tmp_path: Path, removes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).append(rows("x", "a", "b"))

    def spare(tasks: Neighbors, *given: Any, **more: Any) -> None:
        ensure_spared(tasks, *given, **more)
        if tasks.run.try_number == 1:
            DeltaTable(uri).delete("v = 'a'")

    monkeypatch.setattr("delta_orch.airflow.once.ensure_spared", spare)
    with DAG(f"removed_{tmp_path.name[-30:]}", schedule=None) as dag:
        task = first(removes, uri, "v <> 'load 2'")
        task.retries, task.retry_delay = 1, timedelta(0)
        task.python_callable = lambda ti: rows("x", f"load {ti.try_number}".replace("2", "3"))
    run = runs.run(dag, DAY)
    assert (runs.state(run, "first"), runs.tries(run, "first")) == ("success", 2)
    assert content(uri) == ([] if removes == "delete" else ["load 3"])


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("kind", ["delete", "replace_where", "whole"])
def test_what_adds_rows_and_is_cleared_alone_does_not_make_its_run_the_newest(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    """A newer run has removed its rows. Those of the newer run stay, unless the task that removes is cleared, too."""
    uri, is_whole = tmp_path / "t", kind == "whole"
    dag = dag_of(kind, uri, where="day = 'x'", does=lambda run_id: rows("x", run_id))
    dag.task_dict["first"].python_callable = lambda: rows("x", "load")

    def run(day: int) -> Any:
        """Whole tables are ordered by the interval, if there is one."""
        start = None if is_whole else DAY + timedelta(days=day)
        return runs.run(dag, start, run_after=DAY + timedelta(days=day + 1))

    # `dag.test()` knows one run without a date, the last.
    older = None if is_whole else run(0)
    newer = run(1)
    older = older or run(0)
    there = content(uri)
    assert newer.run_id in there
    runs.clear(dag, older, "more")
    assert content(uri) == there
    assert runs.state(older, "more") == ("success" if is_whole else "failed")
    runs.clear(dag, older, "first", "more")
    assert content(uri) == sorted({*there} - {newer.run_id} | {older.run_id})


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("kind", ["delete", "replace_where"])
def test_of_two_runs_that_are_cleared_together_the_rows_of_one_are_there(runs: Runs, tmp_path: Path, kind: str) -> None:
    """Their tasks come one between the other: of the run whose task has removed rows last."""
    uri, is_open = tmp_path / "t", [True]
    dag = gated(kind, uri, is_open)
    one, two = (runs.run(dag, DAY + timedelta(days=n), run_after=DAY + timedelta(days=n + 1)) for n in (0, 1))
    is_open[0] = False
    runs.clear(dag, two, "first", "gate", "more")
    runs.clear(dag, one, "first", "gate", "more")
    is_open[0] = True
    runs.clear(dag, two, "gate", "more")
    assert runs.state(two, "more") == "failed"
    runs.clear(dag, one, "gate", "more")
    assert content(uri)[-1:] == [one.run_id]
    assert two.run_id not in content(uri)
