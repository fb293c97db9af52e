"""`df.write`, `readStream` and `writeStream` with the format `delta_orch`: each row once, whatever Spark repeats."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import datasource

from delta_orch import DeltaTable, column, identity_column
from delta_orch.engines.file_schema import as_nullable
from delta_orch.errors import ConstraintViolationError, MissingDependencyError
from delta_orch.spark_source.batches import write_batches
from delta_orch.spark_source.errors import explained
from tests.spark.spark_files import needs_streams

pytestmark = pytest.mark.spark


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "my table")


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist())


def write(rows: Any, table: DeltaTable, mode: str = "append", **options: Any) -> None:
    rows.write.format("delta_orch").mode(mode).options(**options).save(table.uri)


def test_batch_writes(spark: Any, table: DeltaTable) -> None:
    session = spark
    rows = session.range(6).selectExpr("id", "concat('p ', id % 2) AS p")
    write(
        rows, table, partitionBy="p", **{"delta.appendOnly": "false"}, txnAppId="job", txnVersion=7, userMetadata="hi"
    )
    snapshot = table.snapshot()
    assert (snapshot.partition_columns, dict(snapshot.txns)) == (("p",), {"job": 7})
    assert table.history(1)[0].user_metadata == "hi"
    assert sum(json.loads(f)["numRecords"] for f in snapshot.files(["stats"])["stats"].to_pylist()) == 6
    # A txn that is recorded is written no second time.
    write(rows, table, txnAppId="job", txnVersion=7)
    assert table.version() == 0
    write(session.range(10, 12).selectExpr("id", "'p 0' AS p"), table, "overwrite", replaceWhere="p = 'p 0'")
    assert ids(table) == [1, 3, 5, 10, 11]
    write(session.range(20, 21).selectExpr("id", "'p 1' AS p"), table, "overwrite", partitionOverwriteMode="dynamic")
    assert ids(table) == [10, 11, 20]
    write(session.range(30, 31).selectExpr("id", "'p 1' AS p", "array(1.5D) AS more"), table, mergeSchema="true")
    assert table.snapshot().schema.names == ("id", "p", "more")
    write(session.range(2), table, "overwrite", overwriteSchema="true", partitionBy="[]")
    assert (ids(table), table.snapshot().schema.names) == ([0, 1], ("id",))
    # As `append` does, and the reference: what Spark says of nulls is derived, not meant.
    write(rows.selectExpr("struct(1 AS a) AS st"), table, "overwrite", overwriteSchema="true")
    assert table.snapshot().schema == as_nullable(table.snapshot().schema)
    write(session.range(2), table, "overwrite", overwriteSchema="true")
    # An order of the rows is for the engines that write a table themselves; tasks keep theirs.
    table.alter().cluster_by("id").set_properties({"delta_orch.clusterOnWrite": "true"}).commit()
    write(session.range(5, 9), table)
    assert ids(table) == [0, 1, 5, 6, 7, 8]


@pytest.mark.long
def test_all_tasks_of_a_write_tell_one_moment(spark: Any, table: DeltaTable, tmp_path: Path) -> None:
    session = spark
    table.create([column("id", "bigint"), column("at", "timestamp", default="current_timestamp()")])

    def moments() -> dict[int, Any]:
        return {row["id"]: row["at"] for row in table.snapshot().scan().to_arrow().to_pylist()}

    write(session.range(0, 4, 1, 4), table)
    assert len(moments()) == 4
    assert len(set(moments().values())) == 1
    # The commit is planned anew, at the moment of the rows.
    write(session.range(10, 14, 1, 4), table, "overwrite", replaceWhere="at >= current_timestamp() - INTERVAL 1 HOUR")
    assert sorted(moments()) == [10, 11, 12, 13]
    assert len(set(moments().values())) == 1
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        session.range(20, 24).write.parquet(str(tmp_path / "rows"))
        stream = session.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")).repartition(4)
        sink = stream.writeStream.format("delta_orch").option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start(table.uri).awaitTermination()
        assert len({moments()[key] for key in range(20, 24)}) == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["spark", "spark_connect"])
def test_the_session_says_which_partitions_an_overwrite_replaces(
    request: pytest.FixtureRequest, table: DeltaTable, kind: str
) -> None:
    session = request.getfixturevalue(kind)
    for _ in range(2):
        write(session.range(6).selectExpr("id", "id % 2 AS p"), table, partitionBy="p", txnAppId="job", txnVersion=7)
    assert (ids(table), table.version()) == ([0, 1, 2, 3, 4, 5], 0)
    name = "spark.sql.sources.partitionOverwriteMode"
    session.conf.set(name, "DYNAMIC")
    try:
        write(session.range(10, 11).selectExpr("id", "0L AS p"), table, "overwrite")
        assert ids(table) == [1, 3, 5, 10]
        write(session.range(0).selectExpr("id", "0L AS p"), table, "overwrite")
        assert ids(table) == [1, 3, 5, 10]
        # What an option says goes before; so does what leaves nothing to decide.
        write(session.range(0).selectExpr("id", "0L AS p"), table, "overwrite", replaceWhere="p = 0")
        assert ids(table) == [1, 3, 5]
        write(session.range(2).selectExpr("id", "id AS p"), table, "overwrite", partitionOverwriteMode="static")
        assert ids(table) == [0, 1]
        write(session.range(3), table, "overwrite", overwriteSchema="true", partitionBy="[]")
        write(session.range(2), table, "overwrite")
        assert ids(table) == [0, 1]
    finally:
        session.conf.unset(name)


def test_a_thread_of_ones_own(spark: Any, table: DeltaTable) -> None:
    def after() -> None:
        spark.createDataFrame([(0,)], "a int")
        write(spark.range(2, 3), table)

    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(write, spark.range(1), table).exception()
        assert refused is not None
        assert isinstance(explained(refused), MissingDependencyError)
        thread.submit(after).result()
    assert ids(table) == [2]


@pytest.mark.long
def test_what_the_format_does_not_write(spark: Any, table: DeltaTable) -> None:
    rows = spark.range(3)
    table.append(rows)
    table.alter().add_constraint("low", "id < 3").commit()
    files = len([f for f in table.store.list_recursive() if f.path.endswith(".parquet")])
    for frame, options, text in (
        (rows.selectExpr("INTERVAL 1 DAY AS i"), {}, "column i of type interval day, which no table has"),
        (rows, {"replaceWhere": "id = 1"}, "those of an overwrite"),
        (rows.selectExpr("CAST(id AS STRING) AS id"), {}, "id is string, the table has long"),
    ):
        with pytest.raises(Exception, match=text):
            write(frame, table, **options)
    assert len([f for f in table.store.list_recursive() if f.path.endswith(".parquet")]) == files
    with pytest.raises(Exception, match="CHECK constraint low") as violated:
        write(spark.range(5), table)
    assert isinstance(explained(violated.value), ConstraintViolationError)
    with pytest.raises(Exception, match=r"(?s)saveAsTable and INSERT INTO need one.*DeltaTable"):
        rows.write.format("delta_orch").mode("append").saveAsTable("nowhere")
    assert table.version() == 1
    numbered = DeltaTable(table.uri.removesuffix("table") + "numbers")
    numbered.create([identity_column("n"), column("id", "long")])
    with pytest.raises(Exception, match="writes no identity columns"):
        write(rows, numbered)


def run(stream: Any, table: DeltaTable, checkpoint: Path, *, fails: str | None = None, **options: Any) -> None:
    writer = stream.writeStream.format("delta_orch").option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start(table.uri)
    if fails is None:
        query.awaitTermination()
        return
    with pytest.raises(Exception, match=fails):
        query.awaitTermination()


@pytest.mark.long
@needs_streams
def test_a_stream_from_a_table_into_a_table(spark: Any, table: DeltaTable, tmp_path: Path) -> None:
    source, checkpoint = DeltaTable(tmp_path / "source"), tmp_path / "checkpoint"
    for start in (0, 2, 4):
        source.append(pa.table({"id": [start, start + 1]}))

    def stream(**options: Any) -> Any:
        return spark.readStream.format("delta_orch").options(**options).load(source.uri)

    run(stream(maxFilesPerTrigger=1), table, checkpoint)
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    # Killed after the commit to the table, before Spark's own: the batch comes again, and is not taken again.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    version = table.version()
    run(stream(), table, checkpoint)
    assert (ids(table), table.version()) == ([0, 1, 2, 3, 4, 5], version)
    # Killed before the commit to the table: the batch is planned, and written when the query runs again.
    source.append(pa.table({"id": [6]}))
    table.alter().add_constraint("low", "id < 6").commit()
    run(stream(), table, checkpoint, fails="CHECK constraint low")
    table.alter().drop_constraint("low").commit()
    run(stream(), table, checkpoint)
    assert ids(table) == [0, 1, 2, 3, 4, 5, 6]
    source.delete("id = 3")
    run(stream(), table, checkpoint, fails="deletes rows that the stream may have read|changes rows")


@pytest.mark.long
@needs_streams
def test_for_each_batch_and_a_complete_result(spark: Any, table: DeltaTable, tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(pa.table({"id": [1, 2, 2]}), properties={"delta.enableChangeDataFeed": "true"})

    def upsert(table: DeltaTable, rows: Any, txn: Any) -> None:
        # A batch that fails after its commit is given again.
        table.upsert(rows.select("id").distinct(), ["id"], txn=txn)
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("killed")

    table.create(pa.schema([("id", pa.int64())]))
    stream = spark.readStream.format("delta_orch").option("readChangeFeed", "true").load(source.uri)
    for _ in range(2):
        writer = stream.writeStream.foreachBatch(write_batches(table, upsert))
        query = writer.option("checkpointLocation", str(tmp_path / "a")).trigger(availableNow=True).start()
        with suppress(StreamingQueryException):
            query.awaitTermination()
    assert (ids(table), table.version()) == ([1, 2], 1)

    counts = DeltaTable(tmp_path / "counts")
    plain = spark.readStream.format("delta_orch").load(source.uri)
    for _ in range(2):
        writer = plain.groupBy("id").count().writeStream.format("delta_orch").outputMode("complete")
        options = {"checkpointLocation": str(tmp_path / "b")}
        writer.options(**options).trigger(availableNow=True).start(counts.uri).awaitTermination()
        source.append(pa.table({"id": [2]}))
    assert sorted(counts.snapshot().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "count": 1},
        {"id": 2, "count": 3},
    ]


def test_credentials_are_in_no_plan(spark: Any, table: DeltaTable) -> None:
    table.append(pa.table({"id": [1]}))
    options = json.dumps({"aws_secret_access_key": "hush-hush"})
    frame = spark.read.format("delta_orch").option("storageOptions", options).load(table.uri)
    assert "hush" not in frame._jdf.queryExecution().toString() + str(frame)
    assert "hush" not in frame._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )
