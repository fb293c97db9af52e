"""purge: files without what was deleted from them, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidExpressionError
from tests.harness.row_deletion import delete_rows

MARKABLE = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}


@pytest.mark.long
def test_deleted_rows_leave_the_files(rows: Any, table: DeltaTable, days: Any, tmp_path: Path) -> None:
    table.append(rows.data(days(("a", 1), ("a", 2), ("b", 3), ("b", 4))), partition_by=["day"], properties=MARKABLE)
    delete_rows(table, 0)
    table.append(rows.data(days(("a", 5))))
    before = table.snapshot().scan(["id"], row_tracking=True).to_arrow().sort_by("id")
    kept = set(table.snapshot().files(["path"])["path"].to_pylist())
    with pytest.raises(InvalidExpressionError):
        table.purge("id = 1", engine=rows.engine)
    result = table.purge("day = 'b'", engine=rows.engine)
    assert (result.operation_metrics["numRemovedFiles"], result.operation_metrics["numDeletionVectorsRemoved"]) == (
        1,
        1,
    )
    assert table.snapshot().files(["dv_id"])["dv_id"].null_count == 2
    table.purge(engine=rows.engine)
    snapshot = table.snapshot()
    assert snapshot.files(["dv_id"])["dv_id"].null_count == snapshot.num_files == 3
    assert len(kept & set(snapshot.files(["path"])["path"].to_pylist())) == 1
    assert snapshot.scan(["id"], row_tracking=True).to_arrow().sort_by("id").equals(before)
    entry = table.history(1)[0]
    assert (entry.operation, entry.operation_parameters["applyPurge"]) == ("REORG", "true")
    commit = table.log.read_commit(table.version())
    assert not any(commit.adds["data_change"].to_pylist() + commit.removes["data_change"].to_pylist())
    assert table.purge(engine=rows.engine).skipped
    table.vacuum(0, enforce_retention=False)
    left = {row for path in (tmp_path / "table").rglob("*.parquet") for row in ids_in(path)}
    assert left == {2, 4, 5}


def ids_in(path: Path) -> list[int]:
    if "_delta_log" in path.parts:
        return []
    read: list[int] = pq.ParquetFile(path).read().column("id").to_pylist()
    return read


@pytest.mark.long
@pytest.mark.parametrize("mode", ["name", "id"])
def test_dropped_columns_leave_the_files(rows: Any, table: DeltaTable, tmp_path: Path, mode: str) -> None:
    data = pa.table({"id": [1, 2], "gone": ["x", "y"], "s": [{"a": 1, "b": 2}, None]})
    table.append(rows.data(data), properties={"delta.columnMapping.mode": mode, "delta.enableRowTracking": "true"})
    assert table.purge(engine=rows.engine).skipped
    table.alter().drop_columns("gone", "s.b").commit()
    table.append(rows.data(pa.table({"id": [3], "s": [{"a": 3}]})))
    table.purge(engine=rows.engine)
    assert table.snapshot().num_files == 2
    for path in table.snapshot().files(["path"])["path"].to_pylist():
        schema = pq.read_schema(tmp_path / "table" / path)
        assert len([name for name in schema.names if not name.startswith("_row")]) == 2
    assert table.purge(engine=rows.engine).skipped
    read = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    assert read == [{"id": 1, "s": {"a": 1}}, {"id": 2, "s": None}, {"id": 3, "s": {"a": 3}}]


def test_a_file_all_of_whose_rows_are_deleted_goes(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), properties=MARKABLE)
    delete_rows(table, 0)
    table.purge()
    assert table.snapshot().num_files == 0
    assert table.purge().skipped
