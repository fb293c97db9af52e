"""Every path that a log may hold is the same file on Spark as in process."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import MissingFileError, ProtocolViolationError
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.log_model import one_spelling
from tests.harness.row_multiset import ensure_same_rows

pytestmark = pytest.mark.spark

SCHEMA = StructType((StructField("id", LONG), StructField("p", STRING)))
SEGMENTS = (
    "time=1971-07-22T03:06:40.000000Z", "a b", "a:b", "1:2", "-:x", "p=x:y", "50%", "a%20b", "%", "#x", "q?", "ü",
    "日本", "😀", "back\\slash", "[br]", "g*", "{a,b}", "x..y", "~t", "|^`", "quote'\"", "new\nline", "tab\t",
    "ctrl\x01", "nbsp\u00a0", "e\u0301", "\u00e9", "a+b&c=d;e,f@g!$()", " lead", "trail ", "a//b", "a/./b", ".d/x",
    "_d/x",
)  # fmt: skip
HIDDEN = (".dot", "_under", "_metadata", "p=x/_y", "x._COPYING_", "_metadata=1", ".a:b")


def made(root: Path, names: list[str], *, absolute: bool = False) -> HandmadeTable:
    """A table with a file of each name: three rows, of which one is deleted in every second file."""
    table = HandmadeTable(root)
    table.create(SCHEMA, reader_features=("deletionVectors",), partition_by=("p",))
    adds = []
    for number, name in enumerate(names):
        table.file(name, pa.table({"id": [3 * number + i for i in range(3)]}))
        given: dict[str, Any] = {"partition_values": {"p": f"p{number % 3}"}}
        if number % 2:
            given["deletion_vector"] = inline_vector(1)
        add = table.add(name, **given)
        adds.append(replace(add, path=f"file://{quote(str(root))}/{quote(name)}") if absolute else add)
    table.commit(*adds)
    return table


def generated(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    names = [f"{'/'.join(draw.sample(SEGMENTS, draw.choice((1, 1, 2))))}{i}.parquet" for i in range(count)]
    return [*(f"{segment}{i}" for i, segment in enumerate(SEGMENTS)), *names]


@pytest.mark.long
@pytest.mark.parametrize("absolute", [False, True])
def test_generated_paths_are_the_same_files(engine: SparkEngine, tmp_path: Path, absolute: bool) -> None:
    table = made(tmp_path / "a table", generated(7, 9), absolute=absolute).open()
    for where in (None, "p = 'p1'"):
        scan = table.snapshot().scan(where=where)
        ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())


@pytest.mark.long
def test_names_that_spark_hides(engine: SparkEngine, tmp_path: Path) -> None:
    for number, name in enumerate(HIDDEN):
        scan = made(tmp_path / f"t{number}", ["seen", name]).open().snapshot().scan()
        if engine.host.is_time_zone_pinned:
            ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())
        else:
            with pytest.raises(MissingFileError, match="hidden"):
                scan.to_relation(engine)


@pytest.mark.long
def test_verbs_and_feed_of_such_a_table(spark: Any, tmp_path: Path) -> None:
    names = ["time=03:06:40Z/a b.parquet", "p=1:2/50%.parquet", "#?/[x]:*.parquet", "a:b.parquet", "ü{1}\\.parquet"]
    table = made(tmp_path / "t", names).open()
    table.alter().set_properties({"delta.enableChangeDataFeed": "true"}).commit()
    start = table.version()
    engine = SparkEngine(spark)
    table.delete("id % 3 = 0 AND p = 'p0'", engine="spark")
    table.update({"id": "id + 100"}, where="p = 'p1'", engine="spark")
    source = pa.table({"id": [8, 500], "p": ["p2", "p9"]})
    merge = table.merge(source, "target.id = source.id", engine="spark")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    table.optimize(engine="spark")
    scan = table.snapshot().scan()
    ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())
    feed = table.changes(starting_version=start + 1)
    ensure_same_rows(engine.to_arrow(feed.to_relation(engine)), feed.to_arrow())
    table.vacuum(retention_hours=0, enforce_retention=False)
    assert table.snapshot().scan().to_arrow().num_rows == scan.to_arrow().num_rows


@pytest.mark.long
def test_a_connect_frame_lists_only_what_its_filters_leave(spark_connect: Any, tmp_path: Path) -> None:
    from pyspark.sql.connect import functions as f

    table = DeltaTable(tmp_path / "t")
    for number in range(4):
        table.append(pa.table({"id": [2 * number, 2 * number + 1], "p": [f"p{number}", None]}))
    frame = table.snapshot().scan().to_spark(spark_connect)
    assert len(frame.where("id >= 6").inputFiles()) == 1
    conditions: list[tuple[Any, int, int]] = [
        ("id = 5", 1, 1), ("p LIKE 'p1%'", 1, 1), ("id + 0 = 5", 1, 4), (f.col("id") == 5, 1, 1),
        ((frame.id < 2) | (frame["ID"] > 6), 3, 2), (f.col("p").isin("p0", "p3"), 2, 2),
        (f.col("p").startswith("p2"), 1, 1), (~(f.col("id") <= 5), 2, 1), (f.col("id") == "5", 1, 4),
        (f.lit(5) < f.col("id"), 2, 1), (f.col("p").isNull(), 4, 4), (f.col("id").isNull(), 0, 0),
        (f.col("id") > 2.5, 5, 4),
    ]  # fmt: skip
    for condition, num_rows, num_files in conditions:
        rows = frame.where(condition)
        assert (rows.count(), len(rows.inputFiles())) == (num_rows, num_files), condition
        both = frame.where(condition).filter(f.col("p").isNotNull()).where("id > 1")
        assert both.count() == frame.select("*").where(condition).where("p IS NOT NULL AND id > 1").count()
    joined = frame.alias("a").join(frame.where(frame.id > 5).alias("b"), f.col("a.id") == f.col("b.id"))
    assert joined.count() == 2
    assert frame.schema == frame.select("*").schema


@pytest.mark.parametrize("spelled", ["./{}", "x/../{}", "{root}/{}", "file:{root}/{}", "f%2Eparquet", "f.parquet"])
def test_a_file_that_the_log_names_twice_is_refused(engine: SparkEngine, tmp_path: Path, spelled: str) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(SCHEMA)
    first = made.add("f.parquet", pa.table({"id": [1], "p": ["a"]}))
    made.commit(first, made.add("g.parquet", pa.table({"id": [2], "p": ["b"]})))
    assert engine.to_arrow(made.open().snapshot().scan().to_relation(engine)).num_rows == 2
    again = replace(first, path=spelled.format("f.parquet", root=tmp_path / "table"))
    made.commit(again)
    scan = made.open().snapshot().scan()
    if one_spelling(again.path) == first.path:  # The log itself knows that these are one.
        assert engine.to_arrow(scan.to_relation(engine)).num_rows == 2
        return
    with pytest.raises(ProtocolViolationError, match=r"names the file .*f\.parquet twice"):
        engine.to_arrow(scan.to_relation(engine))
