"""Intervals and shapes of Delta on Spark, and ours in it. It has both only behind settings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference, ReferenceError

POINT = struct.pack("<BIdd", 1, 1, 1, 2)
WKB = f"X'{POINT.hex()}'"
INTERVALS = (column("id", "bigint"), column("late", "interval year to month"), column("took", "interval day to second"))
NUMBERS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "late": pa.array([-18, None], pa.int32()),
        "took": pa.array([-86_401_000_001, None], pa.int64()),
    }
)
_SETTINGS = {
    "spark.databricks.delta.schema.typeCheck.enabled": ("false", "true"),
    "spark.databricks.delta.geo.preview.enabled": ("true", "false"),
}


@pytest.fixture
def willing(reference: Reference) -> Iterator[Reference]:
    reference.run(*(f"SET {name} = {on}" for name, (on, _) in _SETTINGS.items()))
    yield reference
    reference.run(*(f"SET {name} = {off}" for name, (_, off) in _SETTINGS.items()))


@pytest.mark.parametrize("partition_by", [(), ("late", "took")], ids=["plain", "partitioned"])
def test_intervals(willing: Reference, tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    theirs, ours = tmp_path / "theirs", DeltaTable(tmp_path / "ours")
    clause = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    willing.run(
        f"CREATE TABLE delta.`{theirs}` (id BIGINT, late INTERVAL YEAR TO MONTH, took INTERVAL DAY TO SECOND)"
        f" USING delta {clause}",
        f"INSERT INTO delta.`{theirs}` VALUES"
        " (1, INTERVAL '-1-6' YEAR TO MONTH, INTERVAL '-1 00:00:01.000001' DAY TO SECOND), (2, NULL, NULL)",
    )
    ours.create(INTERVALS, partition_by=list(partition_by))
    ours.append(NUMBERS)
    assert ours.snapshot().schema == DeltaTable(theirs).snapshot().schema
    ensure_same_rows(DeltaTable(theirs).snapshot().scan().to_arrow(), NUMBERS)
    texts = [
        sorted(willing.run(f"SELECT id, string(late) l, string(took) t FROM delta.`{p}`"), key=lambda row: row["id"])
        for p in (theirs, tmp_path / "ours")
    ]
    assert texts[0] == texts[1]
    assert texts[1][0]["l"] == "INTERVAL '-1-6' YEAR TO MONTH"
    DeltaTable(theirs).append(NUMBERS)
    assert len(willing.run(f"SELECT id FROM delta.`{theirs}` WHERE late IS NULL")) == 2


def test_shapes(willing: Reference, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", DeltaTable(tmp_path / "ours")
    willing.run(
        f"CREATE TABLE delta.`{theirs}` (g GEOMETRY(4326), h GEOGRAPHY(4326), z GEOMETRY(0)) USING delta",
        f"INSERT INTO delta.`{theirs}` VALUES (ST_GeomFromWKB({WKB}, 4326), ST_GeogFromWKB({WKB}),"
        f" ST_GeomFromWKB({WKB}, 0)), (NULL, NULL, NULL)",
    )
    rows = pa.table({name: pa.array([POINT, None], pa.binary()) for name in "ghz"})
    found = DeltaTable(theirs).snapshot()
    ensure_same_rows(found.scan().to_arrow(), rows)
    ours.create(found.schema)
    ours.append(rows)
    DeltaTable(theirs).append(rows)
    query = "SELECT ST_AsBinary(g) g, ST_AsBinary(h) h, ST_AsBinary(z) z FROM delta.`{}`"
    ensure_same_rows(willing.query(query.format(tmp_path / "ours")), rows)
    ensure_same_rows(willing.query(query.format(theirs)), pa.concat_tables([rows, rows]))


def test_without_settings_it_refuses_shapes(reference: Reference, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create([column("g", "geometry")])
    with pytest.raises(ReferenceError, match="GEOSPATIAL_NOT_SUPPORTED"):
        reference.read(tmp_path / "t")
