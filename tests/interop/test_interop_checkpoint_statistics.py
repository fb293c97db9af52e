"""Checkpoints with statistics as columns, and nothing but the checkpoint to read from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


def day_rows(day: int) -> pa.Table:
    ids = list(range(day * 100, day * 100 + 5))
    return pa.table(
        {
            "day": pa.array([date(2013, 1, day)] * 5, pa.date32()),
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"n{i}" if i % 2 else None for i in ids], pa.string()),
            "inner": pa.array([{"x": i, "y": 0.5} for i in ids], pa.struct([("x", pa.int32()), ("y", pa.float64())])),
            "flags": pa.array([[True]] * 5, pa.list_(pa.bool_())),
        }
    )


@pytest.fixture(params=["both", "struct only", "neither"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table whose log begins with a checkpoint."""
    properties = {
        "delta.checkpoint.writeStatsAsStruct": "false" if request.param == "neither" else "true",
        "delta.checkpoint.writeStatsAsJson": "true" if request.param == "both" else "false",
    }
    table = DeltaTable(tmp_path / "table")
    for day in range(1, 6):
        table.append(day_rows(day), partition_by=["day"], properties=properties)
    table.overwrite(day_rows(3), replace_where="day = DATE '2013-01-03'")
    version = table.checkpoint()
    # Cleanup keeps the commit of the checkpoint's own version, and delta-rs wants it there to go on writing.
    for old in range(version):
        (tmp_path / "table" / "_delta_log" / f"{old:020d}.json").unlink()
    return tmp_path / "table"


def expected(*days: int) -> pa.Table:
    return pa.concat_tables([day_rows(day) for day in days])


def test_we_read_it(location: Path) -> None:
    snapshot = DeltaTable(location).snapshot()
    ensure_same_rows(snapshot.scan().to_arrow(), expected(1, 2, 3, 4, 5))
    ensure_same_rows(snapshot.scan(where="id >= 500").to_arrow(), expected(5))


def test_deltalake_reads_it(location: Path) -> None:
    theirs = deltalake.DeltaTable(location)
    ensure_same_rows(pa.table(theirs.to_pyarrow_table()), expected(1, 2, 3, 4, 5))
    filtered = pa.table(theirs.to_pyarrow_table(filters=[("id", ">=", 500)]))
    ensure_same_rows(filtered, expected(5))
    by_partition = pa.table(theirs.to_pyarrow_table(partitions=[("day", "=", "2013-01-02")]))
    ensure_same_rows(by_partition, expected(2))


def test_deltalake_goes_on_from_it(location: Path) -> None:
    theirs = deltalake.DeltaTable(location)
    deltalake.write_deltalake(theirs, day_rows(6), mode="append")
    theirs.create_checkpoint()
    ensure_same_rows(DeltaTable(location).snapshot().scan().to_arrow(), expected(1, 2, 3, 4, 5, 6))


def test_duckdb_reads_it(location: Path, duckdb_delta: Callable[[Path], pa.Table]) -> None:
    ensure_same_rows(duckdb_delta(location), expected(1, 2, 3, 4, 5))
