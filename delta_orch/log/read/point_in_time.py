"""Which version a caller means: by its number, or by a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from delta_orch.errors import InvalidRequestError

Timestamp = datetime | str | int
"""A point in time: a datetime (naive means UTC), ISO 8601 text, or milliseconds since the epoch."""


def ensure_version(version: Any, name: str = "version") -> None:
    """Raise InvalidRequestError for what is no version's number. `name` is that of the argument."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise InvalidRequestError(
            f"{name} must be an integer from 0, not {version!r}", remedy="history() lists the versions there are"
        )


def parse_timestamp_ms(timestamp: Timestamp) -> int:
    """Milliseconds since the epoch; parts of a millisecond are cut off.

    Raises:
        InvalidRequestError: Neither a datetime, nor ISO 8601 text, nor an integer.
    """
    value: Any = timestamp
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as e:
            raise InvalidRequestError(
                f"{timestamp!r} is no point in time", cause=str(e), remedy="Write it like 2013-01-01T00:00:00Z"
            ) from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        # In integers: a float of seconds does not hold every millisecond.
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRequestError(
        f"{timestamp!r} is no point in time",
        remedy="Pass a datetime, ISO 8601 text, or milliseconds since the epoch as an integer",
    )
