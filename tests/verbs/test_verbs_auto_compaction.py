"""Auto compaction: a write that leaves many small files is followed by a commit that merges them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Peer

from delta_orch import DeltaTable, TxnId
from delta_orch.verbs import compaction

ON = {"delta.autoOptimize.autoCompact": "true"}


@pytest.fixture(autouse=True)
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MIN_FILES", 3)


def rows(*ids: int | None, p: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array([p] * len(ids))})


def made(path: Path, properties: dict[str, str] = ON, **options: Any) -> DeltaTable:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = DeltaTable(path / "t")
    table.create(schema, properties=properties, **options)
    return table


def ids(table: DeltaTable) -> list[int | None]:
    found = table.snapshot().scan().to_arrow().column("id").to_pylist()
    return sorted(found, key=lambda i: (i is None, i))


def operations(table: DeltaTable) -> list[str | None]:
    return [entry.operation for entry in reversed(list(table.history()))]


def test_the_write_that_makes_a_file_too_many_is_followed_by_a_commit(tmp_path: Path) -> None:
    table = made(tmp_path)
    results = [table.append(rows(i)) for i in range(4)]
    assert operations(table) == ["CREATE TABLE", "WRITE", "WRITE", "WRITE", "OPTIMIZE", "WRITE"]
    assert [result.version for result in results] == [1, 2, 3, 5]
    assert table.snapshot().num_files == 2
    assert ids(table) == [0, 1, 2, 3]
    told = list(table.history())[1]
    assert told.operation_parameters["auto"] == "true"
    assert told.operation_metrics["numRemovedFiles"] == "3"
    changed = table.changes(starting_version=4, ending_version=4).to_arrow()
    assert changed.num_rows == 0
    assert Peer(str(tmp_path / "t")).to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize("value", ["false", None])
def test_without_the_property_nothing_follows(tmp_path: Path, value: str | None) -> None:
    table = made(tmp_path, {} if value is None else {"delta.autoOptimize.autoCompact": value})
    for i in range(5):
        table.append(rows(i))
    assert table.snapshot().num_files == 5


def test_only_partitions_that_were_written_to(tmp_path: Path) -> None:
    table = made(tmp_path, {"delta.columnMapping.mode": "name"}, partition_by=["p"])
    for i in range(4):
        table.append(rows(i, p="a"))
        table.append(rows(i, p="b"))
    table.alter().set_properties(ON).commit()
    assert "OPTIMIZE" not in operations(table)
    table.append(rows(9, p="a"))
    partitions = table.snapshot().files(["partition_values"]).column("partition_values").to_pylist()
    assert sorted(value for ((_, value),) in partitions) == ["a", "b", "b", "b", "b"]


def test_rows_keep_ids_and_marked_rows_are_left_behind(tmp_path: Path) -> None:
    properties = {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}
    table = made(tmp_path, properties)
    for i in range(3):
        table.append(rows(10 * i, 10 * i + 1, None))
    table.delete("id = 10")

    def tracked() -> list[dict[str, object]]:
        read = table.snapshot().scan(row_tracking=True).to_arrow()
        return sorted(read.to_pylist(), key=str)

    before = tracked()
    table.alter().set_properties(ON).commit()
    table.upsert(rows(77), ["id"])
    assert operations(table)[-1] == "OPTIMIZE"
    assert [row for row in tracked() if row["id"] != 77] == before


def test_a_repeated_write_is_skipped_and_nothing_follows(tmp_path: Path) -> None:
    table = made(tmp_path)
    for i in range(3):
        table.append(rows(i), txn=TxnId("app", i))
    version = table.version()
    assert table.append(rows(2), txn=TxnId("app", 2)).skipped
    assert table.version() == version
    assert ids(table) == [0, 1, 2]


def test_a_failure_leaves_the_write_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    table = made(tmp_path)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(compaction, "run_plan", fail)
        for i in range(4):
            table.append(rows(i))
    assert "Could not compact" in caplog.text
    assert operations(table)[-1] == "WRITE"
    table.append(rows(4))
    assert operations(table)[-1] == "OPTIMIZE"
    assert ids(table) == [0, 1, 2, 3, 4]


def test_what_only_names_files_is_not_followed(tmp_path: Path) -> None:
    table = made(tmp_path, {})
    for i in range(4):
        table.append(rows(i))
    table.alter().set_properties(ON).commit()
    table.restore(version=3)
    assert operations(table)[-1] == "RESTORE"
