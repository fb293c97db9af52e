"""Other implementations as referees of what we write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.interop.reference_client import HOME, Reference, start_reference

SIDE_PATH = "DELTA_ORCH_DUCKDB_DELTA"
"""Names a folder made by `pip install --target FOLDER duckdb-extension-delta`: that extension fits one DuckDB only.
`scripts/setup.sh` makes one in the environment."""

_READ = """
import sys
path, extension, output = sys.argv[1:]
import duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET TimeZone = 'UTC'")
connection.execute(f"LOAD '{extension}'" if extension else "LOAD delta")
if path:
    connection.execute(f"COPY (FROM delta_scan('{path}')) TO '{output}' (FORMAT parquet)")
"""

Referee = Callable[[Path], pa.Table]


@pytest.fixture(scope="session")
def duckdb_delta(tmp_path_factory: pytest.TempPathFactory) -> Referee:
    """Reads a table with DuckDB's delta extension, in a process of its own."""
    import pyarrow.parquet as pq

    environment, extension = dict(os.environ), ""
    installed = Path(sys.prefix) / "referees"
    side = os.environ.get(SIDE_PATH) or (str(installed) if installed.is_dir() else None)
    if side:
        environment["PYTHONPATH"] = side
        extension = str(next(Path(side).rglob("delta.duckdb_extension")))

    def run(path: str, output: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _READ, path, extension, output]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    probe = run("", "")
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ["?"])[-1]
        pytest.skip(
            f"DuckDB's delta extension is not installed ({reason}); see {SIDE_PATH} in tests/interop/conftest.py"
        )
    folder = tmp_path_factory.mktemp("duckdb")

    def read(path: Path) -> pa.Table:
        output = folder / "rows.parquet"
        done = run(str(path), str(output))
        assert done.returncode == 0, done.stderr
        return pq.read_table(output)

    return read


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The reference implementation, Delta on Spark, where `make interop` has installed it."""
    if not (HOME / ".installed").is_file():
        pytest.skip("Delta on Spark is not installed; `make interop` installs it and runs these tests")
    with start_reference(tmp_path_factory.mktemp("reference")) as running:
        yield running
