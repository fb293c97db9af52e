"""A standalone cluster of one master and two workers on loopback, and what is tried on it.

python cluster_run.py SCRATCH [--short]

Everything ends with this process: the cluster's own processes are killed by their ids.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import MissingDependencyError
from delta_orch.spark_source.errors import explained
from tests.spark import cluster_faults
from tests.spark.cluster_reads import check, check_requests, make_tables, say

_NOT_INSTALLED = """
import sys

class _Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "delta_orch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, _Hidden())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def standalone_cluster(scratch: Path) -> Iterator[str]:
    """Yields the master's URL. Workers have one core and 1 GB each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, host: str, *arguments: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host]
        own = {**environment, "SPARK_LOCAL_IP": host}
        with (scratch / f"{name}-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *arguments], env=own, stdout=log, stderr=log, cwd=scratch, start_new_session=True
            )
        started.append(process)

    try:
        start("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert started[0].poll() is None, (scratch / "master.Master-0.log").read_text()[-2000:]
            time.sleep(0.1)
        for number in range(2):
            # Spark speculates on another host only.
            host = f"127.0.0.{number + 1}"
            work = str(scratch / f"work-{number}")
            ports = ("--port", str(free_port()), "--webui-port", str(free_port()))
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", work)
            start("worker.Worker", host, *ports, *limits, f"spark://127.0.0.1:{port}")
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            # A session of its own: executors of this worker and their Python processes are in it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def session(master: str, scratch: Path, **settings: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "4s",
        **settings,
    }.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def without_the_package(master: str, scratch: Path) -> None:
    """Workers that lack it read and write; what needs it says so."""
    hidden = scratch / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(_NOT_INSTALLED)
    spark = session(master, scratch, **{"spark.executorEnv.PYTHONPATH": str(hidden)})
    table = DeltaTable(scratch / "bare")
    table.append(spark.range(0, 100, 1, 4), properties={"delta.enableDeletionVectors": "true"})
    table.delete("id < 10")
    table.upsert(spark.range(95, 105), ["id"])
    table.optimize()
    cluster_faults.ensure_once(table, list(range(10, 105)))
    assert table.snapshot().scan().to_spark(spark).where("id > 50").count() == 54
    say("without the package: append, delete, upsert, optimize, read")
    before = table.version()
    engine = SparkEngine(spark)
    scan = table.snapshot().scan(where=pc.equal(pc.bit_wise_and(pc.field("id"), 3), 1))
    # What Arrow filters travels whole.
    assert engine.to_arrow(scan.to_relation(engine)).num_rows == scan.to_arrow().num_rows
    by_format = spark.read.format("delta_orch").load(table.uri)
    for needs in (by_format.collect, lambda: spark.range(3).write.format("delta_orch").mode("append").save(table.uri)):
        with pytest.raises(Exception, match=r"(?s)not installed on the Spark workers.*Install delta-orch") as raised:
            needs()
        assert "No module named" not in str(raised.value)
        assert isinstance(explained(raised.value), MissingDependencyError)
    with pytest.raises(MissingDependencyError, match="The format delta_orch reads"):
        engine.to_arrow(by_format)
    assert table.version() == before
    spark.stop()
    say("without the package: what needs it says so")


def driver(master: str, scratch: Path) -> None:
    """A process of its own, killed once after its data files are written, before the commit."""
    spark = session(master, scratch)
    marker = scratch / "driver-killed"
    if not marker.exists():
        from delta_orch.log.write.transaction import Transaction

        def die(*_: object, **__: object) -> None:
            marker.touch()
            os.killpg(os.getpgrp(), signal.SIGKILL)

        Transaction.commit = die  # type: ignore[method-assign, assignment]
    DeltaTable(scratch / "driver").append(cluster_faults.rows_of(spark), txn=TxnId("nightly", 1))
    spark.stop()


def killed_driver(master: str, scratch: Path) -> None:
    table = DeltaTable(scratch / "driver")
    codes = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, __file__, str(scratch), "--driver", master],
            start_new_session=True,
            check=False,
            timeout=120,
        )
        codes.append(done.returncode)
    assert codes == [-signal.SIGKILL, 0, 0], codes
    cluster_faults.ensure_once(table, list(range(cluster_faults.ROWS)))
    assert table.version() == 0
    left = cluster_faults.ensure_tidy(table)
    assert left, "the first attempt left no file"
    say(f"driver killed between files and commit: {left} files left over")


def connect(spark: Any, port: int, scratch: Path) -> None:
    """A client of a Connect server whose executors are the cluster's."""
    from pyspark.sql.connect.session import SparkSession

    client = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    client.conf.set("spark.sql.session.timeZone", "UTC")
    scratch.mkdir()
    for line in cluster_faults.write_faults(client, scratch, short=True):
        say(f"Connect: {line}")
    for line in cluster_faults.read_faults(client, scratch):
        say(f"Connect: {line}")
    for line in cluster_faults.refusals(client, scratch):
        say(f"Connect: {line}")
    client.stop()


def main() -> None:
    # The cluster ends with this process, however that ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    scratch = Path(sys.argv[1])
    if "--driver" in sys.argv:
        driver(sys.argv[-1], scratch)
        return
    short = "--short" in sys.argv
    with standalone_cluster(scratch) as master:
        port = free_port()
        plugin = {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        spark = session(master, scratch, **({} if short else plugin))
        tables = make_tables(scratch)
        check(spark, tables)
        check_requests(spark, scratch / "requests")
        for line in cluster_faults.write_faults(spark, scratch, short=short):
            say(line)
        if not short:
            for lines in (cluster_faults.read_faults(spark, scratch), cluster_faults.refusals(spark, scratch)):
                for line in lines:
                    say(line)
            connect(spark, port, scratch / "connect")
        spark.stop()
        if not short:
            killed_driver(master, scratch)
            without_the_package(master, scratch)
    # The JVM outlives a session that was stopped, and so does what was compiled in it.
    check_requests(session("local[2]", scratch), scratch / "again")
    say("all well")


if __name__ == "__main__":
    main()
