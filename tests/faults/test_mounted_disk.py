"""A mounted file system whose server is away for a moment: what is safe is done again within `retry_seconds`."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, StorageError
from delta_orch.storage import local, local_sync
from tests.families import family

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
CALLS = ("open", "scandir", "link")
PASSING = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT]


class AwayOs:
    """Stands in for `os` in the local store: some calls fail the first `times` times they are made for a path.

    `after`: they take effect before they fail, as where the answer of a server is lost.
    """

    def __init__(self, name: str, code: int, times: int, *, after: bool) -> None:
        self._name, self._code, self._times, self._after = name, code, times, after
        self.failed: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(real) if name == self._name else real

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = str(args[-1] if self._name == "link" else args[0])
            if "_delta_log" not in path or self.failed[path] >= self._times:
                return real(*args, **kwargs)
            self.failed[path] += 1
            if self._after:
                real(*args, **kwargs)
            raise OSError(self._code, os.strerror(self._code), path)

        return call


@pytest.fixture
def away() -> Iterator[Callable[..., AwayOs]]:
    def install(*args: Any, **kwargs: Any) -> AwayOs:
        vars(local)["os"] = vars(local_sync)["os"] = made = AwayOs(*args, **kwargs)
        return made

    yield install
    vars(local)["os"] = vars(local_sync)["os"] = os
    delta_orch.configure(retry_seconds=None)


@family("code", PASSING, every=3)
@pytest.mark.parametrize("name", CALLS)
def test_it_is_ridden_out(tmp_path: Path, away: Callable[..., AwayOs], name: str, code: int) -> None:
    DeltaTable(tmp_path / "t").append(ROWS)
    delta_orch.configure(retry_seconds=20)
    broken = away(name, code, 2, after=False)
    assert not DeltaTable(tmp_path / "t").append(ROWS).skipped
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow().num_rows == 4
    assert broken.failed


def test_a_look_at_a_file_is_ridden_out(tmp_path: Path, away: Callable[..., AwayOs]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS)
    delta_orch.configure(retry_seconds=20)
    away("stat", errno.ESTALE, 2, after=False)
    assert table.store.head(f"_delta_log/{0:020d}.json") is not None
    assert table.store.head("_delta_log/x") is None


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("code", PASSING)
def test_a_lost_answer_commits_once(tmp_path: Path, away: Callable[..., AwayOs], code: int, times: int) -> None:
    DeltaTable(tmp_path / "t").append(ROWS)
    delta_orch.configure(retry_seconds=20)
    away("link", code, times, after=times == 1)
    assert DeltaTable(tmp_path / "t").append(ROWS).version == 1
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow().num_rows == 4
    assert DeltaTable(tmp_path / "t").version() == 1


@pytest.mark.parametrize("name", CALLS)
def test_without_time_it_is_told(tmp_path: Path, away: Callable[..., AwayOs], name: str) -> None:
    DeltaTable(tmp_path / "t").append(ROWS)
    delta_orch.configure(retry_seconds=0)
    away(name, errno.ESTALE, 1000, after=False)
    with pytest.raises(DeltaError):
        DeltaTable(tmp_path / "t").append(ROWS)
    vars(local)["os"] = vars(local_sync)["os"] = os
    assert DeltaTable(tmp_path / "t").version() == 0


def test_a_failed_sync_is_not_repeated(tmp_path: Path, away: Callable[..., AwayOs]) -> None:
    """The kernel forgets what it could not write: a second `fsync` would succeed and save nothing."""
    DeltaTable(tmp_path / "t").append(ROWS)
    broken = AwayOs("fsync", errno.EIO, 1, after=False)
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    vars(broken)["fsync"] = fsync
    vars(local)["os"] = vars(local_sync)["os"] = broken
    with pytest.raises(StorageError):
        DeltaTable(tmp_path / "t").append(ROWS)
    vars(local)["os"] = vars(local_sync)["os"] = os
    assert 0 < len(calls) <= 8
    assert DeltaTable(tmp_path / "t").version() == 0
