"""The change feed of tables other writers made: ranges, vectors, change data files, schemas that changed."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable
from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.errors import (
    InvalidRequestError,
    MissingFileError,
    SchemaMismatchError,
    TimestampOutOfRangeError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.protocol.actions import CommitInfo, Protocol
from delta_orch.protocol.types import INTEGER, LONG, STRING, DataType, StructField, StructType
from tests.handmade import HandmadeTable, inline_vector

IDS = pa.schema([("id", pa.int64())])
ON = {"delta.enableChangeDataFeed": "true"}


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def changed(feed: ChangeFeed) -> list[tuple[int, str, Any]]:
    rows = feed.to_arrow().to_pylist()
    return sorted((r["_commit_version"], r["_change_type"], r["id"]) for r in rows)


def set_time(table: Path, version: int, seconds: int) -> None:
    os.utime(table / "_delta_log" / f"{version:020d}.json", (seconds, seconds))


# ranges


@pytest.fixture
def hourly(tmp_path: Path) -> DeltaTable:
    """Versions 0 to 3, committed at 1000, 2000, 3000 and 4000 seconds; version n inserts n."""
    made = HandmadeTable(tmp_path / "hourly")
    made.create(IDS)
    for version in (1, 2, 3):
        made.commit(made.add(f"{version}.parquet", ids(version)))
    for version in range(4):
        set_time(made.root, version, (version + 1) * 1000)
    return made.open()


@pytest.mark.parametrize(
    ("start", "end", "versions"),
    [
        (2000, None, [1, 2, 3]),
        (2001, None, [2, 3]),
        (0, None, [1, 2, 3]),
        (1500, 3999, [1, 2]),
        (2000, 2000, [1]),
        (4000, 4000, [3]),
    ],
)
def test_ranges_of_time(hourly: DeltaTable, start: int, end: int | None, versions: list[int]) -> None:
    feed = hourly.changes(
        starting_timestamp=datetime.fromtimestamp(start, UTC), ending_timestamp=None if end is None else end * 1000
    )
    assert changed(feed) == [(v, "insert", v) for v in versions]
    assert (feed.starting_version, feed.ending_version) == (feed.starting_version, max(versions))


def test_bounds_of_time_out_of_range(hourly: DeltaTable) -> None:
    out_of_range: list[dict[str, Any]] = [
        {"starting_timestamp": 4_000_001},
        {"starting_timestamp": 9_000_000},
        {"starting_version": 0, "ending_timestamp": 999_999},
        {"starting_version": 0, "ending_timestamp": 9_000_000},
    ]
    for bounds in out_of_range:
        with pytest.raises((TimestampOutOfRangeError, VersionNotFoundError)):
            hourly.changes(**bounds)
    # Between two commits: nothing was committed there.
    with pytest.raises(InvalidRequestError, match="empty"):
        hourly.changes(starting_timestamp=2_000_001, ending_timestamp=2_999_999)


def test_beyond_the_newest_version_on_request(hourly: DeltaTable) -> None:
    def feed(**bounds: Any) -> ChangeFeed:
        return hourly.changes(**bounds, allow_out_of_range=True)

    for bounds in ({"starting_version": 9}, {"starting_version": 4, "ending_version": 7}, {"starting_timestamp": 9**9}):
        empty = feed(**bounds)
        assert empty.is_empty
        assert empty.to_arrow().schema.names == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
        assert empty.to_arrow().num_rows == 0
        assert empty.starting_version > empty.ending_version == 3
    assert changed(feed(starting_version=3, ending_version=99)) == [(3, "insert", 3)]
    assert changed(feed(starting_version=3, ending_timestamp=9**9)) == [(3, "insert", 3)]
    with pytest.raises(TimestampOutOfRangeError):
        feed(starting_version=0, ending_timestamp=1)
    with pytest.raises(TimestampOutOfRangeError, match=r"2100-01-01T00:00:00\.000"):
        hourly.changes(starting_timestamp="2100-01-01")
    with pytest.raises(InvalidRequestError):
        feed(starting_version=2, ending_version=1)


def test_bounds_that_make_no_sense(hourly: DeltaTable) -> None:
    for bounds in (
        {},
        {"starting_version": 0, "starting_timestamp": 0},
        {"starting_version": 0, "ending_version": 1, "ending_timestamp": 2_000_000},
        {"starting_timestamp": "noon"},
    ):
        with pytest.raises(InvalidRequestError):
            hourly.changes(**bounds)


def test_a_range_that_starts_before_the_log(hourly: DeltaTable) -> None:
    hourly.checkpoint()
    root = Path(hourly.store.resolve("x")).parent
    for version in (0, 1):
        (root / "_delta_log" / f"{version:020d}.json").unlink()
    assert changed(hourly.changes(starting_timestamp=0)) == [(2, "insert", 2), (3, "insert", 3)]
    with pytest.raises(VersionNotFoundError):
        hourly.changes(starting_version=1)


def test_the_first_version_without_the_feed_is_named(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS, features=("changeDataFeed",), configuration=ON)
    made.commit(made.add("1.parquet", ids(1)))
    made.commit(made.metadata(IDS, configuration={}))
    made.commit(made.add("3.parquet", ids(3)))
    made.commit(made.metadata(IDS, configuration=ON))
    made.commit(made.add("5.parquet", ids(5)))
    table = made.open()
    with pytest.raises(InvalidRequestError) as raised:
        table.changes(starting_version=0, require_change_data_feed=True)
    assert raised.value.context["version"] == 2
    with pytest.raises(InvalidRequestError, match="Version 3"):
        table.changes(starting_version=3, require_change_data_feed=True)
    for start, end in ((0, 1), (4, 5)):
        table.changes(starting_version=start, ending_version=end, require_change_data_feed=True)
    # Whoever has a feed is told by default, too, where it was off; who wants the changes of files says so.
    with pytest.raises(InvalidRequestError, match="Version 2 was written without"):
        table.changes(starting_version=0)
    with pytest.raises(InvalidRequestError, match="Version 3 was written without"):
        table.changes(starting_version=3, ending_version=3)
    every = table.changes(starting_version=0, require_change_data_feed=False)
    assert changed(every) == [(v, "insert", v) for v in (1, 3, 5)]


def test_a_table_that_never_had_a_feed_is_read_from_its_files(hourly: DeltaTable) -> None:
    assert len(changed(hourly.changes(starting_version=0))) == 3
    with pytest.raises(InvalidRequestError, match="Version 1 was written without"):
        hourly.changes(starting_version=1, require_change_data_feed=True)


@pytest.mark.parametrize(("operation", "updated", "told"), [("MERGE", "0", 0), ("MERGE", "1", 2), ("UPDATE", "0", 2)])
def test_a_merge_that_only_copied_rows_tells_nothing(tmp_path: Path, operation: str, updated: str, told: int) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS, features=("changeDataFeed",), configuration=ON)
    made.commit(made.add("1.parquet", ids(1)))
    metrics = {"numTargetRowsInserted": "0", "numTargetRowsUpdated": updated, "numTargetRowsDeleted": "0"}
    info = CommitInfo({"operation": operation, "operationMetrics": metrics})
    made.commit(info, made.remove("1.parquet"), made.add("2.parquet", ids(1)))
    assert len(changed(made.open().changes(starting_version=2))) == told


def test_a_feed_that_was_switched_off(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS, features=("changeDataFeed",), configuration=ON)
    made.commit(made.add("1.parquet", ids(1)))
    made.commit(made.metadata(IDS, configuration={}))
    made.commit(made.add("3.parquet", ids(3)))
    table = made.open()
    with pytest.raises(InvalidRequestError, match="Version 2 was written without"):
        table.changes(starting_version=1)
    # In the rest nothing was ever on, but the protocol names the feature.
    with pytest.raises(InvalidRequestError, match="Version 3 was written without"):
        table.changes(starting_version=3)
    assert changed(table.changes(starting_version=3, require_change_data_feed=False)) == [(3, "insert", 3)]
    assert changed(table.changes(starting_version=1, ending_version=1)) == [(1, "insert", 1)]


def test_a_feed_that_a_property_says_is_off(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS, configuration={"delta.enableChangeDataFeed": "false"})
    made.commit(made.add("1.parquet", ids(1)))
    with pytest.raises(InvalidRequestError, match="Version 0 was written without"):
        made.open().changes(starting_version=0)


def test_times_of_commits_whose_files_are_out_of_order(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS)
    for version in (1, 2, 3):
        made.commit(made.add(f"{version}.parquet", ids(version)))
    for version, seconds in enumerate([1000, 5000, 3000, 9000]):
        set_time(made.root, version, seconds)
    table = made.open()
    told = {entry.version: entry.timestamp_ms for entry in table.history()}
    assert told == {0: 1_000_000, 1: 5_000_000, 2: 5_000_001, 3: 9_000_000}
    rows = table.changes(starting_version=0).to_arrow()
    times = rows["_commit_timestamp"].cast(pa.int64()).to_pylist()
    assert dict(zip(rows["_commit_version"].to_pylist(), times, strict=True)) == {
        version: ms * 1000 for version, ms in told.items() if version
    }
    for version, ms in told.items():
        assert table.snapshot(version=version).timestamp_ms == ms
        assert table.snapshot(timestamp=ms).version == version
    assert table.snapshot(version=2).recorded_timestamp_ms == 3_000_000
    feed = table.changes(starting_timestamp=5_000_001, ending_timestamp=5_000_001)
    assert changed(feed) == [(2, "insert", 2)]


def test_times_across_the_enabling_of_in_commit_timestamps(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS)
    made.commit(made.add("1.parquet", ids(1)))
    properties = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": "7000",
    }
    made.commit(
        CommitInfo({"inCommitTimestamp": 7000}),
        Protocol(1, 7, None, ("inCommitTimestamp",)),
        made.metadata(IDS, configuration=properties),
    )
    made.commit(CommitInfo({"inCommitTimestamp": 7001}), made.add("3.parquet", ids(3)))
    for version, seconds in enumerate([2, 1, 50, 40]):
        set_time(made.root, version, seconds)
    table = made.open()
    told = {entry.version: entry.timestamp_ms for entry in table.history()}
    assert told == {0: 2000, 1: 2001, 2: 7000, 3: 7001}
    rows = table.changes(starting_version=0).to_arrow()
    times = rows["_commit_timestamp"].cast(pa.int64()).to_pylist()
    assert dict(zip(rows["_commit_version"].to_pylist(), times, strict=True)) == {1: 2_001_000, 3: 7_001_000}
    for version, ms in told.items():
        assert table.snapshot(version=version).timestamp_ms == ms
        assert table.snapshot(timestamp=ms).version == version


# deletion vectors


def vectors_table(root: Path) -> HandmadeTable:
    made = HandmadeTable(root)
    made.create(IDS, reader_features=("deletionVectors",))
    return made


@pytest.mark.parametrize("stats", [True, False])
def test_deletes_and_restores_between_two_vectors(tmp_path: Path, stats: bool) -> None:
    made = vectors_table(tmp_path / "t")
    made.file("f.parquet", ids(*range(10)), row_group_size=3)

    def swap(old: Any, new: Any) -> None:
        made.commit(
            made.remove("f.parquet", deletion_vector=old), made.add("f.parquet", stats=stats, deletion_vector=new)
        )

    made.commit(made.add("f.parquet", stats=stats))
    swap(None, inline_vector(2, 3))
    swap(inline_vector(2, 3), inline_vector(3, 8, 9))
    swap(inline_vector(3, 8, 9), None)
    swap(None, None)
    table = made.open()
    assert changed(table.changes(starting_version=2)) == [
        (2, "delete", 2),
        (2, "delete", 3),
        (3, "delete", 8),
        (3, "delete", 9),
        (3, "insert", 2),
        (4, "insert", 3),
        (4, "insert", 8),
        (4, "insert", 9),
    ]
    assert table.changes(starting_version=5).is_empty
    assert len(changed(table.changes(starting_version=0, ending_version=1))) == 10


def test_a_vector_is_as_long_as_its_file(tmp_path: Path) -> None:
    made = vectors_table(tmp_path / "t")
    made.file("f.parquet", ids(*range(10)))
    made.commit(made.add("f.parquet", stats=False))
    made.commit(made.remove("f.parquet"), made.add("f.parquet", stats=False, deletion_vector=inline_vector(4)))
    files = made.open().changes(starting_version=2).files()
    vector = files["deletion_vector"][0].as_py()
    assert (vector["cardinality"], vector["size_in_bytes"] < 100) == (9, True)
    (made.root / "f.parquet").unlink()
    with pytest.raises(MissingFileError, match=r"f\.parquet"):
        made.open().changes(starting_version=2)


def test_a_file_added_or_removed_with_a_vector(tmp_path: Path) -> None:
    made = vectors_table(tmp_path / "t")
    made.commit(made.add("f.parquet", ids(0, 1, 2), deletion_vector=inline_vector(1)))
    made.commit(made.remove("f.parquet", deletion_vector=inline_vector(1)))
    assert changed(made.open().changes(starting_version=1)) == [
        (1, "insert", 0),
        (1, "insert", 2),
        (2, "delete", 0),
        (2, "delete", 2),
    ]


def test_a_vector_that_changes_without_data_change(tmp_path: Path) -> None:
    made = vectors_table(tmp_path / "t")
    made.commit(made.add("f.parquet", ids(0, 1)))
    made.commit(
        made.remove("f.parquet", data_change=False),
        made.add("f.parquet", data_change=False, deletion_vector=inline_vector(1)),
    )
    assert made.open().changes(starting_version=2).is_empty


def test_random_vectors_against_sets(tmp_path_factory: pytest.TempPathFactory) -> None:
    count = 12
    rows = st.sets(st.integers(0, count - 1))

    @settings(max_examples=3, deadline=None)
    @given(st.lists(rows, min_size=2, max_size=4), st.booleans())
    def check(history: list[set[int]], stats: bool) -> None:
        # A commit must not add and remove a file with the same vector.
        history = [dead for dead, _ in itertools.groupby([*history, set(range(count)) - history[-1]])]
        made = vectors_table(tmp_path_factory.mktemp("vectors") / "t")
        made.file("f.parquet", ids(*range(count)), row_group_size=5)
        vectors = [inline_vector(*sorted(dead)) if dead else None for dead in history]
        made.commit(made.add("f.parquet", stats=stats, deletion_vector=vectors[0]))
        for old, new in itertools.pairwise(vectors):
            made.commit(
                made.remove("f.parquet", deletion_vector=old), made.add("f.parquet", stats=stats, deletion_vector=new)
            )
        expected = sorted(
            (version, kind, row)
            for version, (old, new) in enumerate(itertools.pairwise(history), 2)
            for kind, which in (("delete", new - old), ("insert", old - new))
            for row in which
        )
        assert changed(made.open().changes(starting_version=2)) == expected

    check()


# change data files, schemas


def field(name: str, data_type: DataType, number: int, physical: str) -> StructField:
    return StructField(
        name, data_type, True, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    )


MAPPED = ON | {"delta.columnMapping.mode": "name"}


def test_change_data_files_of_renamed_columns_and_partitions(tmp_path: Path) -> None:
    before = StructType((field("id", LONG, 1, "c1"), field("day", STRING, 2, "c2"), field("old", STRING, 3, "c3")))
    after = StructType((field("id", LONG, 1, "c1"), field("date", STRING, 2, "c2"), field("new", STRING, 3, "c3")))
    made = HandmadeTable(tmp_path / "t")
    made.create(
        before,
        features=("changeDataFeed",),
        reader_features=("columnMapping",),
        partition_by=["day"],
        configuration=MAPPED,
    )
    made.commit(made.add("1.parquet", pa.table({"c1": [1], "c3": ["x"]}), partition_values={"c2": "mon"}))
    rows = pa.table({"c1": [1, 1], "c3": ["x", "y"], "_change_type": ["update_preimage", "update_postimage"]})
    made.commit(
        made.remove("1.parquet", partition_values={"c2": "mon"}),
        made.add("2.parquet", pa.table({"c1": [1], "c3": ["y"]}), partition_values={"c2": "mon"}),
        made.cdc("_change_data/2.parquet", rows, partition_values={"c2": "mon"}),
    )
    made.commit(made.metadata(after, configuration=MAPPED, partition_columns=("date",)))
    feed = made.open().changes(starting_version=0, require_change_data_feed=True)
    found = sorted(tuple(r.values())[:5] for r in feed.to_arrow().to_pylist())
    assert feed.schema.names[:3] == ("id", "date", "new")
    assert found == [
        (1, "mon", "x", "insert", 1),
        (1, "mon", "x", "update_preimage", 2),
        (1, "mon", "y", "update_postimage", 2),
    ]
    assert feed.partitions().to_pylist() == [{"date": "mon"}]
    named_as_then = made.open().changes(starting_version=0, schema_version=2)
    assert named_as_then.schema.names[:3] == ("id", "day", "old")
    assert named_as_then.to_arrow().num_rows == 3


def test_columns_added_and_widened_inside_the_range(tmp_path: Path) -> None:
    narrow = StructType((StructField("id", INTEGER), StructField("s", StructType((StructField("a", INTEGER),)))))
    wide = StructType(
        (
            StructField(
                "id", LONG, True, {"delta.typeChanges": [{"fromType": "integer", "toType": "long", "tableVersion": 2}]}
            ),
            StructField("s", StructType((StructField("a", INTEGER), StructField("b", STRING)))),
            StructField("text", STRING),
        )
    )
    made = HandmadeTable(tmp_path / "t")
    made.create(narrow, reader_features=("typeWidening",))
    small = pa.table({"id": pa.array([1], pa.int32()), "s": pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))})
    made.commit(made.add("1.parquet", small))
    made.commit(made.metadata(wide))
    large = pa.table({"id": [2**40], "text": ["x"]})
    made.commit(made.add("3.parquet", large))
    rows = sorted(made.open().changes(starting_version=0).to_arrow().to_pylist(), key=lambda r: r["id"])
    assert [(r["id"], r["s"], r["text"]) for r in rows] == [(1, {"a": 1, "b": None}, None), (2**40, None, "x")]
    with pytest.raises(UnsupportedFeatureError, match="column id was long and is integer"):
        made.open().changes(starting_version=1, schema_version=1)
    # Before the change its own schema will do.
    assert made.open().changes(starting_version=1, ending_version=1).schema.names[:2] == ("id", "s")


def test_columns_dropped_inside_the_range(tmp_path: Path) -> None:
    both = StructType((field("id", LONG, 1, "c1"), field("gone", STRING, 2, "c2")))
    one = StructType((field("id", LONG, 1, "c1"),))
    again = StructType((field("id", LONG, 1, "c1"), field("gone", STRING, 3, "c3")))
    made = HandmadeTable(tmp_path / "t")
    made.create(both, reader_features=("columnMapping",), configuration=MAPPED)
    made.commit(made.add("1.parquet", pa.table({"c1": [1], "c2": ["x"]})))
    made.commit(made.metadata(one, configuration=MAPPED))
    made.commit(made.add("3.parquet", pa.table({"c1": [3]})))
    made.commit(made.metadata(again, configuration=MAPPED))
    made.commit(made.add("5.parquet", pa.table({"c1": [5], "c3": ["y"]})))
    table = made.open()
    for start in (0, 1):
        with pytest.raises(UnsupportedFeatureError, match="column gone was string and is gone") as raised:
            table.changes(starting_version=start)
        assert raised.value.context["version"] == start
    assert [(v, i) for v, _, i in changed(table.changes(starting_version=2))] == [(3, 3), (5, 5)]
    rows = table.changes(starting_version=0, schema_version=5).to_arrow().to_pylist()
    assert sorted((r["id"], r["gone"]) for r in rows) == [(1, None), (3, None), (5, "y")]
    assert table.changes(starting_version=0, schema_version=3).schema.names[:1] == ("id",)


def test_files_removed_by_the_commit_that_changes_the_schema(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(IDS)
    made.commit(made.add("1.parquet", ids(1)))
    made.commit(
        made.metadata(pa.schema([("id", pa.string())])),
        made.remove("1.parquet"),
        made.add("2.parquet", pa.table({"id": ["x"]})),
    )
    with pytest.raises(UnsupportedFeatureError, match="column id was long and is string"):
        made.open().changes(starting_version=2)
    assert changed(made.open().changes(starting_version=1, ending_version=1)) == [(1, "insert", 1)]


def test_columns_that_the_first_commit_takes_away_are_not_told(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}), properties=ON)
    table.append(pa.table({"id": [2], "gone": ["x"]}), schema_mode="merge")
    table.restore(0)
    found = table.changes(starting_version=2).to_arrow()
    assert found.select(["id", "_change_type"]).to_pylist() == [{"id": 2, "_change_type": "delete"}]
    with pytest.raises(UnsupportedFeatureError, match="column gone was string and is gone"):
        table.changes(starting_version=1)


@pytest.mark.parametrize(("start", "schema_version"), [(2, None), (2, 1), (0, 2)])
def test_field_ids_that_a_clone_gave_to_other_columns(tmp_path: Path, start: int, schema_version: int | None) -> None:
    by_id = {"delta.columnMapping.mode": "id"}
    table, other = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "other")
    table.append(pa.table({"x": [1], "y": [2]}), properties=by_id)
    table.append(pa.table({"x": [3], "y": [4]}))
    other.append(pa.table({"y": [20], "x": [10]}), properties=by_id)
    other.clone(tmp_path / "t", replace=True)
    with pytest.raises(UnsupportedFeatureError, match="had the field id of what is column"):
        table.changes(starting_version=start, schema_version=schema_version)
    assert table.changes(starting_version=0, ending_version=1).to_arrow().select(["x", "y"]).to_pylist() == [
        {"x": 1, "y": 2},
        {"x": 3, "y": 4},
    ]


def test_deltalake_agrees_on_its_own_feed(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    uri = str(tmp_path / "theirs")
    data = pa.table({"id": list(range(6)), "day": ["a", "b"] * 3})
    deltalake.write_deltalake(uri, data, partition_by=["day"], configuration=ON)
    theirs = deltalake.DeltaTable(uri)
    theirs.update(updates={"id": "id + 100"}, predicate="day = 'a' AND id > 1")
    theirs.delete("id = 3")
    deltalake.write_deltalake(uri, pa.table({"id": [9], "day": ["c"]}), mode="append")
    referee = pa.table(deltalake.DeltaTable(uri).load_cdf(starting_version=0).read_all())
    mine = DeltaTable(uri).changes(starting_version=0, require_change_data_feed=True).to_arrow()

    def comparable(table: pa.Table) -> list[tuple[Any, ...]]:
        names = ["id", "day", "_change_type", "_commit_version"]
        return sorted(tuple(row.values()) for row in table.select(names).to_pylist())

    assert comparable(mine) == comparable(referee)
    assert {r[2] for r in comparable(mine)} == {"insert", "delete", "update_preimage", "update_postimage"}


@pytest.mark.parametrize("name", ["_change_type", "_Commit_Version", "_commit_timestamp"])
def test_names_of_the_feed_are_reserved(tmp_path: Path, name: str) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(SchemaMismatchError, match="reserved"):
        table.append(pa.table({name: [1]}), properties={"delta.enableChangeDataFeed": "true"})
    assert not table.exists()
    table.append(pa.table({"id": [1]}), properties={"delta.enableChangeDataFeed": "true"})
    with pytest.raises(SchemaMismatchError, match="reserved"):
        table.append(pa.table({"id": [2], name: [1]}), schema_mode="merge")
    with pytest.raises(SchemaMismatchError, match="reserved"):
        table.alter().add_column(name, "bigint").commit()
    assert table.version() == 0
