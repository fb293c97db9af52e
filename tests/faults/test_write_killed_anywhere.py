"""A pipeline step killed at any moment of a real write, data files included, and started again until it is through:
every row is there once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from delta_orch import DeltaTable
from delta_orch.errors import TableNotFoundError
from tests.families import family

STEPS = 30
ROWS = 50

STEP = f"""
import sys
import pyarrow as pa
from delta_orch import DeltaTable, TxnId
table = DeltaTable(sys.argv[1])
print("ready", flush=True)
for step in range({STEPS}):
    rows = pa.table({{"day": [f"d{{step % 3}}"] * {ROWS}, "id": pa.array(range(step * {ROWS}, (step + 1) * {ROWS}), pa.int64())}})
    result = table.append(rows, partition_by=["day"], txn=TxnId("job", step), properties={{"delta.checkpointInterval": "4"}})
    print(step, result.skipped, flush=True)
"""  # noqa: E501


def start(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", STEP, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ids(path: Path) -> list[int]:
    try:
        rows = DeltaTable(path).snapshot().scan(columns=["id"]).to_arrow()
    except TableNotFoundError:
        return []
    found: list[int] = rows["id"].to_pylist()
    return sorted(found)


def ensure_a_prefix(path: Path) -> int:
    """Some steps are in, each wholly; how many."""
    found = ids(path)
    assert found == list(range(len(found)))
    assert len(found) % ROWS == 0
    return len(found) // ROWS


@family("seed", [1, 2], every=2)
def test_every_row_once(tmp_path: Path, seed: int) -> None:
    path, dice = tmp_path / "table", random.Random(seed)
    done = 0
    for _ in range(8):
        process = start(path)
        time.sleep(dice.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = ensure_a_prefix(path)
        assert now >= done
        done = now
    process = start(path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert [line.endswith("True") for line in output.splitlines()] == [step < done for step in range(STEPS)]
    assert ids(path) == list(range(STEPS * ROWS))
    assert DeltaTable(path).snapshot().txns == {"job": STEPS - 1}
