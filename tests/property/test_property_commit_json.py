"""Files serialised column by column are spelled exactly as single actions are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.log.files.commit_json import json_parameters, serialize_adds, serialize_removes
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.action_json import serialize_action
from delta_orch.protocol.actions import Add, DeletionVectorDescriptor, Remove

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TEXT_OR_NONE = st.none() | TEXT
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
MAPS = st.dictionaries(TEXT, TEXT_OR_NONE, max_size=3)
VECTORS = st.none() | st.builds(
    DeletionVectorDescriptor,
    storage_type=st.sampled_from("uip"),
    path_or_inline_dv=TEXT,
    size_in_bytes=INT,
    cardinality=LONG,
    offset=st.none() | INT,
)
ADDS = st.builds(
    Add,
    path=TEXT,
    partition_values=MAPS,
    size=LONG,
    modification_time=LONG,
    data_change=st.booleans(),
    stats=TEXT_OR_NONE,
    tags=st.none() | MAPS,
    deletion_vector=VECTORS,
    base_row_id=st.none() | LONG,
    default_row_commit_version=st.none() | LONG,
    clustering_provider=TEXT_OR_NONE,
)


def as_table(adds: list[Add]) -> pa.Table:
    rows: list[Mapping[str, Any]] = [
        {
            "path": add.path,
            "partition_values": list(add.partition_values.items()),
            "size": add.size,
            "modification_time": add.modification_time,
            "data_change": add.data_change,
            "stats": add.stats,
            "tags": None if add.tags is None else list(add.tags.items()),
            "deletion_vector": add.deletion_vector
            and {
                "storage_type": add.deletion_vector.storage_type,
                "path_or_inline_dv": add.deletion_vector.path_or_inline_dv,
                "offset": add.deletion_vector.offset,
                "size_in_bytes": add.deletion_vector.size_in_bytes,
                "cardinality": add.deletion_vector.cardinality,
            },
            "base_row_id": add.base_row_id,
            "default_row_commit_version": add.default_row_commit_version,
            "clustering_provider": add.clustering_provider,
        }
        for add in adds
    ]
    return pa.Table.from_pylist(rows, schema=ADD_SCHEMA)


def lines(data: bytes) -> list[Any]:
    assert data.endswith(b"\n") or not data
    return [orjson.loads(line) for line in data.split(b"\n")[:-1]]


@settings(max_examples=37, deadline=None)
@given(st.lists(ADDS, max_size=5), st.integers(0, 5))
def test_adds(adds: list[Add], start: int) -> None:
    # A slice of a table keeps its parent's buffers: offsets must be honoured everywhere.
    table = as_table(adds).slice(start)
    assert serialize_adds(table) == b"".join(serialize_action(add) + b"\n" for add in adds[start:])
    # So many that they are spelled column by column.
    assert serialize_adds(pa.concat_tables([table] * 9)) == serialize_adds(table) * 9


@settings(max_examples=25, deadline=None)
@given(st.lists(ADDS, max_size=5), st.booleans())
def test_removes(adds: list[Add], data_change: bool) -> None:
    written = lines(serialize_removes(as_table(adds), deletion_timestamp_ms=17, data_change=data_change))
    expected = [
        Remove(
            path=add.path,
            data_change=data_change,
            deletion_timestamp=17,
            extended_file_metadata=True,
            partition_values=add.partition_values,
            size=add.size,
            tags=add.tags,
            deletion_vector=add.deletion_vector,
            base_row_id=add.base_row_id,
            default_row_commit_version=add.default_row_commit_version,
        )
        for add in adds
    ]
    assert written == [orjson.loads(serialize_action(remove)) for remove in expected]


@settings(max_examples=6, deadline=None)
@given(st.lists(ADDS, min_size=2, max_size=4))
def test_columns_that_may_be_missing_count_as_null(adds: list[Add]) -> None:
    table = as_table(adds).select(["path", "partition_values", "size", "modification_time"])
    written = lines(serialize_adds(pa.concat_tables([table.slice(0, 1), table.slice(1)])))
    assert [set(w["add"]) for w in written] == [
        {"path", "partitionValues", "size", "modificationTime", "dataChange"} for _ in adds
    ]
    assert all(w["add"]["dataChange"] is True for w in written)
    assert serialize_adds(pa.concat_tables([table] * 5)) == serialize_adds(table) * 5


def test_many_batches() -> None:
    one = as_table([Add("a b", {"p": None}, 1, 2, True, stats='{"x":"\\"\u00e9\\n"}')])
    table = pa.concat_tables([one] * 3).take(pa.array([0, 1, 2] * 40_000))
    written = lines(serialize_adds(table))
    assert len(written) == 120_000
    assert written[0] == written[-1] == {
        "add": {
            "path": "a b", "partitionValues": {"p": None}, "size": 1, "modificationTime": 2, "dataChange": True,
            "stats": '{"x":"\\"\u00e9\\n"}',
        }
    }  # fmt: skip


def test_parameters_are_text() -> None:
    given_parameters = {"mode": "Append", "partitionBy": ["a"], "n": 3, "flag": True, "none": None}
    assert json_parameters(given_parameters) == {
        "mode": "Append", "partitionBy": '["a"]', "n": "3", "flag": "true", "none": "null",
    }  # fmt: skip
