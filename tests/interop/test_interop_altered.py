"""Altered tables, read by `deltalake` (delta-rs) and by DuckDB's delta extension (delta-kernel-rs)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.testing.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

PAIR = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.table(
    {"id": pa.array([1, 2], pa.int64()), "s": pa.array([{"x": 1, "y": "a"}, None], PAIR), "day": ["d", "e"]}
)
MAPPED = {"delta.columnMapping.mode": "name"}


def columns_added(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"])
    table.alter().add_column("n", "array<int>", first=True).add_column("s.z", "double").commit()
    table.append(pa.table({"id": pa.array([3], pa.int64()), "day": ["d"], "more": [1.5]}), schema_mode="merge")


def mapped_renamed_and_dropped(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"])
    table.alter().set_properties(MAPPED).rename_column("id", "the id").rename_column("day", "tag").commit()
    table.alter().drop_columns("s.y").add_column("s.y", "string").move_column("tag", first=True).commit()
    table.append(pa.table({"the id": pa.array([3], pa.int64()), "tag": ["f"]}), schema_mode="merge")


def constrained(table: DeltaTable) -> None:
    table.append(ROWS)
    table.alter().add_constraint("c", "id > 0").set_not_null("id").set_default("day", "'?'").commit()
    table.append(pa.table({"id": pa.array([3], pa.int64()), "s": pa.array([None], PAIR)}))


def clustered(table: DeltaTable) -> None:
    table.append(ROWS, cluster_by=["id"], properties=MAPPED)
    table.alter().cluster_by("day", "s.x").commit()
    table.append(ROWS)


def schema_overwritten(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"], properties=MAPPED)
    table.overwrite(pa.table({"id": ["x"], "new": [1]}), schema_mode="overwrite", partition_by=[])


def iceberg(table: DeltaTable) -> None:
    # Not partitioned: DuckDB's extension gives null for partition columns whose physical name is not their own.
    table.append(ROWS, properties={"delta.enableIcebergCompatV2": "true"})
    table.alter().add_column("m", "map<string,array<int>>").commit()


def widened(table: DeltaTable) -> None:
    table.append(pa.table({"a": pa.array([1], pa.int8()), "b": pa.array([0.5], pa.float32())}), properties={
        "delta.enableTypeWidening": "true"})  # fmt: skip
    table.alter().change_type("a", "bigint").change_type("b", "double").commit()
    table.append(pa.table({"a": pa.array([2**40], pa.int64()), "b": [0.1]}))


def feature_dropped(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.feature.timestampNtz": "supported"})
    table.alter().drop_feature("timestampNtz").commit()
    table.append(ROWS)


STORIES = [
    columns_added, mapped_renamed_and_dropped, constrained, clustered, schema_overwritten, iceberg, widened,
    feature_dropped,
]  # fmt: skip
BEYOND_DELTALAKE = {"widened"}


@pytest.fixture(params=STORIES, ids=lambda story: story.__name__)
def altered(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "table")
    request.param(table)
    return table


def location(table: DeltaTable) -> Path:
    return Path(table.store.resolve("x")).parent


def test_deltalake_reads_it(altered: DeltaTable, request: pytest.FixtureRequest) -> None:
    snapshot = altered.snapshot()
    theirs = deltalake.DeltaTable(location(altered))
    assert theirs.version() == snapshot.version
    if any(name in request.node.name for name in BEYOND_DELTALAKE):
        with pytest.raises(Exception, match=r"(?i)unsupported|not supported|feature"):
            theirs.to_pyarrow_table()
        return
    assert theirs.metadata().configuration == dict(snapshot.metadata.configuration)
    ensure_same_rows(pa.table(deltalake.QueryBuilder().register("t", theirs).execute("SELECT * FROM t").read_all()),
                     snapshot.scan().to_arrow())  # fmt: skip


def test_duckdb_reads_it(altered: DeltaTable, duckdb_delta: Callable[[Path], pa.Table]) -> None:
    ensure_same_rows(duckdb_delta(location(altered)), altered.snapshot().scan().to_arrow())
