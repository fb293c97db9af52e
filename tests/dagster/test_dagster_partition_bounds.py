"""A run of a partitioned asset that appends or merges writes into its own partitions, however the table is laid out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.errors import ConstraintViolationError, InvalidRequestError
from tests.dagster.lake import Lake

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")
ONE, TWO, THREE = "2013-01-01", "2013-01-02", "2013-01-03"
LAYOUTS: list[list[str]] = [["day"], ["region"], []]
PLAIN: dict[str, str] = {}
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}

Rows = list[tuple[Any, int, str]]


def table_of(rows: Rows) -> pa.Table:
    days, ids, texts = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "day": pa.array(days, pa.string()),
            "id": pa.array(ids, pa.int64()),
            "text": pa.array(texts, pa.string()),
            "region": pa.array(["north" if number % 2 else "south" for number in ids], pa.string()),
        }
    )


def asset_of(batches: Iterator[Rows], layout: list[str] | None, **metadata: Any) -> dg.AssetsDefinition:
    """Each run returns the next of the batches."""
    more = {} if layout is None else {"partition_by": layout}

    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day", **more, **metadata},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def events() -> pa.Table:
        return table_of(next(batches))

    return events


def found(lake: Lake) -> list[tuple[Any, int, str]]:
    return sorted(((row["day"], row["id"], row["text"]) for row in lake.rows("events")), key=repr)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "layout", "exactly_once"),
    [
        *((mode, layout, True) for mode in ("append", "merge") for layout in LAYOUTS),
        ("append", ["day"], False),
        ("merge", ["region"], False),
        ("error", ["region"], True),
        ("ignore", [], True),
    ],
)
def test_a_row_outside_is_refused(tmp_path: Path, mode: str, layout: list[str], exactly_once: bool) -> None:
    lake = Lake(tmp_path, write=mode, merge_keys=["id"], exactly_once=exactly_once)
    for bad in (TWO, None):
        rows: Rows = [(ONE, 1, "a"), (bad, 2, "b")]
        error = lake.fails(asset_of(itertools.repeat(rows), layout), partition=ONE)
        assert isinstance(error, ConstraintViolationError), error
        assert not lake.table("events").exists() or lake.rows("events") == []
    lake.run(asset_of(iter([[(ONE, 1, "a")]]), layout), partition=ONE)
    lake.run(asset_of(iter([[(TWO, 2, "b")]]), layout), partition=TWO)
    version = lake.table("events").version()
    assert isinstance(lake.fails(asset_of(itertools.repeat([(ONE, 9, "z")]), layout), partition=THREE), Exception)
    assert lake.table("events").version() == version
    assert found(lake) == [(ONE, 1, "a"), (TWO, 2, "b")]


def test_an_append_of_days_to_a_table_of_instants(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="append")
    moments = [datetime(2013, 1, 1, 23, 59, 59, 999_999), datetime(2013, 1, 2)]

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "at", "partition_by": []})
    def events() -> pa.Table:
        return pa.table({"at": pa.array(moments, pa.timestamp("us"))})

    assert isinstance(lake.fails(events, partition=ONE), ConstraintViolationError)
    assert not lake.table("events").exists()
    del moments[1:]
    lake.run(events, partition=ONE)
    assert [row["at"] for row in lake.rows("events")] == moments


def test_a_months_run_appends_its_days(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="append")
    days = [date(2013, 1, 31), date(2013, 2, 1)]

    @dg.asset(
        partitions_def=dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2013-04-01"),
        metadata={"partition_expr": "Day", "partition_by": []},
    )
    def events() -> pa.Table:
        return pa.table({"Day": days})

    assert isinstance(lake.fails(events, partition="2013-01-01"), ConstraintViolationError)
    days.pop()
    lake.run(events, partition="2013-01-01")
    assert lake.rows("events") == [{"Day": date(2013, 1, 31)}]


@pytest.mark.long
@pytest.mark.parametrize(
    ("properties", "layout"), [*((PLAIN, layout) for layout in LAYOUTS), (VECTORS, []), (FEED, ["region"])]
)
def test_a_merge_moves_no_row_out_of_another_partition(
    tmp_path: Path, layout: list[str], properties: dict[str, str]
) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["id"], properties=properties)
    lake.run(asset_of(iter([[(ONE, 1, "a"), (ONE, 3, "c")]]), layout), partition=ONE)
    lake.run(asset_of(iter([[(TWO, 2, "b")]]), layout), partition=TWO)
    version = lake.table("events").version()
    error = lake.fails(asset_of(itertools.repeat([(TWO, 1, "A"), (TWO, 2, "B")]), layout), partition=TWO)
    assert isinstance(error, ConstraintViolationError)
    assert "another partition" in str(error)
    assert error.context["rows"] == [{"target.id": 1}]
    assert lake.table("events").version() == version
    # What stays inside goes through, also in files that hold rows of other partitions.
    lake.run(asset_of(iter([[(TWO, 2, "B"), (TWO, 4, "d")]]), layout), partition=TWO)
    lake.run(asset_of(iter([[(ONE, 1, "A")]]), layout), partition=ONE)
    assert found(lake) == [(ONE, 1, "A"), (ONE, 3, "c"), (TWO, 2, "B"), (TWO, 4, "d")]


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_the_partition_among_its_keys_a_merge_sees_one_partition(tmp_path: Path, layout: list[str]) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["day", "id"])
    # In any order, and late: each partition has what its own last run says.
    for partition, text in ((TWO, "b"), (ONE, "a"), (THREE, "c"), (ONE, "A"), (TWO, "B")):
        lake.run(asset_of(iter([[(partition, 1, text)]]), layout), partition=partition)
    assert found(lake) == [(ONE, 1, "A"), (TWO, 1, "B"), (THREE, 1, "c")]


def test_within_one_run_over_several_partitions_no_row_moves_either(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["id"])
    lake.run(asset_of(iter([[(ONE, 1, "a"), (TWO, 2, "b")]]), None), span=(ONE, TWO))
    version = lake.table("events").version()
    error = lake.fails(asset_of(itertools.repeat([(TWO, 1, "A")]), None), span=(ONE, TWO))
    assert isinstance(error, ConstraintViolationError)
    assert lake.table("events").version() == version
    lake.run(asset_of(iter([[(ONE, 1, "A"), (TWO, 2, "B"), (TWO, 3, "c")]]), None), span=(ONE, TWO))
    assert found(lake) == [(ONE, 1, "A"), (TWO, 2, "B"), (TWO, 3, "c")]


@pytest.mark.parametrize("late", [[(ONE, 1, "old"), (TWO, 2, "b")], [(ONE, 5, "old"), (TWO, 2, "b")]])
def test_a_late_range_leaves_out_what_a_newer_run_has_written(tmp_path: Path, late: Rows) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["id"])
    newer = asset_of(iter([[(ONE, 1, "new")]]), None)

    def overtaken() -> Iterator[Rows]:
        lake.run(newer, partition=ONE)
        yield late

    lake.run(asset_of(overtaken(), None), span=(ONE, TWO))
    assert found(lake) == [(ONE, 1, "new"), (TWO, 2, "b")]


def test_a_late_range_takes_no_row_of_a_partition_that_it_leaves_out(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["id"])
    newer = asset_of(iter([[(ONE, 1, "new")]]), None)

    def overtaken() -> Iterator[Rows]:
        lake.run(newer, partition=ONE)
        yield [(TWO, 1, "late")]
        yield [(TWO, 1, "late")]

    result = lake.run(asset_of(overtaken(), None), span=(ONE, TWO), raise_on_error=False)
    assert not result.success
    assert found(lake) == [(ONE, 1, "new")]


def test_a_range_needs_the_partition_column_in_its_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path, write="merge", merge_keys=["id"])
    lake.run(asset_of(iter([[(ONE, 1, "a")]]), None), partition=ONE)

    @dg.asset(
        name="events",
        partitions_def=DAYS,
        metadata={"partition_expr": "day", "schema_mode": "merge"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def without_day() -> pa.Table:
        return pa.table({"id": [1], "text": ["x"]})

    assert isinstance(lake.fails(without_day, span=(ONE, TWO)), InvalidRequestError)
    # A new row without a value lies nowhere; for a row of this very partition the table's value stays.
    lake.run(without_day, partition=ONE)
    assert isinstance(lake.fails(without_day, partition=TWO), ConstraintViolationError)
    assert found(lake) == [(ONE, 1, "x")]
