"""Data in the table's types keeps its values, however nested, sliced or reordered it comes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.engines.conform import conform_batch, conform_column
from delta_orch.engines.file_lookup import NamePositions
from delta_orch.errors import SchemaMismatchError

LEAVES = [
    (pa.int32(), pa.int64(), st.integers(-(2**31), 2**31 - 1)),
    (pa.string(), pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (pa.large_string(), pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (pa.float32(), pa.float64(), st.integers(-100, 100).map(float)),
    (pa.bool_(), pa.bool_(), st.booleans()),
]


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]:
    """A source type, the target type, and values that are written the same way in both."""
    kind = draw(st.sampled_from(["leaf", "leaf", "list", "struct", "map"] if depth else ["leaf"]))
    if kind == "leaf":
        source, target, values = draw(st.sampled_from(LEAVES))
        return source, target, st.none() | values
    source, target, values = draw(columns(depth - 1))
    if kind == "list":
        return pa.list_(source), pa.list_(pa.field("element", target)), st.none() | st.lists(values, max_size=3)
    if kind == "map":
        entries = st.lists(st.tuples(st.text("ab", max_size=2), values), max_size=2)
        return pa.map_(pa.string(), source), pa.map_(pa.string(), target), st.none() | entries
    other_source, other_target, other_values = draw(columns(depth - 1))
    rows = st.none() | st.fixed_dictionaries({"a": values, "b.c": other_values})
    return (
        pa.struct([("a", source), ("b.c", other_source)]),
        pa.struct([("a", target), ("b.c", other_target)]),
        rows,
    )


@st.composite
def arrays(draw: st.DrawFn) -> tuple[pa.Array, pa.DataType]:
    source, target, values = draw(columns())
    array = pa.array(draw(st.lists(values, max_size=8)), source)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start))), target


@settings(max_examples=50, deadline=None)
@given(arrays())
def test_values_survive(case: tuple[pa.Array, pa.DataType]) -> None:
    array, target = case
    found = conform_column(array, target, lossless=True, path="c")
    found.validate(full=True)
    assert found.type == target
    assert found.to_pylist() == array.to_pylist()


def test_fields_match_by_name_without_regard_to_case() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"B": [1, 2], "a": [{"Y": 1, "extra": 9}, None], "Extra": ["x", "y"], "s": ["p", "q"], "S": ["P", "Q"]}
    )
    target = pa.schema(
        [
            ("A", pa.struct([("x", pa.string()), ("y", pa.int32())])),
            ("b", pa.int64()),
            ("new", pa.date32()),
            ("S", pa.string()),
        ]
    )
    found = conform_batch(batch, target, lossless=True)
    assert found.schema == target
    assert found.to_pylist() == [
        {"A": {"x": None, "y": 1}, "b": 1, "new": None, "S": "P"},
        {"A": None, "b": 2, "new": None, "S": "Q"},
    ]
    assert NamePositions(["S", "s"]).find("s") == 1
    assert NamePositions(["S"]).find("t") is None


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([300], pa.int64(), pa.int8()),
        (["x"], pa.string(), pa.int64()),
        ([1], pa.int64(), pa.struct([("a", pa.int64())])),
        ([1], pa.int64(), pa.list_(pa.int64())),
        ([1], pa.int64(), pa.map_(pa.string(), pa.int64())),
        ([1], pa.int64(), pa.null()),
        ([b"\xff"], pa.binary(), pa.string()),
        (["12.345"], pa.decimal128(5, 3), pa.decimal128(5, 2)),
    ],
)
def test_values_that_do_not_fit_are_refused(values: list[Any], source: pa.DataType, target: pa.DataType) -> None:
    array = pa.array(values).cast(source) if pa.types.is_decimal(source) else pa.array(values, source)
    with pytest.raises(SchemaMismatchError, match="Column c"):
        conform_column(array, target, lossless=True, path="c")


def test_nanoseconds_of_files_are_cut_towards_the_past() -> None:
    nanos = pa.array([1_999, -1, -1_000, -1_001, None, 0], pa.timestamp("ns"))
    found = conform_column(nanos, pa.timestamp("us", "UTC"), lossless=False, path="t")
    assert found.cast(pa.int64()).to_pylist() == [1, -1, -1, -2, None, 0]


def test_zones_do_not_move_instants() -> None:
    local = pa.array([0, 5], pa.timestamp("us"))
    utc = conform_column(local, pa.timestamp("us", "UTC"), lossless=True, path="t")
    assert pc.cast(utc, pa.int64()).to_pylist() == [0, 5]
    vienna = pa.array([0, 5], pa.timestamp("ms", "Europe/Vienna"))
    assert conform_column(vienna, pa.timestamp("us", "UTC"), lossless=True, path="t").cast(pa.int64()).to_pylist() == [
        0,
        5_000,
    ]
