"""`_metadata.row_id` and `_metadata.row_commit_version` in queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import InvalidExpressionError, InvalidRequestError


def rows_of(query: str, table: DeltaTable) -> list[dict[str, Any]]:
    found = delta_orch.sql(query, tables={"t": table})
    assert isinstance(found, pa.Table)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Rows 0, 1 and 2, of which version 2 has changed the second."""
    table = DeltaTable(tmp_path / "t")
    properties = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
    table.create(pa.schema([("id", pa.int64()), ("k", pa.string())]), properties=properties)
    table.append(pa.table({"id": [1, 2, 3], "k": ["a", "b", "c"]}))
    table.update({"k": "'z'"}, where="id = 2")
    return table


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT _metadata.row_id, _metadata.row_commit_version, id, k FROM t",
            [
                {"row_id": 0, "row_commit_version": 1, "id": 1, "k": "a"},
                {"row_id": 1, "row_commit_version": 2, "id": 2, "k": "z"},
                {"row_id": 2, "row_commit_version": 1, "id": 3, "k": "c"},
            ],
        ),
        ("SELECT x.k, x._metadata.row_id AS r FROM t x WHERE x._metadata.row_id = 1", [{"k": "z", "r": 1}]),
        ('SELECT * EXCLUDE (k, _metadata), "_metadata"."ROW_ID" AS r FROM t WHERE id > 2', [{"id": 3, "r": 2}]),
        ("SELECT * FROM t WHERE id = 3 AND _metadata.row_id = 2",
         [{"id": 3, "k": "c", "_metadata": {"row_id": 2, "row_commit_version": 1}}]),
        ("SELECT _Metadata.row_id AS r FROM t VERSION AS OF 1 WHERE id * 2 > 4", [{"r": 2}]),
        ("SELECT max(_metadata.row_commit_version) AS m, count(*) AS n FROM t", [{"m": 2, "n": 3}]),
        ("SELECT r FROM (SELECT _metadata.row_id AS r FROM t) WHERE r > 1", [{"r": 2}]),
        ("SELECT a._metadata.row_id AS r FROM t a JOIN plain b ON a.id = b.id", [{"r": 0}]),
        ("SELECT '_metadata.row_id' AS s, count(*) AS n FROM t", [{"s": "_metadata.row_id", "n": 3}]),
    ],
)  # fmt: skip
def test_a_query_reads_them(table: DeltaTable, tmp_path: Path, query: str, expected: list[dict[str, Any]]) -> None:
    plain = DeltaTable(tmp_path / "plain")
    plain.append(pa.table({"id": [1]}))
    found = delta_orch.sql(query, tables={"t": table, "plain": plain})
    assert isinstance(found, pa.Table)
    assert sorted(found.to_pylist(), key=repr) == sorted(expected, key=repr)


def test_a_statement_that_writes_reads_them(table: DeltaTable) -> None:
    delta_orch.sql(
        "MERGE INTO t USING (SELECT id, _metadata.row_id AS r FROM t) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET k = CAST(s.r AS STRING)",
        tables={"t": table},
    )
    found = rows_of("SELECT k, _metadata.row_id AS r FROM t", table)
    assert all(row["k"] == str(row["r"]) for row in found)
    assert {row["r"] for row in found} == {0, 1, 2}


@pytest.mark.parametrize(
    ("query", "error", "match"),
    [
        ("SELECT _metadata.file_path FROM t", InvalidExpressionError, "file_path"),
        ("SELECT _metadata.row_id FROM plain", InvalidRequestError, "has no row tracking"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    table: DeltaTable, tmp_path: Path, query: str, error: type[Exception], match: str
) -> None:
    plain = DeltaTable(tmp_path / "plain")
    plain.append(pa.table({"id": [1]}))
    with pytest.raises(error, match=match):
        delta_orch.sql(query, tables={"t": table, "plain": plain})


def test_a_column_of_that_name_is_the_tables_own(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.append(pa.table({"_metadata": [{"row_id": 77}]}))
    assert rows_of("SELECT _metadata.row_id FROM t", table) == [{"row_id": 77}]
