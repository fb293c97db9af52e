"""Scans: rows and types from the log, files named and never listed, predicates pushed and exact."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ColumnNotFoundError, SchemaMismatchError, UnsupportedStoreError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.partition_values import serialize_partition_value
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.types import StructType
from delta_orch.storage.open import open_store
from tests.bounded import tries
from tests.families import family
from tests.harness.table_builder import file_table
from tests.spark.spark_files import Files, on_every_session, rows_of

pytestmark = pytest.mark.spark

UTC = pa.timestamp("us", "UTC")


def add(path: str, size: int, **partition_values: str | None) -> dict[str, Any]:
    return {
        "path": path,
        "partition_values": partition_values,
        "size": size,
        "modification_time": 1_700_000_000_000,
        "data_change": True,
    }


def adds(*rows: dict[str, Any]) -> pa.Table:
    return file_table(*rows)


def put(root: Path, name: str, table: pa.Table) -> int:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path.stat().st_size


def where(text: str, schema: StructType) -> Any:
    return resolve_expression(parse_expression(text), schema)


@pytest.fixture
def days(files: Files) -> tuple[pa.Table, StructType]:
    """Three partitions by date, one of them null; ten rows each."""
    found = []
    for i, day in enumerate(["2013-01-01", "2013-01-02", None]):
        name = f"day={day}/f-{i}.parquet"
        size = put(files.root, name, pa.table({"id": range(i * 10, i * 10 + 10), "name": [f"n{i}"] * 10}))
        found.append(add(encode_path(name), size, day=day))
    schema = schema_from_arrow(pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())]))
    return adds(*found), schema


@on_every_session
def test_rows_come_in_schema_order_with_types_of_the_log(
    engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]
) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",))
    result = engine.to_arrow(rows)
    assert result.schema == schema_to_arrow(schema)
    assert result.num_rows == 30
    assert engine.schema(rows) == schema
    by_day = {r["day"] for r in rows_of(result)}
    assert by_day == {dt.date(2013, 1, 1), dt.date(2013, 1, 2), None}


@pytest.mark.long
def test_reader_streams_the_same_rows(engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",))
    reader = engine.to_reader(rows)
    assert reader.schema == schema_to_arrow(schema)
    assert rows_of(reader.read_all(), "id") == rows_of(engine.to_arrow(rows), "id")


@pytest.mark.long
def test_rows_without_columns_are_as_many(engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]) -> None:
    adds, schema = days
    everything, nothing = (files.scan(engine, adds, schema, ("day",), columns=names) for names in (None, ()))
    expected = engine.to_arrow(everything).num_rows
    assert expected > 0
    assert engine.to_arrow(nothing).num_rows == engine.to_reader(nothing).read_all().num_rows == expected


def test_columns_are_selected_in_the_order_asked_for_and_by_folded_case(
    engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]
) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",), columns=("NAME", "day"))
    assert engine.to_arrow(rows).column_names == ["name", "day"]
    with pytest.raises(ColumnNotFoundError, match="nope"):
        files.scan(engine, table, schema, ("day",), columns=("nope",))


@family(
    ("text", "count"),
    [
        ("day = '2013-01-01'", 10),
        ("day IS NULL", 10),
        ("day <> '2013-01-01'", 10),
        ("day >= '2013-01-01' AND id % 2 = 1", 10),
        ("day = '2013-01-01' OR id = 25", 11),
        ("year(day) = 2013", 20),
        ("name LIKE 'n1%'", 10),
        ("id < 0", 0),
    ],
    every=5,
)
def test_where_keeps_rows_for_which_it_is_true(
    engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType], text: str, count: int
) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",), where=where(text, schema))
    assert engine.to_arrow(rows).num_rows == count


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("day = DATE'2013-01-02'", 10),
        ("day IS NULL", 10),
        ("coalesce(day, DATE'2013-01-01') = DATE'2013-01-01'", 20),
        ("day = DATE'2013-01-02' AND name = 'n1'", 10),
        ("day = DATE'2013-01-02' OR name = 'n0'", 20),
        ("NOT (day = DATE'2013-01-02')", 10),
        ("day IN (DATE'2013-01-02', DATE'2014-01-01')", 10),
        ("month(day) = 1 AND id < 5", 5),
    ],
)
def test_a_users_own_filter_is_exact(
    engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType], text: str, count: int
) -> None:
    # Spark does not evaluate partition predicates above the scan: a file index that ignored them would show here.
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",))
    assert rows.where(text).count() == count
    assert rows.count() == 30, "one query's filter must not reach the next"


def test_a_filter_on_a_partition_column_reads_only_its_files(
    classic: SparkEngine, files: Files, days: tuple[pa.Table, StructType]
) -> None:
    table, schema = days
    (files.root / "day=2013-01-01" / "f-0.parquet").unlink()
    rows = files.scan(classic, table, schema, ("day",))
    assert rows.where("day = DATE'2013-01-02'").count() == 10


def test_dynamic_pruning_and_joins_on_a_partition_column(
    classic: SparkEngine, files: Files, days: tuple[pa.Table, StructType], spark: Any
) -> None:
    table, schema = days
    rows = files.scan(classic, table, schema, ("day",))
    wanted = spark.sql("SELECT DATE'2013-01-01' AS day, 1 AS flag").where("flag = 1")
    assert rows.join(wanted, "day").count() == 10


def test_a_cached_scan_is_not_another_snapshots_rows(
    classic: SparkEngine, files: Files, days: tuple[pa.Table, StructType]
) -> None:
    table, schema = days
    first = files.scan(classic, table, schema, ("day",)).cache()
    try:
        assert first.count() == 30
        assert files.scan(classic, table.slice(0, 1), schema, ("day",)).count() == 10
    finally:
        first.unpersist()


@pytest.mark.long
def test_metadata_columns_work_and_the_modification_time_is_the_logs(
    engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]
) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",))
    found = rows.select("id", "_metadata.file_name", "_metadata.row_index").where("id = 13").collect()
    assert [tuple(r) for r in found] == [(13, "f-1.parquet", 3)]


def test_no_files_give_no_rows(engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]) -> None:
    table, schema = days
    result = engine.to_arrow(files.scan(engine, table.slice(0, 0), schema, ("day",)))
    assert result.schema == schema_to_arrow(schema)
    assert result.num_rows == 0


@family(
    ("name", "log_path"),
    [
        ("a b.parquet", None),
        ("p=50%/x%20y.parquet", None),
        ("[x]*{y}?.parquet", None),
        ("grün/日本.parquet", None),
        ("a+b&c=d.parquet", None),
        ("a#b?c.parquet", None),
        ("plain space.parquet", "plain space.parquet"),
        ("raw-ü.parquet", "raw-ü.parquet"),
    ],
    every=5,
)
def test_paths_with_special_characters(engine: SparkEngine, files: Files, name: str, log_path: str | None) -> None:
    size = put(files.root, name, pa.table({"id": [1, 2]}))
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("p", pa.string())]))
    table = adds(add(log_path or encode_path(name), size, p="v"))
    rows = engine.to_arrow(files.scan(engine, table, schema, ("p",)))
    assert rows_of(rows, "id") == [{"id": 1, "p": "v"}, {"id": 2, "p": "v"}]


@pytest.mark.parametrize("spelling", ["file:{}", "file://{}", "{}"])
def test_absolute_paths_outside_the_table(engine: SparkEngine, files: Files, tmp_path: Path, spelling: str) -> None:
    size = put(tmp_path / "elsewhere", "a b.parquet", pa.table({"id": [7]}))
    absolute = encode_path(str(tmp_path / "elsewhere" / "a b.parquet"))
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("p", pa.int32())]))
    table = adds(add(spelling.format(absolute), size, p="3"))
    assert rows_of(engine.to_arrow(files.scan(engine, table, schema, ("p",)))) == [{"id": 7, "p": 3}]


def test_text_that_is_no_utf8_is_refused(engine: SparkEngine, files: Files) -> None:
    offsets = pa.py_buffer(struct.pack("<2i", 0, 1))
    damaged = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    schema = schema_from_arrow(pa.schema([("s", pa.string())]))
    size = put(files.root, "f.parquet", pa.table({"s": damaged}))
    rows = files.scan(engine, adds(add("f.parquet", size)), schema)
    for pull in (engine.to_arrow, lambda rows: engine.to_reader(rows).read_all()):
        with pytest.raises(SchemaMismatchError, match="not a valid string"):
            pull(rows)


def test_a_table_in_a_directory_with_a_blank(engine: SparkEngine, tmp_path: Path) -> None:
    files = Files(tmp_path / "my tables" / "50% [of] ü")
    size = put(files.root, "f.parquet", pa.table({"id": [1]}))
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("p", pa.string())]))
    result = engine.to_arrow(files.scan(engine, adds(add("f.parquet", size, p="x")), schema, ("p",)))
    assert rows_of(result) == [{"id": 1, "p": "x"}]


PARTITION_CASES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["x", "a\tb\nc\\N", "\\N", "é/%2F=", "__HIVE_DEFAULT_PARTITION__", "a'b\"c`", " ", None]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    (pa.int32(), [-1, None]),
    (pa.int16(), [-(2**15), 5]),
    (pa.int8(), [127, None]),
    (pa.float64(), [1.5, -0.0, float("inf"), float("-inf"), 1e300, None]),
    (pa.float32(), [0.1, 3.0]),
    (pa.bool_(), [True, False, None]),
    (
        pa.decimal128(38, 10),
        [decimal.Decimal("1234567890123456789.0123456789"), decimal.Decimal("-0.0000000001"), None],
    ),
    (pa.decimal128(5, 2), [decimal.Decimal("-999.99"), decimal.Decimal(0)]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31), None]),
    (UTC, [dt.datetime(2020, 1, 1, 3, 4, 5, 678901, tzinfo=dt.UTC), dt.datetime(1500, 2, 3, tzinfo=dt.UTC), None]),
    (pa.timestamp("us"), [dt.datetime(2021, 3, 14, 2, 30), dt.datetime(1500, 2, 3, 4, 5, 6, 7), None]),
    (pa.binary(), [b"\x01\x02", b"abc", None]),
]


@family(("kind", "values"), PARTITION_CASES, ids=[str(k) for k, _ in PARTITION_CASES], every=5)
def test_partition_values_of_every_type(
    engine: SparkEngine, files: Files, kind: pa.DataType, values: list[Any]
) -> None:
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("p", kind)]))
    data_type = schema.fields[1].data_type
    found = []
    for i, value in enumerate(values):
        size = put(files.root, f"f{i}.parquet", pa.table({"id": [i]}))
        found.append(add(f"f{i}.parquet", size, p=serialize_partition_value(value, data_type)))
    result = rows_of(engine.to_arrow(files.scan(engine, adds(*found), schema, ("p",))), "id")
    expected = [pa.scalar(v, kind).as_py() for v in values]
    assert [r["p"] for r in result] == expected


def test_several_partition_columns_with_absent_and_repeated_values(engine: SparkEngine, files: Files) -> None:
    found, expected = [], []
    for i, (a, b) in enumerate([("x", "1"), ("x", None), (None, "1"), ("y", "2"), ("x", "1"), ("", "2")]):
        size = put(files.root, f"f{i}.parquet", pa.table({"id": [i]}))
        found.append(add(f"f{i}.parquet", size, a=a, b=b))
        expected.append({"a": a or None, "b": None if b is None else int(b), "id": i})
    schema = schema_from_arrow(pa.schema([("a", pa.string()), ("b", pa.int32()), ("id", pa.int64())]))
    result = engine.to_arrow(files.scan(engine, adds(*found), schema, ("a", "b")))
    assert rows_of(result, "id") == expected


@on_every_session
def test_columns_a_file_lacks_are_null_and_widened_types_are_read(engine: SparkEngine, files: Files) -> None:
    old = put(files.root, "old.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    new = put(files.root, "new.parquet", pa.table({"id": pa.array([2**40]), "later": ["x"]}))
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("later", pa.string())]))
    table = adds(add("old.parquet", old), add("new.parquet", new))
    result = engine.to_arrow(files.scan(engine, table, schema))
    assert rows_of(result, "id") == [{"id": 1, "later": None}, {"id": 2**40, "later": "x"}]


def test_types_come_from_the_log_where_a_file_is_silent(engine: SparkEngine, files: Files) -> None:
    # Spark takes a zoneless file column for an instant without complaint, and the other way round: the log decides.
    moments = pa.array([dt.datetime(2020, 6, 1, 12)], pa.timestamp("us"))
    size = put(files.root, "f.parquet", pa.table({"ntz": moments, "ltz": moments.cast(UTC)}))
    schema = schema_from_arrow(pa.schema([("ntz", pa.timestamp("us")), ("ltz", UTC)]))
    result = engine.to_arrow(files.scan(engine, adds(add("f.parquet", size)), schema))
    assert result.schema == schema_to_arrow(schema)
    assert result.column("ntz")[0].as_py() == dt.datetime(2020, 6, 1, 12)
    assert result.column("ltz")[0].as_py() == dt.datetime(2020, 6, 1, 12, tzinfo=dt.UTC)


def test_names_with_dots_blanks_and_backticks(engine: SparkEngine, files: Files) -> None:
    table = pa.table({"a.b": [1], "c `d`": ["x"], "_metadata": [5], "st": [{"x.y": 3}]})
    size = put(files.root, "f.parquet", table)
    schema = schema_from_arrow(table.schema.append(pa.field("p.q `r`", pa.string())))
    rows = files.scan(
        engine, adds(add("f.parquet", size, **{"p.q `r`": "v"})), schema, ("p.q `r`",), where=where("`a.b` = 1", schema)
    )
    assert rows_of(engine.to_arrow(rows)) == [
        {"a.b": 1, "c `d`": "x", "_metadata": 5, "st": {"x.y": 3}, "p.q `r`": "v"}
    ]


@pytest.mark.long
def test_where_on_timestamps_does_not_depend_on_the_sessions_time_zone(
    classic: SparkEngine, files: Files, spark: Any
) -> None:
    noon = dt.datetime(2020, 1, 1, 23, 30, tzinfo=dt.UTC)
    size = put(files.root, "f.parquet", pa.table({"ts": pa.array([noon], UTC)}))
    schema = schema_from_arrow(pa.schema([("ts", UTC)]))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for text in ("ts = '2020-01-01 23:30:00'", "CAST(ts AS DATE) = DATE'2020-01-01'", "hour(ts) = 23"):
            rows = files.scan(classic, adds(add("f.parquet", size)), schema, where=where(text, schema))
            assert rows.count() == 1, text
            # The user's own expressions over the result keep the user's zone.
            assert rows.where("CAST(ts AS DATE) = DATE'2020-01-02'").count() == 1
        assert engine_value(classic, rows) == noon
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def engine_value(engine: SparkEngine, rows: Any) -> Any:
    column = engine.to_arrow(rows).column(0)
    assert column.type == UTC
    return column[0].as_py()


@on_every_session
def test_nested_columns_and_maps(engine: SparkEngine, files: Files) -> None:
    kind = pa.schema(
        [
            ("id", pa.int64()),
            ("st", pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])),
            ("items", pa.list_(pa.struct([("k", pa.int32())]))),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    table = pa.table(
        {
            "id": [1, 2],
            "st": [{"x": 1, "y": {"z": "a"}}, None],
            "items": [[{"k": 1}, None], []],
            "m": [[("a", 1.5)], None],
        },
        schema=kind,
    )
    size = put(files.root, "f.parquet", table)
    schema = schema_from_arrow(kind)
    rows = files.scan(engine, adds(add("f.parquet", size)), schema)
    assert rows_of(engine.to_arrow(rows), "id") == rows_of(table.cast(schema_to_arrow(schema)), "id")
    assert rows_of(engine.to_reader(rows).read_all(), "id") == rows_of(table.cast(schema_to_arrow(schema)), "id")
    assert rows.select("st.y.z").where("z = 'a'").count() == 1


@pytest.mark.long
def test_union_and_sql(engine: SparkEngine, files: Files, days: tuple[pa.Table, StructType]) -> None:
    table, schema = days
    rows = files.scan(engine, table, schema, ("day",))
    assert engine.to_arrow(engine.union([rows, rows, rows])).num_rows == 90
    query = """SELECT s.name, count(*) AS n, '{braces}' AS b -- a comment
               FROM source s JOIN other ON s.id = other.id GROUP BY s.name"""
    result = engine.sql(query, {"source": rows, "other": rows.where("id < 15")})
    assert rows_of(engine.to_arrow(result), "name") == [
        {"name": "n0", "n": 10, "b": "{braces}"},
        {"name": "n1", "n": 5, "b": "{braces}"},
    ]
    with_clause = engine.sql("WITH t AS (SELECT id FROM `so{u}rce`) SELECT max(id) AS m FROM t", {"so{u}rce": rows})
    assert rows_of(engine.to_arrow(with_clause)) == [{"m": 29}]


@pytest.mark.long
@pytest.mark.usefixtures("compiled")
def test_sql_leaves_no_view_and_shadows_the_users(engine: SparkEngine) -> None:
    session = engine.host.session
    session.range(5).createOrReplaceTempView("source")
    before = {t.name for t in session.catalog.listTables()}
    assert rows_of(engine.to_arrow(engine.sql("SELECT * FROM source", {"source": session.range(1)}))) == [{"id": 0}]
    assert {t.name for t in session.catalog.listTables()} == before
    assert session.table("source").count() == 5
    session.catalog.dropTempView("source")


def test_a_store_out_of_sparks_reach_is_refused(engine: SparkEngine) -> None:
    plan = ScanPlan(open_store("memory://t"), schema_from_arrow(pa.schema([("id", pa.int64())])), (), adds())
    with pytest.raises(UnsupportedStoreError, match="memory"):
        engine.scan(plan)


@pytest.mark.long
def test_many_files_are_one_call(classic: SparkEngine, files: Files) -> None:
    n = 20_000
    names = [f"part-{i:05d}.parquet" for i in range(n)]
    table = adds(*[add(f"p={i % 365}/{name}", 1000, p=str(i % 365)) for i, name in enumerate(names)])
    schema = schema_from_arrow(pa.schema([("id", pa.int64()), ("p", pa.int32())]))
    for one in tries(5):
        with one.timed():
            rows = files.scan(classic, table, schema, ("p",))
    assert len(rows.inputFiles()) == n
