"""One process appends 500 rows, one by one, to a local table."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TITLE = "Appends by one writer: 500 one-row appends to one local table, checkpoints included"
RESULTS_MAY_DIFFER = True
APPENDS = 500
MOST_ROUNDS = 3

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A directory on the disk to be measured; every run makes its own table in it."""
    path = directory / "single_writer_appends"
    path.mkdir(parents=True, exist_ok=True)
    return path


def delta_orch() -> Run:
    """One `DeltaTable`, as a task that loops would use it."""
    import pyarrow as pa

    from delta_orch import DeltaTable

    row = pa.table({"writer": [1], "value": ["x"]})

    def run(path: str) -> Callable[[], object]:
        table = DeltaTable(path)
        table.append(row)
        return lambda: table.append(row)

    return _timed(run)


def delta_orch_new_handles() -> Run:
    """A `DeltaTable` for each append, as tasks have that share nothing."""
    import pyarrow as pa

    from delta_orch import DeltaTable

    row = pa.table({"writer": [1], "value": ["x"]})

    def run(path: str) -> Callable[[], object]:
        DeltaTable(path).append(row)
        return lambda: DeltaTable(path).append(row)

    return _timed(run)


def deltalake() -> Run:
    """delta-rs, a table kept open; it does not sync what it writes."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    row = pa.table({"writer": [1], "value": ["x"]})

    def run(path: str) -> Callable[[], object]:
        write_deltalake(path, row)
        table = DeltaTable(path)
        return lambda: write_deltalake(table, row, mode="append")

    return _timed(run)


def floor() -> Run:
    """What an append must at least put on disk: a Parquet file and a commit file, both synced, the commit linked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = pa.table({"writer": [1], "value": ["x"]})

    def run(path: str) -> Callable[[], object]:
        Path(path).mkdir()
        state = {"next": 0}

        def append() -> None:
            number = state["next"] = state["next"] + 1
            sink = pa.BufferOutputStream()
            pq.write_table(row, sink)
            _write_synced(f"{path}/{number}.parquet", sink.getvalue())
            _write_synced(f"{path}/.{number}.json", b"x" * 800)
            os.link(f"{path}/.{number}.json", f"{path}/{number:020d}.json")
            Path(f"{path}/.{number}.json").unlink()

        return append

    return _timed(run)


def _write_synced(path: str, data: bytes) -> None:
    with Path(path).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _timed(start: Callable[[str], Callable[[], object]]) -> Run:
    def run(directory: Path) -> str:
        root = tempfile.mkdtemp(dir=directory)
        try:
            append = start(f"{root}/table")
            started = time.perf_counter()
            for _ in range(APPENDS):
                append()
            return f"{APPENDS / (time.perf_counter() - started):.0f} appends/s"
        finally:
            shutil.rmtree(root)

    return run


CONTESTANTS = {
    "delta_orch": delta_orch,
    "delta_orch, new handles": delta_orch_new_handles,
    "deltalake": deltalake,
    "floor: synced files": floor,
}
