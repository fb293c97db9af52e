"""`python -m tests.demo.worker`: Dagster runs in a process of their own, with a fault on request.

The faults happen at the one moment that matters: when a commit's file is created. They sit below everything else, in
the store's exclusive create. The pipeline's definitions and the package know nothing of them. The process inherits its
places from the environment, see `places.enter`.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import dagster as dg

from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.storage.base import FileMeta, StagedFile
from delta_orch.storage.local import LocalStore
from tests.demo.dagster_runs import Runs
from tests.demo.places import Places, enter, relax_sqlite


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo.worker", description=__doc__)
    parser.add_argument("--days", nargs="+", type=date.fromisoformat, required=True, help="a run for each")
    parser.add_argument("--assets", nargs="+", help="by default all of the bronze job")
    parser.add_argument("--corrections", action="store_true", help="upsert the days' corrections, nothing else")
    parser.add_argument("--name", required=True, help="tags the runs: demo/worker=NAME")
    parser.add_argument("--kill-after-commit", metavar="TABLE", help="SIGKILL, once TABLE has a new commit")
    parser.add_argument("--hold-before-commit", metavar="TABLE", help="wait for a signal before the first commit")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    places = Places(Path(os.environ["FLIGHTS_HOME"]))
    enter(places)
    relax_sqlite()
    if options.kill_after_commit:
        kill_after_commit(options.kill_after_commit)
    if options.hold_before_commit:
        ready, go = ready_file(places, options.name), go_file(places, options.name)
        hold_before_commit(options.hold_before_commit, ready, go)
    runs = Runs(dg.DagsterInstance.get())
    for day in options.days:
        if options.corrections:
            runs.corrections(day, **{WORKER_TAG: options.name})
        else:
            runs.bronze([day], options.assets, **{WORKER_TAG: options.name})
    return 0


WORKER_TAG = "demo/worker"


def ready_file(places: Places, name: str) -> Path:
    """Appears when the worker stands right before its first commit."""
    return places.signals / f"{name}.ready"


def go_file(places: Places, name: str) -> Path:
    """Lets the worker of this name go on; workers named `x-1`, `x-2` share `x`."""
    return places.signals / f"{name.split('-')[0]}.go"


Hook = Callable[[], None]

HOLD_TIMEOUT_SECONDS = 600


def _nothing() -> None:
    pass


def kill_after_commit(table: str) -> None:
    """SIGKILL this process the moment the next commit to `table` exists: nobody gets to hear of it."""
    _around_commits(table, after=lambda: os.kill(os.getpid(), signal.SIGKILL))


def hold_before_commit(table: str, ready: Path, go: Path) -> None:
    """Stop right before the first commit to `table`: say so by creating `ready`, and go on once `go` is there."""
    held = False

    def hold() -> None:
        nonlocal held
        if held:
            return
        held = True
        ready.touch()
        wait_for(go, HOLD_TIMEOUT_SECONDS)

    _around_commits(table, before=hold)


def fail_after_commit(table: str) -> None:
    """Raise, once, the moment the next commit to `table` exists: its writer takes it for failed."""
    failed = False

    def fail() -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError(f"The worker was lost right after its commit to {table}")

    _around_commits(table, after=fail)


def wait_for(path: Path, timeout_seconds: float, is_hopeless: Callable[[], bool] = lambda: False) -> None:
    """Return once `path` exists.

    Raises:
        TimeoutError: It does not, in time, or `is_hopeless` says it never will.
    """
    deadline = time.monotonic() + timeout_seconds
    while not path.exists():
        if is_hopeless() or time.monotonic() > deadline:
            raise TimeoutError(f"Nothing has created {path.name} in {timeout_seconds:.0f} s")
        time.sleep(0.02)


def _around_commits(table: str, *, before: Hook = _nothing, after: Hook = _nothing) -> None:
    """Call hooks around every exclusive create of a commit of `table`, from now on, in this process."""
    stage = LocalStore.stage

    def stage_watched(
        store: LocalStore, directory: str, data: bytes | memoryview, **options: Sequence[str]
    ) -> StagedFile:
        staged = stage(store, directory, data, **options)
        return _WatchedFile(staged, before, after) if store.uri.endswith(f"/{table}") else staged

    LocalStore.stage = stage_watched  # type: ignore[method-assign, assignment]


class _WatchedFile(StagedFile):
    """A staged file whose becoming a commit is noticed."""

    def __init__(self, staged: StagedFile, before: Hook, after: Hook) -> None:
        self._staged = staged
        self._before = before
        self._after = after

    def put_if_absent(self, path: str) -> FileMeta:
        # A write may also be staged: a file of its own, which becomes a commit later.
        if not (path.startswith(f"{LOG_DIRECTORY}/") and path.endswith(".json")):
            return self._staged.put_if_absent(path)
        self._before()
        meta = self._staged.put_if_absent(path)
        self._after()
        return meta

    def discard(self) -> None:
        self._staged.discard()


if __name__ == "__main__":
    raise SystemExit(main())
