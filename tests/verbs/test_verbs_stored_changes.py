"""A change feed as rows of a table, and what of a feed is read where columns and rows of it are asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError, SchemaMismatchError
from tests.harness.table_builder import read_anew

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def source(tmp_path: Path) -> DeltaTable:
    """Inserts, updates and deletes, of which some are in change files; ids below and above 100 in files apart."""
    source = DeltaTable(tmp_path / "source")
    source.append(
        pa.table({"day": ["a", None], "id": pa.array([1, 101], pa.int64()), "s p": [{"x": 1}, {"x": 2}]}),
        partition_by=["day"],
        properties={**FEED, "delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
    )
    source.append(pa.table({"day": ["a", "a"], "id": pa.array([2, 3], pa.int64()), "s p": [{"x": 3}, None]}))
    source.update({"id": "id + 10"}, "id = 2")
    source.delete("day IS NULL")
    return source


def rows(data: pa.Table) -> list[str]:
    return sorted(map(repr, data.to_pylist()))


class TestStored:
    def test_by_every_door(self, source: DeltaTable, tmp_path: Path) -> None:
        feed = source.changes(starting_version=0)
        told = feed.to_arrow()
        stored = DeltaTable(tmp_path / "stored")
        stored.append(feed, properties={"delta.columnMapping.mode": "name"}, partition_by=["_change_type"])
        assert rows(read_anew(stored).scan(feed.schema.names).to_arrow()) == rows(told)
        stored.append(source.changes(starting_version=2).to_reader())
        stored.overwrite(told.to_reader())
        stored.overwrite(feed, replace_where="_commit_version >= 0")
        assert rows(read_anew(stored).scan(feed.schema.names).to_arrow()) == rows(told)
        # Its rows can be changed like those of any table.
        assert stored.delete("_commit_version = 0").operation_metrics["numDeletedRows"] == 2
        stored.update({"_change_type": "'upserted'"}, "_change_type = 'insert'")
        stored.upsert(source.changes(starting_version=3), ["id", "_change_type", "_commit_version"])
        kinds = read_anew(stored).scan(["_change_type"]).to_arrow()["_change_type"].to_pylist()
        assert sorted(kinds) == ["delete", "update_postimage", "update_preimage", "upserted", "upserted"]

    def test_a_table_a_snapshot_and_a_scan_are_rows_too(self, source: DeltaTable, tmp_path: Path) -> None:
        copy = DeltaTable(tmp_path / "copy")
        copy.append(source, properties={"delta.columnMapping.mode": "name"})
        copy.append(source.snapshot(0))
        copy.overwrite(source.snapshot().scan(["id", "day"], "id > 3"), schema_mode="overwrite")
        assert rows(read_anew(copy).scan().to_arrow()) == [repr({"id": 12, "day": "a"})]

    def test_where_a_table_has_a_feed_of_its_own_it_is_refused(self, source: DeltaTable, tmp_path: Path) -> None:
        feed, target = source.changes(starting_version=0), DeltaTable(tmp_path / "target")
        mapped = {"delta.columnMapping.mode": "name"}
        with pytest.raises(SchemaMismatchError, match="_change_type"):
            target.append(feed, properties={**FEED, **mapped})
        assert not target.exists()
        target.append(feed, properties=mapped)
        with pytest.raises(SchemaMismatchError, match="_change_type"):
            target.alter().set_properties(FEED).commit()
        with pytest.raises(InvalidRequestError, match="_commit_version"):
            target.changes(starting_version=0)
        with pytest.raises(SchemaMismatchError, match="_change_type"):
            source.append(feed, schema_mode="merge")
        assert (target.version(), source.version()) == (0, 3)


class TestPruned:
    def test_every_filter_gives_what_filtering_the_feed_gives(self, source: DeltaTable) -> None:
        whole = source.changes(starting_version=0).to_arrow()
        is_a, below = pc.field("day") == "a", pc.field("id") < 100
        for where, kept in (
            ("day = 'a'", is_a),
            ("id < 100 AND _change_type = 'insert'", below & (pc.field("_change_type") == "insert")),
            ("_commit_version >= 2", pc.field("_commit_version") >= 2),
            ("_change_type LIKE 'update%'", pc.starts_with(pc.field("_change_type"), "update")),
            (below, below),
            ("`s p`.x = 2", pc.equal(pc.struct_field(pc.field("s p"), "x"), 2)),
        ):
            feed = source.changes(starting_version=0, where=where)
            assert rows(feed.to_arrow()) == rows(whole.filter(kept)), where
        read = source.changes(starting_version=0, columns=["s p.x", "_commit_version"], where="day IS NULL")
        assert read.schema.names == ("x", "_commit_version")
        assert read.to_arrow().to_pylist() == [{"x": 2, "_commit_version": 0}, {"x": 2, "_commit_version": 3}]

    def test_files_are_left_out(self, source: DeltaTable) -> None:
        whole = source.changes(starting_version=0)
        count = whole.files().num_rows
        in_files = whole.files()["change_type"].null_count
        assert whole.num_files_skipped == 0 and in_files
        # Change files have no statistics.
        for where, read in (("day IS NULL", 2), ("id > 100", 2 + in_files), ("_commit_version = 3", 1)):
            feed = source.changes(starting_version=0, where=where)
            assert (feed.files().num_rows, feed.num_files_skipped) == (read, count - read), where
        assert source.changes(starting_version=0, where="_commit_version > 7").is_empty

    def test_what_is_wrong_is_refused(self, source: DeltaTable) -> None:
        with pytest.raises(ColumnNotFoundError):
            source.changes(starting_version=0, where="nonsense = 1")
        with pytest.raises(ColumnNotFoundError):
            source.changes(starting_version=0, columns=["nonsense"])
        # The last change of a row may be among those that are left out.
        with pytest.raises(InvalidRequestError, match="whole feed"):
            source.changes(starting_version=0, where="id < 100").latest(["id"])
