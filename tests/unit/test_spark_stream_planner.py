"""Offsets of a stream and the rows between them. No JVM runs here."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    InvalidRequestError,
    MetadataChangedError,
    ProtocolViolationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.spark_source.options import is_of_stream, parse_stream_options
from delta_orch.spark_source.stream import Offset, StreamPlanner

FEED = {"delta.enableChangeDataFeed": "true"}


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def planner(table: DeltaTable, **options: Any) -> StreamPlanner:
    return StreamPlanner(parse_stream_options({"path": table.uri, **{k: str(v) for k, v in options.items()}}))


def rows(planned: StreamPlanner, start: Offset, end: Offset, *columns: str) -> list[Any]:
    read = [row for task in planned.tasks(start, end) for row in task.to_arrow().to_pylist()]
    return sorted(tuple(row[c] for c in columns) if columns else row["id"] for row in read)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Three versions of two rows."""
    table = DeltaTable(tmp_path / "a table")
    for start in (0, 2, 4):
        table.append(ids(start, start + 1))
    return table


@pytest.mark.parametrize("feed", [False, True])
def test_batches_of_any_size_and_a_new_process_for_each_give_every_row_once(tmp_path: Path, feed: bool) -> None:
    table, chance = DeltaTable(tmp_path / "t"), random.Random(7)
    table.create(ids().schema, properties=FEED)
    written, seen, offset = 0, [], None
    for step in range(40):
        if step < 30 and chance.random() < 0.6:
            for _ in range(chance.randint(1, 3)):
                table.append(ids(written, written + 1))
                written += 2
        if step == 10:
            table.optimize()
        # Nothing but the offset, as JSON, lives from one batch to the next.
        options: dict[str, Any] = {"readChangeFeed": str(feed).lower()}
        planned = planner(table, maxFilesPerTrigger=chance.randint(1, 4), **options)
        start = planned.initial() if offset is None else Offset.from_json(offset)
        end = planned.latest(start, is_limited=step < 35)
        found = rows(planned, start, end)
        assert found == rows(planner(table, **options), start, end), "a batch that is asked for again is the same"
        seen += found
        offset = end.to_json()
    assert sorted(seen) == list(range(written))


def test_limits_by_files_and_bytes(table: DeltaTable) -> None:
    for options in ({"maxFilesPerTrigger": 2}, {"maxBytesPerTrigger": 1}):
        planned = planner(table, startingVersion=0, **options)
        start = planned.initial()
        end = planned.latest(start, is_limited=True)
        assert end.version == (2 if "maxFilesPerTrigger" in options else 1)
        assert planned.latest(start, is_limited=False).version == 3


def test_where_a_stream_starts(table: DeltaTable) -> None:
    for options, wanted in (
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"startingVersion": 1}, [2, 3, 4, 5]),
        ({"startingVersion": "latest"}, []),
        ({"startingTimestamp": "2000-01-01"}, [0, 1, 2, 3, 4, 5]),
    ):
        planned = planner(table, **options)
        start = planned.initial()
        assert rows(planned, start, planned.latest(start, is_limited=True)) == wanted
    with pytest.raises(VersionNotFoundError):
        planner(table, startingVersion=9).initial()


@pytest.mark.parametrize("options", [{}, {"startingVersion": 1}, {"startingVersion": "latest"}], ids=str)
@pytest.mark.parametrize("limit", [2, 1000])
def test_a_first_batch_that_is_planned_again_begins_where_it_began(
    table: DeltaTable, options: dict[str, Any], limit: int
) -> None:
    planned = planner(table, maxFilesPerTrigger=limit, **options)
    start = planned.initial()
    table.append(ids(6, 7))
    end = Offset.from_json(planned.latest(start, is_limited=True).to_json())
    wanted = rows(planned, start, end)
    assert wanted
    # The process is killed, and the table grows, before Spark asks again: it has logged where the batch ends, no more.
    for more in (8, 10, 12):
        table.append(ids(more))
    again = planner(table, maxFilesPerTrigger=limit, **options)
    start = Offset.from_json(again.initial().to_json())
    assert rows(again, start, end) == wanted
    first = {None: 0, 1: 2, "latest": 6}[options.get("startingVersion")]
    rest = rows(again, end, again.latest(end, is_limited=False))
    assert sorted(wanted + rest) == [*range(first, 8), 8, 10, 12]


def test_available_now_stops_where_it_began(table: DeltaTable) -> None:
    planned = planner(table)
    start = planned.initial()
    planned.stop_at_newest()
    table.append(ids(6))
    end = planned.latest(start, is_limited=True)
    assert rows(planned, start, end) == [0, 1, 2, 3, 4, 5]
    assert planned.latest(end, is_limited=True) == end


def test_commits_that_delete_or_change(table: DeltaTable) -> None:
    table.delete("id < 2")
    table.update({"id": "id + 100"}, "id = 3")
    start = Offset(table.snapshot().metadata.id, 3)
    for version, option in ((3, "ignoreDeletes"), (4, "ignoreChanges")):
        at = Offset(start.table_id, version)
        with pytest.raises(InvalidRequestError, match=f"(?s)Version {version} .*{option}"):
            planner(table).latest(at, is_limited=True)
    planned = planner(table, skipChangeCommits="true")
    assert rows(planned, start, planned.latest(start, is_limited=True)) == []
    planned = planner(table, ignoreChanges="true")
    assert 103 in rows(planned, start, planned.latest(start, is_limited=True))
    planned = planner(table, ignoreDeletes="true")
    with pytest.raises(InvalidRequestError, match="Version 4 changes"):
        planned.latest(start, is_limited=True)


def test_changes_from_the_first_version_on(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ids(1, 2), properties=FEED)
    planned = planner(table, readChangeFeed="true")
    start = planned.initial()
    table.delete("id = 1")
    end = planned.latest(start, is_limited=True)
    found = rows(planned, start, end, "_commit_version", "_change_type", "id")
    assert found == [(0, "insert", 1), (0, "insert", 2), (1, "delete", 1)]


def test_columns_that_change(table: DeltaTable) -> None:
    running = planner(table)
    start = running.initial()
    more = pa.table({"id": pa.array([6], pa.int64()), "note": ["x"]})
    table.append(more, schema_mode="merge")
    with pytest.raises(MetadataChangedError, match=r"(?s)Version 3 changed the columns.*Start the query again"):
        running.latest(start, is_limited=True)
    again = planner(table)
    found = rows(again, start, again.latest(start, is_limited=True), "id", "note")
    assert found[-1] == (6, "x") if found[-1][1] else (6, "x") in found
    assert [note for i, note in sorted(found) if i < 6] == [None] * 6


def test_columns_that_are_dropped_or_renamed(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    both = pa.table({"id": pa.array([1], pa.int64()), "gone": ["x"]})
    table.append(both, properties={"delta.columnMapping.mode": "name"})
    start = planner(table).initial()
    table.alter().drop_columns("gone").commit()
    table.alter().rename_column("id", "key").commit()
    with pytest.raises(UnsupportedFeatureError, match="gone was string and is gone; column id is now key"):
        planner(table).latest(start, is_limited=True)
    planned = planner(table, allowSourceColumnDrop="always", allowSourceColumnRename="always")
    assert rows(planned, start, planned.latest(start, is_limited=True), "key") == [(1,)]
    # One that has read all before the change has to be told as well; one that begins there has read nothing.
    caught_up = Offset(table.snapshot().metadata.id, 1, first=0)
    with pytest.raises(UnsupportedFeatureError, match="gone was string and is gone"):
        planner(table, allowSourceColumnRename="always").latest(caught_up, is_limited=True)
    begun = planner(table, startingVersion=2)
    assert begun.latest(begun.initial(), is_limited=True).version == 3


def test_a_log_that_was_cleaned_up_or_another_table(table: DeltaTable, tmp_path: Path) -> None:
    start = planner(table, startingVersion=0).initial()
    table.checkpoint()
    (tmp_path / "a table" / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="has not read version 0"):
        planner(table).latest(start, is_limited=True)
    with pytest.raises(InvalidRequestError, match="dropped and created again"):
        planner(table).latest(Offset("other", 0), is_limited=True)
    with pytest.raises(ProtocolViolationError, match="offset in the checkpoint"):
        Offset.from_json({"partition": 1})


@pytest.mark.parametrize("position", ["first version", "behind it"])
def test_a_table_that_takes_the_place_of_another_while_the_query_runs_is_refused(
    table: DeltaTable, tmp_path: Path, position: str
) -> None:
    planned = planner(table, maxFilesPerTrigger=1)
    end = planned.latest(planned.initial(), is_limited=position == "first version")
    other = DeltaTable(tmp_path / "another")
    for start in range(100, 110):
        other.append(ids(start))
    place = Path(table.uri.removeprefix("file://").replace("%20", " "))
    place.rename(tmp_path / "away")
    (tmp_path / "another").rename(place)
    with pytest.raises(InvalidRequestError, match="dropped and created again"):
        planned.latest(end, is_limited=False)


def test_a_running_query_goes_on_when_the_log_behind_it_is_cleaned_up(table: DeltaTable) -> None:
    planned = planner(table)
    end = planned.latest(planned.initial(), is_limited=True)
    table.append(ids(6))
    end = planned.latest(end, is_limited=True)
    table.append(ids(7))
    table.checkpoint()
    for version in range(4):
        commit = Path(table.uri.removeprefix("file://").replace("%20", " ")) / "_delta_log" / f"{version:020}.json"
        commit.unlink()
    assert rows(planned, end, planned.latest(end, is_limited=True)) == [7]


def test_changes_do_not_go_on_within_a_version(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("p", pa.int64()), ("v", pa.int64())]), partition_by=["p"], properties=FEED)
    table.append(pa.table({"p": [1, 2, 3], "v": [1, 2, 3]}))
    by_rows = planner(table, maxFilesPerTrigger=1, startingVersion=1)
    end = by_rows.latest(by_rows.initial(), is_limited=True)
    assert end.index == 1
    with pytest.raises(InvalidRequestError, match="in the middle of version 1"):
        planner(table, readChangeFeed="true").latest(end, is_limited=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"versionAsOf": "1"}, "no option"),
        ({"startingVersion": "x"}, "must be a number"),
        ({"maxFilesPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "1 parsec"}, "a size like 64m"),
        ({"startingVersion": "1", "startingTimestamp": "2020-01-01"}, "exclude each other"),
        ({"allowSourceColumnDrop": "true"}, "must be always"),
    ],
    ids=["batch", "number", "zero", "size", "both", "always"],
)
def test_options_that_do_not_fit(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        parse_stream_options({"path": "/t", **options})


def test_sizes_are_spelled_as_everywhere() -> None:
    assert parse_stream_options({"path": "/t", "maxBytesPerTrigger": "10k"}).max_bytes == 10240


def test_what_only_a_stream_can_mean() -> None:
    feed = {"readChangeFeed": "true"}
    for options in ({"startingVersion": "1"}, {"maxFilesPerTrigger": "1"}, feed, {**feed, "startingVersion": "latest"}):
        assert is_of_stream(options)
    for options in ({}, {"versionAsOf": "1"}, {**feed, "startingVersion": "1"}, {**feed, "endingVersion": "1"}):
        assert not is_of_stream(options)
