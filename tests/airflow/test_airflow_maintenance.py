"""Checkpoint, optimize and vacuum as tasks, and how errors end a task."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaCheckpointOperator,
    DeltaOptimizeOperator,
    DeltaVacuumOperator,
)
from delta_orch.airflow.maintenance_operators import parse_target_size
from delta_orch.airflow.table_operator import airflow_failures
from delta_orch.airflow.versions import AirflowFailException
from delta_orch.errors import (
    ConcurrentAppendError,
    InvalidRequestError,
    SchemaMismatchError,
)
from tests.certain import some


def small_files(uri: Path, **properties: str) -> DeltaTable:
    table = DeltaTable(str(uri))
    for day in ("a", "a", "a", "b", "b"):
        table.append(pa.table({"day": [day], "n": [1]}), partition_by=["day"], properties=properties)
    return table


def parquet_files(uri: Path) -> int:
    return len(list(uri.rglob("*.parquet"))) - len(list((uri / "_delta_log").glob("*.parquet")))


def test_the_maintenance_of_a_table(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    uri = tmp_path / "t"
    table = small_files(uri, **{"delta.deletedFileRetentionDuration": "interval 0 hours"})
    with DAG("maintenance", schedule=None, params={"day": "a"}) as dag:
        common: dict[str, Any] = {"table_uri": str(uri), "retries": 0}
        optimize = DeltaOptimizeOperator(
            task_id="optimize", where="day = '{{ params.day }}'", target_size="{{ 64 }}MB", **common
        )
        checkpoint = DeltaCheckpointOperator(task_id="checkpoint", **common)
        look = DeltaVacuumOperator(task_id="look", retention_hours="0", dry_run=True, **common)
        vacuum = DeltaVacuumOperator(task_id="vacuum", retention_hours=0, **common)
        optimize >> checkpoint >> look >> vacuum
    before = parquet_files(uri)
    run = runs.run(dag)
    assert {task_id: runs.state(run, task_id) for task_id in dag.task_ids} == dict.fromkeys(dag.task_ids, "success")
    assert (before, table.snapshot().num_files) == (5, 3)
    assert runs.xcom(run, "optimize")["version"] == 5
    table_id = table.snapshot().metadata.id
    told = {"table_uri": f"file://{uri}", "version": 5, "table_id": table_id, "outcome": "nothing new"}
    assert runs.xcom(run, "checkpoint") == told
    assert (uri / "_delta_log/00000000000000000005.checkpoint.parquet").exists()
    seen, deleted = runs.xcom(run, "look"), runs.xcom(run, "vacuum")
    assert (seen["dry_run"], seen["outcome"], seen["num_files"]) == (True, "nothing new", 3)
    assert (deleted["dry_run"], deleted["outcome"], deleted["num_files"]) == (False, "written", 3)
    assert deleted["size_bytes"] == seen["size_bytes"] > 0
    assert parquet_files(uri) == 3
    assert table.snapshot().scan().to_arrow().num_rows == 5
    optimized = next(entry for entry in table.history() if entry.operation == "OPTIMIZE")
    assert json.loads(some(optimized.user_metadata))["task_id"] == "optimize"


def test_retention_below_the_tables_is_refused(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    small_files(tmp_path / "t")
    with DAG("too_short", schedule=None) as dag:
        DeltaVacuumOperator(task_id="vacuum", table_uri=str(tmp_path / "t"), retention_hours=1, retries=2)
    run = runs.run(dag)
    assert (runs.state(run, "vacuum"), runs.tries(run, "vacuum")) == ("failed", 1)


def test_missing_table_fails_at_once(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with DAG("no_table", schedule=None) as dag:
        for operator in (DeltaCheckpointOperator, DeltaOptimizeOperator, DeltaVacuumOperator):
            operator(task_id=operator.__name__, table_uri=str(tmp_path / "t"), retries=2, retry_delay=timedelta(0))
    run = runs.run(dag)
    for task_id in dag.task_ids:
        assert (runs.state(run, task_id), runs.tries(run, task_id)) == ("failed", 1)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [(1, 1), ("1", 1), ("128MB", 2**27), ("128 MiB", 2**27), ("1g", 2**30), ("64k", 2**16), ("5b", 5), ("1TB", 2**40)],
)
def test_sizes(text: int | str, size_bytes: int) -> None:
    assert parse_target_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "big", "0", 0, -1, "1.5MB", "1PB"])
def test_wrong_sizes_are_refused(text: int | str) -> None:
    with pytest.raises(InvalidRequestError, match="not a file size"):
        parse_target_size(text)


def test_conflicts_stay_as_they_are() -> None:
    conflict = ConcurrentAppendError("lost", winning_version=3)
    with pytest.raises(ConcurrentAppendError) as caught, airflow_failures():
        raise conflict
    assert caught.value is conflict


def test_what_will_not_heal_fails_the_task_with_its_cause() -> None:
    with pytest.raises(AirflowFailException, match="SCHEMA_MISMATCH: extra column x") as caught, airflow_failures():
        raise SchemaMismatchError("extra column x")
    assert isinstance(caught.value.__cause__, SchemaMismatchError)


def test_errors_of_others_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), airflow_failures():
        _ = 1 / 0
