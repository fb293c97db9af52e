"""What a commit names is on disk before the commit has a name: every file, as it is read later, and every directory on
the way to it. Seen in the order of system calls, as no test here can cut the power."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import StorageError
from delta_orch.storage import local, local_sync

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name what is synced")

ROWS = pa.table({"day": ["1", "1", "2"], "value": [1, 2, 3]})
NEW_ROWS = pa.table({"day": ["2"], "value": [4]})


class WatchedOs:
    """Stands in for the module `os` in the local store: keeps what is on disk, and looks at each commit that gets its
    name."""

    def __init__(self, check: Callable[[str, WatchedOs], None]) -> None:
        self.synced: dict[str, bytes | None] = {}
        self.ever_synced: set[str] = set()
        self.commits: list[str] = []
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        self.synced[path] = _state(path)
        self.ever_synced.add(path)

    def link(self, source: str, target: str) -> None:
        if target.endswith(".json"):
            self._check(source, self)
            self.commits.append(target)
            self.synced.clear()
        os.link(source, target)


def _state(path: str) -> bytes | None:
    """What a later write would change. Nothing of a directory."""
    return None if Path(path).is_dir() else Path(path).read_bytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "demand"


@pytest.fixture
def watched(root: Path) -> Iterator[WatchedOs]:
    known: set[Path] = set()

    def check(source: str, watching: WatchedOs) -> None:
        new = {path for path in root.rglob("*.parquet") if "_delta_log" not in path.parts} - known
        known.update(new)
        for path in (source, *map(str, new)):
            assert watching.synced.get(path) == _state(path), f"{path} is not on disk, or was written to again"
        directories = {parent for path in new for parent in path.parents if parent.is_relative_to(root)}
        for directory in directories:
            assert str(directory) in watching.synced, f"{directory} is not on disk"

    watching = WatchedOs(check)
    vars(local)["os"] = vars(local_sync)["os"] = watching
    yield watching
    vars(local)["os"] = vars(local_sync)["os"] = os


def append(table: DeltaTable) -> None:
    table.append(NEW_ROWS)


def overwrite_some(table: DeltaTable) -> None:
    """Rows that stay are written again."""
    table.overwrite(pa.table({"day": ["1"], "value": [2]}), replace_where="value = 2")


def compact(table: DeltaTable) -> None:
    table.append(ROWS)
    assert not table.optimize().skipped


VERBS = [append, overwrite_some, compact]


@pytest.mark.parametrize("has_feed", [False, True])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_files_and_directories_are_on_disk_before_the_commit_is(
    root: Path,
    watched: WatchedOs,
    verb: Callable[[DeltaTable], None],
    has_feed: bool,
    engine: str,
    request: pytest.FixtureRequest,
) -> None:
    rows: Any = ROWS
    if engine == "spark":
        rows = request.getfixturevalue("spark").createDataFrame(ROWS.to_pylist())
    table = DeltaTable(root)
    properties = {"delta.enableChangeDataFeed": "true"} if has_feed else {}
    table.append(rows, partition_by=["day"], properties=properties)
    # The directories above it as well: they did not exist.
    assert {str(root.parent), str(root.parent.parent), str(root.parent.parent.parent)} <= watched.ever_synced
    verb(table)
    assert len(watched.commits) == table.version() + 1
    assert table.version() >= 1


def test_a_file_that_cannot_be_saved_fails_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaTable(tmp_path)
    table.append(ROWS)

    def fail(path: str) -> None:
        if path.endswith(".parquet"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(local_sync, "sync_path", fail)
    with pytest.raises(StorageError, match=r"Cannot save .*\.parquet"):
        table.append(ROWS)
    assert table.version() == 0
    assert not [file for file in (tmp_path / "_delta_log").iterdir() if file.name.startswith(".")]
