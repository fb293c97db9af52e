"""Compaction: the same rows in fewer files, made by Arrow on the workers."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import MissingFileError
from delta_orch.protocol.paths import decode_path
from tests.harness.table_builder import FILE_SCHEMA
from tests.spark.spark_files import Files, rows_of

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_each_plan_becomes_one_file_in_order(engine: SparkEngine, files: Files) -> None:
    parts, rows = [], []
    for i in range(6):
        table = pa.table(
            {
                "id": [i * 2, i * 2 + 1],
                "p": pa.array(["a b" if i < 3 else None] * 2, pa.string()),
                "x": [float(i), float("nan")],
                "ts": pa.array([dt.datetime(1500, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            }
        )
        adds, schema = files.write(engine, table, partition_by=("p",))
        parts.append(adds)
        rows.append(table)
    plans = [
        ScanPlan(files.store, schema, ("p",), pa.concat_tables(parts[:3])),
        ScanPlan(files.store, schema, ("p",), pa.concat_tables(parts[3:])),
    ]
    result = engine.rewrite(plans, WriteSpec(files.store, schema, ("p",)))
    assert result.schema == FILE_SCHEMA
    assert [dict(v) for v in result["partition_values"].to_pylist()] == [{"p": "a b"}, {"p": None}]
    stats = [json.loads(s) for s in result["stats"].to_pylist()]
    assert [s["numRecords"] for s in stats] == [6, 6]
    assert stats[0]["minValues"]["id"] == 0
    assert "x" not in stats[0]["maxValues"], "Arrow's maximum passes over NaN"
    after = engine.to_arrow(files.scan(engine, result, schema, ("p",)))
    assert repr(rows_of(after, "id")) == repr(rows_of(pa.concat_tables(rows).cast(after.schema), "id"))


def test_nothing_to_do(engine: SparkEngine, files: Files) -> None:
    _, schema = files.write(engine, pa.table({"id": [1]}))
    assert engine.rewrite([], WriteSpec(files.store, schema, ())).num_rows == 0


def test_a_missing_file_is_named(engine: SparkEngine, files: Files) -> None:
    adds, schema = files.write(engine, pa.table({"id": [1]}))
    path = files.root / decode_path(adds["path"][0].as_py())
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        engine.rewrite([ScanPlan(files.store, schema, (), adds)], WriteSpec(files.store, schema, ()))


@pytest.mark.long
@pytest.mark.parametrize("module", ["pyarrow", "delta_orch"])
def test_bare_workers_leave_it_to_spark(
    engine: SparkEngine, files: Files, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    def bare(batches: Any) -> Any:
        raise ModuleNotFoundError(f"No module named '{module}'")

    monkeypatch.setattr("delta_orch.engines.spark.write.run_rewrite_tasks", bare)
    parts = [files.write(engine, pa.table({"id": [i]})) for i in range(3)]
    plan = ScanPlan(files.store, parts[0][1], (), pa.concat_tables([adds for adds, _ in parts]))
    result = engine.rewrite([plan], WriteSpec(files.store, plan.schema, ()))
    assert [row["id"] for row in rows_of(engine.to_arrow(files.scan(engine, result, plan.schema)), "id")] == [0, 1, 2]


@pytest.mark.long
def test_variants_are_rewritten_by_spark(classic: SparkEngine, files: Files, spark: Any) -> None:
    parts = []
    for i in range(3):
        rows = spark.sql(f"SELECT {i} AS id, parse_json('{{\"a\": {i}}}') AS v")
        adds, schema = files.write(classic, rows)
        parts.append(adds)
    plan = ScanPlan(files.store, schema, (), pa.concat_tables(parts))
    result = classic.rewrite([plan], WriteSpec(files.store, schema, ()))
    assert result.num_rows == 1
    found = files.scan(classic, result, schema).selectExpr("id", "to_json(v) AS j").orderBy("id").collect()
    assert [tuple(r) for r in found] == [(0, '{"a":0}'), (1, '{"a":1}'), (2, '{"a":2}')]
