"""Writers whose clocks are hours apart: times of versions only grow, time travel finds each, and nothing young goes."""

from __future__ import annotations

import itertools
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
