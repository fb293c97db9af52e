"""The shapes of DAGs that users draw: mapped groups, `expand_kwargs`, branches, trigger rules, runs without a date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, ObjectStoragePath, TaskGroup, task, task_group

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaCheckOperator,
    DeltaDeleteOperator,
    DeltaHook,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaRowSensor,
    DeltaWriteOperator,
    delta_write_audit_publish,
)
from tests.airflow.internals import needs_rendered_group

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY_5, DAY_6 = datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC)
DAILY: dict[str, Any] = {"schedule": "@daily", "start_date": datetime(2024, 1, 1, tzinfo=UTC)}


def rows(*values: object) -> pa.Table:
    return pa.table({"v": [str(value) for value in values]})


def content(uri: object) -> list[str]:
    return sorted(DeltaTable(str(uri)).snapshot().scan().to_arrow()["v"].to_pylist())


@needs_rendered_group
def test_mapped_task_groups_and_expand_kwargs(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with DAG("shape_groups", **DAILY) as dag:

        @task_group
        def region(name: str) -> None:
            @task.delta(table_uri=uri, identity="{{ task.op_kwargs['name'] }}")
            def load(name: str) -> pa.Table:
                return rows(name)

            @task
            def count(written: dict[str, Any]) -> int:
                return DeltaHook().snapshot(written).version

            count(load(name=name))

        region.expand(name=["a", "b", "ö/]:"])
        with TaskGroup("more"):
            DeltaWriteOperator.partial(task_id="kwargs", python_callable=lambda v: rows(v)).expand_kwargs(
                [{"table_uri": str(tmp_path / name), "op_kwargs": {"v": name}} for name in ("x", "y")]
            )
            DeltaWriteOperator.partial(
                task_id="wheres", table_uri=str(tmp_path / "w"), write="overwrite", python_callable=lambda v: rows(v)
            ).expand_kwargs([{"replace_where": f"v = '{name}'", "op_kwargs": {"v": name}} for name in ("k", "l")])
    for times in (1, 2):
        run = runs.run(dag, DAY_5 + timedelta(days=times))
        assert str(run.state) == "success"
        assert content(uri) == sorted(["a", "b", "ö/]:"] * times)
        assert (content(tmp_path / "x"), content(tmp_path / "y")) == (["x"] * times, ["y"] * times)
        assert content(tmp_path / "w") == ["k", "l"]


@pytest.mark.long
def test_branches_skips_and_trigger_rules(runs: Runs, tmp_path: Path) -> None:
    with DAG("shape_branch", **DAILY) as dag:

        @task.branch
        def choose() -> str:
            return "left"

        left, right = (
            DeltaWriteOperator(task_id=side, table_uri=tmp_path / "t", python_callable=lambda side=side: rows(side))
            for side in ("left", "right")
        )
        joined = DeltaWriteOperator(
            task_id="joined", table_uri=tmp_path / "t", python_callable=lambda: rows("joined"),
            trigger_rule="none_failed_min_one_success",
        )  # fmt: skip
        always = DeltaOptimizeOperator(task_id="always", table_uri=tmp_path / "t", trigger_rule="all_done")
        choose() >> [left, right] >> joined >> always
    run = runs.run(dag, DAY_5)
    assert [runs.state(run, name) for name in ("left", "right", "joined", "always")] == [
        "success", "skipped", "success", "success"
    ]  # fmt: skip
    assert content(tmp_path / "t") == ["joined", "left"]


@pytest.mark.long
def test_manual_runs_without_a_date(runs: Runs, tmp_path: Path) -> None:
    with DAG("shape_manual", schedule=None) as dag:
        DeltaWriteOperator(task_id="append", table_uri=tmp_path / "a", python_callable=lambda run_id: rows(run_id))
        DeltaWriteOperator(
            task_id="overwrite",
            table_uri=tmp_path / "o",
            write="overwrite",
            python_callable=lambda run_id: rows(run_id),
        )
        DeltaWriteOperator(
            task_id="sql", table_uri=tmp_path / "s", sql="SELECT '{{ dag_run.run_after | ds }}' AS v", engine="local"
        )
    first, second = (runs.run(dag, None, run_after=DAY_5 + timedelta(hours=hours)) for hours in (1, 2))
    assert first.run_id != second.run_id
    assert content(tmp_path / "a") == sorted([first.run_id, second.run_id])
    assert content(tmp_path / "o") == [second.run_id]
    assert content(tmp_path / "s") == ["2024-01-05"] * 2


@pytest.mark.long
def test_odd_names_and_macros(runs: Runs, tmp_path: Path) -> None:
    def place(name: str) -> str:
        return f"{tmp_path}/{name}"

    with DAG("odd.dag-name", user_defined_macros={"place": place}, **DAILY) as dag, TaskGroup("g-1"):
        DeltaWriteOperator(task_id="a.b-c", table_uri="{{ place('x y') }}", python_callable=lambda: rows(1))
        DeltaWriteOperator(
            task_id="path", table_uri=ObjectStoragePath(f"file://{tmp_path}/p"), python_callable=lambda: rows(2)
        )
    run = runs.run(dag, DAY_5)
    assert str(run.state) == "success"
    assert (content(tmp_path / "x y"), content(tmp_path / "p")) == (["1"], ["2"])
    runs.clear(dag, run, "g-1.a.b-c")
    assert content(tmp_path / "x y") == ["1"]
    (unit,) = DeltaTable(tmp_path / "x y").units()["unit"].to_pylist()
    assert unit == "airflow:odd%2Edag-name.g-1.a.b-c:2024-01-05T00:00:00+00:00"


@pytest.mark.long
def test_mapped_merges_deletes_and_checks(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    DeltaTable(uri).append(rows("a", "b", "c"))
    with DAG("shape_mapped_rows", **DAILY) as dag:
        merged = DeltaMergeOperator.partial(
            task_id="merge", table_uri=str(uri), merge_keys=["v"], python_callable=lambda v: rows(v)
        ).expand(op_kwargs=[{"v": "a"}, {"v": "d"}])
        deleted = DeltaDeleteOperator.partial(task_id="delete", table_uri=str(uri)).expand(where=["v = 'b'", "v = 'c'"])
        checked = DeltaCheckOperator.partial(task_id="check", table_uri=str(uri)).expand(min_rows=[1, 2])
        there = DeltaRowSensor.partial(task_id="there", table_uri=str(uri), poke_interval=0.1, timeout=5).expand(
            where=["v = 'a'", "v = 'd'"]
        )
        merged >> deleted >> checked >> there
    run = runs.run(dag, DAY_5)
    assert (str(run.state), content(uri)) == ("success", ["a", "d"])


@pytest.mark.long
def test_a_group_that_audits_in_a_branch_that_is_not_taken(runs: Runs, tmp_path: Path) -> None:
    with DAG("shape_wap", **DAILY) as dag:

        @task.short_circuit
        def go(logical_date: datetime) -> bool:
            return logical_date == DAY_6

        group = delta_write_audit_publish(
            "wap", table_uri=tmp_path / "t", python_callable=lambda ds: rows(ds), audit={"some": {"min_rows": 1}}
        )
        go() >> group
    runs.run(dag, DAY_5)
    assert not DeltaTable(tmp_path / "t").exists()
    runs.run(dag, DAY_6)
    assert content(tmp_path / "t") == ["2024-01-06"]


@pytest.mark.long
def test_days_that_depend_on_the_past(runs: Runs, tmp_path: Path) -> None:
    def next_day(ds: str, ti: Any) -> pa.Table:
        if ds == "2024-01-06" and ti.try_number == 1:
            raise RuntimeError("not yet")
        return rows(ds)

    with DAG("shape_past", catchup=True, default_args={"depends_on_past": True}, **DAILY) as dag:
        DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=next_day)
    runs.run(dag, DAY_5)
    failed = runs.run(dag, DAY_6)
    runs.clear(dag, failed, "load")
    assert content(tmp_path / "t") == ["2024-01-05", "2024-01-06"]


@pytest.mark.long
def test_an_argument_whose_template_renders_to_nothing_is_refused(runs: Runs, tmp_path: Path) -> None:
    """Left out, it would stand for the whole table, every row or the newest version."""
    table = DeltaTable(tmp_path / "t")
    table.append(rows("a", "b"))
    with DAG("shape_nothing", **DAILY) as dag:

        @task
        def nothing() -> None:
            return None

        lost = nothing()
        place: dict[str, Any] = {"table_uri": str(tmp_path / "t")}
        for name, where in (("task", lost), ("text", "{{ '' }}")):
            DeltaWriteOperator(
                task_id=f"overwrite_{name}", write="overwrite", replace_where=where,
                python_callable=lambda: rows("a"), **place,
            )  # fmt: skip
        DeltaMergeOperator(
            task_id="merge", on="source.v = target.v", clauses=[{"when_matched_delete": {"condition": lost}}],
            python_callable=lambda: rows("a"), **place,
        )  # fmt: skip
        DeltaCheckOperator(task_id="check", reference=lost, min_rows=1, **place)
        DeltaRowSensor(task_id="sensor", where=lost, timeout=1, poke_interval=0.1, **place)
        DeltaWriteOperator.partial(
            task_id="mapped", write="overwrite", replace_where=lost, python_callable=lambda v: rows(v), **place
        ).expand(op_kwargs=[{"v": "a"}])
        # What a function makes of None is its own affair.
        DeltaWriteOperator(
            task_id="argument", table_uri=tmp_path / "n", python_callable=lambda v: rows(v), op_args=[lost]
        )
    run = runs.run(dag, DAY_5)
    refused = ["overwrite_task", "overwrite_text", "merge", "check", "sensor"]
    assert {runs.state(run, name) for name in refused} == {runs.state(run, "mapped", 0)} == {"failed"}
    assert (content(tmp_path / "t"), table.version()) == (["a", "b"], 0)
    assert content(tmp_path / "n") == ["None"]


def test_a_path_with_a_template(runs: Runs, tmp_path: Path) -> None:
    with DAG("shape_path", **DAILY) as dag:
        DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t_{{ ds }}", python_callable=lambda: rows(1))
    runs.run(dag, DAY_5)
    assert content(tmp_path / "t_2024-01-05") == ["1"]
