"""Scenarios under a real Airflow: scheduler, triggerer, DAG processor and API server, with the LocalExecutor.

    python -m tests.airflow.scheduler [--ways append,days] [--fates late_day] [--kill 45]

Every way to write meets every fate of its task: processes killed before and after the commit, tasks told to end,
tasks cleared by the REST API when they have ended, while they live on, and in runs that go on, days in order and late
ones, backfills by the REST API, and stores that lose answers, write late, slow clients down or are away. Then each
table holds what a plain model says. Sensors beside each writer wait in the triggerer, and in a worker. With `--kill`,
the scheduler and the triggerer are killed in turn all the while: then tries are Airflow's affair, and a task may end
red, but none may end green with other days in its table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable
from tests.harness.emulators import Emulator, s3_emulator
from tests.harness.fault_proxy import Fault, FaultProxy

ROOT = Path(__file__).parents[2]
DAY_1, DAY_2 = "2024-01-01", "2024-01-02"
DEADLINE_S = 900.0
TRIES = 10
STORE_FATES = {
    "lost_answer": ("PUT", Fault.DROP_AFTER, 1),
    "late_commit": ("PUT", Fault.LATE, 1),
    "outage": ("PUT", Fault.ERROR_BEFORE, 8),
    "deaf": ("GET", Fault.ERROR_BEFORE, 8),
    "throttled": ("GET", Fault.TOO_MANY, 8),
}
"""What happens to the first requests to a table's log in an object store: method, fault, how many of them."""
COMPONENTS = ("scheduler", "triggerer", "dag-processor", "api-server")


def expected(way: str, fate: str) -> list[tuple[str, int]]:
    """Rows of (day, the try that wrote them), by the three sentences."""
    way = way.partition(".")[0]
    if way == "incremental":
        return [("source", 0)]  # Whatever happens, and however often.
    if fate == "backfilled":
        # Both days, and both again: a backfill that reprocesses what is completed clears its runs.
        if way == "overwrite":
            return [(DAY_2, 2)]
        return [(day, 1 if way == "keep" else 2) for day in (DAY_1, DAY_2)]
    if fate in ("clean", "dies_after", *STORE_FATES):
        return [(DAY_1, 1)]  # A crash never doubles.
    if fate in ("dies_before", "terminated"):
        # Under the group only its stage is tried again; it is the same task that writes.
        return [(DAY_1, 2)]
    if fate in ("unacknowledged", "cleared", "cleared_inside", "cleared_alive", "cleared_at_end"):
        # Doing it again replaces. Only the publishing task is cleared, which finds its commit.
        return [(DAY_1, 1 if way in ("keep", "publish") else 2)]
    if fate == "recreated":
        return [(DAY_1, 1)]
    if way == "overwrite":
        return [(DAY_2, 1)]  # Late never wins: the later day has the table, in whatever order they come.
    return [(DAY_1, 1), (DAY_2, 1)]


def is_right(found: list[tuple[str, int]], way: str, fate: str, *, any_try: bool) -> bool:
    """Which try found a store that answers, or an Airflow that lives, is nobody's promise."""
    wanted = expected(way, fate)
    if any_try or fate in STORE_FATES or fate == "cleared_at_end":
        return [day for day, _ in found] == [day for day, _ in wanted]
    return found == wanted


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
        self.until(partial(self._is_started, dag, day, run_id), f"start of {dag}")
        return run_id

    def _is_started(self, dag: str, day: str, run_id: str) -> bool:
        """An attempt that was answered by an error may have made the run, or have been taken back."""
        try:
            self.call("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": f"{day}T00:00:00Z"})
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        try:
            self.call("GET", f"/dags/{dag}/dagRuns/{run_id}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def finish(self, dag: str, run_id: str) -> str:
        seen = [""]

        def has_ended() -> bool:
            # Seen on a busy machine: a run that had ended was running again.
            seen.append(str(self.call("GET", f"/dags/{dag}/dagRuns/{run_id}")["state"]))
            return seen[-1] in ("success", "failed") and seen[-2] == seen[-1]

        self.until(has_ended, f"run of {dag}")
        return seen[-1]

    def failures(self, dag: str) -> list[str]:
        """The tasks of a DAG that have failed, with their tries."""
        found = self.call("GET", f"/dags/{dag}/dagRuns/~/taskInstances?state=failed")["task_instances"]
        return [f"{one['dag_run_id']} {one['task_id']} in try {one['try_number']}" for one in found]

    def backfill(self, dag: str, tasks: Sequence[str]) -> str:
        """Both days, and again what is completed; the worst state of the runs, or `unmade` where a day was not done
        again: a backfill leaves out the days that are under way, such as one that the scheduler has begun by itself."""
        about = {"dag_id": dag, "from_date": f"{DAY_1}T00:00:00Z", "to_date": f"{DAY_2}T00:00:00Z"}
        for again in ("none", "completed"):
            self._rest(dag)
            made = self.call("POST", "/backfills", {**about, "reprocess_behavior": again})["id"]
            self.until(partial(self._is_complete, made), f"backfill of {dag}")
        self._rest(dag)
        runs = self.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]
        if len(runs) != 2 or not all(self.ran(dag, run["dag_run_id"], tasks, at_least=2) for run in runs):
            return "unmade"
        states = {str(run["state"]) for run in runs}
        return "success" if states == {"success"} else " and ".join(sorted(states))

    def _is_complete(self, backfill: int) -> bool:
        return self.call("GET", f"/backfills/{backfill}")["completed_at"] is not None

    def _rest(self, dag: str) -> None:
        def is_at_rest() -> bool:
            runs = self.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]
            return all(run["state"] in ("success", "failed") for run in runs)

        self.until(is_at_rest, f"runs of {dag}")

    def until(self, done: Callable[[], object], what: str, pause_s: float = 1) -> None:
        """Wait for it."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the {what} did not end")
            time.sleep(pause_s)

    def ran(self, dag: str, run_id: str, tasks: Sequence[str], at_least: int = 1) -> bool:
        """Whether every try of these tasks had a process. A machine that is busy makes Airflow give some up before."""
        of = f"/dags/{dag}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances"
        tries = {task: self.call("GET", f"{of}/{task}/tries")["task_instances"] for task in tasks}
        return all(len(made) >= at_least and all(one["pid"] is not None for one in made) for made in tries.values())

    def clear(self, dag: str, run_id: str, task: str, *, resets_run: bool = True) -> None:
        self.call(
            "POST", f"/dags/{dag}/clearTaskInstances",
            {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False,
             "reset_dag_runs": resets_run, "include_downstream": True},
        )  # fmt: skip

    def state_of(self, dag: str, run_id: str, task: str) -> str:
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}")["state"])


def carry_out(api: Api, way: str, fate: str, table: DeltaTable) -> str:
    """The steps of one scenario; the state of its last run, or `unmade` where Airflow has not begun a task."""
    dag = f"{way}-{fate}"
    is_group = way.startswith("publish")
    task = "wap.publish" if is_group else "write"
    tasks = ["wap.stage", task] if is_group else [task]
    if fate == "backfilled":
        return api.backfill(dag, tasks)
    days = {"two_days": [DAY_1, DAY_2], "late_day": [DAY_2, DAY_1]}.get(fate, [DAY_1])
    state = ""
    for day in days:
        run_id = api.start(dag, day)
        clear_on_the_way(api, fate, dag, run_id, task, table)
        state = api.finish(dag, run_id)
        if not api.ran(dag, run_id, tasks):
            return "unmade"
    if fate == "recreated":
        api.call("DELETE", f"/dags/{dag}/dagRuns/{run_id}")
        state = api.finish(dag, api.start(dag, DAY_1))
    if fate in ("unacknowledged", "cleared"):
        if state != ("failed" if fate == "unacknowledged" else "success"):
            return f"{state} before it was cleared"
        api.clear(dag, run_id, task)
        state = api.finish(dag, run_id)
        if not api.ran(dag, run_id, tasks):
            return "unmade"
    return state


def clear_on_the_way(api: Api, fate: str, dag: str, run_id: str, task: str, table: DeltaTable) -> None:
    if fate in ("cleared_alive", "cleared_at_end"):
        # It has committed, and does not end, or ends in a moment. Airflow may also have given it up before it began.
        looks = itertools.count(1)
        api.until(
            lambda: content(table) or (next(looks) % 50 == 0 and api.state_of(dag, run_id, task) == "failed"),
            f"first attempt of {dag}",
            0.05,
        )
        api.clear(dag, run_id, task)
    if fate == "cleared_inside":
        # The run goes on, and is left as it is.
        api.until(lambda: api.state_of(dag, run_id, task) == "success", f"first attempt of {dag}")
        api.clear(dag, run_id, task, resets_run=False)
        api.until(lambda: api.ran(dag, run_id, [task], at_least=2), f"second attempt of {dag}")
        api.until(lambda: api.state_of(dag, run_id, task) in ("success", "failed"), f"second attempt of {dag}")
        DeltaTable(f"{table.uri}-go").append(pa.table({"go": [True]}))


def content(table: DeltaTable) -> list[tuple[str, int]]:
    if not table.exists():
        return []
    found = table.snapshot().scan(columns=["day", "try"]).to_arrow()
    return sorted(zip(found["day"].to_pylist(), found["try"].to_pylist(), strict=True))


class Airflow:
    """All components of an Airflow of its own, until the end.

    Args:
        home: An empty directory.
        names: Of the DAGs: way and fate.
        store: What stands behind `proxy`.
        proxy: What the tasks of `STORE_FATES` have between them and the store.
        kill_s: Seconds between kills of the scheduler or the triggerer; 0 for none.
    """

    def __init__(
        self, home: Path, names: Sequence[tuple[str, str]], store: Emulator, proxy: FaultProxy, kill_s: float
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        self.api = Api(port)
        self._home, self._names, self._store, self._kill_s = home, names, store, kill_s
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: list[int] = []
        self._ended = threading.Event()
        self._lay_out(proxy)
        connection = {"conn_type": "delta", "extra": dict(store.behind(proxy.endpoint).storage_options)}
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SCHEDULER_TABLES": str(home / "tables"),
            "SCHEDULER_STORE": store.root,
            "AIRFLOW_CONN_STORE": json.dumps(connection),
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
        if kill_s:
            # What died is noticed while the scenarios run.
            self._environment |= {
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
                "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
                "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
                "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
            }

    def table(self, way: str, fate: str) -> DeltaTable:
        """As nothing stands in between."""
        return self._table(f"{way}-{fate}", in_store=fate in STORE_FATES)

    def __enter__(self) -> Api:
        with (self._home / "output").open("a") as output:
            migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(migrate, env=self._environment, stdout=output, stderr=subprocess.STDOUT, check=True)
        for component in COMPONENTS:
            self._start(component)
        self._wait()
        threading.Thread(target=self._supervise, daemon=True).start()
        return self.api

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in self._groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            with suppress(subprocess.TimeoutExpired):
                for process in self._running.values():
                    process.wait(20)

    def _table(self, name: str, *, in_store: bool) -> DeltaTable:
        if in_store:
            return DeltaTable(self._store.table_uri(name), storage_options=dict(self._store.storage_options))
        return DeltaTable(self._home / "tables" / name)

    def _lay_out(self, proxy: FaultProxy) -> None:
        (self._home / "dags").mkdir()
        (self._home / "tables").mkdir()
        (self._home / "dags" / "scenarios.py").write_text(
            "from airflow.sdk import DAG\nfrom tests.airflow.scheduler_dags import make\n"
            f"for way, fate in {list(self._names)!r}:\n    globals()[way + fate] = make(way, fate)\n"
        )
        source = pa.table({"day": ["source"], "try": pa.array([0], pa.int64())})
        for in_store in (False, True):
            self._table("source", in_store=in_store).append(source)
        for way, fate in self._names:
            if way == "merge":  # The faults are for its commit, not for the creation of its table.
                self.table(way, fate).append(source.slice(0, 0))
        for way, fate in self._names:
            if fate in STORE_FATES:
                method, fault, times = STORE_FATES[fate]
                proxy.at(method, f"*/{way}-{fate}/_delta_log/*.json*", fault, times)

    def _start(self, component: str) -> None:
        with (self._home / "output").open("a") as output:
            self._running[component] = subprocess.Popen(
                [sys.executable, "-m", "airflow", component],
                env=self._environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._groups.append(self._running[component].pid)

    def _supervise(self) -> None:
        """Start again what has ended, as an init system does: a scheduler on SQLite gives up on a busy machine."""
        victims = itertools.cycle(("scheduler", "triggerer"))
        due = time.monotonic() + self._kill_s
        while not self._ended.wait(1):
            if self._kill_s and time.monotonic() > due:
                # Its workers live on, as they do when a machine is short of memory.
                self._running[next(victims)].kill()
                due = time.monotonic() + self._kill_s
            for component, process in list(self._running.items()):
                if process.poll() is not None:
                    self._start(component)

    def _wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            for component, process in self._running.items():
                assert process.poll() is None, f"airflow {component} has ended"
            try:
                self.api.login()
                if self.api.call("GET", "/dags?limit=1")["total_entries"] >= len(self._names):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(2)
        raise TimeoutError("Airflow did not start")


def main() -> int:
    os.environ.setdefault("SCHEDULER_TABLES", "/")
    from tests.airflow.scheduler_dags import FATES, WAYS, has_code

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--fates", default=",".join((*FATES, *STORE_FATES)))
    parser.add_argument(
        "--loop", type=int, default=1, help="how often each scenario is carried out, in DAGs of its own"
    )
    parser.add_argument("--kill", type=float, default=0, help="seconds between kills")
    given = parser.parse_args()
    ways, fates, kills = given.ways.split(","), given.fates.split(","), bool(given.kill)
    cases = [(way, fate) for way in ways for fate in fates if has_code(way, fate)]
    if given.loop > 1:
        cases = [(f"{way}.{number}", fate) for number in range(given.loop) for way, fate in cases]
    told = {"right": 0, "WRONG": 0, "red": 0, "unmade": 0}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made,
        s3_emulator() as store,
        FaultProxy(store.endpoint) as proxy,
    ):
        all_of_it = Airflow(Path(made), cases, store, proxy, given.kill)
        with all_of_it as api, ThreadPoolExecutor(6) as pool:
            for (way, fate), ended in [
                (case, pool.submit(carry_out, api, *case, all_of_it.table(*case))) for case in cases
            ]:
                state = ended.result()
                found = content(all_of_it.table(way, fate))
                right = is_right(found, way, fate, any_try=kills)
                verdict = "right" if right and state == "success" else "WRONG"
                if state == "unmade" and not (kills and right):
                    verdict = "unmade"  # Airflow gave a try up before it began.
                elif kills and state != "success":
                    # Red is no promise kept, and none broken, as long as nothing is there twice.
                    verdict = "right" if right else "red"
                told[verdict] += 1
                why = "" if verdict == "right" else f": {state}, {found} instead of {expected(way, fate)}"
                if verdict == "WRONG":
                    why += f"; failed: {api.failures(f'{way}-{fate}')}"
                sys.stdout.write(f"{verdict:6} {way} {fate}{why}\n")
                if verdict == "WRONG" and all_of_it.table(way, fate).exists():
                    for entry in all_of_it.table(way, fate).history():
                        sys.stdout.write(f"  {entry.version} {entry.operation} {entry.user_metadata}\n")
                sys.stdout.flush()
        if told["WRONG"]:
            sys.stdout.write((Path(made) / "output").read_text()[-5000:])
    sys.stdout.write(", ".join(f"{count} {verdict}" for verdict, count in told.items()) + "\n")
    return 1 if told["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
