"""Any sequence of DELETE and UPDATE on any kind of table equals a plain-Python model: rows, change feed, row ids."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable
from tests.harness.changed_rows import CHANGES, PLAIN_NAMES, PREDICATES, SCHEMA, Change, Model, Predicate, plain

structs = st.none() | st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(0, 3),
        "b": st.none() | st.fixed_dictionaries({"c": st.none() | st.sampled_from(["", "ü"])}),
    }
)
row = st.tuples(
    st.integers(0, 12),
    st.sampled_from([None, "a", "b c%/ü"]),
    st.none() | st.sampled_from([float("nan"), float("-inf"), -0.0, 1.0, 1.5]),
    structs,
    st.none() | st.integers(-3, 3),
    st.none() | st.lists(st.none() | st.integers(0, 2), max_size=2),
)
files = st.lists(st.lists(row, max_size=8), min_size=1, max_size=3)
statements = st.lists(
    st.tuples(st.sampled_from(PREDICATES), st.none() | st.sampled_from(CHANGES)), min_size=1, max_size=5
)
properties = st.fixed_dictionaries(
    {},
    optional={
        "delta.enableDeletionVectors": st.just("true"),
        "delta.enableChangeDataFeed": st.just("true"),
        "delta.enableRowTracking": st.just("true"),
        "delta.columnMapping.mode": st.sampled_from(["name", "id"]),
        "delta.dataSkippingNumIndexedCols": st.sampled_from(["0", "2"]),
        "delta.checkpointInterval": st.just("2"),
    },
)


@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(files, statements, properties, st.booleans())
def test_statements_do_what_plain_python_does(
    data: list[list[Any]],
    steps: list[tuple[Predicate, Change | None]],
    settings_of: dict[str, str],
    is_partitioned: bool,
) -> None:
    schema = SCHEMA if "delta.columnMapping.mode" in settings_of else PLAIN_NAMES
    folder = Path(tempfile.mkdtemp())
    try:
        table = DeltaTable(folder / "a table")
        partition_by = ["part"] if is_partitioned else None
        table.create(schema, partition_by=partition_by, properties=settings_of)
        for rows in data:
            table.append(pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in rows], schema))
        tells, tracks = (f"delta.enable{name}" in settings_of for name in ("ChangeDataFeed", "RowTracking"))
        model = Model(table, "local", tracks, tells)
        model.load()
        for where, change in steps:
            if change is None:
                model.delete(where)
            else:
                model.update(change, where)
        assert not table.fsck(check_files=True).problems
        if not settings_of.keys() & {"delta.enableDeletionVectors", "delta.columnMapping.mode"}:
            theirs = deltalake.DeltaTable(str(folder / "a table")).to_pyarrow_table().to_pylist()
            ours = table.snapshot().scan().to_arrow().to_pylist()
            assert sorted(map(plain, theirs)) == sorted(map(plain, ours))
    finally:
        shutil.rmtree(folder)
