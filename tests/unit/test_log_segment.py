"""Which files make up a version: checkpoints, gaps, logs that were cleaned up, and a hint that may say anything."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch.errors import (
    IncompleteCheckpointError,
    LogGapError,
    StorageError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delta_orch.log.files.listing import list_log
from delta_orch.log.read import segment
from delta_orch.log.read.segment import LogSegment, latest_version, oldest_version, resolve_segment
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, LogFileKind, checkpoint_path, commit_path
from delta_orch.storage.base import FileMeta
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from delta_orch.storage.patience import Patience
from delta_orch.testing import open_table

_NAMES = itertools.count()
UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"segment-{next(_NAMES)}")


def _commits(store: MemoryStore | LocalStore, *versions: int) -> None:
    for version in versions:
        store.put(commit_path(version), b"{}")


def _checkpoint(store: MemoryStore | LocalStore, version: int) -> None:
    store.put(checkpoint_path(version), b"PAR1")


def _part(store: MemoryStore, version: int, part: int, parts: int) -> None:
    store.put(f"_delta_log/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet", b"PAR1")


def _hint(store: MemoryStore, content: object) -> None:
    store.put(LAST_CHECKPOINT_PATH, content if isinstance(content, bytes) else json.dumps(content).encode())


def _shape(segment: LogSegment) -> tuple[int, int | None, list[int]]:
    versions = [int(meta.path.rpartition("/")[2][:20]) for meta in segment.commits]
    assert versions == list(range(segment.first_commit, segment.version + 1))
    return segment.version, None if segment.checkpoint is None else segment.checkpoint.version, versions


def test_commits_alone(store: MemoryStore) -> None:
    _commits(store, 0, 1, 2)
    assert _shape(resolve_segment(store)) == (2, None, [0, 1, 2])
    assert _shape(resolve_segment(store, 1)) == (1, None, [0, 1])


def test_digits_of_other_scripts_are_no_version(store: MemoryStore) -> None:
    _commits(store, 0)
    store.put("_delta_log/" + "\u0660" * 19 + "\u0661.json", b"{}")
    assert _shape(resolve_segment(store)) == (0, None, [0])


def test_the_newest_checkpoint_not_above_the_version(store: MemoryStore) -> None:
    _commits(store, *range(7))
    _checkpoint(store, 2)
    _checkpoint(store, 5)
    assert _shape(resolve_segment(store)) == (6, 5, [6])
    assert _shape(resolve_segment(store, 5)) == (5, 5, [])
    assert _shape(resolve_segment(store, 4)) == (4, 2, [3, 4])
    assert _shape(resolve_segment(store, 1)) == (1, None, [0, 1])


def test_a_checkpoint_without_its_commit_dates_the_version_itself(store: MemoryStore) -> None:
    _checkpoint(store, 5)
    segment = resolve_segment(store)
    assert _shape(segment) == (5, 5, [])
    assert segment.version_file.path == checkpoint_path(5)


def test_incomplete_multi_part_checkpoints_do_not_count(store: MemoryStore) -> None:
    _commits(store, *range(5))
    _checkpoint(store, 1)
    _part(store, 3, 1, 3)
    _part(store, 3, 3, 3)
    _part(store, 4, 1, 2)
    assert _shape(resolve_segment(store)) == (4, 1, [2, 3, 4])
    _part(store, 3, 2, 3)
    segment = resolve_segment(store)
    assert _shape(segment) == (4, 3, [4])
    assert segment.checkpoint is not None
    assert [f.path[-29:-19] for f in segment.checkpoint.files] == ["0000000001", "0000000002", "0000000003"]


def test_parts_of_different_attempts_are_not_mixed(store: MemoryStore) -> None:
    _commits(store, 0, 1)
    _part(store, 1, 1, 2)
    _part(store, 1, 2, 3)
    _part(store, 1, 3, 3)
    assert _shape(resolve_segment(store)) == (1, None, [0, 1])


def test_an_empty_checkpoint_file_does_not_count(store: MemoryStore) -> None:
    _commits(store, 0, 1)
    store.put(checkpoint_path(1), b"")
    assert _shape(resolve_segment(store)) == (1, None, [0, 1])


def test_kinds_of_checkpoints(store: MemoryStore) -> None:
    _commits(store, *range(4))
    store.put(f"_delta_log/{3:020d}.checkpoint.{UUID}.json", b"{}")
    segment = resolve_segment(store)
    assert segment.checkpoint is not None
    assert segment.checkpoint.kind is LogFileKind.CHECKPOINT_UUID
    _part(store, 3, 1, 2)
    _part(store, 3, 2, 2)
    chosen = resolve_segment(store).checkpoint
    assert chosen is not None
    assert len(chosen.files) == 1


def test_files_that_are_none_of_the_log(store: MemoryStore) -> None:
    _commits(store, 0, 1)
    for name in (
        "00000000000000000001.crc",
        "00000000000000000000.00000000000000000001.compacted.json",
        "00000000000000000002.json.tmp",
        "0.json",
        "9.checkpoint.parquet",
        "_staged/x.json",
        "zzz",
        ".hidden",
    ):
        store.put(f"_delta_log/{name}", b"x")
    assert _shape(resolve_segment(store)) == (1, None, [0, 1])


@pytest.mark.parametrize("version", [None, 3])
def test_a_gap_names_the_first_missing_commit(store: MemoryStore, version: int | None) -> None:
    _commits(store, 0, 3, 4)
    with pytest.raises(LogGapError) as caught:
        resolve_segment(store, version)
    assert caught.value.context["missing_version"] == 1
    assert "Commit 1 " in str(caught.value)
    assert _shape(resolve_segment(store, 0)) == (0, None, [0])


def test_a_missing_first_commit_is_a_gap(store: MemoryStore) -> None:
    _commits(store, 1, 2)
    with pytest.raises(LogGapError) as caught:
        resolve_segment(store)
    assert caught.value.context["missing_version"] == 0


def test_a_checkpoint_bridges_a_gap(store: MemoryStore) -> None:
    _commits(store, 0, 1, 9)
    _checkpoint(store, 9)
    assert _shape(resolve_segment(store)) == (9, 9, [])
    assert _shape(resolve_segment(store, 1)) == (1, None, [0, 1])
    with pytest.raises(VersionNotFoundError):
        resolve_segment(store, 5)


@pytest.mark.parametrize("hint", [None, {"version": 8, "size": 1}])
@pytest.mark.parametrize("version", [0, 4, 6, 7])
def test_versions_whose_log_was_cleaned_up(store: MemoryStore, hint: object, version: int) -> None:
    _commits(store, *range(6, 11))
    _checkpoint(store, 8)
    if hint is not None:
        _hint(store, hint)
    with pytest.raises(VersionNotFoundError) as caught:
        resolve_segment(store, version)
    assert (caught.value.context["earliest_version"], caught.value.context["latest_version"]) == (8, 10)
    assert _shape(resolve_segment(store)) == (10, 8, [9, 10])
    assert oldest_version(list_log(store)) == 8


@pytest.mark.parametrize("version", [3, 99])
def test_versions_never_written(store: MemoryStore, version: int) -> None:
    _commits(store, 0, 1, 2)
    with pytest.raises(VersionNotFoundError) as caught:
        resolve_segment(store, version)
    assert caught.value.context["version"] == version
    assert "0 to 2" in str(caught.value)


BAD_HINTS = [
    b"",
    b"{",
    b"null",
    b'{"version":"x"}',
    {"version": 4, "checksum": "0" * 32},
    {"version": 3},  # no such checkpoint
    {"version": 77},  # ahead of the log
    {"version": 0},
    {"version": 4, "parts": 7},
    {"version": 1 << 80},
]


@pytest.mark.parametrize("hint", BAD_HINTS)
@pytest.mark.parametrize("version", [None, 5, 2])
def test_a_hint_never_fails_a_read_nor_changes_it(store: MemoryStore, hint: object, version: int | None) -> None:
    _commits(store, *range(6))
    _checkpoint(store, 1)
    _checkpoint(store, 4)
    expected = _shape(resolve_segment(store, version))
    _hint(store, hint)
    assert _shape(resolve_segment(store, version)) == expected
    assert latest_version(store) == 5


def test_a_store_that_is_out_of_reach_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the listing of the log, not also by the hint before it."""

    class Away(MemoryStore):
        def read_bytes(self, path: str) -> bytes:
            patience = Patience()
            while patience.wait():
                pass
            raise StorageError("Cannot read", path=path, retryable=True)

    monkeypatch.setattr(segment, "_HINT_S", 0.1)
    store = Away(f"segment-{next(_NAMES)}")
    _commits(store, 0, 1)
    started = time.monotonic()
    assert latest_version(store) == 1
    assert time.monotonic() - started < 30


def test_a_hint_that_cannot_be_read_never_fails_a_read(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "t")
    _commits(local, *range(6))
    _checkpoint(local, 4)
    (tmp_path / "t" / "_delta_log" / "_last_checkpoint").mkdir()
    assert _shape(resolve_segment(local)) == (5, 4, [5])
    assert latest_version(local) == 5


def test_a_stale_hint_hides_no_newer_checkpoint(store: MemoryStore) -> None:
    _commits(store, *range(10))
    for version in (2, 5, 8):
        _checkpoint(store, version)
    _hint(store, {"version": 2, "size": 1})
    assert _shape(resolve_segment(store)) == (9, 8, [9])
    assert _shape(resolve_segment(store, 6)) == (6, 5, [6])


def test_a_good_hint_spares_listing_what_is_older(store: MemoryStore) -> None:
    _commits(store, *range(10))
    _checkpoint(store, 8)
    _hint(store, {"version": 8, "size": 1})
    listed: list[str] = []

    class Recording(MemoryStore):
        def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
            listed.append(start_name)
            return super().list_from(directory, start_name)

    assert _shape(resolve_segment(Recording(store.root))) == (9, 8, [9])
    assert listed == [f"{8:020d}"]


def test_no_table(store: MemoryStore) -> None:
    for version in (None, 0):
        with pytest.raises(TableNotFoundError):
            resolve_segment(store, version)
    with pytest.raises(TableNotFoundError):
        latest_version(store)


@pytest.mark.parametrize("left", ["hint", "part", "empty checkpoint"])
def test_what_is_left_of_a_log_is_neither_a_table_nor_a_place_for_one(store: MemoryStore, left: str) -> None:
    if left == "hint":
        _hint(store, {"version": 3})
    else:
        name = ".checkpoint.0000000001.0000000002.parquet" if left == "part" else ".checkpoint.parquet"
        store.put(f"_delta_log/{3:020d}{name}", b"x" * (left == "part"))
    table = open_table(store)
    assert table.exists()
    calls: list[Callable[[], object]] = [
        table.snapshot, table.version, table.fsck, lambda: table.snapshot(3),
        lambda: table.append(pa.table({"id": [1]})), lambda: table.create("id bigint"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(IncompleteCheckpointError, match="has lost its commits"):
            call()


def test_a_path_that_is_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="in the place of a directory"):
        resolve_segment(LocalStore(tmp_path / "file"))


def test_a_commit_the_listing_missed_is_asked_for_by_name(store: MemoryStore) -> None:
    """A listing that runs while others commit may show a later file and not an earlier one."""

    class Racing(MemoryStore):
        def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
            hidden = (commit_path(2), commit_path(3))
            return (meta for meta in super().list_from(directory, start_name) if meta.path not in hidden)

    _commits(store, *range(6))
    assert _shape(resolve_segment(Racing(store.root))) == (5, None, [0, 1, 2, 3, 4, 5])
