"""A real Airflow for the tests of this folder: its own home, its own sqlite database, migrated once a session.

Airflow reads its configuration when it is imported, so the environment is set here, before any test module is.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HOME = Path(tempfile.mkdtemp(prefix="delta-orch-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
(HOME / "dags").mkdir()
os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        # The server that `dag.test()` starts in 3.2 asks for one.
        "AIRFLOW__API_AUTH__JWT_SECRET": "of these tests, long enough for the signatures of tokens",
    }
)

DAY_1 = datetime(2024, 1, 1, tzinfo=UTC)
DAY_2 = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> None:
    pytest.importorskip("airflow", reason="Airflow is not installed")
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    from tests.airflow.internals import start_one_server

    start_one_server()
    initdb()
    DagBundlesManager().sync_bundles_to_db()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Skip what the package refuses under an older Airflow; `test_airflow_stateless.py` says what it may refuse."""
    from delta_orch.errors import InvalidRequestError

    try:
        return (yield)
    except InvalidRequestError as error:
        from delta_orch.airflow.versions import keeps_state

        if keeps_state() or "needs Airflow 3.3 or newer" not in error.problem:
            raise
        pytest.skip(error.problem)


def asset_events(dag_id: str) -> list[Any]:
    """What Airflow has stored of the assets of a DAG."""
    from airflow.models.asset import AssetEvent  # noqa: TID251 (looking at what Airflow stored)
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag_id)).all())


class Runs:
    """Runs DAGs as `airflow dags test` does, and looks at what became of them."""

    def run(self, dag: Any, logical_date: datetime | None = DAY_1, *, run_after: datetime | None = None) -> Any:
        """One DAG run, in this process, triggers inline. Returns Airflow's DagRun, finished."""
        self.register(dag)
        return dag.test(logical_date=logical_date, run_after=run_after)

    def clear(self, dag: Any, dag_run: Any, *task_ids: str, map_index: int | None = None) -> Any:
        """Clear tasks as the UI does, of a mapped one all or one, and let the run go on."""
        from airflow.models.taskinstance import clear_task_instances  # noqa: TID251 (what the UI calls)
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState

        with create_session() as session:
            run = session.merge(dag_run)
            known = run.get_task_instances(session=session)
            chosen = [ti for ti in known if ti.task_id in task_ids and map_index in (None, ti.map_index)]
            assert chosen, f"no task instance of {task_ids}"
            clear_task_instances(chosen, session, dag_run_state=DagRunState.RUNNING)
        return self._resume(dag, dag_run)

    def clear_runs(self, dag: Any, dag_runs: Sequence[Any], task_id: str) -> None:
        """Clear a task in several runs at once, as the UI does with 'future', and let them go on in their order."""
        from airflow.models.taskinstance import clear_task_instances  # noqa: TID251 (what the UI calls)
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState

        with create_session() as session:
            found = [session.merge(run).get_task_instance(task_id, session=session) for run in dag_runs]
            clear_task_instances(found, session, dag_run_state=DagRunState.RUNNING)
        for run in dag_runs:
            self._resume(dag, run)

    def xcom(self, dag_run: Any, task_id: str, map_index: int = -1, key: str = "return_value") -> Any:
        from airflow.models.xcom import XComModel  # noqa: TID251 (reading results, not part of the package)
        from airflow.utils.session import create_session

        with create_session() as session:
            query = XComModel.get_many(
                run_id=dag_run.run_id, key=key, task_ids=task_id, dag_ids=dag_run.dag_id, map_indexes=map_index
            )
            if hasattr(query, "with_only_columns"):
                row = session.execute(query.with_only_columns(XComModel.value)).scalar_one_or_none()
            else:  # Airflow 3.0
                row = query.with_entities(XComModel.value).scalar()
        return XComModel.deserialize_value(_Value(row)) if row is not None else None

    def state(self, dag_run: Any, task_id: str, map_index: int = -1) -> str:
        return str(self.task_instance(dag_run, task_id, map_index).state)

    def tries(self, dag_run: Any, task_id: str) -> int:
        answer: int = self.task_instance(dag_run, task_id).try_number
        return answer

    def task_instance(self, dag_run: Any, task_id: str, map_index: int = -1) -> Any:
        from airflow.utils.session import create_session

        with create_session() as session:
            return session.merge(dag_run).get_task_instance(task_id, map_index=map_index, session=session)

    def register(self, dag: Any) -> None:
        from tests.airflow.internals import register

        register(dag)

    def _resume(self, dag: Any, dag_run: Any) -> Any:
        """The loop of `dag.test()`, for a run that exists already."""
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState

        from tests.airflow.internals import run_task, scheduled

        with create_session() as session:
            run = session.merge(dag_run)
            session.refresh(run)
            run.dag = scheduled(dag)
            while str(run.state) == "running":
                session.expire_all()
                schedulable, _ = run.update_state(session=session)
                for ti in schedulable:
                    ti.try_number += 1
                    ti.state = TaskInstanceState.SCHEDULED
                session.commit()
                for ti in schedulable:
                    run_task(ti, dag.task_dict[ti.task_id])
            return run


class _Value:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Define an Airflow connection for the test, the way deployments do: by an environment variable."""

    def define(conn_id: str, value: str) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    return define
