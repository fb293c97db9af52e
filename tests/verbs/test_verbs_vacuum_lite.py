"""vacuum by tombstones, without a listing, and with versions that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, MissingFileError, VersionNotFoundError
from delta_orch.storage.local import LocalStore

MARKABLE = {"delta.enableDeletionVectors": "true"}
NOW: Any = {"retention_hours": 0, "enforce_retention": False}


def ids(table: DeltaTable, version: int | None = None) -> list[int]:
    return sorted(table.snapshot(version).scan(["id"]).to_arrow()["id"].to_pylist())


@pytest.fixture
def history(table: DeltaTable, days: Any, tmp_path: Path) -> DeltaTable:
    """0: 1 2 3; 1: 2 3, marked; 2: 2, marked; 3: 9; 4: 9 10; and a leftover."""
    table.append(days(("a b%", 1), ("a b%", 2), (None, 3)), partition_by=["day"], properties=MARKABLE)
    table.delete("id = 1")
    table.delete("id = 3")
    table.overwrite(days(("a b%", 9)))
    table.append(days(("c", 10)))
    (tmp_path / "table" / "leftover.parquet").write_bytes(b"x")
    return table


def test_by_tombstones_alone(history: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = set(history.vacuum(dry_run=True, **NOW).paths)

    def list_recursive(self: LocalStore, *args: Any, **more: Any) -> Any:
        raise AssertionError("listed")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "list_recursive", list_recursive)
        assert history.vacuum(full=False).num_files == 0
        planned = history.vacuum(dry_run=True, full=False, **NOW)
        assert set(planned.paths) == whole - {"leftover.parquet"} and planned.num_files == 2
        done = history.vacuum(full=False, commit_info={"shift": "night"}, **NOW)
        assert (done.paths, done.size_bytes) == (planned.paths, planned.size_bytes)
        # What is gone is not told again.
        assert history.vacuum(full=False, **NOW).num_files == 0
    assert ids(history) == [9, 10]
    with pytest.raises(MissingFileError):
        ids(history, 0)
    assert [(e.operation, e.commit_info["shift"]) for e in history.history(2)] == [
        ("VACUUM END", "night"),
        ("VACUUM START", "night"),
    ]
    assert history.vacuum(**NOW).paths == ("leftover.parquet",)


def test_what_is_needed_stays(history: DeltaTable) -> None:
    history.restore(version=1)
    history.vacuum(full=False, **NOW)
    assert ids(history) == [2, 3] and history.fsck(check_files=True).ok


def test_deletion_vectors_in_files(table: DeltaTable) -> None:
    table.append(pa.table({"id": range(100_000)}), properties=MARKABLE)
    table.delete("id % 3 = 0 and id % 7 = 1")
    table.delete("id % 5 = 0 and id % 11 = 1")
    before = ids(table)
    planned = table.vacuum(dry_run=True, full=False, **NOW)
    assert planned.paths == table.vacuum(dry_run=True, **NOW).paths
    assert [Path(path).suffix for path in planned.paths] == [".bin"]
    table.vacuum(full=False, **NOW)
    assert ids(table) == before


def test_nothing_of_an_inner_table(history: DeltaTable, tmp_path: Path) -> None:
    [directory] = {Path(p).parent for p in history.vacuum(dry_run=True, full=False, **NOW).paths if "a b" in p}
    DeltaTable(tmp_path / "table" / directory).create(
        pa.schema([("x", pa.int64())]), properties={"delta_orch.allowNestedTables": "true"}
    )
    for full in (True, False):
        assert not [p for p in history.vacuum(dry_run=True, full=full, **NOW).paths if "a b" in p]


@pytest.mark.parametrize("full", [True, False])
def test_versions_stay(history: DeltaTable, days: Any, full: bool) -> None:
    history.overwrite(days(("c", 11)))
    history.vacuum(full=full, keep_versions=[1, 3], **NOW)
    assert (ids(history, 1), ids(history, 3), ids(history)) == ([2, 3], [9], [11])
    with pytest.raises(MissingFileError):
        ids(history, 4)
    history.vacuum(full=full, **NOW)
    with pytest.raises(MissingFileError):
        ids(history, 1)


def test_refused(history: DeltaTable) -> None:
    before = ids(history, 0)
    given: Any
    for given in ([99], ["1"], [-1], 3):
        with pytest.raises((VersionNotFoundError, InvalidRequestError)):
            history.vacuum(keep_versions=given, **NOW)
    assert ids(history, 0) == before
