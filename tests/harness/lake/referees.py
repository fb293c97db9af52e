"""Other clients that read a table, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_LOOP = """
for line in sys.stdin:
    path, output = json.loads(line)
    try:
        read(path, output)
        print("read", flush=True)
    except Exception as error:
        print(repr(error)[:300].replace(chr(10), " "), flush=True)
"""
_DUCKDB = """
import json, sys, duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET TimeZone = 'UTC'")
connection.execute(f"LOAD '{sys.argv[1]}'")
def read(path, output):
    rows = connection.sql(f"FROM delta_scan('{path}')")
    if "VARIANT" in str(rows.types):
        raise ValueError("it writes variants in a layout of its own")
    rows.write_parquet(output)
"""
_DELTALAKE = """
import json, sys, deltalake, pyarrow as pa, pyarrow.parquet as pq
def read(path, output):
    table = deltalake.DeltaTable(path)
    rows = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    pq.write_table(pa.table(rows), output)
"""


@contextmanager
def running_referees(wanted: bool = True) -> Iterator[dict[str, Any]]:
    """Readers by name: each gives the rows of a table, None where it refuses it."""
    side = Path(sys.prefix) / "referees"
    programs = {"deltalake": (_DELTALAKE, ""), "duckdb": (_DUCKDB, str(next(side.rglob("delta.duckdb_extension"), "")))}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", program + _LOOP, extension],
            env={**os.environ, "PYTHONPATH": str(side)} if name == "duckdb" else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, (program, extension) in programs.items()
        if wanted and (name != "duckdb" or extension)
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield {name: _reader(process, Path(folder)) for name, process in running.items()}
    finally:
        for process in running.values():
            process.communicate()


def _reader(process: subprocess.Popen[str], folder: Path) -> Any:
    def read(path: Path) -> pa.Table | None:
        output = folder / "rows.parquet"
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([str(path), str(output)]) + "\n")
        process.stdin.flush()
        return pq.read_table(output) if process.stdout.readline().strip() == "read" else None

    return read
