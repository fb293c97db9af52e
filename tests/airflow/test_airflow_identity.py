"""How a task's context becomes a transaction id: contexts of real runs, and the arithmetic of clearing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from delta_orch import TxnId
from delta_orch.airflow.run_context import TaskRun
from delta_orch.airflow.versions import keeps_state
from delta_orch.errors import InvalidRequestError

DAY_1 = datetime(2024, 1, 1, tzinfo=UTC)
RUN_AFTER = DAY_1 + timedelta(days=1)


def context(**changes: Any) -> dict[str, Any]:
    """The part of Airflow's context that identifies a run: first try of a daily task that may be retried twice."""
    values: dict[str, Any] = {
        "dag_id": "flights",
        "task_id": "bronze.load",
        "run_id": "scheduled__2024-01-02",
        "map_index": -1,
        "try_number": 1,
        "retries": 2,
        "max_tries": 2,
        "clear_number": 0,
        "partition_key": None,
        "data_interval_start": DAY_1,
        "data_interval_end": RUN_AFTER,
        "run_after": RUN_AFTER,
        "start_date": RUN_AFTER + timedelta(minutes=1),
    } | changes
    of_run = ("clear_number", "partition_key", "data_interval_start", "data_interval_end", "run_after", "start_date")
    ti = SimpleNamespace(
        **{key: value for key, value in values.items() if key not in (*of_run, "retries")},
        task=SimpleNamespace(retries=values["retries"]),
    )
    dag_run = SimpleNamespace(**{key: values[key] for key in of_run})
    return {"ti": ti, "dag_run": dag_run, "task_state_store": SimpleNamespace()}


def txn(*, replaces_table: bool = False, **changes: Any) -> TxnId:
    (found,) = TaskRun.from_context(context(**changes)).identity().txns(by_run=not replaces_table)
    return found


FIRST = txn()


def test_app_id_names_task_and_interval() -> None:
    assert FIRST.app_id == "airflow:flights.bronze.load:2024-01-01T00:00:00+00:00/2024-01-02T00:00:00+00:00"


def test_mapped_tasks_differ_and_unmapped_ones_spell_it_two_ways() -> None:
    assert txn(map_index=0).app_id != txn(map_index=1).app_id
    assert txn(map_index=None) == FIRST


def test_partition_key_goes_before_the_interval() -> None:
    assert txn(partition_key="2024-01-01").app_id == "airflow:flights.bronze.load:2024-01-01"


def test_retry_has_the_same_identity() -> None:
    assert txn(try_number=2) == txn(try_number=3) == FIRST


def test_retry_keeps_its_identity_while_another_task_of_the_run_is_cleared() -> None:
    assert txn(try_number=2, clear_number=1) == FIRST


def test_clearing_raises_the_version_each_time() -> None:
    # Cleared after try 1, then after try 2: max_tries becomes the try reached plus retries.
    once = txn(try_number=2, max_tries=3, clear_number=1)
    retry_of_once = txn(try_number=3, max_tries=3, clear_number=1)
    twice = txn(try_number=4, max_tries=5, clear_number=2)
    assert FIRST.version < once.version == retry_of_once.version < twice.version
    assert {FIRST.app_id, once.app_id, twice.app_id} == {FIRST.app_id}


def test_more_retries_in_a_new_dag_version_do_not_look_like_clearing() -> None:
    assert txn(try_number=2, retries=5) == FIRST
    assert txn(try_number=2, retries=1) == FIRST


def test_later_run_of_the_same_interval_is_newer() -> None:
    assert txn(run_after=RUN_AFTER + timedelta(hours=1)).version > FIRST.version


def test_cleared_old_run_wins_over_a_newer_manual_run() -> None:
    manual = txn(run_after=RUN_AFTER + timedelta(hours=5))
    restarted = RUN_AFTER + timedelta(hours=9)
    cleared = txn(try_number=2, max_tries=3, clear_number=1, start_date=restarted)
    assert FIRST.version < manual.version < cleared.version


def test_start_date_says_nothing_about_a_run_that_was_not_cleared() -> None:
    assert txn(start_date=RUN_AFTER + timedelta(days=9)) == FIRST
    assert txn(start_date=None) == FIRST


def test_run_without_interval_is_its_own_unit_unless_it_replaces_the_table() -> None:
    none: dict[str, Any] = {"data_interval_start": None, "data_interval_end": None}
    assert txn(**none).app_id == "airflow:flights.bronze.load:run:scheduled__2024-01-02"
    assert txn(**none, run_id="a").app_id != txn(**none, run_id="b").app_id
    assert txn(**none, replaces_table=True, run_id="a").app_id == txn(**none, replaces_table=True, run_id="b").app_id


def test_half_an_interval_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="half a data interval"):
        txn(data_interval_end=None)


def test_user_metadata_names_run_task_and_try() -> None:
    shown = json.loads(TaskRun.from_context(context(try_number=2, map_index=4)).user_metadata())
    assert shown == {
        "orchestrator": "airflow",
        "dag_id": "flights",
        "task_id": "bronze.load",
        "map_index": 4,
        "run_id": "scheduled__2024-01-02",
        "try_number": 2,
        "partition_key": None,
        "data_interval": ["2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00"],
    }


def test_contexts_of_real_attempts(runs) -> None:  # type: ignore[no-untyped-def]
    """Airflow itself: a failing try, its retry, the task cleared, a retry of that, and another task cleared between."""
    seen: list[tuple[str, int, int]] = []
    failing = {1, 3}
    with DAG("identity", schedule=None) as dag:

        @task(retries=1, retry_delay=timedelta(0))
        def step() -> None:
            from airflow.sdk import get_current_context

            run = TaskRun.from_context(get_current_context())
            (txn,) = run.identity().txns(by_run=True)
            seen.append((txn.app_id, txn.version, run.try_number))
            if run.try_number in failing:
                raise RuntimeError("try again")

        @task
        def other() -> None:
            pass

        step() >> other()
    run = runs.run(dag)
    assert runs.state(run, "step") == "success"
    run = runs.clear(dag, run, "other")
    run = runs.clear(dag, run, "step", "other")
    assert runs.state(run, "step") == "success"
    assert [try_number for _, _, try_number in seen] == [1, 2, 3, 4]
    app_ids, versions = {app_id for app_id, _, _ in seen}, [version for _, version, _ in seen]
    assert len(app_ids) == 1
    if not keeps_state():
        # Each attempt is newer than the one before it.
        assert versions[0] < versions[1] < versions[2] < versions[3]
        return
    assert versions[0] == versions[1] < versions[2] == versions[3]
