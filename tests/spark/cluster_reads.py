"""Every feature whose scan needs more than Parquet files, on executors in other JVMs; `cluster_run.py` runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch.engines.base import RowCheck, WriteSpec
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.classic import ClassicHost
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.portable import PortableHost
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.types import DOUBLE, LONG, STRING, VARIANT, DataType, StructField, StructType
from delta_orch.storage.open import open_store
from delta_orch.variant import json_to_variant
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.results import Scan
from tests.harness.row_multiset import ensure_same_rows

TRACKED: dict[str, Any] = {"base_row_id": 500, "default_row_commit_version": 1}


def mapped(name: str, data_type: DataType, number: int) -> StructField:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return StructField(name, data_type, True, metadata)


def make_tables(root: Path) -> dict[str, HandmadeTable]:
    return {"vectors": _vectors(root / "vectors"), "mapped": _mapped(root / "mapped"), "variant": _variant(root / "v")}


def _vectors(root: Path) -> HandmadeTable:
    """Deletion vectors and row tracking, two partitions."""
    made = HandmadeTable(root)
    made.create(
        StructType((StructField("p", STRING), StructField("id", LONG), StructField("x", DOUBLE))),
        features=("rowTracking", "domainMetadata"),
        reader_features=("deletionVectors",),
        configuration={"delta.enableRowTracking": "true"},
        partition_by=("p",),
    )
    for number in range(4):
        data = pa.table({"id": range(100 * number, 100 * number + 100), "x": [float("nan"), *map(float, range(99))]})
        vector: dict[str, Any] = {"deletion_vector": inline_vector(1, 50, 99)} if number % 2 else {}
        partition = {"p": None if number == 3 else f"p {number // 2}"}
        made.commit(made.add(f"f {number}.parquet", data, partition_values=partition, **TRACKED, **vector))
    return made


def _mapped(root: Path) -> HandmadeTable:
    inner = StructType((mapped("x y", LONG, 3), mapped("z", STRING, 4)))
    made = HandmadeTable(root)
    made.create(
        StructType((mapped("id", LONG, 1), mapped("a struct", inner, 2))),
        reader_features=("columnMapping",),
        configuration={"delta.columnMapping.mode": "name"},
    )
    rows = [None if i % 5 == 0 else {"col-3": i, "col-4": f"z{i}"} for i in range(50)]
    made.commit(made.add("f.parquet", pa.table({"col-1": range(50), "col-2": rows})))
    return made


def _variant(root: Path) -> HandmadeTable:
    made = HandmadeTable(root)
    made.create(StructType((StructField("id", LONG), StructField("v", VARIANT))), reader_features=("variantType",))
    variants = json_to_variant(pa.array([f'{{"a": {i}}}' for i in range(20)]))
    made.commit(made.add("f.parquet", pa.table({"id": range(20), "v": variants})))
    return made


def scans(tables: dict[str, HandmadeTable]) -> dict[str, Scan]:
    vectors, mapped_table = tables["vectors"].open().snapshot(), tables["mapped"].open().snapshot()
    return {
        "vectors": vectors.scan(),
        "where": vectors.scan(where="p = 'p 0' AND x > 90"),
        "tracked": vectors.scan(where="row_id < 550", row_tracking=True),
        "arrow filter": vectors.scan(where=pc.equal(pc.bit_wise_and(pc.field("id"), 3), 1)),
        "mapped": mapped_table.scan(),
        "mapped, nested": mapped_table.scan(where="`a struct`.`x y` > 30"),
        "variant": tables["variant"].open().snapshot().scan(),
    }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def check(spark: Any, tables: dict[str, HandmadeTable]) -> None:
    portable = SparkEngine(spark)
    portable.host = PortableHost(spark)
    for name, scan in scans(tables).items():
        wanted = scan.to_arrow()
        assert wanted.num_rows, name
        for engine in (SparkEngine(spark), portable) if name in ("where", "tracked") else (SparkEngine(spark),):
            say(f"{name} on the {type(engine.host).__name__}")
            ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), wanted)
    # pyspark has found the format by its name.
    for name, made in tables.items():
        say(f"{name} as a format")
        frame = spark.read.format("delta_orch").option("maxPartitionBytes", 1).load(made.open().uri)
        ensure_same_rows(SparkEngine(spark).to_arrow(frame), made.open().snapshot().scan().to_arrow())
    frame = tables["vectors"].open().snapshot().scan().to_spark(spark)
    assert frame.where("id >= 300").count() == 97


def check_requests(spark: Any, root: Path) -> None:
    """Each request of the engine once. What is compiled in the driver must never be needed elsewhere."""
    engine = SparkEngine(spark)
    assert isinstance(engine.host, ClassicHost)
    store = open_store(str(root))
    rows = spark.range(0, 1000, 1, 4).selectExpr("id", "concat('p ', id % 3) AS p", "timestamp_seconds(id) AS ts")
    schema = engine.schema(rows)

    def spec(limit: int) -> WriteSpec:
        check = RowCheck("low", resolve_expression(parse_expression(f"id < {limit}"), schema))
        return WriteSpec(store, schema, ("p",), checks=(check,))

    plan = ScanPlan(store, schema, ("p",), engine.write(rows, spec(1000)))
    scan = engine.scan(plan)
    assert scan.where("p = 'p 1' AND ts IS NOT NULL").count() == 333
    assert engine.to_arrow(scan).num_rows == engine.to_reader(scan).read_all().num_rows == 1000
    compacted = engine.rewrite([plan], WriteSpec(store, schema, ("p",)))
    assert engine.scan(ScanPlan(store, schema, ("p",), compacted)).count() == 1000
    with pytest.raises(ConstraintViolationError) as raised:
        engine.write(rows, spec(999))
    assert raised.value.context["row"]["id"] == 999
    say(f"requests on {spark.sparkContext.master.partition(':')[0]}")
