"""Intervals and shapes on Spark: the numbers of the files, and WKB; written and read as the local engine does."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import InvalidExpressionError, SchemaMismatchError
from tests.harness.row_multiset import ensure_same_rows
from tests.spark.spark_files import on_every_session

pytestmark = pytest.mark.spark

POINT = struct.pack("<BIdd", 1, 1, 8.5, 47.4)
INTERVALS = (column("id", "bigint"), column("late", "interval year to month"), column("took", "interval day to second"))
ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "late": pa.array([-18, None], pa.int32()),
        "took": pa.array([-86_401_000_001, None], pa.int64()),
    }
)
IN_STRUCT = pa.struct([("a", pa.binary()), ("b", pa.list_(pa.int64()))])


@on_every_session
@pytest.mark.parametrize("partition_by", [(), ("late", "took")], ids=["plain", "partitioned"])
def test_intervals(engine: SparkEngine, tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    session = engine.host.session
    table = DeltaTable(tmp_path / "t")
    table.create(INTERVALS, partition_by=list(partition_by))
    table.append(session.createDataFrame(ROWS))
    table.append(
        session.sql(
            "SELECT 3L AS id, CAST(CAST(INTERVAL '1-6' YEAR TO MONTH AS INTERVAL MONTH) AS INT) AS late, "
            "CAST(1000000 * CAST(CAST(INTERVAL '-1 00:00:01.5' DAY TO SECOND AS INTERVAL SECOND) AS DECIMAL(18,6))"
            " AS BIGINT) AS took"
        )
    )
    expected = pa.concat_tables([ROWS, pa.table([[3], [18], [-86_401_500_000]], ROWS.schema)])
    ensure_same_rows(table.snapshot().scan().to_arrow(), expected)
    ensure_same_rows(engine.to_arrow(table.snapshot().scan().to_relation(engine)), expected)
    found = table.snapshot().scan(["id"], where="late IS NULL").to_relation(engine)
    assert engine.to_arrow(found)["id"].to_pylist() == [2]
    for value in ("INTERVAL '1' DAY AS took", "INTERVAL '1' YEAR AS late"):
        with pytest.raises(SchemaMismatchError, match="Give the number, CAST"):
            table.append(session.sql(f"SELECT 4L AS id, {value}"), schema_mode="merge")
    assert table.version() == 2


@pytest.mark.usefixtures("spark")
def test_spark_computes_nothing_from_intervals(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(INTERVALS)
    table.append(ROWS)
    with pytest.raises(InvalidExpressionError, match="is of type interval day to second"):
        table.delete("took > INTERVAL '1' HOUR", engine="spark")
    with pytest.raises(SchemaMismatchError, match="of type interval day"):
        table.update({"took": "INTERVAL '1' DAY"}, where="id = 1", engine="spark")
    assert table.version() == 1


@on_every_session
def test_shapes(engine: SparkEngine, tmp_path: Path) -> None:
    session = engine.host.session
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "place": pa.array([POINT, None], pa.binary()),
            "s": pa.array([{"a": POINT, "b": [7, None]}, None], IN_STRUCT),
        }
    )
    table = DeltaTable(tmp_path / "t")
    table.create(
        [column("id", "bigint"), column("place", "geometry"), column("s", "struct<a:geography,b:array<interval day>>")]
    )
    table.append(session.createDataFrame(rows).coalesce(1))
    table.append(rows)
    both = pa.concat_tables([rows, rows])
    ensure_same_rows(table.snapshot().scan().to_arrow(), both)
    ensure_same_rows(engine.to_arrow(table.snapshot().scan().to_relation(engine)), both)
    log = (tmp_path / "t" / "_delta_log" / f"{version:020}.json" for version in (1, 2))
    actions = (orjson.loads(line) for file in log for line in file.read_bytes().splitlines())
    stats = [orjson.loads(action["add"]["stats"]) for action in actions if "add" in action]
    assert stats[0] == stats[1]
    assert stats[0]["minValues"] == {"id": 1, "place": "POINT(8.5 47.4)"}
    assert stats[0]["nullCount"] == {"id": 0, "place": 1, "s": {"a": 1, "b": 1}}
    with pytest.raises(SchemaMismatchError, match="Column place has a value that is not WKB"):
        table.append(session.sql("SELECT 3L AS id, X'00' AS place"), schema_mode="merge")
    assert table.version() == 2


def test_shapes_of_spark_are_refused_with_what_to_do(engine: SparkEngine, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", minversion="4.1", reason="Spark has such types from 4.1 on")
    table = DeltaTable(tmp_path / "t")
    table.create([column("place", "geometry")])
    shapes = engine.host.session.sql(f"SELECT ST_GeomFromWKB(X'{POINT.hex()}', 4326) AS place")
    with pytest.raises(SchemaMismatchError, match=r"Give the bytes, ST_AsBinary\(…\)"):
        table.append(shapes)
    table.append(shapes.selectExpr("ST_AsBinary(place) AS place"))
    assert table.snapshot().scan().to_arrow()["place"].to_pylist() == [POINT]
