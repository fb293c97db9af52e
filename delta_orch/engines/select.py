"""Chooses the engine of a verb by the type of the rows, unless the caller names one.

Neither engine is imported before it is needed: a Spark DataFrame is recognised by where its class lives.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

from delta_orch.errors import InvalidRequestError, MissingDependencyError

if TYPE_CHECKING:
    from delta_orch.engines.base import Engine

EngineChoice: TypeAlias = "str | Engine"
"""`"auto"`, `"local"`, `"spark"`, or an engine."""

_KEPT_VALUES = {
    "pyarrow.Table", "pyarrow.RecordBatch", "pyarrow.Dataset", "pandas.DataFrame", "polars.DataFrame",
    "polars.LazyFrame", "pyspark.DataFrame", "builtins.dict",
}  # fmt: skip


def select_engine(data: object = None, engine: EngineChoice = "auto") -> Engine:
    """The engine for `data`.

    `auto` runs Spark's values on their own session and all else locally. `spark` needs a Spark value or an active
    session and takes every kind of value.

    Raises:
        InvalidRequestError: No such engine, no active Spark session, or the local engine and a Spark value.
        MissingDependencyError: The engine's packages are not installed.
    """
    if not isinstance(engine, str):
        if not hasattr(engine, "scan"):
            raise InvalidRequestError(
                f"A {type(engine).__name__} is no engine", remedy='Use "auto", "local" or "spark"', argument="engine"
            )
        return engine
    from_spark = is_spark_value(data)
    if engine == "spark" or (engine == "auto" and from_spark):
        return spark_engine(data if from_spark else _active_session())
    if engine not in ("auto", "local"):
        raise InvalidRequestError(f"There is no engine {engine!r}", remedy='Use "auto", "local" or "spark"')
    if from_spark:
        raise InvalidRequestError(
            "The local engine does not take a Spark DataFrame",
            remedy="Leave engine out, or pass data.toArrow() to run without Spark",
        )
    from delta_orch.engines.local.engine import LocalEngine

    return LocalEngine()


def is_spark_value(data: object) -> bool:
    """Whether this is a Spark DataFrame, classic or Connect. Imports nothing."""
    for kind in type(data).__mro__:
        if kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.sql"):
            return True
    return False


def can_be_read_again(data: object) -> bool:
    """Whether a value is known to give the same rows twice. A reader gives them once, and so may anything else that
    exports an Arrow stream. Imports nothing."""
    names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(data).__mro__}
    return not names.isdisjoint(_KEPT_VALUES)


def spark_engine(session: object) -> Engine:
    """The engine on a Spark session, classic or Connect, or on the session of a Spark DataFrame."""
    try:
        from delta_orch.engines.spark.engine import SparkEngine
    except MissingDependencyError:
        raise
    except ImportError as e:
        raise MissingDependencyError(
            "The spark engine's packages are not installed",
            cause=str(e),
            remedy='Run pip install "delta-orch[spark]"',
            extra="spark",
        ) from e
    return SparkEngine(session)


def _active_session() -> object:
    # A session cannot be active before pyspark was imported by whoever made it.
    session = None
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
    if session is None:
        raise InvalidRequestError(
            'engine="spark" was asked for, but there is no active Spark session',
            remedy="Create one with SparkSession.builder.getOrCreate(), or pass a Spark DataFrame",
        )
    return session
