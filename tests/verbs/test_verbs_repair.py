"""repair: data files that are gone leave the log. No row is written, so the engine does not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import AppendOnlyError, InvalidRequestError, MissingFileError, StorageError
from delta_orch.expressions.parse import parse_expression
from tests.harness.table_builder import read_anew


def ids(table: DeltaTable) -> list[int]:
    return sorted(read_anew(table).scan(["id"]).to_arrow()["id"].to_pylist())


def lose(table: DeltaTable, id_: int) -> str:
    """Delete the data file that holds a row; give its path in the log."""
    snapshot = table.snapshot()
    [path] = [p for p in snapshot.files(["path"])["path"].to_pylist() if id_ in _ids_of(snapshot.store.resolve(p))]
    Path(snapshot.store.resolve(path)).unlink()
    return str(path)


def _ids_of(file: str) -> list[Any]:
    return pq.ParquetFile(file).read()["id"].to_pylist() if Path(file).exists() else []


def test_what_is_gone_leaves_and_nothing_else(table: DeltaTable, days: Any) -> None:
    table.append(
        days(("a b%é", 1), (None, 2)),
        partition_by=["day"],
        properties={"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
    )
    table.append(days(("a b%é", 3), ("a b%é", 4)))
    table.delete("id = 4")
    assert table.repair().skipped
    lost = {lose(table, 2), lose(table, 3)}
    with pytest.raises(MissingFileError):
        ids(table)
    rehearsed = table.repair(dry_run=True)
    assert rehearsed.preview is not None and table.version() == 2
    assert {p for removes in rehearsed.preview.removes for p in removes["path"].to_pylist()} == lost
    result = table.repair(txn=TxnId("repair", 1))
    assert (result.version, ids(table)) == (3, [1])
    assert result.operation_metrics["numMissingFiles"] == 2 and result.operation_metrics["numFilesScanned"] == 3
    assert table.history(1)[0].operation == "FSCK"
    assert table.repair(txn=TxnId("repair", 1)).skipped_txns and table.repair().skipped
    # Which rows they were is not known, and so no empty feed is told.
    with pytest.raises(MissingFileError):
        table.changes(starting_version=3).to_arrow()


def test_damaged_files_stay(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    [path] = table.snapshot().files(["path"])["path"].to_pylist()
    with Path(table.store.resolve(path)).open("ab") as file:
        file.write(b"more")
    assert table.repair().skipped and table.version() == 0


def test_refused(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"], properties={"delta.appendOnly": "true"})
    lose(table, 1)
    with pytest.raises(AppendOnlyError):
        table.repair()
    with pytest.raises(InvalidRequestError, match="whole table"):
        table.repair(txn=TxnId("a", 1, scope=parse_expression("day = 'a'")))
    assert table.version() == 0


def test_of_a_shallow_clone(table: DeltaTable, days: Any, tmp_path: Path) -> None:
    table.append(days(("a", 1)))
    table.append(days(("a", 2)))
    table.clone(tmp_path / "clone")
    clone = DeltaTable(tmp_path / "clone")
    lose(table, 1)
    # The files of another table, in a place this one may not look into, are not gone.
    with pytest.raises(StorageError):
        DeltaTable(tmp_path / "clone", external_paths=[]).repair()
    clone.repair()
    assert ids(clone) == [2]
    table.repair()
    assert ids(table) == [2]
