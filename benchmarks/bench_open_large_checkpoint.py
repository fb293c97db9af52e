"""G1: open a table of a million files and list their paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.planning_contestants import deltalake_paths, duckdb_paths, polars_planned
from benchmarks.synthetic_log import cached, write_large_checkpoint

TITLE = "G1: open a table of 1,000,000 files (V1 checkpoint, 20 commits after it), list the paths of live files"
NUM_FILES = 1_000_000
ROW_GROUP_ROWS = 100_000
TAIL_COMMITS = 20
ROUNDS = {"duckdb, delta extension": 1, "polars, planning only": 1}

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """The table, made once."""
    return cached(
        directory, "large_checkpoint", lambda t: write_large_checkpoint(t, NUM_FILES, ROW_GROUP_ROWS, TAIL_COMMITS)
    )


def delta_orch() -> Run:
    """Paths as an Arrow column."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.local import LocalStore

    return lambda table: len(TableLog(LocalStore(table)).snapshot().files(["path"])["path"])


def delta_orch_list() -> Run:
    """Paths as a Python list."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.local import LocalStore

    return lambda table: len(TableLog(LocalStore(table)).snapshot().files(["path"])["path"].to_pylist())


def pyarrow_floor() -> Run:
    """Decode two columns with bare pyarrow: the least any client must do. Adds what the commits change."""
    import pyarrow.parquet as pq

    def run(table: Path) -> int:
        (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
        columns = pq.read_table(checkpoint, columns=["add.path", "add.size"])
        return int(columns.num_rows) - 2 + 25 * TAIL_COMMITS

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "delta_orch, as a list": delta_orch_list,
    "deltalake": deltalake_paths,
    "duckdb, delta extension": duckdb_paths,
    "polars, planning only": polars_planned,
    "floor: pyarrow, two columns": pyarrow_floor,
}
