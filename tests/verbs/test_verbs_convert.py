"""convert: a directory of Parquet files becomes a table, in place."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    ConflictError,
    InvalidPropertyError,
    InvalidRequestError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.variant import variant_to_json
from delta_orch.verbs.convert import convert
from tests.harness.table_builder import read_anew


def put(root: Path, path: str, table: pa.Table, **options: Any) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / path, **options)


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "name": [f"n{v}" for v in values]})


def read(table: DeltaTable, **scan: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_anew(table).scan(**scan).to_arrow().to_pylist()
    return sorted(found, key=lambda row: str(row.get("id")))


@pytest.mark.long
def test_plain_files_in_directories(tmp_path: Path, rows: Any) -> None:
    put(tmp_path, "a b%41.parquet", ids(1, 2))
    put(tmp_path, "deep/er/ü#.parquet", ids(3, 4))
    put(tmp_path, "_hidden/x.parquet", pa.table({"other": [1]}))
    put(tmp_path, ".hidden.parquet", pa.table({"other": [1]}))
    (tmp_path / "_SUCCESS").touch()
    before = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    told: list[tuple[int, int]] = []
    result = DeltaTable.convert(
        tmp_path, progress=lambda *done: told.append(done), properties={"owner": "me"}, description="d"
    )
    assert result.version == 0 and result.operation_metrics == {"numConvertedFiles": 2}
    assert told == [(1, 2), (2, 2)] * 2
    table = DeltaTable(tmp_path)
    assert rows.pylist(table, columns=["id"]) == [{"id": i} for i in (1, 2, 3, 4)]
    assert table.snapshot().metadata.description == "d"
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == before
    entry = table.history()[0]
    assert entry.operation == "CONVERT"
    assert entry.operation_parameters == {
        "numFiles": "2",
        "partitionedBy": "[]",
        "collectStats": "true",
        "sourceFormat": "parquet",
    }
    # The statistics leave files out, and every verb goes on from here.
    assert table.snapshot().files(["path"], resolve_predicate("id > 2", table.snapshot().schema)).num_rows == 1
    assert sorted(deltalake.DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3, 4]
    table.append(rows.data(ids(5)))
    table.optimize(engine=rows.engine)
    table.vacuum(0, enforce_retention=False)
    assert rows.pylist(table, columns=["id"]) == [{"id": i} for i in (1, 2, 3, 4, 5)]
    assert (tmp_path / "_hidden/x.parquet").exists()


def test_partitions(tmp_path: Path, rows: Any) -> None:
    put(tmp_path, "Day=2020-01-01/n=1/text=a%2Fb c%25/x.parquet", ids(1))
    put(tmp_path, "Day=__HIVE_DEFAULT_PARTITION__/n=02/text=ü/x.parquet", ids(2))
    DeltaTable.convert(tmp_path, {"day": "date", "n": "int", "text": "string"})
    table = DeltaTable(tmp_path)
    assert table.snapshot().partition_columns == ("day", "n", "text")
    expected = [
        {"id": 1, "name": "n1", "day": dt.date(2020, 1, 1), "n": 1, "text": "a/b c%"},
        {"id": 2, "name": "n2", "day": None, "n": 2, "text": "ü"},
    ]
    assert sorted(rows.pylist(table), key=lambda row: row["id"]) == expected
    assert rows.pylist(table, columns=["id"], where="n = 2 AND day IS NULL") == [{"id": 2}]
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2
    again = DeltaTable.convert(tmp_path, "day date, n int, text string")
    assert again.skipped and table.version() == 0
    with pytest.raises(TableExistsError):
        DeltaTable.convert(tmp_path)


@pytest.mark.parametrize(
    ("directory", "schema", "message"),
    [
        ("day=2020-01-01", None, "partition_schema"),
        ("", {"day": "date"}, "partition_schema"),
        ("day=2020-01-01", {"day": "int"}, "not a value of the type integer"),
        ("day=", {"day": "string"}, "not a value of the type string"),
        ("month=1/day=2", {"day": "int", "month": "int"}, "month, day"),
        ("id=5", {"id": "long"}, "partition column id is also"),
    ],
)
def test_directories_that_do_not_fit(tmp_path: Path, directory: str, schema: Any, message: str) -> None:
    put(tmp_path, f"{directory}/x.parquet" if directory else "x.parquet", ids(1))
    with pytest.raises(InvalidRequestError, match=message):
        DeltaTable.convert(tmp_path, schema)
    assert not (tmp_path / "_delta_log").exists()


def test_types_are_merged(tmp_path: Path, rows: Any) -> None:
    day = dt.date(2020, 1, 2)
    narrow = {
        "id": pa.array([1], pa.int32()),
        "small": pa.array([1], pa.int8()),
        "f": pa.array([0.5], pa.float32()),
        "d": pa.array([Decimal("1.5")], pa.decimal128(4, 1)),
        "s": pa.array([{"a": 1}], pa.struct([("a", pa.int16())])),
        "l": pa.array([[1]], pa.list_(pa.int32())),
        "only": ["x"],
    }
    wide = {
        "id": pa.array([2**40], pa.int64()),
        "small": pa.array([-7], pa.int32()),
        "f": pa.array([0.1], pa.float64()),
        "d": pa.array([Decimal("123456.789")], pa.decimal128(12, 3)),
        "s": pa.array([{"a": 2, "b": day}], pa.struct([("a", pa.int64()), ("b", pa.date32())])),
        "l": pa.array([[2**40]], pa.list_(pa.int64())),
    }
    put(tmp_path, "2.parquet", pa.table(narrow))
    put(tmp_path, "1.parquet", pa.table(wide))
    DeltaTable.convert(tmp_path)
    table = DeltaTable(tmp_path)
    assert "typeWidening" in table.snapshot().features
    scan = table.snapshot().scan()
    collected = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
    found = sorted(collected.to_pylist(), key=lambda row: row["id"])
    one = {"id": 1, "small": 1, "f": 0.5, "d": Decimal("1.500"), "s": {"a": 1, "b": None}, "l": [1], "only": "x"}
    two = {"id": 2**40, "small": -7, "f": 0.1, "d": Decimal("123456.789"), "s": {"a": 2, "b": day}, "l": [2**40]}
    assert found == [one, {**two, "only": None}]
    assert rows.pylist(table, columns=["id"], where="id = 1") == [{"id": 1}]
    assert rows.pylist(table, columns=["id"], where="d > 100") == [{"id": 2**40}]


def test_integers_of_32_bits_need_no_feature(tmp_path: Path) -> None:
    put(tmp_path, "1.parquet", pa.table({"id": pa.array([1], pa.int8())}))
    put(tmp_path, "2.parquet", pa.table({"id": pa.array([300], pa.int16())}))
    put(tmp_path, "3.parquet", pa.table({"id": pa.array([70_000], pa.int32())}))
    DeltaTable.convert(tmp_path)
    assert "typeWidening" not in DeltaTable(tmp_path).snapshot().features
    assert [row["id"] for row in read(DeltaTable(tmp_path))] == [1, 300, 70_000]
    assert sorted(deltalake.DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == [1, 300, 70_000]


@pytest.mark.parametrize(
    "other",
    [
        pa.array(["x"]),
        pa.array([0.5], pa.float32()),
        pa.array([[1]], pa.list_(pa.int64())),
        pa.array([1], pa.timestamp("us")),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_cannot_become_one_name_both_files(tmp_path: Path, other: pa.Array) -> None:
    put(tmp_path, "first.parquet", ids(1))
    put(tmp_path, "second.parquet", pa.table({"ID": other}))
    with pytest.raises(SchemaMismatchError) as caught:
        DeltaTable.convert(tmp_path)
    assert "first.parquet" in str(caught.value) and "second.parquet" in str(caught.value)
    assert not (tmp_path / "_delta_log").exists()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.uint64()),
        pa.array([1], pa.time64("us")),
        pa.array([1], pa.timestamp("ns")),
        pa.array([np.float16(1.0)], pa.float16()),
        pa.nulls(1),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_no_table_has(tmp_path: Path, column: pa.Array) -> None:
    put(tmp_path, "x.parquet", pa.table({"id": column}))
    with pytest.raises(SchemaMismatchError, match=r"x\.parquet"):
        DeltaTable.convert(tmp_path)


def test_old_spark_timestamps_are_instants_and_unsigned_numbers_keep_their_sign(tmp_path: Path) -> None:
    moment = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "id": pa.array([2**32 - 1, 1], pa.uint32()),
            "at": pa.array([moment, moment], pa.timestamp("us", "UTC")),
            "nan": [1.0, float("nan")],
        }
    )
    put(tmp_path, "x.parquet", rows, use_deprecated_int96_timestamps=True, store_schema=False)
    DeltaTable.convert(tmp_path)
    table = DeltaTable(tmp_path)
    assert str(table.snapshot().schema.find("at").data_type) == "timestamp"  # type: ignore[union-attr]
    assert [row["at"] for row in read(table)] == [moment, moment]
    assert [row["id"] for row in read(table, where="id > 4000000000")] == [2**32 - 1]
    assert len(read(table, where="nan > 100")) == 1


def test_what_is_no_parquet_file_and_what_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no Parquet files"):
        DeltaTable.convert(tmp_path / "nowhere")
    put(tmp_path, "x.parquet", ids(1))
    (tmp_path / "README.txt").write_text("not a table")
    with pytest.raises(InvalidRequestError, match=r"README\.txt"):
        DeltaTable.convert(tmp_path)
    (tmp_path / "README.txt").unlink()
    DeltaTable(tmp_path / "inner" / "one").append(ids(2))
    with pytest.raises(InvalidRequestError, match="inner/one"):
        DeltaTable.convert(tmp_path)
    assert not (tmp_path / "_delta_log").exists()


def test_options(tmp_path: Path) -> None:
    put(tmp_path, "x.parquet", ids(1))
    with pytest.raises(InvalidPropertyError, match="column mapping"):
        DeltaTable.convert(tmp_path, properties={"delta.columnMapping.mode": "name"})
    with pytest.raises(InvalidRequestError, match="partition_schema"):
        DeltaTable.convert(tmp_path, partition_by=["id"])
    with pytest.raises(InvalidRequestError, match="progress"):
        DeltaTable.convert(tmp_path, progress=5)  # type: ignore[arg-type]
    assert DeltaTable.convert(tmp_path, dry_run=True).preview is not None
    assert not (tmp_path / "_delta_log").exists()
    properties = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
    DeltaTable.convert(tmp_path, properties=properties, cluster_by=["id"], txn=TxnId("job", 1))
    snapshot = DeltaTable(tmp_path).snapshot()
    assert snapshot.txns == {"job": 1} and snapshot.clustering_columns == (("id",),)
    assert snapshot.scan(row_tracking=True).to_arrow()["row_id"].to_pylist() == [0]


def test_files_of_other_writers(tmp_path: Path) -> None:
    duckdb.sql(f"COPY (SELECT 1 AS id, 'x' AS name UNION ALL SELECT 2, NULL) TO '{tmp_path}/d.parquet'")
    DeltaTable.convert(tmp_path)
    assert [row["name"] for row in read(DeltaTable(tmp_path), where="name IS NULL")] == [None]
    assert [row["id"] for row in read(DeltaTable(tmp_path), where="name = 'x'")] == [1]


def test_two_conversions_of_one_directory(tmp_path: Path) -> None:
    put(tmp_path, "x.parquet", ids(1))
    table = DeltaTable(tmp_path)
    DeltaTable.convert(tmp_path)
    with pytest.raises(ConflictError):
        # It has seen no table there, and is overtaken.
        convert(table.log, None, None, None, {"isolation_level": "WriteSerializable"})
    assert table.version() == 0 and len(read(table)) == 1


def test_a_directory_whose_escapes_are_no_unicode(tmp_path: Path) -> None:
    (tmp_path / "p=%ff").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "p=%ff/x.parquet")
    with pytest.raises(InvalidRequestError, match="for the partition column p"):
        DeltaTable.convert(tmp_path, {"p": "string"})
    assert not (tmp_path / "_delta_log").exists()


def test_a_struct_with_the_name_of_a_variant_is_not_guessed(tmp_path: Path) -> None:
    alike, other = "{'metadata': 'x'::BLOB, 'value': 'y'::BLOB}", "{'a': 1}"
    for name, struct in (("alike", alike), ("other", other)):
        (tmp_path / name).mkdir()
        query = f"SELECT {{'a': 1}}::VARIANT AS v, {{'v': {struct}}} AS s"
        duckdb.sql(f"COPY ({query}) TO '{tmp_path / name / 'x.parquet'}' (FORMAT parquet)")
    with pytest.raises(SchemaMismatchError, match="column 'v' of the file"):
        DeltaTable.convert(tmp_path / "alike")
    assert not (tmp_path / "alike" / "_delta_log").exists()
    DeltaTable.convert(tmp_path / "other")
    types = [str(f.data_type) for f in DeltaTable(tmp_path / "other").snapshot().schema]
    assert types == ["variant", "struct<v:struct<a:integer>>"]


def test_a_variant_is_one(tmp_path: Path) -> None:
    """Arrow reads it as a struct. Only the footer tells it from one that is called alike."""
    values = "{'a': 1}::VARIANT AS v, {'metadata': 'x'::BLOB, 'value': 'y'::BLOB} AS s"
    duckdb.sql(f"COPY (SELECT 1 AS id, {values}) TO '{tmp_path / 'x.parquet'}' (FORMAT parquet)")
    DeltaTable.convert(tmp_path)
    table = DeltaTable(tmp_path)
    assert [str(f.data_type) for f in table.snapshot().schema] == [
        "integer",
        "variant",
        "struct<metadata:binary,value:binary>",
    ]
    assert "variantType" in (table.snapshot().protocol.writer_features or ())
    assert variant_to_json(table.snapshot().scan().to_arrow()["v"]).to_pylist() == ['{"a":1}']


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_without_a_type_in_some_files(tmp_path: Path, first: int) -> None:
    """All its values are null there, at any depth: the others say what it is."""
    root = tmp_path / "t"
    root.mkdir()
    void = pa.null()
    unknown = {"id": [1], "s": pa.nulls(1), "a": pa.array([[None]], pa.list_(void)), "n": pa.nulls(1),
               "o": pa.array([{"x": None}], pa.struct([("x", void)]))}  # fmt: skip
    known = {"id": [2], "s": ["x"], "a": [["y"]], "n": pa.array([5], pa.int32()), "o": [{"x": "z"}]}
    for place, columns in enumerate((unknown, known) if first == 0 else (known, unknown)):
        pq.write_table(pa.table(columns), root / f"{place}.parquet")
    DeltaTable.convert(root)
    table = DeltaTable(root)
    expected: list[dict[str, Any]] = [
        {"id": 1, "s": None, "a": [None], "n": None, "o": {"x": None}},
        {"id": 2, "s": "x", "a": ["y"], "n": 5, "o": {"x": "z"}},
    ]
    assert table.snapshot().scan().to_arrow().sort_by("id").select(list(expected[0])).to_pylist() == expected
    assert table.snapshot().scan(["id"], "n IS NULL").to_arrow()["id"].to_pylist() == [1]
    assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == 2
    assert table.fsck(deep=True).ok
