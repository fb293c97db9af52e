from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, TableNotFoundError
from delta_orch.pipeline.tail import NO_TABLE, TailCursor, current_cursor, parse_cursor, poll
from delta_orch.storage.open import open_store
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore


def rows(*days: str | None) -> pa.Table:
    return pa.table({"day": pa.array(days, pa.string()), "n": pa.array(range(len(days)), pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    table.append(rows("a", "b"), partition_by=["day"])
    return table


def counting(table: DeltaTable) -> tuple[DeltaTable, FaultStore]:
    store = FaultStore(open_store(table.uri))
    return open_table(store), store


def days(partitions: pa.Table) -> list[str | None]:
    return sorted(partitions.column("day").to_pylist(), key=str)


def log_file(table: DeltaTable, version: int) -> Path:
    return Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"


def test_nothing_new_costs_one_head_and_nothing_else(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    counted, store = counting(table)
    assert poll(counted.log, cursor) is None
    assert [(call.method, call.path) for call in store.calls] == [("head", f"_delta_log/{1:020d}.json")]


def test_verification_opens_the_table(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    counted, store = counting(table)
    assert poll(counted.log, cursor, verify=True) is None
    assert store.counts() == {"head": 1, "list_from": 1, "read_bytes": 2}


def test_a_table_that_is_not_there_yet(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "later")
    assert current_cursor(table.log) == NO_TABLE
    counted, store = counting(table)
    assert poll(counted.log, NO_TABLE) is None
    assert store.counts() == {"head": 1}
    table.append(rows("a"), partition_by=["day"])
    batch = poll(counted.log, NO_TABLE)
    assert batch is not None
    assert (batch.starting_version, batch.ending_version, batch.recreated) == (0, 0, False)
    assert days(batch.partitions) == ["a"]


def test_new_commits(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    table.append(rows("c"))
    table.overwrite(rows("b", "b"), replace_where="day = 'b'")
    batch = poll(table.log, cursor)
    assert batch is not None
    table_id = table.snapshot().metadata.id
    assert batch.cursor == TailCursor(table_id, 2)
    assert batch.run_key == f"{table_id}:1-2@{table.snapshot().timestamp_ms}"
    assert batch.data_changed
    assert days(batch.partitions) == ["b", "c"]
    assert batch.operations == ("WRITE",)
    assert poll(table.log, batch.cursor) is None


def test_deleted_rows_touch_their_partition(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    table.overwrite(rows(), replace_where="day = 'a'")
    batch = poll(table.log, cursor)
    assert batch is not None
    assert days(batch.partitions) == ["a"]


def test_commits_without_data_change(table: DeltaTable) -> None:
    table.append(rows("a"))
    cursor = current_cursor(table.log)
    table.optimize()
    batch = poll(table.log, cursor)
    assert batch is not None
    assert not batch.data_changed
    assert batch.partitions.num_rows == 0
    assert batch.operations == ("OPTIMIZE",)


def test_at_most_so_many_versions_at_once(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    for day in "cdefg":
        table.append(rows(day))
    seen = []
    while (batch := poll(table.log, cursor, max_versions=2)) is not None:
        seen.append((batch.starting_version, batch.ending_version, days(batch.partitions)))
        cursor = batch.cursor
    assert seen == [(1, 2, ["c", "d"]), (3, 4, ["e", "f"]), (5, 5, ["g"])]


def recreate(table: DeltaTable, commits: int) -> DeltaTable:
    shutil.rmtree(table.uri.removeprefix("file://"))
    again = DeltaTable(table.uri)
    for number in range(commits):
        again.append(rows(f"new {number}"), partition_by=["day"])
    return again


@pytest.mark.parametrize("commits", [3, 4, 6])
def test_a_recreated_table_that_is_longer_counts_as_new(table: DeltaTable, commits: int) -> None:
    cursor = current_cursor(table.log)
    again = recreate(table, commits)
    batch = poll(again.log, cursor)
    assert batch is not None
    assert batch.recreated
    assert days(batch.partitions) == [f"new {number}" for number in range(commits)]
    assert batch.cursor == current_cursor(again.log)


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_recreated_table_that_is_not_longer_is_found_by_verification(table: DeltaTable, commits: int) -> None:
    for day in "cd":
        table.append(rows(day))
    cursor = current_cursor(table.log)
    again = recreate(table, commits)
    assert poll(again.log, cursor) is None
    batch = poll(again.log, cursor, verify=True)
    assert batch is not None
    assert batch.recreated
    assert (batch.starting_version, batch.ending_version) == (0, commits - 1)


def test_a_clone_that_takes_the_tables_place_is_a_commit_of_it(table: DeltaTable, tmp_path: Path) -> None:
    cursor = current_cursor(table.log)
    other = DeltaTable(tmp_path / "other")
    other.append(rows("c"), partition_by=["day"])
    other.clone(table.uri, replace=True)
    batch = poll(table.log, cursor)
    assert batch is not None
    assert not batch.recreated
    # The partitions that it has taken away are touched, too.
    assert days(batch.partitions) == ["a", "b", "c"]
    assert batch.cursor == TailCursor(table.snapshot().metadata.id, 1)


def test_partitions_of_another_type_do_not_stand_in_the_way(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    table.overwrite(pa.table({"day": [7], "n": [1]}), schema_mode="overwrite", partition_by=["day"])
    batch = poll(table.log, cursor)
    assert batch is not None
    assert batch.partitions.to_pylist() == [{"day": 7}]


def test_a_table_that_was_dropped_is_told_not_taken_for_nothing_new(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    shutil.rmtree(table.uri.removeprefix("file://"))
    with pytest.raises(TableNotFoundError, match="was dropped"):
        poll(table.log, cursor, verify=True)


def test_commits_that_were_cleaned_up_unseen_are_found_by_verification(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    for day in "cd":
        table.append(rows(day))
    table.checkpoint()
    for version in (0, 1):
        log_file(table, version).unlink()
    assert poll(table.log, cursor) is None
    batch = poll(table.log, cursor, verify=True)
    assert batch is not None
    assert batch.missed
    assert not batch.recreated
    assert days(batch.partitions) == ["a", "b", "c", "d"]
    assert batch.cursor.version == 2


def test_a_table_without_partitions(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "plain")
    table.append(rows("a"))
    batch = poll(table.log, NO_TABLE)
    assert batch is not None
    assert batch.data_changed
    assert batch.partitions.num_columns == 0
    assert table.snapshot().partitions().num_columns == 0


def test_null_partitions(table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    table.append(rows(None))
    batch = poll(table.log, cursor)
    assert batch is not None
    assert batch.partitions.to_pylist() == [{"day": None}]


@pytest.mark.parametrize("cursor", [TailCursor("1f2e-3d", 12), NO_TABLE, TailCursor("with:colon", 0)])
def test_cursors_are_text(cursor: TailCursor) -> None:
    assert parse_cursor(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "abc", "abc:", "abc:x", "abc:1.5"])
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a cursor"):
        parse_cursor(text)
