"""The functions that the package takes without `pyarrow.compute` are those of `pyarrow.compute`."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pytest

import delta_orch.arrow_compute as pc

SOURCES = Path(pc.__file__).parent
CALLS = re.compile(r"\bpc\.([a-z]\w*)\(")
# `sort_by` is a method of tables.
USED = sorted({name for path in SOURCES.rglob("*.py") for name in CALLS.findall(path.read_text())} - {"sort_by"})


def test_names_are_found() -> None:
    assert len(USED) > 60


@pytest.mark.parametrize("name", USED)
def test_a_function_is_the_one_of_that_name(name: str) -> None:
    theirs = getattr(pyarrow.compute, name)
    ours = getattr(pc, name)
    if ours is theirs or name in ("cast", "fill_null"):
        return
    # `take` and `filter` have wrappers in some versions, and the same arguments in all.
    assert getattr(theirs, "__arrow_compute_function__", {"name": name})["name"] == name.rstrip("_")


def test_values_options_and_expressions() -> None:
    numbers = pa.chunked_array([[3, None], [1]])
    for name, values, options in (
        ("and_kleene", ([True, None], [None, False]), {}),
        ("sort_indices", (numbers,), {"sort_keys": [("", "descending")]}),
        ("array_sort_indices", (numbers, "descending"), {}),
        ("is_in", (numbers,), {"value_set": pa.array([1, None])}),
        ("min_max", (numbers,), {"skip_nulls": False}),
        ("coalesce", (numbers, pa.scalar(7)), {}),
        ("binary_join_element_wise", (pa.array(["a"]), pa.array([None], pa.string()), "-"), {"null_handling": "skip"}),
        ("cast", (numbers, pa.string()), {}),
        ("fill_null", (numbers, 0), {}),
        ("take", (numbers, pa.array([2, 0])), {}),
        ("filter", (pa.table({"n": numbers}), pa.array([True, None, False])), {}),
        ("index", (numbers, 1), {}),
    ):
        assert getattr(pc, name)(*values, **options) == getattr(pyarrow.compute, name)(*values, **options), name
    assert pc.is_null(pc.field("n")).equals(pyarrow.compute.is_null(pyarrow.compute.field("n")))


def test_rows_are_sorted_as_by_the_table() -> None:
    rows = pa.table({"a": pa.chunked_array([[2, None], [1, 2]]), "b": [3, 0, 1, 2]})
    for names in (["a"], ["a", "b"], ["b"]):
        assert pc.sort_by(rows, *names) == rows.sort_by([(name, "ascending") for name in names])


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="takes 1 values, not 2"):
        pc.invert([True], [False])
    with pytest.raises(AttributeError):
        _ = pc.no_function_of_this_name
    with pytest.raises(pa.ArrowInvalid):
        pc.cast(pa.array(["x"]), pa.int64())
