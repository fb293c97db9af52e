"""20 million rows of a Spark DataFrame become a table."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.synthetic_rows import plain_table

TITLE = (
    "Append of 20,000,000 rows of a Spark DataFrame (two local threads, second run in a session): a new table, zstd, "
    "statistics included"
)
WARM_UPS = 1
MOST_ROUNDS = 3
COMPRESSION = "zstd"

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """G3, whose files the DataFrame reads."""
    return plain_table(directory)


def _session() -> Any:
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def _delta_orch() -> Run:
    from delta_orch import DeltaTable

    properties = {"delta.parquet.compression.codec": COMPRESSION}

    def write(rows: Any, path: str) -> None:
        DeltaTable(path).append(rows, properties=properties)

    return _writing(write)


def _spark_files() -> Run:
    return _writing(lambda rows, path: rows.write.parquet(path, compression=COMPRESSION))


def _writing(write: Callable[[Any, str], None]) -> Run:
    """The same DataFrame for whoever writes it, in as many tasks."""
    spark = _session()

    def run(source: Path) -> object:
        root = Path(tempfile.mkdtemp(dir=source.parent))
        try:
            write(spark.read.parquet(str(source)), str(root / "table"))
            return f"{len(list((root / 'table').rglob('*.parquet')))} files"
        finally:
            shutil.rmtree(root)

    return run


CONTESTANTS: dict[str, Callable[[], Run]] = {
    "delta_orch": _delta_orch,
    "floor: df.write.parquet": _spark_files,
}
