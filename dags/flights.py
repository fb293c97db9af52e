"""The flights pipeline as Airflow DAGs. `flights_transformations.py` has the functions that they call.

    flights, daily:              landing/flights/*.csv ──► flights ──────────► flights_enriched ──► carrier_daily
                                 landing/weather/*.csv ──► weather_readings ──┘
    flights_maintenance, weekly: for each table there ──► optimize ──► checkpoint ──► vacuum (dry run) ──► vacuum
    carriers, by commits of the Dagster pipeline to its gold table: what changed there

Switch `flights` on, and each run loads the files that are new. Files may come late, damaged, twice, or out of order:

- `FileSource` loads each file once, in the commit of its rows.
- `write="cdc"` keeps the newest report of each flight, in whatever order reports arrive.
- `expect` keeps bad rows out. They wait in the table `flights_quarantine`, with the rule that they break.

Copy this folder to start a pipeline of your own. The operators make it exactly-once: each run of a task is a unit, and
the commit of its rows records it. A retry after a crash finds it there, and a task that is cleared replaces exactly its
rows.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG
from flights_transformations import (
    FLIGHT_KEYS,
    FLIGHT_RULES,
    FLIGHTS_COLUMNS,
    SPARK_CONF,
    WEATHER_COLUMNS,
    enrich_flights,
    read_airlines,
    read_planes,
    summarize_carriers,
    with_date,
)

from delta_orch import Expect, FileSource
from delta_orch.airflow.assets import delta_table_asset
from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
from delta_orch.airflow.maintenance_operators import (
    DeltaCheckpointOperator,
    DeltaOptimizeOperator,
    DeltaVacuumOperator,
)
from delta_orch.airflow.sensors import DeltaTableVersionSensor

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyRelation
    from pyspark.sql import DataFrame, SparkSession

    from delta_orch.pipeline.incremental import ChangeBatch, FileBatch

HOME = Path(os.environ.get("FLIGHTS_HOME", Path(__file__).resolve().parents[1] / "build" / "demo"))
LANDING = HOME / "landing"
TABLES = HOME / "airflow_tables"
# How long files that no version needs any more are kept for readers of older versions.
RETENTION = {"delta.deletedFileRetentionDuration": os.environ.get("FLIGHTS_RETENTION", "interval 7 days")}


def table_uri(name: str) -> str:
    return str(TABLES / name)


def dated(batch: FileBatch) -> DuckDBPyRelation:
    return with_date(batch.rows())


def enrich(batches: dict[str, ChangeBatch], spark: SparkSession) -> DataFrame:
    flights, weather = (batches[name].scan().to_spark(spark) for name in ("flights", "weather"))
    return enrich_flights(flights, weather, read_planes(spark, LANDING))


def summarize(batch: ChangeBatch, spark: SparkSession) -> DataFrame:
    return summarize_carriers(batch.scan().to_spark(spark), read_airlines(spark, LANDING))


def copy_of(batch: ChangeBatch) -> pa.Table:
    return batch.scan().to_arrow()


with DAG(
    "flights",
    description="New York's flights of 2013: bronze, silver and gold Delta tables, from the files that arrive",
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    tags=["delta"],
) as dag:
    flights = DeltaIncrementalOperator(
        task_id="flights",
        doc_md="Flights by their newest report. Monthly files and corrections are alike: reports of flights.",
        source=FileSource(
            LANDING / "flights",
            format="csv",
            options={"null_text": "NA"},
            schema=FLIGHTS_COLUMNS,
            source_file=True,  # the quarantine names the file of each row
            schema_mode="rescue",  # a value that is no number breaks a rule, and not the run
            on_error="quarantine",  # a file that is cut off is set aside, and read once it has changed
            on_changed="ignore",  # a file that comes again is not loaded again
        ),
        target=table_uri("flights"),
        python_callable=dated,
        write="cdc",
        merge_keys=list(FLIGHT_KEYS),
        sequence_by="reported_at",
        except_columns=["_rescued_data", "source_file"],
        expect={name: Expect(rule, "quarantine") for name, rule in FLIGHT_RULES.items()},
        partition_by=["flight_date"],
        properties=RETENTION,
    )
    weather_readings = DeltaIncrementalOperator(
        task_id="weather_readings",
        doc_md="Hourly weather at the airports, appended.",
        source=FileSource(
            LANDING / "weather",
            format="csv",
            options={"null_text": "NA"},
            schema=WEATHER_COLUMNS,
            on_changed="ignore",
        ),
        target=table_uri("weather_readings"),
        python_callable=dated,
        write="append",
        # Each row names the run that wrote it, so a cleared task finds its rows also after compactions.
        unit_column="load_id",
        partition_by=["flight_date"],
        properties=RETENTION,
    )
    flights_enriched = DeltaIncrementalOperator(
        task_id="flights_enriched",
        doc_md="Flights with their plane and the weather, recomputed for the days that changed in either.",
        source={"flights": table_uri("flights"), "weather": table_uri("weather_readings")},
        target=table_uri("flights_enriched"),
        python_callable=enrich,
        write="overwrite_partitions",
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )
    carrier_daily = DeltaIncrementalOperator(
        task_id="carrier_daily",
        doc_md="Each carrier's day. Recomputed for the days that changed in silver.",
        source=table_uri("flights_enriched"),
        target=table_uri("carrier_daily"),
        python_callable=summarize,
        write="overwrite_changed",
        partition_by=["flight_date"],
        properties=RETENTION,
        spark_conf=SPARK_CONF,
    )

    [flights, weather_readings] >> flights_enriched >> carrier_daily

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
