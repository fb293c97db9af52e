"""The tables of the flights pipeline as functions over Spark DataFrames.

    flights (bronze) ──► flights_enriched (silver) ──► carrier_daily (gold)
    weather_readings ──┘

The pipeline reads a landing folder, to which airports and a weather service deliver CSV files:
`flights/2013-01-31/EWR.csv`, `weather/2013-01-31.csv`, corrections of a day's flights in `corrections/2013-01-31.csv`,
and `planes.csv` and `airlines.csv`. The functions know nothing of Delta tables. The definitions that call them say what
is read and replaced.

This file is the same beside each definition of the pipeline, so that either folder can be copied alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
"""The columns that name a flight. A correction replaces the row with the same values."""


def spark_session() -> SparkSession:
    """The running session, or a new one."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def flights_files(landing: Path, days: Iterable[date]) -> list[Path]:
    """The files that the airports have delivered for these days.

    Raises:
        FileNotFoundError: A day has not been delivered. Planes fly every day, so a day without rows would be wrong.
    """
    by_day = {day: sorted((landing / "flights" / day.isoformat()).glob("*.csv")) for day in days}
    if missing := [day.isoformat() for day, paths in by_day.items() if not paths]:
        raise FileNotFoundError(f"No flights have been delivered to {landing} for {', '.join(missing)}")
    return [path for paths in by_day.values() for path in paths]


def read_flights(spark: SparkSession, landing: Path, days: Iterable[date]) -> DataFrame:
    """Bronze: the flights delivered for these days, as they are, with `flight_date` to partition by."""
    return _with_date(_read_csv(spark, FLIGHTS_SCHEMA, flights_files(landing, days)))


def read_corrections(spark: SparkSession, landing: Path, days: Iterable[date]) -> DataFrame:
    """Bronze: the flights of these days that were delivered late, or wrong at first. Most days have none."""
    return _with_date(_read_csv(spark, FLIGHTS_SCHEMA, _daily_files(landing / "corrections", days)))


def read_weather(spark: SparkSession, landing: Path, days: Iterable[date]) -> DataFrame:
    """The hourly readings delivered for these days, with `reading_date`. They end on 30 December."""
    return _read_csv(spark, WEATHER_SCHEMA, _daily_files(landing / "weather", days)).selectExpr(
        "make_date(year, month, day) AS reading_date", "* EXCEPT (year, month, day)"
    )


def read_planes(spark: SparkSession, landing: Path) -> DataFrame:
    return _read_csv(spark, PLANES_SCHEMA, [landing / "planes.csv"])


def read_airlines(spark: SparkSession, landing: Path) -> DataFrame:
    return _read_csv(spark, AIRLINES_SCHEMA, [landing / "airlines.csv"])


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
        flights.selectExpr("* EXCEPT (year, month, day)", "dep_time IS NULL AS cancelled")
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


def _with_date(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("make_date(year, month, day) AS flight_date", "*")


def _daily_files(folder: Path, days: Iterable[date]) -> list[Path]:
    paths = (folder / f"{day.isoformat()}.csv" for day in days)
    return [path for path in paths if path.is_file()]


def _read_csv(spark: SparkSession, schema: str, files: list[Path]) -> DataFrame:
    if not files:
        # Spark refuses an empty list of paths; no delivery is no rows.
        return spark.createDataFrame([], schema)
    paths = [str(path) for path in files]
    # FAILFAST: a damaged line ends the run; by default Spark would make nulls of it.
    return spark.read.csv(paths, schema=schema, header=True, nullValue="NA", mode="FAILFAST", enforceSchema=False)
