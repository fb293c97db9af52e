"""What the log knows answers a query, or plans it: counts without files, sizes after pruning, one index a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import host_for
from tests.handmade import HandmadeTable, inline_vector

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])


def table_with_vectors(root: Path, *, stats: bool = True) -> DeltaTable:
    """Four files of ten rows in partitions a, b and NULL; the file in b has two rows marked."""
    made = HandmadeTable(root)
    made.create(SCHEMA, reader_features=("deletionVectors",), partition_by=("p",))
    for number, p in enumerate(("a", "b", None, "a")):
        vector = {"deletion_vector": inline_vector(1, 9)} if p == "b" else {}
        rows = pa.table({"id": range(10 * number, 10 * number + 10)})
        made.commit(made.add(f"f{number}.parquet", rows, partition_values={"p": p}, stats=stats, **vector))
    return made.open()


COUNTS = [(None, 38), ("p = 'a'", 20), ("p = 'b'", 8), ("p IS NULL", 10), ("p <> 'a'", 8), ("upper(p) = 'B'", 8)]


def test_counts_open_no_file(spark: Any, tmp_path: Path) -> None:
    table = table_with_vectors(tmp_path / "t")
    frames = []
    for where, _ in COUNTS:
        frame = table.snapshot().scan().to_spark(spark)
        frames.append(frame if where is None else frame.where(where))
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    for frame, (where, expected) in zip(frames, COUNTS, strict=True):
        assert frame.count() == expected, where
        if where is None or "upper" not in where:
            assert table.snapshot().scan(where=where).count() == expected
    view = frames[0]
    view.createOrReplaceTempView("counted_by_the_log")
    assert spark.sql("SELECT count(*) AS n, count(1) AS m FROM counted_by_the_log").collect() == [(38, 38)]
    assert spark.sql("SELECT count(*) FROM counted_by_the_log WHERE false").collect() == [(0,)]
    spark.catalog.dropTempView("counted_by_the_log")


def test_counts_that_the_log_does_not_know_read_the_rows(spark: Any, tmp_path: Path) -> None:
    table = table_with_vectors(tmp_path / "t")
    frame = table.snapshot().scan().to_spark(spark)
    assert frame.where("id >= 15").count() == table.snapshot().scan(where="id >= 15").count() == 24
    assert frame.where("p = 'a' OR id = 12").count() == table.snapshot().scan(where="p = 'a' OR id = 12").count() == 21
    assert frame.selectExpr("count(p)").collect() == [(28,)]
    assert frame.selectExpr("count(DISTINCT p)", "count(*)").collect() == [(2, 38)]
    assert frame.selectExpr("count(*) FILTER (WHERE id < 5)").collect() == [(5,)]
    assert sorted(tuple(r) for r in frame.groupBy("p").count().collect() if r[0]) == [("a", 20), ("b", 8)]
    assert frame.limit(3).count() == 3
    assert frame.join(frame, "id").count() == 38
    assert frame.join(frame.where("id < 5"), "id", "left_anti").count() == 33
    assert frame.unionAll(frame).count() == 76
    unknown = table_with_vectors(tmp_path / "u", stats=False)
    assert unknown.snapshot().scan().to_spark(spark).count() == unknown.snapshot().scan().count() == 38


def test_count_is_that_of_the_frames_version(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2, 3]}))
    frame = table.snapshot().scan().to_spark(spark)
    table.append(pa.table({"id": [4]}))
    table.delete("id = 1")
    assert (frame.count(), table.snapshot().scan().to_spark(spark).count(), table.snapshot().scan().count()) == (
        3,
        3,
        3,
    )
    assert table.snapshot().scan(columns=["id"]).to_spark(spark).where("id > 2").count() == 2
    assert table.snapshot().scan(where="id > 100").count() == 0


def test_the_planner_hears_of_the_size_after_pruning(spark: Any, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(SCHEMA)
    for number in range(4):
        ids = pa.table({"id": range(10 * number, 10 * number + 10), "p": ["x"] * 10})
        add = made.add(f"f{number}.parquet", ids)
        bounds = {"minValues": {"id": 10 * number}, "maxValues": {"id": 10 * number + 9}, "nullCount": {"id": 0}}
        stats = json.dumps({"numRecords": 10, **bounds})
        # To the planner, each is a large file.
        object.__setattr__(add, "size", 20 << 20)
        object.__setattr__(add, "stats", stats)
        made.commit(add)
    frame = made.open().snapshot().scan().to_spark(spark)
    plans = [rows._jdf.queryExecution().optimizedPlan() for rows in (frame, frame.where("id = 5"))]
    sizes = [int(plan.stats().sizeInBytes()) for plan in plans]
    assert sizes[1] * 3 < sizes[0]


def test_frames_of_one_version_share_an_index(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": range(5), "p": ["x"] * 5}))
    table.append(pa.table({"id": range(5), "p": ["y"] * 5}))
    snapshot = table.snapshot()
    bridge = host_for(spark)._bridge  # type: ignore[attr-defined]
    before = len(bridge._indexes)
    first, second = snapshot.scan().to_spark(spark), snapshot.scan(columns=["id"]).to_spark(spark)
    assert len(bridge._indexes) == before + 1
    assert [len(known) for known in bridge._indexes.values()][-1] == 1
    assert (first.where("id = 4").count(), second.where("id = 4").count()) == (2, 2)
    parts = [task.to_relation(host_engine(spark)).count() for task in snapshot.scan().tasks(1)]
    assert parts == [5, 5]


def host_engine(spark: Any) -> Any:
    from delta_orch.engines.spark.engine import SparkEngine

    return SparkEngine(spark)
