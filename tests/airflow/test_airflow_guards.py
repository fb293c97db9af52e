"""Rows of others: what a task does not replace, and that the remedy of each refusal works as it is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaDeleteOperator,
    DeltaHook,
    DeltaMergeOperator,
    DeltaUpdateOperator,
    DeltaWriteOperator,
)
from delta_orch.airflow.versions import RELEASE

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

pytestmark = pytest.mark.long

DAYS = [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 9)]
DAILY: dict[str, Any] = {"schedule": "@daily", "start_date": DAYS[0]}


def rows(*values: str) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.string())})


def content(uri: Path) -> list[str]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_a_task_behind_this_one_stay_unless_it_begins_again(
    runs: Runs, tmp_path: Path, compacted: bool
) -> None:
    uri = tmp_path / "t"
    with DAG(f"behind_{compacted}", **DAILY) as dag:
        deletes = DeltaDeleteOperator(task_id="empty", table_uri=uri, where="v <> 'c'")
        adds = DeltaWriteOperator(
            task_id="fill", table_uri=uri, python_callable=lambda ti: rows(f"a{ti.try_number}", f"b{ti.try_number}")
        )
        deletes >> adds
    DeltaTable(uri).create(rows().schema)
    run = runs.run(dag, DAYS[0])
    if compacted:
        DeltaTable(uri).append(rows("c"))
        DeltaTable(uri).optimize()
    before = content(uri)
    runs.clear(dag, run, "empty")
    assert (runs.state(run, "empty"), content(uri)) == ("failed", before)
    if compacted:
        return  # The rows of the unit cannot be told from others any more.
    # As the error says: together with the task behind it.
    runs.clear(dag, run, "empty", "fill")
    assert (runs.state(run, "fill"), content(uri)) == ("success", ["a2", "b2"])


def test_rows_of_a_task_without_an_order_stay(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    waits: list[bool] = []
    how: dict[str, Any] = {"table_uri": uri, "write": "overwrite"}

    def dag_of() -> DAG:
        with DAG("no_order", **DAILY) as dag:
            first = DeltaWriteOperator(task_id="first", python_callable=lambda: rows("a"), **how)
            second = DeltaWriteOperator(task_id="second", python_callable=lambda: rows("b"), **how)
            if waits:
                first >> second
        return dag

    run = runs.run(dag_of(), DAYS[0])
    assert sorted(runs.state(run, name) for name in ("first", "second")) == ["failed", "success"]
    waits.append(True)  # As the error says: first >> second.
    run = runs.run(dag_of(), DAYS[0])
    assert [runs.state(run, name) for name in ("first", "second")] == ["success", "success"]
    assert content(uri) == ["b"]


@pytest.mark.skipif(RELEASE < (3, 1), reason="Airflow 3.0 runs these tasks in another order")
def test_a_merge_that_deletes_leaves_the_rows_of_a_task_without_an_order(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows().schema)
    waits: list[bool] = []

    def dag_of() -> DAG:
        with DAG("merge_deletes", **DAILY) as dag:
            fills = DeltaWriteOperator(task_id="a_fills", table_uri=uri, python_callable=lambda ds: rows(ds))
            merges = DeltaMergeOperator(
                task_id="b_merges", table_uri=uri, python_callable=lambda: rows("m"), on="source.v = target.v",
                clauses=[{"when_not_matched_insert_all": {}}, {"when_not_matched_by_source_delete": {}}],
            )  # fmt: skip
            if waits:
                fills >> merges
        return dag

    run = runs.run(dag_of(), DAYS[0])
    assert (runs.state(run, "b_merges"), content(uri)) == ("failed", ["2024-01-01"])
    waits.append(True)  # As the error says.
    run = runs.run(dag_of(), DAYS[1])
    assert (runs.state(run, "b_merges"), content(uri)) == ("success", ["m"])


def test_a_task_behind_a_fenced_overwrite_is_fenced_with_it(runs: Runs, tmp_path: Path) -> None:
    """Its rows would stand in the table of a newer run."""
    uri = tmp_path / "t"
    with DAG("behind_overwrite", **DAILY) as dag:
        whole = DeltaWriteOperator(
            task_id="whole", table_uri=uri, write="overwrite", python_callable=lambda ds: rows(f"{ds} whole")
        )
        more = [
            DeltaWriteOperator(task_id=name, table_uri=uri, python_callable=lambda ds, ti: rows(f"{ds} {ti.task_id}"))
            for name in ("one", "two")
        ]
        whole >> more
    newer = runs.run(dag, DAYS[5])
    there = ["2024-01-06 one", "2024-01-06 two", "2024-01-06 whole"]
    late = runs.run(dag, DAYS[4])
    assert content(uri) == there
    assert [runs.xcom(late, name)["outcome"] for name in ("whole", "one", "two")] == ["fenced"] * 3
    assert runs.xcom(late, "one")["fenced_by"] == newer.run_id
    runs.clear(dag, newer, "one")
    assert (content(uri), runs.xcom(newer, "one")["outcome"]) == (there, "replaced")


def test_rows_of_a_newer_table_are_not_changed_behind_a_fenced_overwrite(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with DAG("changes_behind_overwrite", **DAILY) as dag:
        whole = DeltaWriteOperator(
            task_id="whole", table_uri=uri, write="overwrite", python_callable=lambda ds: rows(ds, "kept", "gone")
        )
        update = DeltaUpdateOperator(task_id="update", table_uri=uri, set={"v": "v || ' updated'"}, where="v = 'kept'")
        delete = DeltaDeleteOperator(task_id="delete", table_uri=uri, where="v = 'gone'")
        merge = DeltaMergeOperator(
            task_id="merge",
            table_uri=uri,
            python_callable=lambda ds: rows(ds),
            on="target.v = source.v",
            clauses=[{"when_matched_update": {"set": {"v": "target.v || ' merged'"}}}],
        )
        whole >> update >> delete >> merge
    runs.run(dag, DAYS[5])
    assert content(uri) == ["2024-01-06 merged", "kept updated"]
    late = runs.run(dag, DAYS[4])
    assert content(uri) == ["2024-01-06 merged", "kept updated"]
    assert [runs.xcom(late, name)["outcome"] for name in dag.task_ids] == ["fenced"] * 4


def test_a_newer_table_that_comes_while_a_task_writes_takes_none_of_its_rows(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    newer: list[Any] = []
    with DAG("overtaken", **DAILY) as dag:
        whole = DeltaWriteOperator(
            task_id="whole", table_uri=uri, write="overwrite", python_callable=lambda ds: rows(f"{ds} whole")
        )

        def more(ds: str) -> pa.Table:
            if ds == "2024-01-05" and not newer:
                newer.append(runs.run(dag, DAYS[5]))
            return rows(f"{ds} more")

        whole >> DeltaWriteOperator(task_id="more", table_uri=uri, python_callable=more)
    late = runs.run(dag, DAYS[4])
    assert content(uri) == ["2024-01-06 more", "2024-01-06 whole"]
    assert (runs.xcom(late, "more")["outcome"], runs.xcom(late, "more")["fenced_by"]) == ("fenced", newer[0].run_id)


def test_mapped_instances_do_not_replace_each_others_rows(runs: Runs, tmp_path: Path) -> None:
    with DAG("mapped_overlap", **DAILY) as dag:
        DeltaWriteOperator.partial(
            task_id="load", table_uri=tmp_path / "t", write="overwrite", python_callable=lambda v: rows(v)
        ).expand(op_kwargs=[{"v": "a"}, {"v": "b"}])
    run = runs.run(dag, DAYS[0])
    assert sorted(runs.state(run, "load", index) for index in (0, 1)) == ["failed", "success"]


def rolling(name: str, uri: Path, source: list[str], **schedule: Any) -> DAG:
    """Each run replaces the last three days."""

    def window(ds: str) -> pa.Table:
        return rows(*[f"{day} {source[0]}" for day in (f"2024-01-{n:02}" for n in range(1, 9)) if day <= ds][-3:])

    with DAG(name, **{**DAILY, **schedule}) as dag:
        DeltaWriteOperator(
            task_id="load", table_uri=uri, write="overwrite", python_callable=window,
            replace_where="v >= '{{ macros.ds_add(ds, -2) }}'",
        )  # fmt: skip
    return dag


def test_a_rolling_window_of_an_older_run_replaces_no_rows_of_a_newer_one(runs: Runs, tmp_path: Path) -> None:
    uri, source = tmp_path / "t", ["old"]
    dag = rolling("rolling", uri, source)
    done = [runs.run(dag, day) for day in (DAYS[0], DAYS[1], DAYS[2], DAYS[4])]
    late = runs.run(dag, DAYS[3])
    there = [f"2024-01-0{day} old" for day in range(1, 6)]
    assert (runs.state(late, "load"), content(uri)) == ("failed", there)
    # Only those of a run that begins again, too. As the error says: together with the newer runs.
    source[0] = "new"
    runs.clear(dag, late, "load")
    assert (runs.state(late, "load"), content(uri)) == ("failed", there)
    runs.clear_runs(dag, [late, done[-1]], "load")
    assert content(uri) == [there[0], *(f"2024-01-0{day} new" for day in range(2, 6))]
    # So is a run that has written before.
    runs.clear(dag, done[2], "load")
    assert runs.state(done[2], "load") == "failed"
    runs.clear_runs(dag, [done[2], late, done[-1]], "load")
    assert [runs.state(run, "load") for run in (done[2], late, done[-1])] == ["success"] * 3
    assert content(uri) == [f"2024-01-0{day} new" for day in range(1, 6)]


def test_a_manual_run_does_not_keep_the_run_of_the_same_interval_out(runs: Runs, tmp_path: Path) -> None:
    """Its logical date is the moment when it was triggered, and its data interval the last one of the schedule."""
    uri, source = tmp_path / "t", ["manual"]
    dag = rolling("rolling_manual", uri, source, schedule=CronDataIntervalTimetable("@daily", timezone="UTC"))
    runs.run(dag, DAYS[2].replace(hour=15))
    source[0] = "scheduled"
    run = runs.run(dag, DAYS[2])
    assert (runs.state(run, "load"), content(uri)) == ("success", [f"2024-01-0{day} scheduled" for day in (1, 2, 3)])


def test_rows_of_a_task_that_is_retried_stay(runs: Runs, tmp_path: Path) -> None:
    """Its retry finds its commit, and writes nothing: the rows would be lost."""

    def die_once(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            raise RuntimeError("killed after the commit")

    uri = tmp_path / "t"
    with DAG("retried_beside", **DAILY) as dag:
        DeltaWriteOperator(
            task_id="fill", table_uri=uri, python_callable=lambda: rows("a"), retries=1, post_execute=die_once,
            retry_delay=timedelta(seconds=3),
        )  # fmt: skip

        @task
        def gate() -> None: ...

        gate() >> DeltaDeleteOperator(task_id="empty", table_uri=uri, where="v = 'a'")
    DeltaTable(uri).create(rows().schema)
    run = runs.run(dag, DAYS[0])
    assert [runs.state(run, name) for name in ("fill", "empty")] == ["success", "failed"]
    assert (content(uri), runs.xcom(run, "fill")["outcome"]) == (["a"], "recovered")


def test_a_copy_of_a_dag_does_not_replace_the_rows_of_the_first(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"

    def dag_of(name: str, **more: Any) -> DAG:
        with DAG(name, **DAILY) as dag:
            DeltaWriteOperator(
                task_id="load", table_uri=uri, python_callable=lambda: rows(name), **{"write": "overwrite", **more}
            )
        return dag

    runs.run(dag_of("production"), DAYS[0])
    copied = runs.run(dag_of("staging"), DAYS[1])
    assert (runs.state(copied, "load"), content(uri)) == ("failed", ["production"])
    # It may add rows, and replace its own.
    added = dag_of("adds", write="append")
    run = runs.run(added, DAYS[1])
    runs.clear(added, run, "load")
    assert content(uri) == ["adds", "production"]
    # As the error says, if it has taken the place of the other.
    DeltaTable(uri).undo(unit="airflow:adds.load:2024-01-02T00:00:00+00:00")
    runs.run(dag_of("staging", writer="production.load"), DAYS[1])
    assert content(uri) == ["staging"]
    # Or its rows are taken away first.
    DeltaTable(uri).undo(unit="airflow:production.load:2024-01-02T00:00:00+00:00")
    runs.run(dag_of("other"), DAYS[1])
    assert content(uri) == ["other"]


def test_a_staging_table_is_written_by_each_run_and_read_as_its_run_wrote_it(runs: Runs, tmp_path: Path) -> None:
    between: list[Any] = []

    def stage(ds: str) -> pa.Table:
        return rows(ds)

    with DAG("staged", **DAILY) as dag:
        staged = DeltaWriteOperator(task_id="stage", table_uri=tmp_path / "s", write="overwrite", python_callable=stage)

        @task
        def wait() -> None:
            if between:
                DeltaTable(tmp_path / "s").overwrite(rows("another run"))

        def copy() -> pa.Table:
            return DeltaHook().snapshot(str(tmp_path / "s")).scan().to_arrow()

        staged >> wait() >> [
            DeltaWriteOperator(
                task_id="query", table_uri=tmp_path / "q", tables={"s": tmp_path / "s"}, sql="SELECT v FROM s",
                engine="local",
            ),
            DeltaWriteOperator(task_id="code", table_uri=tmp_path / "c", python_callable=copy),
        ]  # fmt: skip
    runs.run(dag, DAYS[5])
    between.append(True)
    late = runs.run(dag, DAYS[4])
    assert runs.xcom(late, "stage")["outcome"] == "written"
    both = ["2024-01-05", "2024-01-06"]
    assert (content(tmp_path / "q"), content(tmp_path / "c")) == (both, both)
