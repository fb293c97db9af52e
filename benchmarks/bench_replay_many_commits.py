"""G2: open a table of 5,000 small commits without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.planning_contestants import deltalake_paths, duckdb_paths, polars_planned
from benchmarks.synthetic_log import cached, write_many_commits

TITLE = "G2: replay 5,000 small commits without a checkpoint, list the paths of live files"
NUM_COMMITS = 5000

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """The table, made once."""
    return cached(directory, "many_commits", lambda t: write_many_commits(t, NUM_COMMITS))


def delta_orch() -> Run:
    """Paths as an Arrow column."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.local import LocalStore

    return lambda table: len(TableLog(LocalStore(table)).snapshot().files(["path"])["path"])


def orjson_floor() -> Run:
    """List, read and parse every commit: the least any client in Python must do."""
    import os

    import orjson

    def run(table: Path) -> int:
        adds = 0
        with os.scandir(table / "_delta_log") as entries:
            paths = sorted(entry.path for entry in entries)
        for path in paths:
            with Path(path).open("rb") as file:
                adds += sum("add" in orjson.loads(line) for line in file)
        return adds

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "deltalake": deltalake_paths,
    "duckdb, delta extension": duckdb_paths,
    "polars, planning only": polars_planned,
    "floor: scandir, orjson": orjson_floor,
}
