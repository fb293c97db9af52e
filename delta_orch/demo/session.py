"""The demo's Spark session: small, local, quiet, and listening to nobody outside this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONF: Mapping[str, str] = {
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


def spark_session() -> SparkSession:
    """The running session, or a new one."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
