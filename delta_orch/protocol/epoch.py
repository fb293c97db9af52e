"""Points in time as numbers, and those that Python's calendar, of the years 1 to 9999, does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_LAST_ORDINAL = date.max.toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DAY_MICROS = 86_400_000_000
_CYCLE_DAYS = 146_097
"""Of 400 years, after which the calendar repeats itself, days of the week included."""


@dataclass(frozen=True, slots=True, order=True, repr=False)
class FarDate:
    """A day outside the years 1 to 9999, by its days since 1970-01-01."""

    days: int

    def isoformat(self) -> str:
        """As Spark writes it: `+20000-01-01`, `-0044-03-15`."""
        cycles, day = divmod(self.days + _EPOCH_ORDINAL - 1, _CYCLE_DAYS)
        inside = date.fromordinal(day + 1)
        year = inside.year + 400 * cycles
        return f"{year:04}{inside:-%m-%d}" if 0 <= year <= 9999 else f"{year:+05}{inside:-%m-%d}"

    __str__ = __repr__ = isoformat


@dataclass(frozen=True, slots=True, order=True, repr=False)
class FarMoment:
    """A time outside the years 1 to 9999, by its microseconds since 1970-01-01. `utc`: it is a `timestamp`, not a
    `timestamp_ntz`."""

    micros: int
    utc: bool

    def isoformat(self, sep: str = "T") -> str:
        days, micros = divmod(self.micros, _DAY_MICROS)
        time = (_EPOCH + timedelta(microseconds=micros)).time()
        day = date_of(days).isoformat()
        return f"{day}{sep}{time.isoformat('microseconds')}{'+00:00' if self.utc else ''}"

    __str__ = __repr__ = isoformat


def date_of(days: int) -> date | FarDate:
    """The day that is so many days after 1970-01-01."""
    ordinal = days + _EPOCH_ORDINAL
    return date.fromordinal(ordinal) if 1 <= ordinal <= _LAST_ORDINAL else FarDate(days)


def moment_of(micros: int, *, utc: bool) -> datetime | FarMoment:
    """The time so many microseconds after 1970-01-01, aware where it is in UTC."""
    try:
        return (_EPOCH_UTC if utc else _EPOCH) + timedelta(microseconds=micros)
    except OverflowError:
        return FarMoment(micros, utc)


def near_year(year: int) -> tuple[int, int]:
    """A year with the same calendar that Python has, and how many days earlier that is."""
    near = year % 400 + (9200 if year > 0 else 400)
    return near, (year - near) // 400 * _CYCLE_DAYS


def days_since_epoch(day: date | FarDate) -> int:
    """Whole days since 1970-01-01."""
    return day.days if isinstance(day, FarDate) else day.toordinal() - _EPOCH_ORDINAL


def micros_since_epoch(moment: datetime | FarMoment) -> int:
    """Whole microseconds since 1970-01-01, in UTC; of a datetime without a zone since then by the same clock.

    In integers: a float of seconds does not hold every millisecond. Classes derived of `datetime`, such as pendulum's,
    which Airflow gives to its tasks, have differences of their own, which are not divided by a `timedelta`.
    """
    if isinstance(moment, FarMoment):
        return moment.micros
    return datetime.__sub__(moment, _EPOCH if moment.utcoffset() is None else _EPOCH_UTC) // _MICROSECOND
