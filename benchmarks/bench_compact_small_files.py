"""Many small files become one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

TITLE = "Compaction: 2,000 files of 1,000 rows become one file"
FILES, ROWS = 2_000, 1_000
RESULTS_MAY_DIFFER = True

WARM_UPS = 1

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A table whose files one commit has added."""
    import deltalake
    import numpy as np
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = directory / "compact_small_files"
    if (table / "_delta_log").exists():
        return table
    random = np.random.default_rng(1)
    texts = [f"v{row % 97}" for row in range(ROWS)]
    adds, schema = [], pa.schema([("id", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    deltalake.DeltaTable.create(str(table), schema)
    for number in range(FILES):
        first = number * ROWS
        rows = pa.table([np.arange(first, first + ROWS), random.random(ROWS), texts], schema=schema)
        path = table / f"part-{number:06}-c000.snappy.parquet"
        pq.write_table(rows, path, compression="snappy")
        stats = {"numRecords": ROWS, "minValues": {"id": first}, "maxValues": {"id": first + ROWS - 1}}
        add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
        adds.append(orjson.dumps({"add": {**add, "dataChange": True, "stats": orjson.dumps(stats).decode()}}))
    (table / "_delta_log" / f"{1:020}.json").write_bytes(b"\n".join(adds))
    return table


def _on_a_copy(table: Path, run: Callable[[Path], object]) -> object:
    """Run on a table of links to the same files, as every run needs the table as it was."""
    with tempfile.TemporaryDirectory(dir=table.parent) as directory:
        copy = Path(directory) / "table"
        shutil.copytree(table, copy, copy_function=lambda source, target: Path(target).hardlink_to(source))
        return run(copy)


def delta_orch() -> Run:
    """`optimize`."""
    from delta_orch import DeltaTable

    return lambda table: _on_a_copy(table, lambda copy: DeltaTable(copy).optimize().operation_metrics)


def deltalake() -> Run:
    """delta-rs."""
    from deltalake import DeltaTable

    return lambda table: _on_a_copy(table, lambda copy: DeltaTable(str(copy)).optimize.compact())


def floor() -> Run:
    """DuckDB: the bare files into one, no log."""
    import duckdb

    def run(copy: Path) -> None:
        files = duckdb.read_parquet(f"{copy}/*.parquet")
        files.write_parquet(f"{copy}/one.parquet", compression="zstd")

    return lambda table: _on_a_copy(table, run)


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake, "floor: DuckDB on the files": floor}
