from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.pipeline.run_identity import (
    RunIdentity,
    airflow_version,
    airflow_writer,
    cdc_app_id,
    cdc_prefix,
    dagster_version,
    dagster_writer,
    interval_text,
)

CREATED = datetime(2024, 5, 1, 12, 0, 0, 123_999, tzinfo=UTC)
NAMES = st.text(alphabet=st.sampled_from("ab/:.%[]<-é\U0001f600"), min_size=1, max_size=6)
MOMENTS = st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))


def _scope(day: str) -> Comparison:
    return Comparison("=", Column(("day",)), Literal(day))


def _app_id(writer: str, partition: str | None = None, *, by_run: bool = False) -> str:
    (txn,) = RunIdentity(writer, 1, "r1", partition).txns(by_run=by_run)
    return txn.app_id


def test_dagster_id_has_the_documented_form() -> None:
    identity = RunIdentity(dagster_writer("defs", ["bronze", "flights"]), dagster_version(CREATED), "r1")
    (txn,) = identity.txns(scopes={"2013-01-05": None})
    assert txn.app_id == "dagster:defs:bronze/flights:2013-01-05"
    assert txn.version == 1_714_564_800_123
    assert txn.scope is None


def test_dagster_without_partitions() -> None:
    assert _app_id(dagster_writer("defs", ["gold"])) == "dagster:defs:gold:"
    assert _app_id(dagster_writer("defs", ["gold"]), by_run=True) == "dagster:defs:gold:run:r1"


def test_airflow_id_has_the_documented_form() -> None:
    interval = interval_text(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    writer = airflow_writer("flights", "ingest.bronze")
    (txn,) = RunIdentity(writer, airflow_version(CREATED), "scheduled__1", interval).txns()
    assert txn.app_id == "airflow:flights.ingest.bronze:2013-01-01T00:00:00+00:00/2013-01-02T00:00:00+00:00"
    assert txn.version == 1_714_564_800_123_000
    assert _app_id(airflow_writer("flights", "bronze", 3), "2013-01-01") == "airflow:flights.bronze[3]:2013-01-01"
    assert _app_id(airflow_writer("flights", "bronze")) == "airflow:flights.bronze:"
    assert _app_id(airflow_writer("flights", "bronze"), by_run=True) == "airflow:flights.bronze:run:r1"


def test_a_partition_goes_before_the_run() -> None:
    assert _app_id("w", "2013-01-01", by_run=True) == "w:2013-01-01"


def test_idempotency() -> None:
    assert RunIdentity("w", 5, "r1", "day").txns("off") == ()
    (once,) = RunIdentity("w", 5, "r1", "day").txns("partition")
    assert (once.app_id, once.version) == ("w:day", 0)
    with pytest.raises(InvalidRequestError, match="has no partitions"):
        RunIdentity("w", 5, "r1").txns("partition")


def test_the_same_interval_in_another_zone_is_the_same_step() -> None:
    plus_two = timezone(timedelta(hours=2))
    utc = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    local = tuple(moment.astimezone(plus_two) for moment in utc)
    assert interval_text(*utc) == interval_text(local[0], local[1])


def test_clearing_raises_the_version_and_a_later_run_raises_it_more() -> None:
    first = airflow_version(CREATED)
    cleared = airflow_version(CREATED, 1)
    often = airflow_version(CREATED, 999)
    later = airflow_version(CREATED + timedelta(milliseconds=1))
    assert first < cleared < often < later < 2**53


@pytest.mark.parametrize("number", [-1, 1000])
def test_clear_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequestError, match="clear_number"):
        airflow_version(CREATED, number)


def test_naive_times_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no time zone"):
        dagster_version(datetime(2024, 1, 1))
    with pytest.raises(InvalidRequestError, match="data_interval has no time zone"):
        interval_text(datetime(2024, 1, 1), datetime(2024, 1, 2))


def test_range_runs_share_the_ids_of_single_runs() -> None:
    scopes = {day: _scope(day) for day in ("2013-01-01", "2013-01-02")}
    identity = RunIdentity("w", 1, "r1")
    singles = [identity.txns(scopes={day: scope}) for day, scope in scopes.items()]
    assert list(identity.txns(scopes=scopes)) == [txn for (txn,) in singles]
    with pytest.raises(InvalidRequestError, match="at least one"):
        identity.txns(scopes={})


def test_cursor_ids() -> None:
    assert cdc_app_id("silver", "1f2e") == "cdc:silver<-1f2e"
    assert cdc_app_id("silver", "1f2e").startswith(cdc_prefix("silver"))
    assert not cdc_app_id("a<-b", "1").startswith(cdc_prefix("a"))
    with pytest.raises(InvalidRequestError):
        cdc_app_id("", "1f2e")


@given(st.lists(st.tuples(NAMES, st.lists(NAMES, min_size=1, max_size=3), NAMES), min_size=2, max_size=2))
def test_different_dagster_steps_have_different_ids(steps: list[tuple[str, list[str], str]]) -> None:
    ids = [_app_id(dagster_writer(location, key), partition) for location, key, partition in steps]
    assert (ids[0] == ids[1]) == (steps[0] == steps[1])


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(min_value=-1, max_value=3), NAMES), min_size=2, max_size=2))
def test_different_airflow_steps_have_different_ids(steps: list[tuple[str, str, int, str]]) -> None:
    ids = [_app_id(airflow_writer(dag, task, index), key) for dag, task, index, key in steps]
    assert (ids[0] == ids[1]) == (steps[0] == steps[1])


@given(MOMENTS, MOMENTS, st.integers(0, 999), st.integers(0, 999))
def test_versions_order_runs_by_time_then_by_clears(a: datetime, b: datetime, clears_a: int, clears_b: int) -> None:
    ms_a, ms_b = dagster_version(a), dagster_version(b)
    if a <= b:
        assert ms_a <= ms_b
    assert (airflow_version(a, clears_a) < airflow_version(b, clears_b)) == ((ms_a, clears_a) < (ms_b, clears_b))
