"""What data files hold beside plain columns: variants, shredded or not, nothing for void columns, partition columns
where they are asked for; codecs and page versions. On both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidPropertyError, SchemaMismatchError
from delta_orch.protocol.types import (
    LONG,
    STRING,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    MapType,
    StructField,
    StructType,
)
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME
from delta_orch.variant import json_to_variant, variant_to_json
from tests.certain import directory
from tests.handmade import HandmadeTable

JSON = ['{"a": 1, "b": "x"}', '{"a": 2, "c": [1, {"d": null}]}', None, "null", '"text"', "{}", '{"a": "no number"}']
MANY = JSON + ['{"a": 5, "b": "y"}'] * 20


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def create(*fields: StructField, **given: Any) -> DeltaTable:
        handmade = HandmadeTable(tmp_path / "contents")
        handmade.create(StructType(fields), **given)
        return handmade.open()

    return create


def files_of(table: DeltaTable) -> list[Path]:
    paths = table.snapshot().files(["path"])["path"].to_pylist()
    return [directory(table) / unquote(path) for path in paths]


def variant_rows(rows: Any, texts: list[str | None]) -> Any:
    plain = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
    if rows.spark is None:
        return pa.table({"id": plain["id"], "v": json_to_variant(plain["text"])})
    return rows.spark.createDataFrame(plain).selectExpr("id", "parse_json(text) AS v")


def texts_of(table: DeltaTable) -> dict[int, str | None]:
    read = table.snapshot().scan().to_arrow()
    found = zip(read["id"].to_pylist(), variant_to_json(read["v"]).to_pylist(), strict=True)
    return {number: None if text is None else json.dumps(json.loads(text), sort_keys=True) for number, text in found}


def wanted(texts: list[str | None]) -> dict[int, str | None]:
    return {i: None if t is None else json.dumps(json.loads(t), sort_keys=True) for i, t in enumerate(texts)}


VARIANTS = (StructField("id", LONG), StructField("v", VARIANT))


def group(file: Path) -> pa.StructType:
    return pq.read_schema(file).field("v").type


def test_variants_are_written_plain(rows: Any, make: Any) -> None:
    table = make(*VARIANTS, reader_features=["variantType"])
    table.append(variant_rows(rows, MANY))
    assert texts_of(table) == wanted(MANY)
    for file in files_of(table):
        assert sorted(f.name for f in group(file)) == ["metadata", "value"]
    (stats,) = [json.loads(s) for s in table.snapshot().files(["stats"])["stats"].to_pylist()][:1]
    assert "v" not in stats["minValues"]
    nulls = [json.loads(s)["nullCount"]["v"] for s in table.snapshot().files(["stats"])["stats"].to_pylist()]
    assert sum(nulls) == 1


@pytest.mark.long
def test_variants_are_shredded_where_the_table_says_so(rows: Any, make: Any) -> None:
    table = make(
        *VARIANTS,
        reader_features=["variantType", "variantShredding"],
        configuration={"delta.enableVariantShredding": "true"},
    )
    table.append(variant_rows(rows, MANY))
    assert texts_of(table) == wanted(MANY)
    shredded = [f for f in files_of(table) if "typed_value" in [c.name for c in group(f)]]
    assert shredded
    typed = group(shredded[0]).field("typed_value").type
    assert {f.name for f in typed} >= {"a"}
    nulls = [json.loads(s)["nullCount"]["v"] for s in table.snapshot().files(["stats"])["stats"].to_pylist()]
    assert sum(nulls) == 1
    table.optimize(engine=rows.engine)
    table.overwrite(variant_rows(rows, ["1", "2"]), replace_where="id < 100")
    assert texts_of(table) == {0: "1", 1: "2"}


@pytest.mark.spark
@pytest.mark.usefixtures("compiled")
def test_what_is_shredded_here_spark_puts_together_again(spark: Any, make: Any) -> None:
    table = make(
        *VARIANTS,
        reader_features=["variantType", "variantShredding"],
        configuration={"delta.enableVariantShredding": "true"},
    )
    kinds = ['{"d": 1.5, "n": 3, "t": true, "s": "x", "deep": {"q": [1]}}', '{"n": 300000000000, "s": null}', "7", None]
    table.append(pa.table({"id": range(40), "v": json_to_variant(pa.array(kinds * 10))}))
    (file,) = files_of(table)
    assert {f.name for f in group(file).field("typed_value").type} >= {"n", "t", "s"}
    read = spark.read.schema("id bigint, v variant").parquet(str(file)).selectExpr("id", "to_json(v) AS v").collect()
    found = {r["id"]: None if r["v"] is None else json.dumps(json.loads(r["v"]), sort_keys=True) for r in read}
    assert found == wanted(kinds * 10)


def test_a_property_without_the_feature_shreds_nothing(rows: Any, make: Any) -> None:
    table = make(*VARIANTS, reader_features=["variantType"], configuration={"delta.enableVariantShredding": "true"})
    table.append(variant_rows(rows, MANY))
    assert all(sorted(f.name for f in group(file)) == ["metadata", "value"] for file in files_of(table))


def test_variants_inside_other_columns_and_under_column_mapping(rows: Any, make: Any) -> None:
    def mapped(name: str, number: int, data_type: Any) -> StructField:
        return StructField(name, data_type, True, {FIELD_ID: number, PHYSICAL_NAME: f"col-{number}"})

    table = make(
        mapped("id", 1, LONG),
        mapped("v", 2, VARIANT),
        mapped("st", 3, StructType((mapped("inner", 4, VARIANT), mapped("list", 5, ArrayType(VARIANT))))),
        reader_features=["variantType", "variantShredding", "columnMapping"],
        configuration={"delta.columnMapping.mode": "name", "delta.enableVariantShredding": "true"},
    )
    texts = pa.table({"id": [1, 2], "a": ['{"k": 1}', None]})
    if rows.spark is None:
        variants = json_to_variant(texts["a"].combine_chunks())
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), variants)
        data: Any = pa.table(
            {"id": texts["id"], "v": variants, "st": pa.StructArray.from_arrays([variants, lists], ["inner", "list"])}
        )
    else:
        made = "parse_json(a)"
        data = rows.spark.createDataFrame(texts).selectExpr(
            "id", f"{made} AS v", f"named_struct('inner', {made}, 'list', array({made})) AS st"
        )
    table.append(data)
    read = table.snapshot().scan().to_arrow().sort_by("id")
    assert variant_to_json(read["v"]).to_pylist() == ['{"k":1}', None]
    struct = read["st"].combine_chunks()
    assert variant_to_json(struct.field("inner")).to_pylist() == ['{"k":1}', None]
    assert variant_to_json(struct.field("list").flatten()).to_pylist() == ['{"k":1}', None]


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": b"\x11\x00\x00", "value": b""},
        {"metadata": b"", "value": b"\x00"},
        {"metadata": b"\x15\x00\x00", "value": b"\x00"},
        {"metadata": b"\x11\x00\x00", "value": b"\x00\x00"},
        {"metadata": None, "value": b"\x00"},
    ],
    ids=["no value", "no metadata", "version", "trailing bytes", "null metadata"],
)
def test_what_is_no_variant_is_refused(make: Any, bad: dict[str, Any]) -> None:
    table = make(*VARIANTS, reader_features=["variantType"])
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    with pytest.raises(SchemaMismatchError, match="not a variant"):
        table.append(pa.table({"id": [1], "v": pa.array([bad], kind)}))
    assert table.version() == 0


def test_void_columns_are_in_no_file(rows: Any, make: Any) -> None:
    inner = StructType((StructField("x", LONG), StructField("nothing", VOID)))
    table = make(StructField("id", LONG), StructField("empty", VOID), StructField("st", inner))
    kind = pa.struct([("x", pa.int64())])
    source = pa.table({"id": [1], "empty": pa.nulls(1), "st": pa.array([{"x": 2}], kind)})
    table.append(rows.data(source) if rows.spark is None else rows.data(source.drop(["empty"])))
    table.append(rows.data(source.drop(["empty"])))
    for file in files_of(table):
        schema = pq.read_schema(file)
        assert schema.names == ["id", "st"]
        assert [f.name for f in schema.field("st").type] == ["x"]
    read = table.snapshot().scan(["id", "empty"]).to_arrow()
    assert read.to_pylist() == [{"id": 1, "empty": None}] * 2


@pytest.mark.parametrize("nested", [ArrayType(VOID), MapType(STRING, VOID)], ids=["array", "map"])
def test_a_void_inside_an_array_or_map_is_refused(rows: Any, make: Any, nested: Any) -> None:
    table = make(StructField("id", LONG), StructField("n", nested))
    kind = pa.list_(pa.null()) if isinstance(nested, ArrayType) else pa.map_(pa.string(), pa.null())
    data = pa.table({"id": [1], "n": pa.array([None], kind)})
    with pytest.raises(SchemaMismatchError, match="void"):
        table.append(data, engine=rows.engine)
    assert table.version() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        {"features": ["materializePartitionColumns"]},
        {"configuration": {"delta.writePartitionColumnsToParquet": "true"}},
    ],
    ids=["feature", "property"],
)
def test_partition_columns_are_kept_in_files_on_demand(rows: Any, make: Any, given: Any, days: Any) -> None:
    fields = (StructField("day", STRING), StructField("id", LONG), StructField("value", LONG))
    table = make(*fields, partition_by=["day"], **given)
    data = pa.table({"day": ["a", "b", None], "id": [1, 2, 3], "value": [1, 2, 3]})
    table.append(rows.data(data))
    for file in files_of(table):
        assert pq.read_schema(file).names == ["id", "value", "day"]
        assert pq.ParquetFile(file).read()["day"].to_pylist() in (["a"], ["b"], [None])
    assert rows.pylist(table) == data.to_pylist()
    table.append(rows.data(data))
    table.optimize(engine=rows.engine)
    assert sorted(r["id"] for r in rows.pylist(table)) == [1, 1, 2, 2, 3, 3]
    assert all(pq.read_schema(f).names == ["id", "value", "day"] for f in files_of(table))
    stats = [json.loads(s) for s in table.snapshot().files(["stats"])["stats"].to_pylist()]
    assert all("day" not in s["nullCount"] for s in stats)


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "lz4_raw", "zstd"])
def test_codec_and_page_version(rows: Any, table: DeltaTable, days: Any, codec: str) -> None:
    properties = {"delta.parquet.compression.codec": codec, "delta.parquet.format.version": "2.12.0"}
    table.append(rows.data(days(("a", 1), ("b", 2))), properties=properties)
    assert [r["id"] for r in rows.pylist(table)] == [1, 2]
    for file in files_of(table):
        column = pq.read_metadata(file).row_group(0).column(0)
        # Arrow calls both LZ4 codecs by one name.
        assert column.compression.lower() == {"lz4_raw": "lz4"}.get(codec, codec)
    with pytest.raises(InvalidPropertyError):
        DeltaTable(directory(table) / "other").append(
            rows.data(days(("a", 1))), properties={"delta.parquet.format.version": "3"}
        )


def test_random_prefixes(rows: Any, make: Any) -> None:
    fields = (StructField("day", STRING), StructField("id", LONG))
    configuration = {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "5"}
    table = make(*fields, partition_by=["day"], configuration=configuration)
    table.append(rows.data(pa.table({"day": ["a", "b"], "id": [1, 2]})))
    for path in table.snapshot().files(["path"])["path"].to_pylist():
        prefix = path.split("/")[0]
        assert len(prefix) == 5 and prefix.isalnum()
    assert rows.pylist(table) == [{"day": "a", "id": 1}, {"day": "b", "id": 2}]


def test_timestamps_without_a_zone(rows: Any, make: Any) -> None:
    table = make(StructField("t", TIMESTAMP_NTZ), reader_features=["timestampNtz"])
    data = pa.table({"t": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us"))})
    table.append(data, engine=rows.engine)
    assert rows.read(table)["t"].to_pylist() == data["t"].to_pylist()
    (file, *_) = files_of(table)
    assert pq.read_schema(file).field("t").type == pa.timestamp("us")


@pytest.mark.parametrize("given", ["fields of null", "null", "absent"])
def test_variants_that_are_all_null(make: Any, given: str) -> None:
    table = make(StructField("id", LONG), StructField("v", VARIANT), reader_features=["variantType"])
    fields = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    columns = {"fields of null": {"v": pa.nulls(2, fields)}, "null": {"v": pa.nulls(2)}, "absent": {}}[given]
    table.append(pa.table({"id": pa.array([1, 2], pa.int64()), **columns}), schema_mode=None if columns else "merge")
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "v": None}, {"id": 2, "v": None}]
