"""The tables of the flights pipeline as functions: bronze over rows of files, silver and gold over Spark DataFrames.

    flights (bronze) ──► flights_enriched (silver) ──► carrier_daily (gold)
    weather_readings ──┘

The pipeline reads a landing folder, to which airports and a weather service deliver CSV files: `flights/2013-01.csv`
and `weather/2013-01.csv` for a month, corrections of flights as `flights/corrections-17.csv`, and `planes.csv` and
`airlines.csv`. The functions know nothing of Delta tables. The definitions that call them say what is read and
replaced.

This file is the same beside each definition of the pipeline, so that either folder can be copied alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation
    from pyspark.sql import DataFrame, SparkSession

SPARK_CONF = {
    "spark.master": f"local[{os.environ.get('FLIGHTS_SPARK_CORES', '2')}]",
    "spark.app.name": "flights",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A day is 900 rows: more partitions would only be more empty tasks.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}

FLIGHTS_COLUMNS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
    "reported_at": "timestamp",
}
WEATHER_COLUMNS = {
    "origin": "string",
    "year": "int",
    "month": "int",
    "day": "int",
    "hour": "int",
    "temp": "double",
    "dewp": "double",
    "humid": "double",
    "wind_dir": "int",
    "wind_speed": "double",
    "wind_gust": "double",
    "precip": "double",
    "pressure": "double",
    "visib": "double",
    "time_hour": "timestamp",
}
PLANES_SCHEMA = """
    tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed INT,
    engine STRING
"""
AIRLINES_SCHEMA = "carrier STRING, name STRING"
FLIGHT_KEYS = ("flight_date", "carrier", "flight", "origin", "sched_dep_time")
"""The columns that name a flight. Of all reports of a flight the one with the greatest `reported_at` counts."""

FLIGHT_RULES = {
    "every value fits its column": "_rescued_data IS NULL",
    "a flight has a carrier": "carrier IS NOT NULL",
    "a delay is less than two days": "coalesce(abs(arr_delay), 0) < 2880",
}
"""Rows that break one wait in the quarantine. A rule that gives null counts as broken."""


def spark_session() -> SparkSession:
    """The running session, or a new one."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def with_date(rows: object) -> DuckDBPyRelation:
    """Bronze: the rows of files as they are, with `flight_date` to partition by."""
    import duckdb

    return duckdb.from_arrow(rows).project("make_date(year, month, day) AS flight_date, *")


def read_planes(spark: SparkSession, landing: Path) -> DataFrame:
    return _read_csv(spark, PLANES_SCHEMA, landing / "planes.csv")


def read_airlines(spark: SparkSession, landing: Path) -> DataFrame:
    return _read_csv(spark, AIRLINES_SCHEMA, landing / "airlines.csv")


def enrich_flights(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Silver: each flight with its plane and the weather at its origin in the hour it was to leave.

    No flight is lost or doubled: both joins keep flights without a match, and both keys are unique on the right.
    Weather is matched by the instant `time_hour`: the wall clock shows 1 o'clock twice when daylight saving time ends.
    """
    from pyspark.sql import functions as F

    plane_columns = planes.selectExpr(
        "tailnum", "year AS plane_year", "manufacturer", "model", "engines", "seats", "engine AS engine_type"
    )
    readings = weather.select("origin", "time_hour", "temp", "humid", "wind_speed", "precip", "visib")
    return (
        flights.selectExpr("* EXCEPT (year, month, day, reported_at)", "dep_time IS NULL AS cancelled")
        .join(F.broadcast(plane_columns), "tailnum", "left")
        .join(F.broadcast(readings), ["origin", "time_hour"], "left")
    )


def summarize_carriers(enriched: DataFrame, airlines: DataFrame) -> DataFrame:
    """Gold: per day and carrier how many flights there were, how many were cancelled, and how late they ran."""
    from pyspark.sql import functions as F

    per_carrier = enriched.groupBy("flight_date", "carrier").agg(
        F.count("*").alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.avg("dep_delay").alias("mean_dep_delay"),
        F.avg("arr_delay").alias("mean_arr_delay"),
        F.sum("seats").alias("seats"),
    )
    names = airlines.withColumnRenamed("name", "carrier_name")
    return per_carrier.join(F.broadcast(names), "carrier", "left").select(
        "flight_date", "carrier", "carrier_name", "flights", "cancelled", "mean_dep_delay", "mean_arr_delay", "seats"
    )


def _read_csv(spark: SparkSession, schema: str, file: Path) -> DataFrame:
    # FAILFAST: a damaged line ends the run; by default Spark would make nulls of it.
    return spark.read.csv(str(file), schema=schema, header=True, nullValue="NA", mode="FAILFAST", enforceSchema=False)
