"""Tables of ours that Delta on Spark reads, appends to, merges into, optimises and vacuums; and we read the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.table.registry import supported_features
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference


@dataclass(frozen=True)
class Ours:
    """A table as we create it, and the features it must support."""

    properties: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


OURS = {
    "plain": Ours(),
    "partitioned": Ours(partition_by=("name",)),
    "change-feed": Ours({"delta.enableChangeDataFeed": "true"}, features=("changeDataFeed",)),
    "column-mapping-name": Ours(
        {"delta.columnMapping.mode": "name"}, partition_by=("name",), features=("columnMapping",)
    ),
    "column-mapping-id": Ours({"delta.columnMapping.mode": "id"}, features=("columnMapping",)),
    "deletion-vectors": Ours({"delta.enableDeletionVectors": "true"}, features=("deletionVectors",)),
    "row-tracking": Ours({"delta.enableRowTracking": "true"}, features=("rowTracking", "domainMetadata")),
    "in-commit-timestamps": Ours({"delta.enableInCommitTimestamps": "true"}, features=("inCommitTimestamp",)),
    "v2-checkpoints": Ours({"delta.checkpointPolicy": "v2"}, features=("v2Checkpoint",)),
    "type-widening": Ours({"delta.enableTypeWidening": "true"}, features=("typeWidening",)),
    "iceberg-compat-v1": Ours({"delta.enableIcebergCompatV1": "true"}, features=("icebergCompatV1", "columnMapping")),
    "iceberg-compat-v2": Ours({"delta.enableIcebergCompatV2": "true"}, features=("icebergCompatV2", "columnMapping")),
    "iceberg-compat-v3": Ours(
        {"delta.enableIcebergCompatV3": "true", "delta.enableDeletionVectors": "true"},
        partition_by=("name",),
        features=("icebergCompatV3", "columnMapping", "rowTracking", "deletionVectors"),
    ),
    "struct-statistics": Ours({"delta.checkpoint.writeStatsAsStruct": "true"}),
    "everything": Ours(
        {
            "delta.enableChangeDataFeed": "true",
            "delta.columnMapping.mode": "name",
            "delta.enableDeletionVectors": "true",
            "delta.enableRowTracking": "true",
            "delta.enableInCommitTimestamps": "true",
            "delta.checkpointPolicy": "v2",
            "delta.enableTypeWidening": "true",
        },
        features=("rowTracking", "deletionVectors", "v2Checkpoint", "columnMapping", "inCommitTimestamp"),
    ),
}


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, stop), pa.int64()), "name": [f"n{i % 3}" for i in range(start, stop)]})


def create(path: Path, ours: Ours) -> DeltaTable:
    table = DeltaTable(path)
    table.append(rows(0, 50), partition_by=ours.partition_by or None, properties=ours.properties)
    assert set(ours.features) <= supported_features(table.snapshot().protocol)
    return table


@pytest.mark.parametrize("name", OURS)
def test_used_in_turns(reference: Reference, tmp_path: Path, name: str) -> None:
    table = create(tmp_path, OURS[name])
    it = f"delta.`{tmp_path}`"

    def ensure_agreed() -> None:
        ensure_same_rows(table.snapshot().scan().to_arrow(), reference.read(tmp_path))

    ensure_agreed()
    table.append(rows(50, 60), txn=("job", 1))
    table.overwrite(rows(40, 45), replace_where="id >= 40 AND id < 50")
    ensure_agreed()
    reference.run(f"INSERT INTO {it} VALUES (100, 'theirs')")
    ensure_agreed()
    source = "SELECT id + 55 AS id, 'merged' AS name FROM range(10)"
    merge = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    reference.run(f"MERGE INTO {it} AS t USING ({source}) AS s ON t.id = s.id {merge}")
    ensure_agreed()
    table.append(rows(200, 210))
    table.checkpoint()
    reference.run(f"DELETE FROM {it} WHERE id = 201")
    ensure_agreed()
    table.optimize()
    ensure_agreed()
    reference.run(f"OPTIMIZE {it}", f"VACUUM {it} RETAIN 0 HOURS")
    ensure_agreed()
    table.vacuum(retention_hours=0, enforce_retention=False)
    ensure_agreed()
    assert table.fsck(check_files=True).ok
    assert table.txns()["job"] == 1
