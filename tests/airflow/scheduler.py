"""Scenarios under a real Airflow: scheduler, triggerer, DAG processor and API server, with the LocalExecutor.

    python -m tests.airflow.scheduler [--ways append,days] [--fates late_day]

Every way to write meets every fate of its task: processes killed before and after the commit, tasks told to end or
cleared by the REST API, days in order and late ones. Then each table holds what a plain model says. Sensors beside each
writer wait in the triggerer, and in a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable

ROOT = Path(__file__).parents[2]
DAY_1, DAY_2 = "2024-01-01", "2024-01-02"
DEADLINE_S = 900.0
TRIES = 10


def expected(way: str, fate: str) -> list[tuple[str, int]]:
    """Rows of (day, the try that wrote them): the page's table of events, as a model."""
    if way == "incremental":
        return [("source", 0)]  # Whatever happens, and however often.
    if fate in ("clean", "dies_after"):
        return [(DAY_1, 1)]  # After a death behind the commit, the retry finds it.
    if fate in ("dies_before", "terminated"):
        # Under the group only its stage is tried again; it is the same task that writes.
        return [(DAY_1, 2)]
    if fate == "unacknowledged":
        return [(DAY_1, 1)] if way in ("append", "publish", "once", "local_sql") else [(DAY_1, 2)]
    if fate == "cleared":
        if way in ("append", "local_sql"):
            return [(DAY_1, 1), (DAY_1, 2)]
        return [(DAY_1, 1)] if way in ("once", "publish") else [(DAY_1, 2)]
    if way == "overwrite":
        return [(DAY_2, 1)]  # The later day has the table, in whatever order they come.
    return [(DAY_1, 1), (DAY_2, 1)]


class Api:
    """Airflow's REST API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._token = ""

    def login(self) -> None:
        self._token = self._call("GET", "/auth/token")["access_token"]

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        return self._call(method, f"/api/v2{path}", body)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        request = urllib.request.Request(
            self._base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        for attempt in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"{}")
            except urllib.error.HTTPError as error:
                # SQLite lets one process write at a time, and Airflow's server gives up early.
                if error.code < 500 or attempt == TRIES - 1:
                    raise
                time.sleep(2)
        raise AssertionError

    def start(self, dag: str, day: str) -> str:
        run_id = f"{dag}-{day}"
        try:
            self.call("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": f"{day}T00:00:00Z"})
        except urllib.error.HTTPError as error:
            if error.code != 409:  # An attempt that was answered by an error had made it.
                raise
        return run_id

    def finish(self, dag: str, run_id: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            state = self.call("GET", f"/dags/{dag}/dagRuns/{run_id}")["state"]
            if state in ("success", "failed"):
                return str(state)
            time.sleep(1)
        raise TimeoutError(f"{dag} did not end")

    def ran(self, dag: str, run_id: str, tasks: Sequence[str]) -> bool:
        """Whether every try of these tasks had a process. A machine that is busy makes Airflow give some up before."""
        of = f"/dags/{dag}/dagRuns/{run_id}/taskInstances"
        tries = [one for task in tasks for one in self.call("GET", f"{of}/{task}/tries")["task_instances"]]
        return all(one["pid"] is not None for one in tries)

    def clear(self, dag: str, run_id: str, task: str) -> None:
        self.call(
            "POST", f"/dags/{dag}/clearTaskInstances",
            {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False, "reset_dag_runs": True,
             "include_downstream": True},
        )  # fmt: skip


def carry_out(api: Api, way: str, fate: str) -> str:
    """The steps of one scenario; the state of its last run, or `unmade` where Airflow has not begun a task."""
    dag = f"{way}-{fate}"
    task = "wap.publish" if way == "publish" else "write"
    days = {"two_days": [DAY_1, DAY_2], "late_day": [DAY_2, DAY_1]}.get(fate, [DAY_1])
    state = ""
    tasks = ["wap.stage", task] if way == "publish" else [task]
    for day in days:
        run_id = api.start(dag, day)
        state = api.finish(dag, run_id)
        if not api.ran(dag, run_id, tasks):
            return "unmade"
    if fate in ("unacknowledged", "cleared"):
        assert state == ("failed" if fate == "unacknowledged" else "success"), f"{dag}: {state}"
        api.clear(dag, run_id, task)
        state = api.finish(dag, run_id)
        if not api.ran(dag, run_id, tasks):
            return "unmade"
    return state


def content(uri: Path) -> list[tuple[str, int]]:
    table = DeltaTable(uri)
    if not table.exists():
        return []
    found = table.snapshot().scan(columns=["day", "try"]).to_arrow()
    return sorted(zip(found["day"].to_pylist(), found["try"].to_pylist(), strict=True))


@contextmanager
def airflow(home: Path, ways: list[str], fates: list[str]) -> Iterator[Api]:
    """All components of an Airflow of its own, until the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (home / "dags").mkdir()
    (home / "tables").mkdir()
    (home / "dags" / "scenarios.py").write_text(
        "from airflow.sdk import DAG\nfrom tests.airflow.scheduler_dags import make\n"
        f"for way in {ways!r}:\n    for fate in {fates!r}:\n        globals()[way + fate] = make(way, fate)\n"
    )
    source = pa.table({"day": ["source"], "try": pa.array([0], pa.int64())})
    DeltaTable(home / "tables" / "source").append(source)
    for fate in fates:
        # A merge creates no table.
        DeltaTable(home / "tables" / f"merge-{fate}").append(source.slice(0, 0))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SCHEDULER_TABLES": str(home / "tables"),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }
    with (home / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            api = Api(port)
            _wait_for(api, len(ways) * len(fates), process)
            yield api
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_for(api: Api, dags: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "airflow standalone has ended"
        try:
            api.login()
            if api.call("GET", "/dags?limit=1")["total_entries"] >= dags:
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(2)
    raise TimeoutError("Airflow did not start")


def main() -> int:
    from concurrent.futures import ThreadPoolExecutor

    os.environ.setdefault("SCHEDULER_TABLES", "/")
    from tests.airflow.scheduler_dags import FATES, WAYS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--fates", default=",".join(FATES))
    given = parser.parse_args()
    ways, fates = given.ways.split(","), given.fates.split(",")
    wrong = unmade = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        home = Path(made)
        with airflow(home, ways, fates) as api, ThreadPoolExecutor(6) as pool:
            cases = [
                (way, fate)
                for way in ways
                for fate in fates
                if not (way == "local_sql" and fate in ("dies_before", "terminated"))
            ]
            for (way, fate), ended in [(case, pool.submit(carry_out, api, *case)) for case in cases]:
                state = ended.result()
                if state == "unmade":
                    unmade += 1
                    sys.stdout.write(f"unmade {way} {fate}: Airflow gave a task up before it began\n")
                    continue
                found = content(home / "tables" / f"{way}-{fate}")
                right = state == "success" and found == expected(way, fate)
                wrong += not right
                told = "" if right else f": {state}, {found} instead of {expected(way, fate)}"
                sys.stdout.write(f"{'right' if right else 'WRONG'}  {way} {fate}{told}\n")
                sys.stdout.flush()
        if wrong:
            sys.stdout.write((home / "output").read_text()[-5000:])
    sys.stdout.write(f"{len(cases) - wrong - unmade} scenarios right, {wrong} wrong, {unmade} unmade\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
