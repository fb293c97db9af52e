"""The flights pipeline as Dagster assets. `flights_transformations.py` has the functions that they call.

    landing/*.csv ──► flights ──────────► flights_enriched ──► carrier_daily
                  └─► weather_readings ──┘                          each with compaction, checkpoint, vacuum
    landing/corrections/*.csv: upserted into flights; the sensor has silver and gold follow

Copy this folder to start a pipeline of your own. Two things make it exactly-once: the IO manager (bronze) and
`@delta_asset` (silver and gold). Both record the units that a run writes, such as a partition of an asset, in the
commit of the rows.
"""

import os
from datetime import date
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame

from dagster_defs.flights_transformations import (
    FLIGHT_KEYS,
    enrich_flights,
    read_airlines,
    read_corrections,
    read_flights,
    read_planes,
    read_weather,
    spark_session,
    summarize_carriers,
)
from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaTableResource,
    MaintenancePolicy,
    build_delta_check,
    build_delta_log_sensor,
    build_delta_maintenance_assets,
    checks,
    delta_asset,
)
from delta_orch.delta_table import DeltaTable
from delta_orch.pipeline.incremental import cdc_app_id

HOME = Path(os.environ.get("FLIGHTS_HOME", Path(__file__).resolve().parents[1] / "build" / "demo"))
LANDING = HOME / "landing"
TABLES = HOME / "tables"
# How long files that no version needs any more are kept for readers of older versions.
RETENTION = {"delta.deletedFileRetentionDuration": os.environ.get("FLIGHTS_RETENTION", "interval 7 days")}

# Bronze and silver are written as the rows come, without a shuffle; compaction tidies up behind them.
AS_IT_COMES = {**RETENTION, "delta.autoOptimize.optimizeWrite": "false"}

tables = {
    name: DeltaTableResource(table_uri=str(TABLES / name))
    for name in ("flights", "weather_readings", "flights_enriched", "carrier_daily")
}
days = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")


def partition_days(context: dg.AssetExecutionContext) -> list[date]:
    return [date.fromisoformat(key) for key in context.partition_keys]


@dg.asset(
    partitions_def=days,
    backfill_policy=dg.BackfillPolicy.single_run(),
    metadata={"partition_expr": "flight_date"},
    kinds={"deltalake", "spark"},
    group_name="bronze",
)
def flights(context: dg.AssetExecutionContext) -> DataFrame:
    """Flights as delivered. Writing a day replaces exactly that day."""
    return read_flights(spark_session(), LANDING, partition_days(context))


@dg.asset(
    partitions_def=days,
    backfill_policy=dg.BackfillPolicy.single_run(),
    metadata={"partition_expr": "reading_date", "write": "append"},
    kinds={"deltalake", "spark"},
    group_name="bronze",
)
def weather_readings(context: dg.AssetExecutionContext) -> DataFrame:
    """Hourly weather at the airports, appended. A day is a unit: done again, it replaces exactly its rows."""
    return read_weather(spark_session(), LANDING, partition_days(context))


@dg.asset(
    name="flights",
    key_prefix="corrections",
    partitions_def=days,
    # `schema` and the last part of the key make the folder: the table is that of `flights`.
    metadata={
        "schema": TABLES.name,
        "partition_expr": "flight_date",
        "write": "merge",
        "merge_keys": list(FLIGHT_KEYS),
    },
    deps=[flights],
    io_manager_key="corrections",
    kinds={"deltalake", "spark"},
    group_name="bronze",
)
def corrections(context: dg.AssetExecutionContext) -> DataFrame:
    """Flights corrected or reported late. Each takes the place of the flight with the same key, or is added.

    To be materialized again after `flights`, which replaces the whole day by what was delivered at first.
    """
    return read_corrections(spark_session(), LANDING, partition_days(context))


@delta_asset(
    incremental_from=tables["flights"],
    table=tables["flights_enriched"],
    write="overwrite_changed",
    partition_by=["flight_date"],
    properties=AS_IT_COMES,
    deps=[flights, weather_readings],
    kinds={"spark"},
    group_name="silver",
)
def flights_enriched(context: dg.AssetExecutionContext, batch: ChangeBatch) -> DataFrame:
    """Flights with their plane and the weather, recomputed for the days that changed in bronze."""
    spark = spark_session()
    weather = tables["weather_readings"].snapshot().scan().to_spark(spark)
    return enrich_flights(batch.scan().to_spark(spark), weather, read_planes(spark, LANDING))


@delta_asset(
    incremental_from=tables["flights_enriched"],
    table=tables["carrier_daily"],
    write="overwrite_changed",
    partition_by=["flight_date"],
    properties=RETENTION,
    # Looked at before the commit: a day that does not add up never becomes visible.
    audit={"adds_up": "flights > 0 AND cancelled <= flights"},
    deps=[flights_enriched],
    kinds={"spark"},
    group_name="gold",
)
def carrier_daily(context: dg.AssetExecutionContext, batch: ChangeBatch) -> DataFrame:
    """Each carrier's day: flights, cancellations, mean delays. Recomputed for the days that changed in silver."""
    spark = spark_session()
    return summarize_carriers(batch.scan().to_spark(spark), read_airlines(spark, LANDING))


maintenance = build_delta_maintenance_assets(
    tables,
    # Whatever there is to do; the defaults wait until it is worth a run.
    policy=MaintenancePolicy(min_compactable_files=2, max_commits_since_checkpoint=0, min_expired_tombstones=0),
    deps={
        "flights": flights,
        "weather_readings": weather_readings,
        "flights_enriched": flights_enriched,
        "carrier_daily": carrier_daily,
    },
)

# Looked at afterwards. The log answers for files that have no nulls; gold is small.
asset_checks = [
    build_delta_check(flights, tables["flights"], checks.null_rate(max_null_rates=dict.fromkeys(FLIGHT_KEYS, 0.0))),
    build_delta_check(carrier_daily, tables["carrier_daily"], checks.unique(keys=["flight_date", "carrier"])),
]

bronze_job = dg.define_asset_job("bronze", selection=dg.AssetSelection.assets(flights, weather_readings))
corrections_job = dg.define_asset_job("corrections", selection=dg.AssetSelection.assets(corrections))
refresh_job = dg.define_asset_job("refresh", selection=dg.AssetSelection.assets(flights_enriched, carrier_daily))
maintenance_job = dg.define_asset_job("maintenance", selection=dg.AssetSelection.assets(*maintenance))

# Whatever changes days of bronze, whoever does it: silver and gold follow.
bronze_changed = build_delta_log_sensor(
    name="bronze_changed", table_uri=str(TABLES / "flights"), job=refresh_job, start="beginning"
)


@dg.sensor(job=maintenance_job)
def carriers_read() -> dg.RunRequest | dg.SkipReason:
    """Upkeep, each time the Airflow DAG `carriers` has read more of gold: its cursor is in the log of its table."""
    read, gold = DeltaTable(HOME / "airflow_tables" / "carriers"), tables["carrier_daily"].snapshot()
    done = read.txns().get(cdc_app_id("carriers", gold.metadata.id), -1) if read.exists() else -1
    return dg.SkipReason("Airflow has not read it") if done < 0 else dg.RunRequest(run_key=f"carriers-{done}")


defs = dg.Definitions(
    assets=[flights, weather_readings, corrections, flights_enriched, carrier_daily, *maintenance],
    asset_checks=asset_checks,
    jobs=[bronze_job, corrections_job, refresh_job, maintenance_job],
    sensors=[bronze_changed, carriers_read],
    resources={
        "io_manager": DeltaLakeIOManager(root_uri=str(TABLES), properties=AS_IT_COMES),
        "corrections": DeltaLakeIOManager(root_uri=str(HOME)),
    },
    # All steps of a run share one Spark session.
    executor=dg.in_process_executor,
)
