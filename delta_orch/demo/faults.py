"""Faults at the one moment that matters: when a commit's file is created.

They are set in a process of their own (`delta_orch.demo.worker`), below everything else: the store's exclusive create.
The pipeline's definitions and the package know nothing of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delta_orch.storage.local import LocalStore

HOLD_TIMEOUT_SECONDS = 300


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


def _around_commits(
    table: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
) -> None:
    create = LocalStore.put_if_absent

    def put_if_absent(store: LocalStore, path: str, data: Any) -> Any:
        is_commit = store.uri.endswith(f"/{table}") and path.startswith("_delta_log/") and path.endswith(".json")
        if is_commit and before is not None:
            before()
        meta = create(store, path, data)
        if is_commit and after is not None:
            after()
        return meta

    LocalStore.put_if_absent = put_if_absent  # type: ignore[method-assign, assignment]
