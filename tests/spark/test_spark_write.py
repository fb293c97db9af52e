"""Writes: what goes in comes out, files are named by the log's rules, and nothing else is left behind in sight."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.engines.base import StatisticsPolicy, WriteSpec
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, write_settings
from delta_orch.errors import InvalidRequestError, SchemaMismatchError, StorageError
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from tests.harness.row_multiset import ensure_same_rows
from tests.harness.table_builder import FILE_SCHEMA
from tests.spark.spark_files import Files, on_every_session, rows_of

pytestmark = pytest.mark.spark

UTC = pa.timestamp("us", "UTC")
EARLY = dt.datetime(1500, 2, 3, 4, 5, 6, 789012)


def all_types() -> pa.Table:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("i", pa.int32()),
            ("sh", pa.int16()),
            ("b", pa.int8()),
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("s", pa.string()),
            ("bin", pa.binary()),
            ("ok", pa.bool_()),
            ("dec", pa.decimal128(38, 18)),
            ("small", pa.decimal128(7, 2)),
            ("day", pa.date32()),
            ("ts", UTC),
            ("ntz", pa.timestamp("us")),
            ("st", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])),
            ("m", pa.map_(pa.string(), pa.struct([("z", UTC)]))),
        ]
    )
    full = {
        "id": 1, "i": -5, "sh": 2**15 - 1, "b": -128, "f": 0.5, "d": 1e-300, "s": "é\n\0", "bin": b"\0\xff", "ok": True,
        "dec": decimal.Decimal("12345678901234567890.123456789012345678"), "small": decimal.Decimal("-99999.99"),
        "day": dt.date(1, 1, 1), "ts": EARLY.replace(tzinfo=dt.UTC), "ntz": EARLY,
        "st": {"x": 1, "y": ["a", None]}, "m": [("k", {"z": EARLY.replace(tzinfo=dt.UTC)})],
    }  # fmt: skip
    modern = {**full, "id": 2, "day": dt.date(2024, 2, 29), "ts": dt.datetime(2024, 3, 10, 10, 30, tzinfo=dt.UTC),
              "ntz": dt.datetime(2024, 3, 10, 2, 30), "st": None, "m": None}  # fmt: skip
    return pa.Table.from_pylist([full, modern, {"id": 3}], schema=schema)


@pytest.mark.long
def test_values_of_every_type_survive_before_1582_too(engine: SparkEngine, files: Files) -> None:
    table = all_types()
    adds, schema = files.write(engine, table)
    assert adds.schema == FILE_SCHEMA
    result = engine.to_arrow(files.scan(engine, adds, schema))
    assert rows_of(result, "id") == rows_of(table.cast(schema_to_arrow(schema)), "id")


@on_every_session
def test_files_are_what_other_readers_expect(engine: SparkEngine, files: Files) -> None:
    adds, _ = files.write(engine, all_types())
    assert adds.num_rows == 1
    path = files.root / decode_path(adds["path"][0].as_py())
    assert path.stat().st_size == adds["size"][0].as_py()
    assert abs(path.stat().st_mtime_ns // 1_000_000 - adds["modification_time"][0].as_py()) <= 1000
    footer = pq.read_metadata(path)
    by_name = {footer.schema.column(i).path: footer.schema.column(i) for i in range(footer.num_columns)}
    assert by_name["ts"].physical_type == "INT64", "INT96 would have no statistics"
    instant = json.loads(by_name["ts"].logical_type.to_json())
    assert (instant["isAdjustedToUTC"], instant["timeUnit"]) == (True, "microseconds")
    assert json.loads(by_name["ntz"].logical_type.to_json())["isAdjustedToUTC"] is False
    assert footer.row_group(0).column(0).compression == "ZSTD"
    direct = pq.read_table(path)
    assert sorted(direct["ntz"].to_pylist(), key=str) == sorted(all_types()["ntz"].to_pylist(), key=str)
    assert b"legacy" not in b"".join(footer.metadata or {})
    assert not [p for p in files.root.rglob("*") if p.name.endswith(".crc") or p.name == "_SUCCESS"]


def test_statistics_come_from_the_footers(engine: SparkEngine, files: Files) -> None:
    table = pa.table(
        {
            "id": [5, 1, 3],
            "s": ["a" * 40, "b", None],
            "nan": [1.0, float("nan"), 2.0],
            "fine": [1.5, -2.0, 0.25],
            "zero": [0.0, -0.0, 0.0],
            "allnull": pa.array([None] * 3, pa.int64()),
            "ts": pa.array([1_001, 2_001, None], pa.int64()).cast(UTC),
            "st": pa.array([{"x": 1}, None, {"x": 7}], pa.struct([("x", pa.int64())])),
            "ok": [True, False, None],
        }
    )
    adds, _ = files.write(engine, table)
    stats = json.loads(adds["stats"][0].as_py())
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {
        "id": 0, "s": 1, "nan": 0, "fine": 0, "zero": 0, "allnull": 3, "ts": 1, "st": {"x": 1}, "ok": 1,
    }  # fmt: skip
    low, high = stats["minValues"], stats["maxValues"]
    assert (low["id"], high["id"]) == (1, 5)
    assert (low["s"], high["s"]) == ("a" * 32, "b")
    assert "nan" not in high, "NaN is the maximum for Spark and has no JSON"
    assert (low["fine"], high["fine"]) == (-2.0, 1.5)
    assert (low["zero"], high["zero"]) == (0.0, 0.0)
    assert "allnull" not in low
    assert (low["ts"], high["ts"]) == ("1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.003Z")
    assert (low["st"], high["st"]) == ({"x": 1}, {"x": 7})
    assert "ok" not in low


def test_statistics_policy_is_obeyed(engine: SparkEngine, files: Files) -> None:
    adds, _ = files.write(engine, pa.table({"a": [1], "b": [2]}), statistics=StatisticsPolicy(columns=(("b",),)))
    assert json.loads(adds["stats"][0].as_py())["minValues"] == {"b": 2}


def test_partitions_become_directories_and_leave_the_files(engine: SparkEngine, files: Files) -> None:
    table = pa.table({"day": ["a b", "c/d", "a b"], "id": [1, 2, 3]})
    adds, schema = files.write(engine, table, partition_by=("day",))
    assert {dict(v)["day"] for v in adds["partition_values"].to_pylist()} == {"a b", "c/d"}
    for row in adds.to_pylist():
        path = decode_path(row["path"])
        assert path.split("/")[-2] == {"a b": "day=a b", "c/d": "day=c%2Fd"}[dict(row["partition_values"])["day"]]
        assert pq.read_schema(files.root / path).names == ["id"]
    assert rows_of(engine.to_arrow(files.scan(engine, adds, schema, ("day",))), "id") == rows_of(table, "id")


PARTITION_VALUES: list[tuple[pa.DataType, list[Any], list[str | None]]] = [
    (
        pa.string(),
        [
            "x",
            "",
            None,
            "__HIVE_DEFAULT_PARTITION__",
            "utf8-hex-61",
            "a=b/c:d%20e",
            "é 日本",
            "\x01\t\n",
            "..",
            "NULL",
            " ",
        ],
        [
            "x",
            None,
            None,
            "__HIVE_DEFAULT_PARTITION__",
            "utf8-hex-61",
            "a=b/c:d%20e",
            "é 日本",
            "\x01\t\n",
            "..",
            "NULL",
            " ",
        ],
    ),
    (
        UTC,
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1500, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC), None],
        ["2020-01-01T00:00:00.000000Z", "1500-02-03T04:05:06.000007Z", None],
    ),
    (
        pa.timestamp("us"),
        [dt.datetime(2020, 3, 8, 2, 30), EARLY],
        ["2020-03-08 02:30:00.000000", "1500-02-03 04:05:06.789012"],
    ),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1582, 10, 10), None], ["0001-01-01", "1582-10-10", None]),
    (pa.bool_(), [True, False, None], ["true", "false", None]),
    (pa.int8(), [-128, 127], ["-128", "127"]),
    (pa.int64(), [-(2**63), None], [str(-(2**63)), None]),
    (pa.float64(), [1.5, 1e300, float("nan"), float("-inf")], ["1.5", "1e+300", "NaN", "-Infinity"]),
    (
        pa.decimal128(38, 10),
        [decimal.Decimal("-0.0000000001"), decimal.Decimal(12)],
        ["-0.0000000001", "12.0000000000"],
    ),
    (pa.binary(), [b"abc", b"\x01\x02", None], ["abc", "\x01\x02", None]),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "values", "texts"), PARTITION_VALUES, ids=[str(k) for k, _, _ in PARTITION_VALUES])
def test_partition_values_are_the_protocols(
    engine: SparkEngine, files: Files, kind: pa.DataType, values: list[Any], texts: list[str | None]
) -> None:
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "p": pa.array(values, kind)})
    adds, schema = files.write(engine, table, partition_by=("p",))
    found = {dict(v)["p"] for v in adds["partition_values"].to_pylist()}
    assert found == set(texts)
    assert all(row["path"].isascii() for row in adds.to_pylist()), "a JVM in a POSIX locale cannot name other files"
    result = engine.to_arrow(files.scan(engine, adds, schema, ("p",)))
    expected = [None if v == "" else v for v in pa.array(values, kind).to_pylist()]
    assert [repr(r["p"]) for r in rows_of(result, "id")] == [repr(v) for v in expected]


def test_null_and_its_hive_name_are_different_partitions(engine: SparkEngine, files: Files) -> None:
    table = pa.table({"a": [None, "__HIVE_DEFAULT_PARTITION__"], "b": [1, None], "id": [1, 2]})
    adds, schema = files.write(engine, table, partition_by=("a", "b"))
    assert adds.num_rows == 2
    result = rows_of(engine.to_arrow(files.scan(engine, adds, schema, ("a", "b"))), "id")
    assert result == rows_of(table, "id")


def test_partition_column_names_that_are_not_plain(engine: SparkEngine, files: Files) -> None:
    table = pa.table({"größe": ["x", "y"], "a b.c=d": [1, 2], "{id}": [1, 2]})
    adds, schema = files.write(engine, table, partition_by=("größe", "a b.c=d"))
    assert {k for v in adds["partition_values"].to_pylist() for k, _ in v} == {"größe", "a b.c=d"}
    result = engine.to_arrow(files.scan(engine, adds, schema, ("größe", "a b.c=d")))
    assert rows_of(result, "{id}") == rows_of(table, "{id}")


def test_one_file_a_partition_however_many_tasks_hold_its_rows(engine: SparkEngine, files: Files) -> None:
    rows = engine.host.session.range(1000).selectExpr("id", "id % 4 AS p").repartition(8)
    adds, _ = files.write(engine, rows, partition_by=("p",))
    assert adds.num_rows == 4
    assert sum(json.loads(s)["numRecords"] for s in adds["stats"].to_pylist()) == 1000


@pytest.mark.long
def test_target_file_size_splits_and_merges(engine: SparkEngine, files: Files) -> None:
    rows = engine.host.session.range(0, 200_000, 1, 8).selectExpr("id", "uuid() AS u")
    small, _ = files.write(engine, rows, target_file_size_bytes=100 << 20)
    large, _ = files.write(engine, rows, target_file_size_bytes=1 << 20)
    assert small.num_rows == 1
    assert large.num_rows > 3


@pytest.mark.long
def test_no_rows_give_no_files(engine: SparkEngine, files: Files) -> None:
    adds, _ = files.write(engine, pa.table({"id": pa.array([], pa.int64())}))
    assert adds.schema == FILE_SCHEMA
    assert adds.num_rows == 0
    adds, _ = files.write(engine, engine.host.session.range(10).where("id < 0"))
    assert adds.num_rows == 0


def test_columns_are_matched_by_folded_name_reordered_and_widened(engine: SparkEngine, files: Files) -> None:
    target = schema_from_arrow(
        pa.schema(
            [
                ("id", pa.int64()),
                ("Name", pa.string()),
                ("st", pa.struct([("A", pa.float64()), ("b", pa.decimal128(10, 2))])),
                ("items", pa.list_(pa.struct([("k", pa.int64())]))),
                ("m", pa.map_(pa.string(), pa.int64())),
            ]
        )
    )
    source = pa.table(
        {
            "M": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "ITEMS": pa.array([[{"K": 1}, None], None], pa.list_(pa.struct([("K", pa.int32())]))),
            "ST": pa.array(
                [{"B": decimal.Decimal("1.5"), "a": 0.5}, None],
                pa.struct([("B", pa.decimal128(4, 1)), ("a", pa.float32())]),
            ),
            "name": ["x", None],
            "ID": pa.array([1, 2], pa.int32()),
        }
    )
    adds, _ = files.write(engine, source, schema=target)
    result = engine.to_arrow(files.scan(engine, adds, target))
    assert rows_of(result, "id") == [
        {
            "id": 1,
            "Name": "x",
            "st": {"A": 0.5, "b": decimal.Decimal("1.50")},
            "items": [{"k": 1}, None],
            "m": [("k", 1)],
        },
        {"id": 2, "Name": None, "st": None, "items": None, "m": None},
    ]
    assert pq.read_schema(files.root / decode_path(adds["path"][0].as_py())).names == list(target.names)


def test_missing_columns_are_null_and_repeated_ones_refused(engine: SparkEngine, files: Files) -> None:
    schema = StructType((StructField("id", LONG), StructField("other", STRING)))
    rows = engine.host.session.range(1)
    # Whether rows may lack a column is for the verbs to say.
    adds, _ = files.write(engine, rows, schema=schema)
    assert engine.to_arrow(files.scan(engine, adds, schema)).to_pylist() == [{"id": 0, "other": None}]
    shutil.rmtree(files.root)
    twice = rows.selectExpr("id", "'a' AS other", "'b' AS OTHER")
    with pytest.raises(SchemaMismatchError, match="twice"):
        files.write(engine, twice, schema=schema)
    assert not files.root.exists() or not list(files.root.rglob("*.parquet"))


@pytest.mark.parametrize("select", [["id", "1 AS id"], ["named_struct('x', 1, 'x', 2) AS id"]], ids=["column", "field"])
def test_two_columns_of_one_name_are_the_datas_fault(engine: SparkEngine, select: list[str]) -> None:
    """It was told as a fault of the table's metadata."""
    rows = engine.host.session.range(1).selectExpr(*select)
    with pytest.raises(SchemaMismatchError, match="The data has two columns"):
        engine.schema(rows)


def test_a_table_of_partition_columns_only_is_refused(engine: SparkEngine, files: Files) -> None:
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        files.write(engine, engine.host.session.range(1), partition_by=("id",))


def test_unknown_codec_and_streaming_values_are_refused(engine: SparkEngine, files: Files) -> None:
    with pytest.raises(InvalidRequestError, match="codec"):
        files.write(engine, engine.host.session.range(1), compression="zip")
    stream = engine.host.session.readStream.format("rate").load()
    with pytest.raises(InvalidRequestError, match="streaming"):
        engine.relation(stream)


@pytest.mark.long
def test_values_of_python_libraries(engine: SparkEngine, files: Files) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    table = pa.table({"id": [1, 2], "ts": pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("us"))})
    values: list[Any] = [
        table,
        table.to_batches()[0],
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
        pandas.DataFrame({"id": [1, 2], "ts": [pandas.Timestamp(2020, 1, 1), None]}),
        polars.from_arrow(table),
        polars.from_arrow(table).lazy(),
        pa.table(
            {"id": pa.array([1, 2]).dictionary_encode().cast(pa.int64()), "ts": table["ts"].cast("timestamp[ns]")}
        ),
    ]
    for value in values:
        assert engine.accepts(value), type(value)
        adds, schema = files.write(engine, value)
        assert rows_of(engine.to_arrow(files.scan(engine, adds, schema)), "id") == rows_of(table, "id"), type(value)
    assert not engine.accepts([1, 2])
    with pytest.raises(InvalidRequestError, match="list"):
        engine.relation([1, 2])


@pytest.mark.long
def test_arrow_values_do_not_depend_on_the_sessions_time_zone(engine: SparkEngine, files: Files) -> None:
    session = engine.host.session
    table = pa.table(
        {
            "id": [1],
            "ntz": pa.array([dt.datetime(2020, 3, 8, 2, 30)], pa.timestamp("us")),
            "ts": pa.array([dt.datetime(2020, 3, 8, 2, 30, tzinfo=dt.UTC)], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    session.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        adds, schema = files.write(engine, table, partition_by=("ts",))
        assert dict(adds["partition_values"][0].as_py()) == {"ts": "2020-03-08T02:30:00.000000Z"}
        result = engine.to_arrow(files.scan(engine, adds, schema, ("ts",)))
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
    assert result.column("ts").type == UTC
    assert rows_of(result) == rows_of(table.cast(schema_to_arrow(schema)))


def test_a_users_expressions_keep_the_users_time_zone(engine: SparkEngine, files: Files) -> None:
    session = engine.host.session
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = session.range(1).selectExpr(
            "id", "CAST(TIMESTAMP'2020-01-01 00:30:00' AS STRING) AS local", "current_timezone() AS zone"
        )
        adds, schema = files.write(engine, rows)
        result = rows_of(engine.to_arrow(files.scan(engine, adds, schema)))[0]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
    assert (result["local"], result["zone"]) == ("2020-01-01 00:30:00", "Asia/Tokyo")


@pytest.mark.long
def test_the_users_settings_are_untouched_and_not_relied_on(engine: SparkEngine, files: Files) -> None:
    session = engine.host.session
    hostile = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    }
    for key, value in hostile.items():
        session.conf.set(key, value)
    try:
        table = all_types().append_column("quoted", pa.array(["it's \\ \"", None, "\\n"]))
        adds, schema = files.write(engine, table, partition_by=("quoted",))
        result = engine.to_arrow(files.scan(engine, adds, schema, ("quoted",)))
        assert {key: session.conf.get(key) for key in hostile} == hostile
        assert rows_of(result, "id") == rows_of(table.cast(schema_to_arrow(schema)), "id")
        path = files.root / decode_path(adds["path"][0].as_py())
        footer = pq.read_metadata(path)
        assert "INT96" not in {footer.schema.column(i).physical_type for i in range(footer.num_columns)}
    finally:
        for key in hostile:
            session.conf.unset(key)
        session.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.long
def test_settings_return_after_a_failed_write(engine: SparkEngine, files: Files) -> None:
    session = engine.host.session
    pinned = {**ANALYSIS_SETTINGS, **write_settings(1)}
    before = {key: session.conf.get(key, None) for key in pinned}
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        files.write(engine, session.range(10).selectExpr("id", "1 / (id - 5) AS x"), target_file_size_bytes=1)
    assert {key: session.conf.get(key, None) for key in pinned} == before


@pytest.mark.long
def test_concurrent_writes_in_one_session(engine: SparkEngine, files: Files) -> None:
    def write(n: int) -> pa.Table:
        rows = engine.host.session.range(100).selectExpr("id", f"{n} AS p")
        return files.write(engine, rows, partition_by=("p",))[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(write, range(4)))
    adds = pa.concat_tables(found)
    assert len(set(adds["path"].to_pylist())) == 4
    assert sum(json.loads(s)["numRecords"] for s in adds["stats"].to_pylist()) == 400
    assert engine.host.session.conf.get("spark.sql.session.timeZone") == "UTC"


def test_variants_are_not_shredded_and_void_columns_stay_out(classic: SparkEngine, files: Files, spark: Any) -> None:
    rows = spark.sql("SELECT 1 AS id, parse_json('{\"a\": [1, null]}') AS v, NULL AS nothing")
    adds, schema = files.write(classic, rows)
    path = files.root / decode_path(adds["path"][0].as_py())
    names = pq.read_metadata(path).schema.to_arrow_schema()
    assert [f.name for f in names] == ["id", "v"]
    assert {f.name for f in names.field("v").type} == {"value", "metadata"}, "shredding needs a feature of its own"
    result = files.scan(classic, adds, schema)
    assert result.columns == ["id", "v", "nothing"]
    assert result.selectExpr("to_json(v) AS j", "nothing").collect()[0].asDict() == {
        "j": '{"a":[1,null]}',
        "nothing": None,
    }


def test_a_full_or_closed_directory_is_a_storage_error(engine: SparkEngine, files: Files) -> None:
    files.root.parent.mkdir(parents=True, exist_ok=True)
    files.root.write_text("a file stands here")
    with pytest.raises(StorageError):
        files.write(engine, engine.host.session.range(3))
    assert files.root.read_text() == "a file stands here"


@pytest.mark.long
def test_a_partition_value_too_long_for_a_name_is_a_storage_error(engine: SparkEngine, files: Files) -> None:
    with pytest.raises(StorageError, match="too long"):
        files.write(engine, pa.table({"p": ["x" * 300], "id": [1]}), partition_by=("p",))


@on_every_session
def test_write_reads_the_files_it_replaces(engine: SparkEngine, files: Files) -> None:
    adds, schema = files.write(engine, pa.table({"id": [1, 2]}))
    again = engine.write(files.scan(engine, adds, schema), WriteSpec(files.store, schema, ()))
    assert set(again["path"].to_pylist()).isdisjoint(adds["path"].to_pylist())
    assert engine.to_arrow(files.scan(engine, pa.concat_tables([adds, again]), schema)).num_rows == 4


def test_rows_of_every_chunk_arrive(engine: SparkEngine, files: Files) -> None:
    rows = pa.concat_tables([pa.table({"id": [number], "s": [f"s{number}"]}) for number in range(5)])
    adds, schema = files.write(engine, rows)
    ensure_same_rows(engine.to_arrow(files.scan(engine, adds, schema)), rows)
