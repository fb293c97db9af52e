"""The Spark session of a task: by a connection or by settings, started when it is needed, always stopped."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from delta_orch.errors import InvalidRequestError, MissingDependencyError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_INTERRUPT_S = 3.0
"""Airflow kills a process five seconds after it has asked it to end."""


@contextmanager
def task_spark_session(spark_conf: Mapping[str, str] | None, app_name: str) -> Iterator[SparkSession | None]:
    """A session for the duration of a task, or None where `spark_conf` is None.

    A session that is already running is used as it is and left running, because another owner started it. Only a
    session started here is stopped at the end.

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
        logger.info("Using the running Spark session; the task's settings are not applied to it")
        yield running
        return
    session = _start(spark_conf, app_name)
    try:
        yield session
    except SystemExit:
        # The task was killed, maybe in the middle of an exchange with Spark on the connection of this thread.
        _aside(session.stop)
        raise
    except BaseException:
        session.stop()
        raise
    session.stop()


def running_spark_session() -> SparkSession | None:
    """The active or default session of this process, if there is one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        if error.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
            raise
        return None


def interrupt_spark() -> None:
    """End what the session of this process is at, if there is one. Its caller may be a signal handler.

    A thread of its own speaks to Spark: the interrupted one may be in the middle of an exchange, on its connection.
    """
    session = running_spark_session()
    if session is None:
        return
    context = getattr(session, "_sc", None)  # A session of Spark Connect has none.
    _aside(session.interruptAll if context is None else context.cancelAllJobs)


def _aside(call: Callable[[], object]) -> None:
    speaker = Thread(target=call, name="delta_orch-kill", daemon=True)
    speaker.start()
    speaker.join(_INTERRUPT_S)


def connection_conf(connection: Connection) -> dict[str, str]:
    """The settings of a session that a connection of the Spark provider's types describes: `spark`, a master, or
    `spark_connect`, a server. Settings among its extra (`spark.…`) come with it. The token is masked in logs.

    Raises:
        InvalidRequestError: The connection is of another type, or asks for what a session in a task cannot have.
    """
    extra = connection.extra_dejson
    conf = {name: str(value) for name, value in extra.items() if name.startswith("spark.")}
    if connection.conn_type == "spark_connect":
        return {**conf, "spark.remote": _connect_url(connection)}
    if extra.get("deploy-mode", "client") != "client":
        raise InvalidRequestError(
            f"Connection {connection.conn_id} has deploy-mode {extra['deploy-mode']!r}",
            cause="The session of a task has its driver in the task's process",
            remedy="Use another connection, or submit a script with DeltaSparkSubmitOperator",
        )
    for name, setting in (("queue", "spark.yarn.queue"), ("namespace", "spark.kubernetes.namespace")):
        if extra.get(name):
            conf.setdefault(setting, str(extra[name]))
    return {**conf, "spark.master": master_of(connection)}


def master_of(connection: Connection) -> str:
    """The master that a connection of type `spark` names, as the Spark provider reads it.

    Raises:
        InvalidRequestError: It is of another type, or names none.
    """
    host, port = connection.host or "", f":{connection.port}" if connection.port else ""
    if connection.conn_type not in ("spark", "k8s") or not host:
        raise InvalidRequestError(
            f"Connection {connection.conn_id} of type {connection.conn_type!r} names no Spark master",
            remedy="Use a connection of type spark (a master) or, for a session, spark_connect (a server)",
        )
    is_whole = connection.conn_type == "spark" and ("://" in host or not port)
    return (host if is_whole else f"{connection.conn_type}://{host}") + port


def _connect_url(connection: Connection) -> str:
    host = connection.host or ""
    address = urlsplit(host if "://" in host else f"sc://{host}")
    if not address.hostname or address.path.strip("/"):
        raise InvalidRequestError(
            f"Connection {connection.conn_id} names no Spark Connect server",
            remedy="Its host is a name, or sc://name, without a path",
        )
    parameters: dict[str, object] = {"user_id": connection.login, "token": connection.password}
    if connection.password:
        from delta_orch.airflow.versions import mask_secret

        mask_secret(connection.password)
    parameters["use_ssl"] = connection.extra_dejson.get("use_ssl")
    place = address.netloc + (f":{connection.port}" if connection.port else "")
    options = [
        f"{name}={quote(str(value).lower() if isinstance(value, bool) else str(value), safe='')}"
        for name, value in parameters.items()
        if value not in (None, "")
    ]
    return f"sc://{place}/" + "".join(f";{one}" for one in options)


def _start(spark_conf: Mapping[str, str], app_name: str) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependencyError(
            "The task needs Spark, and pyspark is not installed",
            remedy="Install delta-orch[spark], or return Arrow, pandas or Polars data",
            package="pyspark",
        ) from error
    builder = SparkSession.builder
    for key, value in {"spark.app.name": app_name, **spark_conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
