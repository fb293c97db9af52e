"""Altered tables, read by `deltalake` (delta-rs) and by DuckDB's delta extension (delta-kernel-rs)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from delta_orch.variant import json_to_variant
from tests.harness.row_deletion import delete_rows
from tests.harness.row_multiset import ensure_same_rows

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


def mapping_dropped(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["day"], properties=MAPPED)
    table.alter().rename_column("id", "key").rename_column("s.x", "ex").rename_column("day", "tag").commit()
    table.append(pa.table({"key": pa.array([3], pa.int64()), "tag": ["f"]}), schema_mode="merge")
    table.alter().drop_columns("s.y").drop_feature("columnMapping").commit()
    table.append(pa.table({"key": pa.array([4], pa.int64()), "tag": ["g"]}), schema_mode="merge")


def widening_dropped(table: DeltaTable) -> None:
    widened(table)
    table.alter().drop_feature("typeWidening").commit()


def vectors_dropped(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.enableDeletionVectors": "true", **MAPPED})
    delete_rows(table, 0)
    table.alter().drop_feature("deletionVectors").drop_feature("columnMapping").commit()


def row_tracking_dropped(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.enableRowTracking": "true"})
    table.alter().drop_feature("rowTracking").commit()
    table.append(ROWS)


def checkpoints_dropped(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.checkpointPolicy": "v2"})
    table.checkpoint()
    table.alter().drop_feature("v2Checkpoint").commit()


def shredding_dropped(table: DeltaTable) -> None:
    table.create([column("v", "variant"), column("id", "bigint")], properties={
        "delta.enableVariantShredding": "true"})  # fmt: skip
    table.append(pa.table({"v": json_to_variant(pa.array(['{"a": 1}'])), "id": pa.array([1], pa.int64())}))
    table.alter().drop_feature("variantShredding").commit()
    table.append(pa.table({"id": pa.array([2], pa.int64())}), schema_mode="merge")


def history_truncated(table: DeltaTable) -> None:
    retention = {"delta.dropFeatureTruncateHistory.retentionDuration": "interval 0 days"}
    table.append(ROWS, properties={**MAPPED, **retention})
    table.alter().drop_feature("columnMapping", truncate_history=True).commit()
    # Not a property that deltalake knows.
    table.alter().unset_properties(*retention).commit()


STORIES = [
    columns_added, mapped_renamed_and_dropped, constrained, clustered, schema_overwritten, iceberg, widened,
    feature_dropped, mapping_dropped, widening_dropped, vectors_dropped, row_tracking_dropped, checkpoints_dropped,
    shredding_dropped, history_truncated,
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
    ours, theirs = altered.snapshot().scan().to_arrow(), duckdb_delta(location(altered))
    # Its variants leave DuckDB through a file of its own, shredded: that they can be read is all there is to compare.
    comparable = [name for name in ours.column_names if name != "v"]
    ensure_same_rows(theirs.select(comparable), ours.select(comparable))
