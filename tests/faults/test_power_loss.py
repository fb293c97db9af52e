"""The power goes at any system call of the local store: what was not synced is there, gone, cut, or zeros, and of the
names that were made, removed or changed since their directory was synced each one is kept or not, in any order. No
acknowledged commit is lost, the table can be read, and written again.

PROTOCOL says nothing of it; ext4, XFS and Btrfs promise no more without `fsync`.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from delta_orch.storage import local, local_sync
from tests.harness.kill_points import SYSTEM_CALLS

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name what is synced")

Rows = list[tuple[int, str]]


class Disk:
    """Stands in for the module `os` in the local store: knows what is on disk, and keeps what a loss of power would
    leave of a directory.

    Attributes:
        acknowledged: The version that a caller was told last; -1 for none.
        left: What was left, and the version acknowledged at that time.
    """

    def __init__(self, root: Path, scratch: Path, seed: int, rate: float, *, syncs: bool = True) -> None:
        self._root = root
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._rate = rate
        self._syncs = syncs
        self._lock = threading.RLock()
        self._data: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        self._held: list[int] = []
        self.acknowledged = -1
        self.left: list[tuple[Path, int]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._watched(name, real) if name in SYSTEM_CALLS else real

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._rng.random() < self._rate:
                    self.lose_power()
                answer = real(*args, **kwargs)
                if name == "fsync" and self._syncs:
                    self._sync(args[0])
                return answer

        return call

    def _sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        status = os.fstat(descriptor)
        # As long as somebody holds it, its number is nobody else's.
        self._held.append(os.dup(descriptor))
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = _names_in(path)
        else:
            self._data[status.st_ino] = Path(path).read_bytes()

    def lose_power(self) -> None:
        """Keep what may be left."""
        target = self._scratch / str(len(self.left))
        target.mkdir(parents=True)
        if self._root.is_dir():
            self._leave(str(self._root), target)
        self.left.append((target, self.acknowledged))

    def _leave(self, directory: str, target: Path) -> None:
        now, synced = _names_in(directory), self._names.get(directory, {})
        for name in sorted({*now, *synced}):
            before, after = synced.get(name), now.get(name)
            inode = before if before == after or self._rng.random() < 0.5 else after
            path = f"{directory}/{name}"
            if inode is None:
                continue
            if inode == after and Path(path).is_dir():
                (target / name).mkdir()
                self._leave(path, target / name)
            else:
                data = Path(path).read_bytes() if inode == after else self._data.get(inode, b"")
                (target / name).write_bytes(self._content(inode, data))

    def _content(self, inode: int, data: bytes) -> bytes:
        durable = self._data.get(inode)
        if durable == data:
            return data
        cut = self._rng.randrange(len(data) + 1)
        return self._rng.choice(
            [durable or b"", data, data[:cut], bytes(len(data)), data[:cut] + bytes(len(data) - cut)]
        )

    def release(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def _names_in(directory: str) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


@pytest.fixture
def install() -> Iterator[Callable[[Disk], None]]:
    def put_in_place(disk: Disk) -> None:
        vars(local)["os"] = vars(local_sync)["os"] = disk

    yield put_in_place
    vars(local)["os"] = vars(local_sync)["os"] = os


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % 2}" for i in ids]})


def _read(table: DeltaTable) -> Rows:
    read = table.snapshot().scan(["id", "day"]).to_arrow()
    return sorted(zip(*(read[name].to_pylist() for name in ("id", "day")), strict=True))


def _age(root: Path) -> int:
    """Forty days pass."""
    for path in (root / "_delta_log").iterdir():
        if path.is_file():
            then = path.stat().st_mtime - 40 * 86_400
            os.utime(path, (then, then))
    return 0


Step = Callable[[DeltaTable], Any]
STEPS: list[Step] = [
    lambda t: t.append(_rows(1, 2, 3), partition_by=["day"], properties={
        "delta.enableDeletionVectors": "true", "delta.checkpointInterval": "3"}),
    lambda t: t.append(_rows(4, 5)),
    lambda t: t.delete("id = 2"),
    lambda t: t.upsert(_rows(3, 9), ["id"]),
    lambda t: t.update({"day": "'d7'"}, "id = 9"),
    lambda t: t.optimize(),
    lambda t: t.overwrite(_rows(4, 6, 8), partition_overwrite_mode="dynamic"),
    lambda t: t.alter().set_properties({"owner": "me"}).commit(),
    lambda t: t.overwrite(_rows(8), replace_where="id = 8"),
    lambda t: t.restore(t.version() - 2),
    lambda t: t.delete("id = 6"),
    lambda t: t.purge(),
    lambda t: t.alter().add_constraint("some", "id > 0").commit(),
    lambda t: t.write_checksum(t.version()),
    lambda t: t.append(_rows(13), stage=True),
    lambda t: t.staged_writes()[0].publish(),
    lambda t: t.compact_log(t.version() - 3, t.version()),
    lambda t: t.checkpoint(),
    lambda t: _age(Path(t.uri.removeprefix("file://"))) or t.cleanup_log(),
    lambda t: t.append(_rows(10, 11)),
    lambda t: t.vacuum(0, enforce_retention=False),
    lambda t: t.append(_rows(12)),
]  # fmt: skip


SEEDS = int(os.environ.get("POWER_LOSS_SEEDS", "0"))
"""0 is the short form. Each seed is a run with some two hundred losses of power."""


def _run(disk: Disk, root: Path, install: Callable[[Disk], None], steps: Sequence[Step]) -> dict[int, Rows]:
    """The rows of each version."""
    expected: dict[int, Rows] = {}
    table = DeltaTable(root)
    for step in steps:
        install(disk)
        try:
            step(table)
            table.wait_for_upkeep()
        finally:
            vars(local)["os"] = vars(local_sync)["os"] = os
        fresh = DeltaTable(root)
        for version in range(disk.acknowledged + 1, fresh.version() + 1):
            expected[version] = _read(fresh)
        disk.acknowledged = fresh.version()
        disk.lose_power()
    disk.release()
    return expected


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_what_was_acknowledged_survives(tmp_path: Path, install: Callable[[Disk], None], seed: int) -> None:
    root = tmp_path / "lake" / "t"
    disk = Disk(root, tmp_path / "left", seed, rate=0.25 if SEEDS else 0.05)
    expected = _run(disk, root, install, STEPS)
    assert len(disk.left) > len(STEPS)
    for left, acknowledged in disk.left:
        _ensure_whole(left, acknowledged, expected)


def test_a_disk_that_ignores_fsync_is_found_out(tmp_path: Path, install: Callable[[Disk], None]) -> None:
    root = tmp_path / "lake" / "t"
    disk = Disk(root, tmp_path / "left", 1, rate=0.05, syncs=False)
    expected = _run(disk, root, install, STEPS[:4])
    broken = 0
    for left, acknowledged in disk.left:
        try:
            _ensure_whole(left, acknowledged, expected)
        except (AssertionError, DeltaError):
            broken += 1
    assert broken


def _ensure_whole(left: Path, acknowledged: int, expected: dict[int, Rows]) -> None:
    table = DeltaTable(left)
    if not table.exists():
        assert acknowledged < 0, left
        return
    version = table.version()
    assert version >= acknowledged, left
    assert _read(table) == expected[version], left
    report = table.fsck(deep=True)
    # Nobody waits for a version checksum: it can be made again, and the table is read without it.
    assert [p for p in report.problems if p.severity == "error" and not (p.path or "").endswith(".crc")] == [], left
    table.append(_rows(99))
    assert _read(DeltaTable(left)) == sorted([*expected[version], (99, "d1")]), left
