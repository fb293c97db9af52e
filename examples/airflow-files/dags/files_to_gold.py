"""CSV files to a gold table, in three tasks.

landing/*.csv ──► orders (bronze) ──► sales (silver) ──► daily_sales (gold)
                  └─► orders_quarantine
"""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, task

from delta_orch import Expect, FileSource
from delta_orch.airflow import DeltaIncrementalOperator

HOME = Path(__file__).resolve().parents[1]
LAKE = HOME / "lake"

with DAG(
    "files_to_gold",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A retry after a conflict or an outage writes no row twice.
    default_args={"retries": 2},
    params={"full_refresh": False},
) as dag:
    # The rows of the files, each file once. Bad rows go to the table orders_quarantine.
    orders = DeltaIncrementalOperator(
        task_id="orders",
        source=FileSource(HOME / "landing", pattern="*.csv", format="csv"),
        target=f"{LAKE}/orders",
        partition_by=["day"],
        expect={"amount is positive": Expect("amount > 0", "quarantine")},
    )

    @task.delta_changes(
        source=f"{LAKE}/orders",
        target=f"{LAKE}/sales",
        write="cdc",
        merge_keys=["id"],
        sequence_by="updated",
        partition_by=["day"],
    )
    def sales(batch):
        """The newest row of each order. Rows may come again, and in any order."""
        return batch.scan().to_arrow()

    @task.delta_changes(source=f"{LAKE}/sales", target=f"{LAKE}/daily_sales", partition_by=["day"])
    def daily_sales(batch):
        """The sales of each day. A run computes the days that changed."""
        return batch.scan().to_arrow().group_by("day").aggregate([("id", "count"), ("amount", "sum")])

    orders >> sales() >> daily_sales()
