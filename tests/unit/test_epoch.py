"""Datetimes of other libraries, as Airflow's tasks are given them: pendulum's differences are not Python's."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from uuid import uuid4

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, literal
from delta_orch.pipeline.conditions import WatchGoal
from delta_orch.protocol.epoch import micros_since_epoch
from delta_orch.protocol.variant.encode import encode_variant

NOON = datetime(2024, 1, 2, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))


class Moment(datetime):
    """As pendulum's `DateTime`."""

    def __sub__(self, other: object) -> object:  # type: ignore[override]
        return "an interval"

    def __rsub__(self, other: object) -> object:
        return "an interval"

    @classmethod
    def of(cls, moment: datetime) -> Moment:
        return cls.fromisoformat(moment.isoformat())


@pytest.mark.parametrize(
    "moment", [NOON, NOON.replace(tzinfo=None), datetime(1, 1, 1), datetime.max, datetime(1969, 1, 1)]
)
def test_a_number_of_a_moment(moment: datetime) -> None:
    assert isinstance(Moment.of(moment) - moment, str)
    epoch = datetime(1970, 1, 1, tzinfo=None if moment.tzinfo is None else UTC)
    assert micros_since_epoch(Moment.of(moment)) == (moment - epoch) // timedelta(microseconds=1)


def test_moments_of_others_are_taken_everywhere() -> None:
    noon = Moment.of(NOON)
    table = DeltaTable(f"memory://{uuid4()}")
    table.append(pa.table({"at": pa.array([None], pa.timestamp("us", "UTC")), "day": [date(2024, 1, 2)]}))
    table.update({"at": literal(noon)})
    assert table.snapshot().scan().to_arrow()["at"].to_pylist() == [NOON]
    earlier = Moment.of(datetime.now(UTC) - timedelta(days=1))
    assert table.changes(starting_timestamp=earlier).starting_version == 0
    assert WatchGoal.parse(None, noon) == WatchGoal.parse(None, NOON)
    assert encode_variant(noon).value == encode_variant(NOON).value
