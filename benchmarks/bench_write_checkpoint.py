"""Write the checkpoint of a table of a million files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_open_large_checkpoint import NUM_FILES, prepare

__all__ = ["CONTESTANTS", "TITLE", "prepare"]

TITLE = f"Checkpoint of G1 ({NUM_FILES:,} files with statistics): open the table, write it"

Run = Callable[[Path], object]


def delta_orch() -> Run:
    """V1, one file."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
    from delta_orch.storage.local import LocalStore

    def write(table: str) -> None:
        log = TableLog(LocalStore(table))
        write_checkpoint(log, log.snapshot())

    return lambda table: _on_a_copy(table, write)


def deltalake() -> Run:
    """delta-rs."""
    from deltalake import DeltaTable

    return lambda table: _on_a_copy(table, lambda copy: DeltaTable(copy).create_checkpoint())


def _on_a_copy(table: Path, write: Callable[[str], None]) -> str:
    """Run on hard links to the log; the number of live files in the new checkpoint."""
    import pyarrow.parquet as pq

    copy = Path(tempfile.mkdtemp(dir=table.parent))
    try:
        (copy / "_delta_log").mkdir()
        for file in (table / "_delta_log").iterdir():
            os.link(file, copy / "_delta_log" / file.name)
        write(str(copy))
        newest = max((copy / "_delta_log").glob("*.checkpoint.parquet"))
        return f"{_num_adds(pq.read_metadata(newest))} files"
    finally:
        shutil.rmtree(copy)


def _num_adds(metadata: Any) -> int:
    """From the footer: decoding the paths would be part of what is measured."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    leaf = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == "add.path")
    return sum(group.num_rows - group.column(leaf).statistics.null_count for group in groups)


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake}
