"""`spark.read.format("delta_orch")`: the same rows as a scan, in classic sessions and over Connect."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from delta_orch.engines.select import spark_engine
from delta_orch.engines.spark.frames import is_connect
from delta_orch.protocol.types import LONG, VARIANT, ArrayType, StructField, StructType
from delta_orch.spark_source.source import DeltaOrchSource
from delta_orch.variant import json_to_variant
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.row_multiset import ensure_same_rows
from tests.spark.spark_files import SPARK_RELEASE

pytestmark = pytest.mark.spark


@pytest.fixture(params=["classic", "connect"])
def session(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark" if request.param == "classic" else "spark_connect")


def flights(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    moment = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array([dt.date(2013, 1, 1 + i % 3) for i in ids], pa.date32()),
            "at": pa.array([moment + dt.timedelta(microseconds=i) for i in ids], pa.timestamp("us", "UTC")),
            "local": pa.array([dt.datetime(1500, 1, 1)] * len(ids), pa.timestamp("us")),
            "price": pa.array([None if i % 4 == 0 else i for i in ids], pa.int64()).cast(pa.decimal128(21, 2)),
            "delay": pa.array([float("nan") if i % 5 == 0 else i / 2 for i in ids], pa.float32()),
            "tags": pa.array([[f"t{i}", None] for i in ids], pa.list_(pa.string())),
            "st": pa.array([{"x": i, "m": [("k", i)]} for i in ids], pa.struct([("x", pa.int32()), ("m", MAP)])),
            "flag": pa.array([i % 2 == 0 for i in ids]),
            "raw": pa.array([b"\0\xff"] * len(ids), pa.binary()),
        }
    )


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.long
def test_what_spark_sends_to_workers_needs_no_package_to_be_unpickled(spark: Any, table: DeltaTable) -> None:
    # Only then a worker that lacks it can say so.
    from pyspark import cloudpickle

    for plan in (DeltaOrchSource.reader, *([DeltaOrchSource.streamReader] if SPARK_RELEASE >= (4, 2) else [])):
        source = DeltaOrchSource({"path": table.uri})
        source = cloudpickle.loads(cloudpickle.dumps(source))  # on its way to the planner
        sent = cloudpickle.dumps((plan(source, source.schema()), source))
        loaded = "import sys; from pyspark import cloudpickle; sys.modules['delta_orch'] = None; "
        loaded += "print(cloudpickle.load(sys.stdin.buffer)[1].name())"
        done = subprocess.run([sys.executable, "-c", loaded], input=sent, capture_output=True, check=False)
        assert done.stdout == b"delta_orch\n", done.stderr.decode()


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Versions 0 to 3: created with a change feed, then ten rows each."""
    table = DeltaTable(tmp_path / "my tables" / "flights")
    table.create(flights(0, 1).schema, partition_by=["day"], properties={"delta.enableChangeDataFeed": "true"})
    for number in range(3):
        table.append(flights(10 * number, 10 * number + 10))
    return table


def read(session: Any, table: DeltaTable, **options: Any) -> Any:
    return session.read.format("delta_orch").options(**options).load(table.uri)


def collected(session: Any, frame: Any) -> pa.Table:
    return spark_engine(session).to_arrow(frame)


def test_all_rows_and_types(session: Any, table: DeltaTable) -> None:
    frame = read(session, table)
    ensure_same_rows(collected(session, frame), table.snapshot().scan().to_arrow())
    assert frame.schema == table.snapshot().scan().to_spark(session).schema
    assert frame.where("id >= 25 AND day = DATE'2013-01-02'").count() == 2
    assert frame.groupBy("day").count().count() == 3


@pytest.mark.long
def test_partitions_are_the_scans_tasks(session: Any, table: DeltaTable) -> None:
    assert {len(table.snapshot().scan().tasks(size)) for size in (1, 1 << 30)} == {9, 1}
    for size, count in ((1, 9), (1 << 30, 1)):
        frame = read(session, table, maxPartitionBytes=size)
        assert frame.selectExpr("spark_partition_id() AS p").distinct().count() == count


@pytest.mark.long
def test_versions_and_timestamps(session: Any, table: DeltaTable) -> None:
    assert [read(session, table, versionAsOf=v).count() for v in (0, 1, 3)] == [0, 10, 30]
    assert read(session, table, version=2).count() == 20
    moment = dt.datetime.fromtimestamp(table.snapshot(2).timestamp_ms / 1000, dt.UTC).isoformat()
    expected = table.snapshot(timestamp=moment).scan().to_arrow().num_rows
    assert read(session, table, timestampAsOf=moment).count() == expected
    # As the reference reads a path; a table that has such a path is itself.
    assert session.read.format("delta_orch").load(f"{table.uri}@v1").count() == 10
    itself = DeltaTable(f"{table.uri}@v1")
    itself.append(flights(0, 3))
    assert read(session, itself).count() == 3
    with pytest.raises(Exception, match="two versions"):
        session.read.format("delta_orch").option("versionAsOf", 1).load(f"{table.uri}@v2").count()


@pytest.mark.long
def test_a_frame_stays_at_its_version(session: Any, table: DeltaTable) -> None:
    frame, pinned = read(session, table), read(session, table, versionAsOf=3)
    table.append(flights(30, 40))
    # A frame of Connect is a recipe, which the server follows anew for each query.
    assert frame.count() == (40 if is_connect(session) else 30)
    assert pinned.count() == 30
    assert read(session, table).count() == 40


@pytest.mark.long
def test_columns_where_and_schema(session: Any, table: DeltaTable) -> None:
    scan = table.snapshot().scan(["delay", "id"], "id > 12 AND flag")
    frame = read(session, table, columns="delay, id", where="id > 12 AND flag")
    assert frame.columns == ["delay", "id"]
    ensure_same_rows(collected(session, frame), scan.to_arrow())
    nested = read(session, table, columns=json.dumps(["st.x", "id"]))
    assert nested.columns == ["x", "id"]
    assert sorted(r.x for r in nested.where("id < 3").collect()) == [0, 1, 2]
    some = session.read.format("delta_orch").schema("price DECIMAL(21,2), id BIGINT").load(table.uri)
    ensure_same_rows(collected(session, some), table.snapshot().scan(["price", "id"]).to_arrow())


@pytest.mark.long
def test_change_feed(session: Any, table: DeltaTable) -> None:
    frame = read(session, table, readChangeFeed=True, startingVersion=2)
    wanted = table.changes(starting_version=2).to_arrow()
    ensure_same_rows(collected(session, frame), wanted)
    assert wanted.num_rows == 20
    assert read(session, table, readChangeData="true", startingVersion=1, endingVersion=1).count() == 10
    assert read(session, table, readChangeFeed="true", startingVersion=9, allowOutOfRange="true").count() == 0


@pytest.mark.long
def test_deletion_vectors_row_tracking_and_variants(session: Any, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "table")
    made.create(
        StructType((StructField("id", LONG), StructField("v", VARIANT), StructField("vs", ArrayType(VARIANT)))),
        features=("rowTracking", "domainMetadata"),
        reader_features=("deletionVectors", "variantType"),
        configuration={"delta.enableRowTracking": "true"},
    )
    texts = ['{"a": 1}', "null", '[true, "x"]', "17", '"text"']
    variants = json_to_variant(pa.array(texts))
    nullable = pa.array([None, *variants.to_pylist()[1:]], variants.type)
    data = pa.table({"id": range(5), "v": nullable, "vs": pa.array([[v] for v in variants.to_pylist()])})
    tracked: dict[str, Any] = {"base_row_id": 50, "default_row_commit_version": 1}
    made.commit(made.add("f.parquet", data, deletion_vector=inline_vector(3), **tracked))
    frame = read(session, made.open(), rowTracking=True)
    assert frame.columns == ["id", "v", "vs", "row_id", "row_commit_version"]
    found = frame.selectExpr("id", "row_id", "to_json(v) AS v", "to_json(vs[0]) AS first").orderBy("id").collect()
    assert [tuple(row) for row in found] == [
        (0, 50, None, '{"a":1}'),
        (1, 51, "null", "null"),
        (2, 52, '[true,"x"]', '[true,"x"]'),
        (4, 54, '"text"', '"text"'),
    ]


@pytest.mark.long
def test_a_view_by_sql(session: Any, table: DeltaTable) -> None:
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW ours USING delta_orch OPTIONS (path '{table.uri}', versionAsOf '2')")
    try:
        assert session.sql("SELECT count(*) AS n FROM ours WHERE id > 4").collect()[0].n == 15
    finally:
        session.catalog.dropTempView("ours")


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"versoin": "1"}, "no option"),
        ({"versionAsOf": "one"}, "must be a number"),
        ({"versionAsOf": "77"}, "VersionNotFoundError"),
        ({"readChangeFeed": "maybe"}, "true or false"),
        ({"startingVersion": "1"}, "readChangeFeed=true"),
        ({"readChangeFeed": "true"}, "either startingVersion or startingTimestamp"),
        ({"readChangeFeed": "true", "startingVersion": "1", "where": "id > 1"}, "only when rows"),
        ({"columns": "nope"}, "nope"),
        ({"where": "nope = 1"}, "nope"),
        ({"version": "1", "versionAsOf": "1"}, "two names"),
        ({"storageOptions": "{'secret': 1}"}, "storageOptions"),
    ],
    ids=[
        *("unknown", "number", "version", "boolean", "lacks_feed", "lacks_start", "feed_where", "columns", "where"),
        *("twice", "json"),
    ],
)
def test_what_does_not_fit_is_said_at_once(spark: Any, table: DeltaTable, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text) as raised:
        loaded = read(spark, table, **options)
        # Options of a stream say so only when a batch asks for rows.
        assert options in ({"startingVersion": "1"}, {"readChangeFeed": "true"})
        loaded.collect()
    assert "secret" not in str(raised.value)


@pytest.mark.long
def test_a_schema_that_is_not_the_tables(spark: Any, table: DeltaTable) -> None:
    for schema, text in (("id STRING", "of type string"), ("nope BIGINT", "no column nope")):
        with pytest.raises(Exception, match=text):
            spark.read.format("delta_orch").schema(schema).load(table.uri).count()


def test_no_table(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="TableNotFoundError"):
        spark.read.format("delta_orch").load(str(tmp_path))


@pytest.mark.long
@pytest.mark.skipif(SPARK_RELEASE < (4, 1), reason="Spark 4.0 refuses a name that it has found")
def test_a_session_registers_what_it_has_found(spark: Any, table: DeltaTable) -> None:
    session = spark.newSession()
    session.dataSource.register(DeltaOrchSource)
    assert read(session, table).count() == table.snapshot().scan().count()


@pytest.mark.long
def test_a_char_is_read_and_compared_filled_up(session: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.create([column("id", "int"), column("c", "char(3)")])
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "c": ["x", "xyz"]}))
    rows = session.read.format("delta_orch").load(str(tmp_path))
    assert [tuple(row) for row in rows.where("c = 'x'").collect()] == [(1, "x  ")]
