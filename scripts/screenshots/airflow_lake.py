"""A small lake for the pictures of Airflow: the DAG file `sales`, and `fill` to have something to see in it."""

import json
import os
import random
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from airflow.sdk import DAG, task

from delta_orch.airflow import DeltaCheckOperator, DeltaIncrementalOperator, DeltaOptimizeOperator, delta_table_asset

ROOT = Path(os.environ.get("DELTA_ORCH_SCREENSHOTS", "lake"))
DAY = "{{ (dag_run.logical_date or dag_run.run_after) | ds }}"
ORDERS = delta_table_asset("orders", str(ROOT / "orders"))
SALES = delta_table_asset("daily_sales", str(ROOT / "daily_sales"))
DAYS = [f"2026-02-{day:02}" for day in range(1, 8)]
DIES_ON, CLEARED = DAYS[3], DAYS[4]
DEADLINE_S = 600
TRIES = 5


def totals(batch: Any) -> pa.Table:
    """The total of each day that changed."""
    return batch.scan().to_arrow().group_by("day").aggregate([("amount", "sum"), ("order", "count")])


with DAG("sales", schedule=None, start_date=datetime(2026, 2, 1, tzinfo=UTC), tags=["delta"], max_active_runs=1) as dag:

    @task.delta(
        table_uri=str(ROOT / "orders"),
        write="overwrite",
        replace_where=f"day = '{DAY}'",
        partition_by=["day"],
        outlets=[ORDERS],
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
    def orders(day: str, **context: Any) -> pa.Table:
        """Orders as they come. On one day its source is away at first."""
        if day == DIES_ON and context["ti"].try_number == 1:
            raise ConnectionError("the shop does not answer")
        chosen = random.Random(day)
        rows = range(chosen.randint(50, 400))
        return pa.table({"day": [day] * len(rows), "order": rows, "amount": [chosen.randint(1, 500) for _ in rows]})

    daily_sales = DeltaIncrementalOperator(
        task_id="daily_sales",
        source=str(ROOT / "orders"),
        target=str(ROOT / "daily_sales"),
        python_callable=totals,
        partition_by=["day"],
        outlets=[SALES],
    )
    check = DeltaCheckOperator(task_id="check", table_uri=str(ROOT / "daily_sales"), min_rows=1)
    optimize = DeltaOptimizeOperator(task_id="optimize", table_uri=str(ROOT / "orders"))
    orders(DAY) >> daily_sales >> [check, optimize]


def fill(address: str) -> None:
    """A run a day, one of them with a retry, and one whose first task is cleared and runs again."""
    with urllib.request.urlopen(f"{address}/auth/token") as answer:
        token = json.load(answer)["access_token"]

    def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{address}/api/v2{path}", method=method, data=data, headers=headers)
        for left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"{}")
            except urllib.error.HTTPError as error:
                if error.code == 409:  # It was made by a try whose answer was late.
                    return {}
                if error.code < 500 or not left:
                    raise
            except OSError:  # A busy machine makes Airflow's server late.
                if not left:
                    raise
            time.sleep(5)
        raise AssertionError

    def until_all_succeeded() -> None:
        end = time.monotonic() + DEADLINE_S
        while {run["state"] for run in call("GET", "/dags/sales/dagRuns")["dag_runs"]} != {"success"}:
            if time.monotonic() > end:
                raise SystemExit("the runs of the DAG for the pictures did not end")
            time.sleep(1)

    end = time.monotonic() + DEADLINE_S
    while not call("GET", "/dags")["total_entries"]:
        if time.monotonic() > end:
            raise SystemExit(f"Airflow reads no DAG: {call('GET', '/importErrors')}")
        time.sleep(1)
    for day in DAYS:
        call("POST", "/dags/sales/dagRuns", {"dag_run_id": day, "logical_date": f"{day}T00:00:00Z"})
    until_all_succeeded()
    again = {"dry_run": False, "dag_run_id": CLEARED, "task_ids": ["orders"], "only_failed": False}
    call("POST", "/dags/sales/clearTaskInstances", {**again, "reset_dag_runs": True, "include_downstream": True})
    until_all_succeeded()
