"""DuckDB's own delta extension (delta-kernel-rs inside) as a reader.

The extension fits one release of DuckDB, seldom the one that is installed, so it runs in a process of its own: with the
release that `scripts/setup.sh` puts beside the environment, or else with the installed one and an extension that DuckDB
downloads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

INSTALL_TIMEOUT_SECONDS = 25
_COPY_TIMEOUT_SECONDS = 120

_COPY = """
import sys
import duckdb

extension, folder, table, rows = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET TimeZone = 'UTC'")
if extension:
    connection.execute(f"LOAD '{extension}'")
else:
    connection.execute(f"SET extension_directory = '{folder}'; INSTALL delta; LOAD delta")
if table:
    connection.execute(f"COPY (FROM delta_scan('{table}')) TO '{rows}' (FORMAT parquet)")
"""


def why_unavailable(folder: Path) -> str | None:
    """Why the extension cannot be used; None where it can. `folder` is where a download would be kept."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # A firewall that drops packets would hold a download up for minutes.
        done = _run(folder, timeout=INSTALL_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"its download did not finish within {INSTALL_TIMEOUT_SECONDS} s"
    if done.returncode == 0:
        return None
    lines = [line.partition(": ")[2] for line in done.stderr.splitlines() if "Error: " in line]
    return lines[0].partition(" at URL")[0] if lines else f"the attempt ended with code {done.returncode}"


def copy_rows(folder: Path, table: Path, rows: Path) -> None:
    """Write the rows of a table, as the extension reads them, to a Parquet file. Raises RuntimeError."""
    done = _run(folder, str(table), str(rows), timeout=_COPY_TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"DuckDB's delta extension could not read {table}: {done.stderr.strip()}")


def _run(folder: Path, table: str = "", rows: str = "", *, timeout: float) -> subprocess.CompletedProcess[str]:
    environment, extension = dict(os.environ), ""
    beside = Path(sys.prefix) / "referees"
    if found := next(beside.rglob("delta.duckdb_extension"), None):
        environment["PYTHONPATH"], extension = str(beside), str(found)
    command = [sys.executable, "-c", _COPY, extension, str(folder), table, rows]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
