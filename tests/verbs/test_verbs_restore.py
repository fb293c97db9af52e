"""restore: the state of an older version as the next one. No row is written, so the engine does not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId, column, identity_column
from delta_orch.errors import (
    AppendOnlyError,
    CorruptDataError,
    InvalidRequestError,
    MissingFileError,
    TimestampOutOfRangeError,
    VersionNotFoundError,
)
from tests.harness.row_deletion import delete_rows
from tests.harness.table_builder import read_anew

Days = Any


def ids(table: DeltaTable, version: int | None = None) -> list[int]:
    rows = table.snapshot(version).scan(["id"]).to_arrow()["id"].to_pylist()
    return sorted(rows)


def test_rows_schema_partitioning_and_properties_come_back(table: DeltaTable, days: Days, tmp_path: Path) -> None:
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"], properties={"owner": "me"})
    table.append(days(("a", 3)))
    before = table.snapshot(1)
    table.overwrite(pa.table({"x": [1]}), schema_mode="overwrite", partition_by=[])
    table.alter().set_properties({"owner": "you", "more": "1"}).commit()
    result = table.restore(version=1)
    after = read_anew(table)
    assert result.version == after.version == 4
    assert after.schema == before.schema and after.partition_columns == ("day",)
    assert after.metadata.configuration == {"owner": "me"}
    assert after.metadata.id == before.metadata.id
    assert ids(table) == [1, 2, 3]
    metrics = result.operation_metrics
    assert (metrics["numRestoredFiles"], metrics["numRemovedFiles"], metrics["numOfFilesAfterRestore"]) == (3, 1, 3)
    assert metrics["tableSizeAfterRestore"] == before.size_bytes == metrics["restoredFilesSize"]
    entry = table.history(1)[0]
    assert (entry.operation, entry.operation_parameters["version"]) == ("RESTORE", "1")
    referee = deltalake.DeltaTable(tmp_path / "table")
    assert sorted(referee.to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
    # And back again: what was undone can be had once more.
    table.restore(version=3)
    assert list(table.snapshot().schema.names) == ["x"]
    assert table.snapshot().metadata.configuration == {"owner": "you", "more": "1"}


def test_by_timestamp(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)), properties={"delta.enableInCommitTimestamps": "true"})
    table.append(days(("a", 2)))
    moment = table.snapshot(0).timestamp_ms
    table.append(days(("a", 3)))
    with pytest.raises(InvalidRequestError, match="newest"):
        table.restore(timestamp=table.snapshot().timestamp_ms)
    with pytest.raises(TimestampOutOfRangeError):
        table.restore(timestamp="1999-01-01")
    table.restore(timestamp=moment)
    assert ids(table) == [1]


def test_deletion_vectors_come_back_and_go(table: DeltaTable, days: Days) -> None:
    table.append(
        days(("a", 1), ("a", 2), ("a", 3)),
        properties={"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
    )
    delete_rows(table, 0)
    table.overwrite(days(("a", 9)))
    table.restore(version=1)
    assert ids(table) == [2, 3]
    table.restore(version=0)
    assert ids(table) == [1, 2, 3]
    table.restore(version=1)
    assert ids(table) == [2, 3]
    assert table.snapshot().num_files == 1
    told = table.changes(starting_version=3).to_arrow().select(["id", "_change_type", "_commit_version"])
    assert sorted(map(tuple, (row.values() for row in told.to_pylist()))) == [
        (1, "delete", 5),
        (1, "insert", 4),
        (2, "insert", 3),
        (3, "insert", 3),
        (9, "delete", 3),
    ]


def test_row_ids_are_kept_and_never_given_twice(table: DeltaTable, days: Days) -> None:
    def tracked() -> dict[int, tuple[int, int]]:
        rows = table.snapshot().scan(["id"], row_tracking=True).to_arrow().to_pylist()
        return {row["id"]: (row["row_id"], row["row_commit_version"]) for row in rows}

    table.append(days(("a", 1), ("a", 2)), properties={"delta.enableRowTracking": "true"})
    table.append(days(("a", 3)))
    before = tracked()
    table.overwrite(days(("a", 4)))
    table.alter().drop_feature("rowTracking").commit()
    dropped = table.version()
    table.restore(version=1)
    assert tracked() == before
    table.append(days(("a", 5), ("a", 6)))
    after = tracked()
    assert {i: after[i] for i in before} == before
    assert len({row_id for row_id, _ in after.values()}) == len(after)
    table.restore(version=dropped)
    assert ids(table) == [4]
    assert "rowTracking" in table.snapshot().features


def test_identity_values_go_on(table: DeltaTable) -> None:
    table.create([identity_column("key", start=1, step=1), column("id", "long")])
    for i in range(3):
        table.append(pa.table({"id": [i]}))
    table.restore(version=1)
    assert ids(table) == [0]
    table.append(pa.table({"id": [7]}))
    keys = {row["id"]: row["key"] for row in table.snapshot().scan().to_arrow().to_pylist()}
    assert keys == {0: 1, 7: 4}


def test_the_protocol_is_never_lowered_and_grows_where_needed(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)), properties={"delta.columnMapping.mode": "name"})
    table.alter().drop_columns("value").commit()
    table.append(pa.table({"day": ["b"], "id": [2]}))
    table.alter().add_feature("deletionVectors").commit()
    table.alter().add_column("later", "string").commit()
    most = int(table.snapshot().metadata.configuration["delta.columnMapping.maxColumnId"])
    table.restore(version=0)
    snapshot = read_anew(table)
    assert {"deletionVectors", "columnMapping"} <= snapshot.features
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"day": "a", "id": 1, "value": 0.5}]
    assert int(snapshot.metadata.configuration["delta.columnMapping.maxColumnId"]) == most


def test_across_the_end_of_column_mapping(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)), properties={"delta.columnMapping.mode": "name"})
    table.alter().rename_column("value", "worth").commit()
    table.alter().drop_feature("columnMapping").commit()
    table.append(pa.table({"day": ["b"], "id": [2], "worth": [2.0]}))
    newest = table.version()
    table.restore(version=1)
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"day": "a", "id": 1, "worth": 0.5}]
    table.append(pa.table({"day": ["c"], "id": [3], "worth": [3.0]}))
    table.restore(version=newest)
    assert sorted(row["worth"] for row in table.snapshot().scan().to_arrow().to_pylist()) == [0.5, 2.0]


def test_commit_times_begin_where_they_began_last(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)), properties={"delta.enableInCommitTimestamps": "true"})
    table.append(days(("a", 2)))
    table.alter().set_properties({"delta.enableInCommitTimestamps": "false"}).commit()
    table.append(days(("a", 3)))
    table.alter().set_properties({"delta.enableInCommitTimestamps": "true"}).commit()
    since = table.snapshot().metadata.configuration["delta.inCommitTimestampEnablementVersion"]
    assert since == "4"
    table.restore(version=1)
    configuration = read_anew(table).metadata.configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "4"
    assert [entry.version for entry in table.history()] == [5, 4, 3, 2, 1, 0]


def test_clustering_comes_back(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)))
    table.alter().cluster_by("id").commit()
    table.alter().cluster_by("day").commit()
    table.restore(version=1)
    assert table.snapshot().clustering_columns == (("id",),)
    table.restore(version=0)
    assert not table.snapshot().clustering_columns


def test_files_that_are_gone_are_named(table: DeltaTable, days: Days, tmp_path: Path) -> None:
    table.append(days(("a", 1)))
    table.append(days(("a", 2)))
    gone = set(table.snapshot().files(["path"])["path"].to_pylist())
    table.overwrite(days(("a", 3)))
    table.vacuum(0, enforce_retention=False)
    newest = table.version()
    with pytest.raises(MissingFileError) as caught:
        table.restore(version=1)
    assert set(caught.value.context["paths"]) == gone
    assert all(path in str(caught.value) for path in gone)
    assert table.version() == newest and ids(table) == [3]
    table.restore(version=1, ignore_missing_files=True)
    with pytest.raises(MissingFileError):
        ids(table)
    table.restore(version=newest)
    assert ids(table) == [3]


def test_a_file_that_was_changed_is_refused(table: DeltaTable, days: Days, tmp_path: Path) -> None:
    table.append(days(("a", 1)))
    (path,) = table.snapshot().files(["path"])["path"].to_pylist()
    table.overwrite(days(("a", 3)))
    with (tmp_path / "table" / path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptDataError):
        table.restore(version=0)
    assert ids(table) == [3]


def test_requests_that_make_no_sense(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)), properties={"delta.appendOnly": "true"})
    table.append(days(("a", 2)))
    wrongs: list[dict[str, Any]] = [
        {},
        {"version": 0, "timestamp": "2020-01-01"},
        {"version": -1},
        {"version": True},
        {"version": 1},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError):
            table.restore(**wrong)
    with pytest.raises(VersionNotFoundError):
        table.restore(version=7)
    with pytest.raises(AppendOnlyError):
        table.restore(version=0)
    assert table.version() == 1 and ids(table) == [1, 2]


def test_txn_and_dry_run(table: DeltaTable, days: Days) -> None:
    table.append(days(("a", 1)))
    table.append(days(("a", 2)))
    preview = table.restore(version=0, dry_run=True).preview
    assert preview is not None and sum(files.num_rows for files in preview.removes) == 1
    assert table.version() == 1
    table.append(days(("a", 3)))
    assert not table.restore(version=0, txn=TxnId("job", 1)).skipped
    table.append(days(("a", 4)))
    assert table.restore(version=0, txn=TxnId("job", 1)).skipped
    assert ids(table) == [1, 4]


def test_footers_count_rows_that_a_checkpoint_does_not_count(table: DeltaTable, days: Days) -> None:
    no_stats = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "false"}
    table.append(days(("a", 1), ("a", 2)), properties=no_stats)
    table.checkpoint()
    again = DeltaTable(table.uri)
    assert again.snapshot().files(["stats"])["stats"].null_count
    again.overwrite(days(("a", 3)))
    again.alter().set_properties({"delta.enableRowTracking": "true"}).commit()
    again.restore(version=0)
    again.alter().set_properties({"delta.enableRowTracking": "true"}).commit()
    rows = read_anew(table).scan(row_tracking=True).to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2] and len({*rows["row_id"].to_pylist()}) == 2
