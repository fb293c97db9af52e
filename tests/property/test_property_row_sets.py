"""Bitmaps of the rows that change are those of a plain model, in whatever order the rows come."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.engines.row_sets import gather_row_sets

Row = tuple[int, int | None, int]

_ROWS = st.tuples(st.sampled_from([0, 1, 5]), st.sampled_from([None, 0, 1, 70_000]), st.integers(0, 1 << 33))
_BATCHES = st.lists(st.lists(_ROWS, max_size=40), max_size=4)
_SCHEMA = pa.schema({"kind": pa.int32(), "file": pa.int64(), "row": pa.int64()})


@settings(max_examples=100)
@given(_BATCHES)
def test_rows_are_gathered_by_what_happens_to_them_and_by_file(
    batches: list[list[tuple[int, int | None, int]]],
) -> None:
    expected: defaultdict[tuple[int, int | None], list[int]] = defaultdict(list)
    for kind, file, row in (row for batch in batches for row in batch):
        expected[kind, file].append(row)
    made = [
        pa.RecordBatch.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in batch], schema=_SCHEMA)
        for batch in batches
    ]
    found = gather_row_sets(made, "kind", "file", "row")
    assert {key: rows.num_rows for key, rows in found.items()} == {key: len(rows) for key, rows in expected.items()}
    assert {key: set(rows.positions) for key, rows in found.items()} == {
        key: set() if key[1] is None else set(rows) for key, rows in expected.items()
    }
