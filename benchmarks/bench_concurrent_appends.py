"""8 processes append 50 rows each, one by one, to one local table."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.race import race

TITLE = "Concurrent appends: 8 processes × 50 one-row appends to one local table"
RESULTS_MAY_DIFFER = True
WRITERS = 8
APPENDS = 50

Run = Callable[[Path], object]
Append = Callable[[], object]


def prepare(directory: Path) -> Path:
    """A directory on the disk to be measured; every run makes its own table in it."""
    path = directory / "concurrent_appends"
    path.mkdir(parents=True, exist_ok=True)
    return path


def delta_orch() -> Run:
    """Rows: a Parquet file and a commit each."""
    import pyarrow as pa

    from delta_orch import DeltaTable

    row = pa.table({"writer": [1], "value": ["x"]})

    def open_table(path: str) -> Append:
        table = DeltaTable(path)
        return lambda: table.append(row)

    return _contest(lambda path: DeltaTable(path).append(row), open_table, _versions_and_files)


def delta_orch_commits() -> Run:
    """The commit alone, without a data file."""
    from delta_orch import DeltaTable
    from tests.harness.table_builder import append_days, create_table

    def open_table(path: str) -> Append:
        table = DeltaTable(path)
        return lambda: append_days(table, table.snapshot(), "2013-01-01")

    return _contest(lambda path: create_table(DeltaTable(path), "1"), open_table, _versions_and_files)


def deltalake() -> Run:
    """delta-rs: rows, as above."""
    import pyarrow as pa
    from deltalake import write_deltalake

    row = pa.table({"writer": [1], "value": ["x"]})

    def create(path: str) -> None:
        # Its runtime does not survive a fork: this process must not start it.
        process = multiprocessing.get_context("fork").Process(target=write_deltalake, args=(path, row))
        process.start()
        process.join()

    def open_table(path: str) -> Append:
        return lambda: write_deltalake(path, row, mode="append")

    return _contest(create, open_table, _versions_and_files)


def exclusive_creates_floor() -> Run:
    """The least that commits need: 400 files, each written, synced and linked to the next free number."""

    def open_table(path: str) -> Append:
        state = {"next": 0}

        def append() -> None:
            while not _link_new_file(path, state["next"]):
                state["next"] += 1

        return append

    def check(path: str) -> tuple[int, int]:
        files = len(list(Path(path).glob("*.json")))
        return files, files

    return _contest(lambda path: Path(path).mkdir(), open_table, check)


def _link_new_file(directory: str, number: int) -> bool:
    name = f"{directory}/{number:020d}.json"
    if Path(name).exists():
        return False
    temporary = f"{directory}/.{os.getpid()}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"x" * 800)
    os.fsync(descriptor)
    os.close(descriptor)
    try:
        os.link(temporary, name)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink()
    return True


def _versions_and_files(path: str) -> tuple[int, int]:
    """Commits after the first one, and files they have added."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.local import LocalStore

    snapshot = TableLog(LocalStore(path)).snapshot()
    return snapshot.version, snapshot.num_files - 1


def _contest(
    create: Callable[[str], Any], open_table: Callable[[str], Append], check: Callable[[str], tuple[int, int]]
) -> Run:
    def run(directory: Path) -> str:
        root = tempfile.mkdtemp(dir=directory)
        try:
            path = f"{root}/table"
            create(path)
            seconds, failed = race(path, open_table, WRITERS, APPENDS)
            commits, files = check(path)
        finally:
            shutil.rmtree(root)
        lost = WRITERS * APPENDS - failed - files
        return f"{commits / seconds:.0f} commits/s, {failed} of {WRITERS * APPENDS} failed, {lost} lost"

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "delta_orch, commits alone": delta_orch_commits,
    "deltalake": deltalake,
    "floor: exclusive creates": exclusive_creates_floor,
}
