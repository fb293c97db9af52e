"""Sums of a constant date or time with days or an interval: they are constants, so that files are left out by them.

Spark adds days and months in the zone of its session. Here, as everywhere in predicates, that is UTC.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, datetime, timedelta

from delta_orch.expressions.nodes import Literal
from delta_orch.protocol.types import BYTE, DATE, INTEGER, SHORT, TIMESTAMP, TIMESTAMP_NTZ, DataType

_INTERVAL = re.compile(r"'?\s*([+-]?\d{1,9})\s*'? (YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND)S?")
_TIMES = {"WEEK": "weeks", "DAY": "days", "HOUR": "hours", "MINUTE": "minutes", "SECOND": "seconds"}
_DAYS: tuple[DataType | None, ...] = (None, BYTE, SHORT, INTEGER)


def days_after(start: Literal, days: Literal | None, sign: int) -> Literal | None:
    """A date and a whole number of days; `sign` -1 goes back. None where it is not known to be a constant."""
    if start.data_type != DATE or days is None or days.data_type not in _DAYS or type(days.value) is not int:
        return None
    return _after(start, timedelta(days=1), days.value * sign)


def interval_after(start: Literal, interval: str, sign: int) -> Literal | None:
    """A date or time and an interval of one unit, as text has it without its first word. None as of `days_after`, and
    where a date and an interval are a time."""
    found = _INTERVAL.fullmatch(interval)
    if found is None or start.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return None
    count, unit = int(found[1]) * sign, found[2]
    if unit in ("YEAR", "MONTH"):
        return months_after(start, count * (12 if unit == "YEAR" else 1))
    if start.data_type == DATE and unit != "DAY":
        return None
    return _after(start, timedelta(**{_TIMES[unit]: 1}), count)


def months_after(start: Literal, months: int) -> Literal | None:
    """The same day of another month, or its last one."""
    if not isinstance(start.value, date):
        return None
    year, month = divmod(start.value.year * 12 + start.value.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    day = min(start.value.day, monthrange(year, month + 1)[1])
    return Literal(start.value.replace(year=year, month=month + 1, day=day), start.data_type)


def _after(start: Literal, step: timedelta, count: int) -> Literal | None:
    assert isinstance(start.value, date | datetime)
    try:
        return Literal(start.value + step * count, start.data_type)
    except OverflowError:
        # Years that Spark can count with, and Python cannot.
        return None
