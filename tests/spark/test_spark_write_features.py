"""What a `WriteSpec` asks beyond plain columns, on every shape of Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.base import ComputedColumn, IdentityValues, RowCheck
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ConstraintViolationError, SchemaMismatchError
from delta_orch.expressions.nodes import Opaque
from delta_orch.expressions.parse import parse_value
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.types import (
    DATE,
    LONG,
    STRING,
    TIMESTAMP,
    VARIANT,
    ArrayType,
    StructField,
    StructType,
)
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME, ColumnMappingMode
from delta_orch.variant import json_to_variant
from tests.harness.row_multiset import ensure_same_rows
from tests.spark.spark_files import Files, rows_of

pytestmark = pytest.mark.spark

ARROW_VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])


def schemas(files: Files, adds: pa.Table) -> list[pa.Schema]:
    return [pq.read_schema(files.root / decode_path(path)) for path in adds["path"].to_pylist()]


def mapped(name: str, number: int, data_type: Any, **metadata: Any) -> StructField:
    return StructField(name, data_type, True, {FIELD_ID: number, PHYSICAL_NAME: f"col-{number}", **metadata})


@pytest.mark.long
@pytest.mark.parametrize("nested_ids", [False, True], ids=["native", "in tasks"])
def test_names_ids_and_partition_values(engine: SparkEngine, files: Files, nested_ids: bool) -> None:
    ids = {"parquet.field.nested.ids": {"items.element": 50}} if nested_ids else {}
    inner = StructType((mapped("a b", 3, LONG),))
    schema = StructType(
        (mapped("d.y`,", 1, STRING), mapped("st", 2, inner), mapped("items", 4, ArrayType(inner), **ids))
    )
    struct = pa.struct([("a b", pa.int64())])
    rows = pa.table(
        {
            "d.y`,": ["é", None],
            "st": pa.array([{"a b": 1}, None], struct),
            "items": pa.array([[{"a b": 2}], None], pa.list_(struct)),
        }
    )
    mapping = ColumnMappingMode.NAME
    adds, _ = files.write(engine, rows, schema=schema, partition_by=("d.y`,",), column_mapping=mapping)
    assert {tuple(v) for v in adds["partition_values"].to_pylist()} == {(("col-1", "é"),), (("col-1", None),)}
    for found in schemas(files, adds):
        assert {f.name: f.metadata[b"PARQUET:field_id"] for f in found} == {"col-2": b"2", "col-4": b"4"}
        assert found.field("col-2").type[0].metadata[b"PARQUET:field_id"] == b"3"
        element = found.field("col-4").type.value_field
        assert (element.metadata or {}).get(b"PARQUET:field_id") == (b"50" if nested_ids else None)
    read = engine.to_arrow(files.scan(engine, adds, schema, ("d.y`,",), column_mapping=mapping))
    assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, rows.to_pylist()))


FILLED = StructType(
    (
        StructField("key", LONG),
        StructField("at", TIMESTAMP),
        StructField("kind", STRING),
        StructField("n", LONG),
        StructField("day", DATE),
        StructField("later", STRING),
    )
)


@pytest.mark.long
def test_absent_columns_are_filled(engine: SparkEngine, files: Files) -> None:
    # The time zone of the JVM is not UTC, and the day is that of UTC all the same.
    at = pa.array([0, 86_399_999_999, None], pa.timestamp("us", "UTC"))
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "at": at})
    adds, _ = files.write(
        engine,
        rows,
        schema=FILLED,
        partition_by=("day",),
        defaults=(ComputedColumn("kind", parse_value("'it''s'")),),
        generated=(ComputedColumn("day", parse_value("CAST(at AS DATE)")),),
        identities=(IdentityValues("key", 10, -3),),
        checks=(RowCheck("key", Opaque("key <= 10 AND n * 2 > 0", ())),),
    )
    read = rows_of(engine.to_arrow(files.scan(engine, adds, FILLED, ("day",))), "n")
    assert [(r["n"], r["kind"], str(r["day"]), r["later"]) for r in read] == [
        (1, "it's", "1970-01-01", None),
        (2, "it's", "1970-01-01", None),
        (3, "it's", "None", None),
    ]
    keys = [r["key"] for r in read]
    assert len(set(keys)) == 3
    assert all(key <= 10 and (key - 10) % 3 == 0 for key in keys)


@pytest.mark.long
def test_identity_values_run_out(engine: SparkEngine, files: Files) -> None:
    schema = StructType((StructField("key", LONG), StructField("n", LONG)))
    for first, step in ((2**63 - 2, 1), (-(2**63) + 1, -1), (-(2**63), -1)):
        with pytest.raises(ConstraintViolationError, match="identity column key"):
            files.write(
                engine, pa.table({"n": [1, 2, 3]}), schema=schema, identities=(IdentityValues("key", first, step),)
            )
    for first, step in ((-(2**63), -1), (100, -1), (-5, 1)):
        identities = (IdentityValues("key", first, step),)
        adds, _ = files.write(engine, pa.table({"n": [1]}), schema=schema, identities=identities)
        (key,) = engine.to_arrow(files.scan(engine, adds, schema))["key"].to_pylist()
        assert key == first if first == -(2**63) else (key - first) * step >= 0


def test_extra_columns_change_types_and_kept_partitions(engine: SparkEngine, files: Files) -> None:
    schema = StructType((StructField("day", STRING), StructField("id", LONG)))
    rows = pa.table({"id": [1, 2], "_row-id": pa.array([7, None], pa.int64()), "day": ["a", "b"]})
    adds, _ = files.write(
        engine,
        rows,
        schema=schema,
        partition_by=("day",),
        extra_columns=(StructField("_row-id", LONG),),
        keep_partition_columns=True,
        change_type="delete",
        directory="_change_data",
    )
    assert all(path.startswith("_change_data/") for path in adds["path"].to_pylist())
    assert all(found.names == ["id", "day", "_row-id", "_change_type"] for found in schemas(files, adds))
    tables = [pq.ParquetFile(files.root / decode_path(path)).read() for path in adds["path"].to_pylist()]
    assert sorted(map(tuple, (r.values() for r in pa.concat_tables(tables).to_pylist())), key=str) == [
        (1, "a", 7, "delete"),
        (2, "b", None, "delete"),
    ]
    assert not any("_row-id" in stats or "_change_type" in stats for stats in adds["stats"].to_pylist())


@pytest.mark.long
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("shred", [False, True], ids=["plain", "shredded"])
def test_variants(engine: SparkEngine, files: Files, shred: bool) -> None:
    schema = StructType((StructField("id", LONG), StructField("v", VARIANT)))
    rows = engine.host.session.range(50).selectExpr("id", "parse_json(concat('{\"a\":', id, '}')) AS v").coalesce(1)
    adds, _ = files.write(engine, rows, schema=schema, shred_variants=shred)
    (found,) = schemas(files, adds)
    assert ("typed_value" in [f.name for f in found.field("v").type]) == shred
    read = files.scan(engine, adds, schema).selectExpr("id", "variant_get(v, '$.a', 'bigint') AS a")
    assert all(r["id"] == r["a"] for r in engine.to_arrow(read).to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "name"])
def test_structs_of_metadata_and_value_become_variants(engine: SparkEngine, tmp_path: Path, mode: str) -> None:
    table = DeltaTable(tmp_path / "table")
    table.create(pa.schema([("id", pa.int64()), ("s.l`", pa.int64())]), properties={"delta.columnMapping.mode": mode})
    table.alter().add_column("v", "variant").add_column(
        "s", "struct<l: array<variant>, m: map<string, variant>>"
    ).commit()
    first, second, null = json_to_variant(pa.array(['{"a": 1}', "[true]", None])).to_pylist()
    data = pa.table(
        {
            "s": [None, {"l": [first, null], "m": [("k", second), ("none", null)]}],
            "id": pa.array([1, 2], pa.int64()),
            "s.l`": pa.array([3, 4], pa.int64()),
            "v": [first, null],
        },
        pa.schema(
            [
                ("s", pa.struct([("l", pa.list_(ARROW_VARIANT)), ("m", pa.map_(pa.string(), ARROW_VARIANT))])),
                ("id", pa.int64()),
                ("s.l`", pa.int64()),
                ("v", ARROW_VARIANT),
            ]
        ),
    )
    for rows in (data, engine.relation(data)):
        table.append(rows, engine=engine)
    expected = pa.concat_tables([data, data]).select(["id", "s.l`", "v", "s"])
    found = table.snapshot().scan()
    rows_found = found.to_arrow()
    ensure_same_rows(rows_found, expected.cast(rows_found.schema))
    sql = found.to_relation(engine).selectExpr("id", "variant_get(v, '$.a', 'int') AS a", "to_json(s.l[0]) AS l")
    assert sorted(map(tuple, sql.collect()), key=str) == [(1, 1, None)] * 2 + [(2, None, '{"a":1}')] * 2


def test_a_struct_without_its_value_is_no_variant(engine: SparkEngine, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    table.create(pa.schema([("id", pa.int64())]))
    version = table.alter().add_column("v", "variant").commit().version
    data = pa.table({"id": [1], "v": pa.array([{"metadata": b"\x01\x00\x00", "value": None}], ARROW_VARIANT)})
    with pytest.raises(SchemaMismatchError, match="column v holds a value that is not a variant"):
        table.append(data, engine=engine)
    assert table.snapshot().version == version
