"""Disks that are full, directories that must not be written, paths that are something else: each says what it is, and
the table is as it was before."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.errors import StorageError, StorageOutcomeUnknownError, UnsupportedStoreError
from delta_orch.storage import local_sync
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.table_builder import append_days, create_table, read_anew

COMMIT = "_delta_log/00000000000000000001.json"


def mount_tmpfs(directory: Path, options: str) -> Callable[[], object]:
    """Mount, or skip the test visibly; returns how to unmount."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    return lambda: subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    unmount = mount_tmpfs(tmp_path / "disk", "size=256k")
    yield tmp_path / "disk"
    unmount()


def in_child(work: Callable[[], object], prepare: Callable[[], None]) -> Exception | None:
    """What `work` raises in a forked process after `prepare`, which may take away rights for good."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        caught: Exception | None = None
        try:
            prepare()
            work()
        except Exception as e:  # noqa: BLE001  goes to the parent
            caught = e
        os.write(sending, pickle.dumps(caught))
        os._exit(0)
    os.close(sending)
    os.waitpid(child, 0)
    with os.fdopen(receiving, "rb") as pipe:
        result: Exception | None = pickle.load(pipe)
    return result


def ensure_unchanged_then_writable(table: DeltaTable) -> None:
    assert read_anew(table).version == 0
    assert not list(Path(table.store.root, "_delta_log").glob(".*"))
    append_days(table, read_anew(table), "2")
    assert read_anew(table).version == 1


def test_a_full_disk(small_disk: Path) -> None:
    table = open_table(open_store(small_disk / "table"))
    snapshot = create_table(table, "1")
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(StorageError, match="disk is full") as caught:
        append_days(table, snapshot, *(f"{n}" for n in range(50)))
    assert caught.value.context["errno"] == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    filler.unlink()
    ensure_unchanged_then_writable(table)


def test_vacuum_of_a_full_disk_frees_it_first(small_disk: Path) -> None:
    table = open_table(open_store(small_disk / "table"))
    create_table(table, "1")
    for path in table.snapshot().files(["path"])["path"].to_pylist():
        (small_disk / "table" / path).parent.mkdir()
        (small_disk / "table" / path).touch()
    (small_disk / "table" / "garbage").write_bytes(b"x" * 40_000)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    result = table.vacuum(0, enforce_retention=False)
    assert result.paths == ("garbage",)
    assert result.is_recorded
    assert [entry.operation for entry in table.history(2)] == ["VACUUM END", "VACUUM START"]

    # Where deleting makes no room, it is done all the same, and said.
    (small_disk / "table" / "garbage").touch()
    with pytest.raises(OSError, match="No space"), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    result = table.vacuum(0, enforce_retention=False)
    assert result.paths == ("garbage",)
    assert not result.is_recorded
    assert not (small_disk / "table" / "garbage").exists()


def test_a_disk_that_fills_up_in_the_middle_of_a_commit(small_disk: Path) -> None:
    table = open_table(open_store(small_disk / "table"))
    snapshot = create_table(table, "1")
    with pytest.raises(StorageError, match="disk is full"):
        append_days(table, snapshot, *(f"{n}" for n in range(5000)))
    ensure_unchanged_then_writable(table)


def test_a_file_larger_than_the_process_may_write(tmp_path: Path) -> None:
    table = open_table(open_store(tmp_path / "table"))
    snapshot = create_table(table, "1")
    error = in_child(
        lambda: append_days(table, snapshot, *(f"{n}" for n in range(500))),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert isinstance(error, StorageError)
    assert error.context["errno"] == errno.EFBIG
    assert "largest size" in str(error)
    ensure_unchanged_then_writable(table)


def test_a_read_only_file_system(tmp_path: Path) -> None:
    unmount = mount_tmpfs(tmp_path / "disk", "size=1m")
    try:
        table = open_table(open_store(tmp_path / "disk" / "table"))
        snapshot = create_table(table, "1")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(StorageError, match="read-only"):
            append_days(table, snapshot, "2")
        assert read_anew(table).num_files == 1
        with pytest.raises(StorageError, match="read-only"):
            create_table(open_table(open_store(tmp_path / "disk" / "other")))
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "disk")], check=True)
        ensure_unchanged_then_writable(table)
    finally:
        unmount()


def test_a_directory_this_user_may_not_write(tmp_path: Path) -> None:
    table = open_table(open_store(tmp_path / "table"))
    snapshot = create_table(table, "1")
    directory = tmp_path / "table" / "_delta_log"
    directory.chmod(0o555)
    give_up_root = (lambda: os.setuid(65534)) if os.geteuid() == 0 else (lambda: None)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_mode & 0o005 != 0o005 and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    error = in_child(lambda: append_days(table, snapshot, "2"), give_up_root)
    assert isinstance(error, StorageError)
    assert error.context["errno"] == errno.EACCES
    assert "Permission denied" in str(error)
    directory.chmod(0o755)
    ensure_unchanged_then_writable(table)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    table = open_table(open_store(tmp_path / "data.parquet"))
    with pytest.raises(StorageError, match="in the place of a directory"):
        read_anew(table)
    with pytest.raises(StorageError, match="in the place of a directory"):
        create_table(table)
    with pytest.raises(StorageError, match="in the place of a directory"):
        open_store(tmp_path / "data.parquet" / "below").put_if_absent(COMMIT, b"x")
    assert (tmp_path / "data.parquet").read_bytes() == b"PAR1"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = open_store(tmp_path)

    def no_links(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("delta_orch.storage.local.os.link", no_links)
    with pytest.raises(UnsupportedStoreError, match="no hard links"):
        store.put_if_absent(COMMIT, b"x")
    assert not list((tmp_path / "_delta_log").iterdir())


def test_a_directory_that_cannot_be_synced_leaves_the_outcome_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is there, but might not survive a crash: the commit reads it back and finds it."""
    table = open_table(open_store(tmp_path))
    snapshot = create_table(table, "1")

    sync_path = local_sync.sync_path

    def broken(path: str) -> None:
        if path.endswith("_delta_log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_path(path)

    monkeypatch.setattr(local_sync, "sync_path", broken)
    with pytest.raises(StorageOutcomeUnknownError):
        table.store.put_if_absent("_delta_log/x", b"1")
    assert append_days(table, snapshot, "2").version == 1
    assert read_anew(table).num_files == 2


def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    table = open_table(open_store(tmp_path / "table"))
    create_table(table, "1")
    (tmp_path / "table" / "_delta_log").chmod(0o555)
    assert read_anew(table).num_files == 1
