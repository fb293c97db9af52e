"""Points in time as numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros_since_epoch(moment: datetime) -> int:
    """Whole microseconds since 1970-01-01, in UTC; of a datetime without a zone since then by the same clock.

    In integers: a float of seconds does not hold every millisecond. Classes derived of `datetime`, such as pendulum's,
    which Airflow gives to its tasks, have differences of their own, which are not divided by a `timedelta`.
    """
    return datetime.__sub__(moment, _EPOCH if moment.utcoffset() is None else _EPOCH_UTC) // _MICROSECOND
