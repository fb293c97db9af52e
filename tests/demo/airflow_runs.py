"""`python -m tests.demo.airflow_runs`: the DAGs in `dags/`, run with `dag.test()`, in a process of their own.

Airflow reads its configuration when it is imported, so its home and its sqlite database are set before. The result is
written as JSON to the file given.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from delta_orch.protocol.actions import JsonValue
from tests.demo.faults import fail_after_commit
from tests.demo.places import CHECKOUT, Places, enter, relax_sqlite
from tests.demo.source import Landing, Source

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun  # noqa: TID251 (a type only)
    from airflow.sdk import DAG
    from airflow.triggers.base import TriggerEvent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo.airflow_runs", description=__doc__)
    parser.add_argument("--month", type=int, required=True, help="its weather is delivered once more, and corrected")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    places = Places(Path(os.environ["FLIGHTS_HOME"]))
    enter(places)
    configure(places)
    relax_sqlite()
    started = time.monotonic()
    create_database()
    dag, maintenance_dag, carriers_dag = load_dags("flights", "flights_maintenance", "carriers")
    seconds_to_set_up = time.monotonic() - started
    # One session for all tasks: each finds it running and leaves it running.
    importlib.import_module("flights_transformations").spark_session()
    source, landing = Source(places.source), Landing(places.landing)
    landing.deliver_first_readings(source, options.month)
    # Both fail right after their commits. A retry of the append could double its rows.
    for task in RETRIED_TASKS:
        fail_after_commit(task)
    run = dag.test(logical_date=datetime(2013, 1, 1, tzinfo=UTC))
    loaded = read_run(run)
    # The source corrects the weather. The task that reads it is cleared, and those behind it.
    landing.deliver_weather(source, options.month)
    cleared = read_run(clear(dag, run, CLEARED_TASKS))
    maintenance = read_run(maintenance_dag.test(logical_date=datetime(2013, 1, 2, tzinfo=UTC)))
    followed = follow_dagster(carriers_dag)
    result = {
        "loaded": loaded,
        "followed": followed,
        "maintenance": maintenance,
        "cleared": {task: cleared["tasks"][task] for task in CLEARED_TASKS},
        "retried": [{"task": task, **loaded["tasks"][task]} for task in RETRIED_TASKS],
        "seconds_to_set_up": round(seconds_to_set_up, 1),
    }
    options.result.write_text(json.dumps(result, indent=2))
    return 0 if all(run["state"] == "success" for run in (loaded, cleared, maintenance, followed)) else 1


RETRIED_TASKS = ("flights", "weather_readings")
"""Tasks and their tables."""

CLEARED_TASKS = ("weather_readings", "flights_enriched", "carrier_daily")
"""The task that reads what the source corrects, and those behind it."""


def configure(places: Places) -> None:
    """Set Airflow's home and configuration. Must happen before its first import."""
    home = places.airflow
    os.environ.update(
        {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        }
    )


def create_database() -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()


def load_dags(*dag_ids: str) -> list[DAG]:
    """DAGs of `dags/`, imported and known to the database; their retries do not wait."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    # As the Dag processor does, so that DAG files can import what lies beside them.
    sys.path.append(str(CHECKOUT / "dags"))
    bag = DagBag(dag_folder=str(CHECKOUT / "dags"), bundle_name="dags-folder")
    if bag.import_errors:
        raise RuntimeError(f"The DAG cannot be imported: {bag.import_errors}")
    sync_bag_to_db(bag, "dags-folder", None)
    dags = [bag.dags[dag_id] for dag_id in dag_ids]
    for task in (task for dag in dags for task in dag.tasks):
        task.retry_delay = timedelta(0)
    return dags


def read_run(run: DagRun) -> dict[str, JsonValue]:
    """The state of a run, and of each task state, tries, and what came of it."""
    return {"state": str(getattr(run.state, "value", run.state)), "tasks": read_tasks(run)}


def clear(dag: DAG, run: DagRun, task_ids: Sequence[str]) -> DagRun:
    """Clear tasks of a run that has ended, as Airflow's UI does, and let the run go on to its end, as `dag.test()` does
    with a new one."""
    from airflow.models.taskinstance import clear_task_instances  # noqa: TID251 (what the UI calls)
    from airflow.sdk.definitions.dag import _run_task
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState

    with create_session() as session:
        run = session.merge(run)
        chosen = [one for one in run.get_task_instances(session=session) if one.task_id in task_ids]
        clear_task_instances(chosen, session, dag_run_state=DagRunState.RUNNING)
    with create_session() as session:
        run = session.merge(run)
        session.refresh(run)
        run.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        while run.state == DagRunState.RUNNING:
            session.expire_all()
            due, _ = run.update_state(session=session)
            for instance in due:
                instance.try_number += 1
                instance.state = TaskInstanceState.SCHEDULED
            session.commit()
            for instance in due:
                _run_task(ti=instance, task=dag.task_dict[instance.task_id], run_triggerer=True)
        return run


def follow_dagster(dag: DAG) -> dict[str, JsonValue]:
    """What the triggerer and the scheduler do for commits by Dagster: an event of the watched asset, and the DAG's run.

    Returns: As `read_run`; `version` is the one of the source that the event told of.
    """
    from delta_orch.airflow.triggers import DeltaCommitTrigger

    (asset,) = dag.timetable.asset_condition.objects
    arguments = {**asset.watchers[0].trigger.serialize()[1], "start": "earliest"}
    event = asyncio.run(_first(DeltaCommitTrigger(**arguments).run()))
    run = dag.test(run_after=datetime.now(UTC))
    return {"version": event.payload["version"], **read_run(run)}


async def _first(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    async for event in events:
        return event
    raise RuntimeError("The watcher has ended")


def read_tasks(run: DagRun) -> dict[str, JsonValue]:
    """What the metadata database says about the tasks of a run."""
    from airflow.models.xcom import XComModel  # noqa: TID251 (reading results)
    from airflow.utils.session import create_session

    tasks = {}
    with create_session() as session:
        for instance in session.merge(run).get_task_instances(session=session):
            query = XComModel.get_many(
                run_id=run.run_id, key="return_value", task_ids=instance.task_id, dag_ids=run.dag_id
            )
            value = session.execute(query.with_only_columns(XComModel.value)).scalar_one_or_none()
            report = json.loads(value) if isinstance(value, str) else (value or {})
            tasks[instance.task_id] = {
                "state": str(getattr(instance.state, "value", instance.state)),
                "tries": instance.try_number,
                "outcome": report.get("outcome"),
                "version": report.get("version"),
                "rows_replaced": report.get("rows_replaced"),
            }
    return tasks


if __name__ == "__main__":
    raise SystemExit(main())
