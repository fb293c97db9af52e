"""10,000 small files of 20 rows, read as rows in process beside DuckDB alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.synthetic_log import cached

NUM_FILES, ROWS_OF_FILE = 10_000, 20

Run = Callable[[Path], object]


def files_of(directory: Path, kind: str) -> Path:
    """The directory of files of a kind, `json` or `csv`."""

    def make(table: Path) -> None:
        chosen = random.Random(1)
        landing = table / "landing"
        landing.mkdir()
        for number in range(NUM_FILES):
            rows = [
                {"id": number * ROWS_OF_FILE + i, "name": f"name {i}", "amount": chosen.random() * 100,
                 "at": "2024-01-01T00:00:00Z"}
                for i in range(ROWS_OF_FILE)
            ]  # fmt: skip
            lines = [json.dumps(row) for row in rows]
            if kind == "csv":
                lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            (landing / f"{number:05}.{kind}").write_text("\n".join(lines) + "\n")

    return cached(directory, f"arriving_{kind}", make) / "landing"


def ours(kind: str) -> Run:
    """The rows in the types of a table, each with its file."""
    import pyarrow as pa

    from delta_orch import FileSource
    from delta_orch.arrival.read_files import read_files
    from delta_orch.engines.local.engine import LocalEngine

    at = pa.timestamp("us", "UTC")
    table = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("at", at)])

    def run(landing: Path) -> object:
        source = FileSource(str(landing), format=kind, source_file=True)  # type: ignore[arg-type]
        rows = read_files(source, source.list_files(), table, engine=LocalEngine())
        return rows.batches.read_all().num_rows

    return run


def duckdb(kind: str) -> Run:
    """DuckDB alone, which guesses the types, and does not look whether a value loses anything."""
    import duckdb

    def run(landing: Path) -> object:
        paths = sorted(map(str, landing.iterdir()))
        return duckdb.connect().sql(f"SELECT * FROM read_{kind}(?)", params=[paths]).to_arrow_table().num_rows

    return run
