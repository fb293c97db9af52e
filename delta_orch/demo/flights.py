"""The pipeline itself: functions over Spark DataFrames, defined once. Dagster and Airflow wire the same ones.

    flights (bronze) ──► flights_enriched (silver) ──► carrier_daily (gold)
    weather_readings ──┘

They know nothing of Delta tables: what is read, replaced and remembered is the business of those who call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

from delta_orch.demo.source import Landing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS_SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP
"""
WEATHER_SCHEMA = """
    origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir INT,
    wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP
"""
PLANES_SCHEMA = """
    tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed INT,
    engine STRING
"""
AIRLINES_SCHEMA = "carrier STRING, name STRING"
FLIGHT_KEYS = ("flight_date", "carrier", "flight", "origin", "sched_dep_time")
"""What names a flight: a correction replaces the row with the same values."""


def read_flights(spark: SparkSession, landing: Landing, days: Iterable[date]) -> DataFrame:
    """Bronze: the flights delivered for these days, as they are, with `flight_date` to partition by."""
    return _read_csv(spark, FLIGHTS_SCHEMA, landing.flights_files(days)).selectExpr(
        "make_date(year, month, day) AS flight_date", "*"
    )


def read_corrections(spark: SparkSession, landing: Landing, days: Iterable[date]) -> DataFrame:
    """Bronze: the flights of these days that were delivered late, or wrong at first; as `read_flights`."""
    return _read_csv(spark, FLIGHTS_SCHEMA, landing.corrections_files(days)).selectExpr(
        "make_date(year, month, day) AS flight_date", "*"
    )


def read_weather(spark: SparkSession, landing: Landing, days: Iterable[date]) -> DataFrame:
    """The hourly readings delivered for these days, with `reading_date`."""
    return _read_csv(spark, WEATHER_SCHEMA, landing.weather_files(days)).selectExpr(
        "make_date(year, month, day) AS reading_date", "* EXCEPT (year, month, day)"
    )


def read_planes(spark: SparkSession, landing: Landing) -> DataFrame:
    return _read_csv(spark, PLANES_SCHEMA, [landing.reference_file("planes")])


def read_airlines(spark: SparkSession, landing: Landing) -> DataFrame:
    return _read_csv(spark, AIRLINES_SCHEMA, [landing.reference_file("airlines")])


def enrich_flights(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Silver: each flight with its plane and the weather at its origin in the hour it was to leave.

    No flight is lost or doubled: both joins keep flights without a match, and both keys are unique on the right.
    Weather is matched by the instant `time_hour`: the wall clock shows 1 o'clock twice when daylight saving time ends.
    """
    from pyspark.sql import functions as F

    known_planes = planes.selectExpr(
        "tailnum", "year AS plane_year", "manufacturer", "model", "engines", "seats", "engine AS engine_type"
    )
    readings = weather.select("origin", "time_hour", "temp", "humid", "wind_speed", "precip", "visib")
    return (
        flights.selectExpr("* EXCEPT (year, month, day)", "dep_time IS NULL AS cancelled")
        .join(F.broadcast(known_planes), "tailnum", "left")
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


def _read_csv(spark: SparkSession, schema: str, files: list[str]) -> DataFrame:
    if not files:
        # Spark refuses an empty list of paths; no delivery is no rows.
        return spark.createDataFrame([], schema)
    # FAILFAST: a damaged line ends the run; by default Spark would make nulls of it.
    return spark.read.csv(files, schema=schema, header=True, nullValue="NA", mode="FAILFAST", enforceSchema=False)
