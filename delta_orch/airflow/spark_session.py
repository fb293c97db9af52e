"""The Spark session of one task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_orch.errors import MissingDependencyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@contextmanager
def task_spark_session(spark_conf: Mapping[str, str] | None, app_name: str) -> Iterator[SparkSession | None]:
    """A session for the duration of a task, or None where `spark_conf` is None.

    A session that is running already is used as it is and left running: whoever started it may need it, and its
    configuration is its owner's. Only a session started here is stopped at the end.

    Args:
        spark_conf: Settings of a session to start, `spark.master` or `spark.remote` among them.
        app_name: The application's name, unless `spark_conf` sets `spark.app.name`.

    Raises:
        MissingDependencyError: pyspark is not installed.
    """
    if spark_conf is None:
        yield None
        return
    running = running_spark_session()
    if running is not None:
        logger.info("Using the running Spark session; the task's spark_conf is not applied to it")
        yield running
        return
    session = _start(spark_conf, app_name)
    try:
        yield session
    finally:
        session.stop()


def running_spark_session() -> SparkSession | None:
    """The active or default session of this process, if there is one.

    Raises:
        MissingDependencyError: pyspark is not installed.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise _missing_pyspark() from error
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        if error.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
            raise
        return None


def _start(spark_conf: Mapping[str, str], app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in {"spark.app.name": app_name, **spark_conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _missing_pyspark() -> MissingDependencyError:
    return MissingDependencyError(
        "The task needs Spark, and pyspark is not installed",
        remedy="Install delta-orch[spark], or leave out spark_conf and return Arrow, pandas or Polars data",
        package="pyspark",
    )
