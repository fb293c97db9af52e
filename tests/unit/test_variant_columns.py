"""Shredded columns: every rule of the table of the specification, every Arrow type a reader may give, hostile sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.errors import InvalidRequestError, InvalidVariantError, SchemaMismatchError
from delta_orch.protocol.arrow_building import VARIANT_STORAGE
from delta_orch.protocol.types import LONG, VARIANT, ArrayType, MapType, StructField, StructType, holds_variant
from delta_orch.protocol.variant.encode import (
    EMPTY_METADATA,
    build_array,
    build_object,
    encode_scalar,
    encode_variant,
    serialize_metadata,
)
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_columns, reconstruct_variant
from delta_orch.protocol.variant.values import TypedValue, VariantTimestamp
from delta_orch.protocol.variant.variant import Variant
from delta_orch.variant import (
    json_to_variant,
    variant_to_json,
    variant_to_python,
    variants_to_arrow,
)
from tests.bounded import tries

NAMES = serialize_metadata([b"a", b"b", b"c"])
INT32 = pa.struct([("value", pa.binary()), ("typed_value", pa.int32())])
TEXT = pa.struct([("value", pa.binary()), ("typed_value", pa.string())])
OBJECT = pa.struct([("value", pa.binary()), ("typed_value", pa.struct([("a", INT32), ("b", TEXT)]))])
LIST = pa.struct([("value", pa.binary()), ("typed_value", pa.list_(TEXT))])


def encoded(tree: Any) -> bytes:
    """A value under the dictionary a, b, c."""
    if isinstance(tree, dict):
        return build_object(["abc".index(name) for name in tree], [encoded(value) for value in tree.values()])
    if isinstance(tree, list):
        return build_array([encoded(value) for value in tree])
    return encode_scalar(tree)


def column(group: pa.StructType, *rows: Any) -> pa.StructArray:
    t = pa.struct([("metadata", pa.binary()), *group])
    return pa.array([row if row is None else {"metadata": NAMES, **row} for row in rows], t)


def values_of(array: pa.ChunkedArray | pa.StructArray) -> list[Any]:
    return variant_to_python(array, sql_null="SQL NULL")


# The table "value | typed_value | meaning", and the table of objects


def test_primitives() -> None:
    rows = [
        {"value": None, "typed_value": 34},
        {"value": b"\x00", "typed_value": None},
        {"value": encoded("n/a"), "typed_value": None},
        {"value": None, "typed_value": None},
        None,
    ]
    assert values_of(column(INT32, *rows)) == [34, None, "n/a", None, "SQL NULL"]
    assert [v and v["value"][:1] for v in reconstruct_variant(column(INT32, *rows)).to_pylist()] == [
        b"\x14",
        b"\x00",
        b"\x0d",
        b"\x00",
        None,
    ]


def test_a_value_beside_a_primitive() -> None:
    rows = [{"value": b"\x00", "typed_value": 34}]
    with pytest.raises(InvalidVariantError, match="beside"):
        reconstruct_variant(column(INT32, *rows))
    with pytest.raises(InvalidVariantError, match="beside"):
        variant_get(column(INT32, *rows), "$", pa.int32())


def test_objects() -> None:
    rows = [
        {"value": None, "typed_value": {"a": {"typed_value": 1}, "b": {"typed_value": "x"}}},
        {"value": encoded({"c": True}), "typed_value": {"a": {"typed_value": 1}, "b": {"typed_value": "x"}}},
        {"value": encoded({"c": {}}), "typed_value": {"a": {}, "b": {}}},
        {"value": encoded({}), "typed_value": {"a": {}, "b": {"typed_value": "x"}}},
        {"value": encoded("text"), "typed_value": None},
        {"value": None, "typed_value": {"a": {"value": b"\x00"}, "b": {"value": encoded({"a": 1})}}},
        {"value": None, "typed_value": {"a": {}, "b": {}}},
        # A group that is null is a field that is missing.
        {"value": None, "typed_value": {"a": None, "b": None}},
        {"value": b"\x00", "typed_value": None},
        {"value": None, "typed_value": None},
        None,
    ]
    expected = [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "x", "c": True},
        {"c": {}},
        {"b": "x"},
        "text",
        {"a": None, "b": {"a": 1}},
        {},
        {},
        None,
        None,
        "SQL NULL",
    ]
    array = column(OBJECT, *rows)
    assert values_of(array) == expected
    for position in range(len(rows)):
        assert values_of(array.slice(position, 1)) == expected[position : position + 1]
    a = variant_get(array, "$.a")
    assert values_of(a) == [1, 1, "SQL NULL", "SQL NULL", "SQL NULL", None, *["SQL NULL"] * 5]
    assert variant_get(array, "$.a", pa.int32()).to_pylist() == [1, 1, *[None] * 9]
    assert values_of(variant_get(array, "$.c"))[:4] == ["SQL NULL", True, {}, "SQL NULL"]
    assert variant_get(array, "$.b", pa.string()).to_pylist()[:6] == ["x", "x", None, "x", None, '{"a":1}']


INVALID_OBJECTS = {
    "shredded field in value, typed too": {"value": encoded({"a": 1}), "typed_value": {"a": {"typed_value": 1}}},
    "shredded field in value only": {"value": encoded({"a": 1}), "typed_value": {"a": {}}},
    "object that was not shredded": {"value": encoded({"c": 1}), "typed_value": None},
    "empty object that was not shredded": {"value": encoded({}), "typed_value": None},
    "no object beside fields": {"value": encoded("a"), "typed_value": {"a": {}, "b": {}}},
    "array beside fields": {"value": encoded([]), "typed_value": {"a": {}, "b": {}}},
    "variant null beside fields": {"value": b"\x00", "typed_value": {"a": {}, "b": {}}},
    "no bytes": {"value": b"", "typed_value": None},
    "no bytes beside fields": {"value": b"", "typed_value": {"a": {}}},
    "value beside typed in a field": {"value": None, "typed_value": {"a": {"value": b"\x00", "typed_value": 1}}},
    "left-over id without a name": {"value": build_object([3], [b"\x00"]), "typed_value": {"a": {}}},
    "left-over names twice": {"value": build_object([2, 2], [b"\x00", b"\x00"]), "typed_value": {"a": {}}},
    "left-over object cut short": {"value": encoded({"c": "long"})[:-1], "typed_value": {"a": {}}},
    "left-over child beyond the end": {"value": b"\x02\x01\x02\x05\x01\x00", "typed_value": {"a": {}}},
    "no metadata": {"metadata": None, "value": encoded("a"), "typed_value": None},
    "damaged metadata": {"metadata": b"\x01\x05\x00", "typed_value": {"a": {"typed_value": 1}}},
    "metadata of another version": {"metadata": b"\x02\x00\x00", "typed_value": {"a": {"typed_value": 1}}},
    "a name that is not in the metadata": {"metadata": EMPTY_METADATA, "typed_value": {"a": {"typed_value": 1}}},
    "unknown type in a field": {"value": None, "typed_value": {"a": {"value": b"\xfc"}}},
    "field cut short": {"value": None, "typed_value": {"a": {"value": encoded(300)[:-1]}}},
}


@pytest.mark.parametrize("row", INVALID_OBJECTS.values(), ids=INVALID_OBJECTS)
def test_invalid_objects(row: Any) -> None:
    good = {"value": None, "typed_value": {"a": {"typed_value": 1}, "b": {"typed_value": "x"}}}
    array = column(OBJECT, good, row, None)
    with pytest.raises(InvalidVariantError):
        reconstruct_variant(array)
    with pytest.raises(InvalidVariantError):
        variant_to_json(array)
    # The rows around it are none of its business.
    assert values_of(array.slice(0, 1)) == [{"a": 1, "b": "x"}]
    assert values_of(array.slice(2, 1)) == ["SQL NULL"]


def test_arrays() -> None:
    rows = [
        {"typed_value": [{"typed_value": "comedy"}, {"typed_value": "drama"}]},
        {"typed_value": [{"typed_value": "horror"}, {"value": b"\x00"}]},
        {"typed_value": []},
        {"value": b"\x00"},
        {"typed_value": [{"value": encoded({"a": [1]})}, {}, None]},
        {"value": encoded("no array")},
        {"value": encoded([1])},
        None,
    ]
    array = column(LIST, *rows)
    expected = [
        ["comedy", "drama"],
        ["horror", None],
        [],
        None,
        [{"a": [1]}, None, None],
        "no array",
        [1],
        "SQL NULL",
    ]
    assert values_of(array) == expected
    assert values_of(array.slice(4, 2)) == expected[4:6]
    missing = "SQL NULL"
    assert values_of(variant_get(array, "$[1]")) == ["drama", None, missing, missing, None, missing, missing, missing]
    assert variant_get(array, "$[0]", pa.string()).to_pylist() == [
        "comedy",
        "horror",
        None,
        None,
        '{"a":[1]}',
        None,
        "1",
        None,
    ]
    with pytest.raises(InvalidVariantError, match="beside"):
        reconstruct_variant(column(LIST, {"value": b"\x00", "typed_value": []}))


def test_fields_and_columns_are_found_by_name() -> None:
    fields = pa.struct([("typed_value", pa.int32()), ("value", pa.binary())])
    t = pa.struct(
        [
            ("typed_value", pa.struct([("b", fields), ("a", pa.struct([("typed_value", pa.string())]))])),
            ("metadata", pa.binary()),
        ]
    )
    array = pa.array(
        [{"metadata": NAMES, "typed_value": {"b": {"typed_value": 1}, "a": {"typed_value": "x"}}}, {"metadata": NAMES}],
        t,
    )
    assert values_of(array) == [{"a": "x", "b": 1}, None]
    assert list(values_of(array)[0]) == ["a", "b"]


def test_what_lies_under_nulls_is_not_looked_at() -> None:
    inner = pa.StructArray.from_arrays(
        [pa.array([b"\xfc", b"\xfc"]), pa.array([1, 2], pa.int32())], ["value", "typed_value"]
    )
    rows = pa.StructArray.from_arrays(
        [pa.array([b"", b""]), pa.array([b"\xff", b"\xff"]), pa.StructArray.from_arrays([inner], ["a"])],
        ["metadata", "value", "typed_value"],
        mask=pa.array([True, True]),
    )
    assert values_of(rows) == ["SQL NULL", "SQL NULL"]
    assert variant_get(rows, "$.a", pa.int32()).to_pylist() == [None, None]


# Types


PRIMITIVES = [
    ("boolean", pa.bool_(), [True, False]),
    ("int8", pa.int8(), [1, -128]),
    ("int16", pa.int16(), [1, -32768]),
    ("int32", pa.int32(), [1, -(2**31)]),
    ("int64", pa.int64(), [1, 2**63 - 1]),
    ("float", pa.float32(), [1.5, float("inf")]),
    ("double", pa.float64(), [0.1, -0.0]),
    ("decimal4", pa.decimal128(9, 4), [Decimal("12345.6789"), Decimal("-0.0001")]),
    ("decimal4", pa.decimal32(5, 2), [Decimal("123.45"), Decimal("-0.01")]),
    ("decimal8", pa.decimal128(18, 9), [Decimal("123456789.987654321"), Decimal("-1.000000000")]),
    ("decimal8", pa.decimal64(5, 0), [Decimal("12345"), Decimal("-1")]),
    ("decimal16", pa.decimal128(38, 9), [Decimal("9" * 29 + ".123456789"), Decimal("-9876543210.123456789")]),
    ("date", pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    ("time", pa.time64("us"), [time(0), time(23, 59, 59, 999_999)]),
    ("timestamp", pa.timestamp("us", "UTC"), [datetime(1500, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]),
    ("timestamp", pa.timestamp("us", "Europe/Paris"), [datetime(2024, 1, 1, tzinfo=UTC)] * 2),
    ("timestamp_ntz", pa.timestamp("us"), [datetime(1, 1, 1), datetime(2024, 1, 1)]),
    ("binary", pa.binary(), [b"", b"\x00" * 100]),
    ("binary", pa.large_binary(), [b"", b"\x01"]),
    ("binary", pa.binary_view(), [b"", b"\x01" * 20]),
    ("string", pa.string(), ["", "x" * 63]),
    ("string", pa.large_string(), ["x" * 64, "é"]),
    ("string", pa.string_view(), ["x" * 64, "é"]),
    ("string", pa.dictionary(pa.int32(), pa.string()), ["x", "é"]),
]


@pytest.mark.parametrize(("type_name", "arrow_type", "values"), PRIMITIVES, ids=lambda v: str(v))
def test_primitive_types(type_name: str, arrow_type: Any, values: Any) -> None:
    typed = pa.array([None, *values, None], arrow_type)
    blank = pa.nulls(len(typed), pa.binary())
    metadata = pa.array([EMPTY_METADATA] * len(typed))
    array = pa.StructArray.from_arrays([metadata, blank, typed], ["metadata", "value", "typed_value"])
    for part in (array, array.slice(1, 2)):
        variants = reconstruct_variant(part)
        variants.validate(full=True)
        assert variants.type == VARIANT_STORAGE
    pairs = [Variant(row["metadata"], row["value"]) for row in variants.to_pylist()]
    assert [p.type_name for p in pairs] == [type_name] * 2
    assert [p.to_python() for p in pairs] == values
    assert [p.value for p in pairs] == [encode_scalar(TypedValue(type_name, v)) for v in values]
    target = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    for source in (array, reconstruct_variant(array)):
        found = variant_get(source, "$", target)
        assert found.type == target
        assert found.slice(1, 2).to_pylist() == typed.slice(1, 2).to_pylist()
        assert found.null_count == 2


def test_nanoseconds_and_uuids() -> None:
    for utc in (True, False):
        typed = pa.array([1, -(2**63)], pa.int64()).cast(pa.timestamp("ns", "UTC" if utc else None))
        array = pa.StructArray.from_arrays([pa.array([EMPTY_METADATA] * 2), typed], ["metadata", "typed_value"])
        assert values_of(array) == [VariantTimestamp(1, "ns", utc), VariantTimestamp(-(2**63), "ns", utc)]
        assert variant_get(reconstruct_variant(array), "$", typed.type).equals(typed)
        with pytest.raises(SchemaMismatchError):
            variant_get(array, "$", pa.timestamp("us", "UTC" if utc else None))
    storage = pa.array([UUID(int=7).bytes, None], pa.binary(16))
    for typed in (storage, pa.ExtensionArray.from_storage(pa.uuid(), storage)):
        array = pa.StructArray.from_arrays([pa.array([EMPTY_METADATA] * 2), typed], ["metadata", "typed_value"])
        assert values_of(array) == [UUID(int=7), None]
        assert variant_get(array, "$", pa.binary(16)).to_pylist() == storage.to_pylist()
        assert variant_get(array, "$", pa.string()).to_pylist() == [str(UUID(int=7)), None]


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.float16(),
        pa.binary(4),
        pa.binary(17),
        pa.timestamp("ms"),
        pa.timestamp("s", "UTC"),
        pa.time32("ms"),
        pa.time64("ns"),
        pa.date64(),
        pa.duration("us"),
        pa.decimal256(38, 2),
        pa.decimal128(5, -2),
        pa.null(),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.string()),
        pa.list_(TEXT, 2),
        pa.struct([("a", pa.int32())]),
        pa.struct([("a", pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))]),
        pa.struct([("a", pa.struct([("typed_value", pa.uint8())]))]),
        pa.list_(pa.struct([("other", pa.int32())])),
        pa.dictionary(pa.int32(), pa.uint8()),
    ],
    ids=str,
)
def test_types_that_nothing_is_shredded_as(arrow_type: Any) -> None:
    t = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", arrow_type)])
    array = pa.nulls(2, t)
    for action in (
        lambda: reconstruct_variant(array),
        lambda: reconstruct_variant(pa.chunked_array([], t)),
        lambda: variant_get(array, "$.a"),
        lambda: variant_to_json(array),
    ):
        with pytest.raises(InvalidVariantError):
            action()


@pytest.mark.parametrize(
    "t",
    [
        pa.binary(),
        pa.struct([("value", pa.binary())]),
        pa.struct([("metadata", pa.binary())]),
        pa.struct([("metadata", pa.string()), ("value", pa.binary())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.string())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("more", pa.int32())]),
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("value", pa.binary())]),
        pa.struct([("Metadata", pa.binary()), ("Value", pa.binary())]),
    ],
    ids=str,
)
def test_groups_that_are_no_variants(t: pa.DataType) -> None:
    with pytest.raises(InvalidVariantError):
        reconstruct_variant(pa.nulls(1, t))


def test_a_schema_nested_too_deeply() -> None:
    t = INT32
    for _ in range(200):
        t = pa.struct([("typed_value", pa.struct([("a", t)]))])
    with pytest.raises(InvalidVariantError, match="deeper"):
        reconstruct_variant(pa.nulls(1, pa.struct([("metadata", pa.binary()), *t])))


def test_deep_shredding_within_the_bound() -> None:
    group: pa.DataType = INT32
    row: dict[str, Any] = {"typed_value": 1}
    value: Any = 1
    for level in range(90):
        if level % 2:
            group = pa.struct([("typed_value", pa.list_(group))])
            row, value = {"typed_value": [row]}, [value]
        else:
            group = pa.struct([("typed_value", pa.struct([("a", group)]))])
            row, value = {"typed_value": {"a": row}}, {"a": value}
    array = column(group, row)
    assert values_of(array) == [value]
    assert variant_get(array, [0 if level % 2 else "a" for level in reversed(range(90))], pa.int32()).to_pylist() == [1]


def test_decimals_that_do_not_fit_their_type() -> None:
    # A Parquet file may hold them; Arrow does not check them.
    for precision, raw in ((9, 10**9), (9, 2**40), (18, 10**18), (18, -(10**18)), (38, 10**38), (38, -(10**38))):
        data = raw.to_bytes(16, "little", signed=True)
        typed = pa.Array.from_buffers(pa.decimal128(precision, 2), 1, [None, pa.py_buffer(data)])
        array = pa.StructArray.from_arrays([pa.array([EMPTY_METADATA]), typed], ["metadata", "typed_value"])
        with pytest.raises(InvalidVariantError, match="decimal"):
            reconstruct_variant(array)
        fits = (abs(raw) - 1) * (1 if raw > 0 else -1) if abs(raw) != 2**40 else 5
        typed = pa.Array.from_buffers(
            pa.decimal128(precision, 2), 1, [None, pa.py_buffer(fits.to_bytes(16, "little", signed=True))]
        )
        array = pa.StructArray.from_arrays([pa.array([EMPTY_METADATA]), typed], ["metadata", "typed_value"])
        assert values_of(array) == [Decimal(fits).scaleb(-2) if abs(fits) < 10**28 else Decimal(f"{fits}e-2")]


def test_times_beyond_a_day() -> None:
    typed = pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))
    array = pa.StructArray.from_arrays([pa.array([EMPTY_METADATA]), typed], ["metadata", "typed_value"])
    with pytest.raises(InvalidVariantError, match="time of day"):
        reconstruct_variant(array)


# Unshredded columns


def test_unshredded_columns_are_passed_through() -> None:
    array = variants_to_arrow([encode_variant({"a": 1}), None, encode_variant(None)])
    assert reconstruct_variant(array) is array
    swapped = pa.StructArray.from_arrays(
        [array.field(1), array.field(0)], ["value", "metadata"], mask=pa.array([False, True, False])
    )
    again = reconstruct_variant(swapped)
    assert again.type == VARIANT_STORAGE and again.equals(array)
    assert again.field("value").buffers()[2].address == array.field("value").buffers()[2].address
    assert reconstruct_variant(pa.chunked_array([swapped, swapped])).num_chunks == 2
    # Damage is found when the value is looked at, not before.
    damaged = pa.array([{"metadata": EMPTY_METADATA, "value": b"\xfc"}], VARIANT_STORAGE)
    assert reconstruct_variant(damaged) is damaged
    with pytest.raises(InvalidVariantError):
        variant_to_json(damaged)


def test_other_binary_types() -> None:
    for binary in (pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())):
        metadata = pa.array([NAMES, NAMES]).cast(binary) if not pa.types.is_dictionary(binary) else None
        value = [encoded({"a": "x" * 30}), None]
        if metadata is None:
            metadata, values = pa.array([NAMES, NAMES]).dictionary_encode(), pa.array(value).dictionary_encode()
        else:
            values = pa.array(value).cast(binary)
        array = pa.StructArray.from_arrays([metadata, values], ["metadata", "value"])
        assert reconstruct_variant(array).type == VARIANT_STORAGE
        assert values_of(array) == [{"a": "x" * 30}, None]
        assert variant_get(array, "$.a", pa.string()).to_pylist() == ["x" * 30, None]


def test_empty_columns() -> None:
    for group in (INT32, TEXT, OBJECT, LIST):
        for array in (column(group), column(group, None, None), pa.chunked_array([], column(group).type)):
            assert values_of(array) == ["SQL NULL"] * len(array)
            assert variant_to_json(array).to_pylist() == [None] * len(array)
            assert variant_get(array, "$.a[0]", pa.string()).to_pylist() == [None] * len(array)
            assert variant_get(array, "$[0].a").to_pylist() == [None] * len(array)
            assert reconstruct_variant(array).type == VARIANT_STORAGE


def test_null_rows_and_variant_nulls_differ() -> None:
    array = json_to_variant(pa.array([None, "null", "[null]"]))
    assert array.null_count == 1
    assert variant_to_json(array).to_pylist() == [None, "null", "[null]"]
    assert values_of(array) == ["SQL NULL", None, [None]]
    assert variant_to_python(array) == [None, None, [None]]


def test_json_columns() -> None:
    texts = pa.chunked_array([["1", '{"b":2,"a":[true]}'], [None]])
    assert variant_to_json(json_to_variant(texts)).to_pylist() == ["1", '{"a":[true],"b":2}', None]
    with pytest.raises(InvalidRequestError) as raised:
        json_to_variant(pa.array(["1", "{"]))
    assert raised.value.context["row"] == 1


def test_every_row_with_a_dictionary_of_its_own() -> None:
    rows = [{f"k{i}": i, "a": i, f"x{i % 7}": [i]} for i in range(5000)]
    array = variants_to_arrow(map(encode_variant, rows))
    assert values_of(array) == rows
    assert variant_get(array, "$.a", pa.int64()).to_pylist() == list(range(5000))
    assert variant_get(array, "$.x3[0]", pa.int64()).drop_null().to_pylist() == list(range(3, 5000, 7))
    with_ids = pa.StructArray.from_arrays(
        [pa.nulls(5000, pa.binary()), pa.array(range(5000), pa.int32())], ["value", "typed_value"]
    )
    rest = [{f"k{i}": i, f"x{i % 7}": [i]} for i in range(5000)]
    values = []
    for row, left in zip(rows, rest, strict=True):
        names = sorted(row)
        values.append(
            build_object([names.index(n) for n in sorted(left)], [encode_variant(left[n]).value for n in sorted(left)])
        )
    shredded = pa.StructArray.from_arrays(
        [array.field("metadata"), pa.array(values), pa.StructArray.from_arrays([with_ids], ["a"])],
        ["metadata", "value", "typed_value"],
    )
    assert values_of(shredded) == rows


def test_dictionaries_with_a_name_twice() -> None:
    metadata = b"\x01\x02" + bytes([0, 1, 2]) + b"aa"
    value = build_object([1], [b"\x04"])
    array = pa.array([{"metadata": metadata, "value": value}] * 2, VARIANT_STORAGE)
    assert variant_get(array, "$.a", pa.bool_()).to_pylist() == [True, True]
    assert values_of(array) == [{"a": True}] * 2


@pytest.mark.parametrize("fields", [1, 3, 255, 256, 300])
@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_objects_of_one_shape(fields: int, size: int) -> None:
    names = [f"k{i:03}" for i in range(fields)]
    rows = [{name: f"{row}{name}" for name in names} | {names[0]: "x" * size} for row in range(3)]
    metadata = encode_variant(rows[0]).metadata
    text = pa.struct([("typed_value", pa.string())])
    t = pa.struct([("metadata", pa.binary()), ("typed_value", pa.struct([(name, text) for name in names]))])

    def shredded(row: Any) -> Any:
        return {"metadata": metadata, "typed_value": {name: {"typed_value": value} for name, value in row.items()}}

    array = pa.array(list(map(shredded, rows)), t)
    expected = [encode_variant(row).value for row in rows]
    assert [row["value"] for row in reconstruct_variant(array).to_pylist()] == expected
    # With a missing field in one row the shapes differ, with rows of different sizes the offsets do.
    mixed: list[dict[str, Any]] = [rows[0], {**rows[1], names[0]: None}, {**rows[2], names[-1]: "y" * 300}]
    found = values_of(pa.array(list(map(shredded, mixed)), t))
    assert found == [{name: value for name, value in row.items() if value is not None} for row in mixed]


def test_a_path_needs_only_its_own_columns(tmp_path: Path) -> None:
    array = column(
        OBJECT, *[{"typed_value": {"a": {"typed_value": i}, "b": {"value": b"\x00"}}} for i in range(3)], None
    )
    pq.write_table(pa.table({"v": array}), tmp_path / "v.parquet", row_group_size=2)
    part = pq.ParquetFile(tmp_path / "v.parquet").read(columns=["v.typed_value.a.typed_value"])["v"]
    assert variant_get(part, "$.a", pa.int64()).to_pylist() == [0, 1, 2, None]
    with pytest.raises(InvalidVariantError, match="metadata"):
        variant_get(part, "$.a")
    part = pq.ParquetFile(tmp_path / "v.parquet").read(columns=["v.metadata", "v.value", "v.typed_value.a"])["v"]
    assert values_of(variant_get(part, "$.a")) == values_of(variant_get(array, "$.a"))


# Extraction into types


def test_conversions() -> None:
    values = [
        1,
        300,
        Decimal("2.00"),
        Decimal("2.5"),
        3.0,
        TypedValue("float", 0.5),
        10**20,
        "7",
        True,
        None,
        [1],
        {"a": 1},
        b"\x01",
        date(2024, 1, 2),
        datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
    ]
    array = variants_to_arrow(map(encode_variant, values))

    def get(t: pa.DataType) -> Any:
        return variant_get(array, "$", t, on_mismatch="null").to_pylist()

    blank = [None] * 8
    assert get(pa.int8()) == [1, None, 2, None, 3, None, None, *blank]
    assert get(pa.int64()) == [1, 300, 2, None, 3, None, None, *blank]
    assert get(pa.float64()) == [1.0, 300.0, 2.0, 2.5, 3.0, 0.5, 1e20, *blank]
    assert get(pa.decimal128(6, 2)) == [*map(Decimal, ("1", "300", "2", "2.5", "3", "0.5")), None, *blank]
    assert get(pa.bool_()) == [*[None] * 8, True, *[None] * 6]
    assert get(pa.string()) == [
        "1", "300", "2.00", "2.5", "3.0", "0.5", "1" + "0" * 20, "7", "true", None, "[1]", '{"a":1}', "AQ==",
        "2024-01-02", "2024-01-02T03:04:05.000006+00:00",
    ]  # fmt: skip
    assert get(pa.date32())[13] == date(2024, 1, 2) and get(pa.date32()).count(None) == 14
    assert get(pa.timestamp("ns", "UTC"))[14] is not None and get(pa.timestamp("us")).count(None) == 15
    for t in (pa.int8(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.binary(), pa.timestamp("us")):
        with pytest.raises(SchemaMismatchError):
            variant_get(array, "$", t)


def test_floats_that_do_not_fit() -> None:
    array = variants_to_arrow(map(encode_variant, [0.125, 0.1, float("nan"), float("inf"), 1e300, 2.0**63, -(2.0**63)]))
    decimals = variant_get(array, "$", pa.decimal128(10, 2), on_mismatch="null")
    assert decimals.to_pylist() == [None, Decimal("0.10"), None, None, None, None, None]
    integers = variant_get(array, "$", pa.int64(), on_mismatch="null")
    assert integers.to_pylist() == [None, None, None, None, None, None, -(2**63)]


def test_a_mismatch_in_a_typed_column() -> None:
    array = column(OBJECT, {"typed_value": {"a": {"typed_value": 300}, "b": {"typed_value": "x"}}})
    with pytest.raises(SchemaMismatchError):
        variant_get(array, "$.a", pa.int8())
    with pytest.raises(SchemaMismatchError):
        variant_get(array, "$.b", pa.int8())
    with pytest.raises(SchemaMismatchError):
        variant_get(array, "$", pa.int8())
    for path in ("$.a", "$.b", "$"):
        assert variant_get(array, path, pa.int8(), on_mismatch="null").to_pylist() == [None]
    assert variant_get(array, "$", pa.string()).to_pylist() == ['{"a":300,"b":"x"}']
    assert variant_get(array, "$.a", pa.string()).to_pylist() == ["300"]


@pytest.mark.parametrize(
    "t", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.duration("us"), pa.null()], ids=str
)
def test_targets_that_are_no_primitives(t: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError):
        variant_get(column(INT32), "$", t)


def test_strings_that_are_not_utf8() -> None:
    array = pa.array([{"metadata": EMPTY_METADATA, "value": b"\x05\xff"}], VARIANT_STORAGE)
    for t in (pa.string(), pa.large_string()):
        with pytest.raises(InvalidVariantError, match="UTF-8"):
            variant_get(array, "$", t)


# Variants inside other columns


def test_variants_inside_other_columns() -> None:
    shredded = [{"metadata": NAMES, "value": None, "typed_value": v} for v in range(6)]
    variant_type = pa.struct([("metadata", pa.binary()), *INT32])
    data_type = StructType(
        (
            StructField("l", ArrayType(VARIANT)),
            StructField("m", MapType(LONG, VARIANT)),
            StructField("s", StructType((StructField("v", VARIANT), StructField("n", LONG)))),
            StructField("gone", VARIANT),
        )
    )
    t = pa.struct(
        [
            ("l", pa.list_(variant_type)),
            ("m", pa.map_(pa.int64(), variant_type)),
            ("s", pa.struct([("v", variant_type), ("n", pa.int64())])),
            ("extra", pa.int8()),
        ]
    )
    rows = [
        {"l": [shredded[0], None, shredded[1]], "m": [(1, shredded[2])], "s": {"v": shredded[3], "n": 1}, "extra": 1},
        {"l": None, "m": None, "s": None, "extra": None},
        None,
        {"l": [], "m": [(2, None), (3, shredded[4])], "s": {"v": None, "n": 2}, "extra": 2},
    ]
    array = pa.array(rows, t)
    assert holds_variant(data_type) and not holds_variant(ArrayType(LONG))

    def plain(row: Any) -> Any:
        if isinstance(row, dict) and "metadata" in row:
            return Variant(row["metadata"], row["value"]).to_python()
        if isinstance(row, dict):
            return {name: plain(value) for name, value in row.items()}
        return [plain(value) for value in row] if isinstance(row, (list, tuple)) else row

    parts: list[tuple[pa.Array, list[Any]]] = [(array, rows), (array.slice(1), rows[1:]), (array.slice(3), rows[3:])]
    for part, expected in parts:
        found = reconstruct_columns(part, data_type)
        found.validate(full=True)
        assert [plain(row) for row in found.to_pylist()] == [
            row if row is None else {name: strip(value) for name, value in row.items()} for row in expected
        ]
    chunked = reconstruct_columns(pa.chunked_array([array, array]), data_type)
    assert chunked.num_chunks == 2 and chunked.type.field("l").type.value_type == VARIANT_STORAGE
    assert reconstruct_columns(pa.chunked_array([], t), data_type).type == chunked.type
    assert reconstruct_columns(array.field("extra"), LONG).equals(array.field("extra"))


def strip(value: Any) -> Any:
    if isinstance(value, dict) and "metadata" in value:
        return value["typed_value"]
    if isinstance(value, dict):
        return {name: strip(inner) for name, inner in value.items()}
    return [strip(inner) for inner in value] if isinstance(value, (list, tuple)) else value


# Hostile sizes, at column scale


def quickly(action: Callable[..., Any]) -> None:
    for one in tries(5):
        with one.timed(), pytest.raises(InvalidVariantError):
            action()


@pytest.mark.parametrize(
    "value",
    [
        b"\x12\xff\xff\xff\xff",
        b"\x7e\xff\xff\xff\xff" + bytes(100),
        b"\x1f\xff\xff\xff\xff" + bytes(100),
        b"\x40\xff\xff\xff\xff",
        b"\x4e\x01\x00\x00\x00" + b"\x00" + b"\xff" * 8,
    ],
    ids=lambda v: v.hex()[:10],
)
def test_huge_sizes(value: bytes) -> None:
    array = pa.array([{"metadata": NAMES, "value": value}] * 1000, VARIANT_STORAGE)
    quickly(lambda: variant_to_json(array))
    quickly(lambda: variant_get(array, "$", pa.int64()))
    if value[0] & 3 >= 2:
        # The damage may lie in another child than the one asked for.
        quickly(lambda: variant_to_python(variant_get(array, "$")))
    quickly(lambda: reconstruct_variant(column(INT32, {"value": value})))


@pytest.mark.parametrize("metadata", [b"\xc1\xff\xff\xff\xff" + bytes(40), b"\x01\xff" + bytes(20), b"\xc1" + bytes(3)])
def test_huge_dictionaries(metadata: bytes) -> None:
    array = pa.array([{"metadata": metadata, "value": encoded({"a": 1})}] * 1000, VARIANT_STORAGE)
    quickly(lambda: variant_get(array, "$.a"))
    quickly(lambda: variant_to_json(array))


def test_children_that_share_bytes() -> None:
    # One object whose 60,000 fields all claim the same long string.
    count = 60_000
    names = serialize_metadata([f"{i:05}".encode() for i in range(count)])
    text = encode_scalar("x" * 100_000)
    header = bytes([2 | (2 | 1 << 2 | 1 << 4) << 2]) + count.to_bytes(4, "little")
    ids = np.arange(count, dtype="<u2").tobytes()
    value = header + ids + bytes(3 * count) + len(text).to_bytes(3, "little") + text
    array = pa.array([{"metadata": names, "value": value}], VARIANT_STORAGE)
    quickly(lambda: variant_to_json(array))
    quickly(lambda: variant_get(array, "$", pa.string()))
    residual = column(pa.struct([("value", pa.binary()), ("typed_value", pa.struct([("zz", INT32)]))]))
    t = residual.type
    array = pa.array([{"metadata": names, "value": value, "typed_value": {"zz": None}}], t)
    quickly(lambda: variant_to_json(array))


def test_nothing_here_imports_pandas(tmp_path: Path) -> None:
    """It costs a cold process more than reading most columns."""
    rows = [{"value": encoded({"c": [1.5]}), "typed_value": {"a": {"typed_value": 1}, "b": {"typed_value": "x"}}}, None]
    pq.write_table(pa.table({"v": column(OBJECT, *rows)}), tmp_path / "v.parquet")
    code = f"""
import sys, pyarrow as pa, pyarrow.parquet as pq
from delta_orch.variant import variant_to_json, variant_to_python
from delta_orch.protocol.variant.extract import variant_get
column = pq.ParquetFile({str(tmp_path / "v.parquet")!r}).read()["v"]
print(variant_to_json(column).to_pylist(), variant_to_python(column), variant_get(column, "$.c").to_pylist())
for path, t in (("$.a", pa.int8()), ("$.b", pa.string()), ("$.c[0]", pa.float32()), ("$.c[0]", pa.decimal128(5, 2))):
    print(variant_get(column, path, t).to_pylist())
print(sorted({{"pandas", "polars"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert lines[1:-1] == ["[1, None]", "['x', None]", "[1.5, None]", "[Decimal('1.50'), None]"]
