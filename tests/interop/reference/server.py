"""Delta on Spark behind a pipe: one JSON request a line on stdin, one answer a line on stdout, with the number
of its request.

Runs in an environment of its own (`scripts/setup_reference.sh`), so it imports nothing of delta_orch.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def start(jars: str, scratch: str) -> SparkSession:
    settings = {
        "spark.jars": ",".join(sorted(map(str, Path(jars).glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # It knows fewer properties than there are, `delta.targetFileSize` not among them.
        "spark.databricks.delta.allowArbitraryProperties.enabled": "true",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.checksum.writeEnabled": "true",
        "spark.databricks.delta.checksumVerification.fatal": "true",
        # Tables of a few rows: to compile a query costs a hundred times what it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("reference")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def answer(session: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for statement in request.get("sql", []):
        rows = session.sql(statement).collect()
    if "output" in request:
        session.sql(request["query"]).coalesce(1).write.mode("overwrite").parquet(request["output"])
    return {"rows": [row.asDict(recursive=True) for row in rows] if request.get("want_rows") else None}


def main() -> None:
    session = start(*sys.argv[1:])
    reply(0, {"version": session.version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply(request["number"], answer(session, request))
        except Exception as e:  # noqa: BLE001 - whatever it is, the client must hear of it
            reply(request["number"], {"error": f"{type(e).__name__}: {str(e)[:4000]}"})
    session.stop()


def reply(number: int, value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"number": number, **value}, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
