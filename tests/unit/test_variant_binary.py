"""One variant: its bytes in, its values out, and back; and what is refused."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from delta_orch.errors import CorruptDataError, InvalidRequestError, InvalidVariantError, TableError
from delta_orch.protocol.variant.byte_columns import byte_strings
from delta_orch.protocol.variant.dictionaries import parse_dictionaries
from delta_orch.protocol.variant.encode import (
    EMPTY_METADATA,
    build_array,
    build_object,
    encode_scalar,
    encode_variant,
    parse_json,
    serialize_metadata,
)
from delta_orch.protocol.variant.values import MAX_DEPTH, TypedValue, VariantDate, VariantTimestamp
from delta_orch.protocol.variant.variant import Variant, parse_path
from tests.bounded import tries
from tests.certain import some


def value_of(hex_bytes: str, metadata: bytes = EMPTY_METADATA) -> Variant:
    return Variant(metadata, bytes.fromhex(hex_bytes))


def names_in(metadata: bytes) -> list[str]:
    dictionaries = parse_dictionaries(byte_strings([metadata]))
    return dictionaries.names_at(dictionaries.codes)


AB = serialize_metadata([b"a", b"b"])

# hex of the value, type name, Python value, JSON text
ENCODED: list[tuple[str, str, Any, str]] = [
    ("00", "null", None, "null"),
    ("04", "boolean", True, "true"),
    ("08", "boolean", False, "false"),
    ("0cff", "int8", -1, "-1"),
    ("10ff7f", "int16", 32767, "32767"),
    ("1400000080", "int32", -(2**31), "-2147483648"),
    ("18ffffffffffffff7f", "int64", 2**63 - 1, "9223372036854775807"),
    ("1c9a9999999999b93f", "double", 0.1, "0.1"),
    ("380000c03f", "float", 1.5, "1.5"),
    ("2002d2ffffff", "decimal4", Decimal("-0.46"), "-0.46"),
    ("240001000000000000" + "00", "decimal8", Decimal(1), "1"),
    ("2826" + "01" + "00" * 15, "decimal16", Decimal(1).scaleb(-38), "0." + "0" * 37 + "1"),
    ("2c00000000", "date", date(1970, 1, 1), '"1970-01-01"'),
    ("300100000000000000", "timestamp", datetime(1970, 1, 1, 0, 0, 0, 1, UTC), '"1970-01-01T00:00:00.000001+00:00"'),
    ("340000000000000000", "timestamp_ntz", datetime(1970, 1, 1), '"1970-01-01T00:00:00"'),
    ("3c02000000abcd", "binary", b"\xab\xcd", '"q80="'),
    ("4001000000" + "41", "string", "A", '"A"'),
    ("0541", "string", "A", '"A"'),
    ("01", "string", "", '""'),
    ("44ff5fd71d14000000", "time", time(23, 59, 59, 999999), '"23:59:59.999999"'),
    (
        "48" + "01" + "00" * 7,
        "timestamp_nanos",
        VariantTimestamp(1, "ns", True),
        '"1970-01-01T00:00:00.000000001+00:00"',
    ),
    ("4cff" + "ff" * 7, "timestamp_ntz_nanos", VariantTimestamp(-1, "ns", False), '"1969-12-31T23:59:59.999999999"'),
    ("50" + "00" * 15 + "01", "uuid", UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ("020000", "object", {}, "{}"),
    ("030000", "array", [], "[]"),
    ("0302000102" + "0008", "array", [None, False], "[null,false]"),
]


@pytest.mark.parametrize(("encoded", "type_name", "value", "text"), ENCODED)
def test_values(encoded: str, type_name: str, value: Any, text: str) -> None:
    variant = value_of(encoded)
    assert variant.type_name == type_name
    assert variant.to_python() == value
    assert type(variant.to_python()) is type(value)
    assert variant.to_json() == text


@pytest.mark.parametrize(("encoded", "type_name", "value", "text"), ENCODED)
def test_values_with_their_last_byte_missing(encoded: str, type_name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidVariantError):
        value_of(encoded[:-2]).to_python()


@pytest.mark.parametrize(
    ("encoded", "type_name", "value", "text"), [case for case in ENCODED if case[1] not in ("object", "array")]
)
def test_exact_types_are_encoded_exactly(encoded: str, type_name: str, value: Any, text: str) -> None:
    again = encode_scalar(TypedValue(type_name, value))
    if encoded.startswith("40"):  # a short string with a long header
        encoded = "05" + encoded[10:]
    assert again.hex() == encoded


def test_the_error_is_one_of_the_table() -> None:
    with pytest.raises(InvalidVariantError) as raised:
        value_of("").to_python()
    assert isinstance(raised.value, CorruptDataError) and isinstance(raised.value, TableError)
    assert raised.value.code == "INVALID_VARIANT" and not raised.value.retryable
    assert "no bytes" in str(raised.value) and raised.value.remedy


@pytest.mark.parametrize(
    "encoded",
    [
        "54",  # primitive 21
        "fc",  # primitive 63
        "2001" + "ffffff7f",  # ten digits in a decimal4
        "2027" + "01000000",  # scale 39
        "28" + "00" + "ff" * 15 + "7f",  # 39 digits
        "44" + "0060d71d14" + "000000",  # a whole day
        "44" + "ff" * 8,  # a negative time of day
        "05ff",  # a string that is not UTF-8
        "4002000000c328",
        "40ffffffff",  # lengths beyond the end
        "3cffffffff00",
        "09" + "41",
        "02",  # no count
        "0201",  # no ids
        "0201000002",  # no value
        "12ffffffff",  # 2**32 - 1 fields
        "43ffffffff" + "00" * 20,
        "13ffffffff" + "00" * 20,
        "0302" + "000001" + "00",  # two elements in one byte
        "0302" + "010102" + "0000",  # the first byte belongs to none; the second element has none
        "0302" + "000500" + "00" * 9,  # descending
        "0301" + "00ff" + "00",  # an end beyond the end
    ],
)
def test_damaged_values(encoded: str) -> None:
    with pytest.raises(InvalidVariantError):
        value_of(encoded, AB).to_python()
    with pytest.raises(InvalidVariantError):
        value_of(encoded, AB).to_json()


@pytest.mark.parametrize(
    ("encoded", "found"),
    [
        ("0201" + "02" + "0001" + "00", "no name"),
        ("0202" + "0000" + "000102" + "0004", "two fields of one name"),
        ("0202" + "0001" + "000001" + "00", "overlap"),
    ],
)
def test_damaged_objects(encoded: str, found: str) -> None:
    with pytest.raises(InvalidVariantError, match=found):
        value_of(encoded, AB).to_python()


def test_values_of_an_object_may_stand_in_any_order() -> None:
    assert value_of("0202" + "0001" + "010002" + "0804", AB).to_python() == {"a": True, "b": False}
    # Bytes between the values belong to nobody.
    assert value_of("0202" + "0001" + "040006" + "08ffffff0400", AB).to_python() == {"a": True, "b": False}


def test_bytes_after_the_value_are_not_looked_at() -> None:
    assert value_of("0401020304").to_python() is True


@pytest.mark.parametrize(
    "metadata",
    ["", "01", "0100", "000000", "020000", "0101", "010100", "01010005", "4101000000", "c1ffffffff00000000"],
)
def test_damaged_metadata(metadata: str) -> None:
    with pytest.raises(InvalidVariantError):
        names_in(bytes.fromhex(metadata))
    with pytest.raises(InvalidVariantError):
        Variant(bytes.fromhex(metadata), bytes.fromhex("020100000104")).to_python()


def test_names_that_are_not_utf8() -> None:
    metadata = serialize_metadata([b"\xff"])
    with pytest.raises(InvalidVariantError, match="UTF-8"):
        names_in(metadata)


def test_metadata_is_sorted_and_as_small_as_can_be() -> None:
    variant = encode_variant({"b": 1, "é": 2, "a": {"b": 3}})
    assert names_in(variant.metadata) == ["a", "b", "é"]
    assert variant.metadata[0] == 0x11
    assert encode_variant({"k" * 300: 1}).metadata[0] == 0x51
    assert encode_variant({"k" * 70_000: 1}).metadata[0] == 0x91
    assert encode_variant(17).metadata == EMPTY_METADATA


def test_metadata_with_other_flags() -> None:
    # Neither the sorted flag nor the reserved bit changes anything.
    for header in ("01", "11", "21", "31"):
        assert names_in(bytes.fromhex(header + "02" + "000102" + "6261")) == ["b", "a"]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 70_000])
def test_many_children(count: int) -> None:
    values = list(range(count))
    assert encode_variant(values).to_python() == values
    fields = {f"k{i}": i for i in values}
    variant = encode_variant(fields)
    assert variant.to_python() == fields
    assert list(variant.to_python()) == sorted(fields)
    assert bool(variant.value[0] & 0x40) == (count > 255)


@pytest.mark.parametrize("size", [0, 63, 64, 255, 256, 65_535, 65_536, 1 << 24])
def test_long_strings(size: int) -> None:
    for value in ("x" * size, b"x" * size, ["x" * size, 1], {"a": "x" * size, "b": 1}):
        assert encode_variant(value).to_python() == value


def test_python_values() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    value = {
        "aware": datetime(2024, 1, 2, 5, 30, tzinfo=zone),
        "naive": datetime(9999, 12, 31, 23, 59, 59, 999_999),
        "first": datetime(1, 1, 1, tzinfo=UTC),
        "tuple": (1, (2,)),
        "bytes": bytearray(b"\x00"),
        "mapping": OrderedDict(a=1),
        "big": 10**30,
        "exponent": Decimal("1E+5"),
        "long ago": VariantDate(-(10**9)),
    }
    assert encode_variant(value).to_python() == {
        **value,
        "aware": datetime(2024, 1, 2, tzinfo=UTC),
        "tuple": [1, [2]],
        "bytes": b"\x00",
        "mapping": {"a": 1},
        "big": Decimal(10**30),
        "exponent": Decimal(100_000),
    }


@pytest.mark.parametrize(
    ("number", "type_name"),
    [
        (127, "int8"),
        (-128, "int8"),
        (128, "int16"),
        (-32769, "int32"),
        (2**31, "int64"),
        (2**63, "decimal16"),
        (Decimal("1.5"), "decimal4"),
        (Decimal("1234567890.5"), "decimal8"),
        (Decimal("0.0000000001"), "decimal8"),
        (Decimal("0." + "0" * 20 + "1"), "decimal16"),
        (0.5, "double"),
    ],
)
def test_numbers_take_the_narrowest_type(number: Decimal | float, type_name: str) -> None:
    variant = encode_variant(number)
    assert variant.type_name == type_name
    assert variant.to_python() == number


@pytest.mark.parametrize(
    "value",
    [
        10**38,
        Decimal("NaN"),
        Decimal("1e39"),
        Decimal("1e-39"),
        Decimal("1e1000000000"),
        Decimal(1).scaleb(-50),
        {1: 2},
        object(),
        {"a": {1, 2}},
        "\ud800",
        {"\ud800": 1},
        time(1, tzinfo=UTC),
        VariantDate(1 << 40),
        VariantTimestamp(1 << 63, "us", True),
        TypedValue("int8", 128),
        TypedValue("int8", "1"),
        TypedValue("int8", [1]),
        TypedValue("string", 1),
        TypedValue("binary", "text"),
        TypedValue("boolean", 1),
        TypedValue("null", 0),
        TypedValue("decimal4", Decimal(10**9)),
        TypedValue("decimal4", 1.5),
        TypedValue("double", "1"),
        TypedValue("uuid", "1"),
        TypedValue("date", "1"),
        TypedValue("timestamp", datetime(2024, 1, 1)),
        TypedValue("timestamp_nanos", VariantTimestamp(1, "us", True)),
        TypedValue("timestamp_nanos", datetime(2024, 1, 1, tzinfo=UTC)),
        TypedValue("object", {}),
    ],
    ids=lambda value: None if type(value) is object else repr(value),
)
def test_what_a_variant_cannot_hold(value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        encode_variant([value])


def test_days_beyond_pythons_calendar() -> None:
    assert VariantDate(2_932_897).isoformat() == "+10000-01-01"
    assert VariantDate(-719_529).isoformat() == "-0001-12-31"
    first = encode_scalar(TypedValue("date", VariantDate(-719_163)))
    assert Variant(EMPTY_METADATA, first).to_python() == VariantDate(-719_163)
    assert VariantDate(-719_163).isoformat() == "0000-12-31"
    last = VariantTimestamp((1 << 63) - 1, "us", utc=True)
    assert last.isoformat() == "+294247-01-10T04:00:54.775807+00:00"
    assert encode_variant(last).to_python() == last
    assert encode_variant(VariantTimestamp(0, "us", utc=False)).to_python() == datetime(1970, 1, 1)


# Depth and size


def nested_array(depth: int) -> bytes:
    value = b"\x00"
    for _ in range(depth):
        value = build_array([value])
    return value


def test_nesting_up_to_the_bound() -> None:
    value: Any = None
    for _ in range(MAX_DEPTH):
        value = [value]
    variant = encode_variant(value)
    assert variant.to_json() == "[" * MAX_DEPTH + "null" + "]" * MAX_DEPTH
    assert some(parse_json('{"a":' * 900 + "1" + "}" * 900).get(["a"] * 900)).to_python() == 1


def test_nesting_beyond_the_bound() -> None:
    deep = Variant(EMPTY_METADATA, nested_array(MAX_DEPTH + 1))
    for action in (deep.to_python, deep.to_json):
        with pytest.raises(InvalidVariantError, match="deeper"):
            action()
    # A path of the caller's own length is no danger.
    assert some(deep.get([0] * (MAX_DEPTH + 1))).type_name == "null"
    itself: list[Any] = []
    itself.append(itself)
    itself.append(itself)
    with pytest.raises(InvalidRequestError, match="deeper"):
        encode_variant(itself)
    with pytest.raises(InvalidRequestError):
        parse_json("[" * 100_000 + "]" * 100_000)


def test_a_hundred_thousand_levels() -> None:
    value = bytearray(b"\x00")
    for _ in range(100_000):
        value[0:0] = b"\x0f\x01" + b"\x00" * 4 + len(value).to_bytes(4, "little")
        if len(value) > 600_000:
            break
    with pytest.raises(InvalidVariantError, match="deeper"):
        Variant(EMPTY_METADATA, bytes(value)).to_python()


def test_elements_that_share_bytes_do_not_multiply() -> None:
    value = b"\x00"
    for _ in range(30):
        # Two elements, both at offset 0.
        header = b"\x0f\x02" + b"\x00" * 8
        value = header + len(value).to_bytes(4, "little") + value
    for one in tries(1):
        with one.timed(), pytest.raises(InvalidVariantError, match="overlap"):
            Variant(EMPTY_METADATA, value).to_python()


# Paths


def test_get() -> None:
    variant = encode_variant({"a": [1, {"b c": "x"}], "d.e": {"'": 5}, "": 0})
    assert some(variant.get("$")).to_python() == variant.to_python()
    assert some(variant.get("$.a[1]['b c']")).to_python() == "x"
    assert some(variant.get('$["a"][0]')).to_json() == "1"
    assert some(some(variant.get("$['d.e']")).get(["'"])).to_python() == 5
    assert some(variant.get([""])).to_python() == 0
    for nothing in ("$.x", "$.a[2]", "$.a.b", "$[0]", "$.a[0].x"):
        assert variant.get(nothing) is None
    assert some(some(variant.get("$.a")).elements())[0].to_python() == 1
    assert some(variant.get("$.a")).fields() is None and variant.elements() is None
    inner = variant.get("$.a[1]")
    assert Variant(some(inner).metadata, some(inner).value).to_python() == {"b c": "x"}


def test_get_looks_only_at_what_is_on_the_way() -> None:
    good, bad = encode_scalar("x"), b"\xfc"
    variant = Variant(AB, build_object([0, 1], [good, bad]))
    assert some(variant.get("$.a")).to_python() == "x"
    with pytest.raises(InvalidVariantError):
        variant.to_python()
    with pytest.raises(InvalidVariantError):
        some(variant.get("$.b")).to_python()
    assert some(variant.fields())["a"].to_python() == "x"


@pytest.mark.parametrize(
    "path", ["", "a", ".a", "$a", "$.", "$..a", "$[", "$[a]", "$[-1]", "$['a]", "$.a b[", [1.5], [-1], [True]]
)
def test_no_paths(path: Any) -> None:
    with pytest.raises(InvalidRequestError):
        parse_path(path)


def test_paths() -> None:
    assert parse_path("$") == ()
    assert parse_path("$.a.b c[12]['x.y'][\"z\"]") == ("a", "b c", 12, "x.y", "z")
    assert parse_path(["a", 0]) == ("a", 0)


# JSON


def test_json_text() -> None:
    text = '{"z":[1,1.50,-0.0,1e3,12345678901234567890123,"\\u00e9\\n\\"",null,true],"a":{}}'
    assert parse_json(text).to_json() == '{"a":{},"z":[1,1.50,0.0,1000.0,12345678901234567890123,"é\\n\\"",null,true]}'
    assert [v.type_name for v in some(parse_json("[1,300,1.5,1e0,123456789012,12345678901234567890]").elements())] == [
        "int8",
        "int16",
        "decimal4",
        "double",
        "int64",
        "decimal16",
    ]
    assert parse_json("1" * 39).type_name == "double"
    assert parse_json("0." + "1" * 39).type_name == "double"
    assert parse_json(b'"\xc3\xa9"').to_python() == "é"


def test_keys_are_sorted_by_code_point() -> None:
    assert encode_variant({"é": 1, "z": 2, "Z": 3, "\U0001f600": 4, "\uffff": 5}).to_json() == (
        '{"Z":3,"z":2,"é":1,"\uffff":5,"\U0001f600":4}'
    )


def test_floats_that_json_does_not_know() -> None:
    value = [float("nan"), float("inf"), float("-inf")]
    assert encode_variant(value).to_json() == '["NaN","Infinity","-Infinity"]'


def test_control_characters_are_escaped() -> None:
    text = "".join(map(chr, range(0x20))) + '"\\/\x7f\u2028'
    assert json.loads(encode_variant({text: text}).to_json()) == {text: text}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,]", "NaN", "[Infinity]", '{"a":1,"a":2}', "1e999", "-1e999", '"\\ud800"', "1 2", b"\xff", "9" * 5000],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_no_json(text: bytes | str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_json(text)


def test_recursion_is_not_used() -> None:
    limit = sys.getrecursionlimit()
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 60)
    try:
        value: Any = None
        for _ in range(500):
            value = {"a": [value]}
        assert encode_variant(value).to_json().count("[") == 500
    finally:
        sys.setrecursionlimit(limit)
