from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.pipeline.run_identity import (
    airflow_app_id,
    airflow_txn,
    airflow_version,
    cdc_app_id,
    cdc_prefix,
    dagster_app_id,
    dagster_range_txns,
    dagster_txn,
    dagster_version,
)

CREATED = datetime(2024, 5, 1, 12, 0, 0, 123_999, tzinfo=UTC)
NAMES = st.text(alphabet=st.sampled_from("ab/:.%[]<-é\U0001f600"), min_size=1, max_size=6)
MOMENTS = st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))


def _scope(day: str) -> Comparison:
    return Comparison("=", Column(("day",)), Literal(day))


def test_dagster_id_has_the_documented_form() -> None:
    txn = dagster_txn(
        code_location="defs", asset_key=["bronze", "flights"], partition_key="2013-01-05", root_run_created=CREATED
    )
    assert txn.app_id == "dagster:defs:bronze/flights:2013-01-05"
    assert txn.version == 1_714_564_800_123
    assert txn.scope is None


def test_dagster_without_partitions() -> None:
    assert dagster_app_id("defs", ["gold"]) == "dagster:defs:gold:"
    assert dagster_app_id("defs", ["gold"], root_run_id="r1") == "dagster:defs:gold:run:r1"
    with pytest.raises(InvalidRequestError, match="without partitions"):
        dagster_app_id("defs", ["gold"], "2013-01-01", root_run_id="r1")


def test_airflow_id_has_the_documented_form() -> None:
    interval = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    txn = airflow_txn(dag_id="flights", task_id="ingest.bronze", data_interval=interval, run_after=CREATED)
    assert txn.app_id == "airflow:flights.ingest.bronze:2013-01-01T00:00:00+00:00/2013-01-02T00:00:00+00:00"
    assert txn.version == 1_714_564_800_123_000
    mapped = airflow_app_id("flights", "bronze", map_index=3, partition_key="2013-01-01", data_interval=interval)
    assert mapped == "airflow:flights.bronze[3]:2013-01-01"
    assert airflow_app_id("flights", "bronze") == "airflow:flights.bronze:"
    assert airflow_app_id("flights", "bronze", run_id="manual__1") == "airflow:flights.bronze:run:manual__1"


def test_the_same_interval_in_another_zone_is_the_same_step() -> None:
    plus_two = timezone(timedelta(hours=2))
    utc = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    local = tuple(moment.astimezone(plus_two) for moment in utc)
    assert airflow_app_id("d", "t", data_interval=utc) == airflow_app_id("d", "t", data_interval=(local[0], local[1]))


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
        airflow_app_id("d", "t", data_interval=(datetime(2024, 1, 1), datetime(2024, 1, 2)))


def test_range_runs_share_the_ids_of_single_runs() -> None:
    scopes = {day: _scope(day) for day in ("2013-01-01", "2013-01-02")}
    txns = dagster_range_txns(code_location="defs", asset_key=["flights"], root_run_created=CREATED, scopes=scopes)
    singles = [
        dagster_txn(
            code_location="defs",
            asset_key=["flights"],
            partition_key=day,
            root_run_created=CREATED,
            scope=scopes[day],
        )
        for day in scopes
    ]
    assert list(txns) == singles
    with pytest.raises(InvalidRequestError, match="at least one"):
        dagster_range_txns(code_location="defs", asset_key=["flights"], root_run_created=CREATED, scopes={})


def test_cursor_ids() -> None:
    assert cdc_app_id("silver", "1f2e") == "cdc:silver<-1f2e"
    assert cdc_app_id("silver", "1f2e").startswith(cdc_prefix("silver"))
    assert not cdc_app_id("a<-b", "1").startswith(cdc_prefix("a"))
    with pytest.raises(InvalidRequestError):
        cdc_app_id("", "1f2e")


@given(st.lists(st.tuples(NAMES, st.lists(NAMES, min_size=1, max_size=3), NAMES), min_size=2, max_size=2))
def test_different_dagster_steps_have_different_ids(steps: list[tuple[str, list[str], str]]) -> None:
    ids = [dagster_app_id(location, key, partition) for location, key, partition in steps]
    assert (ids[0] == ids[1]) == (steps[0] == steps[1])


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(min_value=-1, max_value=3), NAMES), min_size=2, max_size=2))
def test_different_airflow_steps_have_different_ids(steps: list[tuple[str, str, int, str]]) -> None:
    ids = [airflow_app_id(dag, task, map_index=index, partition_key=key) for dag, task, index, key in steps]
    assert (ids[0] == ids[1]) == (steps[0] == steps[1])


@given(MOMENTS, MOMENTS, st.integers(0, 999), st.integers(0, 999))
def test_versions_order_runs_by_time_then_by_clears(a: datetime, b: datetime, clears_a: int, clears_b: int) -> None:
    ms_a, ms_b = dagster_version(a), dagster_version(b)
    if a <= b:
        assert ms_a <= ms_b
    assert (airflow_version(a, clears_a) < airflow_version(b, clears_b)) == ((ms_a, clears_a) < (ms_b, clears_b))
