"""The next checkpoint of a table of a million files whose last one is a V2 checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.synthetic_log import cached, write_large_checkpoint

NUM_FILES = 1_000_000
COMMITS = 10
TITLE = f"V2 checkpoint of {NUM_FILES:,} files, {COMMITS} commits after the last one: open the table, write it"
RESULTS_MAY_DIFFER = True

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """The table, made into one with V2 checkpoints and with commits after its first."""
    return cached(directory, "checkpoint_v2", _make)


def _make(table: Path) -> None:
    from delta_orch import DeltaTable
    from tests.harness.table_builder import append_days

    write_large_checkpoint(table, NUM_FILES, 100_000, 1)
    handle = DeltaTable(table)
    metadata = handle.snapshot().metadata
    body = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata.schema_string,
        "partitionColumns": ["date"],
        "configuration": {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "100000"},
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["v2Checkpoint"],
        "writerFeatures": ["v2Checkpoint"],
    }
    version = handle.version() + 1
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": body})]
    (table / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines))
    handle.checkpoint()
    for _ in range(COMMITS):
        append_days(handle, handle.snapshot(), "2013-01-01")


def untouched_sidecars_taken_over() -> Run:
    """As it is."""
    return _write


def everything_written_again() -> Run:
    """The same, nothing taken over."""
    from delta_orch.log.upkeep import sidecar_reuse

    vars(sidecar_reuse)["_SMALL_ROWS"] = 1 << 60
    return _write


def _write(table: Path) -> str:
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
    from delta_orch.storage.local import LocalStore

    copy = Path(tempfile.mkdtemp(dir=table.parent))
    try:
        (copy / "_delta_log" / "_sidecars").mkdir(parents=True)
        for file in (table / "_delta_log").rglob("*"):
            if file.is_file():
                os.link(file, copy / file.relative_to(table))
        before = set((copy / "_delta_log" / "_sidecars").iterdir())
        log = TableLog(LocalStore(copy))
        write_checkpoint(log, log.snapshot())
        new = set((copy / "_delta_log" / "_sidecars").iterdir()) - before
        size = sum(file.stat().st_size for file in new)
        return f"{len(new)} new sidecars, {size / 1e6:.1f} MB"
    finally:
        shutil.rmtree(copy)


CONTESTANTS = {
    "untouched sidecars taken over": untouched_sidecars_taken_over,
    "everything written again": everything_written_again,
}
"""Both by the same code."""
