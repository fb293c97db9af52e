"""Tables written by the local engine, read by others: values, partition values, and skipping by our statistics."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable

START = datetime(2013, 1, 1, tzinfo=UTC)


def all_types(start: int, count: int) -> pa.Table:
    """Rows with every type, a null in every fifth."""
    numbers = range(start, start + count)

    def column(data_type: pa.DataType, value: Any) -> pa.Array:
        return pa.array([None if n % 5 == 4 else value(n) for n in numbers], data_type)

    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "b": column(pa.int8(), lambda n: n % 100 - 50),
            "sh": column(pa.int16(), lambda n: -n),
            "i": column(pa.int32(), lambda n: n * 1000),
            "f": column(pa.float32(), lambda n: n / 4),
            "x": column(pa.float64(), lambda n: -0.0 if n % 7 == 0 else n / 3),
            "d9": column(pa.decimal128(9, 2), lambda n: Decimal(n - 50).scaleb(-2)),
            "d18": column(pa.decimal128(18, 4), lambda n: Decimal(n - 50).scaleb(-4)),
            "d38": column(pa.decimal128(38, 10), lambda n: Decimal(n - 50).scaleb(-10)),
            "s": column(pa.string(), lambda n: f"ü😀{n:05d}" + "y" * (n % 50)),
            "bin": column(pa.binary(), lambda n: bytes([n % 256])),
            "bo": column(pa.bool_(), lambda n: n % 2 == 0),
            "day": column(pa.date32(), lambda n: date(2013, 1, 1) + timedelta(days=n)),
            "ts": column(pa.timestamp("us", "UTC"), lambda n: START + timedelta(seconds=n, microseconds=n)),
            "st": column(pa.struct([("a", pa.int64()), ("q", pa.string())]), lambda n: {"a": n, "q": None}),
            "l": column(pa.list_(pa.int32()), lambda n: [n, None][: n % 3]),
            "m": column(pa.map_(pa.string(), pa.int64()), lambda n: [("k", n)] if n % 3 else []),
            "p": pa.array([["a b/c", "ü%", None][n // 40 % 3] for n in numbers], pa.string()),
            "pd": pa.array([date(2013, 1, 1 + n // 40 % 3) for n in numbers], pa.date32()),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "table")
    for start in range(0, 360, 120):
        table.append(all_types(start, 120), partition_by=["p", "pd"])
    return table


def plain(rows: pa.Table) -> list[str]:
    """Rows by id, spelled in one way."""
    listed = rows.select(sorted(rows.column_names)).sort_by("id").to_pylist()
    return [repr({key: _plain(value) for key, value in row.items()}) for row in listed]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).isoformat()
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def test_we_read_what_we_wrote(table: DeltaTable) -> None:
    assert plain(table.snapshot().scan().to_arrow()) == plain(all_types(0, 360))


def test_deltalake_reads_it(table: DeltaTable, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    theirs = deltalake.DeltaTable(str(tmp_path / "table"))
    assert plain(theirs.to_pyarrow_table()) == plain(all_types(0, 360))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", 300), ("i", 300_000), ("d9", Decimal("2.50")), ("d38", Decimal("250").scaleb(-10)), ("f", 75.0),
        ("day", date(2013, 10, 28)), ("s", "ü😀00300"), ("ts", START + timedelta(seconds=300, microseconds=300)),
        ("x", 100.0),
    ],
)  # fmt: skip
def test_no_reader_skips_a_row_by_our_statistics(table: DeltaTable, tmp_path: Path, column: str, value: Any) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    theirs = deltalake.DeltaTable(str(tmp_path / "table"))
    assert theirs.to_pyarrow_table(filters=[(column, "=", value)], columns=["id"]).column("id").to_pylist() == [300]
    above = all_types(0, 360).filter(pc.field(column) >= pa.scalar(value, all_types(0, 1).schema.field(column).type))
    found = theirs.to_pyarrow_table(filters=[(column, ">=", value)], columns=["id"])
    assert sorted(found.column("id").to_pylist()) == above.column("id").to_pylist()


@pytest.mark.spark
def test_spark_reads_the_files(spark: Any, table: DeltaTable, tmp_path: Path) -> None:
    frame = spark.read.option("basePath", str(tmp_path / "table")).parquet(str(tmp_path / "table" / "p=*"))
    rows = frame.drop("p", "pd").toArrow()
    assert plain(rows) == plain(all_types(0, 360).drop_columns(["p", "pd"]))
    assert {name: kind for name, kind in frame.dtypes if name in ("b", "sh", "ts", "d9", "d18", "d38")} == {
        "b": "tinyint", "sh": "smallint", "ts": "timestamp", "d9": "decimal(9,2)", "d18": "decimal(18,4)",
        "d38": "decimal(38,10)",
    }  # fmt: skip


def test_duckdb_reads_the_files(table: DeltaTable, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    files = [str(path) for path in (tmp_path / "table").rglob("*.parquet") if "_delta_log" not in path.parts]
    rows = duckdb.connect().sql(f"SELECT * FROM read_parquet({files}, hive_partitioning=false)").to_arrow_table()
    assert plain(rows) == plain(all_types(0, 360).drop_columns(["p", "pd"]))
