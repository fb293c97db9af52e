"""DuckDB's own reader of Unity Catalog, and a table whose commits a catalog decides: each reads what the other has
written. It lies beside the environment, as `SIDE_PATH` of the conftest says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.unity_emulator import TOKEN, UnityEmulator
from tests.harness.unity_older_api import older_unity_emulator
from tests.interop.conftest import SIDE_PATH

SIDE = Path(os.environ.get(SIDE_PATH) or Path(sys.prefix) / "referees")
EXTENSIONS = {name: next(SIDE.rglob(f"{name}.duckdb_extension"), None) for name in ("httpfs", "delta", "unity_catalog")}
pytestmark = pytest.mark.skipif(
    None in EXTENSIONS.values(), reason=f"DuckDB's extensions httpfs, delta and unity_catalog are not below {SIDE}"
)
NAME, URI = "main.default.t", "uc://main.default.t"
PROGRAM = """
import json, sys
import duckdb
endpoint, token, extensions, *statements = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for extension in json.loads(extensions):
    connection.execute(f"LOAD '{extension}'")
secret = f"TYPE unity_catalog, TOKEN '{token}', ENDPOINT '{endpoint}', AWS_REGION 'us-east-1'"
connection.execute(f"CREATE SECRET ({secret})")
connection.execute("ATTACH 'main' AS uc (TYPE unity_catalog, DEFAULT_SCHEMA 'default')")
for statement in statements:
    print(json.dumps(connection.execute(statement).fetchall()))
"""


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[UnityEmulator]:
    with older_unity_emulator(tmp_path) as emulator:
        yield emulator


def _duckdb(unity: UnityEmulator, *statements: str) -> list[list[list[Any]]]:
    given = [unity.endpoint, TOKEN, json.dumps([str(path) for path in EXTENSIONS.values()])]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given, *statements],
        env={"PYTHONPATH": str(SIDE), "PATH": os.environ["PATH"], "HOME": str(SIDE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_duckdb_reads_what_we_write(unity: UnityEmulator) -> None:
    table = DeltaTable(URI, unity.options)
    table.append(pa.table({"id": [1, 2], "name": ["a", "b"]}))
    table.append(pa.table({"id": [3], "name": ["c"]}))
    table.delete("id = 1")
    query = "SELECT id, name FROM uc.default.t ORDER BY id"
    assert _duckdb(unity, query) == [[[2, "b"], [3, "c"]]]
    unity.unpublish(NAME)
    assert _duckdb(unity, query) == [[[2, "b"], [3, "c"]]], "of a commit that is not published"
    unity.ensure_lawful()


def test_we_read_what_duckdb_writes(unity: UnityEmulator) -> None:
    # It writes the names of columns into files where their physical names belong: not to tables with column mapping.
    unity.suggested_properties = {}
    table = DeltaTable(URI, unity.options)
    table.append(pa.table({"id": [1], "name": ["a"]}))
    table.append(pa.table({"id": [2], "name": ["b"]}))
    unity.unpublish(NAME)
    _duckdb(unity, "INSERT INTO uc.default.t VALUES (3, 'c')", "INSERT INTO uc.default.t VALUES (4, 'd')")
    assert unity.table(NAME).latest == 3
    assert unity.table(NAME).backfilled > 0, "it publishes what we have left"
    DeltaTable(URI, unity.options).append(pa.table({"id": [5], "name": ["e"]}))
    rows = DeltaTable(URI, unity.options).snapshot().scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert _duckdb(unity, "SELECT count(*) FROM uc.default.t") == [[[5]]]
    unity.ensure_lawful()
