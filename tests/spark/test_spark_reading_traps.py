"""What Spark does by itself with files like ours, and must not do to a scan. Each test is called after its trap."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark import scan_files
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import InvalidRequestError, UnsupportedExpressionError
from delta_orch.protocol.types import (
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.row_multiset import ensure_same_rows
from tests.spark.spark_files import on_every_session

pytestmark = pytest.mark.spark


@contextmanager
def setting(session: Any, key: str, value: str) -> Iterator[None]:
    before = session.conf.get(key, None)
    session.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, before)


def mapped(name: str, data_type: DataType, number: int) -> StructField:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return StructField(name, data_type, True, metadata)


def nested_table(root: Path, mode: str) -> DeltaTable:
    inner = StructType((mapped("x", LONG, 3), mapped("wide", STRING, 4)))
    made = HandmadeTable(root)
    made.create(
        StructType((mapped("id", LONG, 1), mapped("st", inner, 2))),
        reader_features=("columnMapping",),
        configuration={"delta.columnMapping.mode": mode},
    )

    def field(number: int, data_type: pa.DataType) -> pa.Field:
        return pa.field(f"col-{number}", data_type, metadata={"PARQUET:field_id": str(number)})

    struct = pa.struct([field(3, pa.int64()), field(4, pa.string())])
    rows = [None if i == 3 else {"col-3": i, "col-4": "w" * 10} for i in range(6)]
    schema = pa.schema([field(1, pa.int64()), field(2, struct)])
    made.commit(made.add("f.parquet", pa.table([pa.array(range(6)), pa.array(rows, struct)], schema)))
    return made.open()


@pytest.mark.long
@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_trap_1_a_filter_pushed_into_a_python_source_leaks_into_the_next_query(
    spark: Any, tmp_path: Path, pushdown: str
) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(pa.table({"id": range(100)}))
    with setting(spark, "spark.sql.python.filterPushdown.enabled", pushdown):
        frame = spark.read.format("delta_orch").load(table.uri)
        assert [frame.count(), frame.where("id < 10").count(), frame.count()] == [100, 10, 100]
        assert frame.where("id < 10").union(frame.where("id >= 95")).count() == 15


@on_every_session
@pytest.mark.parametrize("mode", ["name", "id"])
def test_trap_2_matching_by_field_id_gives_nulls_in_pruned_structs(
    engine: SparkEngine, tmp_path: Path, mode: str
) -> None:
    table = nested_table(tmp_path / "table", mode)
    with setting(engine.host.session, "spark.sql.parquet.fieldId.read.enabled", "true"):
        rows = table.snapshot().scan().to_relation(engine).select("st.x")
        assert sorted((r.x for r in rows.collect()), key=str) == [0, 1, 2, 4, 5, None]


@pytest.mark.long
def test_trap_4_a_file_whose_path_is_spelled_otherwise_loses_or_regains_rows(
    engine: SparkEngine, tmp_path: Path
) -> None:
    made = HandmadeTable(tmp_path / "a [b] 50% {ü}")
    schema = StructType((StructField("p", STRING), StructField("id", LONG)))
    made.create(schema, reader_features=("deletionVectors",), partition_by=("p",))
    for number, name in enumerate(["plain", "p=50%/x%20y", "[x]*{y}?", "grün 日本", "a+b&c=d;e#f"]):
        made.commit(
            made.add(
                f"{name}.parquet",
                pa.table({"id": range(4)}),
                deletion_vector=inline_vector(number % 4),
                partition_values={"p": f"v{number}"},
            )
        )
    scan = made.open().snapshot().scan()
    found = engine.to_arrow(scan.to_relation(engine))
    assert found.num_rows == 15
    ensure_same_rows(found, scan.to_arrow())


@on_every_session
def test_trap_5_zones_and_old_days_are_taken_from_the_session(engine: SparkEngine, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "table")
    schema = StructType((StructField("zoned", TIMESTAMP), StructField("local", TIMESTAMP_NTZ)))
    made.create(schema, reader_features=("timestampNtz",))
    old = [dt.datetime(1500, 2, 3, 4, 5, 6), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)]
    # The file says it the wrong way round, and once as INT96.
    wrong = pa.table({"zoned": pa.array(old, pa.timestamp("us")), "local": pa.array(old, pa.timestamp("us", "UTC"))})
    right = pa.table({"zoned": pa.array(old, pa.timestamp("us", "UTC")), "local": pa.array(old, pa.timestamp("us"))})
    made.commit(made.add("wrong.parquet", wrong), made.add("right.parquet", right))
    session = engine.host.session
    with (
        setting(session, "spark.sql.session.timeZone", "Asia/Tokyo"),
        setting(session, "spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        setting(session, "spark.sql.parquet.int96RebaseModeInRead", "LEGACY"),
    ):
        scan = made.open().snapshot().scan()
        ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())


def stamped_columns(unit: str) -> pa.Schema:
    zoned, local = pa.timestamp(unit, "UTC"), pa.timestamp(unit)

    def field(name: str, data_type: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})

    point = pa.struct([field("at", zoned, 4), field("n", pa.int64(), 5)])
    return pa.schema(
        [
            field("zoned", zoned, 1),
            field("local", local, 2),
            field("st", point, 3),
            field("list", pa.list_(local), 6),
            field("map", pa.map_(pa.string(), pa.list_(point)), 7),
        ]
    )


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_timestamps_in_nanoseconds_have_no_reader(engine: SparkEngine, tmp_path: Path, mode: str) -> None:
    """Files of nanoseconds beside others of microseconds and of INT96."""

    def column(name: str, data_type: DataType, number: int) -> StructField:
        return replace(
            mapped(name, data_type, number),
            metadata={"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name},
        )

    point = StructType((column("at", TIMESTAMP, 4), column("n", LONG, 5)))
    types = (TIMESTAMP, TIMESTAMP_NTZ, point, ArrayType(TIMESTAMP_NTZ), MapType(STRING, ArrayType(point)))
    names = ("zoned", "local", "st", "list", "map")
    made = HandmadeTable(tmp_path / "table")
    made.create(
        StructType(tuple(column(*field) for field in zip(names, types, (1, 2, 3, 6, 7), strict=True))),
        reader_features=("timestampNtz", "columnMapping"),
        configuration={"delta.columnMapping.mode": mode},
    )
    ticks = [0, 1, -1, 999, -1_000, -1_001, None, 1_600_000_000_123_456, -(10**15) - 1]
    points = [{"at": tick, "n": 7} for tick in ticks]
    rows = [
        {"zoned": p["at"], "local": p["at"], "st": p, "list": [p["at"], None], "map": {"k": [p, None], "none": None}}
        for p in points
    ]
    rows[2:4] = [{**row, "st": None, "list": None, "map": None} for row in rows[2:4]]
    for name, unit, write in (("n", "ns", {}), ("u", "us", {}), ("i", "ns", {"use_deprecated_int96_timestamps": True})):
        file = pa.Table.from_pylist(rows, stamped_columns(unit))
        made.commit(made.add(f"{name}.parquet", file, write=write))
    for where in (None, "zoned > TIMESTAMP'1970-01-01 00:00:00Z'", "st.at < TIMESTAMP'1970-01-01 00:00:00Z'"):
        scan = made.open().snapshot().scan(where=where)
        expected = scan.to_arrow()
        assert expected.num_rows >= 5
        with setting(engine.host.session, "spark.sql.session.timeZone", "Asia/Tokyo"):
            ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), expected)
            if where is not None:
                users = made.open().snapshot().scan().to_relation(engine).where(where)
                ensure_same_rows(engine.to_arrow(users), expected)


def test_files_that_delta_writers_name_are_not_asked_for_their_timestamps(
    classic: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A footer a file would make a scan of many files slow to begin."""
    table = DeltaTable(tmp_path / "table")
    rows = pa.table({"at": pa.array([1, None], pa.timestamp("us", "UTC"))})
    table.append(rows)
    table.append(classic.relation(rows))

    def refused(*_: Any) -> Any:
        raise AssertionError("a footer was read")

    monkeypatch.setattr(scan_files, "read_footer", refused)
    assert table.snapshot().scan().to_relation(classic).count() == 4
    made = HandmadeTable(tmp_path / "foreign")
    made.create(rows.schema)
    made.commit(made.add("part-0.parquet", rows))
    with pytest.raises(AssertionError, match="a footer was read"):
        made.open().snapshot().scan().to_relation(classic)


@pytest.mark.long
def test_trap_6_the_sessions_zone_decides_what_a_predicate_means(engine: SparkEngine, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(StructType((StructField("at", TIMESTAMP), StructField("id", LONG))))
    late = dt.datetime(2020, 1, 1, 23, 30, tzinfo=dt.UTC)
    made.commit(made.add("f.parquet", pa.table({"at": [late, None], "id": [1, 2]})))
    snapshot = made.open().snapshot()
    with setting(engine.host.session, "spark.sql.session.timeZone", "Asia/Tokyo"):
        for where in ("at = '2020-01-01 23:30:00'", "at >= TIMESTAMP'2020-01-01 23:30:00'", "id % 2 = 1"):
            assert engine.to_arrow(snapshot.scan(where=where).to_relation(engine)).num_rows == 1, where
        for where in ("CAST(at AS DATE) = DATE'2020-01-01'", "hour(at) = 23"):
            if engine.host.is_time_zone_pinned:
                assert engine.to_arrow(snapshot.scan(where=where).to_relation(engine)).num_rows == 1, where
            else:
                # Spark Connect has one zone for everything: better no rows than others.
                with pytest.raises(UnsupportedExpressionError, match="Asia/Tokyo"):
                    snapshot.scan(where=where).to_relation(engine)
    for where in ("CAST(at AS DATE) = DATE'2020-01-01'", "hour(at) = 23"):
        assert engine.to_arrow(snapshot.scan(where=where).to_relation(engine)).num_rows == 1, where


@pytest.mark.long
@pytest.mark.parametrize("where", ["x > 5", "NOT (x <= 5)", "st.y >= 5", "x = double('NaN')", "x != 1", "x < 1"])
def test_trap_7_bounds_in_footers_leave_nan_out(engine: SparkEngine, tmp_path: Path, where: str) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(StructType((StructField("x", DOUBLE), StructField("st", StructType((StructField("y", DOUBLE),))))))
    values = [1.0, float("nan"), None, -0.0]
    made.commit(made.add("f.parquet", pa.table({"x": values, "st": [{"y": v} for v in values]})))
    made.commit(made.add("g.parquet", pa.table({"x": [1.0, 1.0], "st": [None, {"y": 1.0}]})))
    everything = made.open().snapshot().scan()
    wanted = made.open().snapshot().scan(where=where)
    if "double" not in where:
        ensure_same_rows(engine.to_arrow(wanted.to_relation(engine)), wanted.to_arrow())
    users = engine.to_arrow(everything.to_relation(engine).where(where))
    session = engine.host.session
    ensure_same_rows(users, engine.to_arrow(session.createDataFrame(everything.to_arrow()).where(where)))


@pytest.mark.parametrize("where", ["x > 5", "st.y >= 5", "x = double('NaN')", "NOT (x <= 5)"])
def test_trap_7_spares_others_who_read_our_files(classic: SparkEngine, tmp_path: Path, where: str) -> None:
    values = [1.0, float("nan"), None, -0.0]
    table = DeltaTable(tmp_path / "table")
    table.append(pa.table({"x": values, "st": [{"y": v} for v in values]}))
    theirs = classic.host.session.read.parquet(str(tmp_path / "table"))
    assert theirs.where(where).count() == 1


def test_trap_9_a_struct_under_other_names_is_read_whole(classic: SparkEngine, tmp_path: Path) -> None:
    rows = nested_table(tmp_path / "table", "name").snapshot().scan().to_relation(classic).select("st.x")
    assert "ReadSchema: struct<col-2:struct<col-3:bigint>>" in rows._jdf.queryExecution().executedPlan().toString()


def test_trap_10_a_bitmap_travels_with_each_row(classic: SparkEngine, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(pa.schema([("id", pa.int64())]), reader_features=("deletionVectors",))
    made.commit(made.add("f.parquet", pa.table({"id": range(1000)}), deletion_vector=inline_vector(*range(0, 900, 3))))
    rows = made.open().snapshot().scan().to_relation(classic)
    plan = rows._jdf.queryExecution().executedPlan().toString()
    (join,) = [line for line in plan.splitlines() if "BroadcastHashJoin" in line]
    assert "LeftAnti" in join and "getbit" in join
    assert rows.count() == 700


@pytest.mark.long
def test_trap_12_a_table_hands_a_python_source_no_options(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(pa.table({"id": range(3)}))
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE ours USING delta_orch OPTIONS (path '{table.uri}')")
    spark.sql(f"CREATE TABLE ours (id BIGINT) USING delta_orch OPTIONS (path '{table.uri}')")
    try:
        with pytest.raises(Exception, match="path of the table is missing"):
            spark.table("ours").collect()
    finally:
        spark.sql("DROP TABLE ours")


@pytest.mark.long
def test_trap_13_connect_has_no_jvm(spark_connect: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(pa.table({"id": range(3)}))
    assert not hasattr(type(spark_connect), "_jvm_bridge")
    scan = table.snapshot().scan(where=pc.add(pc.field("id"), 1) > 1)
    assert scan.to_spark(spark_connect).count() == 2


@on_every_session
def test_trap_15_values_do_not_pass_through_pandas(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas would turn integers with nulls into floats."""
    import pandas

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("through pandas")

    table = DeltaTable(tmp_path / "table")
    big = 2**53 + 1
    table.append(pa.table({"id": [big, None]}))
    monkeypatch.setattr(pandas, "DataFrame", refused)
    found = engine.to_arrow(table.snapshot().scan().to_relation(engine))
    assert sorted(found["id"].to_pylist(), key=str) == [big, None]


@pytest.mark.long
@pytest.mark.parametrize("which", ["spark", "spark_connect"])
@pytest.mark.parametrize("legacy", ["false", "true"])
def test_trap_16_a_struct_without_any_wanted_field_in_a_file_is_null(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, legacy: str
) -> None:
    session = request.getfixturevalue(which)
    st = pa.struct([("a", pa.int64()), ("d", pa.struct([("x", pa.int64())]))])
    structs = pa.array([{"a": 1, "d": {"x": 1}}, {"a": None, "d": None}, None], st)
    many = pa.array([[{"a": 1, "d": None}], [], None], pa.list_(st))
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2, 3], "st": structs, "many": many}))
    table.alter().add_column("st.b", "double").add_column("st.d.y", "string").add_column(
        "many.element.b", "int"
    ).commit()
    # Spark 4.0 has no other way than the one that this setting brings back.
    with setting(session, "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing", legacy):
        frame = table.snapshot().scan().to_spark(session)
        assert sorted(frame.where("st IS NOT NULL").select("id", "st.b").collect()) == [(1, None), (2, None)]
        assert frame.where("st.d IS NOT NULL").select("id", "st.d.y").collect() == [(1, None)]
        assert frame.where("many IS NOT NULL AND size(many.b) = 1").select("id").collect() == [(1,)]
        assert frame.where("st.a = 1").select("id", "st.a").collect() == [(1, 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "is_free"),
    [("delta_orch_vector_file", True), ("delta_orch_vector_words", True), ("r", True), ("v", True)]
    + [(f"DELTA_orch_{name}", False) for name in ("row_position", "file_number", "row_file")],
)
def test_columns_called_like_those_of_a_scan(engine: SparkEngine, tmp_path: Path, name: str, is_free: bool) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(pa.table({"id": [1, 2, 3], name: [7, 8, 9]}), properties={"delta.enableDeletionVectors": "true"})

    def ids() -> list[int]:
        return sorted(engine.to_arrow(table.snapshot().scan().to_relation(engine))["id"].to_pylist())

    assert ids() == [1, 2, 3]
    table.delete("id = 2", engine="local")
    if is_free:
        assert ids() == [1, 3]
        return
    with pytest.raises(InvalidRequestError, match="reserves"):
        ids()


@pytest.mark.long
@pytest.mark.parametrize("beyond", [70, 1 << 25, 1 << 60])
def test_a_vector_that_marks_rows_beyond_the_file_marks_no_other(
    engine: SparkEngine, tmp_path: Path, beyond: int
) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(StructType((StructField("id", LONG),)), reader_features=("deletionVectors",))
    rows = pa.table({"id": list(range(10))})
    made.commit(
        *(made.add(f"{n}.parquet", rows, deletion_vector=inline_vector(n, beyond)) for n in range(3)),
        made.add("whole.parquet", rows),
    )
    found = engine.to_arrow(made.open().snapshot().scan().to_relation(engine))["id"].to_pylist()
    assert sorted([*found, 0, 1, 2]) == sorted([*range(10)] * 4)
