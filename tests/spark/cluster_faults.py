"""What a cluster does to reads and writes: killed executors, tried-again and doubled tasks, failing functions,
cancelled jobs. Rows are there exactly once, or the table is as before; vacuum removes the rest.

Functions that run in tasks are made inside of others: they travel by value, so that workers need not have this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import CancelledError

ROWS, PARTS = 4_000, 8


def once(marker: Path, act: str, seconds: float = 0) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on. The first task that has written its first batch kills its executor, fails, or sleeps."""
    path = str(marker)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        import subprocess
        import time

        for number, batch in enumerate(batches):
            yield batch
            if number:
                continue
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if act == "sleep":
                time.sleep(seconds)
            elif act == "fail":
                raise RuntimeError("a first attempt fails")
            else:
                # This process, the daemon that made it, the executor.
                daemon = os.getppid()
                parent = subprocess.run(["ps", "-o", "ppid=", "-p", str(daemon)], capture_output=True, check=True)
                os.kill(int(parent.stdout), signal.SIGKILL)
                time.sleep(60)

    return pass_on


def every_first_attempt_fails() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("a first attempt fails")

    return pass_on


def rows_of(spark: Any) -> Any:
    """Rows that another attempt makes anew: `noise` is not the same then."""
    return spark.range(0, ROWS, 1, PARTS).selectExpr("id", "id % 5 AS p", "rand() AS noise")


def ensure_once(table: DeltaTable, wanted: list[int]) -> None:
    found = sorted(table.snapshot().scan(columns=["id"]).to_arrow()["id"].to_pylist())
    assert found == wanted, f"{len(found)} rows, {len(set(found))} of them different, {len(wanted)} wanted"


def ensure_tidy(table: DeltaTable) -> int:
    """Vacuum leaves the files that the log names, and those alone. How many there were more."""
    before = data_files(table)
    table.vacuum(retention_hours=0, enforce_retention=False)
    named = {row["path"] for row in table.snapshot().files(["path"]).to_pylist()}
    left = data_files(table)
    assert len(left) == len(named), (len(left), len(named))
    return len(before) - len(left)


def data_files(table: DeltaTable) -> list[str]:
    return [
        meta.path
        for meta in table.store.list_recursive()
        if meta.path.endswith(".parquet") and "_delta" not in meta.path
    ]


def write_faults(spark: Any, scratch: Path, *, short: bool) -> Iterator[str]:
    schema = "id BIGINT, p BIGINT, noise DOUBLE"
    acts = [("kill", 0.0), ("fail", 0.0), ("sleep", 20.0)]
    for act, seconds in acts[:1] if short else acts:
        for partitioned in (True,) if short else (False, True):
            table = DeltaTable(scratch / f"{act}-{partitioned}")
            rows = rows_of(spark).mapInArrow(once(scratch / f"{act}-{partitioned}-done", act, seconds), schema)
            options: dict[str, Any] = {"partition_by": ["p"]} if partitioned else {}
            started = time.monotonic()
            table.append(rows, txn=TxnId("job", 1), **options)
            took = time.monotonic() - started
            assert (scratch / f"{act}-{partitioned}-done").exists()
            ensure_once(table, list(range(ROWS)))
            assert table.version() == 0
            assert act != "sleep" or took < seconds, "nothing was speculated"
            kind = "partitioned" if partitioned else "plain"
            yield f"append, {act}, {kind}: {ensure_tidy(table)} files left over, {took:.1f} s"
    if short:
        return
    table = DeltaTable(scratch / "attempts")
    table.append(rows_of(spark).mapInArrow(every_first_attempt_fails(), schema))
    ensure_once(table, list(range(ROWS)))
    yield f"append, every first attempt fails: {ensure_tidy(table)} files left over"
    changed = rows_of(spark).where("id < 100").unionAll(rows_of(spark).selectExpr("id + 3950", "p", "noise"))
    changed = changed.where("id < 100 OR id BETWEEN 3950 AND 4049")
    killing = changed.mapInArrow(once(scratch / "merge-done", "kill"), schema)
    merge = table.merge(killing, "target.id = source.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    ensure_once(table, list(range(4050)))
    yield f"merge, kill: {ensure_tidy(table)} files left over"


def read_faults(spark: Any, scratch: Path) -> Iterator[str]:
    table = DeltaTable(scratch / "read")
    table.append(rows_of(spark), properties={"delta.enableDeletionVectors": "true"})
    table.delete("id % 7 = 0")
    wanted = [i for i in range(ROWS) if i % 7]
    rows = table.snapshot().scan().to_spark(spark)
    for act in ("kill", "fail"):
        seen = rows.mapInArrow(once(scratch / f"read-{act}", act), rows.schema).select("id").collect()
        assert sorted(row.id for row in seen) == wanted
        yield f"read, {act}"


def refusals(spark: Any, scratch: Path) -> Iterator[str]:
    """What fails leaves the table as it was."""
    table = DeltaTable(scratch / "refused")
    table.append(spark.range(5))
    slow = spark.range(0, 100, 1, 4).mapInArrow(once(scratch / "slow", "sleep", 90), "id BIGINT")
    with ThreadPoolExecutor(1) as pool:
        write = pool.submit(table.append, slow)
        while not (scratch / "slow").exists() and not write.done():
            time.sleep(0.05)
        spark.interruptAll()
        with pytest.raises(CancelledError):
            write.result(60)
    ensure_once(table, list(range(5)))
    assert table.version() == 0
    yield f"cancelled: {ensure_tidy(table)} files left over"

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 77 in batch.column(0).to_pylist():
                raise ValueError("no 77")
            yield batch

    with pytest.raises(Exception, match="no 77"):
        table.append(spark.range(0, 100, 1, 4).mapInArrow(fails, "id BIGINT"))
    ensure_once(table, list(range(5)))
    yield f"a function that fails: {ensure_tidy(table)} files left over"
