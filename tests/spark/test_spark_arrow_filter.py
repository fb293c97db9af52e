"""Filters as expressions of pyarrow that Spark SQL has no counterpart for: Spark keeps the rows that Arrow keeps."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark import arrow_filter
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import UnsupportedExpressionError
from tests.handmade import HandmadeTable
from tests.harness.results import Scan
from tests.harness.row_multiset import ensure_same_rows

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name of it", pa.string()),
        ("value", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("st", pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])),
        ("items", pa.list_(pa.int64())),
        ("day", pa.date32()),
    ]
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    """Three files in two partitions, with nulls and NaN."""
    made = HandmadeTable(tmp_path_factory.mktemp("filters") / "table")
    made.create(SCHEMA, partition_by=("day",))
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    for number, day in enumerate(["2020-01-01", "2020-01-01", None]):
        ids = range(10 * number, 10 * number + 10)
        moments = [start + dt.timedelta(hours=i) for i in ids]
        data = pa.table(
            {
                "id": list(ids),
                "name of it": [None if i % 7 == 0 else f"n{i}" for i in ids],
                "value": [float("nan") if i % 5 == 0 else i / 2 for i in ids],
                "at": moments,
                "st": [None if i % 4 == 0 else {"x": i, "at": at} for i, at in zip(ids, moments, strict=True)],
                "items": [None if i % 3 == 0 else [i, i + 1] for i in ids],
            },
            schema=SCHEMA.remove(6),
        )
        made.commit(made.add(f"f{number}.parquet", data, partition_values={"day": day}))
    return made.open()


FILTERS = {
    "like": pc.match_like(pc.field("name of it"), "n1_"),
    "nested": pc.add(pc.field("st", "x"), 1) > 20,
    "nested_time": pc.hour(pc.field("st", "at")) < 3,
    "list": pc.list_element(pc.field("items"), 1) == 11,
    "partition": pc.year(pc.field("day")) == 2020,
    "float_list": pc.field("value").isin([1.5, float("nan")]),
    "constant": pc.add(pc.scalar(1), pc.scalar(1)) == 2,
    "half_translated": (pc.field("id") > 12) & (pc.utf8_length(pc.field("name of it")) == 3),
    "negated": ~pc.match_like(pc.field("name of it"), "n1%"),
}


def ensure_same(engine: SparkEngine, scan: Scan) -> None:
    ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())


@pytest.mark.long
@pytest.mark.parametrize("name", FILTERS)
def test_spark_keeps_what_arrow_keeps(engine: SparkEngine, table: DeltaTable, name: str) -> None:
    scan = table.snapshot().scan(where=FILTERS[name])
    assert 0 < scan.to_arrow().num_rows <= 30
    ensure_same(engine, scan)


def test_the_sessions_time_zone_does_not_matter(engine: SparkEngine, table: DeltaTable) -> None:
    session = engine.host.session
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        ensure_same(engine, table.snapshot().scan(["id"], FILTERS["nested_time"]))
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


def test_only_columns_that_are_needed_are_read(classic: SparkEngine, table: DeltaTable) -> None:
    rows = table.snapshot().scan(where=FILTERS["like"]).to_relation(classic).select("id")
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<id:bigint,name of it:string>" in plan
    assert rows.where("_metadata.file_name = 'f1.parquet'").count() == 9


def test_the_columns_an_expression_needs() -> None:
    def names(expression: pc.Expression) -> list[str]:
        answer: list[str] = arrow_filter.used_columns(expression, SCHEMA).names
        return answer

    assert names(FILTERS["like"]) == ["name of it"]
    assert names(FILTERS["nested"]) == ["st"]
    assert names(FILTERS["half_translated"]) == ["id", "name of it"]
    assert names(pc.field("id") == pc.scalar(1)) == ["id"]
    assert names(FILTERS["constant"]) == ["id"]


@pytest.mark.long
def test_releases_of_spark_without_arrow_functions(
    engine: SparkEngine, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_filter, "_arrow_udf_type", lambda: None)
    for name in ("like", "nested_time"):
        ensure_same(engine, table.snapshot().scan(["items", "id"], FILTERS[name]))


def test_columns_by_position_cannot_travel(engine: SparkEngine, table: DeltaTable) -> None:
    translated = table.snapshot().scan(where=pc.field(0) < 5)
    ensure_same(engine, translated)
    scan = table.snapshot().scan(where=pc.match_like(pc.field(1), "n1_"))
    with pytest.raises(UnsupportedExpressionError, match="by name") as raised:
        scan.to_relation(engine)
    assert "match_like" in raised.value.context["expression"]


@pytest.mark.long
def test_over_deletion_vectors_and_row_tracking(engine: SparkEngine, tmp_path: Path) -> None:
    from tests.handmade import inline_vector

    made = HandmadeTable(tmp_path / "table")
    made.create(
        pa.schema([("id", pa.int64())]),
        features=("rowTracking", "domainMetadata"),
        reader_features=("deletionVectors",),
        configuration={"delta.enableRowTracking": "true"},
    )
    data = pa.table({"id": range(10)})
    tracked = {"base_row_id": 50, "default_row_commit_version": 1, "deletion_vector": inline_vector(3, 4)}
    made.commit(made.add("f.parquet", data, **tracked))
    where = pc.add(pc.field("row_id"), pc.field("id")) < 58
    scan = made.open().snapshot().scan(where=where, row_tracking=True)
    assert scan.to_arrow()["row_id"].to_pylist() == [50, 51, 52]
    ensure_same(engine, scan)
