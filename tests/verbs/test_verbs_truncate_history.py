"""`drop_feature(…, truncate_history=True)`: no protection is left behind, as there is nothing left to protect."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.types import fields_of
from tests.harness.row_deletion import delete_rows
from tests.harness.row_multiset import ensure_same_rows

MAPPED = {"delta.columnMapping.mode": "name"}
ROWS = pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "day": ["d", "e", "d", None]})
PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"
RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"


def test_history_is_truncated_once_it_is_old_enough(table: DeltaTable) -> None:
    table.append(ROWS, properties={**MAPPED, "delta.enableDeletionVectors": "true"}, partition_by=["day"])
    table.alter().rename_column("id", "key").commit()
    delete_rows(table, 0)
    before = table.snapshot().scan().to_arrow()
    for feature in ("columnMapping", "deletionVectors"):
        with pytest.raises(InvalidRequestError, match=f"still holds traces of {feature}") as waits:
            table.alter().drop_feature(feature, truncate_history=True).commit()
        assert "Repeat the call after" in str(waits.value)
    snapshot = table.snapshot()
    assert {"columnMapping", "deletionVectors"} <= set(snapshot.protocol.reader_features or ())
    assert snapshot.files(["dv_id"])["dv_id"].null_count == snapshot.num_files, "what there was of it is gone"
    assert not [k for f in fields_of(snapshot.schema) for k in f.metadata]
    version = snapshot.version
    with pytest.raises(InvalidRequestError):
        table.alter().drop_feature("columnMapping", truncate_history=True).commit()
    assert table.snapshot().version == version, "waiting commits nothing"
    table.alter().set_properties({RETENTION: "interval 0 days"}).commit()
    table.alter().drop_feature("columnMapping", truncate_history=True).commit()
    table.alter().drop_feature("deletionVectors", truncate_history=True).commit()
    snapshot = table.snapshot()
    assert snapshot.protocol.reader_features is None
    assert "checkpointProtection" not in (snapshot.protocol.writer_features or ())
    assert PROTECTED not in snapshot.metadata.configuration
    ensure_same_rows(DeltaTable(table.uri).snapshot().scan().to_arrow(), before)
    assert table.log.earliest_version() > 3


def test_protection_goes_with_the_history_it_protects(table: DeltaTable) -> None:
    table.append(ROWS, properties={**MAPPED, RETENTION: "interval 0 days"})
    table.alter().drop_feature("columnMapping").commit()
    with pytest.raises(InvalidRequestError, match="truncate_history=True"):
        table.alter().drop_feature("checkpointProtection").commit()
    table.alter().drop_feature("checkpointProtection", truncate_history=True).commit()
    snapshot = DeltaTable(table.uri).snapshot()
    assert snapshot.protocol.writer_features is None
    assert PROTECTED not in snapshot.metadata.configuration
    ensure_same_rows(snapshot.scan().to_arrow(), ROWS)


def test_v2_checkpoints_go_with_the_history(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.checkpointPolicy": "v2", RETENTION: "interval 0 days"})
    table.checkpoint()
    table.alter().drop_feature("v2Checkpoint", truncate_history=True).commit()
    snapshot = DeltaTable(table.uri).snapshot()
    assert snapshot.protocol.writer_features is None
    root = Path(table.uri.removeprefix("file://")) / "_delta_log"
    assert not [p.name for p in root.glob("*.checkpoint.*") if len(p.name.split(".")) > 3]


def test_history_has_nothing_to_do_with_writer_features(table: DeltaTable) -> None:
    table.create(ROWS.schema, properties={"delta.feature.domainMetadata": "supported"})
    with pytest.raises(InvalidRequestError, match="truncate_history has no effect"):
        table.alter().drop_feature("domainMetadata", truncate_history=True).commit()
