"""What a commit and a plan cost as a table's log grows: the same table with more and more files, without data.

    python -m benchmarks.growth 10000 100000 1000000

Each size is measured in a process of its own: opening and the first append, the next append, a filtered plan in a new
`DeltaTable` and in one that knows the version, and the most memory held. Then the same plan on Spark.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

ROW = pa.table({"id": [1], "value": [0.5], "name": ["a"], "date": [dt.date(2020, 1, 9)]})
WHERE = "date = DATE'2020-01-09' AND id < 8100000"
COLUMNS = ("files", "first append", "next append", "plan, cold", "plan, warm", "memory", "Spark, cold", "Spark, warm")


def make(table: Path, num_files: int) -> None:
    """A checkpoint in row groups of 100,000 files, and ten commits after it."""
    from benchmarks.synthetic_log import write_large_checkpoint

    (table / "_delta_log").mkdir(parents=True)
    write_large_checkpoint(table, num_files, 100_000, 10)


def measure(table: Path, num_files: int) -> None:
    from delta_orch import DeltaTable

    opened, planned = DeltaTable(table), DeltaTable(table)
    cells = [_seconds(lambda: opened.append(ROW)), _seconds(lambda: opened.append(ROW))]
    cells += [_seconds(lambda: planned.snapshot().scan(where=WHERE).plan().files.num_rows) for _ in range(2)]
    cells.append(f"{_peak_mb()} MB")
    cells += _on_spark(table)
    sys.stdout.write(f"| {num_files:,} | {' | '.join(cells)} |\n")


def _peak_mb() -> int:
    """The most memory that this process held. `ru_maxrss` would count what its parent held when it made this one."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def _seconds(act: Callable[[], object]) -> str:
    began, worked = time.perf_counter(), time.process_time()
    act()
    return f"{time.perf_counter() - began:.3f} s ({time.process_time() - worked:.3f})"


def _on_spark(table: Path) -> list[str]:
    from pyspark.sql import SparkSession

    from delta_orch import DeltaTable

    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def rows(path: Path) -> Any:
        return DeltaTable(path).snapshot().scan().to_spark(spark)

    def plan(found: Any) -> object:
        return found.where(WHERE)._jdf.queryExecution().toRdd().getNumPartitions()

    # What a session compiles and loads for its first plan is not the log's.
    small = table.parent / "small"
    DeltaTable(small).append(ROW)
    plan(rows(small))
    cells = [_seconds(lambda: plan(rows(table)))]
    known = rows(table)
    plan(known)
    cells.append(_seconds(lambda: plan(known)))
    spark.stop()
    return cells


def main() -> None:
    if sys.argv[1] == "--of":
        measure(Path(sys.argv[2]), int(sys.argv[3]))
        return
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n")
    sys.stdout.flush()
    for text in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as directory:
            make(Path(directory) / "t", int(text))
            # A process of its own, so that its memory is that of one table.
            subprocess.run([sys.executable, "-m", "benchmarks.growth", "--of", f"{directory}/t", text], check=True)


if __name__ == "__main__":
    main()
