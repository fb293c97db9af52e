"""Keys and values over generated definitions: cadences × zones × column types × formats.

The model enumerates windows around changes of clocks and asks nothing but whether their rows are distinct.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster.partitions import ensure_one_to_one, keys_of_value, no_keys, partition_of
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import And, Comparison, Literal
from delta_orch.pipeline.partitions import Partition, partitions_predicate
from delta_orch.protocol.schema import data_type_from_json
from delta_orch.protocol.table_properties import WINDOWS
from delta_orch.protocol.types import StructField
from tests.dagster.lake import Lake

ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata"]
CADENCES = ["0 * * * *", "0 */6 * * *", "0 0 * * *", "0 0 * * 0", "0 0 1 * *"]
TYPES = ["string", "long", "date", "timestamp", "timestamp_ntz"]
FORMATS = [None, "%Y-%m-%d", "%Y%m%d", "%Y%m%d%H", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M%z", "%m-%d", "%H"]
SPANS = [("2013-11-02", "2013-11-05"), ("2013-10-26", "2013-10-29"), ("2013-03-09", "2013-03-12")]


def definition(cadence: str, zone: str, span: tuple[str, str]) -> dg.TimeWindowPartitionsDefinition:
    start, end = (datetime.fromisoformat(day) for day in span)
    if cadence in ("0 0 * * 0", "0 0 1 * *"):
        # Whole windows: of a part of one Dagster lists the key and denies that it has it.
        start, end = start.replace(month=start.month - 2, day=1), end.replace(month=end.month + 1, day=1)
    text_format = "%Y-%m-%d" if cadence.startswith("0 0 ") else "%Y-%m-%d-%H:%M"
    return dg.TimeWindowPartitionsDefinition(start, text_format, end, timezone=zone, cron_schedule=cadence)


def all_keys(partitions_def: dg.PartitionsDefinition[str]) -> Sequence[str]:
    return partitions_def.get_partition_keys()


def rows_of(partition: Partition, data_type: Any, text_format: str | None) -> tuple[Any, Any] | None:
    """The first row of a partition and the first one after it; None for a partition that is refused."""
    try:
        predicate = partitions_predicate("c", data_type, [partition], text_format=text_format)
    except InvalidRequestError:
        return None
    tests = predicate.children if isinstance(predicate, And) else (predicate,)
    values = []
    for test in tests:
        assert isinstance(test, Comparison)
        assert isinstance(test.right, Literal)
        values.append(test.right.value)
    if len(values) == 2:
        return values[0], values[1]
    (value,) = values
    return value, value + timedelta(days=1) if isinstance(value, date) else None


def is_one_to_one(windows: list[tuple[str, tuple[Any, Any]]]) -> bool:
    if not windows or windows[0][1][1] is None:
        return len({rows[0] for _, rows in windows}) == len(windows)
    ordered = sorted(rows for _, rows in windows)
    return all(one[1] <= other[0] for one, other in pairwise(ordered))


# Of weeks in Havana, whose clocks change at midnight, Dagster cannot list the keys.
CASES = [*product(CADENCES, ZONES), ("*/30 * * * *", "America/New_York"), ("*/30 * * * *", "America/Havana")]
CASES.remove(("0 0 * * 0", "America/Havana"))


@pytest.mark.long
@pytest.mark.parametrize(("cadence", "zone"), CASES)
def test_keys_and_values(cadence: str, zone: str) -> None:
    accepted = 0
    for span, name, text_format in product(SPANS, TYPES, FORMATS):
        if text_format is not None and name not in ("string", "long"):
            continue
        partitions_def, data_type = definition(cadence, zone, span), data_type_from_json(name)
        keys = list(dict.fromkeys(partitions_def.get_partition_keys()))
        found = [(key, rows_of(partition_of(partitions_def, key), data_type, text_format)) for key in keys]
        windows = [(key, rows) for key, rows in found if rows is not None]
        case = (cadence, zone, span, name, text_format)
        try:
            ensure_one_to_one(partitions_def, StructField("c", data_type), text_format, no_keys)
        except InvalidRequestError:
            assert len(windows) < len(keys) or not is_one_to_one(windows), case
            continue
        assert is_one_to_one(windows), case
        accepted += len(windows)
        if zone == "Australia/Lord_Howe" and not cadence.startswith("0 0 "):
            # Dagster lists keys there that are not those of its windows: the clocks change by half an hour.
            continue
        for key, (low, high) in windows:
            inside = [low]
            if isinstance(low, datetime):
                inside += [high - timedelta(microseconds=1), low + (high - low) / 2]
            for value in inside:
                assert keys_of_value(partitions_def, "c", data_type, value, text_format=text_format).keys == (key,), (
                    case,
                    key,
                    value,
                )
    assert accepted


@pytest.mark.parametrize("name", ["timestamp", "timestamp_ntz"])
def test_spellings_of_one_timestamp(name: str) -> None:
    zone = "+00:00" if name == "timestamp" else ""
    two = dg.StaticPartitionsDefinition([f"2013-01-01T00:00:00{zone}", f"2013-01-01 00:00:00{zone}", "x"])
    field = StructField("c", data_type_from_json(name))
    with pytest.raises(InvalidRequestError, match="are the same rows"):
        ensure_one_to_one(two, field, None, all_keys)
    one = dg.StaticPartitionsDefinition([f"2013-01-01 00:00:00{zone}", "x"])
    ensure_one_to_one(one, field, None, all_keys)
    value = datetime(2013, 1, 1, tzinfo=UTC if zone else None)
    found = keys_of_value(one, "c", field.data_type, value, known_keys=all_keys)
    assert found.keys == (f"2013-01-01 00:00:00{zone}",)


@pytest.mark.parametrize(("value", "where"), [("2012-12-31", "outside"), ("2013-01-06", "outside"), (None, "outside")])
def test_outside(value: Any, where: str) -> None:
    days = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")
    assert keys_of_value(days, "c", data_type_from_json("string"), value).where == where


@pytest.mark.long
@pytest.mark.parametrize("column", ["string", "date"])
def test_the_windows_of_a_definition_change(tmp_path: Path, column: str) -> None:
    """Texts would keep the rows of the old windows beside the new ones; dates lie in windows of any length."""
    lake = Lake(tmp_path)

    def events(partitions_def: Any) -> Any:
        @dg.asset(partitions_def=partitions_def, metadata={"partition_expr": "day"})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            key = context.partition_key
            return pa.table({"day": [date.fromisoformat(key) if column == "date" else key], "n": [1]})

        return events

    daily = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-20")
    weekly = dg.WeeklyPartitionsDefinition("2013-01-01", end_date="2013-01-20")
    for key in ("2013-01-06", "2013-01-08"):
        lake.run(events(daily), partition=key)
    # Another start or end changes nothing.
    lake.run(events(dg.DailyPartitionsDefinition("2012-01-01")), partition="2013-01-08")
    if column == "date":
        lake.run(events(weekly), partition="2013-01-06")
        assert [row["day"] for row in lake.rows("events")] == [date(2013, 1, 6)]
        return
    assert "holds other partitions" in str(lake.fails(events(weekly), partition="2013-01-06"))
    # As the error says.
    lake.table("events").delete("day < '2014'")
    windows = lake.table("events").snapshot().metadata.configuration[f"{WINDOWS}day"]
    assert windows == "0 0 * * *; %Y-%m-%d"
    lake.table("events").alter().set_properties({f"{WINDOWS}day": "0 0 * * 0; %Y-%m-%d"}).commit()
    assert lake.run(events(weekly), partition="2013-01-06").success
    hourly = dg.HourlyPartitionsDefinition("2013-01-06-00:00", end_date="2013-01-07-00:00")
    assert "holds other partitions" in str(lake.fails(events(hourly), partition="2013-01-06-03:00"))


def test_an_asset_that_appends_finds_rows_by_its_windows(tmp_path: Path) -> None:
    """Its unit is the key: a week would replace the day of the same key, and leave the others beside its rows."""
    lake = Lake(tmp_path)

    def events(partitions_def: dg.PartitionsDefinition[str], days: list[int], **unit: str) -> dg.AssetsDefinition:
        @dg.asset(
            partitions_def=partitions_def, metadata={"partition_expr": "day", "write": "append", **unit}, name="added"
        )
        def added() -> pa.Table:
            return pa.table({"day": [date(2013, 1, day) for day in days], "n": days})

        return added

    daily = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-20")
    weekly = dg.WeeklyPartitionsDefinition("2013-01-01", end_date="2013-01-20")
    for day in (6, 7):
        lake.run(events(daily, [day]), partition=f"2013-01-0{day}")
    assert "holds other partitions" in str(lake.fails(events(weekly, [6, 7]), partition="2013-01-06"))
    lake.table("added").delete("day < '2014-01-01'")
    lake.table("added").alter().set_properties({f"{WINDOWS}day@added": "0 0 * * 0"}).commit()
    lake.run(events(weekly, [6, 7]), partition="2013-01-06")
    assert sorted(row["n"] for row in lake.rows("added")) == [6, 7]
    # Where each run adds to a partition, its windows do not matter.
    lake.run(events(daily, [8], unit="run"), partition="2013-01-08")
    assert sorted(row["n"] for row in lake.rows("added")) == [6, 7, 8]


PARTITIONS = {
    "months": (dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2014-01-01"), "2013-09-01"),
    "weeks": (dg.WeeklyPartitionsDefinition("2013-01-06", end_date="2014-01-01"), "2013-09-01"),
    "days": (dg.DailyPartitionsDefinition("2013-01-01", end_date="2014-01-01"), "2013-09-01"),
    "keys": (dg.StaticPartitionsDefinition(["a", "2013-09-01"]), "a"),
}


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new in product(PARTITIONS, repeat=2) if old != new])
def test_keys_that_are_spelled_alike(tmp_path: Path, old: str, new: str) -> None:
    """A week, a month and a day begin with the same text: the table tells which of them it holds."""
    lake = Lake(tmp_path)

    def events(partitions_def: Any) -> Any:
        # Also where the table is not partitioned by them.
        by: dict[str, Any] = {"partition_by": []} if old == "months" else {}

        @dg.asset(partitions_def=partitions_def, metadata={"partition_expr": "day", **by})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({"day": [context.partition_key], "n": [1]})

        return events

    (before, before_key), (after, after_key) = PARTITIONS[old], PARTITIONS[new]
    lake.run(events(before), partition=before_key)
    assert "holds other partitions" in str(lake.fails(events(after), partition=after_key))
    assert [row["day"] for row in lake.rows("events")] == [before_key]
    lake.table("events").delete()
    said = f"{after.cron_schedule}; {after.fmt}" if isinstance(after, dg.TimeWindowPartitionsDefinition) else "keys"
    lake.table("events").alter().set_properties({f"{WINDOWS}day": said}).commit()
    lake.run(events(after), partition=after_key)
    assert [row["day"] for row in lake.rows("events")] == [after_key]


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"fmt": "%Y-%m-%d"}, {"fmt": "%Y%m%d"}),
        ({"written": "%Y-%m-%d"}, {"written": "%Y/%m/%d"}),
        ({"written": "%Y%m%d", "number": True}, {"written": "%y%m%d", "number": True}),
        ({"written": "%Y-%m-%d %z"}, {"written": "%Y-%m-%d %z", "timezone": "Europe/Berlin"}),
        # These mean the same rows.
        ({"written": "%Y-%m-%d"}, {"timezone": "Europe/Berlin"}),
        ({"number": True}, {"fmt": "%Y%m%d", "number": True}),
    ],
)
def test_texts_are_written_in_another_format(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """The rows of a day would stay beside those that are written in the new format."""
    lake = Lake(tmp_path)

    def run(
        fmt: str = "%Y-%m-%d", written: str | None = None, timezone: str = "UTC", number: bool = False
    ) -> tuple[Any, str]:
        days = dg.DailyPartitionsDefinition(datetime(2013, 1, 1), fmt=fmt, timezone=timezone)
        said = {"partition_format": written} if written else {}

        @dg.asset(partitions_def=days, metadata={"partition_expr": "day", "partition_by": [], **said})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            text = context.partition_time_window.start.strftime(written or fmt)
            return pa.table({"day": [int(text.replace("-", "")) if number else text]})

        return events, datetime(2013, 1, 2).strftime(fmt)

    asset, key = run(**old)
    lake.run(asset, partition=key)
    before = lake.rows("events")
    asset, key = run(**new)
    if "written" in new or ("fmt" in new and "number" not in new):
        assert "holds other partitions" in str(lake.fails(asset, partition=key))
    else:
        lake.run(asset, partition=key)
    assert lake.rows("events") == before


def test_the_windows_of_a_table_from_before_it_had_partitions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def events(partitions_def: Any) -> Any:
        @dg.asset(partitions_def=partitions_def, metadata={"partition_expr": "day"} if partitions_def else {})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({"day": [20130101]})

        return events

    days, weeks = dg.DailyPartitionsDefinition("2013-01-01"), dg.WeeklyPartitionsDefinition("2013-01-01", day_offset=2)
    assert lake.run(events(None)).success
    assert lake.run(events(days), partition="2013-01-01").success
    assert lake.table("events").snapshot().metadata.configuration[f"{WINDOWS}day"] == "0 0 * * *; %Y%m%d"
    # A week's rows are not those of its first day.
    assert "holds other partitions" in str(lake.fails(events(weeks), partition="2013-01-01"))
    version = lake.table("events").version()
    assert lake.run(events(days), partition="2013-01-01").success
    assert lake.table("events").version() == version + 1


def test_a_table_of_others_that_an_asset_takes_for_its_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table("events").append(pa.table({"day": ["2013-01-31"], "n": [0]}))

    def events(partitions_def: Any, **metadata: str) -> Any:
        @dg.asset(partitions_def=partitions_def, metadata={"partition_expr": "day", **metadata})
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            return pa.table({"day": [context.partition_key], "n": [1]})

        return events

    (days, key), (months, _) = PARTITIONS["days"], PARTITIONS["months"]
    # Who adds rows does not own the table.
    lake.run(events(days, write="append"), partition=key)
    assert f"{WINDOWS}day" not in lake.table("events").snapshot().metadata.configuration
    lake.run(events(days), partition=key)
    assert lake.table("events").snapshot().metadata.configuration[f"{WINDOWS}day"] == "0 0 * * *; %Y-%m-%d"
    assert "holds other partitions" in str(lake.fails(events(months), partition=key))
    assert lake.rows("events") == [{"day": "2013-01-31", "n": 0}, {"day": key, "n": 1}]
