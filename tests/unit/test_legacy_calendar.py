"""Days and times by the calendar of their labels (what Spark itself makes of them: tests/spark)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.storage.legacy_calendar import LegacyCalendar, legacy_calendar, rebase_days, rebase_micros
from tests.handmade import HandmadeTable

LEGACY = {
    "org.apache.spark.version": "3.5.0",
    "org.apache.spark.legacyDateTime": "",
    "org.apache.spark.legacyINT96": "",
}
VERSION = "org.apache.spark.version"
EPOCH = date(1970, 1, 1)


def julian_day(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date of the Julian calendar, by the usual formula of Julian day numbers."""
    a = (14 - month) // 12
    y, m = year + 4800 - a, month + 12 * a - 3
    return day + (153 * m + 2) // 5 + 365 * y + y // 4 - 32083 - 2440588


def test_labels_stay_the_same() -> None:
    labels = [(y, m, d) for y in range(1, 1583, 7) for m, d in ((1, 1), (2, 28), (3, 1), (10, 4), (12, 31))]
    labels = [label for label in labels if label < (1582, 10, 5)]
    found = rebase_days(np.array([julian_day(*label) for label in labels]))
    assert found.tolist() == [(date(*label) - EPOCH).days for label in labels]
    # A day that only the Julian calendar has.
    assert rebase_days(np.array([julian_day(1000, 2, 29)])).tolist() == [(date(1000, 3, 1) - EPOCH).days]
    later = np.array([-141_427, -1, 0, 2_932_896])
    assert rebase_days(later).tolist() == later.tolist()


def test_times_of_a_zone() -> None:
    def micros(moment: datetime) -> int:
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    written = np.array([micros(datetime(1850, 1, 1, 8, tzinfo=UTC))])
    assert rebase_micros(written, "UTC").tolist() == written.tolist()
    # Midnight in Los Angeles, whose local mean time is 7:52:58 behind.
    assert rebase_micros(written, "America/Los_Angeles").tolist() == [
        micros(datetime(1850, 1, 1, 7, 52, 58, tzinfo=UTC))
    ]
    assert rebase_micros(written, "no zone").tolist() == written.tolist()


@pytest.mark.parametrize(
    ("metadata", "dates", "int96"),
    [
        (None, False, False),
        ({"writer": "other"}, False, False),
        ({VERSION: "3.5.0"}, False, False),
        ({VERSION: "3.0.1"}, False, True),
        ({VERSION: "2.4.8"}, True, True),
        (LEGACY, True, True),
    ],
)
def test_what_footers_say(tmp_path: Path, metadata: dict[str, str] | None, dates: bool, int96: bool) -> None:
    table = pa.table({"d": pa.array([1], pa.date32()), "t": pa.array([1], pa.timestamp("us"))})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "f", use_deprecated_int96_timestamps=True)
    found = legacy_calendar(pq.read_metadata(tmp_path / "f"))
    assert found == (LegacyCalendar(dates, frozenset("t" if int96 else ""), "UTC") if dates or int96 else None)


def test_nothing_old_is_not_touched() -> None:
    calendar = LegacyCalendar(True, frozenset(), "UTC")
    for values in (
        pa.array([date(1600, 1, 1), None], pa.date32()),
        pa.array([], pa.date32()),
        pa.array([None], pa.timestamp("us", "UTC")),
        pa.array([-(10**18)], pa.timestamp("us")),
        pa.array([[{"x": date(2000, 1, 1)}]]),
        pa.array(["a"]),
    ):
        assert calendar.rebase(values) is values


def test_nested_values_under_nulls_and_slices() -> None:
    calendar = LegacyCalendar(True, frozenset(), "UTC")
    old, new = date(1000, 1, 6), date(1000, 1, 1)
    kind = pa.struct([("l", pa.list_(pa.date32())), ("m", pa.map_(pa.string(), pa.date32()))])
    rows = [{"l": [old, None], "m": [("k", old)]}, None, {"l": None, "m": None}, {"l": [], "m": [("k", None)]}]
    wanted = [{"l": [new, None], "m": [("k", new)]}, None, {"l": None, "m": None}, {"l": [], "m": [("k", None)]}]
    array = pa.array([None, *rows, *rows], kind)
    assert calendar.rebase(array).to_pylist() == [None, *wanted, *wanted]
    assert calendar.rebase(array.slice(1, 5)).to_pylist() == [*wanted, wanted[0]]
    chunked = pa.chunked_array([array.slice(2, 2), array.slice(5)])
    assert calendar.rebase(chunked).to_pylist() == [*wanted[1:3], *wanted]


def test_predicates_look_at_the_dates_that_are_meant(tmp_path: Path) -> None:
    """Row groups are not left out by statistics in the other calendar."""
    stored = [date(1000, 1, 6), date(1200, 1, 8), date(2000, 1, 1)]
    table = pa.table({"d": pa.array(stored, pa.date32())}).replace_schema_metadata(LEGACY)
    made = HandmadeTable(tmp_path / "t")
    made.create(pa.schema([("d", pa.date32())]))
    made.commit(made.add("f.parquet", table, write={"row_group_size": 1}))
    snapshot = made.open().snapshot()
    meant = [date(1000, 1, 1), date(1200, 1, 1), date(2000, 1, 1)]
    assert snapshot.scan().to_arrow()["d"].to_pylist() == meant
    for day in meant:
        assert snapshot.scan(where=f"d = DATE'{day}'").to_arrow()["d"].to_pylist() == [day]
        assert snapshot.scan(where=f"d <= DATE'{day}'").to_arrow().num_rows == meant.index(day) + 1
