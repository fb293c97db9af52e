"""`alter().drop_feature()` where files must be written anew: the rows stay, the feature and its traces go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, column
from delta_orch.errors import ConflictError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.schema import TYPE_CHANGES
from delta_orch.protocol.types import fields_of
from delta_orch.table.protocol_upgrade import FileTrait
from delta_orch.verbs.alter import rewriting
from tests.harness.results import Transaction
from tests.harness.row_deletion import delete_rows
from tests.harness.row_multiset import ensure_same_rows
from tests.harness.table_builder import begin

MAPPED = {"delta.columnMapping.mode": "name"}
PAIR = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "s": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "c"}, {"x": 4, "y": "d"}], PAIR),
        "l": pa.array([[{"x": 1, "y": "a"}], [], None, [None]], pa.list_(PAIR)),
        "day": ["d", "e", "d", None],
    }
)
PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"


def actions(table: DeltaTable, version: int, kind: str) -> list[dict[str, Any]]:
    path = Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"
    return [o[kind] for line in path.read_bytes().splitlines() if kind in (o := orjson.loads(line))]


def names_in_files(table: DeltaTable) -> set[str]:
    root = Path(table.uri.removeprefix("file://"))
    paths = table.snapshot().files(["path"])["path"].to_pylist()
    return {name for path in paths for name in pq.read_schema(root / path).names}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_get_their_names_back(rows: Any, table: DeltaTable, mode: str) -> None:
    properties = {"delta.columnMapping.mode": mode, "delta.enableRowTracking": "true"}
    table.append(ROWS, partition_by=["day"], properties=properties)
    table.alter().rename_column("s.x", "ex").rename_column("day", "tag").rename_column("id", "key").commit()
    table.alter().add_column("gone", "int").commit()
    table.append(pa.table({"key": pa.array([5], pa.int64()), "tag": ["d"], "gone": pa.array([7], pa.int32())}),
                 schema_mode="merge")  # fmt: skip
    table.alter().drop_columns("gone").commit()
    before = table.snapshot().scan(row_tracking=True).to_arrow()
    version = table.alter().drop_feature("columnMapping").commit(engine=rows.engine).version
    snapshot = table.snapshot()
    assert "columnMapping" not in (snapshot.protocol.writer_features or ())
    assert snapshot.protocol.reader_features is None
    assert not [k for k in snapshot.metadata.configuration if "columnMapping" in k]
    assert not [k for f in fields_of(snapshot.schema) for k in f.metadata if "columnMapping" in k]
    assert snapshot.metadata.configuration[PROTECTED] == str(version)
    ensure_same_rows(snapshot.scan(row_tracking=True).to_arrow(), before)
    tracked = {name for name in names_in_files(table) if name.startswith("_row-")}
    assert names_in_files(table) - tracked == {"key", "s", "l"}
    assert {k for add in actions(table, version, "add") for k in add["partitionValues"]} == {"tag"}
    assert not any(a["dataChange"] for kind in ("add", "remove") for a in actions(table, version, kind))
    # What was dropped stays away, also where a column of its old name comes back.
    table.alter().add_column("gone", "int").commit()
    assert set(table.snapshot().scan().to_arrow()["gone"].to_pylist()) == {None}
    # Older versions are what they were.
    ensure_same_rows(table.snapshot(version - 1).scan(row_tracking=True).to_arrow(), before)
    table.append(ROWS.rename_columns(["key", "s", "l", "tag"]).drop_columns(["s", "l"]), schema_mode="merge")
    assert rows.read(table, ["key"]).num_rows == 9


def test_a_table_that_was_mapped_later_keeps_its_files(table: DeltaTable) -> None:
    table.append(ROWS)
    table.alter().set_properties(MAPPED).commit()
    paths = table.snapshot().files(["path"])["path"].to_pylist()
    table.alter().drop_feature("columnMapping").commit()
    assert table.snapshot().files(["path"])["path"].to_pylist() == paths
    ensure_same_rows(table.snapshot().scan().to_arrow(), ROWS)


def test_names_that_files_cannot_have_come_first(table: DeltaTable) -> None:
    table.append(ROWS, properties=MAPPED)
    table.alter().rename_column("id", "the id").commit()
    with pytest.raises(InvalidRequestError, match="rename 'the id' first"):
        table.alter().drop_feature("columnMapping").commit()
    table.alter().rename_column("the id", "id").drop_feature("columnMapping").commit()
    ensure_same_rows(table.snapshot().scan().to_arrow(), ROWS)


def test_iceberg_needs_mapped_columns(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.enableIcebergCompatV2": "true"})
    with pytest.raises(InvalidRequestError, match="drop icebergCompatV2 first"):
        table.alter().drop_feature("columnMapping").commit()
    table.alter().set_properties({"delta.enableIcebergCompatV2": "false"}).drop_feature("icebergCompatV2").commit()
    table.alter().drop_feature("columnMapping").commit()
    ensure_same_rows(table.snapshot().scan().to_arrow(), ROWS)
    assert not any(f.metadata for f in fields_of(table.snapshot().schema))


def test_clustering_columns_are_known_by_their_names_then(table: DeltaTable) -> None:
    table.append(ROWS, cluster_by=["s.x"], properties=MAPPED)
    table.alter().drop_feature("columnMapping").commit()
    domain = orjson.loads(table.snapshot().domain_metadata["delta.clustering"])
    assert domain["clusteringColumns"] == [["s", "x"]]
    stats = orjson.loads(table.snapshot().files(["stats"])["stats"][0].as_py())
    assert stats["minValues"]["s"]["x"] == 1


def test_widened_columns_are_written_wide(rows: Any, table: DeltaTable) -> None:
    kind = pa.list_(pa.field("element", pa.int16()))
    narrow = pa.table(
        {
            "a": pa.array([1, None], pa.int8()),
            "d": pa.array([None, 1], pa.decimal128(5, 2)),
            "l": pa.array([[1, None], None], kind),
            "s": pa.array([{"b": 0.5}, None], pa.struct([("b", pa.float32())])),
        }
    )
    table.append(narrow, properties={"delta.enableTypeWidening": "true", "delta.enableChangeDataFeed": "true"})
    changes = table.alter().change_type("a", "int").change_type("d", "decimal(10,3)")
    changes.change_type("l.element", "int").change_type("s.b", "double").commit()
    before = table.snapshot().scan().to_arrow()
    table.append(before)
    wide = table.snapshot().files(["path"])["path"].to_pylist()[-1]
    before = table.snapshot().scan().to_arrow()
    version = table.alter().drop_feature("typeWidening").commit(engine=rows.engine).version
    snapshot = table.snapshot()
    assert "typeWidening" not in (snapshot.protocol.writer_features or ())
    assert not any(TYPE_CHANGES in f.metadata for f in fields_of(snapshot.schema))
    assert "delta.enableTypeWidening" not in snapshot.metadata.configuration
    ensure_same_rows(snapshot.scan().to_arrow(), before)
    paths = snapshot.files(["path"])["path"].to_pylist()
    assert len(paths) == 2, "only the file with the older types is written anew"
    assert wide in paths
    root = Path(table.uri.removeprefix("file://"))
    assert {str(pq.read_schema(root / path).field("a").type) for path in paths} == {"int32"}
    assert {str(pq.read_schema(root / path).field("d").type) for path in paths} == {"decimal128(10, 3)"}
    feed = table.changes(starting_version=version, ending_version=version).to_arrow()
    assert feed.num_rows == 0


def test_deletion_vectors_are_purged(rows: Any, table: DeltaTable) -> None:
    properties = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true", "delta.appendOnly": "false"}
    table.append(ROWS, properties=properties)
    table.append(ROWS.slice(0, 1))
    delete_rows(table, 0)
    before = table.snapshot().scan(row_tracking=True).to_arrow()
    assert before.num_rows == 3
    version = table.alter().drop_feature("deletionVectors").commit(engine=rows.engine).version
    snapshot = table.snapshot()
    assert snapshot.protocol.reader_features is None
    assert snapshot.num_files == 1, "a file of which every row is deleted becomes none"
    assert snapshot.files(["dv_id"])["dv_id"].null_count == 1
    assert "delta.enableDeletionVectors" not in snapshot.metadata.configuration
    ensure_same_rows(snapshot.scan(row_tracking=True).to_arrow(), before)
    # Those who know no vectors find tombstones of their files, so vacuum leaves them as long as older versions need.
    kept = [r["path"] for r in actions(table, version, "remove") if r["path"].endswith(".bin")]
    assert len(kept) == 1
    assert kept[0] not in table.vacuum(dry_run=True).paths
    assert not table.fsck().problems
    ensure_same_rows(table.snapshot(version - 1).scan(row_tracking=True).to_arrow(), before)


def test_shredded_variants_are_written_whole(table: DeltaTable) -> None:
    from delta_orch.variant import json_to_variant

    data = pa.table({"v": json_to_variant(pa.array(['{"a": 1}', '{"a": 2}'])), "id": pa.array([1, 2], pa.int64())})
    table.create([column("v", "variant"), column("id", "bigint")], properties={"delta.enableVariantShredding": "true"})
    table.append(data)
    root = Path(table.uri.removeprefix("file://"))
    (path,) = table.snapshot().files(["path"])["path"].to_pylist()
    assert pq.read_schema(root / path).field("v").type.get_field_index("typed_value") >= 0
    before = table.snapshot().scan().to_arrow()
    with pytest.raises(InvalidRequestError, match="drop variantShredding first"):
        table.alter().drop_feature("variantType").commit()
    table.alter().drop_feature("variantShredding").commit()
    (path,) = table.snapshot().files(["path"])["path"].to_pylist()
    assert pq.read_schema(root / path).field("v").type.get_field_index("typed_value") < 0
    assert table.snapshot().protocol.reader_features == ("variantType",)
    assert table.snapshot().scan().to_arrow().num_rows == before.num_rows


def test_two_features_leave_in_one_go(table: DeltaTable) -> None:
    table.append(ROWS, properties={**MAPPED, "delta.enableDeletionVectors": "true"}, partition_by=["day"])
    table.alter().rename_column("id", "key").commit()
    delete_rows(table, 0)
    before = table.snapshot().scan().to_arrow()
    commits = table.snapshot().version
    table.alter().drop_feature("deletionVectors").drop_feature("columnMapping").commit()
    assert table.snapshot().version == commits + 1
    ensure_same_rows(table.snapshot().scan().to_arrow(), before)
    assert table.snapshot().protocol.reader_features is None


def test_appends_in_between_are_rewritten_too(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(ROWS, properties=MAPPED)
    table.alter().rename_column("id", "key").commit()
    more, rewritten = ROWS.rename_columns(["key", *ROWS.column_names[1:]]), []
    original = rewriting.FileRewriter.stage

    def stage(self: rewriting.FileRewriter, transaction: Transaction, draft: Any) -> None:
        original(self, transaction, draft)
        rewritten.append(self._made.num_rows)
        if len(rewritten) <= 3:
            table.append(more)

    monkeypatch.setattr(rewriting.FileRewriter, "stage", stage)
    table.alter().drop_feature("columnMapping").commit()
    assert rewritten == [1, 2, 3, 4], "what was rewritten is not rewritten again"
    ensure_same_rows(table.snapshot().scan().to_arrow(), pa.concat_tables([more] * 4))
    assert names_in_files(table) == set(more.column_names)


def test_a_file_removed_in_between_stays_away(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(ROWS, properties=MAPPED, partition_by=["day"])
    table.alter().rename_column("id", "key").commit()
    original, calls = rewriting.FileRewriter.stage, []

    def stage(self: rewriting.FileRewriter, transaction: Transaction, draft: Any) -> None:
        original(self, transaction, draft)
        calls.append(1)
        if len(calls) == 1:
            table.overwrite(ROWS.slice(0, 0).rename_columns(["key", *ROWS.column_names[1:]]), replace_where="day = 'd'")

    monkeypatch.setattr(rewriting.FileRewriter, "stage", stage)
    table.alter().drop_feature("columnMapping").commit()
    assert sorted(table.snapshot().scan(["key"]).to_arrow()["key"].to_pylist()) == [2, 4]
    assert len(calls) == 2


def test_writers_that_began_before_start_again(table: DeltaTable) -> None:
    table.append(ROWS, properties=MAPPED)
    table.alter().rename_column("id", "key").commit()
    old = table.snapshot()
    late = begin(table, old, operation="WRITE")
    late.add_files(old.files().slice(0, 0))
    table.alter().drop_feature("columnMapping").commit()
    with pytest.raises(ConflictError):
        late.commit()


def test_nothing_is_written_by_a_dry_run(table: DeltaTable) -> None:
    table.append(ROWS, properties=MAPPED)
    table.alter().rename_column("id", "key").commit()
    root = Path(table.uri.removeprefix("file://"))
    files = sorted(root.rglob("*"))
    preview = table.alter().drop_feature("columnMapping").commit(dry_run=True).preview
    assert preview is not None
    assert sum(adds.num_rows for adds in preview.adds) == 1
    assert sorted(root.rglob("*")) == files


@pytest.mark.parametrize("said", [None, '{"numRecords":0}', '{"numRecords":9}'])
def test_files_that_say_something_else_of_their_rows(table: DeltaTable, said: str | None) -> None:
    """No row is lost for it."""
    table.append(ROWS, properties=MAPPED)
    table.append(ROWS.slice(0, 1))
    table.alter().rename_column("id", "key").commit()
    snapshot = table.snapshot()
    files = snapshot.files()
    stats = pa.array([said] * files.num_rows, pa.string())
    transaction = begin(table, snapshot, operation="STATS")
    transaction.read_files(files)
    transaction.add_files(files.set_column(files.schema.get_field_index("stats"), "stats", stats))
    transaction.commit()
    table.alter().drop_feature("columnMapping").commit()
    assert table.snapshot().scan().to_arrow().num_rows == 5


def test_an_empty_file_that_counts_itself_full(table: DeltaTable) -> None:
    table.append(ROWS, properties=MAPPED)
    table.append(ROWS)
    table.alter().rename_column("id", "key").commit()
    root = Path(table.uri.removeprefix("file://"))
    path = root / table.snapshot().files(["path"])["path"][0].as_py()
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    table.alter().drop_feature("columnMapping").commit()
    assert table.snapshot().num_files == 1
    assert table.snapshot().scan().to_arrow().num_rows == 4


def test_many_files_are_rewritten_some_at_a_time(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "FILES_AT_ONCE", 2)
    table.append(ROWS, properties=MAPPED, partition_by=["day"])
    table.append(ROWS)
    table.alter().rename_column("id", "key").commit()
    before = table.snapshot().scan().to_arrow()
    table.alter().drop_feature("columnMapping").commit()
    ensure_same_rows(table.snapshot().scan().to_arrow(), before)


def test_row_tracking_leaves_no_ids(rows: Any, table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.enableRowTracking": "true"})
    table.append(ROWS)
    table.optimize()
    table.append(ROWS)
    table.alter().drop_feature("rowTracking").commit(engine=rows.engine)
    snapshot = table.snapshot()
    assert "rowTracking" not in (snapshot.protocol.writer_features or ())
    assert snapshot.domain_metadata == {}
    assert not [k for k in snapshot.metadata.configuration if "ow" in k and "rack" in k]
    files = snapshot.files(["base_row_id", "default_row_commit_version"])
    assert files["base_row_id"].null_count == files["default_row_commit_version"].null_count == files.num_rows == 2
    assert rows.read(table, ["id"]).num_rows == 12
    # It can come back, and gives no id twice.
    table.alter().set_properties({"delta.enableRowTracking": "true"}).commit()
    ids = table.snapshot().scan(["row_id"], row_tracking=True).to_arrow()["row_id"].to_pylist()
    assert sorted(ids) == list(range(12))
    # The domains are gone, so their feature may go, too.
    table.alter().drop_feature("rowTracking").commit()
    table.alter().drop_feature("domainMetadata").commit()
    assert table.snapshot().protocol.writer_features is None


def test_v2_checkpoints_leave_a_classic_one(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.checkpointPolicy": "v2"})
    table.append(ROWS)
    table.checkpoint()
    table.alter().drop_feature("v2Checkpoint").commit()
    snapshot = DeltaTable(table.uri).snapshot()
    assert snapshot.protocol.reader_features is None
    assert "delta.checkpointPolicy" not in snapshot.metadata.configuration
    root = Path(table.uri.removeprefix("file://")) / "_delta_log"
    assert (root / f"{snapshot.version:020d}.checkpoint.parquet").exists()
    assert snapshot.scan().to_arrow().num_rows == 8


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_v2_checkpoints_stop_where_a_table_is_opened_from_one(table: DeltaTable, policy: str) -> None:
    table.append(ROWS, properties={"delta.checkpointPolicy": policy, "delta.feature.v2Checkpoint": "supported"})
    table.append(ROWS)
    table.checkpoint("v2")
    opened = DeltaTable(table.uri)
    assert opened.snapshot().scan().to_arrow().num_rows == 8
    opened.alter().drop_feature("v2Checkpoint").commit()
    for one in (opened, DeltaTable(table.uri)):
        assert one.snapshot().protocol.reader_features is None
        assert one.snapshot().scan().to_arrow().num_rows == 8


def test_in_commit_timestamps_stop(table: DeltaTable) -> None:
    table.append(ROWS)
    table.alter().set_properties({"delta.enableInCommitTimestamps": "true"}).commit()
    table.alter().drop_feature("inCommitTimestamp").commit()
    assert table.snapshot().metadata.configuration == {}
    assert table.snapshot().protocol.writer_features is None
    (info,) = actions(table, 2, "commitInfo")
    assert "inCommitTimestamp" not in info


@pytest.mark.parametrize("trait", list(FileTrait))
def test_each_trait_is_of_one_feature(trait: FileTrait) -> None:
    from delta_orch.table.protocol_upgrade import REMOVALS

    assert len([name for name, removal in REMOVALS.items() if removal.trait is trait]) == 1


def test_changes_go_on_behind_it(table: DeltaTable) -> None:
    table.append(ROWS, properties={**MAPPED, "delta.enableChangeDataFeed": "true"})
    table.alter().rename_column("id", "key").commit()
    version = table.alter().drop_feature("columnMapping").commit().version
    table.append(table.snapshot().scan().to_arrow().slice(0, 1))
    assert table.changes(starting_version=version).to_arrow().num_rows == 1
    assert table.changes(ending_version=version - 1, starting_version=0).to_arrow().num_rows == 4
    with pytest.raises(UnsupportedFeatureError, match="Read the range in parts"):
        table.changes(starting_version=0).to_arrow()


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda item: pa.list_(item, 1)], ids=["32", "64", "fixed"])
def test_lists_of_other_writers_are_looked_into(table: DeltaTable, kind: Any) -> None:
    narrow = pa.struct([("n", pa.int8())])
    table.append(
        pa.table({"l": pa.array([[{"n": 1}]], pa.list_(narrow))}), properties={"delta.enableTypeWidening": "true"}
    )
    root = Path(table.uri.removeprefix("file://"))
    (path,) = table.snapshot().files(["path"])["path"].to_pylist()
    rows = pq.read_table(root / path)
    pq.write_table(pa.table({"l": rows["l"].cast(kind(narrow))}), root / path)
    assert pq.read_schema(root / path).field("l").type == kind(narrow)
    table.alter().change_type("l.element.n", "int").commit()
    table.alter().drop_feature("typeWidening").commit()
    (after,) = table.snapshot().files(["path"])["path"].to_pylist()
    assert after != path
    assert pq.read_schema(root / after).field("l").type.value_type.field("n").type == pa.int32()


@pytest.mark.parametrize("place", ["m.key", "m.value.element"])
def test_keys_and_values_of_maps_are_looked_at(table: DeltaTable, place: str) -> None:
    kind = pa.map_(pa.int8(), pa.list_(pa.int8()))
    table.append(pa.table({"m": pa.array([[(1, [1])]], kind)}), properties={"delta.enableTypeWidening": "true"})
    (path,) = table.snapshot().files(["path"])["path"].to_pylist()
    table.alter().change_type(place, "int").commit()
    table.alter().drop_feature("typeWidening").commit()
    assert table.snapshot().files(["path"])["path"].to_pylist() != [path]
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"m": [(1, [1])]}]
