"""A user's own filter over the DataFrame of a classic session leaves out files by the table's statistics."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.protocol.arrow_building import type_to_arrow
from delta_orch.protocol.types import (
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    DecimalType,
    StructField,
    StructType,
)
from tests.certain import a
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.row_multiset import ensure_same_rows

pytestmark = pytest.mark.spark

START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def mapped(name: str, kind: Any, number: int) -> StructField:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return StructField(name, kind, True, metadata)


def schema_of(*, is_mapped: bool) -> StructType:
    def field(name: str, kind: Any, number: int) -> StructField:
        return mapped(name, kind, number) if is_mapped else StructField(name, kind)

    inner = StructType((field("x", LONG, 10), field("Y y", STRING, 11)))
    return StructType(
        (
            field("day", STRING, 1),
            field("id", LONG, 2),
            field("a name", STRING, 3),
            field("price", DecimalType(7, 2), 4),
            field("at", TIMESTAMP, 5),
            field("st", inner, 6),
            field("value", DOUBLE, 7),
        )
    )


def physical(names: StructType) -> StructType:
    def renamed(f: StructField) -> StructField:
        kind = physical(f.data_type) if isinstance(f.data_type, StructType) else f.data_type
        return StructField(f.metadata.get("delta.columnMapping.physicalName", f.name), kind, True, f.metadata)

    return StructType(tuple(map(renamed, names)))


def arrow_field(f: StructField) -> pa.Field:
    kind = f.data_type
    arrow = pa.struct(list(map(arrow_field, kind))) if isinstance(kind, StructType) else type_to_arrow(kind)
    number = f.metadata.get("delta.columnMapping.id")
    return pa.field(f.name, arrow, metadata=None if number is None else {"PARQUET:field_id": str(number)})


def rows(number: int) -> dict[str, list[Any]]:
    ids = range(10 * number, 10 * number + 10)
    return {
        "id": list(ids),
        "a name": [f"n{number}-{i}" for i in ids] if number != 5 else [None] * 10,
        "price": [Decimal(i) + Decimal("0.25") for i in ids],
        "at": [START + dt.timedelta(days=i) for i in ids],
        "st": [None if i % 10 == 0 else {"x": i, "Y y": f"y{i}"} for i in ids],
        "value": [float("nan") if i == 35 else i / 4 for i in ids],
    }


def statistics(number: int, table: StructType) -> str:
    """Bounds as a writer leaves them: NaN left out, timestamps in milliseconds."""
    values = rows(number)
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for f, name in zip(table, physical(table).names, strict=True):
        if f.name == "day":
            continue
        present = [v for v in values[f.name] if v is not None and v == v]
        nulls[name] = 10 - len([v for v in values[f.name] if v is not None])
        if f.name == "st":
            inner = dict(zip(("x", "Y y"), physical(a(StructType, f.data_type)).names, strict=True))
            minimum[name] = {inner[k]: min(v[k] for v in present) for k in inner}
            maximum[name] = {inner[k]: max(v[k] for v in present) for k in inner}
            nulls[name] = dict.fromkeys(inner.values(), 1)
        elif present:
            minimum[name], maximum[name] = min(present), max(present)

    def default(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else value.strftime("%Y-%m-%dT%H:%M:%S.000Z")

    stats = {"numRecords": 10, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    return json.dumps(stats, default=default)


def make(root: Path, kind: str) -> DeltaTable:
    """Six files of ten rows, `id` 0 to 59, in three partitions."""
    is_mapped = kind in ("name", "id")
    schema = schema_of(is_mapped=is_mapped)
    made = HandmadeTable(root)
    made.create(
        schema,
        partition_by=("day",),
        reader_features=("columnMapping",) if is_mapped else ("deletionVectors",) if kind == "vectors" else (),
        configuration={"delta.columnMapping.mode": kind} if is_mapped else {},
    )
    names = physical(schema)
    for number in range(6):
        data = rows(number)
        types = {f.name: f.data_type for f in schema}
        arrays, fields = [], []
        for f, by in list(zip(schema, names, strict=True))[1:]:
            values = data[f.name]
            if f.name == "st":
                inner = physical(types["st"]).names  # type: ignore[arg-type]
                values = [v and dict(zip(inner, v.values(), strict=True)) for v in values]
            field = arrow_field(by)
            arrays.append(pa.array(values, field.type))
            fields.append(field)
        vector = {"deletion_vector": inline_vector(0, 9)} if kind == "vectors" and number % 2 else {}
        partition = {names.names[0]: f"2020-01-0{number // 2 + 1}"}
        added = made.add(
            f"f{number}.parquet", pa.table(arrays, pa.schema(fields)), partition_values=partition, **vector
        )
        made.commit(replace(added, stats=statistics(number, schema)))
    return made.open()


@pytest.fixture(scope="module", params=["plain", "name", "id", "vectors"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    return make(tmp_path_factory.mktemp("pushed") / "table", request.param)


def run(frame: Any) -> tuple[pa.Table, int]:
    """The rows of a DataFrame, and how many files its scans read by Spark's own metrics."""
    table = frame.toArrow()
    return table, sum(_files_of(scan) for scan in _scans(frame._jdf.queryExecution().executedPlan()))


def _scans(plan: Any) -> list[Any]:
    name = plan.getClass().getSimpleName()
    if name == "AdaptiveSparkPlanExec":
        return _scans(plan.executedPlan())
    if name.endswith("QueryStageExec"):
        return _scans(plan.plan())
    if name == "FileSourceScanExec":
        return [plan]
    children = plan.children()
    return [scan for i in range(children.length()) for scan in _scans(children.apply(i))]


def _files_of(scan: Any) -> int:
    return int(scan.metrics().apply("numFiles").value())


CASES = [
    ("id = 34", 1),
    ("id >= 40", 2),
    ("34 > id AND id > 12", 3),
    ("id IN (5, 55)", 2),
    ("id IN (1,2,3,4,5,6,7,8,9,11,12,13,14)", 2),
    ("NOT (id < 50)", 1),
    ("id < 5 OR id > 57", 2),
    # Spark shows a scan no filter over partition columns and others together.
    ("id < 5 OR day = '2020-01-03'", 6),
    ("day = '2020-01-02' AND id < 30", 1),
    ("`a name` = 'n3-33'", 1),
    ("`a name` LIKE 'n4%'", 1),
    ("`a name` IS NULL", 1),
    ("`a name` IS NOT NULL AND id >= 40", 1),
    ("`a name` <=> NULL", 1),
    ("price BETWEEN 20.25 AND 21.0", 1),
    ("at >= TIMESTAMP'2020-02-20 00:00:00Z'", 1),
    ("at < TIMESTAMP'2020-01-05 00:00:00'", 1),
    ("st.x = 44", 1),
    ("st.`Y y` = 'y17'", 2),
    # No bound tells whether there is a NaN, which is above every number.
    ("value > 14.5", 6),
    ("value < 1", 1),
    ("id > 1000", 0),
    ("id % 2 = 0", 6),
    ("length(`a name`) = 5 AND id = 3", 1),
    ("CAST(NULL AS BOOLEAN)", 0),
]


@pytest.mark.long
@pytest.mark.parametrize(("text", "count"), CASES, ids=[text for text, _ in CASES])
def test_a_users_filter_leaves_out_files(spark: Any, table: DeltaTable, text: str, count: int) -> None:
    scan = table.snapshot().scan()
    found, num_files = run(scan.to_spark(spark).where(text))
    wanted = scan.to_arrow().filter(pc.is_in(pc.field("id"), table.snapshot().scan(["id"], text).to_arrow()["id"]))
    ensure_same_rows(found, wanted)
    assert num_files == count


@pytest.mark.long
def test_no_filter_reaches_another_query(spark: Any, table: DeltaTable) -> None:
    frame = table.snapshot().scan(["id"]).to_spark(spark)
    low, high = frame.where("id < 5"), frame.where("id > 55")
    assert run(low)[1] == run(high)[1] == 1
    assert run(frame)[1] == 6
    both, num_files = run(low.union(high))
    assert num_files == 2
    ensure_same_rows(both, table.snapshot().scan(["id"], "id < 5 OR id > 55").to_arrow())


@pytest.mark.long
def test_sql_over_a_view_leaves_out_files(spark: Any, table: DeltaTable) -> None:
    table.snapshot().scan().to_spark(spark).createOrReplaceTempView("pushed")
    try:
        query = "SELECT count(*) AS n FROM (SELECT * FROM pushed WHERE st.x > 20) AS t WHERE t.id <= 28"
        counted, num_files = run(spark.sql(query))
        assert num_files == 1
        assert counted["n"].to_pylist() == [8]
        joined = spark.sql("SELECT a.id FROM pushed a JOIN pushed b ON a.id = b.id WHERE a.id = 44")
        assert run(joined)[1] == 2, "the filter holds for the other side, too"
    finally:
        spark.catalog.dropTempView("pushed")


@pytest.mark.long
def test_the_scans_own_predicate_and_a_users(spark: Any, table: DeltaTable) -> None:
    frame = table.snapshot().scan(["id"], "id < 30").to_spark(spark)
    assert run(frame)[1] == 3
    found, num_files = run(frame.where("id > 25"))
    assert (num_files, sorted(found["id"].to_pylist())) == (1, [26, 27, 28, 29][: found.num_rows])


def test_a_missing_file_that_is_left_out_is_not_missed(spark: Any, tmp_path: Path) -> None:
    table = make(tmp_path / "table", "plain")
    (tmp_path / "table" / "f0.parquet").unlink()
    assert table.snapshot().scan().to_spark(spark).where("id > 30").count() == 29


def test_a_log_that_is_gone_meanwhile_costs_nothing_but_time(
    classic: SparkEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A small checkpoint comes whole with its footer, and is not asked for again. This one stands for a large one.
    monkeypatch.setattr("delta_orch.storage.parquet_footer._TAIL_BYTES", 1024)
    table = make(tmp_path / "table", "plain")
    table.checkpoint()
    frame = DeltaTable(tmp_path / "table").snapshot().scan().to_relation(classic)
    for file in (tmp_path / "table" / "_delta_log").iterdir():
        file.unlink()
    found, num_files = run(frame.where("id > 55"))
    assert (found.num_rows, num_files) == (4, 6)
    assert "its log can no longer be read" in caplog.text


@pytest.mark.long
def test_from_several_threads(spark: Any, table: DeltaTable) -> None:
    frame = table.snapshot().scan(["id"]).to_spark(spark)

    def count(number: int) -> int:
        return int(frame.where(f"id BETWEEN {number} AND {number + 4}").count())

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(count, [1, 11, 21, 33, 42, 51])) == [5] * 6


def test_a_plan_keeps_its_pruning_in_its_process(table: DeltaTable) -> None:
    plan = table.snapshot().scan().plan()
    assert plan.prune is not None
    again = pickle.loads(pickle.dumps(plan))
    assert again.prune is None
    assert again.files == plan.files
