"""One task of a DAG replaces the table, others add to it: the table is that of the newest run, however runs mix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from delta_orch import DeltaTable, TxnId
from delta_orch.airflow import (
    DeltaDeleteOperator,
    DeltaHook,
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaWriteOperator,
)
from delta_orch.pipeline.run_identity import airflow_version

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY_5, DAY_6 = datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC)
ENDS_6 = airflow_version(DAY_6)
ONCE = {"idempotency": "partition"}


def rows(day: str, *numbers: int) -> pa.Table:
    return pa.table({"day": [day] * len(numbers), "id": pa.array(numbers, pa.int64())})


def content(uri: Path) -> list[tuple[str, int]]:
    return sorted((row["day"], row["id"]) for row in DeltaTable(uri).snapshot().scan().to_arrow().to_pylist())


def load(ds: str | None = None) -> pa.Table:
    return rows(ds or "none", 1, 2)


def more(ds: str | None = None) -> pa.Table:
    return rows(ds or "none", 3)


def all_of(ds: str | None = None) -> pa.Table:
    return rows(ds or "none", 1, 2, 3)


def dag_of(name: str, uri: Path, kind: Any, **arguments: Any) -> DAG:
    with DAG(name, schedule="@daily", start_date=DAY_5, catchup=False) as dag:
        first = DeltaWriteOperator(task_id="load", table_uri=uri, python_callable=load, mode="overwrite")
        first >> kind(task_id="more", table_uri=uri, **arguments)
    return dag


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "arguments", "ids"),
    [
        (DeltaWriteOperator, {"python_callable": more, **ONCE}, [1, 2, 3]),
        (DeltaMergeOperator, {"python_callable": all_of, "keys": ["id"]}, [1, 2, 3]),
        (DeltaDeleteOperator, {"where": "id = 2 OR day > '{{ ds }}'"}, [1]),
    ],
    ids=["append", "upsert", "delete"],
)
def test_a_late_run_leaves_the_table_of_the_newer_one(
    runs: Runs, tmp_path: Path, kind: Any, arguments: dict[str, Any], ids: list[int]
) -> None:
    dag_id = f"rebuilt_late_{kind.__name__}"
    dag = dag_of(dag_id, tmp_path / "t", kind, **arguments)
    runs.run(dag, DAY_6)
    expected = [("2024-01-06", number) for number in ids]
    assert content(tmp_path / "t") == expected
    assert DeltaTable(tmp_path / "t").snapshot().txn_version(f"airflow:{dag_id}.load:") == ENDS_6
    late = runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert runs.xcom(late, "more")["skipped"] is True
    assert content(tmp_path / "t") == expected


def test_rows_of_a_run_are_left_out_when_a_newer_one_replaces_the_table_meanwhile(runs: Runs, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")

    def overtaken() -> pa.Table:
        order = TxnId("airflow:rebuilt_meanwhile.load:", ENDS_6, ordered=True)
        table.overwrite(rows("2024-01-06", 1, 2), txn=order)
        return rows("2024-01-05", 3)

    dag = dag_of("rebuilt_meanwhile", tmp_path / "t", DeltaWriteOperator, python_callable=overtaken, **ONCE)
    run = runs.run(dag, DAY_5)
    assert runs.xcom(run, "more")["skipped"] is True
    assert content(tmp_path / "t") == [("2024-01-06", 1), ("2024-01-06", 2)]
    # What it looked at is as the other task has recorded it.
    assert table.snapshot().txn_version("airflow:rebuilt_meanwhile.load:") == ENDS_6


@pytest.mark.slow
def test_a_run_without_an_interval_adds_its_rows_after_its_own_clearing(runs: Runs, tmp_path: Path) -> None:
    with DAG("rebuilt_manual", schedule=None) as dag:
        first = DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=load, mode="overwrite")
        first >> DeltaMergeOperator(task_id="more", table_uri=tmp_path / "t", python_callable=more, keys=["id"])
    run = runs.run(dag, None, run_after=DAY_5)
    for _ in range(2):
        runs.clear(dag, run, "load", "more")
    assert [number for _, number in content(tmp_path / "t")] == [1, 2, 3]


@pytest.mark.slow
def test_a_task_that_no_longer_replaces_the_table_keeps_nothing_out(runs: Runs, tmp_path: Path) -> None:
    runs.run(dag_of("rebuilt_no_more", tmp_path / "t", DeltaWriteOperator, python_callable=more, **ONCE), DAY_6)
    with DAG("rebuilt_no_more", schedule="@daily", start_date=DAY_5, catchup=False) as dag:
        DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=load, **ONCE)
    runs.run(dag, DAY_5)
    expected = [("2024-01-05", 1), ("2024-01-05", 2), ("2024-01-06", 1), ("2024-01-06", 2), ("2024-01-06", 3)]
    assert content(tmp_path / "t") == expected


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("keys", [None, ["day", "id"]], ids=["append", "upsert"])
def test_rows_of_a_newer_run_are_not_read_from_a_table_that_each_run_replaces(
    runs: Runs, tmp_path: Path, pinned: bool, keys: list[str] | None
) -> None:
    """A backfill through a staging table: the days are there, or the task fails."""
    uri = tmp_path / "t"

    def dag_with(**order: Any) -> DAG:
        with DAG(f"rebuilt_staging_{tmp_path.name[-30:]}", schedule="@daily", start_date=DAY_5, catchup=False) as dag:
            stage = DeltaWriteOperator(
                task_id="stage", table_uri=tmp_path / "s", python_callable=load, mode="overwrite", **order
            )
            given: Any = {"tables": {"s": stage.output if pinned else tmp_path / "s"}, "sql": "SELECT * FROM s"}
            kind: Any = DeltaMergeOperator if keys else DeltaWriteOperator
            stage >> kind(task_id="more", table_uri=uri, engine="local", **given, **({"keys": keys} if keys else ONCE))
        return dag

    dag = dag_with()
    newer = runs.run(dag, DAY_6)
    late = runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert [runs.state(late, name) for name in ("stage", "more")] == ["success", "failed"]
    runs.clear(dag, newer, "more")
    assert (runs.state(newer, "more"), content(uri)) == ("success", [("2024-01-06", 1), ("2024-01-06", 2)])
    late = runs.run(dag_with(idempotency="off"), DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert runs.state(late, "more") == "success"
    assert content(uri) == [(f"2024-01-0{day}", number) for day in (5, 6) for number in (1, 2)]


READERS = ("sql", "reference", "reference alone", "hook", "thread", "snapshot")
"""How a task reads the staging table: the version that the run has written, or the newest."""


def reading(how: str, uri: Path, stage: Any) -> dict[str, Any]:
    """Arguments of a task that reads all of a staging table."""

    def rows_of(snapshot: Any) -> pa.Table:
        return snapshot.scan().to_arrow()

    def in_a_thread() -> pa.Table:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: rows_of(DeltaHook().table(uri).snapshot())).result()

    def alone(given: Any) -> pa.Table:
        return rows_of(DeltaTable(given[0]["table_uri"]).snapshot(given[0]["version"]))

    if how == "sql":
        return {"sql": "SELECT * FROM s", "tables": {"s": uri}, "engine": "local"}
    function: Any = {
        "reference": lambda given: rows_of(DeltaHook().snapshot(given[0])),
        "reference alone": alone,
        "hook": lambda: rows_of(DeltaHook().table(uri).snapshot()),
        "thread": in_a_thread,
        "snapshot": lambda: rows_of(DeltaHook().snapshot(uri)),
    }[how]
    return {"python_callable": function, **({"op_args": [[stage.output]]} if "reference" in how else {})}


@pytest.mark.slow
@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("writes", ["append", "upsert", "replace", "dynamic"])
def test_what_a_newer_run_has_staged_is_not_read_by_a_late_one(
    runs: Runs, tmp_path: Path, how: str, writes: str
) -> None:
    if writes != "append" and how not in ("sql", "hook"):
        return  # It is one look for all ways to write.
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "append": (DeltaWriteOperator, ONCE),
        "upsert": (DeltaMergeOperator, {"keys": ["day", "id"]}),
        "replace": (DeltaWriteOperator, {"mode": "overwrite", "replace_where": "id < 9"}),
        "dynamic": (DeltaWriteOperator, {"mode": "overwrite", "partition_overwrite_mode": "dynamic"}),
    }
    kind, arguments = kinds[writes]
    uri = tmp_path / "t"
    DeltaTable(uri).create(rows("", 1).schema, partition_by=["day"])
    with DAG(f"rebuilt_{tmp_path.name[-40:]}", schedule="@daily", start_date=DAY_5, catchup=False) as dag:
        stage = DeltaWriteOperator(task_id="stage", table_uri=tmp_path / "s", python_callable=load, mode="overwrite")
        stage >> kind(task_id="more", table_uri=uri, **arguments, **reading(how, tmp_path / "s", stage))
    newer = runs.run(dag, DAY_6)
    there = [("2024-01-06", 1), ("2024-01-06", 2)]
    assert (runs.state(newer, "more"), content(uri)) == ("success", there)
    late = runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert ([runs.state(late, name) for name in ("stage", "more")], content(uri)) == (["success", "failed"], there)


@pytest.mark.slow
@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("truncates", [True, False])
def test_what_another_run_has_staged_since_is_not_read_by_a_run_that_is_cleared(
    runs: Runs, tmp_path: Path, how: str, truncates: bool
) -> None:
    """A task fails, the next run stages its own rows in the table, and the task is cleared alone."""
    if truncates and how != "hook":
        return  # It is one look for all ways to stage.
    uri, source, is_open = tmp_path / "t", tmp_path / "s", [False]
    DeltaTable(source).create(rows("", 1).schema)

    def opens() -> None:
        assert is_open[0]

    with DAG(f"rebuilt_{tmp_path.name[-40:]}", schedule="@daily", start_date=DAY_5, catchup=False) as dag:
        writes: dict[str, Any] = {"mode": "append"} if truncates else {"mode": "overwrite", "idempotency": "off"}
        stage = DeltaWriteOperator(
            task_id="stage", table_uri=source, python_callable=load, **(writes | (ONCE if truncates else {}))
        )
        if truncates:
            DeltaDeleteOperator(task_id="empty", table_uri=source, all_rows=True) >> stage
        gate = PythonOperator(task_id="gate", python_callable=opens)
        more = DeltaWriteOperator(task_id="more", table_uri=uri, **ONCE, **reading(how, source, stage))
        stage >> gate >> more
    older = runs.run(dag, DAY_5)
    is_open[0] = True
    newer = runs.run(dag, DAY_6)
    there = [("2024-01-06", 1), ("2024-01-06", 2)]
    assert (runs.state(newer, "more"), content(uri)) == ("success", there)
    runs.clear(dag, older, "gate", "more")
    if "reference" in how:
        # It reads the version that its run has written.
        there = [("2024-01-05", 1), ("2024-01-05", 2), *there]
        assert (runs.state(older, "more"), content(uri)) == ("success", there)
        return
    assert (runs.state(older, "more"), content(uri)) == ("failed", there)
    if not truncates:
        runs.clear(dag, older, "stage", "gate", "more")
        assert runs.state(older, "more") == "success"
        assert content(uri) == [("2024-01-05", 1), ("2024-01-05", 2), *there]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["merge", "overwrite_changed"])
def test_an_incremental_task_of_a_late_run_whose_rows_were_never_staged(runs: Runs, tmp_path: Path, mode: str) -> None:
    """What it keeps rows in lacks those of the run. What mirrors its source is the newest run's, as that is."""
    keys: dict[str, Any] = {"merge_keys": ["day", "id"]} if mode == "merge" else {}
    with DAG(f"rebuilt_incremental_{mode}", schedule="@daily", start_date=DAY_5, catchup=False) as dag:
        stage = DeltaWriteOperator(
            task_id="stage", table_uri=tmp_path / "s", python_callable=load, mode="overwrite", partition_by=["day"]
        )
        stage >> DeltaIncrementalOperator(
            task_id="more", source=tmp_path / "s", target=tmp_path / "t", mode=mode, partition_by=["day"],
            python_callable=lambda batch: batch.scan().to_arrow(), **keys,
        )  # fmt: skip
    newer = runs.run(dag, DAY_6)
    late = runs.run(dag, DAY_5, run_after=DAY_5 + timedelta(days=1))
    assert [runs.state(run, "more") for run in (newer, late)] == ["success", "failed" if mode == "merge" else "success"]
    assert content(tmp_path / "t") == [("2024-01-06", 1), ("2024-01-06", 2)]
