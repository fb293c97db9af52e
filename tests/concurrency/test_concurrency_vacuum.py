"""Vacuum beside a commit that names files that no version names: either keeps its files, or conflicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConcurrentDeleteReadError, ConflictError, MissingFileError
from delta_orch.verbs import restore as restoring
from delta_orch.verbs import vacuum as vacuuming

NOW: dict[str, Any] = {"retention_hours": 0, "enforce_retention": False}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Version 0 has a file that version 1 removes; beside them lies a file that no version names."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}))
    table.overwrite(pa.table({"id": [2]}))
    pq.write_table(pa.table({"id": [3]}), tmp_path / "t" / "loose.parquet")
    return table


def rows(table: DeltaTable) -> list[Any]:
    found: list[Any] = DeltaTable(table.uri).snapshot().scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Any) -> None:
    """Do something once, right before a function of a module runs."""
    known = getattr(module, name)
    done: list[bool] = []

    def replaced(*arguments: Any, **named: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return known(*arguments, **named)

    monkeypatch.setattr(module, name, replaced)


@pytest.mark.parametrize("full", [True, False])
def test_a_vacuum_keeps_what_came_back_before_it_began(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def act() -> None:
        DeltaTable(table.uri).restore(version=0)
        DeltaTable(table.uri).add_files(["loose.parquet"])

    # The list of files to delete is made by then, and has both.
    meanwhile(monkeypatch, vacuuming, "_record", act)
    result = table.vacuum(full=full, **NOW)
    assert rows(table) == [1, 3] and result.num_files == 0
    assert table.fsck(check_files=True).problems == ()


def test_what_would_come_back_conflicts_with_a_vacuum_that_began(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files are looked up by then.
    meanwhile(monkeypatch, restoring, "_stage", lambda: DeltaTable(table.uri).vacuum(**NOW))
    with pytest.raises(ConcurrentDeleteReadError, match="vacuum"):
        table.restore(version=0)
    assert rows(table) == [2]
    # It has ended: what it has deleted is known to be gone.
    with pytest.raises(MissingFileError):
        DeltaTable(table.uri).restore(version=0)


def test_nothing_comes_back_while_a_vacuum_runs(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def act() -> None:
        other = DeltaTable(table.uri)
        for attempt in (lambda: other.restore(version=0), lambda: other.add_files(["loose.parquet"])):
            with pytest.raises(ConflictError, match="VACUUM END"):
                attempt()
            seen.append(other.version())

    meanwhile(monkeypatch, vacuuming, "delete_files", act)
    assert table.vacuum(**NOW).num_files == 2
    assert seen == [2, 2] and rows(table) == [2]


def test_a_restore_that_brings_no_file_back_does_not_wait(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(pa.table({"id": [4]}))
    meanwhile(monkeypatch, vacuuming, "delete_files", lambda: DeltaTable(table.uri).restore(version=1))
    table.vacuum(**NOW)
    assert rows(table) == [2]
