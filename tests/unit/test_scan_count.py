"""`Scan.count`: from statistics where they know it, else from rows; the same number either way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.handmade import HandmadeTable, inline_vector

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.date32()), ("q", pa.string())])
PREDICATES = (
    None, "p = DATE '2020-01-01'", "p IS NULL", "q = '' OR q IS NULL", "NOT (q = 'a b')", "q LIKE 'a%'", "false",
    "true", "p = DATE '2020-01-01' AND id > 3", "id IS NULL", "q IN ('a b', 'x') AND p IS NOT NULL", "year(p) = 2020",
)  # fmt: skip


@pytest.mark.parametrize("stats", ["all", "some", "none"])
def test_count_is_the_number_of_rows(tmp_path: Path, stats: str) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(SCHEMA, reader_features=("deletionVectors",), partition_by=("p", "q"))
    for number, (p, q) in enumerate((("2020-01-01", "a b"), (None, "x"), ("2020-01-01", None), ("2021-05-05", "a b"))):
        vector = {"deletion_vector": inline_vector(0, 4)} if number % 2 else {}
        rows = pa.table({"id": [None if i == 2 else i for i in range(6)]}, schema=pa.schema([("id", pa.int64())]))
        has_stats = stats == "all" or (stats == "some" and number != 1)
        given = {"partition_values": {"p": p, "q": q}, "stats": has_stats, **vector}
        made.commit(made.add(f"f{number}.parquet", rows, **given))
    snapshot = made.open().snapshot()
    for where in PREDICATES:
        assert snapshot.scan(where=where).count() == snapshot.scan(where=where).to_arrow().num_rows, where
        assert snapshot.scan(["id"], where).count() == snapshot.scan(where=where).count(), where


def test_count_opens_no_file_that_statistics_know(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": range(7), "p": ["a"] * 3 + ["b"] * 4}), partition_by=["p"])
    snapshot = table.snapshot()
    for file in (tmp_path / "t").rglob("*.parquet"):
        if "_delta_log" not in str(file):
            file.unlink()
    assert (snapshot.scan().count(), snapshot.scan(where="p = 'b'").count()) == (7, 4)


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(SCHEMA)
    assert table.snapshot().scan().count() == table.snapshot().scan(where="id = 1").count() == 0
