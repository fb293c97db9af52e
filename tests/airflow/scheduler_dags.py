"""The DAGs of `tests.airflow.scheduler`: one for each way to write and each fate of its task."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from airflow.sdk import DAG

from delta_orch.airflow import (
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaTableVersionSensor,
    DeltaWriteOperator,
    delta_write_audit_publish,
)

HOME = Path(os.environ["SCHEDULER_TABLES"])
WAYS = ("append", "column", "overwrite", "days", "merge", "incremental", "publish", "keep", "local_sql")
FATES = ("clean", "dies_before", "dies_after", "terminated", "unacknowledged", "cleared", "cleared_alive",
         "cleared_inside", "cleared_at_end", "recreated", "two_days", "late_day", "backfilled")  # fmt: skip
"""What happens to the task, or to the runs: see `scheduler.expected`. What happens to the store: `STORE_FATES`."""


def has_code(way: str, fate: str) -> bool:
    """A query has no code of its own to die in."""
    return way != "local_sql" or fate not in ("dies_before", "terminated")


def place(name: str, fate: str) -> dict[str, Any]:
    """Where a table is: in the store, if something happens to that."""
    if fate in FATES:
        return {"table_uri": HOME / name}
    return {"table_uri": f"{os.environ['SCHEDULER_STORE']}{name}", "delta_conn_id": "store"}


def rows(fate: str, context: Any) -> pa.Table:
    """One row: the day of the run, and the try that wrote it."""
    ti = context["ti"]
    if ti.try_number == 1 and fate == "dies_before":
        os.kill(os.getpid(), signal.SIGKILL)
    if ti.try_number == 1 and fate == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    day = context["dag_run"].logical_date
    return pa.table({"day": [f"{day:%Y-%m-%d}"], "try": pa.array([ti.try_number], pa.int64())})


def after(fate: str) -> Any:
    def die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def live_on(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            time.sleep(600)

    def linger(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            time.sleep(0.4)

    hooks = {"dies_after": die, "unacknowledged": die, "cleared_alive": live_on, "cleared_at_end": linger}
    return {"post_execute": hooks[fate]} if fate in hooks else {}


def make(way: str, fate: str) -> DAG:
    name, way = way, way.partition(".")[0]
    retries = 0 if fate in ("unacknowledged", "cleared", "cleared_alive", "cleared_inside", "cleared_at_end") else 2
    there = place(f"{name}-{fate}", fate)
    common: dict[str, Any] = {**there, "retries": retries, "retry_delay": timedelta(0), **after(fate)}
    times: dict[str, Any] = {"schedule": None}
    if fate == "backfilled":
        times = {"schedule": "@daily", "end_date": datetime(2024, 1, 2, tzinfo=UTC)}

    def write(**context: Any) -> pa.Table:
        return rows(fate, context)

    def read(batch: Any, **context: Any) -> pa.Table:
        rows(fate, context)
        return batch.scan().to_arrow()

    with DAG(f"{name}-{fate}", start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False, **times) as dag:
        if way == "merge":
            task = DeltaMergeOperator(task_id="write", merge_keys=["day"], python_callable=write, **common)
        elif way == "incremental":
            place_of = {"target": common.pop("table_uri"), "source": place("source", fate)["table_uri"]}
            task = DeltaIncrementalOperator(task_id="write", write="append", python_callable=read, **place_of, **common)
        elif way == "publish":
            hooks = common.pop("post_execute", None)
            shared = {name: common.pop(name) for name in ("retries", "retry_delay")}
            # Days that a backfill runs side by side may publish in any order: no check is about what the other adds.
            group = delta_write_audit_publish(
                "wap", python_callable=write, audit={"rows": {"min_rows": 1}}, if_unchanged=False,
                default_args=shared, **common,
            )  # fmt: skip
            task = group.children["wap.publish"]
            if hooks:
                task._post_execute_hook = hooks
        elif way == "local_sql":
            sql = "SELECT '{{ dag_run.logical_date | ds }}' AS day, CAST({{ ti.try_number }} AS BIGINT) AS try"
            task = DeltaWriteOperator(task_id="write", sql=sql, engine="local", **common)
        elif way == "days":
            task = DeltaWriteOperator(
                task_id="write",
                python_callable=write,
                write="overwrite",
                replace_where=DAY,
                partition_by=["day"],
                **common,
            )
        elif way == "keep":
            task = DeltaWriteOperator(task_id="write", python_callable=write, on_redo="keep", **common)
        elif way == "column":
            task = DeltaWriteOperator(task_id="write", python_callable=write, unit_column="load_id", **common)
        else:
            task = DeltaWriteOperator(task_id="write", python_callable=write, write=way, **common)
        # A sensor that fires at once meets a race of the LocalExecutor, which fails it.
        waits: dict[str, Any] = {**there, "after_version": -1, "poke_interval": 1, "timeout": 300, "retries": 3}
        waits["retry_delay"] = timedelta(0)
        DeltaTableVersionSensor(task_id="there", deferrable=True, **waits)
        if fate == "cleared_inside":
            DeltaTableVersionSensor(
                task_id="hold", deferrable=True, **{**waits, "table_uri": HOME / f"{dag.dag_id}-go"}
            )
        task >> DeltaTableVersionSensor(task_id="seen", **waits)
    return dag


DAY = "day = '{{ dag_run.logical_date | ds }}'"
