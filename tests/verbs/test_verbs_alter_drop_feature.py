"""`alter().drop_feature()`: what nothing uses any more may go; what still does is named."""

from __future__ import annotations

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.protocol import types as t
from delta_orch.protocol.actions import Protocol
from delta_orch.table.protocol_upgrade import KEPT, REMOVALS, without_features
from delta_orch.table.registry import FEATURES
from delta_orch.verbs.alter.alteration import alter
from delta_orch.verbs.alter.table_changes import drop_feature
from tests.certain import some

ROWS = pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]})
PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"


def test_every_feature_either_goes_or_stays_for_a_reason() -> None:
    assert {f.name for f in FEATURES} == set(REMOVALS) | set(KEPT)
    assert not set(REMOVALS) & set(KEPT)


def test_protocols_shrink_to_the_lowest_that_says_the_rest() -> None:
    listed = Protocol(3, 7, ("columnMapping", "timestampNtz"), ("appendOnly", "columnMapping", "timestampNtz"))
    assert without_features(listed, {"timestampNtz"}) == Protocol(
        3, 7, ("columnMapping",), ("appendOnly", "columnMapping")
    )
    assert without_features(listed, {"timestampNtz", "columnMapping"}) == Protocol(1, 7, None, ("appendOnly",))
    assert without_features(Protocol(1, 7, None, ("appendOnly", "invariants", "clustering")), {"clustering"}) == (
        Protocol(1, 2)
    )
    assert without_features(Protocol(1, 3), {"checkConstraints"}) == Protocol(1, 2)
    assert without_features(Protocol(1, 3), {"appendOnly"}) == Protocol(1, 7, None, ("checkConstraints", "invariants"))
    preview = Protocol(3, 7, ("typeWidening-preview",), ("appendOnly", "invariants", "typeWidening-preview"))
    assert without_features(preview, {"typeWidening"}) == Protocol(1, 2)


def test_a_writer_feature_goes_once_nothing_uses_it(table: DeltaTable) -> None:
    table.append(ROWS)
    table.alter().add_constraint("c", "id > 0").commit()
    with pytest.raises(InvalidRequestError, match="drop the constraints first"):
        table.alter().drop_feature("checkConstraints").commit()
    table.alter().drop_constraint("c").drop_feature("CHECKconstraints").commit()
    assert table.snapshot().protocol == Protocol(1, 2)
    with pytest.raises(InvalidRequestError, match="does not support the feature checkConstraints"):
        table.alter().drop_feature("checkConstraints").commit()
    with pytest.raises(UnsupportedFeatureError, match="There is no table feature 'nonsense'"):
        table.alter().drop_feature("nonsense").commit()


def test_one_feature_dropped_is_told_as_the_reference_implementation_tells_it(table: DeltaTable) -> None:
    table.create(ROWS.schema, properties={"delta.feature.domainMetadata": "supported"})
    table.alter().drop_feature("domainMetadata").commit()
    entry = table.history()[0]
    assert entry.operation == "DROP FEATURE"
    assert entry.operation_parameters == {"featureName": "domainMetadata", "truncateHistory": "false"}


def test_a_reader_feature_leaves_the_history_protected(table: DeltaTable) -> None:
    table.create(t.StructType((t.StructField("id", t.LONG), t.StructField("at", t.TIMESTAMP_NTZ))), properties={
        "delta.columnMapping.mode": "name"})  # fmt: skip
    with pytest.raises(InvalidRequestError, match="timestamp_ntz first"):
        table.alter().drop_feature("timestampNtz").commit()
    table.alter().drop_columns("at").drop_feature("timestampNtz").commit()
    snapshot = table.snapshot()
    assert snapshot.protocol.reader_features == ("columnMapping",)
    assert "checkpointProtection" in some(snapshot.protocol.writer_features)
    assert snapshot.metadata.configuration[PROTECTED] == "1"
    # Whoever lacks the feature can read from here on without looking back.
    assert table.log.snapshot().checkpoint is not None
    assert some(table.log.snapshot().checkpoint).version == 1
    with pytest.raises(InvalidRequestError, match="cleaned up"):
        table.alter().drop_feature("checkpointProtection").commit()
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    assert table.snapshot().scan().to_arrow().num_rows == 1


def test_the_protection_goes_with_the_history(table: DeltaTable) -> None:
    table.create(ROWS.schema, properties={"delta.feature.timestampNtz": "supported"})
    table.alter().drop_feature("timestampNtz").commit()
    table.store.delete("_delta_log/00000000000000000000.json")
    table.alter().drop_feature("checkpointProtection").commit()
    snapshot = table.snapshot()
    assert (snapshot.protocol, snapshot.metadata.configuration) == (Protocol(1, 2), {})


def test_the_version_that_is_protected_is_the_one_that_came_to_be(table: DeltaTable) -> None:
    table.create(ROWS.schema, properties={"delta.feature.timestampNtz": "supported"})
    snapshots = [table.snapshot()]
    table.append(ROWS)
    result = alter(
        table.log,
        lambda: snapshots.pop() if snapshots else table.log.snapshot(),
        [drop_feature("timestampNtz", truncate_history=False)],
        "local",
        options=CommitOptions(),
    )
    assert result.version == 2
    assert table.snapshot().metadata.configuration[PROTECTED] == "2"


def test_features_that_others_need_stay(table: DeltaTable) -> None:
    table.create(ROWS.schema, cluster_by=["id"])
    with pytest.raises(InvalidRequestError, match="drop clustering first"):
        table.alter().drop_feature("domainMetadata").commit()
    with pytest.raises(InvalidRequestError, match=r"cluster_by\(\)"):
        table.alter().drop_feature("clustering").commit()
    table.alter().cluster_by().drop_feature("clustering").commit()
    assert table.snapshot().domain_metadata == {}
    table.alter().drop_feature("domainMetadata").commit()
    assert table.snapshot().protocol == Protocol(1, 2)
