"""Random values survive encoding, shredding and extraction; random bytes end in a value or in our error."""

from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.encode import encode_variant, parse_json
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.values import TypedValue
from delta_orch.protocol.variant.variant import Variant
from delta_orch.variant import variant_to_json, variant_to_python, variants_to_arrow
from tests.property.variant_samples import (
    COLUMN_TREES,
    MISSING,
    SCALARS,
    SHAPES,
    TREES,
    Group,
    comparable,
    shredded_array,
    tree_of,
    variant_of,
)

COLUMNS = st.lists(st.none() | COLUMN_TREES, max_size=8)


@given(TREES)
@settings(max_examples=50, deadline=None)
def test_values_survive_encoding_with_their_types(tree: Any) -> None:
    assert tree_of(variant_of(tree)) == comparable(tree)
    assert tree_of(encode_variant(tree)) == comparable(tree)


@given(TREES)
@settings(max_examples=25, deadline=None)
def test_decoded_values_encode_to_the_same_values(tree: Any) -> None:
    value = variant_of(tree).to_python()
    again = encode_variant(value)
    assert again.to_json() == variant_of(tree).to_json()


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=15,
    )
)
@settings(max_examples=37, deadline=None)
def test_json_survives(document: Any) -> None:
    text = json.dumps(document)
    assert json.loads(parse_json(text).to_json()) == document


@given(COLUMNS, SHAPES, st.booleans())
@settings(max_examples=75, deadline=None)
def test_shredded_columns_are_reconstructed(trees: Any, group: Group, common_names: bool) -> None:
    column = shredded_array(trees, group, common_names)
    variants = reconstruct_variant(column)
    variants.validate(full=True)
    found = [row and tree_of(Variant(row["metadata"], row["value"])) for row in variants.to_pylist()]
    assert found == [None if tree is None else comparable(tree) for tree in trees]
    # The same within a larger array, and chunked.
    padded = pa.concat_arrays([column, column]).slice(len(trees), len(trees))
    assert reconstruct_variant(padded).equals(variants)
    assert reconstruct_variant(pa.chunked_array([column, padded])).combine_chunks().slice(0, len(trees)) == variants


def at(tree: Any, path: Any) -> Any:
    for step in path:
        if isinstance(step, str):
            tree = tree.get(step, MISSING) if isinstance(tree, dict) else MISSING
        else:
            tree = tree[step] if isinstance(tree, list) and step < len(tree) else MISSING
    return tree


PATHS = st.lists(st.sampled_from(["a", "b", "é", "zz", "unused", 0, 1]), max_size=3)


@given(COLUMNS, SHAPES, PATHS)
@settings(max_examples=75, deadline=None)
def test_extracted_variants_are_what_stands_at_the_path(trees: Any, group: Group, path: Any) -> None:
    expected = [MISSING if tree is None else at(tree, path) for tree in trees]
    wanted = [None if tree is MISSING else comparable(tree) for tree in expected]
    unshredded = variants_to_arrow(None if tree is None else variant_of(tree) for tree in trees)
    for column in (shredded_array(trees, group, True), unshredded):
        found = variant_get(column, path)
        found.validate(full=True)
        assert [row and tree_of(Variant(row["metadata"], row["value"])) for row in found.to_pylist()] == wanted


TARGETS = {
    pa.bool_(): ("boolean",),
    pa.int64(): ("int8", "int16", "int32", "int64"),
    pa.float64(): ("int8", "int16", "int32", "int64", "float", "double", "decimal4", "decimal8", "decimal16"),
    pa.string(): ("string",),
    pa.binary(): ("binary",),
    pa.date32(): ("date",),
    pa.time64("us"): ("time",),
    pa.timestamp("us", "UTC"): ("timestamp",),
    pa.timestamp("us"): ("timestamp_ntz",),
    pa.binary(16): ("uuid",),
}


@given(st.lists(st.none() | SCALARS | COLUMN_TREES, max_size=8), SHAPES, st.sampled_from(list(TARGETS)), PATHS)
@settings(max_examples=75, deadline=None)
def test_extracted_primitives_are_what_stands_at_the_path(trees: Any, group: Group, target: Any, path: Any) -> None:
    found = [MISSING if tree is None else at(tree, path) for tree in trees]
    exact = pa.types.is_int64(target) or pa.types.is_string(target) or pa.types.is_timestamp(target)
    for column in (
        shredded_array(trees, group, True),
        variants_to_arrow(None if tree is None else variant_of(tree) for tree in trees),
    ):
        values = variant_get(column, path, target, on_mismatch="null")
        values.validate(full=True)
        assert values.type == target
        for tree, value in zip(found, plain(values), strict=True):
            if isinstance(tree, TypedValue) and tree.type_name in TARGETS[target]:
                wanted = tree.value.bytes if tree.type_name == "uuid" else tree.value
                if isinstance(wanted, (Decimal, int)) and pa.types.is_floating(target):
                    wanted = float(wanted)
                assert value == wanted or (isinstance(wanted, float) and math.isnan(wanted) and math.isnan(value))
            elif not exact and not pa.types.is_floating(target):
                assert value is None


def plain(values: Any) -> Any:
    """Python values; timestamps as datetimes whether or not pandas is there."""
    if pa.types.is_timestamp(values.type):
        return [
            None if v is None else v.to_pydatetime() if hasattr(v, "to_pydatetime") else v for v in values.to_pylist()
        ]
    return values.to_pylist()


@given(COLUMNS, SHAPES)
@settings(max_examples=18, deadline=None)
def test_json_and_python_columns(trees: Any, group: Group) -> None:
    column = shredded_array(trees, group, True)
    marker = object()
    values = variant_to_python(column, sql_null=marker)
    texts = variant_to_json(column)
    texts.validate(full=True)
    for tree, value, text in zip(trees, values, texts.to_pylist(), strict=True):
        if tree is None:
            assert value is marker and text is None
        else:
            assert encode_variant(value).to_json() == text == variant_of(tree).to_json()
            assert orjson.loads(text) is not marker


# Damage

COLUMN_TARGETS = [None, pa.int64(), pa.string(), pa.float64(), pa.decimal128(20, 3), pa.timestamp("us")]


def survive(metadata: bytes, value: bytes) -> None:
    """Everything that can be done with a pair ends in a value or in our error."""
    single = Variant(metadata, value)
    column = variants_to_arrow([single, single])
    for action in (
        single.to_python,
        single.to_json,
        lambda: single.type_name,
        lambda: single.get("$.a[0].b"),
        lambda: single.fields(),
        lambda: single.elements(),
        lambda: variant_to_json(column),
        lambda: variant_get(column, "$.a"),
        lambda: variant_get(column, "$[1]"),
        *(lambda target=target: variant_get(column, "$", target, on_mismatch="null") for target in COLUMN_TARGETS),
    ):
        try:
            action()
        except InvalidVariantError:
            continue


@given(st.binary(max_size=60), st.binary(max_size=60))
@settings(max_examples=37, deadline=None)
def test_random_bytes(metadata: bytes, value: bytes) -> None:
    survive(metadata, value)


VALID_METADATA = st.sampled_from([b"\x01\x00\x00", variant_of({"a": [], "b": [], "c": []}).metadata])


@given(VALID_METADATA, st.binary(max_size=80))
@settings(max_examples=62, deadline=None)
def test_random_values(metadata: bytes, value: bytes) -> None:
    survive(metadata, value)


@given(TREES, st.data())
@settings(max_examples=62, deadline=None)
def test_damaged_variants(tree: Any, data: Any) -> None:
    variant = variant_of(tree)
    parts = [bytearray(variant.metadata), bytearray(variant.value)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = parts[data.draw(st.integers(0, 1))]
        position = data.draw(st.integers(0, max(len(part) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "cut", "huge", "insert"])):
            case "flip" if part:
                part[position] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del part[position:]
            case "huge":
                part[position : position + 4] = b"\xff\xff\xff\xff"
            case "insert":
                part[position:position] = data.draw(st.binary(min_size=1, max_size=4))
    survive(bytes(parts[0]), bytes(parts[1]))


@given(TREES, st.data())
@settings(max_examples=50, deadline=None)
def test_columns_and_single_values_agree_on_damage(tree: Any, data: Any) -> None:
    """The two decoders, one value at a time and column-wise, take the same bytes for valid, and for the same value."""
    variant = variant_of(tree)
    value = bytearray(variant.value)
    for _ in range(data.draw(st.integers(0, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    damaged = Variant(variant.metadata, bytes(value))
    column = variants_to_arrow([damaged, variant])
    try:
        text = damaged.to_json()
    except InvalidVariantError:
        with pytest.raises(InvalidVariantError):
            variant_to_json(column)
        with pytest.raises(InvalidVariantError):
            variant_to_python(column)
    else:
        assert variant_to_json(column).to_pylist() == [text, variant.to_json()]


@given(COLUMNS, SHAPES, st.data())
@settings(max_examples=37, deadline=None)
def test_damaged_shredded_columns(trees: Any, group: Group, data: Any) -> None:
    """Bytes of any buffer of values or metadata are changed; the typed columns stay what a Parquet reader checked."""
    column = shredded_array(trees, group, True)
    rows = column.to_pylist()
    damaged = [damage(row, data) for row in rows]
    column = pa.array(damaged, column.type)
    for action in (
        lambda: reconstruct_variant(column),
        lambda: variant_to_json(column),
        lambda: variant_get(column, "$.a"),
        lambda: variant_get(column, "$.a.b", pa.string(), on_mismatch="null"),
        lambda: variant_get(column, "$[0]", pa.int64(), on_mismatch="null"),
    ):
        try:
            action()
        except InvalidVariantError:
            continue


def damage(row: Any, data: Any, name: str = "") -> Any:
    if isinstance(row, dict):
        return {key: damage(value, data, key) for key, value in row.items()}
    if isinstance(row, list):
        return [damage(value, data) for value in row]
    if name == "value" and data.draw(st.integers(0, 3)) == 0:
        return data.draw(st.none() | st.binary(max_size=12) | TREES.map(lambda tree: variant_of(tree).value))
    if name == "metadata" and row and data.draw(st.integers(0, 5)) == 0:
        return data.draw(st.binary(max_size=12))
    return row


def test_datetime_is_what_arrow_gives() -> None:
    assert plain(pa.array([0], pa.timestamp("us"))) == [datetime(1970, 1, 1)]
