from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import And, Column, Comparison, Expression, In, Literal, Or
from delta_orch.pipeline.partitions import Partition, merge_ranges, parse_key, partitions_predicate
from delta_orch.protocol import types as t

C = Column(("c",))
NEW_YORK = ZoneInfo("America/New_York")
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
YEAR = Partition("2013", datetime(2013, 1, 1, tzinfo=UTC), datetime(2014, 1, 1, tzinfo=UTC))


def day(text: str, zone: ZoneInfo | None = None) -> Partition:
    start = datetime.fromisoformat(text).replace(tzinfo=zone or UTC)
    return Partition(text, start, start + DAY)


def hour(text: str) -> Partition:
    start = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return Partition(start.strftime("%Y-%m-%d-%H:%M"), start, start + HOUR)


def between(low: object, high: object, data_type: t.DataType) -> And:
    return And((Comparison(">=", C, Literal(low, data_type)), Comparison("<", C, Literal(high, data_type))))


def equals(value: object, data_type: t.DataType) -> Comparison:
    return Comparison("=", C, Literal(value, data_type))


@pytest.mark.parametrize(
    ("data_type", "partition", "expected"),
    [
        (t.STRING, day("2013-01-05"), equals("2013-01-05", t.STRING)),
        (t.DATE, day("2013-01-05"), equals(date(2013, 1, 5), t.DATE)),
        (t.DATE, day("2013-01-05", NEW_YORK), equals(date(2013, 1, 5), t.DATE)),
        (t.INTEGER, day("2013-01-05"), equals(20130105, t.INTEGER)),
        (t.LONG, YEAR, equals(2013, t.LONG)),
        (
            t.TIMESTAMP,
            day("2013-01-05", NEW_YORK),
            between(datetime(2013, 1, 5, 5, tzinfo=UTC), datetime(2013, 1, 6, 5, tzinfo=UTC), t.TIMESTAMP),
        ),
        (
            t.TIMESTAMP_NTZ,
            day("2013-01-05", NEW_YORK),
            between(datetime(2013, 1, 5), datetime(2013, 1, 6), t.TIMESTAMP_NTZ),
        ),
        (
            t.DATE,
            Partition("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)),
            between(date(2013, 1, 1), date(2013, 2, 1), t.DATE),
        ),
        (t.STRING, Partition("JFK"), equals("JFK", t.STRING)),
        (t.INTEGER, Partition("-7"), equals(-7, t.INTEGER)),
        (t.BOOLEAN, Partition("true"), equals(True, t.BOOLEAN)),
        (t.DATE, Partition("2013-01-05"), equals(date(2013, 1, 5), t.DATE)),
        (
            t.TIMESTAMP,
            Partition("2013-01-05T01:00:00+01:00"),
            equals(datetime(2013, 1, 5, tzinfo=UTC), t.TIMESTAMP),
        ),
        (t.TIMESTAMP_NTZ, Partition("2013-01-05 01:00:00"), equals(datetime(2013, 1, 5, 1), t.TIMESTAMP_NTZ)),
    ],
)  # fmt: skip
def test_exact_predicates(data_type: t.DataType, partition: Partition, expected: Expression) -> None:
    assert partitions_predicate("c", data_type, [partition]) == expected


@pytest.mark.parametrize(
    ("data_type", "partition"),
    [
        (t.DATE, hour("2013-01-05T04:00")),
        (t.INTEGER, hour("2013-01-05T04:00")),
        (t.BOOLEAN, day("2013-01-05")),
        (t.DOUBLE, day("2013-01-05")),
        (t.DOUBLE, Partition("1.5")),
        (t.DecimalType(4, 2), Partition("1.50")),
        (t.INTEGER, Partition("07")),
        (t.INTEGER, Partition("seven")),
        (t.BYTE, Partition("128")),
        (t.INTEGER, Partition(str(2**31))),
        (t.DATE, Partition("20130105")),
        (t.TIMESTAMP, Partition("2013-01-05 00:00:00")),
        (t.TIMESTAMP_NTZ, Partition("2013-01-05 00:00:00+00:00")),
        (t.BOOLEAN, Partition("True")),
        (t.StructType(()), Partition("x")),
        (t.TIMESTAMP, Partition("x", datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC))),
        (t.TIMESTAMP, Partition("x", datetime(2013, 1, 1), datetime(2013, 1, 2))),
    ],
)
def test_uncertain_predicates_are_refused(data_type: t.DataType, partition: Partition) -> None:
    with pytest.raises(InvalidRequestError):
        partitions_predicate("c", data_type, [partition])


def test_formats() -> None:
    at = hour("2013-01-05T04:00")
    assert partitions_predicate("c", t.INTEGER, [at], text_format="%Y%m%d%H") == equals(2013010504, t.INTEGER)
    assert partitions_predicate("c", t.STRING, [at], text_format="%Y/%m/%d %H") == equals("2013/01/05 04", t.STRING)
    with pytest.raises(InvalidRequestError, match="does not hold the window's start"):
        partitions_predicate("c", t.INTEGER, [at], text_format="%Y%m%d")


def test_the_hour_a_clock_change_repeats() -> None:
    first = datetime(2013, 11, 3, 1, tzinfo=NEW_YORK)
    second = first.replace(fold=1)
    repeated = Partition("2013-11-03-01:00", first, second)
    with pytest.raises(InvalidRequestError, match="Wall time runs backwards"):
        partitions_predicate("c", t.TIMESTAMP_NTZ, [repeated])
    # Instants are told apart.
    assert partitions_predicate("c", t.TIMESTAMP, [repeated]) == between(
        datetime(2013, 11, 3, 5, tzinfo=UTC), datetime(2013, 11, 3, 6, tzinfo=UTC), t.TIMESTAMP
    )


def test_a_day_whose_midnight_is_skipped_is_still_that_day() -> None:
    zone = ZoneInfo("America/Sao_Paulo")  # On 2013-10-20 the clock went from 23:59 to 01:00.
    start = datetime(2013, 10, 20, 1, tzinfo=zone)
    end = datetime(2013, 10, 21, tzinfo=zone)
    assert partitions_predicate("c", t.DATE, [Partition("2013-10-20", start, end)]) == equals(
        date(2013, 10, 20), t.DATE
    )


def test_several_partitions() -> None:
    days = [day("2013-01-01"), day("2013-01-02"), day("2013-01-04")]
    assert partitions_predicate("c", t.DATE, days) == Or(
        (between(date(2013, 1, 1), date(2013, 1, 3), t.DATE), equals(date(2013, 1, 4), t.DATE))
    )
    assert partitions_predicate("c", t.STRING, days) == In(C, tuple(Literal(p.key, t.STRING) for p in days))
    assert partitions_predicate("c", t.STRING, [Partition("a"), Partition("a")]) == equals("a", t.STRING)
    with pytest.raises(InvalidRequestError, match="No partition"):
        partitions_predicate("c", t.STRING, [])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), min_size=1, max_size=8))
def test_merged_ranges_hold_the_same_points_and_do_not_touch(spans: list[tuple[int, int]]) -> None:
    ranges: list[Any] = [(low, low + length) for low, length in spans]
    merged: list[Any] = list(merge_ranges(ranges))
    for point in range(40):
        assert any(low <= point < high for low, high in ranges) == any(low <= point < high for low, high in merged)
    assert all(left[1] < right[0] for left, right in pairwise(merged))


@given(st.text(max_size=8), st.sampled_from([t.STRING, t.INTEGER, t.LONG, t.DATE, t.BOOLEAN]))
def test_a_key_that_parses_is_spelled_canonically(text: str, data_type: t.DataType) -> None:
    value = parse_key(text, data_type)
    if value is not None:
        assert str(value).lower() == text if data_type == t.BOOLEAN else str(value) == text
