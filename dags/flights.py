"""The flights pipeline as Airflow DAGs. `flights_transformations.py` has the functions that they call.

    flights, daily:              delivered ──► flights ──────────► flights_enriched ──► carrier_daily
                                           └─► weather_readings ──┘
    flights_corrections, daily:  late corrections, upserted into flights; silver and gold follow with the next day
    flights_maintenance, weekly: for each table there ──► optimize ──► checkpoint ──► vacuum (dry run) ──► vacuum
    carriers, by commits of the Dagster pipeline to its gold table: what changed there

Switch `flights` on, and it loads 2013 day by day, until it is switched off. A run that is triggered for a day of which
nothing was delivered, such as today, ends at `delivered`.

Copy this folder to start a pipeline of your own. The operators make it exactly-once: each run of a task is a unit, and
the commit of its rows records it. A retry after a crash finds it there, and a task that is cleared replaces exactly its
rows.
"""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException
from flights_transformations import (
    FLIGHT_KEYS,
    SPARK_CONF,
    enrich_flights,
    flights_files,
    read_airlines,
    read_corrections,
    read_flights,
    read_planes,
    read_weather,
    summarize_carriers,
)

from delta_orch.airflow.assets import delta_table_asset
from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
from delta_orch.airflow.maintenance_operators import (
    DeltaCheckpointOperator,
    DeltaOptimizeOperator,
    DeltaVacuumOperator,
)
from delta_orch.airflow.row_operators import DeltaMergeOperator
from delta_orch.airflow.sensors import DeltaTableVersionSensor
from delta_orch.delta_table import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from delta_orch.pipeline.incremental import ChangeBatch

HOME = Path(os.environ.get("FLIGHTS_HOME", Path(__file__).resolve().parents[1] / "build" / "demo"))
LANDING = HOME / "landing"
TABLES = HOME / "airflow_tables"
# How long files that no version needs any more are kept for readers of older versions.
RETENTION = {"delta.deletedFileRetentionDuration": os.environ.get("FLIGHTS_RETENTION", "interval 7 days")}


# `{{ ds }}` is undefined in runs without a logical date: asset-triggered ones, and manual ones.
DAY = "{{ (dag_run.logical_date or dag_run.run_after) | ds }}"


def table_uri(name: str) -> str:
    return str(TABLES / name)


def enrich(batch: ChangeBatch, spark: SparkSession) -> DataFrame:
    weather = DeltaTable(table_uri("weather_readings")).snapshot().scan().to_spark(spark)
    return enrich_flights(batch.scan().to_spark(spark), weather, read_planes(spark, LANDING))


def corrections_of(day: str, spark: SparkSession) -> DataFrame:
    """To be run again after `flights`, which replaces the whole day by what was delivered at first."""
    return read_corrections(spark, LANDING, [date.fromisoformat(day)])


def summarize(batch: ChangeBatch, spark: SparkSession) -> DataFrame:
    return summarize_carriers(batch.scan().to_spark(spark), read_airlines(spark, LANDING))


def copy_of(batch: ChangeBatch) -> pa.Table:
    return batch.scan().to_arrow()


with DAG(
    "flights",
    description="New York's flights of 2013: bronze, silver and gold Delta tables, day by day",
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 2},
    tags=["delta"],
) as dag:

    @task
    def delivered(day: str) -> None:
        try:
            flights_files(LANDING, [date.fromisoformat(day)])
        except FileNotFoundError as error:
            raise AirflowSkipException(str(error)) from error

    @task.delta(
        table_uri=table_uri("flights"),
        write="overwrite",
        replace_where="flight_date = DATE '" + DAY + "'",
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )
    def flights(day: str, spark: SparkSession | None = None) -> DataFrame:
        """Flights as delivered. Writing a day replaces exactly that day."""
        return read_flights(spark, LANDING, [date.fromisoformat(day)])

    @task.delta(
        table_uri=table_uri("weather_readings"),
        write="append",
        # Each row names the run that wrote it, so a cleared task finds its rows also after compactions.
        unit_column="load_id",
        partition_by=["reading_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )
    def weather_readings(day: str, spark: SparkSession | None = None) -> DataFrame:
        """Hourly weather at the airports, appended."""
        return read_weather(spark, LANDING, [date.fromisoformat(day)])

    flights_enriched = DeltaIncrementalOperator(
        task_id="flights_enriched",
        source=table_uri("flights"),
        target=table_uri("flights_enriched"),
        python_callable=enrich,
        write="overwrite_changed",
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )
    carrier_daily = DeltaIncrementalOperator(
        task_id="carrier_daily",
        source=table_uri("flights_enriched"),
        target=table_uri("carrier_daily"),
        python_callable=summarize,
        write="overwrite_changed",
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )

    delivered(DAY) >> [flights(DAY), weather_readings(DAY)] >> flights_enriched >> carrier_daily

with DAG(
    "flights_corrections",
    description="Upserts late corrections of a day's flights",
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    tags=["delta"],
) as corrections_dag:
    DeltaMergeOperator(
        task_id="corrections",
        table_uri=table_uri("flights"),
        merge_keys=list(FLIGHT_KEYS),
        python_callable=corrections_of,
        op_args=[DAY],
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )

with DAG(
    "flights_maintenance",
    description="Keeps the tables of `flights` fast and small",
    schedule="@weekly",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2},
    tags=["delta"],
) as maintenance_dag:
    for name in ("flights", "weather_readings", "flights_enriched", "carrier_daily"):
        uri = table_uri(name)
        (
            DeltaTableVersionSensor(task_id=f"there_{name}", table_uri=uri, after_version=-1, deferrable=True)
            >> DeltaOptimizeOperator(task_id=f"optimize_{name}", table_uri=uri)
            >> DeltaCheckpointOperator(task_id=f"checkpoint_{name}", table_uri=uri)
            >> DeltaVacuumOperator(task_id=f"vacuum_dry_run_{name}", table_uri=uri, dry_run=True)
            >> DeltaVacuumOperator(task_id=f"vacuum_{name}", table_uri=uri)
        )

# Both orchestrators together: who commits to this table starts the DAG, and a sensor of Dagster waits for its cursor.
DAGSTER_GOLD = delta_table_asset("carrier_daily of Dagster", HOME / "tables" / "carrier_daily", watch=True)

with DAG(
    "carriers", description="Follows Dagster's gold table", schedule=[DAGSTER_GOLD], tags=["delta"]
) as carriers_dag:
    # For a run that is triggered before Dagster has written the table.
    there = DeltaTableVersionSensor(task_id="there", table_uri=DAGSTER_GOLD, after_version=-1, deferrable=True)
    there >> DeltaIncrementalOperator(
        task_id="carriers",
        source=DAGSTER_GOLD,
        target=table_uri("carriers"),
        python_callable=copy_of,
        partition_by=["flight_date"],
    )
