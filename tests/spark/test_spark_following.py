"""DataFrames and views that follow the newest version, and those that stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, MissingFileError, SchemaMismatchError, UnsupportedError
from delta_orch.spark_source.batches import write_batches
from delta_orch.spark_source.errors import explained
from delta_orch.spark_source.options import parse_options
from tests.spark.spark_files import needs_streams

pytestmark = pytest.mark.spark

VIEW = "followed_view"


def ids(frame: Any) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": [1, 2, 3], "p": ["a", "a", "b"]})
    made.append(rows, partition_by=["p"], properties={"delta.enableDeletionVectors": "true"})
    return made


@pytest.fixture
def view(spark: Any, table: DeltaTable) -> Iterator[DeltaTable]:
    table.snapshot().scan().to_spark(spark, follow=True).createOrReplaceTempView(VIEW)
    yield table
    spark.catalog.dropTempView(VIEW)


def test_each_query_reads_the_newest_version(spark: Any, table: DeltaTable) -> None:
    frame = table.snapshot().scan(where="id < 100").to_spark(spark, follow=True)
    pinned = table.snapshot().scan().to_spark(spark)
    assert ids(frame) == [1, 2, 3]
    table.append(pa.table({"id": [4, 500], "p": ["b", "b"]}))
    table.delete("id = 1")
    assert ids(frame) == [2, 3, 4]
    assert (frame.count(), frame.where("p = 'b'").count(), pinned.count()) == (3, 2, 3)
    assert sorted(frame.toArrow().column("id").to_pylist()) == [2, 3, 4]
    assert sorted(r.id for r in frame.toLocalIterator()) == [2, 3, 4]
    assert sorted(frame.rdd.map(lambda row: row.id).collect()) == [2, 3, 4]
    table.overwrite(pa.table({"id": [7], "p": ["z"]}))
    assert (ids(frame), [r.p for r in frame.collect()], ids(pinned)) == ([7], ["z"], [1, 2, 3])


@pytest.mark.long
def test_a_view_follows_and_refresh_is_obeyed(spark: Any, view: DeltaTable) -> None:
    def rows(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text).collect()]

    assert rows(f"SELECT count(*), max(id) FROM {VIEW}") == [(3, 3)]
    view.append(pa.table({"id": [9], "p": ["b"]}))
    assert rows(f"SELECT count(*), max(id) FROM {VIEW}") == [(4, 9)]
    assert rows(f"SELECT id FROM {VIEW} WHERE id = (SELECT max(id) FROM {VIEW})") == [(9,)]
    assert rows(f"SELECT count(*) FROM {VIEW} a JOIN {VIEW} b ON a.id = b.id") == [(4,)]
    assert rows(f"SELECT count(*) FROM {VIEW} WHERE p IN (SELECT p FROM {VIEW} WHERE id = 9)") == [(2,)]
    spark.sql(f"CACHE TABLE {VIEW}")
    view.append(pa.table({"id": [10], "p": ["b"]}))
    assert rows(f"SELECT count(*) FROM {VIEW}") == [(4,)]
    spark.sql(f"REFRESH TABLE {VIEW}")
    assert rows(f"SELECT count(*) FROM {VIEW}") == [(5,)]
    spark.sql(f"UNCACHE TABLE {VIEW}")


@pytest.mark.long
def test_a_query_reads_one_version_while_others_commit(spark: Any, view: DeltaTable) -> None:
    """Each side of a join, and each subquery, is optimized by itself."""
    from delta_orch.engines.spark.replanned import FollowedScan

    asked = []
    newest = FollowedScan.newest_version

    def newest_and_commit(self: FollowedScan) -> int:
        version = newest(self)
        asked.append(version)
        view.append(pa.table({"id": [100 + version], "p": ["c"]}))
        return version

    FollowedScan.newest_version = newest_and_commit  # type: ignore[method-assign]
    try:
        other = view.snapshot().scan(where="id > 0").to_spark(spark, follow=True)
        other.createOrReplaceTempView("followed_too")
        text = (
            f"SELECT (SELECT count(*) FROM {VIEW}), (SELECT sum(id) FROM followed_too), count(*), sum(a.id) "
            f"FROM {VIEW} a JOIN followed_too b ON a.id = b.id"
        )
        for _ in range(3):
            counted, total, joined, joined_total = spark.sql(text).first()
            assert (counted, total) == (joined, joined_total)
    finally:
        FollowedScan.newest_version = newest  # type: ignore[method-assign]
        spark.catalog.dropTempView("followed_too")
    assert len(asked) == 3


def test_filters_reach_the_newest_scan(spark: Any, view: DeltaTable) -> None:
    """Files that hold no wanted row are not opened."""
    view.append(pa.table({"id": [50], "p": ["gone"]}))
    for file in Path(view.uri.removeprefix("file://")).glob("p=gone/*.parquet"):
        file.unlink()
    assert spark.sql(f"SELECT id FROM {VIEW} WHERE p = 'b'").collect() == [(3,)]
    assert spark.sql(f"SELECT id FROM {VIEW} WHERE id < 2").collect() == [(1,)]


@pytest.mark.long
def test_columns_that_change(spark: Any, view: DeltaTable) -> None:
    frame = view.snapshot().scan(columns=["id"]).to_spark(spark, follow=True)
    view.append(pa.table({"id": [4], "p": ["b"], "extra": ["x"]}), schema_mode="merge")
    assert ids(frame) == [1, 2, 3, 4]
    assert spark.sql(f"SELECT * FROM {VIEW}").columns == ["id", "p"]
    view.overwrite(pa.table({"id": ["text"], "p": ["a"]}), schema_mode="overwrite")
    with pytest.raises(Exception, match="Version 2 changed columns") as raised:
        frame.collect()
    assert isinstance(explained(raised.value), SchemaMismatchError)
    view.overwrite(pa.table({"other": [1], "p": ["a"]}), schema_mode="overwrite")
    with pytest.raises(Exception, match="Version 3 changed columns"):
        spark.sql(f"SELECT * FROM {VIEW}").collect()
    with pytest.raises(SchemaMismatchError, match="Version 3 changed columns"):
        view.append(frame)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["spark", "spark_connect"])
def test_files_that_vacuum_took_are_named(request: Any, kind: str, table: DeltaTable) -> None:
    session = request.getfixturevalue(kind)
    pinned = table.snapshot().scan().to_spark(session)
    table.overwrite(pa.table({"id": [7], "p": ["z"]}))
    for file in Path(table.uri.removeprefix("file://")).glob("p=[ab]/*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="p=") as raised:
        pinned.collect()
    named = explained(raised.value)
    assert isinstance(named, MissingFileError)
    assert "p=" in str(named.context["path"])
    with pytest.raises(MissingFileError):
        table.append(pinned)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as raised:
        session.sql("SELECT 1 / 0").collect()
    assert explained(raised.value) is None


@pytest.mark.long
def test_a_verb_reads_one_version_of_what_it_follows(spark: Any, view: DeltaTable, tmp_path: Path) -> None:
    frame = spark.sql(f"SELECT id, p FROM {VIEW}")
    view.append(pa.table({"id": [4], "p": ["b"]}))
    copy = DeltaTable(tmp_path / "copy")
    copy.append(frame)
    assert copy.snapshot().scan().count() == 4
    view.append(frame)
    assert view.snapshot().scan().count() == 8
    view.overwrite(frame.where("id <> 2"))
    assert sorted(view.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 1, 3, 3, 4, 4]


def test_where_it_cannot_follow(spark: Any, spark_connect: Any, table: DeltaTable) -> None:
    with pytest.raises(UnsupportedError, match="cannot follow"):
        table.snapshot().scan().to_spark(spark_connect, follow=True)
    with pytest.raises(InvalidRequestError, match="cannot follow a table"):
        parse_options({"path": table.uri, "Follow": "true"})
    frame = table.snapshot().scan().to_spark(spark, follow=True)
    frame.createOrReplaceGlobalTempView("followed_everywhere")
    other = spark.newSession()
    try:
        with pytest.raises(Exception, match="this session cannot follow the table"):
            other.sql("SELECT * FROM global_temp.followed_everywhere").collect()
        table.snapshot().scan().to_spark(other)
        assert ids(other.sql("SELECT * FROM global_temp.followed_everywhere")) == [1, 2, 3]
    finally:
        spark.catalog.dropGlobalTempView("followed_everywhere")


@pytest.mark.long
@needs_streams
def test_each_batch_of_a_stream_joins_the_newest_version(spark: Any, table: DeltaTable, tmp_path: Path) -> None:
    source, joined = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "joined")
    for number in (1, 2):
        source.append(pa.table({"id": [number], "n": [number]}))
    followed = table.snapshot().scan().to_spark(spark, follow=True)
    seen: list[tuple[int, str]] = []

    def batch(rows: Any, number: int) -> None:
        write_batches(joined)(rows, number)
        seen.extend((row["n"], row["p"]) for row in rows.collect())
        table.overwrite(pa.table({"id": [1, 2, 3], "p": [f"after {number}"] * 3}))

    stream = spark.readStream.format("delta_orch").option("maxFilesPerTrigger", 1).load(source.uri)
    writer = stream.join(followed, "id").writeStream.foreachBatch(batch).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert seen == [(1, "a"), (2, "after 0")]
    assert sorted(joined.snapshot().scan().to_arrow()["p"].to_pylist()) == ["a", "after 0"]
