"""`python -m tests.demo.worker`: a Dagster run that loads new flights, in its own process, with a fault on request.

The process inherits its places from the environment, see `places.enter`.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from tests.demo.dagster_runs import Runs
from tests.demo.faults import hold_before_commit, kill_after_commit
from tests.demo.places import Places, enter, relax_sqlite


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo.worker", description=__doc__)
    parser.add_argument("--name", required=True, help="tags the run: demo/worker=NAME")
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
    Runs(dg.DagsterInstance.get()).load("flights", **{WORKER_TAG: options.name})
    return 0


WORKER_TAG = "demo/worker"


def ready_file(places: Places, name: str) -> Path:
    """Appears when the worker stands right before its first commit."""
    return places.signals / f"{name}.ready"


def go_file(places: Places, name: str) -> Path:
    """Lets the worker of this name go on; workers named `x-1`, `x-2` share `x`."""
    return places.signals / f"{name.split('-')[0]}.go"


if __name__ == "__main__":
    raise SystemExit(main())
