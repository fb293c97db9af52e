"""What version checksums cost each commit."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TITLE = "Version checksums: 1,000 one-file commits from one writer to one local table (commits alone, no data files)"
RESULTS_MAY_DIFFER = True
COMMITS = 1000

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A directory on the disk to be measured; every run makes its own table in it."""
    path = directory / "commit_checksum"
    path.mkdir(parents=True, exist_ok=True)
    return path


def with_checksums() -> Run:
    """As it is."""
    return _append_all


def without_checksums() -> Run:
    """The same, the checksum left out."""
    from delta_orch.log.upkeep import post_commit

    vars(post_commit)["_is_near"] = lambda store: False
    return _append_all


def _append_all(directory: Path) -> str:
    from delta_orch import DeltaTable
    from tests.harness.table_builder import append_days, create_table

    root = tempfile.mkdtemp(dir=directory)
    try:
        table = DeltaTable(root)
        create_table(table, "1", properties={"delta.checkpointInterval": "100000"})
        started = time.perf_counter()
        for _ in range(COMMITS):
            append_days(table, table.snapshot(), "2013-01-01")
        seconds = time.perf_counter() - started
        checksums = len(list(Path(root, "_delta_log").glob("*.crc")))
    finally:
        shutil.rmtree(root)
    return f"{COMMITS / seconds:.0f} commits/s, {checksums} checksums"


CONTESTANTS = {"with checksums": with_checksums, "without": without_checksums}
"""Both by the same code; what lies between them is the checksum."""
