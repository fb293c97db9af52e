"""Tables with features that shape rows and files, written here and read by `deltalake` (delta-rs) and by DuckDB's delta
extension (delta-kernel-rs)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.protocol.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    ArrayType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME
from tests.certain import directory
from tests.handmade import HandmadeTable
from tests.harness.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


def mapped(name: str, number: int, data_type: Any, **metadata: Any) -> StructField:
    return StructField(name, data_type, True, {FIELD_ID: number, PHYSICAL_NAME: f"col-{number}", **metadata})


MAPPED = StructType(
    (
        mapped("day, of week", 1, STRING),
        mapped("id", 2, LONG),
        mapped("st", 3, StructType((mapped("x y", 4, LONG), mapped("id", 5, STRING)))),
        mapped("items", 6, ArrayType(StructType((mapped("k", 7, INTEGER),)))),
        mapped("m", 8, MapType(STRING, LONG)),
    )
)
MAPPED_ROWS = pa.table(
    {
        "day, of week": ["a", "b", None],
        "id": [1, 2, 3],
        "st": pa.array(
            [{"x y": 1, "id": "p"}, None, {"x y": None, "id": "q"}],
            pa.struct([("x y", pa.int64()), ("id", pa.string())]),
        ),
        "items": pa.array([[{"k": 1}], None, []], pa.list_(pa.struct([("k", pa.int32())]))),
        "m": pa.array([[("a", 1)], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
    }
)


def column_mapping(mode: str, partition_by: tuple[str, ...] = ()) -> Callable[[HandmadeTable, str], None]:
    def make(handmade: HandmadeTable, engine: str) -> None:
        configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "8"}
        handmade.create(
            MAPPED, reader_features=["columnMapping"], partition_by=partition_by, configuration=configuration
        )
        table = handmade.open()
        table.append(MAPPED_ROWS, engine=engine)
        table.overwrite(MAPPED_ROWS.slice(0, 1), replace_where="id = 1", engine=engine)
        table.append(MAPPED_ROWS, engine=engine)
        table.optimize(engine=engine)

    return make


def row_rules(handmade: HandmadeTable, engine: str) -> None:
    def field(name: str, data_type: Any, **metadata: Any) -> StructField:
        return StructField(name, data_type, True, {k.replace("__", "."): v for k, v in metadata.items()})

    schema = StructType(
        (
            field("at", TIMESTAMP),
            field("day", DATE, delta__generationExpression="CAST(at AS DATE)"),
            field("kind", STRING, CURRENT_DEFAULT="'none'"),
            field("key", LONG, delta__identity__start=5, delta__identity__step=-2),
            field("n", LONG, delta__invariants=json.dumps({"expression": {"expression": "n > 0"}})),
        )
    )
    features = ["invariants", "checkConstraints", "generatedColumns", "identityColumns", "allowColumnDefaults"]
    handmade.create(
        schema, features=features, partition_by=["day"], configuration={"delta.constraints.small": "n < 100"}
    )
    moments = pa.array([0, 86_400_000_000, None], pa.timestamp("us", "UTC"))
    handmade.open().append(pa.table({"at": moments, "n": [1, 2, 3]}), engine=engine)


def materialized_partitions(handmade: HandmadeTable, engine: str) -> None:
    schema = StructType((StructField("day", STRING), StructField("id", LONG)))
    handmade.create(schema, features=["materializePartitionColumns"], partition_by=["day"])
    handmade.open().append(pa.table({"day": ["a", None], "id": [1, 2]}), engine=engine)


def pages_and_prefixes(handmade: HandmadeTable, engine: str) -> None:
    schema = StructType((StructField("day", STRING), StructField("id", LONG), StructField("l", ArrayType(LONG))))
    configuration = {
        "delta.parquet.format.version": "2.12.0",
        "delta.parquet.compression.codec": "gzip",
        "delta.randomizeFilePrefixes": "true",
    }
    handmade.create(schema, partition_by=["day"], configuration=configuration)
    data = pa.table({"day": ["a", None], "id": [1, 2], "l": pa.array([[1, None], None], pa.list_(pa.int64()))})
    handmade.open().append(data, engine=engine)


def change_files(handmade: HandmadeTable, engine: str) -> None:
    schema = StructType((StructField("id", LONG), StructField("text", STRING)))
    handmade.create(schema, features=["changeDataFeed"], configuration={"delta.enableChangeDataFeed": "true"})
    table = handmade.open()
    table.append(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}), engine=engine)
    table.overwrite(pa.table({"id": [2, 2], "text": ["x", "y"]}), replace_where="id = 2", engine=engine)


TABLES: dict[str, Callable[[HandmadeTable, str], None]] = {
    "mapped by name": column_mapping("name"),
    "mapped by name, partitioned": column_mapping("name", ("day, of week",)),
    "mapped by id": column_mapping("id"),
    "row rules": row_rules,
    "materialized partitions": materialized_partitions,
    "pages and prefixes": pages_and_prefixes,
    "change files": change_files,
}


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        request.getfixturevalue("spark")
    return str(request.param)


@pytest.fixture(params=list(TABLES))
def written(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> DeltaTable:
    handmade = HandmadeTable(tmp_path / "table")
    TABLES[request.param](handmade, engine)
    return handmade.open()


def test_deltalake_reads_the_same_rows(written: DeltaTable) -> None:
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(directory(written))).execute("SELECT * FROM t")
    ensure_same_rows(pa.table(theirs.read_all()), written.snapshot().scan().to_arrow())


def test_duckdb_reads_the_same_rows(written: DeltaTable, duckdb_delta: Any) -> None:
    ensure_same_rows(duckdb_delta(directory(written)), written.snapshot().scan().to_arrow())


def test_deltalake_reads_the_same_changes(tmp_path: Path, engine: str) -> None:
    handmade = HandmadeTable(tmp_path / "table")
    change_files(handmade, engine)
    table = handmade.open()
    theirs = pa.table(deltalake.DeltaTable(directory(table)).load_cdf(starting_version=1).read_all())
    ours = table.changes(starting_version=1).to_arrow()
    names = ["id", "text", "_change_type", "_commit_version"]
    assert sorted(map(str, theirs.select(names).to_pylist())) == sorted(map(str, ours.select(names).to_pylist()))
    assert sorted(c for c in theirs["_change_type"].to_pylist()) == ["delete"] + ["insert"] * 5
