"""Writers whose clocks are hours apart: times of versions only grow, time travel finds each, and nothing young goes."""

from __future__ import annotations

import itertools
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable

HOUR_NS = 3_600_000_000_000
OFFSETS_H = (0, 9, -7, 9, 0, -7, -7, 4, 0, 9)


def _row(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64())})


@pytest.mark.parametrize("in_commit", ["true", "false"])
def test_times_only_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_commit: str) -> None:
    real = time.time_ns
    root = tmp_path / "t"
    for number, hours in enumerate(OFFSETS_H):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: real() + hours * HOUR_NS)
        writer = DeltaTable(root)
        properties = {"delta.enableInCommitTimestamps": in_commit, "delta.checkpointInterval": "4"}
        writer.append(_row(number), properties=properties if number == 0 else None)
        assert writer.vacuum().paths == ()
        writer.cleanup_log()
        writer.wait_for_upkeep()
    monkeypatch.setattr(time, "time_ns", real)
    table = DeltaTable(root)
    times = [entry.timestamp_ms for entry in reversed(list(table.history()))]
    assert len(times) == len(OFFSETS_H)
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    for version, moment_ms in enumerate(times):
        moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
        found = table.snapshot(timestamp=moment)
        assert found.version == version
        assert sorted(found.scan().to_arrow()["id"].to_pylist()) == list(range(version + 1))
    assert table.fsck(deep=True).ok


def _aged_table(root: Path, hours: int) -> DeltaTable:
    """A table whose rows were replaced, and whose files, but not the tombstones, are `hours` old."""
    table = DeltaTable(root)
    table.append(_row(1))
    table.overwrite(_row(2))
    then = time.time() - hours * 3600
    for path in root.glob("*.parquet"):
        os.utime(path, (then, then))
    return table


@pytest.mark.parametrize("full", [True, False])
def test_a_fast_clock_makes_no_file_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    table = _aged_table(tmp_path / "t", hours=24 * 30)
    monkeypatch.setattr(time, "time_ns", lambda now=time.time_ns: now() + 24 * 9 * HOUR_NS)
    assert table.vacuum(full=full).paths == ()
    assert table.snapshot(0).scan().to_arrow()["id"].to_pylist() == [1]
    assert not list((tmp_path / "t" / "_delta_log").glob(".*"))


def test_a_fast_clock_makes_no_version_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _aged_table(tmp_path / "t", hours=0)
    table.checkpoint()
    monkeypatch.setattr(time, "time_ns", lambda now=time.time_ns: now() + 24 * 40 * HOUR_NS)
    assert table.cleanup_log(dry_run=True).paths
    assert table.cleanup_log().paths == ()
    assert table.snapshot(0).scan().to_arrow()["id"].to_pylist() == [1]


def test_a_checkpoint_by_a_fast_clock_keeps_tombstones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _aged_table(tmp_path / "t", hours=24 * 30)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda now=time.time_ns: now() + 24 * 9 * HOUR_NS)
        table.checkpoint()
    (tmp_path / "t/_delta_log/00000000000000000001.json").unlink()
    assert DeltaTable(tmp_path / "t").vacuum().paths == ()


def test_a_slow_clock_dates_no_removal_before_what_it_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(_row(1))
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda now=time.time_ns: now() - 24 * 9 * HOUR_NS)
        table.overwrite(_row(2))
    then = time.time() - 24 * 30 * 3600
    for path in (tmp_path / "t").glob("*.parquet"):
        os.utime(path, (then, then))
    assert DeltaTable(tmp_path / "t").vacuum().paths == ()
