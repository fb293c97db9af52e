"""What the tests call of Airflow's inner parts, in each release that is admitted."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any

import pytest

from delta_orch.airflow import versions

if versions.RELEASE >= (3, 2):
    from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred
else:
    from airflow.exceptions import AirflowRescheduleException, TaskDeferred
if versions.RELEASE >= (3, 1):
    from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker
else:
    from airflow.sdk.execution_time.secrets_masker import redact, reset_secrets_masker

__all__ = [
    "AirflowRescheduleException",
    "TaskDeferred",
    "encode_trigger",
    "needs_rendered_group",
    "needs_state",
    "providers_of_tasks",
    "redact",
    "register",
    "reset_secrets_masker",
    "run_task",
    "scheduled",
    "start_one_server",
    "without_requests",
]

needs_rendered_group = pytest.mark.xfail(
    versions.RELEASE < (3, 1), strict=True, reason="Airflow 3.0 shows templates of a mapped group no rendered op_kwargs"
)
"""For tasks of a mapped task group whose templates read `task.op_kwargs`."""

needs_state = pytest.mark.skipif(not versions.keeps_state(), reason="Airflow before 3.3 keeps no state of tasks")
"""For tests of what is refused there, or rests on that state."""


_FILES: dict[str, str] = {}
"""The file of each DAG's test."""


def register(dag: Any) -> None:
    """Have Airflow's database know a DAG. One of the same id in another file would share its runs, in some orders."""
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    assert _FILES.setdefault(dag.dag_id, file) == file, f"{_FILES[dag.dag_id]} has a DAG {dag.dag_id}, too"
    if versions.RELEASE >= (3, 2):
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    else:
        from airflow.models.dagbag import DagBag  # noqa: TID251 (what `airflow dags reserialize` calls)
    bag = DagBag(dag_folder=os.devnull, **({"bundle_name": "dags-folder"} if versions.RELEASE >= (3, 2) else {}))
    bag.bag_dag(dag)
    if versions.RELEASE < (3, 1):
        dag.relative_fileloc = "dag.py"  # As the processor of DAG files sets it.
        bag.sync_to_db("dags-folder", None)
        return
    if versions.RELEASE < (3, 2):
        from airflow.models.dagbag import sync_bag_to_db  # noqa: TID251
    sync_bag_to_db(bag, "dags-folder", None)


def scheduled(dag: Any) -> Any:
    """A DAG as the scheduler has it."""
    if versions.RELEASE >= (3, 2):
        from airflow.serialization.serialized_objects import DagSerialization as Serialized
    elif versions.RELEASE >= (3, 1):
        from airflow.serialization.serialized_objects import SerializedDAG as Serialized
    else:
        return dag
    return Serialized.deserialize_dag(Serialized.serialize_dag(dag))


def run_task(ti: Any, task: Any) -> None:
    """One attempt of a task instance, as `dag.test()` does it."""
    from airflow.sdk.definitions.dag import _run_task

    if versions.RELEASE >= (3, 1):
        _run_task(ti=ti, task=task, run_triggerer=True)
    else:
        ti.task = task
        _run_task(ti=ti, run_triggerer=True)


def providers_of_tasks() -> Any:
    """What tasks know of providers."""
    if versions.RELEASE >= (3, 2):
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

        return ProvidersManagerTaskRuntime()
    from airflow.providers_manager import ProvidersManager

    return ProvidersManager()


def encode_trigger(trigger: Any) -> Any:
    """A trigger as Airflow keeps it with an asset that it watches."""
    if versions.RELEASE >= (3, 2):
        from airflow.serialization.encoders import encode_trigger as encode
    else:
        from airflow.serialization.serialized_objects import _encode_trigger as encode
    return encode(trigger)


def without_requests(output: str) -> str:
    """Output without what only `dag.test()` of Airflow 3.0 prints, and no worker: each request of a task, also the one
    that tells Airflow's masker a secret, and the variables of each frame of a traceback, in boxes."""
    if versions.RELEASE >= (3, 1):
        return output
    requests = ("MaskSecret(value=", "msg=SetRenderedFields(")
    return "\n".join(
        line for line in output.splitlines() if not line.startswith("│") and not any(r in line for r in requests)
    )


def start_one_server() -> None:
    """Have `dag.test()` start one server for all its tasks, and wait until it has. Before 3.3 it starts one a task, and
    on a busy machine the first request comes too early. Before 3.1 it also tells a sensor since when it is rescheduled
    by a text, where a worker tells a time."""
    if versions.RELEASE >= (3, 3):
        return
    from airflow.sdk.execution_time import supervisor

    if versions.RELEASE < (3, 1):
        from airflow.sdk.api.client import TaskInstanceOperations

        ask: Any = TaskInstanceOperations.get_reschedule_start_date

        def told(*args: Any, **kwargs: Any) -> Any:
            answer = ask(*args, **kwargs)
            return type(answer)(start_date=answer.start_date)

        operations: Any = TaskInstanceOperations
        operations.get_reschedule_start_date = told

    supervisor.in_process_api_server = cache(supervisor.in_process_api_server)
    begin: Any = asyncio.run_coroutine_threadsafe

    def begun(coroutine: Any, loop: Any) -> Any:
        future = begin(coroutine, loop)
        if getattr(coroutine, "__name__", "") == "start_lifespan":
            future.result(60)
        return future

    vars(asyncio)[begin.__name__] = begun
