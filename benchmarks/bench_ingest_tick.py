"""Measure a look at a million files. A hundred are new, and the table has loaded ten million."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

NUM_LISTED, NUM_RECORDED, NUM_NEW = 1_000_000, 10_000_000, 100
_IN_DIRECTORY = 1000
TITLE = f"{NUM_LISTED:,} files listed, {NUM_RECORDED:,} on record, {NUM_NEW} new: find and load these; then none"
RESULTS_MAY_DIFFER = True
MOST_ROUNDS = 3

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A directory with the files, and a table whose record has them and nine times as many around them."""
    root = directory.resolve() / "ingest_tick"  # Its path is part of the record.
    if not (root / "_complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        _make(root)
        (root / "_complete").touch()
    return root


def _make(root: Path) -> None:
    from delta_orch import DeltaTable, FileSource
    from delta_orch.arrival.loaded_files import LoadedFiles, cursor_id

    landing = root / "landing"
    for directory in range(NUM_LISTED // _IN_DIRECTORY):
        place = landing / f"hour={directory:06d}"
        place.mkdir(parents=True)
        for number in range(_IN_DIRECTORY):
            (place / f"events-{directory * _IN_DIRECTORY + number:09d}.json").touch()
    source = FileSource(landing, format="json", max_files=NUM_RECORDED)
    table = DeltaTable(root / "table")
    table.create("id bigint")
    listed = source.list_files()
    recorded = -1
    # In each part a tenth of the files that are there, so that no part can be left out of the search.
    for part in range(10):
        own = listed.take(pa.array(range(part, NUM_LISTED, 10)))
        gone = pa.table(
            {
                "path": [f"hour={n // 900:06d}/gone-{part}-{n:09d}.json" for n in range(900_000)],
                "size": pa.array([100] * 900_000, pa.int64()),
                "modification_time_ms": pa.array(range(900_000), pa.int64()),
                "etag": pa.nulls(900_000, pa.string()),
            }
        )
        loaded = LoadedFiles.read(table.store, cursor_id(source), recorded, recorded)
        version = loaded.next_version()
        loaded.write(version, pa.concat_tables([own, gone]))
        table.append(pa.table({"id": [part]}), txn=loaded.txn(version))
        recorded = version
    for number in range(NUM_NEW):
        (landing / f"hour={number:06d}" / f"new-{number}.json").write_text(f'{{"id": {number}}}\n')


def ingest() -> Run:
    import duckdb  # noqa: F401 - not counted

    from delta_orch import DeltaTable, FileSource

    def run(root: Path) -> str:
        copy = root / f"table-{time.time_ns()}"
        shutil.copytree(root / "table", copy)
        source = FileSource(root / "landing", format="json")
        before_mb = _peak_mb()
        try:
            told = []
            for _ in range(2):
                started = time.perf_counter()
                result = DeltaTable(copy).ingest(source)
                told.append(f"{result.num_files} files in {time.perf_counter() - started:.1f} s")
        finally:
            shutil.rmtree(copy)
        return f"{', '.join(told)}; {_peak_mb() - before_mb} MB"

    return run


def listing() -> Run:
    from delta_orch import FileSource

    def run(root: Path) -> str:
        before_mb = _peak_mb()
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            FileSource(root / "landing", format="json").list_files()
            seconds.append(f"{time.perf_counter() - started:.1f} s")
        return f"{', '.join(seconds)}; {_peak_mb() - before_mb} MB"

    return run


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


CONTESTANTS = {"ingest": ingest, "floor: the two listings": listing}
