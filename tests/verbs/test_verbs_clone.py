"""clone: a version of a table as a table of its own. No row is looked at, so the engine does not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    CorruptDataError,
    InvalidPropertyError,
    InvalidRequestError,
    MissingFileError,
    TableExistsError,
    UnsupportedStoreError,
)
from tests.harness.row_deletion import delete_rows
from tests.harness.table_builder import read_anew

Days = Any
MARKABLE = {"delta.enableDeletionVectors": "true"}
ODD = "a b%20ü'\"#"


def rows_of(table: DeltaTable, **scan: Any) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = read_anew(table).scan(**scan).to_arrow().to_pylist()
    return sorted(read, key=lambda row: row["id"])


def paths(table: DeltaTable) -> list[str]:
    found: list[str] = table.snapshot().files(["path"])["path"].to_pylist()
    return found


@pytest.fixture
def source(tmp_path: Path, days: Days) -> DeltaTable:
    """Partitioned by an odd value, mapped columns, tracked rows, deletion vectors inline and in a file."""
    table = DeltaTable(tmp_path / "so urce%41")
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableRowTracking": "true",
        "owner": "me",
    }
    table.append(days((ODD, 1), (ODD, 2), (ODD, 3)), partition_by=["day"], properties=properties)
    delete_rows(table, 0)
    table.append(days((None, 4), (None, 5), (None, 6)))
    table.optimize(max_deleted_rows_ratio=1)
    table.append(days(("c", 7), ("c", 8)))
    delete_rows(table, 1, inline=True)
    return table


@pytest.mark.parametrize("shallow", [True, False])
def test_everything_but_history_comes_along(source: DeltaTable, tmp_path: Path, shallow: bool) -> None:
    expected = rows_of(source)
    target = DeltaTable(tmp_path / "target of #clone")
    result = source.clone(tmp_path / "target of #clone", shallow=shallow, properties={"owner": "you"})
    assert result.version == 0 and target.version() == 0
    assert rows_of(target) == expected
    assert rows_of(target, where="id = 7") == [row for row in expected if row["id"] == 7]
    clone, original = target.snapshot(), source.snapshot()
    assert clone.schema == original.schema and clone.partition_columns == ("day",)
    assert clone.metadata.id != original.metadata.id
    assert clone.metadata.configuration["owner"] == "you"
    assert clone.metadata.configuration["delta.columnMapping.mode"] == "name"
    assert all(path.startswith("file:/") == shallow and "//" not in path for path in paths(target))
    metrics = result.operation_metrics
    assert metrics["sourceNumOfFiles"] == original.num_files == clone.num_files
    assert metrics["numCopiedFiles"] == (0 if shallow else clone.num_files)
    assert metrics["copiedFilesSize"] == (0 if shallow else clone.size_bytes)
    entry = target.history()[0]
    assert entry.operation == "CLONE"
    assert entry.operation_parameters == {"source": f"delta.`{source.uri}`", "sourceVersion": str(original.version)}
    assert target.fsck(check_files=True).ok
    ids = [row["row_id"] for row in rows_of(target, columns=["id"], row_tracking=True)]
    assert len(set(ids)) == len(ids)
    # Each goes its own way from here on.
    target.append(pa.table({"day": ["d"], "id": [9], "value": [0.0]}))
    target.optimize()
    assert [row["id"] for row in rows_of(target)] == [*(row["id"] for row in expected), 9]
    target.vacuum(0, enforce_retention=False)
    assert rows_of(source) == expected and source.fsck(check_files=True).ok
    source.overwrite(pa.table({"day": ["z"], "id": [0], "value": [0.0]}))
    assert len(rows_of(target)) == len(expected) + 1


def test_other_clients_read_a_deep_clone(tmp_path: Path, days: Days) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(days((ODD, 1), ("b", 2)), partition_by=["day"])
    source.clone(tmp_path / "clone", shallow=False)
    read = deltalake.DeltaTable(tmp_path / "clone").to_pyarrow_table()
    assert sorted(read["id"].to_pylist()) == [1, 2]


@pytest.mark.long
def test_both_engines_read_and_rewrite_a_shallow_clone(rows: Any, tmp_path: Path, days: Days) -> None:
    source = DeltaTable(tmp_path / "so urce%41")
    source.append(days((ODD, 1), (ODD, 2), ("b", 3)), partition_by=["day"], properties=MARKABLE)
    delete_rows(source, 1)
    source.clone(tmp_path / "clone")
    clone = DeltaTable(tmp_path / "clone")
    clone.append(rows.data(days((ODD, 4))))
    clone.optimize(engine=rows.engine, max_deleted_rows_ratio=0)
    assert [row["id"] for row in rows.pylist(clone, columns=["id"])] == [1, 3, 4]
    assert [row["id"] for row in rows.pylist(source, columns=["id"])] == [1, 3]


def test_a_shallow_clone_needs_its_source_and_a_deep_one_does_not(tmp_path: Path, days: Days) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(days(("a", 1)))
    source.clone(tmp_path / "shallow")
    source.clone(tmp_path / "deep", shallow=False)
    source.overwrite(days(("a", 2)))
    source.vacuum(0, enforce_retention=False)
    assert [row["id"] for row in rows_of(DeltaTable(tmp_path / "deep"))] == [1]
    with pytest.raises(MissingFileError):
        rows_of(DeltaTable(tmp_path / "shallow"))
    for shallow in (True, False):
        with pytest.raises(MissingFileError):
            source.clone(tmp_path / "late", version=0, shallow=shallow)
    assert not DeltaTable(tmp_path / "late").exists()


def test_older_versions_and_clones_of_clones(tmp_path: Path, days: Days) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(days(("a", 1)))
    source.append(days(("a", 2)))
    source.clone(tmp_path / "first", version=0)
    first = DeltaTable(tmp_path / "first")
    first.append(days(("a", 3)))
    for shallow in (True, False):
        first.clone(tmp_path / f"second {shallow}", shallow=shallow)
        assert [row["id"] for row in rows_of(DeltaTable(tmp_path / f"second {shallow}"))] == [1, 3]


def test_replacing(source: DeltaTable, tmp_path: Path, days: Days) -> None:
    target = DeltaTable(tmp_path / "target")
    target.append(pa.table({"other": [1]}), properties={"delta.enableInCommitTimestamps": "true"}, name="mine")
    with pytest.raises(TableExistsError):
        source.clone(tmp_path / "target")
    assert list(target.snapshot().schema.names) == ["other"]
    first = source.clone(tmp_path / "target", replace=True)
    assert (first.version, first.operation_metrics["numRemovedFiles"]) == (1, 1)
    assert rows_of(target) == rows_of(source)
    assert target.snapshot().metadata.name == "mine"
    assert "inCommitTimestamp" in target.snapshot().features
    source.append(pa.table({"day": ["e"], "id": [20], "value": [0.0]}))
    second = source.clone(tmp_path / "target", replace=True, dry_run=True)
    assert second.preview is not None and sum(files.num_rows for files in second.preview.adds) == 1
    assert source.clone(tmp_path / "target", replace=True, txn=TxnId("sync", 1)).version == 2
    assert source.clone(tmp_path / "target", replace=True, txn=TxnId("sync", 1)).skipped
    assert rows_of(target) == rows_of(source)
    assert len(target.snapshot(0).scan().to_arrow()) == 1


def test_dry_runs_leave_nothing(source: DeltaTable, tmp_path: Path) -> None:
    for shallow in (True, False):
        preview = source.clone(tmp_path / "target", shallow=shallow, dry_run=True).preview
        assert preview is not None and preview.version == 0
        assert not (tmp_path / "target").exists()


def test_refused(source: DeltaTable, tmp_path: Path, days: Days) -> None:
    with pytest.raises(InvalidRequestError, match="onto itself"):
        source.clone(tmp_path / "so urce%41", replace=True)
    with pytest.raises(InvalidRequestError, match="columnMapping"):
        source.clone(tmp_path / "target", properties={"delta.columnMapping.mode": "none"})
    with pytest.raises(InvalidPropertyError):
        source.clone(tmp_path / "target", properties={"delta.constraints.c": "id > 5"})
    with pytest.raises(UnsupportedStoreError):
        source.clone("memory://clone-target")
    assert not (tmp_path / "target").exists()
    plain = DeltaTable(tmp_path / "plain")
    plain.append(days(("a", 1)))
    with (tmp_path / "plain" / paths(plain)[0]).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptDataError):
        plain.clone(tmp_path / "target", shallow=False)
    assert not DeltaTable(tmp_path / "target").exists()


@pytest.mark.parametrize("shallow", [True, False])
def test_no_clone_lies_inside_or_around_a_table(tmp_path: Path, days: Days, shallow: bool) -> None:
    source = DeltaTable(tmp_path / "outer/source")
    source.append(days(("a", 1)))
    for target in ("outer/source/inside", "outer/source/far/inside", "outer"):
        with pytest.raises(TableExistsError, match="inside the other"):
            source.clone(tmp_path / target, shallow=shallow)
        assert not DeltaTable(tmp_path / target).exists()
    source.clone(tmp_path / "outer/beside", shallow=shallow)
    allowed = {"delta_orch.allowNestedTables": "true"}
    source.clone(tmp_path / "outer/source/inside", shallow=shallow, properties=allowed)


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_has_no_owner_but_its_own(tmp_path: Path, days: Days, shallow: bool) -> None:
    source, target = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "target")
    source.append(days(("a", 1)), properties={"delta_orch.owner": "asset a", "mine": "1"})
    source.clone(target.uri, shallow=shallow)
    assert target.snapshot().properties.owner is None
    assert target.snapshot().metadata.configuration["mine"] == "1"
    target.alter().set_properties({"delta_orch.owner": "asset b"}).commit()
    source.clone(target.uri, shallow=shallow, replace=True)
    assert target.snapshot().properties.owner == "asset b"


def test_across_stores_deep(tmp_path: Path, days: Days) -> None:
    source = DeltaTable(tmp_path / "source")
    source.append(days(("a", 1)), properties={"delta.feature.clustering": "supported"}, cluster_by=["id"])
    source.clone("memory://clone-across", shallow=False)
    target = DeltaTable("memory://clone-across")
    assert rows_of(target) == rows_of(source)
    assert target.snapshot().clustering_columns == (("id",),)
    # And within that store, by absolute paths.
    target.clone("memory://clone-of-clone")
    assert rows_of(DeltaTable("memory://clone-of-clone")) == rows_of(source)


NO_STATS = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "false"}


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize(
    "needs",
    [
        {"delta.enableRowTracking": "true"},
        {"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV2": "true"},
        MARKABLE,
    ],
)
def test_footers_count_rows_that_a_checkpoint_does_not_count(
    tmp_path: Path, days: Days, needs: dict[str, str], shallow: bool
) -> None:
    source, target = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "target")
    source.append(days(("a", 1), ("a", 2)), properties={**needs, **NO_STATS})
    source.append(days(("a", 3)))
    source.delete("id = 2")
    source.checkpoint()
    assert DeltaTable(source.uri).snapshot().files(["stats"])["stats"].null_count
    DeltaTable(source.uri).clone(target.uri, shallow=shallow)
    assert rows_of(target) == rows_of(source)
    if "delta.enableRowTracking" in needs:
        ids = read_anew(target).scan(row_tracking=True).to_arrow()["row_id"].to_pylist()
        assert sorted(ids) == [0, 1]
