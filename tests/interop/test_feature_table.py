"""docs/compatibility.md is true: each feature's table is written, and each reader does what its cell says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.table.registry import FEATURES, find_feature, supported_features
from tests.families import family
from tests.harness.feature_tables import MAKE
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference, ReferenceError

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
SAME, REFUSES = "the same rows", "refuses"
NULLS = "null partition values"
"""DuckDB's delta extension, where a mapped partition column comes after others; of tables by Delta on Spark as well."""
ROW = re.compile(r"^\| \[`(\w+)`\]\(\S+\) \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)
EXCEPTIONS = {name: cells for name, *cells in ROW.findall(PAGE.read_text())}
CELLS = {name: [cell or SAME for cell in EXCEPTIONS.get(name, ("", "", ""))] for name in MAKE}
"""What deltalake, DuckDB and Delta on Spark do with a table of each feature."""

_DELTALAKE = """
import sys, deltalake, pyarrow as pa, pyarrow.parquet as pq
table = deltalake.DeltaTable(sys.argv[1])
found = deltalake.QueryBuilder().register("t", table).execute(f"SELECT {sys.argv[3]} FROM t").read_all()
pq.write_table(pa.table(found), sys.argv[2])
"""


def test_the_page_speaks_of_every_feature() -> None:
    text = PAGE.read_text()
    assert set(MAKE) == {f.name for f in FEATURES if f.writes}
    (not_written,) = re.findall(r"^Not written are (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    by_name = {"catalogManaged"}
    assert set(re.findall(r"\[`(\w+)`\]", not_written)) == {f.name for f in FEATURES if not f.writes} | by_name
    (asked,) = re.findall(r"^A reader must know these.*?: (`.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", asked)) == {f.name for f in FEATURES if f.reader}
    assert set(EXCEPTIONS) <= set(MAKE)
    assert all({SAME} != set(CELLS[name]) for name in EXCEPTIONS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def written(path: Path, name: str) -> tuple[DeltaTable, list[str]]:
    """The table, and its columns but variants: who reads these is asked elsewhere (test_*_variants)."""
    table = DeltaTable(path)
    MAKE[name](table)
    supported = {getattr(find_feature(n), "name", n) for n in supported_features(table.snapshot().protocol)}
    assert name in supported
    return table, [f.name for f in table.snapshot().schema if str(f.data_type) != "variant"]


def ensure_as_told(cell: str, table: DeltaTable, columns: list[str], read: Callable[[], pa.Table]) -> None:
    try:
        theirs = read()
    except RefusedError:
        assert cell == REFUSES
        return
    theirs = _plain(theirs.select(columns))
    if cell == NULLS:
        assert all(theirs[c].null_count == theirs.num_rows > 0 for c in table.snapshot().partition_columns)
        columns = [c for c in columns if c not in table.snapshot().partition_columns]
    else:
        assert cell == SAME
    ensure_same_rows(table.snapshot().scan(columns).to_arrow(), theirs.select(columns))


class RefusedError(Exception):
    """A reader ended with an error."""


def _plain(table: pa.Table) -> pa.Table:
    """Arrow's view types as the plain ones."""
    plain = {"string_view": pa.string(), "binary_view": pa.binary()}
    return table.cast(pa.schema([f.with_type(plain.get(str(f.type), f.type)) for f in table.schema]))


@family("name", MAKE, every=5)
def test_deltalake(name: str, path: Path, tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    table, columns = written(path, name)

    def read() -> pa.Table:
        # In a process of its own: DataFusion and DuckDB do not always get on with each other's threads.
        selected = ", ".join(f'"{c}"' for c in columns)
        command = [sys.executable, "-c", _DELTALAKE, str(path), str(tmp_path / "rows.parquet"), selected]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise RefusedError
        return pq.read_table(tmp_path / "rows.parquet")

    ensure_as_told(CELLS[name][0], table, columns, read)


@family("name", MAKE, every=5)
def test_duckdb(name: str, path: Path, duckdb_delta: Any) -> None:
    table, columns = written(path, name)

    def read() -> pa.Table:
        try:
            return duckdb_delta(path)
        except AssertionError as e:
            raise RefusedError from e

    ensure_as_told(CELLS[name][1], table, columns, read)


@pytest.mark.parametrize("name", MAKE)
def test_delta_on_spark(name: str, path: Path, reference: Reference) -> None:
    table, columns = written(path, name)

    def read() -> pa.Table:
        try:
            return reference.query(f"SELECT {', '.join(f'`{c}`' for c in columns)} FROM delta.`{path}`")
        except ReferenceError as e:
            raise RefusedError from e

    ensure_as_told(CELLS[name][2], table, columns, read)
