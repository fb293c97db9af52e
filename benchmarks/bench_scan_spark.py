"""G3 on Spark, beside Spark's own reader on the bare files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.synthetic_rows import plain_table, table_with_deletion_vectors

TITLE = "G3 on Spark (two local threads, third run in a session): aggregates over all five columns"
WARM_UPS = 2
MOST_ROUNDS = 2

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """Both tables side by side."""
    plain_table(directory)
    return table_with_deletion_vectors(directory).parent


def _session() -> Any:
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def _aggregated(frame: Any) -> object:
    from pyspark.sql import functions as f

    terms = (f.count(f.lit(1)), f.sum("id"), f.sum("k"), f.max("value"), f.min("name"), f.max("day"))
    return tuple(frame.agg(*terms).collect()[0])


def _delta_orch(name: str) -> Run:
    from delta_orch import DeltaTable

    spark = _session()
    return lambda directory: _aggregated(DeltaTable(directory / name).snapshot().scan().to_spark(spark))


def _spark_files() -> Run:
    spark = _session()
    return lambda directory: _aggregated(spark.read.parquet(str(directory / "rows")))


CONTESTANTS: dict[str, Callable[[], Run]] = {
    "delta_orch": lambda: _delta_orch("rows"),
    "delta_orch, 1 % deleted by vectors": lambda: _delta_orch("rows_deletion_vectors"),
    "floor: spark.read.parquet": _spark_files,
}
RESULTS_MAY_DIFFER = True  # one contestant has fewer rows
