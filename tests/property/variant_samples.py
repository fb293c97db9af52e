"""Random variants, random shredding of them, and the specification's reconstruction read literally, value by value."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import strategies as st

from delta_orch.protocol.variant.encode import build_array, build_object, encode_scalar, serialize_metadata
from delta_orch.protocol.variant.values import TypedValue, VariantDate, VariantTimestamp
from delta_orch.protocol.variant.variant import Variant
from tests.certain import a

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
DECIMAL_DIGITS = {"decimal4": 9, "decimal8": 18, "decimal16": 38}
_PLAIN_ARROW = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp_nanos": pa.timestamp("ns", "UTC"),
    "timestamp_ntz_nanos": pa.timestamp("ns"),
    "time": pa.time64("us"),
    "binary": pa.binary(),
    "string": pa.string(),
    "uuid": pa.binary(16),
}

# Values: trees of TypedValue, dict and list.


def _integers(name: str) -> st.SearchStrategy[TypedValue]:
    bound = 1 << INTEGER_BITS[name] - 1
    return st.integers(-bound, bound - 1).map(lambda v: TypedValue(name, v))


def _decimals(name: str) -> st.SearchStrategy[TypedValue]:
    most = 10 ** DECIMAL_DIGITS[name] - 1
    scales = st.integers(0, DECIMAL_DIGITS[name])
    return st.builds(
        lambda unscaled, scale: TypedValue(name, Decimal((int(unscaled < 0), _digits(unscaled), -scale))),
        st.integers(-most, most),
        scales,
    )


def _digits(unscaled: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(unscaled))))


def _nanos(name: str, *, utc: bool) -> st.SearchStrategy[TypedValue]:
    counts = st.integers(-(1 << 63), (1 << 63) - 1)
    return counts.map(lambda count: TypedValue(name, VariantTimestamp(count, "ns", utc)))


TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
NAMES = st.sampled_from(["a", "b", "c", "id", "é", "日本", "", "a.b", "long" * 40]) | st.text(
    st.characters(codec="utf-8"), max_size=3
)
SCALARS: st.SearchStrategy[TypedValue] = st.one_of(
    st.just(TypedValue("null", None)),
    st.booleans().map(lambda v: TypedValue("boolean", v)),
    *[_integers(name) for name in INTEGER_BITS],
    st.floats(width=32).map(lambda v: TypedValue("float", v)),
    st.floats().map(lambda v: TypedValue("double", v)),
    *[_decimals(name) for name in DECIMAL_DIGITS],
    st.dates().map(lambda v: TypedValue("date", v)),
    st.datetimes(timezones=st.just(UTC)).map(lambda v: TypedValue("timestamp", v)),
    st.datetimes().map(lambda v: TypedValue("timestamp_ntz", v)),
    _nanos("timestamp_nanos", utc=True),
    _nanos("timestamp_ntz_nanos", utc=False),
    st.times().map(lambda v: TypedValue("time", v)),
    st.binary(max_size=80).map(lambda v: TypedValue("binary", v)),
    TEXT.map(lambda v: TypedValue("string", v)),
    st.uuids().map(lambda v: TypedValue("uuid", v)),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)

# Sampled from few shapes, so that the values of a column have types in common.
COLUMN_TREES = st.recursive(
    st.one_of(
        st.just(TypedValue("null", None)),
        _integers("int8"),
        _integers("int64"),
        st.sampled_from([TypedValue("decimal4", Decimal("1.50")), TypedValue("decimal16", Decimal("-7.25"))]),
        st.dates().map(lambda v: TypedValue("date", v)),
        st.booleans().map(lambda v: TypedValue("boolean", v)),
        TEXT.map(lambda v: TypedValue("string", v)),
        SCALARS,
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "é", "zz"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def names_in(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        return set(tree).union(*map(names_in, tree.values()))
    return set().union(*map(names_in, tree)) if isinstance(tree, list) else set()


def encode_tree(tree: Any, ids: dict[str, int]) -> bytes:
    """A tree's bytes under a given dictionary."""
    if isinstance(tree, dict):
        names = sorted(tree, key=str.encode)
        return build_object([ids[name] for name in names], [encode_tree(tree[name], ids) for name in names])
    if isinstance(tree, list):
        return build_array([encode_tree(element, ids) for element in tree])
    return encode_scalar(tree)


def variant_of(tree: Any, extra_names: tuple[str, ...] = ()) -> Variant:
    names = sorted(names_in(tree).union(extra_names), key=str.encode)
    ids = {name: position for position, name in enumerate(names)}
    return Variant(serialize_metadata([name.encode() for name in names]), encode_tree(tree, ids))


def tree_of(variant: Variant) -> Any:
    """Undo `variant_of`: with exact types, in a form that compares equal where values are the same to the bit."""
    if (fields := variant.fields()) is not None:
        return {name: tree_of(value) for name, value in fields.items()}
    if (elements := variant.elements()) is not None:
        return [tree_of(value) for value in elements]
    return comparable(TypedValue(variant.type_name, variant.to_python()))


def comparable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: comparable(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [comparable(value) for value in tree]
    value = tree.value
    if isinstance(value, float):
        value = "nan" if value != value else struct.pack("<d", value)
    if isinstance(value, Decimal):
        value = (value, value.as_tuple().exponent)
    return (tree.type_name, value)


# Shredding: a schema, the columns of values under it, and back.


@dataclass(frozen=True)
class Group:
    """What one value is shredded as: None, (type name, Arrow type), {name: Group} or [Group]."""

    typed: object
    drop_value_column: bool


PRIMITIVE_SHAPES = st.one_of(
    st.sampled_from(sorted(_PLAIN_ARROW)).map(lambda name: (name, _PLAIN_ARROW[name])),
    st.sampled_from([("decimal4", pa.decimal128(9, 2)), ("decimal8", pa.decimal128(18, 3))]),
    st.sampled_from([("decimal16", pa.decimal128(38, 2)), ("decimal16", pa.decimal128(19, 19))]),
    st.sampled_from([("int64", pa.int64()), ("string", pa.string()), ("int8", pa.int8()), ("date", pa.date32())]),
)


def _groups(typed: st.SearchStrategy) -> st.SearchStrategy[Group]:
    return st.builds(Group, typed, st.booleans())


SHAPES: st.SearchStrategy[Group] = st.recursive(
    _groups(st.none() | PRIMITIVE_SHAPES),
    lambda inner: _groups(
        inner.map(lambda element: [element])
        | st.dictionaries(st.sampled_from(["a", "b", "c", "é", "zz", "unused"]), inner, min_size=1, max_size=4)
    ),
    max_leaves=6,
)

MISSING = object()


def shred(tree: Any, group: Group, ids: dict[str, int]) -> dict[str, Any]:
    """The columns of one value, or of a missing one, as the specification has a writer fill them."""
    if tree is MISSING:
        return {"value": None, "typed_value": None}
    typed = group.typed
    if isinstance(typed, dict) and isinstance(tree, dict):
        fields = {name: shred(tree.get(name, MISSING), inner, ids) for name, inner in typed.items()}
        rest = {name: value for name, value in tree.items() if name not in typed}
        return {"value": encode_tree(rest, ids) if rest else None, "typed_value": fields}
    if isinstance(typed, list) and isinstance(tree, list):
        return {"value": None, "typed_value": [shred(element, typed[0], ids) for element in tree]}
    if isinstance(typed, tuple) and isinstance(tree, TypedValue) and _fits(tree, *typed):
        return {"value": None, "typed_value": _arrow_value(tree.value)}
    return {"value": encode_tree(tree, ids), "typed_value": None}


def _fits(tree: TypedValue, type_name: str, arrow_type: pa.DataType) -> bool:
    if tree.type_name != type_name:
        return False
    if type_name in DECIMAL_DIGITS:
        _, digits, exponent = tree.value.as_tuple()
        answer: bool = -exponent == arrow_type.scale and len(digits) <= arrow_type.precision
        return answer
    return not isinstance(tree.value, VariantDate)


def _arrow_value(value: Any) -> Any:
    if isinstance(value, VariantTimestamp):
        return value.count
    return value.bytes if isinstance(value, UUID) else value


def group_type(group: Group, rows: list[dict[str, Any]]) -> pa.StructType:
    """The Arrow type of a group; its value column is left out where that was asked for and every row allows it."""
    fields = []
    if group.typed is None or not group.drop_value_column or any(row["value"] is not None for row in rows):
        fields.append(pa.field("value", pa.binary()))
    below = [row["typed_value"] for row in rows if row["typed_value"] is not None]
    match group.typed:
        case tuple():
            fields.append(pa.field("typed_value", group.typed[1]))
        case [element]:
            inner = group_type(a(Group, element), [e for elements in below for e in elements])
            fields.append(pa.field("typed_value", pa.list_(pa.field("element", inner, nullable=False))))
        case dict():
            inners = [
                pa.field(name, group_type(field, [row[name] for row in below]), nullable=False)
                for name, field in group.typed.items()
            ]
            fields.append(pa.field("typed_value", pa.struct(inners)))
    return pa.struct(fields[::-1])


def shredded_names(group: Group) -> set[str]:
    if isinstance(group.typed, dict):
        return set(group.typed).union(*map(shredded_names, group.typed.values()))
    return shredded_names(group.typed[0]) if isinstance(group.typed, list) else set()


def shredded_array(trees: list[Any], group: Group, common_names: bool) -> pa.StructArray:
    """A shredded column; None among the trees is a null row."""
    common = set().union(*(names_in(tree) for tree in trees if tree is not None)) if common_names else set()
    rows: list[dict[str, Any] | None] = []
    for tree in trees:
        if tree is None:
            rows.append(None)
            continue
        names = sorted(common | names_in(tree), key=str.encode)
        ids = {name: position for position, name in enumerate(names)}
        metadata = serialize_metadata([name.encode() for name in names])
        rows.append({"metadata": metadata, **shred(tree, group, ids)})
    inner = group_type(group, [row for row in rows if row is not None])
    return pa.array(rows, pa.struct([*inner, pa.field("metadata", pa.binary(), nullable=False)]))
