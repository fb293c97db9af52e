"""Streams between two tables whose processes are killed at every step: rows arrive exactly once.

python stream_kills.py SCRATCH

Each run of the query is a process of its own, killed where `KILL_AT` says, once. What it leaves is what the next finds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable

POINTS = ("offsets", "planned", "written", "before commit", "after commit")
FILES, ROWS = 8, 10

_HOOKS = """
import os, signal

where, marker = os.environ.get("KILL_AT"), os.environ.get("KILL_MARKER", "")

def die():
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.killpg(int(os.environ["KILL_GROUP"]), signal.SIGKILL)
    os._exit(9)

def patch(owner, name, *, before=False, when=lambda result: True):
    plain = getattr(owner, name)
    def patched(*args, **kwargs):
        if before:
            die()
        result = plain(*args, **kwargs)
        if not before and when(result):
            die()
        return result
    setattr(owner, name, patched)

if where == "offsets":
    from delta_orch.spark_source.stream import StreamPlanner
    patch(StreamPlanner, "latest")
elif where == "planned":
    from delta_orch.spark_source.stream import StreamPlanner
    patch(StreamPlanner, "tasks")
elif where == "written":
    from delta_orch.engines.spark import in_tasks
    patch(in_tasks, "written_files")
elif where in ("before commit", "after commit"):
    from delta_orch.log.write.transaction import Transaction
    # The first commit of all may create the table, without rows.
    has_rows = lambda result: result.operation_metrics.get("numOutputRows")
    patch(Transaction, "commit", before=where == "before commit", when=has_rows)
"""


def query(scratch: Path, kind: str) -> None:
    from pyspark.sql import SparkSession

    from delta_orch.spark_source.batches import write_batches

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.format("delta_orch").option("maxFilesPerTrigger", 3).load(str(scratch / "source"))
    writer = rows.writeStream.option("checkpointLocation", str(scratch / f"checkpoint-{kind}"))
    writer = writer.trigger(availableNow=True)
    target = str(scratch / kind)
    if kind == "sink":
        writer.format("delta_orch").start(target).awaitTermination()
    else:
        writer.foreachBatch(write_batches(DeltaTable(target))).start().awaitTermination()
    spark.stop()


def run(scratch: Path, kind: str, point: str | None) -> int:
    environment = dict(os.environ)
    if point is not None:
        marker = scratch / f"killed-{kind}-{point.replace(' ', '-')}"
        hooks = os.pathsep.join([str(scratch / "hooks"), environment.get("PYTHONPATH", "")])
        environment |= {"KILL_AT": point, "KILL_MARKER": str(marker), "PYTHONPATH": hooks}
    command = [sys.executable, __file__, str(scratch), "--query", kind]
    return subprocess.run(command, env=environment, start_new_session=True, check=False, timeout=300).returncode


def arrived(scratch: Path, kind: str) -> list[int]:
    table = DeltaTable(scratch / kind)
    return sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) if table.exists() else []


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch = Path(sys.argv[1])
    if "--query" in sys.argv:
        os.environ["KILL_GROUP"] = str(os.getpgrp())
        query(scratch, sys.argv[-1])
        return
    (scratch / "hooks").mkdir(parents=True)
    (scratch / "hooks" / "sitecustomize.py").write_text(_HOOKS)
    source = DeltaTable(scratch / "source")
    wanted: list[int] = []
    for kind, points in (("sink", POINTS), ("batches", ("offsets", "before commit", "after commit"))):
        for point in points:
            for _ in range(FILES if not wanted else 4):
                rows = range(len(wanted), len(wanted) + ROWS)
                source.append(pa.table({"id": list(rows)}))
                wanted += rows
            code = run(scratch, kind, point)
            assert code == -signal.SIGKILL, (kind, point, code)
            found = arrived(scratch, kind)
            assert len(set(found)) == len(found), f"{kind}, {point}: rows came twice"
            assert set(found) < set(wanted)
            sys.stdout.write(f"{kind}, killed at {point}: {len(found)} of {len(wanted)} rows have arrived\n")
            sys.stdout.flush()
        assert run(scratch, kind, None) == 0
        assert arrived(scratch, kind) == wanted, f"{kind}: rows are missing"
        version = DeltaTable(scratch / kind).version()
        assert run(scratch, kind, None) == 0
        assert DeltaTable(scratch / kind).version() == version
    sys.stdout.write("all well\n")


if __name__ == "__main__":
    main()
