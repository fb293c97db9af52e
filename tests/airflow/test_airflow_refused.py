"""What adds rows is refused where it could double them or leave them lost, and goes on as the error says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaDeleteOperator, DeltaMergeOperator, DeltaWriteOperator, delta_write_audit_publish
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import needs_state
from tests.airflow.stories import CERTAIN, RETRIES, Died, Instance, content, new_table

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY = datetime(2024, 1, 5, tzinfo=UTC)
ONCE: dict[str, Any] = {"idempotency": "partition"}


def rows(by: str, *keys: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.string()), "by": pa.array([by] * len(keys), pa.string())})


def content_of(uri: Path) -> list[str]:
    return sorted(f"{row['k']} {row['by']}" for row in DeltaTable(uri).snapshot().scan().to_arrow().to_pylist())


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


DIES: Any = pytest.param({"post_execute": die_once, "retries": 0}, marks=needs_state, id="unacknowledged")


def updating(kind: str, uri: Path, keys: list[str]) -> Any:
    """A task that updates the rows of some keys, and adds those of others."""
    arguments: Any = {"keys": ["k"]}
    if kind == "clauses":
        arguments = {
            "on": "source.k = target.k",
            "clauses": [{"when_matched_update_all": {}}, {"when_not_matched_insert_all": {}}],
        }
    return DeltaMergeOperator(
        task_id="first", table_uri=uri, python_callable=lambda ti: rows(f"first {ti.try_number}", *keys), **arguments
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keys", pytest.param("clauses", marks=needs_state)])
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("more", [DIES, pytest.param(ONCE, id="once")])
def test_rows_that_a_task_before_has_updated_are_neither_there_nor_gone(
    runs: Runs, tmp_path: Path, kind: str, more: dict[str, Any], takes: bool, compacted: bool
) -> None:
    """An upsert runs again and takes keys of the rows that were added behind it."""
    uri, keys = tmp_path / "t", ["x"]
    DeltaTable(uri).create(rows("").schema)
    with DAG(f"updated_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        adds = DeltaWriteOperator(
            task_id="more", table_uri=uri, python_callable=lambda ti: rows(f"more {ti.try_number}", "a", "b"), **more
        )
        updating(kind, uri, keys) >> adds
    run = runs.run(dag, DAY)
    if compacted:
        # Those of both tasks are in one file, as a compaction or optimized writes leave them.
        DeltaTable(uri).optimize()
    if not takes:
        # What has keys of its own does no harm.
        runs.clear(dag, run, "first", "more")
        assert (runs.state(run, "more"), content_of(uri)) == ("success", ["a more 1", "b more 1", "x first 2"])
        return
    keys.append("a")
    runs.clear(dag, run, "first", "more")
    there = ["a first 2", "b more 1", "x first 2"]
    assert (runs.state(run, "more"), content_of(uri)) == ("failed", there)
    # As the error says.
    DeltaTable(uri).delete("k IN ('a', 'b')")
    runs.clear(dag, run, "more")
    assert (runs.state(run, "more"), content_of(uri)) == ("success", ["a more 3", "b more 3", "x first 2"])


@pytest.mark.slow
def test_an_upsert_that_is_cleared_is_done_again_whatever_a_task_before_has_done_to_its_rows(
    runs: Runs, tmp_path: Path
) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("").schema)
    with DAG(f"updated_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        upserts = DeltaMergeOperator(
            task_id="more", table_uri=uri, python_callable=lambda ti: rows(f"more {ti.try_number}", "a", "b"),
            keys=["k"], post_execute=die_once, retries=0,
        )  # fmt: skip
        deletes = DeltaDeleteOperator(task_id="none", table_uri=uri, where="k = 'b'")
        updating("keys", uri, ["a"]) >> deletes >> upserts
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "first", "none", "more")
    assert (runs.state(run, "more"), content_of(uri)) == ("success", ["a more 2", "b more 2"])


@pytest.mark.slow
@needs_state
def test_rows_that_a_task_without_an_order_has_updated_are_as_they_may_be(runs: Runs, tmp_path: Path) -> None:
    """It has come behind, as it might have. A retry reports its own commit."""
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("").schema)

    def upserted_and_die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            other = replace(TaskRun.from_context(context), task_id="first")
            table, source = DeltaTable(uri), rows("first", "a")
            merge = table.merge(source, "source.k = target.k", user_metadata=other.user_metadata())
            merge.when_matched_update_all().execute()
        die_once(context, result)

    with DAG(f"updated_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        DeltaWriteOperator(
            task_id="more", table_uri=uri, python_callable=lambda: rows("more", "a", "b"), retries=1,
            retry_delay=timedelta(0), post_execute=upserted_and_die,
        )  # fmt: skip
        updating("keys", uri, ["x"])
    run = runs.run(dag, DAY)
    assert (runs.state(run, "more"), runs.tries(run, "more")) == ("success", 2)
    assert content_of(uri) == ["a first", "b more", "x first 1"]


@pytest.mark.slow
def test_what_is_left_of_rows_may_be_deleted_for_all_of_them_to_be_added_again(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("").schema)
    with DAG(f"updated_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        adds = DeltaWriteOperator(
            task_id="more", table_uri=uri, python_callable=lambda ti: rows(f"more {ti.try_number}", "a", "b"), **ONCE
        )
        DeltaDeleteOperator(task_id="first", table_uri=uri, where="k = 'a'") >> adds
    run = runs.run(dag, DAY)
    runs.clear(dag, run, "first", "more")
    assert (runs.state(run, "more"), content_of(uri)) == ("failed", ["b more 1"])
    DeltaTable(uri).delete("k = 'b'")
    runs.clear(dag, run, "more")
    assert (runs.state(run, "more"), content_of(uri)) == ("success", ["a more 3", "b more 3"])


@needs_state
@pytest.mark.parametrize("step", [*CERTAIN, *RETRIES])
def test_an_identity_that_each_try_has_anew_adds_rows_once(step: str) -> None:
    table = new_table()
    task = Instance(table, False, name="try 1")
    with pytest.raises(Died):
        task.attempt("after")
    # Whatever it is called; also where the process dies as it is refused, and is tried again.
    for number, how in ((2, step), (3, "retry")):
        getattr(task, how)()
        task.name = f"try {number}"
        with pytest.raises(InvalidRequestError, match="has another identity than the attempt before it"):
            task.attempt()
        assert content(table) == ["1"]
    # As the error says.
    task.clear()
    task.name = "try 4"
    task.attempt()
    assert content(table) == ["1", "4"]


@needs_state
@pytest.mark.parametrize("work", ["same", "another"])
def test_a_mapped_task_whose_identity_changes_is_told_from_a_list_that_has_changed(work: str) -> None:
    table = new_table()
    task = Instance(table, False, name="try 1", map_index=0, work="same")
    with pytest.raises(Died):
        task.attempt("after")
    task.clear()
    task.name, task.work = "try 2", work
    if work == "same":
        with pytest.raises(InvalidRequestError, match="has another identity than the attempt before it"):
            task.attempt()
    else:
        task.attempt()
    assert content(table) == (["0:1"] if work == "same" else ["0:1", "0:2"])


@pytest.mark.parametrize("step", [*CERTAIN, *RETRIES])
def test_without_state_an_identity_that_each_try_has_anew_adds_rows_once(step: str) -> None:
    table = new_table()
    task = Instance(table, False, name="try 1", keeps_state=False, idempotency="partition")
    task.attempt()
    getattr(task, step)()
    task.name = "try 2"
    with pytest.raises(InvalidRequestError, match="has another identity than the attempt before it"):
        task.attempt()
    assert content(table) == ["1"]


@pytest.mark.slow
@needs_state
def test_what_was_staged_under_the_identity_of_a_try_is_published_once(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with DAG(f"renamed_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        group = delta_write_audit_publish(
            "wap", table_uri=uri, identity="{{ ti.try_number }}", checks={"some": {"min_rows": 1}},
            python_callable=lambda ti: rows(f"stage {ti.try_number}", "a"),
        )  # fmt: skip
        group.children["wap.publish"]._post_execute_hook = die_once
    run = runs.run(dag, DAY)
    assert [runs.state(run, f"wap.{name}") for name in ("stage", "publish")] == ["success", "failed"]
    runs.clear(dag, run, "wap.stage", "wap.some", "wap.publish")
    assert (runs.state(run, "wap.stage"), content_of(uri)) == ("failed", ["a stage 1"])
    runs.clear(dag, run, "wap.stage", "wap.some", "wap.publish")
    assert content_of(uri) == ["a stage 1", "a stage 3"]
