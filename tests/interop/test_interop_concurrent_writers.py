"""delta-rs and we write one local table at the same time: neither loses a row, neither overwrites a commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable

pytest.importorskip("deltalake", reason="deltalake is not installed")

APPENDS = 15

OURS = """
import sys
import pyarrow as pa
from delta_orch import DeltaTable
table = DeltaTable(sys.argv[1])
for n in range(int(sys.argv[3])):
    result = table.append(pa.table({"writer": [sys.argv[2]], "n": pa.array([n], pa.int64())}))
    assert not result.skipped
print(int(sys.argv[3]))
"""

THEIRS = """
import sys
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
done = 0
for n in range(int(sys.argv[3])):
    try:
        write_deltalake(sys.argv[1], pa.table({"writer": [sys.argv[2]], "n": pa.array([n], pa.int64())}), mode="append")
        done += 1
    except CommitFailedError:
        pass  # it gives up under contention; what it did commit must be there
print(done)
"""


def test_appends_of_both(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable(path).append(pa.table({"writer": ["first"], "n": pa.array([0], pa.int64())}))
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", script, str(path), name, str(APPENDS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, script in (("ours-1", OURS), ("ours-2", OURS), ("theirs-1", THEIRS), ("theirs-2", THEIRS))
    }
    outputs = {name: process.communicate(timeout=240) for name, process in writers.items()}
    failed = {name: err for name, (_, err) in outputs.items() if writers[name].returncode}
    assert not failed
    committed = {name: int(out) for name, (out, _) in outputs.items()}
    assert committed["ours-1"] == committed["ours-2"] == APPENDS
    rows = DeltaTable(path).snapshot().scan().to_arrow().to_pylist()
    counts = {name: sum(row["writer"] == name for row in rows) for name in committed}
    assert counts == committed
    assert len({(row["writer"], row["n"]) for row in rows}) == len(rows)
    assert DeltaTable(path).version() == sum(committed.values())
