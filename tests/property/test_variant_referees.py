"""Other implementations agree: pyspark's VariantVal on single values, DuckDB and Spark on shredded Parquet files."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.protocol.variant.encode import encode_variant, parse_json
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.variant import Variant
from delta_orch.variant import variant_to_json, variant_to_python
from tests.property.variant_samples import NAMES

spark_types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")
VariantVal = spark_types.VariantVal

# What VariantVal knows: no time of day, no UUID, no nanoseconds; it rounds decimals to 28 digits.
KNOWN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(codec="utf-8"), max_size=70),
        st.binary(max_size=70),
        st.dates(),
        st.datetimes(),
        st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**15), max_value=10**15),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(KNOWN)
@settings(max_examples=37, deadline=None)
def test_pyspark_reads_what_we_encode(value: Any) -> None:
    variant = encode_variant(value)
    theirs = VariantVal(variant.value, variant.metadata)
    assert theirs.toPython() == value == variant.to_python()


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(DOCUMENTS)
@settings(max_examples=37, deadline=None)
def test_we_read_what_pyspark_parses(document: Any) -> None:
    text = json.dumps(document)
    theirs = VariantVal.parseJson(text)
    ours = parse_json(text)
    read = Variant(theirs.metadata, theirs.value)
    assert read.to_json() == ours.to_json()
    assert types_of(read) == types_of(ours)


def types_of(variant: Variant) -> Any:
    if (fields := variant.fields()) is not None:
        return {name: types_of(value) for name, value in fields.items()}
    if (elements := variant.elements()) is not None:
        return [types_of(value) for value in elements]
    return variant.type_name


DUCKDB_ROWS = """
    select case
        when i % 11 = 0 then null
        when i % 7 = 0 then i::variant
        when i % 5 = 0 then [i, i + 1]::variant
        when i % 3 = 0 then {'id': 'n/a', 'other': [{'x': i}], 'ts': null}::variant
        else {
            'id': i, 'name': 'n' || i, 'ratio': (i / 3)::double, 'day': date '2024-01-01' + i::integer,
            'ts': timestamp '2024-01-01 00:00:00.5' + interval (i) hour, 'price': (i * 1.25)::decimal(12, 3),
            'nested': {'small': (i % 100)::tinyint, 'list': ['a', 'b' || i], 'deep': {'flag': i % 2 = 0}},
            'key': md5(i::varchar)::uuid, 'raw': ('x' || i)::blob
        }::variant
    end as v
    from range(1000) as r(i)
"""


@pytest.mark.parametrize(
    "options",
    [
        "",
        ", shredding {'v': 'STRUCT(id BIGINT, name VARCHAR, nested STRUCT(list VARCHAR[]))'}",
        ", shredding {'v': 'BIGINT'}",
    ],
    ids=["inferred", "partial", "primitive"],
)
def test_we_read_what_duckdb_shreds(tmp_path: Path, options: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    path = tmp_path / "v.parquet"
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"create table t as {DUCKDB_ROWS}")
        connection.execute(f"copy t to '{path}' (format parquet{options})")
        theirs = [row[0] for row in connection.execute("select v::json from t").fetchall()]
        ids = [row[0] for row in connection.execute("select try_cast(v.id as bigint) from t").fetchall()]
    column = pq.read_table(path)["v"]
    assert "typed_value" in str(column.type)
    found = variant_to_json(column).to_pylist()
    for ours, other in zip(found, theirs, strict=True):
        assert (ours is None) == (other is None)
        if ours is not None:
            assert normal(json.loads(ours)) == normal(json.loads(other))
    shredded = variant_get(column, "$.id", pa.int64(), on_mismatch="null")
    assert shredded.to_pylist() == ids
    assert variant_get(reconstruct_variant(column), "$.id", pa.int64(), on_mismatch="null").equals(shredded)


def normal(value: Any) -> Any:
    """JSON with timestamps in one spelling; DuckDB writes no T. It writes blobs as text: left out."""
    if isinstance(value, dict):
        return {name: normal(inner) for name, inner in value.items() if name != "raw"}
    if isinstance(value, list):
        return [normal(inner) for inner in value]
    if isinstance(value, str) and value.startswith("2024-") and len(value) > 10:
        return datetime.fromisoformat(value)
    return value


SPARK_ROWS = """
    select id, case
        when id % 11 = 0 then null
        when id % 7 = 0 then cast(id as variant)
        when id % 5 = 0 then parse_json(concat('[', id, ', null, {"x": 1.5}]'))
        when id % 3 = 0 then parse_json('{"id": "n/a", "other": [[1]], "nested": null}')
        else to_variant_object(named_struct(
            'id', id, 'name', concat('n', id), 'ratio', id / 3.0D, 'day', date_add(date '2024-01-01', cast(id as int)),
            'at', timestamp_micros(id * 1000001), 'local', timestamp_ntz '2024-01-01 00:00:00',
            'price', cast(id * 1.25 as decimal(12, 3)), 'wide', cast(id as decimal(38, 10)),
            'nested', named_struct('small', cast(id % 100 as tinyint), 'list', array('a', concat('b', id))),
            'raw', cast(concat('x', id) as binary), 'flag', id % 2 = 0, 'single', cast(id as float)
        ))
    end as v from range(200)
"""
SPARK_SHREDDING = (
    "id bigint, name string, ratio double, day date, at timestamp, local timestamp_ntz, price decimal(12,3), "
    "nested struct<small tinyint, list array<string>>, flag boolean, single float"
)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("schema", [SPARK_SHREDDING, "id string, unused int", "nested struct<list array<int>>"])
def test_we_read_what_spark_shreds(spark: Any, tmp_path: Path, schema: Any) -> None:
    path = str(tmp_path / "v")
    settings_on = {
        "spark.sql.variant.writeShredding.enabled": "true",
        "spark.sql.variant.forceShreddingSchemaForTest": schema,
    }
    for key, value in settings_on.items():
        spark.conf.set(key, value)
    try:
        spark.sql(SPARK_ROWS).coalesce(1).write.parquet(path)
    finally:
        for key in settings_on:
            spark.conf.unset(key)
    table = pq.read_table(path)
    assert "typed_value" in str(table.schema.field("v").type)
    theirs = {row.id: row.v for row in spark.sql(SPARK_ROWS).collect()}
    missing = object()
    for row, value in zip(table["id"].to_pylist(), variant_to_python(table["v"], sql_null=missing), strict=True):
        other = theirs[row]
        assert (value is missing) == (other is None)
        if other is not None:
            assert exact(value) == exact(other.toPython())
    ids = variant_get(table["v"], "$.id", pa.int64(), on_mismatch="null").to_pylist()
    wanted = spark.sql(f"select try_variant_get(v, '$.id', 'bigint') as i from ({SPARK_ROWS}) order by id").collect()
    assert dict(zip(table["id"].to_pylist(), ids, strict=True)) == {i: row.i for i, row in enumerate(wanted)}


def exact(value: Any) -> Any:
    """Equal only where the types are equal too."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return ("timestamp", value.timestamp())
    return (type(value).__name__, value)
