"""Credentials of a store are in nothing that Spark tells others: plans, the event log, checkpoints of streams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.host import HIDDEN
from delta_orch.spark_source.options import REDACTION
from delta_orch.storage.local import LocalStore
from tests.spark.spark_files import needs_streams

pytestmark = pytest.mark.spark

SECRETS = {"aws_access_key_id": "hush-id", "aws_secret_access_key": "hush-key"}


@pytest.fixture
def event_log(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """What `spark.eventLog.enabled` would write, from the listener that writes it."""
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    conf = context.conf().clone()
    for key in ("compress", "rolling.enabled"):
        conf.set(f"spark.eventLog.{key}", "false")
    directory = tmp_path / "events"
    directory.mkdir()
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "app", jvm.scala.Option.empty(), jvm.java.net.URI(directory.as_uri()), conf
    )
    listener.start()
    context.addSparkListener(listener)
    yield directory
    context.removeSparkListener(listener)
    listener.stop()


@pytest.mark.long
@needs_streams
def test_the_event_log_and_checkpoints_hold_no_credentials(
    spark: Any, tmp_path: Path, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an object store gives Spark's own reader and writer.
    monkeypatch.setattr(LocalStore, "hadoop_options", lambda _: {"fs.s3a.secret.key": "hush-hadoop"})
    table = DeltaTable(tmp_path / "t", SECRETS)
    table.append(spark.range(10))
    table.snapshot().scan().to_spark(spark).where("id > 3").collect()
    table.snapshot().scan().to_spark(spark, follow=True).where("id > 3").collect()
    table.upsert(spark.range(5, 15), ["id"])
    options = {"storageOptions": json.dumps(SECRETS)}
    frame = spark.read.format("delta_orch").options(**options).load(table.uri)
    assert frame.count() == 15
    frame.limit(1).write.format("delta_orch").mode("append").options(**options).save(str(tmp_path / "copy"))
    stream = spark.readStream.format("delta_orch").options(**options).load(table.uri)
    writer = stream.writeStream.format("delta_orch").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "sunk")).awaitTermination()
    assert DeltaTable(tmp_path / "sunk").snapshot().scan().count() == 15
    with pytest.raises(Exception, match="nothing") as raised:
        spark.read.format("delta_orch").options(**options, columns="nothing").load(table.uri)
    assert "hush" not in str(raised.value)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    written = [p for d in (event_log, tmp_path / "checkpoint") for p in d.rglob("*") if p.is_file()]
    texts = [path.read_bytes() for path in written]
    assert any(b"SparkListenerSQLExecutionStart" in text for text in texts)
    assert any(b"SparkListenerJobStart" in text for text in texts)
    assert not [path for path, text in zip(written, texts, strict=True) if b"hush" in text]


@pytest.mark.long
def test_what_connect_tells_of_queries_holds_no_credentials(
    spark: Any, spark_connect: Any, tmp_path: Path, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, (setting, other) = spark_connect, HIDDEN
    session.conf.set(setting, "of the user")
    try:
        told = {"fs.s3a.secret.key": "hush-1", "fs.azure.account.key.a.dfs.core.windows.net": "hush-2"}
        monkeypatch.setattr(LocalStore, "hadoop_options", lambda _: told)
        table = DeltaTable(tmp_path / "t", SECRETS)
        table.append(session.range(10))
        assert table.snapshot().scan().to_spark(session).where("id > 3").count() == 6
        # Of the format this package sees nothing before the server does: the user has to say it.
        assert session.conf.get(setting) == f"of the user|{REDACTION}"
        options = {"storageOptions": json.dumps({**SECRETS, "more": '{"key": "hush {3}"}'})}
        frame = session.read.format("delta_orch").options(**options).load(table.uri)
        frame.limit(1).write.format("delta_orch").mode("append").options(**options).save(str(tmp_path / "copy"))
        view = f"CREATE OR REPLACE TEMPORARY VIEW hushed USING delta_orch OPTIONS (path '{table.uri}', "
        session.sql(f"{view}storageOptions '{json.dumps(SECRETS)}')")
        assert session.table("hushed").count() == 10
    finally:
        session.conf.unset(setting)
        session.conf.unset(other)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    texts = [path.read_text() for path in event_log.rglob("*") if path.is_file()]
    assert any("SparkListenerConnectOperationStarted" in text for text in texts)
    assert not [found for text in texts for found in re.findall(r".{99}hush[- ].{9}", text)]
    assert REDACTION in (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def test_a_new_reader_needs_no_credentials_in_the_plan(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t", SECRETS)
    table.append(pa.table({"id": [1]}))
    rows = table.snapshot().scan().to_spark(spark)
    modes = spark._jvm.org.apache.spark.sql.execution.ExplainMode
    for mode in ("extended", "formatted", "codegen", "cost"):
        assert "hush" not in rows._jdf.queryExecution().explainString(modes.fromString(mode))
