from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import (
    ColumnNotFoundError,
    ProtocolViolationError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from delta_orch.protocol import types as t
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow, string_array
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.schema_check import ensure_schema_fits, ensure_valid_table_schema
from delta_orch.protocol.types import StructType

ATOMS = st.sampled_from(sorted(set(t.PRIMITIVE_TYPES.values()) - {t.VARIANT, t.VOID}, key=str)) | st.builds(
    lambda p, s: t.DecimalType(p, min(p, s)), st.integers(1, 38), st.integers(0, 38)
)
NAMES = st.text("abcXYZ_ü", min_size=1, max_size=5)


def fields(types: Any) -> Any:
    return st.lists(
        st.builds(t.StructField, NAMES, types, st.booleans()), max_size=4, unique_by=lambda f: f.name.lower()
    )


TYPES = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(t.ArrayType, inner, st.booleans())
        | st.builds(t.MapType, inner, inner, st.booleans())
        | st.builds(lambda f: t.StructType(tuple(f)), fields(inner))
    ),
    max_leaves=8,
)
SCHEMAS = st.builds(lambda f: t.StructType(tuple(f)), fields(TYPES))


@given(SCHEMAS)
def test_a_schema_survives_json_and_arrow(schema: StructType) -> None:
    assert parse_schema(serialize_schema(schema)) == schema
    assert schema_from_arrow(schema_to_arrow(schema)) == schema


@given(SCHEMAS)
def test_every_schema_fits_itself(schema: StructType) -> None:
    ensure_schema_fits(schema, schema)


def struct(**columns: Any) -> StructType:
    return t.StructType(tuple(t.StructField(name, data_type) for name, data_type in columns.items()))


def test_all_mismatches_are_named_at_once() -> None:
    with pytest.raises(SchemaMismatchError) as e:
        ensure_schema_fits(struct(a=t.STRING, extra=t.LONG), struct(a=t.LONG, b=t.LONG))
    assert e.value.context["problems"] == [
        "column a is string, the table has long",
        "column extra is not in the table",
        "column b is missing",
    ]


def test_names_match_without_regard_to_case_and_lossless_types_fit() -> None:
    ensure_schema_fits(struct(B=t.INTEGER, A=t.FLOAT), struct(a=t.DOUBLE, b=t.LONG))
    ensure_schema_fits(struct(a=t.LONG), struct(a=t.DecimalType(22, 2)))
    for source, target in [
        (t.LONG, t.DOUBLE),
        (t.LONG, t.INTEGER),
        (t.LONG, t.DecimalType(20, 2)),
        (t.DOUBLE, t.FLOAT),
    ]:
        with pytest.raises(SchemaMismatchError):
            ensure_schema_fits(struct(a=source), struct(a=target))


@pytest.mark.parametrize(
    "text", ["[", '"long"', '{"type":"struct"}', '{"type":"struct","fields":[{"name":"a","type":"decimal(50,1)"}]}']
)
def test_what_is_no_schema_is_a_protocol_violation(text: str) -> None:
    with pytest.raises(ProtocolViolationError):
        parse_schema(text)


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="timestamp_nanos"):
        parse_schema('{"type":"struct","fields":[{"name":"g","type":"timestamp_nanos"}]}')


@pytest.mark.parametrize("arrow_type", [pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2)], ids=str)
def test_arrow_types_without_a_counterpart_are_refused_with_the_columns_path(
    arrow_type: pa.DataType,
) -> None:
    with pytest.raises(SchemaMismatchError, match=r"s\.x"):
        schema_from_arrow(pa.schema([("s", pa.struct([("x", arrow_type)]))]))


@pytest.mark.parametrize(
    ("schema", "partitions", "error"),
    [
        (struct(), [], SchemaMismatchError),
        (struct(a=t.LONG, A=t.LONG), [], SchemaMismatchError),
        (struct(a=t.LONG, _change_type=t.STRING), [], SchemaMismatchError),
        (struct(**{"a b": t.LONG}), [], SchemaMismatchError),
        (struct(a=t.LONG), ["a"], SchemaMismatchError),
        (struct(a=t.LONG, b=t.LONG), ["a", "A"], SchemaMismatchError),
        (struct(a=t.LONG), ["b"], ColumnNotFoundError),
        (struct(a=t.LONG, b=t.ArrayType(t.LONG)), ["b"], SchemaMismatchError),
    ],
)
def test_impossible_table_schemas_are_refused(schema: StructType, partitions: list[str], error: Any) -> None:
    with pytest.raises(error):
        ensure_valid_table_schema(schema, partitions)


@given(st.lists(st.none() | st.text()))
def test_string_array_is_what_arrow_would_build(values: Any) -> None:
    built = string_array(values)
    built.validate(full=True)
    assert built.equals(pa.array(values, pa.string()))


def test_a_field_is_found_by_its_name_before_by_another_case() -> None:
    upper, lower, other = t.StructField("A", t.LONG), t.StructField("a", t.STRING), t.StructField("Öl", t.LONG)
    struct = t.StructType((upper, lower, other))
    for known in (struct, pickle.loads(pickle.dumps(struct)), copy.deepcopy(struct), replace(struct)):
        assert known == struct and hash(known) == hash(struct) and repr(known) == repr(struct)
        assert (known.find("A"), known.find("a"), known.find("öL"), known.find("b")) == (upper, lower, other, None)
    assert t.StructType((lower, upper)).find("A") == upper
    assert t.StructType((upper,)).find("a") == upper
    assert replace(struct, fields=(other,)).find("A") is None
    assert t.StructType(()).find("a") is None
