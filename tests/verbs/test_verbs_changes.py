"""changes and scan, on both engines."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
    VersionNotFoundError,
)


def read(rows: Any, feed: Any) -> list[tuple[Any, ...]]:
    table = feed.to_arrow() if rows.spark is None else rows.collect(feed.to_spark(rows.spark))
    assert table.column_names[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    assert table.schema.field("_commit_version").type == pa.int64()
    found = [(r["_commit_version"], r["_change_type"], r["day"], r["id"]) for r in table.to_pylist()]
    return sorted(found, key=lambda r: (r[0], r[1], str(r[2]), r[3]))


@pytest.fixture
def changed(rows: Any, table: DeltaTable, days: Any) -> DeltaTable:
    table.append(rows.data(days(("a", 1), ("b", 2))), partition_by=["day"])
    table.append(rows.data(days(("a", 3))))
    table.optimize(engine=rows.engine)
    table.overwrite(rows.data(days(("b", 4))), replace_where="day = 'b'")
    table.overwrite(rows.data(days((None, 5))), partition_overwrite_mode="dynamic")
    return table


@pytest.mark.long
def test_changes_row_by_row(rows: Any, changed: DeltaTable) -> None:
    feed = changed.changes(starting_version=0)
    assert (feed.starting_version, feed.ending_version) == (0, 4)
    assert read(rows, feed) == [
        (0, "insert", "a", 1),
        (0, "insert", "b", 2),
        (1, "insert", "a", 3),
        (3, "delete", "b", 2),
        (3, "insert", "b", 4),
        (4, "insert", None, 5),
    ]
    assert read(rows, changed.changes(starting_version=1, ending_version=2)) == [(1, "insert", "a", 3)]


@pytest.mark.long
def test_changes_carry_the_commit_time(rows: Any, changed: DeltaTable) -> None:
    feed = changed.changes(starting_version=1, ending_version=1)
    times = feed.to_arrow().column("_commit_timestamp")
    assert times.type == pa.timestamp("us", "UTC")
    recorded = changed.snapshot(version=1).timestamp_ms
    assert times.cast(pa.int64()).to_pylist() == [recorded * 1000]


@pytest.mark.long
def test_touched_partitions(rows: Any, changed: DeltaTable) -> None:
    def touched(start: int, end: int | None = None) -> list[str | None]:
        found = changed.changes(starting_version=start, ending_version=end).partitions().column("day").to_pylist()
        return sorted(found, key=str)

    assert touched(0) == [None, "a", "b"]
    assert touched(3) == [None, "b"]
    assert touched(3, 3) == ["b"]
    assert touched(2, 2) == []


@pytest.mark.long
def test_changes_of_a_compaction_are_none(rows: Any, changed: DeltaTable) -> None:
    feed = changed.changes(starting_version=2, ending_version=2)
    assert feed.is_empty
    assert read(rows, feed) == []
    assert [f.name for f in feed.schema][-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.mark.long
def test_rows_added_and_removed_in_one_range(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(("a", 1))))
    table.overwrite(rows.data(days(("a", 2))))
    table.overwrite(rows.data(days(("a", 3))))
    assert read(rows, table.changes(starting_version=0)) == [
        (0, "insert", "a", 1),
        (1, "delete", "a", 1),
        (1, "insert", "a", 2),
        (2, "delete", "a", 2),
        (2, "insert", "a", 3),
    ]
    with pytest.raises(InvalidRequestError):
        table.changes(starting_version=0).partitions()


@pytest.mark.long
def test_bad_ranges(changed: DeltaTable) -> None:
    start: Any
    for start, end, error in (
        (5, None, VersionNotFoundError),
        (0, 5, VersionNotFoundError),
        (3, 2, InvalidRequestError),
        (-1, None, InvalidRequestError),
        ("0", None, InvalidRequestError),
        (0, True, InvalidRequestError),
    ):
        with pytest.raises(error):
            changed.changes(starting_version=start, ending_version=end)
    with pytest.raises(InvalidRequestError, match="change data feed"):
        changed.changes(starting_version=0, require_change_data_feed=True)


@pytest.mark.long
def test_changes_whose_files_are_vacuumed(rows: Any, changed: DeltaTable) -> None:
    changed.vacuum(retention_hours=0, enforce_retention=False)
    with pytest.raises(MissingFileError):
        read(rows, changed.changes(starting_version=0))


@pytest.mark.long
def test_scan_prunes_and_filters(rows: Any, table: DeltaTable, days: Any) -> None:
    table.append(rows.data(days(*((day, i) for i, day in enumerate("abcabc")))), partition_by=["day"])
    table.append(rows.data(days(("a", 100), (None, 101))))
    snapshot = table.snapshot()
    plan = snapshot.scan(where="day = 'a'").plan()
    assert plan.files.num_rows < snapshot.num_files
    assert rows.pylist(table, columns=["id"], where="day = 'a'") == [{"id": 0}, {"id": 3}, {"id": 100}]
    assert rows.pylist(table, columns=["id"], where="id >= 100 OR day IS NULL") == [{"id": 100}, {"id": 101}]
    assert snapshot.scan(where="id > 1000").plan().files.num_rows == 0
    assert rows.pylist(table, where="id > 1000") == []
    assert rows.read(table, columns=["VALUE", "Day"], where="ID = 4").to_pylist() == [{"value": 2.0, "day": "b"}]
    assert rows.pylist(table, columns=["id"], where="NOT day = 'a' AND id < 3") == [{"id": 1}, {"id": 2}]


def test_scan_of_what_is_not_there(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    snapshot = table.snapshot()
    with pytest.raises(ColumnNotFoundError):
        snapshot.scan(["nope"])
    with pytest.raises(ColumnNotFoundError):
        snapshot.scan(where="nope = 1")
    with pytest.raises(InvalidExpressionError):
        snapshot.scan(where="day = = 1")
    with pytest.raises(InvalidRequestError):
        snapshot.scan("day")


def test_reader_streams(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    table.append(days(("b", 2)))
    reader = table.snapshot().scan().to_reader()
    assert reader.schema.names == ["day", "id", "value"]
    assert sum(batch.num_rows for batch in reader) == 2
