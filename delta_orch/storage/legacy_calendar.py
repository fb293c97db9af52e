"""Dates and times of Parquet files in the hybrid calendar: Julian before 15 October 1582, Gregorian since.

Spark before version 3, and still Databricks, write old dates in this calendar and record it in the footer. A label such
as 1 March 1000 then has another day number than in the proleptic Gregorian calendar of Parquet and Delta, so a reader
must move the value. Times before 1900 in zones other than UTC must move, too, because those writers did not use the
local mean times of the zones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import children_of, with_children

Days = npt.NDArray[np.int64]
Column = TypeVar("Column", pa.Array, pa.ChunkedArray)

_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_LEGACY_DATES, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"

_GREGORIAN_START_DAY = -141_427  # 15 October 1582
_JULIAN_FIRST_DAY = -719_164  # 1 January 1 of the Julian calendar
_DAY_US = 86_400_000_000
# The writers in question know zones from 1900 on, in UTC.
_FIRST_EXACT_US = -2_208_988_800_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LegacyCalendar:
    """The values of a file that must move.

    Attributes:
        dates: Whether dates and INT64 timestamps must move.
        int96_columns: The top-level columns whose INT96 timestamps must move.
        zone: The time zone of the writer.
    """

    dates: bool
    int96_columns: frozenset[str]
    zone: str

    def rebase_table(self, rows: pa.Table) -> pa.Table:
        """Convert rows of the file to the calendar of Delta."""
        for index, name in enumerate(rows.column_names):
            column = rows.column(index)
            moved = self.rebase(column, int96=name in self.int96_columns)
            if moved is not column:
                rows = rows.set_column(index, rows.schema.field(index), moved)
        return rows

    def rebase(self, column: Column, *, int96: bool = False) -> Column:
        """Convert one column of the file. Returns the same object if no value moves.

        Args:
            int96: Whether timestamps without a zone are INT96 timestamps that must move.
        """
        if isinstance(column, pa.ChunkedArray):
            chunks = [self.rebase(chunk, int96=int96) for chunk in column.chunks]
            if all(moved is chunk for moved, chunk in zip(chunks, column.chunks, strict=True)):
                return column
            return pa.chunked_array(chunks, column.type)
        return self._rebase_array(column, int96)

    def _rebase_array(self, array: pa.Array, int96: bool) -> pa.Array:
        kind = array.type
        if pa.types.is_date32(kind):
            return _moved(array, _GREGORIAN_START_DAY, rebase_days) if self.dates else array
        if pa.types.is_timestamp(kind):
            # A timestamp without a zone is INT96. Those writers do not have `timestamp_ntz`.
            applies = int96 if kind.tz is None else self.dates
            unit = {"s": 1_000_000, "ms": 1000, "us": 1}.get(kind.unit)
            if not applies or unit is None:
                return array
            return _moved(array, _FIRST_EXACT_US // unit, lambda ticks: rebase_micros(ticks * unit, self.zone) // unit)
        children = children_of(array) if len(array) else []
        moved = [self._rebase_array(child, int96) for child in children]
        if all(new is old for new, old in zip(moved, children, strict=True)):
            return array
        return with_children(array, moved, kind)


def legacy_calendar(metadata: pq.FileMetaData) -> LegacyCalendar | None:
    """Find the values of a file that must move, from its footer; None if no value can.

    A file that does not name its release of Spark needs no move.
    """
    entries = metadata.metadata or {}
    version = entries.get(_VERSION)
    if version is None:
        return None
    dates = version < b"3.0.0" or _LEGACY_DATES in entries
    int96: frozenset[str] = frozenset()
    if version < b"3.1.0" or _LEGACY_INT96 in entries:
        columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
        # A name may contain dots, so the set has both the whole path and its first part.
        paths = [column.path for column in columns if column.physical_type == "INT96"]
        int96 = frozenset([*paths, *(path.split(".")[0] for path in paths)])
    if not dates and not int96:
        return None
    return LegacyCalendar(dates, int96, entries.get(_ZONE, b"UTC").decode("utf-8", "replace"))


def _moved(array: pa.Array, exact_from: int, move: Callable[[Days], Days]) -> pa.Array:
    """Move the values below a bound. Returns the same array if there are none."""
    ticks = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    lowest = pc.min(ticks).as_py()
    if lowest is None or lowest >= exact_from:
        return array
    values = pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    old = values < exact_from
    values = values.copy()
    values[old] = move(values[old])
    mask = pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None
    moved = pa.array(values.astype(np.int32 if pa.types.is_date32(array.type) else np.int64), mask=mask)
    return moved.view(array.type)


def rebase_days(days: Days) -> Days:
    """Days since 1970 of labels in the hybrid calendar, as days of the same labels in the Gregorian calendar.

    29 February of a year that is a leap year in one calendar only becomes 1 March.
    """
    return days + _DIFFERENCES[np.searchsorted(_SWITCH_DAYS, days, side="right")]


def _switches() -> tuple[Days, Days]:
    """The first day of each period, and the days to add. The number falls by 1 after each 29 February of only Julian
    years."""
    centuries = [century for century in range(1, 16) if century % 4]
    days = [_JULIAN_FIRST_DAY + 36_525 * century - 365 - 1 + 60 for century in centuries]
    differences = [2 - passed for passed in range(len(centuries) + 1)]
    return np.array([*days, _GREGORIAN_START_DAY]), np.array([*differences, 0])


_SWITCH_DAYS, _DIFFERENCES = _switches()


def rebase_micros(micros: Days, zone: str) -> Days:
    """Convert times before 1900, in microseconds since 1970, to times with the same labels in the Gregorian calendar.

    The labels are in the local time of `zone`. An unknown zone counts as UTC.
    """
    offset_us = _standard_offset_us(zone)
    if offset_us is None:
        return _rebase_local(micros)
    # Python converts distinct times one by one, because the zone has a local mean time. So old times are few.
    distinct, index = np.unique(_rebase_local(micros + offset_us), return_inverse=True)
    place = ZoneInfo(zone)
    return np.array([_instant_us(int(local), place, offset_us) for local in distinct], dtype=np.int64)[index]


def _rebase_local(micros: Days) -> Days:
    days = np.floor_divide(micros, _DAY_US)
    return micros + (rebase_days(days) - days) * _DAY_US


def _standard_offset_us(zone: str) -> int | None:
    """The standard offset of the zone from UTC today; None for UTC and for an unknown zone."""
    try:
        place = ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        return None
    now = datetime(2020, 1, 1, tzinfo=place)
    offset, summer = now.utcoffset() or timedelta(0), now.dst() or timedelta(0)
    offset_us = (offset - summer) // timedelta(microseconds=1)
    is_utc = offset_us == 0 and datetime(1800, 1, 1, tzinfo=place).utcoffset() == timedelta(0)
    return None if is_utc else offset_us


def _instant_us(local_us: int, place: ZoneInfo, standard_us: int) -> int:
    try:
        local = (_EPOCH + timedelta(microseconds=local_us)).replace(tzinfo=None)
        offset = local.replace(tzinfo=place).utcoffset()
    except OverflowError:
        offset = None
    return local_us - (standard_us if offset is None else offset // timedelta(microseconds=1))
