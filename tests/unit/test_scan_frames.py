"""`Scan.to_pandas` and `Scan.to_polars` hold the values of `to_arrow`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import MissingDependencyError

LARGE = 2**60 + 1
ROWS = pa.table(
    {
        "i": pa.array([LARGE, None]),
        "small": pa.array([7, None], pa.int16()),
        "b": pa.array([True, None]),
        "ts": pa.array([datetime(1, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "st": pa.array([{"a": LARGE}, {"a": None}]),
        "l": pa.array([[LARGE, None], None]),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    found = DeltaTable(tmp_path / "table")
    found.append(ROWS)
    return found


def test_pandas_keeps_integers_beside_nulls(table: DeltaTable) -> None:
    found = table.snapshot().scan().to_pandas()
    assert found["i"].dtype == "Int64" and found["small"].dtype == "Int16" and found["b"].dtype == "boolean"
    assert found["i"][0] == LARGE and found["i"].isna().tolist() == [False, True]
    assert found["st"][0] == {"a": LARGE} and list(found["l"][0]) == [LARGE, None]
    assert found["ts"][0].year == 1
    assert table.snapshot().scan(["b"], "i IS NULL").to_pandas()["b"].isna().tolist() == [True]


@pytest.mark.parametrize("where", ["i IS NOT NULL", "i = 0"])
def test_pandas_has_its_plain_types_where_nothing_is_null(table: DeltaTable, where: str) -> None:
    found = table.snapshot().scan(["i", "small", "b"], where).to_pandas()
    assert [str(kind) for kind in found.dtypes] == ["int64", "int16", "bool"]


def test_polars_has_the_same_rows(table: DeltaTable) -> None:
    assert table.snapshot().scan().to_polars().to_dicts() == ROWS.to_pylist()
    assert table.snapshot().scan(where="i = 0").to_polars().shape == (0, 6)


def test_whoever_takes_an_arrow_stream_takes_a_scan(table: DeltaTable) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    scan = table.snapshot().scan(["i", "l"], "i IS NOT NULL")
    expected = [{"i": LARGE, "l": [LARGE, None]}]
    assert pa.table(scan).to_pylist() == polars.DataFrame(scan).to_dicts() == expected
    with duckdb.connect() as connection:
        # By the name of the variable, as often as the query reads it.
        assert connection.sql("SELECT count(*) FROM scan AS a JOIN scan AS b USING (i)").fetchall() == [(1,)]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(table: DeltaTable, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
        getattr(table.snapshot().scan(), f"to_{package}")()
