"""list_files, partitions, to_pyarrow_dataset: what a version is made of."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ColumnNotFoundError, MissingFileError, UnsupportedExpressionError, UnsupportedFeatureError

ROWS = pa.table(
    {
        "part-of-%é": pa.array(["a/b é", None, "a/b é"]),
        "day": pa.array([dt.date(2026, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 1)]),
        "id": pa.array([1, 2, 3], pa.int64()),
        "st": pa.array([{"x.y%": 1.5, "d": Decimal("1.50")}, None, {"x.y%": None, "d": Decimal("-2.25")}]),
        "at": pa.array([dt.datetime(2026, 1, 1), None, dt.datetime(2026, 1, 2)], pa.timestamp("us", "UTC")),
    }
)


@pytest.mark.parametrize("mode", ["none", "name"])
def test_files_are_typed(table: DeltaTable, tmp_path: Path, mode: str) -> None:
    properties = {"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"}
    table.append(ROWS, partition_by=["part-of-%é", "day"], properties=properties)
    files = table.snapshot().list_files().sort_by([("num_records", "ascending")])
    assert files["partition"].to_pylist() == [
        {"part-of-%é": None, "day": dt.date(1969, 12, 31)},
        {"part-of-%é": "a/b é", "day": dt.date(2026, 1, 1)},
    ]
    one, two = files.to_pylist()
    assert (one["num_records"], one["min"]["id"], one["null_count"]["st"]) == (1, 2, {"x.y%": 1, "d": 1})
    assert (two["min"]["st"]["d"], two["max"]["st"]["d"]) == (Decimal("-2.25"), Decimal("1.50"))
    assert two["max"]["at"] == dt.datetime(2026, 1, 2, tzinfo=dt.UTC) and two["max"]["st"]["x.y%"] == 1.5
    for listed in (files, table.snapshot().list_files(absolute=True)):
        for file in listed.to_pylist():
            path = tmp_path / "table" / file["path"]
            assert path.stat().st_size == file["size"]
    assert all(Path(p).is_absolute() for p in listed["path"].to_pylist())
    table.delete("id = 3")
    [left] = table.snapshot().list_files("id > 2").to_pylist()
    assert (left["num_records"], left["num_deleted"], left["tight_bounds"]) == (2, 1, False)
    assert table.snapshot().list_files("day = '2000-01-01'").num_rows == 0


def test_partitions(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["part-of-%é", "day"])
    table.append(ROWS)
    found = table.snapshot().partitions()
    assert sorted(found.to_pylist(), key=str) == sorted(
        [{"part-of-%é": "a/b é", "day": dt.date(2026, 1, 1)}, {"part-of-%é": None, "day": dt.date(1969, 12, 31)}],
        key=str,
    )
    assert found.schema.field("day").type == pa.date32()


def test_without_partitions_and_without_files(table: DeltaTable) -> None:
    table.create(pa.schema([("x", pa.int64())]))
    snapshot = table.snapshot()
    assert (snapshot.partitions().num_rows, snapshot.list_files().num_rows) == (0, 0)
    assert snapshot.to_pyarrow_dataset().to_table().schema == pa.schema([("x", pa.int64())])
    table.append(pa.table({"x": [1]}))
    assert table.snapshot().list_files()["partition"].to_pylist() == [{}]
    assert table.snapshot().partitions().num_columns == 0


def test_dataset_has_the_rows_of_a_scan(table: DeltaTable) -> None:
    table.append(ROWS, partition_by=["part-of-%é", "day"])
    table.alter().add_column("note", "string").commit()
    table.append(ROWS.append_column("note", pa.array(["n"] * 3)))
    snapshot = table.snapshot()
    by = [("id", "ascending"), ("note", "ascending")]
    dataset = snapshot.to_pyarrow_dataset()
    assert dataset.to_table().sort_by(by).equals(snapshot.scan().to_arrow().sort_by(by))
    assert dataset.to_table(filter=pc.field("part-of-%é").is_null())["id"].to_pylist() == [2, 2]
    assert dataset.count_rows(filter=pc.field("day") == dt.date(2026, 1, 1)) == 4


LONG = "x" * 40
COLUMNS: dict[str, list[list[Any]]] = {
    "i": [[1, None], [2, 2], [3, 4], [None, None]],
    "s": [["a", "b"], ["c", None], [LONG + "a", LONG + "b"], [LONG[:32] + "\U0010ffff", LONG]],
    "f": [[1.0, math.nan], [2.0, 2.0], [3.0, None], [None, None]],
    "d": [[Decimal("1.00"), None], [Decimal("2.00")] * 2, [Decimal("3.00"), Decimal("4.00")], [None, None]],
    "t": [[dt.datetime(2026, 1, day, 1, 2, 3, 4567, dt.UTC)] * 2 for day in (1, 2, 3, 4)],
    "b": [[True, None], [True, False], [False, False], [None, None]],
    "st": [[{"x": 1}, None], [{"x": 2}, {"x": 2}], [{"x": None}, {"x": 3}], [None, None]],
}
X = pc.field


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        (X("i") > 2, 1),
        (X("i") <= 1, 1),
        (X("i").isin([2, 9]), 1),
        (~(X("i") > 2), 2),
        (X("i").is_null(), 2),
        (X("i").is_valid(), 3),
        ((X("i") > 2) | (X("s") == "a"), 2),
        ((X("i") > 1) & (X("s") < "c"), 0),
        (X("s") == LONG + "b", 2),
        (X("s") > LONG[:31] + "z", 0),
        (X("s") > LONG[:32] + "\U0010ffff", 2),
        (X("d") > Decimal("2.00"), 1),
        (X("t") == dt.datetime(2026, 1, 3, 1, 2, 3, 4567, dt.UTC), 1),
        (X("b").is_valid(), 3),
        # Bounds of floats leave out NaN. Files without any value are known.
        (~(X("f") <= 2), 3),
        (X("f").is_null(nan_is_null=True), 4),
        (X("st", "x") > 2, 4),
        (X(1) == 3, 4),
    ],
    ids=str,
)
def test_a_filter_of_the_dataset_opens_the_files_that_can_match(
    pruned: ds.FileSystemDataset, condition: pc.Expression, files: int
) -> None:
    fragments = list(pruned.get_fragments(condition))
    assert len(fragments) == files
    wanted = pruned.to_table().filter(condition)["nr"].to_pylist()
    assert sorted(pruned.to_table(filter=condition)["nr"].to_pylist()) == sorted(wanted)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> ds.FileSystemDataset:
    table = DeltaTable(tmp_path_factory.mktemp("pruned") / "table")
    for n in range(4):
        table.append(_rows(n))
    return table.snapshot().to_pyarrow_dataset()


def _rows(n: int) -> pa.Table:
    types = {
        "nr": pa.int64(), "i": pa.int32(), "s": pa.string(), "f": pa.float64(), "d": pa.decimal128(5, 2),
        "t": pa.timestamp("us", "UTC"), "b": pa.bool_(), "st": pa.struct([("x", pa.int64())]),
    }  # fmt: skip
    columns = {"nr": [2 * n, 2 * n + 1], **{name: values[n] for name, values in COLUMNS.items()}}
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


@pytest.mark.parametrize(
    ("where", "rows", "files"),
    [
        ("i > 2", 2, 1),
        (X("i") > 2, 2, 1),
        ("i = 2 or i is null", 5, 3),
        ("f > 2", 2, 3),
        (X("f") > 2, 1, 3),
        ("st.x = 2", 2, 1),
        (pc.add(X("i"), 1) > 4, 1, 4),
        ("true", 8, 4),
        ("false", 0, 0),
    ],
    ids=str,
)
def test_dataset_of_a_condition(table: DeltaTable, where: Any, rows: int, files: int) -> None:
    for n in range(4):
        table.append(_rows(n))
    dataset = table.snapshot().to_pyarrow_dataset(where)
    wanted = table.snapshot().scan(where=where).to_arrow()["nr"].to_pylist()
    assert sorted(dataset.to_table()["nr"].to_pylist()) == sorted(wanted)
    assert (dataset.count_rows(), len(dataset.files), len(list(dataset.get_fragments()))) == (rows, files, files)
    assert dataset.count_rows(filter=X("nr") < 0) == dataset.filter(X("nr") < 0).count_rows() == 0
    assert table.snapshot().scan(where=where).count() == rows


def test_dataset_of_a_condition_is_refused_where_arrow_would_answer_otherwise(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [2.0, math.nan], "i": [1, 2]}), tmp_path / "1.parquet")
    DeltaTable.convert(tmp_path)
    snapshot = DeltaTable(tmp_path).snapshot()
    with pytest.raises(UnsupportedFeatureError, match="leave out NaN"):
        snapshot.to_pyarrow_dataset("f > 2")
    assert snapshot.to_pyarrow_dataset("i > 1").count_rows() == 1
    with pytest.raises(UnsupportedExpressionError, match=r"scan\(where="):
        snapshot.to_pyarrow_dataset("i + 1 > 2")
    with pytest.raises(ColumnNotFoundError):
        snapshot.to_pyarrow_dataset("nobody = 1")


def test_dataset_is_refused_where_files_are_not_the_rows(table: DeltaTable, tmp_path: Path) -> None:
    table.append(ROWS, properties={"delta.enableDeletionVectors": "true"})
    table.snapshot().to_pyarrow_dataset()
    table.delete("id = 1")
    with pytest.raises(UnsupportedFeatureError, match="Deletion vectors"):
        table.snapshot().to_pyarrow_dataset()
    mapped = DeltaTable(tmp_path / "mapped")
    mapped.create(ROWS.schema, properties={"delta.columnMapping.mode": "name"})
    with pytest.raises(UnsupportedFeatureError, match="mapped"):
        mapped.snapshot().to_pyarrow_dataset()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.table({"a": [1]}), pa.table({"A": [2]})),
        (pa.table({"a": pa.array([1], pa.int8())}), pa.table({"a": pa.array([1], pa.int32())})),
        (pa.table({"a": [{"b": 1}]}), pa.table({"a": [{"b": 1, "c": 2}]})),
    ],
)
def test_dataset_is_refused_where_a_file_differs(tmp_path: Path, first: pa.Table, second: pa.Table) -> None:
    root: Any = tmp_path / "table"
    root.mkdir()
    pq.write_table(first, root / "1.parquet")
    pq.write_table(second, root / "2.parquet")
    DeltaTable.convert(root)
    with pytest.raises(UnsupportedFeatureError, match="more than its Parquet files"):
        DeltaTable(root).snapshot().to_pyarrow_dataset()
    (root / "2.parquet").unlink()
    with pytest.raises((UnsupportedFeatureError, MissingFileError)):
        DeltaTable(root).snapshot().to_pyarrow_dataset()
