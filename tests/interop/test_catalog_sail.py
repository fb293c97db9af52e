"""Sail, an engine in Rust that shares no code with us, and a table whose commits a catalog decides: each reads what the
other has written. `PYSAIL_PYTHON` names a Python that has `pysail` and `pyspark-client`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.unity_emulator import API, TOKEN, UnityEmulator
from tests.harness.unity_older_api import older_unity_emulator

PYTHON = os.environ.get("PYSAIL_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="PYSAIL_PYTHON names no Python with pysail")
PROGRAM = """
import sys
from pyspark.sql.connect.session import SparkSession
from pysail.spark import SparkConnectServer
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://localhost:{server.listening_address[1]}").getOrCreate()
for statement in sys.argv[1:]:
    print(sorted(map(tuple, spark.sql(statement).collect())))
"""


def _sail(unity: UnityEmulator, *statements: str) -> list[str]:
    catalog = f'[{{type="unity", name="uc", uri="{unity.endpoint}{API}", default_catalog="main", token="{TOKEN}"}}]'
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, *statements],
        # Nothing of the Spark of this process, and not the data source that lies in the working directory.
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "SPARK_HOME": "/",
            "SAIL_CATALOG__LIST": catalog,
            "SAIL_CATALOG__DEFAULT_CATALOG": "uc",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_sail_reads_and_writes_what_we_do(tmp_path: Path) -> None:
    with older_unity_emulator(tmp_path) as unity:
        # Sail does not write the features that the catalog suggests.
        unity.suggested_properties = {}
        table = DeltaTable("uc://main.default.t", unity.options)
        table.append(pa.table({"id": [1, 2], "name": ["a", "b"]}))
        table.append(pa.table({"id": [3], "name": ["c"]}))
        table.delete("id = 1")
        read = _sail(unity, "SELECT id, name FROM uc.default.t")
        assert read == ["[(2, 'b'), (3, 'c')]"]
        unity.unpublish("main.default.t")
        assert _sail(unity, "SELECT id FROM uc.default.t") == ["[(2,), (3,)]"], "of a commit that is not published"
        _sail(unity, "INSERT INTO uc.default.t VALUES (4, 'd')")
        assert unity.table("main.default.t").latest == 3
        rows = DeltaTable("uc://main.default.t", unity.options).snapshot().scan().to_arrow()
        assert sorted(rows["id"].to_pylist()) == [2, 3, 4]
        DeltaTable("uc://main.default.t", unity.options).append(pa.table({"id": [5], "name": ["e"]}))
        assert _sail(unity, "SELECT count(*) FROM uc.default.t") == ["[(4,)]"]
        unity.ensure_lawful()
