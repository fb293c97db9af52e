"""Arrow arrays built without pandas, plain types, and statistics written as JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.log.files.stats_json import stats_to_json
from delta_orch.protocol.arrow_building import (
    bool_array,
    int32_array,
    int64_array,
    int64_range,
    literal_array,
    longs_from_numpy,
    plain,
    string_array,
    string_map_array,
    type_to_arrow,
)
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)
from delta_orch.storage.local import LocalStore
from tests.harness.log_builder import LogBuilder

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.none() | TEXT))
def test_strings(values: list[str | None]) -> None:
    built = string_array(values)
    built.validate(full=True)
    assert (built.type, built.to_pylist()) == (pa.string(), values)


@given(st.lists(st.none() | INT64))
def test_integers(values: list[int | None]) -> None:
    built = int64_array(values)
    built.validate(full=True)
    assert (built.type, built.to_pylist()) == (pa.int64(), values)


@given(st.lists(st.none() | st.booleans()))
def test_booleans(values: list[bool | None]) -> None:
    built = bool_array(values)
    built.validate(full=True)
    assert (built.type, built.to_pylist()) == (pa.bool_(), values)


@given(st.lists(st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=3)))
def test_maps(values: list[dict[str, str | None] | None]) -> None:
    built = string_map_array(values)
    built.validate(full=True)
    assert built.to_pylist(maps_as_pydicts="strict") == values


def test_small_ones() -> None:
    assert int32_array([1, None, -1]).to_pylist() == [1, None, -1]
    assert int64_range(3, 6).to_pylist() == [3, 4, 5]
    with pytest.raises(TypeError):
        int64_array(["1"])  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        int64_array([1 << 63])


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        (["", "ü"], STRING),
        ([True, False], BOOLEAN),
        ([b"", b"\x00\xff"], BINARY),
        ([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)], DATE),
        ([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], TIMESTAMP),
        ([datetime(1969, 12, 31, 23, 59, 59, 999999)], TIMESTAMP_NTZ),
        ([Decimal("-1.50"), Decimal("0.00")], DecimalType(5, 2)),
        ([Decimal("12345678901234567890123456789012345678")], DecimalType(38, 0)),
        ([1.5, -math.inf], DOUBLE),
        ([0.5], FLOAT),
        ([-128, 127], BYTE),
        ([(1 << 63) - 1], LONG),
    ],
)
def test_literals(values: list[Any], data_type: DataType) -> None:
    built = literal_array(values, data_type)
    built.validate(full=True)
    assert built.type == type_to_arrow(data_type)
    assert built.to_pylist() == values


def test_plain_types() -> None:
    deep = pa.struct(
        [
            pa.field("s", pa.large_string()),
            pa.field("l", pa.large_list(pa.field("element", pa.string_view(), nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.large_binary())),
            pa.field("n", pa.int64(), nullable=False),
        ]
    )
    rows = [{"s": "a", "l": ["b"], "m": [("k", b"v")], "n": 1}, None]
    made = plain(pa.array(rows, deep))
    made.validate(full=True)
    assert made.to_pylist() == rows
    assert str(made.type).count("large") + str(made.type).count("view") == 0
    assert plain(pa.array(["a", "a"]).dictionary_encode()).type == pa.string()
    column = pa.array(["a"])
    assert plain(column) is column


# Statistics as JSON

PARSED = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("tightBounds", pa.bool_()),
        (
            "minValues",
            pa.struct(
                [
                    ('na"me.\n', pa.string()),
                    ("d", pa.date32()),
                    ("ts", pa.timestamp("us", "UTC")),
                    ("ntz", pa.timestamp("ms")),
                    ("x", pa.float64()),
                    ("f", pa.float32()),
                    ("dec", pa.decimal128(20, 3)),
                    ("b", pa.binary()),
                    ("in", pa.struct([("ner", pa.int32()), ("most", pa.struct([("one", pa.int8())]))])),
                ]
            ),
        ),
        ("nothing", pa.struct([])),
    ]
)


def test_statistics_as_json() -> None:
    full = {
        "numRecords": 3,
        "tightBounds": False,
        "minValues": {
            'na"me.\n': 'q"\\\x01ü\U0001f600', "d": date(2013, 1, 2),
            "ts": datetime(2013, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "ntz": datetime(2013, 1, 2, 3, 4, 5, 678000),
            "x": 1e300, "f": 0.5, "dec": Decimal("-12345678901234567.891"), "b": b"no",
            "in": {"ner": -5, "most": {"one": 1}},
        },
        "nothing": {},
    }  # fmt: skip
    nulls = {"numRecords": None, "tightBounds": None, "minValues": None, "nothing": None}
    odd = {**nulls, "minValues": {"x": math.nan, "f": -math.inf, "in": {"ner": None, "most": None}}}
    texts = stats_to_json(
        pa.chunked_array([pa.array([full, None], PARSED), pa.array([nulls, odd], PARSED)])
    ).to_pylist()
    assert texts[1] is None
    assert json.loads(texts[2]) == {}
    assert json.loads(texts[3]) == {"minValues": {"x": "NaN", "f": "-Infinity", "in": {}}}
    assert orjson.loads(texts[0]) == json.loads(texts[0], parse_float=float)
    assert json.loads(texts[0], parse_float=Decimal) == {
        "numRecords": 3,
        "tightBounds": False,
        "minValues": {
            'na"me.\n': 'q"\\\x01ü\U0001f600', "d": "2013-01-02", "ts": "2013-01-02T03:04:05.678901Z",
            "ntz": "2013-01-02T03:04:05.678000", "x": Decimal("1E+300"), "f": Decimal("0.5"),
            "dec": Decimal("-12345678901234567.891"), "in": {"ner": -5, "most": {"one": 1}},
        },
        "nothing": {},
    }  # fmt: skip


@given(st.lists(st.none() | TEXT, max_size=6), st.lists(st.none() | INT64, max_size=6))
def test_any_text_survives(texts: list[str | None], numbers: list[int | None]) -> None:
    rows = [{"s": s, "n": n} for s, n in zip(texts, numbers, strict=False)]
    parsed = pa.array(rows, pa.struct([("s", pa.string()), ("n", pa.int64())]))
    written = stats_to_json(pa.chunked_array([parsed])).to_pylist()
    assert [json.loads(text) for text in written] == [{k: v for k, v in row.items() if v is not None} for row in rows]


def test_a_cold_process_opens_a_table_without_pandas(tmp_path: Path) -> None:
    """`pa.array` and its like import pandas on first use, which costs more than reading a log."""
    from delta_orch.protocol.actions import Add, DeletionVectorDescriptor, Remove, Txn

    builder = LogBuilder(LocalStore(tmp_path / "t"))
    fields = ("p", "string"), ("id", "long"), ("x", "double"), ("d", "date")
    schema = {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}
    builder.create(json.dumps(schema), partition_columns=("p",))
    stats = '{"numRecords":1,"minValues":{"id":1,"x":0.5,"d":"2013-01-01"},"maxValues":{"id":1},"nullCount":{"id":0}}'
    adds = [Add(f"f{n}", {"p": str(n)}, n, 0, True, stats) for n in range(5)]
    builder.commit(*adds, Txn("a", 1))
    builder.checkpoint(1)
    vector = DeletionVectorDescriptor("u", "abc", 1, 1, 1)
    builder.commit(Remove("f1", True, 1), Add("f2", {"p": "x"}, 1, 0, True, deletion_vector=vector))
    code = f"""
import sys
from delta_orch.expressions.nodes import And, Column, Comparison, In, Literal, Not, IsNull
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.types import DATE, LONG, STRING, DOUBLE
from delta_orch.storage.local import LocalStore
import datetime
log = TableLog(LocalStore({str(tmp_path / "t")!r}))
snapshot = log.advance(log.snapshot(1))
assert snapshot.files().num_rows == 5, snapshot.files()
assert (snapshot.num_files, snapshot.size_bytes, snapshot.tombstones().num_rows) == (5, 10, 1)
where = And((
    In(Column(("p",)), (Literal("3", STRING), Literal("4", STRING))),
    Comparison("=", Column(("id",)), Literal(1, LONG)),
    Comparison("<=", Column(("d",)), Literal(datetime.date(2014, 1, 1), DATE)),
    Comparison(">", Column(("x",)), Literal(0.25, DOUBLE)),
    Not(IsNull(Column(("id",)))),
))
assert snapshot.files(["path"], where).num_rows == 2, snapshot.files(["path"], where)
log.history(), snapshot.txns, log.read_commit(1), snapshot.timestamp_ms
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numbers_of_any_width_become_longs(kind: Any) -> None:
    # Older NumPy counts in 32 bits on Windows.
    assert longs_from_numpy(np.arange(0, 12, 3, dtype=kind)).to_pylist() == [0, 3, 6, 9]
    assert longs_from_numpy(np.arange(12, dtype=kind)[::3]).to_pylist() == [0, 3, 6, 9]
