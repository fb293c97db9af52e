"""Variants given as Arrow data: a struct of `metadata` and `value`, with an extension type that says so or without."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, SchemaMismatchError
from delta_orch.protocol.types import VARIANT, ArrayType, StructType
from delta_orch.variant import json_to_variant, variant_to_json

PLAIN = json_to_variant(pa.array(['{"a": 1}', "null", None]))


class VariantExtension(pa.ExtensionType):  # type: ignore[misc]
    """The canonical extension, which pyarrow has no class for."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "arrow.parquet.variant")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> VariantExtension:
        return cls(storage)


def extension(values: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(VariantExtension(values.type), values)


def rows(values: pa.Array, field: pa.Field | None = None) -> pa.Table:
    ids = pa.array(range(len(values)), pa.int64())
    v = field or pa.field("v", values.type)
    return pa.table([ids, values], pa.schema([pa.field("id", pa.int64()), v]))


def marked(values: pa.Array) -> pa.Table:
    """As a process sees it that has not registered the extension."""
    return rows(values, pa.field("v", values.type, metadata={"ARROW:extension:name": "arrow.parquet.variant"}))


def texts(table: DeltaTable) -> list[str | None]:
    values = variant_to_json(table.snapshot().scan().to_arrow().sort_by("id")["v"]).to_pylist()
    return [None if text is None else json.dumps(json.loads(text)) for text in values]


def kind(table: DeltaTable, name: str = "v") -> Any:
    found = table.snapshot().schema.find(name)
    assert found is not None
    return found.data_type


@pytest.fixture
def with_variant(table: DeltaTable) -> DeltaTable:
    table.create(pa.schema([("id", pa.int64())]))
    table.alter().add_column("v", "variant").commit()
    return table


@pytest.mark.parametrize("mode", [None, "merge"])
@pytest.mark.parametrize("data", [rows(PLAIN), rows(extension(PLAIN)), marked(PLAIN)], ids=["plain", "typed", "marked"])
def test_a_variant_column_takes_them(with_variant: DeltaTable, data: pa.Table, mode: Any) -> None:
    before = with_variant.snapshot().metadata
    with_variant.append(data, schema_mode=mode)
    assert texts(with_variant) == ['{"a": 1}', "null", None]
    assert with_variant.snapshot().metadata == before


def test_one_inside_a_list_and_a_struct_merges_too(table: DeltaTable) -> None:
    table.create(pa.schema([("id", pa.int64())]))
    table.alter().add_column("s", "struct<v: variant, l: array<variant>>").commit()
    inner = PLAIN.slice(0, 1)
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    structs = pa.StructArray.from_arrays([inner, lists], ["v", "l"])
    data = pa.table({"id": pa.array([1], pa.int64()), "s": structs, "more": ["x"]})
    table.append(data, schema_mode="merge")
    assert table.snapshot().schema.names == ("id", "s", "more")
    nested = kind(table, "s")
    assert isinstance(nested, StructType)
    assert [f.data_type for f in nested] == [VARIANT, ArrayType(VARIANT)]
    (read,) = table.snapshot().scan().to_arrow()["s"].to_pylist()
    assert read == {"v": inner[0].as_py(), "l": [inner[0].as_py()]}


def test_overwriting_the_schema_keeps_a_variant_one(with_variant: DeltaTable) -> None:
    data = rows(PLAIN).append_column("more", pa.array(["x"] * 3))
    with_variant.overwrite(data, schema_mode="overwrite")
    assert kind(with_variant) == VARIANT
    assert texts(with_variant) == ['{"a": 1}', "null", None]


@pytest.mark.parametrize("data", [rows(extension(PLAIN)), marked(PLAIN)], ids=["typed", "marked"])
def test_a_new_column_is_a_variant_where_its_type_says_so(table: DeltaTable, data: pa.Table) -> None:
    table.append(data.select(["id"]).slice(0, 0))
    table.append(data, schema_mode="merge")
    assert kind(table) == VARIANT
    assert "variantType" in (table.snapshot().protocol.reader_features or ())
    assert texts(table) == ['{"a": 1}', "null", None]


def test_a_table_is_created_with_one(table: DeltaTable) -> None:
    table.append(rows(extension(PLAIN)))
    assert kind(table) == VARIANT
    assert texts(table) == ['{"a": 1}', "null", None]


def test_a_table_that_is_created_from_a_scan_has_one(with_variant: DeltaTable, tmp_path: Path) -> None:
    with_variant.append(rows(PLAIN))
    for name in ("append", "overwrite"):
        copy = DeltaTable(tmp_path / name)
        getattr(copy, name)(with_variant.snapshot().scan(where="id >= 0"))
        assert kind(copy) == VARIANT
        assert texts(copy) == ['{"a": 1}', "null", None]


def test_without_a_word_it_is_a_struct(table: DeltaTable) -> None:
    table.append(rows(PLAIN))
    assert isinstance(kind(table), StructType)


def test_a_shredded_one_is_refused(table: DeltaTable) -> None:
    typed = pa.array([1, 2, None], pa.int64())
    shredded = pa.StructArray.from_arrays(
        [PLAIN.field("metadata"), PLAIN.field("value"), typed], ["metadata", "value", "typed_value"]
    )
    with pytest.raises(SchemaMismatchError, match="variant column v"):
        table.append(rows(extension(shredded)))
    assert not table.exists()


@pytest.mark.spark
@pytest.mark.parametrize("data", [rows(extension(PLAIN)), marked(PLAIN)], ids=["typed", "marked"])
def test_spark_takes_them_as_well(table: DeltaTable, spark: Any, data: pa.Table) -> None:
    table.append(data, engine="spark")
    assert kind(table) == VARIANT
    assert texts(table) == ['{"a": 1}', "null", None]


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_merge_takes_them(with_variant: DeltaTable, engine: Any, request: pytest.FixtureRequest) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    data = rows(PLAIN).append_column("more", pa.array(["x"] * 3))
    merge = with_variant.merge(data, "source.id = target.id", schema_mode="merge", engine=engine)
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert texts(with_variant) == ['{"a": 1}', "null", None]
    assert with_variant.snapshot().schema.names == ("id", "v", "more")


def test_variants_that_are_null_are_written(tmp_path: Path) -> None:
    """By themselves and in structs: where a statement names other columns, and where it says NULL."""
    table = DeltaTable(tmp_path / "t")
    sql = partial(delta_orch.sql, tables={"t": table})
    sql("CREATE TABLE t (id INT, v VARIANT, s STRUCT<v: VARIANT, b: BIGINT>, a ARRAY<VARIANT>) USING delta")
    sql("INSERT INTO t VALUES (1, NULL, NULL, NULL)")
    table.append(pa.table({"id": pa.array([2], pa.int32()), "v": json_to_variant(pa.array(['{"x": [1]}']))}))
    sql("INSERT INTO t (id) VALUES (3)")
    sql("INSERT INTO t (id, v) SELECT 4, NULL")
    assert texts(table) == [None, '{"x": [1]}', None, None]
    table.append(pa.table({"id": pa.array([5], pa.int32()), "s": [{"b": 5}]}), schema_mode="merge")
    source = "(SELECT id + 4 AS id FROM t WHERE id IN (1, 2)) AS s ON t.id = s.id"
    sql(f"MERGE INTO t USING {source} WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)")
    sql("UPDATE t SET s = NULL, a = NULL")
    assert texts(table) == [None, '{"x": [1]}', None, None, None]
    for value in ("'1'", "5"):
        with pytest.raises(DeltaError):
            sql(f"INSERT INTO t (v) VALUES ({value})")
