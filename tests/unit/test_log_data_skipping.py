"""What statistics rule out: the property tests show that nothing is lost, these that something is gained."""

from __future__ import annotations

from datetime import date
from typing import Any

import orjson
import pyarrow as pa
import pytest

from delta_orch.errors import ProtocolViolationError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.log.read.skipping import file_statistics
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.read.skipping.predicates import partition_column
from delta_orch.protocol.arrow_building import string_array, string_map_array
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DecimalType,
    StructField,
    StructType,
)

SCHEMA = StructType(
    (
        StructField("day", DATE),
        StructField("id", LONG),
        StructField("name", STRING),
        StructField("x", DOUBLE),
        StructField("f", FLOAT),
        StructField("dec", DecimalType(10, 2)),
        StructField("wide", DecimalType(38, 2)),
        StructField("d", DATE),
        StructField("ts", TIMESTAMP),
        StructField("ntz", TIMESTAMP_NTZ),
        StructField("flag", BOOLEAN),
        StructField("n", StructType((StructField("a.b", LONG),))),
    )
)
UUIDS = ("11111111-1111-4111-8111-111111111111", "77777777-7777-4777-8777-777777777777")
STATISTICS = {
    "numRecords": 10,
    "minValues": {
        "id": 10, "name": UUIDS[0][:32], "x": 1.5, "dec": 1.25, "wide": 1000000.25, "d": "2013-01-02",
        "ts": "2013-01-02T03:04:05.678Z", "ntz": "2013-01-02T03:04:05.678", "n": {"a.b": 5},
    },
    "maxValues": {
        "id": 20, "name": UUIDS[1][:32], "x": 2.5, "dec": 9.75, "wide": 2000000.75, "d": "2013-01-09",
        "ts": "2013-01-09T03:04:05.678-08:00", "ntz": "2013-01-09T03:04:05.678", "n": {"a.b": 6},
    },
    "nullCount": {"id": 0, "name": 3, "x": 10, "dec": 0, "wide": 0, "d": 0, "ts": 0, "ntz": 0, "n": {"a.b": 0}},
}  # fmt: skip


@pytest.fixture(autouse=True, params=[64, 0], ids=["few", "many"])
def few_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of few files are read by Python, those of many by Arrow."""
    monkeypatch.setattr(file_statistics, "_FEW_FILES", request.param)


def _files(*statistics: Any, day: str | None = "2013-01-01") -> pa.Table:
    texts = [s if s is None or isinstance(s, str) else orjson.dumps(s).decode() for s in statistics]
    return pa.table(
        {
            "path": string_array([f"f{n}" for n in range(len(texts))]),
            "partition_values": string_map_array([{"day": day}] * len(texts)),
            "stats": string_array(texts),
        }
    )


def _may_match(where: str, files: pa.Table) -> list[bool]:
    predicate = resolve_expression(parse_expression(where), SCHEMA)
    result: list[bool] = match_files(files, predicate, SCHEMA, ("day",)).may_match.to_pylist()
    return result


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id = 15", True), ("id = 9", False), ("id = 21", False), ("id < 10", False), ("id <= 10", True),
        ("id > 20", False), ("id >= 20", True), ("id != 15", True), ("id <=> 9", False), ("id IS NULL", False),
        ("id IS NOT NULL", True), ("NOT id >= 10", False), ("NOT (id < 10 OR id > 20)", True), ("id IN (1, 30)", False),
        ("id IN (1, 12)", True),
        ("id NOT IN (1, 12)", True), ("id IN (1, NULL)", False), ("id BETWEEN 21 AND 30", False),
        ("id = 5 OR id = 11", True), ("id = 15 AND id = 30", False), ("id < 5.5", False), ("id > 20.5", False),
        ("id > 100 OR name IS NULL", True), ("id > 100 AND name IS NULL", False), ("id % 2 = 0", True),
        ("id > 20 AND id % 2 = 0", False), ("day = '2013-01-01' AND id = 9", False), ("day <> '2013-01-01'", False),
        ("name = 'abc'", False), (f"name = '{UUIDS[0]}'", True), (f"name = '{UUIDS[1]}'", True),
        ("name > '77777777-7777-4777-8778'", False), (f"name >= '{UUIDS[1]}'", True),
        ("name > '78'", False), ("name < '1'", False), ("name LIKE '1%'", True), ("name LIKE '0%'", False),
        ("name LIKE '8%'", False), ("name IS NULL", True),
        ("dec < 1.25", False),
        ("dec = 1.25", True), ("dec > 9.75", False), ("wide = 3", False), ("wide > 1999999", True),
        ("d = '2013-01-09'", True), ("d > '2013-01-09'", False), ("d < DATE'2013-01-02'", False),
        ("ts < '2013-01-02T03:04:05.678Z'", False), ("ts > '2013-01-09T11:04:05.6785Z'", True),
        ("ts > '2013-01-09T11:04:05.679Z'", False), ("ntz >= '2013-01-09T03:04:05.679'", False),
        ("ntz >= '2013-01-09T03:04:05.6789'", True), ("n.`a.b` = 7", False), ("n.`a.b` = 5", True), ("flag", True),
    ],
)  # fmt: skip
def test_one_file(where: str, expected: bool) -> None:
    assert _may_match(where, _files(STATISTICS)) == [expected]
    # Without statistics nothing but the partition decides.
    assert _may_match(where, _files(None)) == [where != "day <> '2013-01-01'"]


def test_a_column_without_values() -> None:
    files = _files(STATISTICS)
    assert _may_match("x = 2.0", files) == [False]
    assert _may_match("x IS NULL", files) == [True]
    assert _may_match("x IS NOT NULL", files) == [False]
    assert _may_match("NOT x = 2.0", files) == [False]


def test_not_a_number_may_hide_above_every_maximum() -> None:
    files = _files({**STATISTICS, "nullCount": {"x": 0}})
    assert _may_match("x > 3D", files) == [True]
    assert _may_match("x = double('NaN')", files) == [True]
    assert _may_match("x < 1D", files) == [False]
    assert _may_match("x = 3D", files) == [False]


@pytest.mark.parametrize("column", ["f", "x"])
def test_floats_are_told_of_in_few_digits(column: str) -> None:
    """The float 0.1 is 0.10000000149 as a double, 0.7 is 0.69999998808; `x` was a float once."""
    files = _files({"numRecords": 2, "minValues": {column: 0.7}, "maxValues": {column: 0.7}},
                   {"numRecords": 2, "minValues": {column: 0.1}, "maxValues": {column: 0.1}},
                   {"numRecords": 2, "minValues": {column: "-Infinity"}, "maxValues": {column: 3.0}})  # fmt: skip
    assert _may_match(f"{column} < 0.7D", files) == [True, True, True]
    assert _may_match(f"{column} < 0.6999D", files) == [False, True, True]
    assert _may_match(f"{column} = CAST(0.1 AS FLOAT)", files) == [False, True, True]
    assert _may_match(f"{column} = 0.2D", files) == [False, False, True]
    assert _may_match(f"{column} = -1e300D", files) == [False, False, True]


def test_long_lists_are_judged_by_their_ends() -> None:
    low = ", ".join(str(n) for n in range(-500, 0))
    assert _may_match(f"id IN ({low})", _files(STATISTICS)) == [False]
    assert _may_match(f"id IN ({low}, 100)", _files(STATISTICS)) == [True]


@pytest.mark.parametrize(
    "unusual",
    [
        '{"numRecords": 10,\n "minValues": {"id": 10},\r\n "maxValues": {"id": 20}}',
        '{"minValues":{"id":10.0},"maxValues":{"id":2e1}}',
        '{"minValues":{"id":10},"maxValues":{"id":20},"unknown":[{"a":1}]}',
        '{"minValues":{"id":10,"name":5},"maxValues":{"id":20,"name":[]}}',
    ],
)
def test_unusual_statistics_still_count(unusual: str) -> None:
    assert _may_match("id > 20", _files(unusual, STATISTICS, None)) == [False, False, True]


@pytest.mark.parametrize(
    "useless",
    [
        "",
        " \n",
        "{",
        "null",
        "[]",
        "5",
        '"text"',
        '{"minValues":5}',
        '{"maxValues":{"id":"a"}}',
        "{}{}",
        '{"a":"}',
        "} {",
    ],
)
def test_useless_statistics_prune_nothing_and_spoil_no_others(useless: str) -> None:
    assert _may_match("id > 20", _files(STATISTICS, useless, STATISTICS)) == [False, True, False]


@pytest.mark.parametrize("spelled", ["9007199254740993.0", "9.007199254740993e15", "-9007199254740993.0"])
def test_integers_that_doubles_cannot_tell_apart_are_no_bounds(spelled: str) -> None:
    statistics = f'{{"minValues":{{"id":{spelled}}},"maxValues":{{"id":{spelled}}}}}'
    assert _may_match(f"id = {spelled[:1].strip('9')}9007199254740993", _files(statistics)) == [True]


def test_very_long_statistics() -> None:
    long = {**STATISTICS, "minValues": {"id": 1, "name": "x" * 3_000_000}}
    assert _may_match("id > 20", _files(long, STATISTICS, long)) == [False] * 3


def test_many_files_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_statistics, "_BATCH_ROWS", 7)
    statistics = [{"minValues": {"id": n}, "maxValues": {"id": n}} for n in range(50)]
    files = _files(*statistics)
    chunked = pa.concat_tables([files.slice(0, 11), files.slice(11)])
    assert [n for n, may in enumerate(_may_match("id IN (3, 44)", chunked)) if may] == [3, 44]


def test_no_files() -> None:
    assert _may_match("id = 5 AND day = '2013-01-01'", _files()) == []


def test_partition_column() -> None:
    files = _files(None, None)
    values = [
        f["partition_values"].combine_chunks() for f in (files, _files(None, day=None), _files(None, day="yesterday"))
    ]
    assert partition_column(values[0], "DAY", SCHEMA).to_pylist() == [date(2013, 1, 1)] * 2
    assert partition_column(values[1], "day", SCHEMA).to_pylist() == [None]
    with pytest.raises(ProtocolViolationError):
        partition_column(values[2], "day", SCHEMA)


def test_physical_names_decide_in_the_log() -> None:
    schema = StructType(
        (
            StructField("day", DATE, True, {"delta.columnMapping.physicalName": "col-1"}),
            StructField("id", LONG, True, {"delta.columnMapping.physicalName": "col-2"}),
        )
    )
    files = pa.table(
        {
            "partition_values": string_map_array([{"col-1": "2013-01-01"}, {"col-1": "2013-01-02"}]),
            "stats": string_array(['{"maxValues":{"col-2":5}}', '{"maxValues":{"id":5}}']),
        }
    )
    for where, expected in (("day = '2013-01-02'", [False, True]), ("id > 5", [False, True])):
        predicate = resolve_expression(parse_expression(where), schema)
        assert match_files(files, predicate, schema, ("day",)).may_match.to_pylist() == expected


def test_times_without_a_zone_are_no_instant() -> None:
    times = {"minValues": {"ts": "2013-01-02T03:04:05.678"}, "maxValues": {"ts": "2013-01-02T03:04:05.678"}}
    assert _may_match("ts > '2020-01-01T00:00:00Z'", _files(times)) == [True]
