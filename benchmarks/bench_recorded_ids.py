"""Measure a table with a million recorded transaction identifiers: open it and look one up; append with another."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.synthetic_log import cached

NUM_IDS = 1_000_000
APPENDS = 30
TITLE = f"{NUM_IDS:,} recorded ids: open and look one up; then {APPENDS} appends, each with a new id"
RESULTS_MAY_DIFFER = True

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """Two tables of one file, each with a checkpoint: one with the identifiers in it, one without."""
    return cached(directory, "recorded_ids", _make)


def _make(root: Path) -> None:
    from delta_orch import DeltaTable

    for name, count in (("without", 0), ("with", NUM_IDS)):
        table = DeltaTable(root / name)
        table.append(pa.table({"id": [1]}))
        table.checkpoint()
        path = root / name / "_delta_log" / f"{0:020d}.checkpoint.parquet"
        rows = pq.read_table(path)
        field = rows.schema.field("txn")
        ids = pa.StructArray.from_arrays(
            [
                pa.array(
                    [f"airflow:warehouse.load_orders:2024-01-01T00:00:00+00:00/{n}" for n in range(count)], pa.string()
                ),
                pa.array(range(count), pa.int64()),
                pa.array([1_700_000_000_000] * count, pa.int64()),
            ],
            ["appId", "version", "lastUpdated"],
        ).cast(field.type)
        columns = [ids if f.name == "txn" else pa.nulls(count, f.type) for f in rows.schema]
        pq.write_table(pa.concat_tables([rows, pa.Table.from_arrays(columns, schema=rows.schema)]), path)
        (root / name / "_delta_log" / f"{0:020d}.crc").unlink(missing_ok=True)
        # As this package writes it, over that of another writer.
        table = DeltaTable(root / name)
        table.append(pa.table({"id": [1]}))
        table.checkpoint()
        path.unlink()


def delta_orch(name: str) -> Callable[[], Run]:
    def start() -> Run:
        from delta_orch import DeltaTable, TxnId

        copy = Path(tempfile.mkdtemp(dir=sys.argv[3])) / "table"

        def run(root: Path) -> str:
            shutil.copytree(root / name, copy)
            try:
                rows = pa.table({"id": [1]})
                started = time.perf_counter()
                table = DeltaTable(copy)
                table.snapshot().txn_version("airflow:warehouse.load_orders:2024-01-01T00:00:00+00:00/77777")
                opened_s = time.perf_counter() - started
                seconds = []
                for number in range(APPENDS):
                    started = time.perf_counter()
                    table.append(rows, txn=TxnId(f"new {number}", 1))
                    seconds.append(time.perf_counter() - started)
                table.wait_for_upkeep()
                first, middle, mean = (1000 * s for s in (seconds[0], median(seconds), sum(seconds) / APPENDS))
                return f"open {1000 * opened_s:.0f}, first {first:.0f}, median {middle:.1f}, mean {mean:.1f} ms"
            finally:
                shutil.rmtree(copy.parent)

        return run

    return start


CONTESTANTS = {"delta_orch": delta_orch("with"), "floor: the same without ids": delta_orch("without")}
