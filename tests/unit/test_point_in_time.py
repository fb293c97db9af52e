"""Which moment, and which version, an argument means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.time_travel import ensure_version, parse_timestamp_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.builds(timezone, st.timedeltas(timedelta(hours=-14), timedelta(hours=14))) | st.builds(
    lambda seconds: timezone(timedelta(seconds=seconds)), st.integers(-14 * 3600, 14 * 3600)
)


@given(st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=ZONES))
def test_moments_are_exact(moment: datetime) -> None:
    ms = parse_timestamp_ms(moment)
    assert EPOCH + timedelta(milliseconds=ms) <= moment < EPOCH + timedelta(milliseconds=ms + 1)
    assert parse_timestamp_ms(ms) == ms
    offset = moment.utcoffset()
    if offset is not None and offset.microseconds:
        # What such text means, Python does not always tell.
        with pytest.raises(InvalidRequestError, match="parts of a second"):
            parse_timestamp_ms(moment.isoformat())
    else:
        assert parse_timestamp_ms(moment.isoformat()) == ms


def test_without_a_zone_it_is_utc() -> None:
    assert parse_timestamp_ms("2013-01-01T00:00:00.001") == parse_timestamp_ms("2013-01-01T00:00:00.001Z")
    assert parse_timestamp_ms("1970-01-02") == 86_400_000


@pytest.mark.parametrize("value", ["noon", True, 1.5, None])
def test_what_is_no_moment(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="not a point in time"):
        parse_timestamp_ms(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_what_is_no_version(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="integer from 0"):
        ensure_version(value)
