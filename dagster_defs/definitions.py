"""The flights pipeline as Dagster assets. `flights_transformations.py` has the functions that they call.

    landing/flights/*.csv ──► flights ──────────► flights_enriched ──► carrier_daily
    landing/weather/*.csv ──► weather_readings ──┘       each with compaction, checkpoint, vacuum

Files may come late, damaged, twice, or out of order:

- `FileSource` loads each file once, in the commit of its rows.
- `write="cdc"` keeps the newest report of each flight, in whatever order reports arrive.
- `expect` keeps bad rows out. They wait in the table `flights_quarantine`, with the rule that they break.

Copy this folder to start a pipeline of your own. `@delta_asset` makes it exactly-once: each run of an asset is a unit,
and the commit of its rows records it. A retry after a crash finds it there, and a run that is executed again replaces
exactly its rows.
"""

import os
from pathlib import Path

import dagster as dg
from duckdb import DuckDBPyRelation
from pyspark.sql import DataFrame

from dagster_defs.flights_transformations import (
    FLIGHT_KEYS,
    FLIGHT_RULES,
    FLIGHTS_COLUMNS,
    WEATHER_COLUMNS,
    enrich_flights,
    read_airlines,
    read_planes,
    spark_session,
    summarize_carriers,
    with_date,
)
from delta_orch import DeltaTable, Expect, FileSource
from delta_orch.dagster import (
    ChangeBatch,
    DeltaTableResource,
    FileBatch,
    MaintenancePolicy,
    build_delta_check,
    build_delta_file_sensor,
    build_delta_log_sensor,
    build_delta_maintenance_assets,
    checks,
    delta_asset,
)

HOME = Path(os.environ.get("FLIGHTS_HOME", Path(__file__).resolve().parents[1] / "build" / "demo"))
LANDING = HOME / "landing"
TABLES = HOME / "tables"
# How long files that no version needs any more are kept for readers of older versions.
RETENTION = {"delta.deletedFileRetentionDuration": os.environ.get("FLIGHTS_RETENTION", "interval 7 days")}

# Silver is written as the rows come, without a shuffle; compaction tidies up behind it.
AS_IT_COMES = {**RETENTION, "delta.autoOptimize.optimizeWrite": "false"}

tables = {
    name: DeltaTableResource(table_uri=str(TABLES / name))
    for name in ("flights", "weather_readings", "flights_enriched", "carrier_daily")
}
flights_files = FileSource(
    LANDING / "flights",
    format="csv",
    options={"null_text": "NA"},
    schema=FLIGHTS_COLUMNS,
    source_file=True,  # the quarantine names the file of each row
    schema_mode="rescue",  # a value that is no number breaks a rule, and not the run
    on_error="quarantine",  # a file that is cut off is set aside, and read once it has changed
    on_changed="ignore",  # a file that comes again is not loaded again
)
weather_files = FileSource(
    LANDING / "weather", format="csv", options={"null_text": "NA"}, schema=WEATHER_COLUMNS, on_changed="ignore"
)


@delta_asset(
    incremental_from=flights_files,
    table=tables["flights"],
    write="cdc",
    merge_keys=FLIGHT_KEYS,
    sequence_by="reported_at",
    except_columns=["_rescued_data", "source_file"],
    expect={name: Expect(rule, "quarantine") for name, rule in FLIGHT_RULES.items()},
    partition_by=["flight_date"],
    properties=RETENTION,
    group_name="bronze",
)
def flights(batch: FileBatch) -> DuckDBPyRelation:
    """Flights by their newest report. Monthly files and corrections are alike: reports of flights."""
    return with_date(batch.rows())


@delta_asset(
    incremental_from=weather_files,
    table=tables["weather_readings"],
    write="append",
    # Each row names the run that wrote it. So a redo finds the rows of its run even after a compaction.
    unit_column="load_id",
    partition_by=["flight_date"],
    properties=RETENTION,
    group_name="bronze",
)
def weather_readings(batch: FileBatch) -> DuckDBPyRelation:
    """Hourly weather at the airports, appended."""
    return with_date(batch.rows())


@delta_asset(
    incremental_from={"flights": tables["flights"], "weather": tables["weather_readings"]},
    table=tables["flights_enriched"],
    write="overwrite_partitions",
    partition_by=["flight_date"],
    properties=AS_IT_COMES,
    deps=[flights, weather_readings],
    kinds={"spark"},
    group_name="silver",
)
def flights_enriched(batches: dict[str, ChangeBatch]) -> DataFrame:
    """Flights with their plane and the weather, recomputed for the days that changed in either."""
    spark = spark_session()
    flights, weather = (batches[name].scan().to_spark(spark) for name in ("flights", "weather"))
    return enrich_flights(flights, weather, read_planes(spark, LANDING))


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
def carrier_daily(batch: ChangeBatch) -> DataFrame:
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

flights_job = dg.define_asset_job("load_flights", selection=dg.AssetSelection.assets(flights))
weather_job = dg.define_asset_job("load_weather", selection=dg.AssetSelection.assets(weather_readings))
refresh_job = dg.define_asset_job("refresh", selection=dg.AssetSelection.assets(flights_enriched, carrier_daily))
maintenance_job = dg.define_asset_job("maintenance", selection=dg.AssetSelection.assets(*maintenance))

# Files arrive: bronze loads them.
flights_arrived = build_delta_file_sensor(
    name="flights_arrived", source=flights_files, table=tables["flights"], job=flights_job
)
weather_arrived = build_delta_file_sensor(
    name="weather_arrived", source=weather_files, table=tables["weather_readings"], job=weather_job
)

# Whatever changes days of bronze, whoever does it: silver and gold follow.
flights_changed = build_delta_log_sensor(
    name="flights_changed", table_uri=str(TABLES / "flights"), job=refresh_job, start="beginning"
)
weather_changed = build_delta_log_sensor(
    name="weather_changed", table_uri=str(TABLES / "weather_readings"), job=refresh_job, start="beginning"
)


@dg.sensor(job=maintenance_job)
def carriers_read() -> dg.RunRequest | dg.SkipReason:
    """Upkeep, each time the Airflow DAG `carriers` has read more of gold. Its cursor is a transaction of its table."""
    read, gold = DeltaTable(HOME / "airflow_tables" / "carriers"), tables["carrier_daily"].snapshot()
    done = read.txns().get(f"cdc:carriers<-{gold.metadata.id}", -1) if read.exists() else -1
    return dg.SkipReason("Airflow has not read it") if done < 0 else dg.RunRequest(run_key=f"carriers-{done}")


defs = dg.Definitions(
    assets=[flights, weather_readings, flights_enriched, carrier_daily, *maintenance],
    asset_checks=asset_checks,
    jobs=[flights_job, weather_job, refresh_job, maintenance_job],
    sensors=[flights_arrived, weather_arrived, flights_changed, weather_changed, carriers_read],
    # All steps of a run share one Spark session.
    executor=dg.in_process_executor,
)
