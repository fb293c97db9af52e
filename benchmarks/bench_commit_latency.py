"""One commit to a table that is large and has a long history."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_open_large_checkpoint import NUM_FILES, ROW_GROUP_ROWS
from benchmarks.synthetic_log import cached, write_large_checkpoint

TITLE = f"Commit latency: {NUM_FILES:,} files, 5,000 commits kept; open and append once, then 20 appends (their median)"
RESULTS_MAY_DIFFER = True
KEPT_COMMITS = 5000
APPENDS = 20

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A checkpoint of a million files, 20 commits after it, and thousands of commits before it that are still there."""

    def make(table: Path) -> None:
        write_large_checkpoint(table, NUM_FILES, ROW_GROUP_ROWS, 20, version=KEPT_COMMITS, kept_commits=KEPT_COMMITS)

    return cached(directory, "large_checkpoint_long_history", make)


def delta_orch() -> Run:
    """A row each."""
    import pyarrow as pa

    from delta_orch import DeltaTable

    rows = pa.table({"id": [1], "value": [0.5], "name": ["n"], "date": pa.array([0], pa.date32())})
    return _timed(DeltaTable, lambda table: table.append(rows), lambda table: table.wait_for_upkeep())


def deltalake() -> Run:
    """delta-rs, the same; its table stays open, too."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    rows = pa.table({"id": [1], "value": [0.5], "name": ["n"], "date": pa.array([0], pa.date32())})
    return _timed(DeltaTable, lambda table: write_deltalake(table, rows, mode="append"))


def _timed(
    open_table: Callable[[str], object],
    append: Callable[[Any], object],
    finish: Callable[[Any], object] = lambda table: None,
) -> Run:
    """Args:
    finish: Waits for what the appends have left to be done behind their back.
    """
    copy = _copy(Path(sys.argv[3]))

    def run(_table: Path) -> str:
        try:
            started = time.perf_counter()
            table = open_table(str(copy))
            append(table)
            first_s = time.perf_counter() - started
            seconds = []
            for _ in range(APPENDS):
                started = time.perf_counter()
                append(table)
                seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
            finish(table)
            rest_ms = (time.perf_counter() - started) * 1000
            middle, most = median(seconds) * 1000, max(seconds) * 1000
            return (
                f"first {first_s * 1000:.0f} ms, then {middle:.1f} ms, slowest {most:.0f} ms, {rest_ms:.0f} ms behind"
            )
        finally:
            shutil.rmtree(copy.parent)

    return run


def _copy(table: Path) -> Path:
    """A copy of the log that shares the bytes of what nobody changes."""
    copy = Path(tempfile.mkdtemp(dir=table.parent)) / "table"
    shutil.copytree(table / "_delta_log", copy / "_delta_log", copy_function=lambda a, b: Path(b).hardlink_to(a))
    hint = copy / "_delta_log" / "_last_checkpoint"
    content = json.loads(hint.read_bytes())
    hint.unlink()
    hint.write_text(json.dumps(content))
    return copy


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake}
