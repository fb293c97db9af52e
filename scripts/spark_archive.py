"""Writes `.venv/spark.jsa`: the classes that a Spark session loads, as the JVM keeps them once it has read them.

    python scripts/spark_archive.py

A JVM that is given the archive starts a session with half the work. The demo and the tests start dozens, and name it
in `JDK_JAVA_OPTIONS`. A JVM of another version, or with other JARs, leaves it aside.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from delta_orch import DeltaTable

ARCHIVE = Path(sys.prefix) / "spark.jsa"


def main() -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("JDK_JAVA_OPTIONS", None)  # It may name an archive.
    # What is not whole has no reader: a JVM takes an archive by its head.
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as scratch:
        made = Path(scratch) / "spark.jsa"
        session = (
            SparkSession.builder.master("local[1]")
            .config("spark.driver.extraJavaOptions", f"-Xlog:disable -XX:+UseSerialGC -XX:ArchiveClassesAtExit={made}")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", scratch)
            .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", "0")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        use(session, Path(scratch) / "table")
        jvm = SparkContext._gateway.proc
        session.stop()
        # The JVM writes the archive when it ends, and it ends with its input.
        jvm.stdin.close()
        try:
            jvm.wait(timeout=300)
        finally:
            jvm.kill()
        made.replace(ARCHIVE)


def use(session: SparkSession, table_path: Path) -> None:
    """Load what the sessions of pipelines load."""
    table = DeltaTable(table_path)
    rows = session.createDataFrame([(1, "a"), (2, "b")], ["id", "text"])
    table.append(rows.groupBy("id", "text").count())
    frame = table.snapshot().scan().to_spark(session)
    frame.where("id = 1").join(rows, "id").orderBy("id").collect()
    table.overwrite(frame.selectExpr("id", "upper(text) AS text", "count"))


if __name__ == "__main__":
    main()
