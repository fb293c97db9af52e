"""Spark and a table of a catalog: the engine, the format, a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from delta_orch import DeltaTable
from tests.harness.emulators import s3_emulator
from tests.harness.unity_emulator import UnityEmulator, unity_emulator

pytestmark = pytest.mark.spark
URI = "uc://main.default.t"


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[UnityEmulator]:
    with unity_emulator(tmp_path) as emulator:
        yield emulator
        emulator.ensure_lawful()


def test_the_engine_writes_and_reads(spark: SparkSession, unity: UnityEmulator) -> None:
    table = DeltaTable(URI, unity.options)
    table.append(spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, name STRING"))
    table.upsert(spark.createDataFrame([(2, "q"), (3, "c")], "id BIGINT, name STRING"), ["id"])
    table.delete("id = 1", engine="spark")
    table.update({"name": "upper(name)"}, where="id = 3", engine="spark")
    rows = table.snapshot().scan().to_spark(spark).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(2, "q"), (3, "C")]
    assert table.snapshot().scan().to_arrow().num_rows == 2
    assert unity.table("main.default.t").latest == 3


def test_the_format(spark: SparkSession, unity: UnityEmulator, tmp_path: Path) -> None:
    for name in (URI, "uc://main.default.copy"):
        DeltaTable(name, unity.options).create("id BIGINT")
    frame = spark.createDataFrame([(1,), (2,)], "id BIGINT")
    frame.write.format("delta_orch").mode("append").option("storageOptions", json.dumps(unity.options)).save(URI)
    frame.write.format("delta_orch").mode("append").option("storageOptions", json.dumps(unity.options)).save(URI)
    read = spark.read.format("delta_orch").option("storageOptions", json.dumps(unity.options))
    assert read.load(URI).count() == 4
    assert read.option("versionAsOf", "1").load(URI).count() == 2
    stream = spark.readStream.format("delta_orch").option("storageOptions", json.dumps(unity.options)).load(URI)
    _copy(stream, unity, tmp_path)
    DeltaTable(URI, unity.options).append(pa.table({"id": [3]}))
    _copy(stream, unity, tmp_path)
    copied = DeltaTable("uc://main.default.copy", unity.options).snapshot().scan().to_arrow()["id"].to_pylist()
    assert sorted(copied) == [1, 1, 2, 2, 3]


def _copy(stream: DataFrame, unity: UnityEmulator, tmp_path: Path) -> None:
    """What is new goes into the table `copy`."""
    writer = stream.writeStream.format("delta_orch").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("storageOptions", json.dumps(unity.options)).trigger(availableNow=True)
    query.start("uc://main.default.copy").awaitTermination()


def test_executors_ask_for_credentials_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """The plan that they get holds none."""
    with s3_emulator() as s3, unity_emulator(tmp_path, f"{s3.root}{tmp_path.name}") as unity:
        unity.vended = {"s3.access-key-id": "vended-key-0", "s3.secret-access-key": "vended-secret-0"}
        options = unity.options | {"endpoint_url": s3.endpoint, "region": "us-east-1"}
        table = DeltaTable(URI, options)
        table.create("id BIGINT")
        table.append(pa.table({"id": [1, 2]}))
        asked = unity.requests["getTableCredentials"]
        frame = spark.read.format("delta_orch").option("storageOptions", json.dumps(options)).load(URI)
        assert frame.count() == 2
        assert unity.requests["getTableCredentials"] > asked + 1, "the driver and a task"
        frame.write.format("delta_orch").mode("append").option("storageOptions", json.dumps(options)).save(URI)
        assert DeltaTable(URI, options).snapshot().scan().to_arrow().num_rows == 4
        unity.ensure_lawful()
