"""One DAG on Spark. The connection says where: a session of its own, or a Spark Connect server.

readings ──► daily (a query)
"""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, task

from delta_orch.airflow import DeltaWriteOperator

LAKE = Path(__file__).resolve().parents[1] / "lake"
DAY = "{{ (dag_run.logical_date or dag_run.run_after) | ds }}"

with DAG("spark_twice", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as dag:

    @task.delta(
        table_uri=f"{LAKE}/readings",
        write="append",
        unit_column="load_id",
        spark_conn_id="spark",
    )
    def readings(day, spark=None):
        """A hundred readings of one day, from Spark. An append: done again, its new rows replace the old ones."""
        return spark.range(100).selectExpr(f"DATE'{day}' AS day", "id AS sensor", "id % 7 AS value")

    daily = DeltaWriteOperator(
        task_id="daily",
        table_uri=f"{LAKE}/daily",
        write="overwrite",
        replace_where=f"day = '{DAY}'",
        partition_by=["day"],
        sql=f"SELECT day, count(*) AS readings, max(value) AS highest FROM r WHERE day = '{DAY}' GROUP BY day",
        tables={"r": f"{LAKE}/readings"},
        spark_conn_id="spark",
    )
    readings(DAY) >> daily
