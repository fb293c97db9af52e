"""Processes that upsert different keys of the same files at once: none may have to run its statement again.

    python -m tests.harness.upserts DIRECTORY --processes 8 --upserts 50

prints statements per second, and how many commits of others an upsert had to move behind.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable

FILES = 4
PROPERTIES = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}


@dataclass(frozen=True)
class Outcome:
    """What the processes came to.

    Attributes:
        statements: Upserts that ended well; any other end is raised.
        rebased: Commits of others that they moved behind, in all.
        seconds: From the first start to the last end.
    """

    statements: int
    rebased: int
    seconds: float


def create(uri: str, num_keys: int) -> None:
    """Keys from 0 on, spread over a few files so that each file holds keys of every process."""
    for number in range(FILES):
        keys = pa.array(range(number, num_keys, FILES), pa.int64())
        rows = pa.table({"key": keys, "by": pa.array(["base"] * len(keys))})
        DeltaTable(uri).append(rows, properties=PROPERTIES)


def upsert_some(uri: str, process: int, processes: int, upserts: int) -> int:
    """One process: each of its keys in a statement of its own. Returns the commits it moved behind."""
    table, rebased = DeltaTable(uri), 0
    for number in range(upserts):
        key = number * processes + process
        rows = pa.table({"key": pa.array([key], pa.int64()), "by": [f"process {process}"]})
        rebased += len(table.upsert(rows, ["key"]).rebased_versions)
    return rebased


def run(uri: str, processes: int, upserts: int) -> Outcome:
    """Raises what an upsert raises: a conflict would be the failure this looks for."""
    create(uri, processes * upserts)
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        pool.map(abs, range(processes))  # so that all have started
        started = time.monotonic()
        pending = [pool.apply_async(upsert_some, (uri, number, processes, upserts)) for number in range(processes)]
        rebased = sum(result.get(timeout=1200) for result in pending)
        seconds = time.monotonic() - started
    ensure_complete(uri, processes, upserts)
    return Outcome(processes * upserts, rebased, seconds)


def ensure_complete(uri: str, processes: int, upserts: int) -> None:
    """Every key is there once, with the value of its process, and each statement is one version."""
    table = DeltaTable(uri)
    found = table.snapshot().scan(row_tracking=True).to_arrow()
    rows = dict(zip(found["key"].to_pylist(), found["by"].to_pylist(), strict=True))
    assert found.num_rows == len(rows) == processes * upserts
    assert all(by == f"process {key % processes}" for key, by in rows.items())
    assert len(set(found["row_id"].to_pylist())) == found.num_rows
    assert table.version() == FILES - 1 + processes * upserts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--upserts", type=int, default=50)
    given = parser.parse_args()
    found = run(str(given.directory), given.processes, given.upserts)
    rate = found.statements / found.seconds
    sys.stdout.write(
        f"{found.statements} upserts, 0 failed: {rate:.1f} a second, behind {found.rebased} others' commits\n"
    )


if __name__ == "__main__":
    main()
