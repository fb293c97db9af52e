"""add_files: Parquet files that others wrote become files of the table."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId, column, identity_column
from delta_orch.errors import (
    ConcurrentAppendError,
    ConstraintViolationError,
    DeltaError,
    InvalidRequestError,
    MissingFileError,
    SchemaMismatchError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
)
from tests.harness.table_builder import read_anew

IDS = pa.table({"id": pa.array([1, None, 3], pa.int64()), "s p": [{"x": 1.5}, None, {"x": None}]})
MAPPED = {"delta.columnMapping.mode": "name"}


def put(table: DeltaTable, name: str, rows: pa.Table = IDS) -> str:
    """Write a file below a table's directory, as another program would."""
    path = Path(table.uri.removeprefix("file://")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return name


def ids(table: DeltaTable) -> list[Any]:
    return sorted(read_anew(table).scan(["id"]).to_arrow()["id"].to_pylist(), key=repr)


@pytest.fixture
def plain(table: DeltaTable) -> DeltaTable:
    """A table without column mapping."""
    table.create(pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.float64())]))]))
    return table


ROWS = pa.table({"id": pa.array([1, None, 3], pa.int64()), "s": [{"x": 1.5}, None, {"x": None}]})


class TestAdded:
    def test_with_their_statistics_whatever_their_names(self, plain: DeltaTable) -> None:
        names = [put(plain, name, ROWS) for name in ("a b%20é+#?.parquet", "sub dir/x'y\".parquet", "c:d.parquet")]
        result = plain.add_files(names, user_metadata="loaded")
        assert (result.version, result.operation_metrics["numFiles"]) == (1, 3)
        snapshot = read_anew(plain)
        assert sorted(snapshot.list_files()["path"].to_pylist()) == sorted(names)
        assert snapshot.scan().to_arrow().num_rows == 9
        assert snapshot.scan(where="id > 3").plan().files.num_rows == 0
        assert deltalake.DeltaTable(plain.uri).to_pyarrow_table().num_rows == 9
        assert plain.history(1)[0].operation == "ADD FILES"
        assert plain.fsck(check_files=True).problems == ()
        plain.delete("id = 1")
        assert ids(plain) == [3, 3, 3, None, None, None]

    def test_by_absolute_paths_and_uris(self, plain: DeltaTable) -> None:
        root = Path(plain.uri.removeprefix("file://"))
        for name in ("a b.parquet", "b.parquet", "c.parquet"):
            put(plain, name, ROWS)
        plain.add_files([root / "a b.parquet", f"{root}/sub/../b.parquet", f"{plain.uri}/c.parquet"])
        assert sorted(read_anew(plain).files(["path"])["path"].to_pylist()) == [
            "a%20b.parquet",
            "b.parquet",
            "c.parquet",
        ]

    def test_outside_the_directory_where_that_is_allowed(self, plain: DeltaTable, tmp_path: Path) -> None:
        outside = tmp_path / "out side"
        outside.mkdir()
        pq.write_table(ROWS, outside / "x%y.parquet")
        with pytest.raises(UnsupportedStoreError):
            DeltaTable(plain.uri, external_paths=[]).add_files([outside / "x%y.parquet"])
        opened = DeltaTable(plain.uri, external_paths=[outside])
        opened.add_files([outside / "x%y.parquet"])
        assert ids(opened) == [1, 3, None]
        opened.vacuum(0, enforce_retention=False)
        assert (outside / "x%y.parquet").exists()
        with pytest.raises(InvalidRequestError, match="already"):
            opened.add_files([f"file://{outside}/x%25y.parquet".replace(" ", "%20")])

    def test_once_with_a_txn_and_not_in_a_rehearsal(self, plain: DeltaTable) -> None:
        name = put(plain, "x.parquet", ROWS)
        preview = plain.add_files([name], dry_run=True).preview
        assert preview is not None and preview.adds[0].num_rows == 1 and plain.version() == 0
        plain.add_files([name], txn=TxnId("load", 1))
        assert plain.add_files([name], txn=TxnId("load", 1)).skipped

    def test_row_ids_change_feed_and_time_travel(self, table: DeltaTable) -> None:
        table.append(
            pa.table({"id": pa.array([7], pa.int64())}),
            properties={"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true"},
        )
        table.add_files([put(table, "x.parquet", pa.table({"id": pa.array([8, 9], pa.int64())}))])
        table.update({"id": "id + 1"}, "id = 9")
        tracked = read_anew(table).scan(row_tracking=True).to_arrow()
        [row_ids] = [tracked[name] for name in tracked.column_names if name.endswith("row_id")]
        assert sorted(row_ids.to_pylist()) == [0, 1, 2]
        kinds = table.changes(starting_version=1).to_arrow()["_change_type"].to_pylist()
        assert sorted(kinds) == ["insert", "insert", "update_postimage", "update_preimage"]

    def test_lacking_columns_are_null(self, table: DeltaTable) -> None:
        table.create(pa.schema([("id", pa.int64()), ("more", pa.string()), ("n", pa.int32())]))
        table.add_files([put(table, "x.parquet", pa.table({"n": pa.array([4], pa.int8()), "id": pa.array([1])}))])
        assert read_anew(table).scan().to_arrow().to_pylist() == [{"id": 1, "more": None, "n": 4}]

    def test_columns_of_a_table_mapped_later_keep_their_names(self, plain: DeltaTable) -> None:
        plain.alter().set_properties(MAPPED).rename_column("id", "the id").commit()
        plain.add_files([put(plain, "x.parquet", ROWS)])
        assert read_anew(plain).scan(["the id"], "`the id` = 3").to_arrow()["the id"].to_pylist() == [3]
        assert read_anew(plain).scan(where="`the id` > 3").plan().files.num_rows == 0


class TestPartitions:
    @pytest.fixture
    def days(self, table: DeltaTable) -> DeltaTable:
        table.create(
            pa.schema([("id", pa.int64()), ("day", pa.date32()), ("the k", pa.string())]),
            partition_by=["day", "the k"],
            properties=MAPPED,
        )
        return table

    @pytest.fixture
    def rows(self, days: DeltaTable) -> pa.Table:
        name = days.snapshot().schema.fields[0].metadata["delta.columnMapping.physicalName"]
        return pa.table({name: pa.array([1], pa.int64())})

    def test_by_directories_and_by_hand(self, days: DeltaTable, rows: pa.Table) -> None:
        hive = "day=__HIVE_DEFAULT_PARTITION__/the k=a%2Fb %25é/x.parquet"
        day = datetime.date(2020, 1, 2)
        days.add_files([put(days, hive, rows)])
        days.add_files([put(days, "y/1.parquet", rows)], partition_values={"DAY": "2020-01-02", "the k": None})
        days.add_files(
            [put(days, "2.parquet", rows), put(days, "day=1/3.parquet", rows)],
            partition_values=[{"day": day, "the k": "2"}, {"day": None, "the k": "= '"}],
        )
        found = {(r["day"], r["the k"]) for r in read_anew(days).scan().to_arrow().to_pylist()}
        assert found == {(None, "a/b %é"), (day, None), (day, "2"), (None, "= '")}
        assert days.delete("`the k` = 'a/b %é'").operation_metrics["numRemovedFiles"] == 1

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("x.parquet", None),
            ("day=2020-01-02/x.parquet", None),
            ("day=nonsense/the k=1/x.parquet", None),
            ("x.parquet", {"day": "2020-01-02"}),
            ("x.parquet", {"day": "2020-01-02", "the k": "1", "id": 1}),
            ("x.parquet", {"day": 7.5, "the k": "1"}),
            ("x.parquet", {"day": None, "the k": ""}),
            ("x.parquet", {"day": None, "the k": 5}),
            ("x.parquet", []),
            ("x.parquet", "day"),
        ],
    )
    def test_wrong_values_are_refused(self, days: DeltaTable, rows: pa.Table, name: str, values: Any) -> None:
        with pytest.raises(InvalidRequestError):
            days.add_files([put(days, name, rows)], partition_values=values)
        assert days.version() == 0


class TestRefused:
    def test_files_of_the_table(self, plain: DeltaTable) -> None:
        name = put(plain, "a b.parquet", ROWS)
        with pytest.raises(InvalidRequestError, match="twice"):
            plain.add_files([name, f"./sub/../{name}"])
        plain.add_files([name])
        for spelling in (name, f"{plain.uri}/a%20b.parquet", f"/{plain.uri.removeprefix('file:///')}/{name}"):
            with pytest.raises(InvalidRequestError, match="already"):
                plain.add_files([spelling])
        # One file by two names.
        root = Path(plain.uri.removeprefix("file://"))
        (root / "link.parquet").symlink_to(root / name)
        (root / "sub").symlink_to(root)
        for linked in ("link.parquet", f"sub/{name}"):
            with pytest.raises(InvalidRequestError, match="link"):
                plain.add_files([linked])
        plain.overwrite(ROWS)
        with pytest.raises(InvalidRequestError, match="vacuum"):
            plain.add_files([name])
        assert plain.version() == 2

    def test_two_who_may_add_the_same_file(self, plain: DeltaTable) -> None:
        name, before = put(plain, "x.parquet", ROWS), plain.snapshot()
        DeltaTable(plain.uri).append(ROWS)
        plain.add_files([name], read_version=before.version, isolation_level="WriteSerializable")
        with pytest.raises(ConcurrentAppendError):
            DeltaTable(plain.uri).add_files([name], read_version=before.version)
        assert read_anew(plain).scan().to_arrow().num_rows == 6

    @pytest.mark.parametrize(
        ("rows", "problem"),
        [
            ({"id": pa.array([1], pa.int32())}, "integer"),
            ({"ID": pa.array([1], pa.int64())}, "ID"),
            ({"other": [1]}, "other"),
            ({"id": ["1"]}, "string"),
            ({"s": [{"y": 1.0}]}, "s.y"),
            ({"id": pa.array([1], pa.uint64())}, "uint64"),
            ({"id": pa.nulls(1)}, "void"),
        ],
    )
    def test_files_with_other_columns(self, plain: DeltaTable, rows: Any, problem: str) -> None:
        with pytest.raises(SchemaMismatchError, match=problem):
            plain.add_files([put(plain, "x.parquet", pa.table(rows))])
        assert plain.version() == 0

    def test_what_are_no_data_files(self, plain: DeltaTable, tmp_path: Path) -> None:
        Path(plain.uri.removeprefix("file://"), "no.parquet").write_text("nothing")
        Path(plain.uri.removeprefix("file://"), "dir.parquet").mkdir()
        os.mkfifo(Path(plain.uri.removeprefix("file://"), "pipe.parquet"))
        put(plain, "_change_data/x.parquet", ROWS)
        for path in (
            "no.parquet", "pipe.parquet", "_change_data/x.parquet", "_delta_log/00000000000000000000.json",
            "../x.parquet", "", "a\0b", "\ud800", b"x", 7,
        ):  # fmt: skip
            with pytest.raises(DeltaError):
                plain.add_files([path])  # type: ignore[list-item]
        for path in ("gone.parquet", "dir.parquet"):
            with pytest.raises(MissingFileError):
                plain.add_files([path])
        with pytest.raises(InvalidRequestError):
            plain.add_files([])
        assert plain.version() == 0

    def test_rows_that_break_a_rule(self, table: DeltaTable) -> None:
        table.create(
            [
                column("id", "bigint", nullable=False),
                column("s", "struct<a: int>"),
                column("twice", "bigint", generated_as="id * 2"),
                column("c", "varchar(2)"),
            ],
            properties={"delta.constraints.low": "id < 10"},
        )
        good = {"id": pa.array([1], pa.int64()), "twice": pa.array([2], pa.int64()), "c": ["é+"]}
        table.add_files([put(table, "good.parquet", pa.table(good))])
        for name, values in (("id", [None]), ("id", [11]), ("twice", [3]), ("c", ["abc"])):
            bad = {**good, name: pa.array(values, pa.table(good).schema.field(name).type)}
            with pytest.raises(ConstraintViolationError):
                table.add_files([put(table, "bad.parquet", pa.table(bad))])
        with pytest.raises(SchemaMismatchError, match="twice"):
            table.add_files([put(table, "lacks.parquet", pa.table(good).drop_columns(["twice"]))])
        assert ids(table) == [1]

    def test_tables_whose_files_are_more(self, tmp_path: Path) -> None:
        counted = DeltaTable(tmp_path / "counted")
        counted.create([identity_column("k"), column("id", "bigint")])
        with pytest.raises((InvalidRequestError, SchemaMismatchError)):
            counted.add_files([put(counted, "x.parquet", pa.table({"id": pa.array([1], pa.int64())}))])
        for number, properties in enumerate(
            ({"delta.columnMapping.mode": "id"}, {"delta.enableIcebergCompatV2": "true"})
        ):
            table = DeltaTable(tmp_path / str(number))
            table.create(pa.schema([("id", pa.int64())]), properties=properties)
            with pytest.raises(UnsupportedFeatureError):
                table.add_files([put(table, "x.parquet", pa.table({"id": pa.array([1], pa.int64())}))])
        days = DeltaTable(tmp_path / "days")
        days.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_by=["day"])
        with pytest.raises(SchemaMismatchError, match="day"):
            rows = pa.table({"id": pa.array([1], pa.int64()), "day": ["b"]})
            days.add_files([put(days, "day=a/x.parquet", rows)])


class TestReplacing:
    """`replace_where`: what leaves, what comes, and what is refused."""

    @staticmethod
    def _table(tmp_path: Path, **properties: str) -> DeltaTable:
        table = DeltaTable(tmp_path / "t")
        rows = pa.table({"day": ["a", "a", "b"], "id": pa.array([1, 2, 3], pa.int64())})
        table.append(rows, partition_by=["day"], properties={k.replace("__", "."): v for k, v in properties.items()})
        return table

    @staticmethod
    def _rows(table: DeltaTable) -> list[tuple[str, int]]:
        rows = read_anew(table).scan().to_arrow().to_pylist()
        return sorted((row["day"], row["id"]) for row in rows)

    @pytest.mark.parametrize("feed", ["true", "false"])
    def test_a_partition(self, tmp_path: Path, feed: str) -> None:
        table = self._table(tmp_path, delta__enableChangeDataFeed=feed)
        name = put(table, "day=a/new.parquet", pa.table({"id": [7, 8]}))
        result = table.add_files([name], replace_where="day = 'a'")
        assert self._rows(table) == [("a", 7), ("a", 8), ("b", 3)]
        assert result.operation_metrics["numRemovedFiles"] == 1
        if feed == "true":
            changes = table.changes(starting_version=1).to_arrow().to_pylist()
            assert sorted((c["_change_type"], c["id"]) for c in changes) == [
                ("delete", 1), ("delete", 2), ("insert", 7), ("insert", 8),
            ]  # fmt: skip

    def test_rows_of_files_that_hold_others(self, tmp_path: Path) -> None:
        table = self._table(tmp_path)
        name = put(table, "day=a/new.parquet", pa.table({"id": [2, 2]}))
        table.add_files([name], replace_where="id = 2")
        assert self._rows(table) == [("a", 1), ("a", 2), ("a", 2), ("b", 3)]
        fed = self._table(tmp_path / "fed", delta__enableChangeDataFeed="true")
        name = put(fed, "day=a/new.parquet", pa.table({"id": [2]}))
        with pytest.raises(UnsupportedFeatureError, match="feed"):
            fed.add_files([name], replace_where="id = 2")
        assert self._rows(fed) == [("a", 1), ("a", 2), ("b", 3)]

    @pytest.mark.parametrize(
        ("where", "rows"),
        [
            ("day = 'b'", {"id": [7]}), ("id = 2", {"id": [2, 3]}), ("id > 1", {"id": [None, 2]}),
            ("day = 'a' AND id = 1", {"id": [1, 2]}),
        ],
    )  # fmt: skip
    def test_a_row_outside_of_what_leaves(self, tmp_path: Path, where: str, rows: Any) -> None:
        table = self._table(tmp_path)
        good = put(table, "day=a/good.parquet", pa.table({"id": pa.array([2], pa.int64())}))
        name = put(table, "day=a/new.parquet", pa.table({"id": pa.array(rows["id"], pa.int64())}))
        with pytest.raises(ConstraintViolationError, match="outside"):
            table.add_files([name, good], replace_where=where)
        assert table.version() == 0 and self._rows(table) == [("a", 1), ("a", 2), ("b", 3)]

    def test_who_adds_rows_that_would_have_left_comes_first(self, tmp_path: Path) -> None:
        table = self._table(tmp_path)
        name, before = put(table, "day=a/new.parquet", pa.table({"id": [7]})), table.version()
        DeltaTable(table.uri).append(pa.table({"day": ["b"], "id": [9]}))
        table.add_files([name], replace_where="day = 'a'", read_version=before, isolation_level="WriteSerializable")
        name = put(table, "day=a/newer.parquet", pa.table({"id": [8]}))
        version = table.version()
        DeltaTable(table.uri).append(pa.table({"day": ["a"], "id": [10]}))
        with pytest.raises(ConcurrentAppendError):
            table.add_files([name], replace_where="day = 'a'", read_version=version)
        assert self._rows(table) == [("a", 7), ("a", 10), ("b", 3), ("b", 9)]

    def test_what_does_not_replace(self, tmp_path: Path) -> None:
        kept = self._table(tmp_path, delta__appendOnly="true")
        name = put(kept, "day=a/new.parquet", pa.table({"id": [7]}))
        for options in ({"replace_where": "day = 'a'"}, {"stage": True}, {"replace_where": "nothing = 1"}):
            with pytest.raises(DeltaError):
                kept.add_files([name], **options)
        assert kept.version() == 0
        planned = self._table(tmp_path / "dry")
        name = put(planned, "day=a/new.parquet", pa.table({"id": [7]}))
        assert planned.add_files([name], replace_where="day = 'a'", dry_run=True).preview is not None
        assert self._rows(planned) == [("a", 1), ("a", 2), ("b", 3)]
