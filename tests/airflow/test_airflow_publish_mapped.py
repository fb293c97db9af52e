"""Mapped stages and publications: each publishes its own, and a clearing after one of them died repeats nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task_group

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaPublishOperator, DeltaWriteOperator, delta_write_audit_publish

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs


def rows(n: int) -> pa.Table:
    return pa.table({"n": pa.array([n], pa.int64())})


def content(uri: Path) -> list[int]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["n"].to_pylist())


def mapped_group(uri: Path) -> DAG:
    with DAG("mapped_group", schedule=None) as dag:

        @task_group
        def each(n: int) -> None:
            delta_write_audit_publish(
                "wap", table_uri=uri, audit={"some": {"rows": {"own": "n > 0"}}}, python_callable=rows,
                op_kwargs={"n": n},
            )  # fmt: skip

        each.expand(n=[1, 2])
    return dag


def mapped_tasks(uri: Path) -> DAG:
    with DAG("mapped_tasks", schedule=None) as dag:
        stage = DeltaWriteOperator.partial(
            task_id="stage", table_uri=uri, python_callable=rows, stage=True
        ).expand(op_kwargs=[{"n": 1}, {"n": 2}])  # fmt: skip
        DeltaPublishOperator.partial(task_id="publish", table_uri=uri, post_execute=die).expand(staged=stage.output)
    return dag


def die(context: Any, result: Any) -> None:
    ti = context["ti"]
    if ti.try_number == 1 and ti.map_index == 1:
        raise RuntimeError("killed after the commit")


@pytest.mark.long
@pytest.mark.parametrize("make", [mapped_group, mapped_tasks])
def test_one_that_died_unacknowledged_is_not_repeated(runs: Runs, tmp_path: Path, make: Any) -> None:
    dag = make(tmp_path / "t")
    for task in dag.tasks:
        if task.task_id.endswith("publish") and make is mapped_group:
            task._post_execute_hook = die
    run = runs.run(dag)
    assert (str(run.state), content(tmp_path / "t")) == ("failed", [1, 2])
    runs.clear(dag, run, *dag.task_ids)
    assert content(tmp_path / "t") == [1, 2]
