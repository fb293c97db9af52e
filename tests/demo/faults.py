"""Faults at the one moment that matters: when a commit's file is created.

They sit below everything else, in the store's exclusive create. The pipeline's definitions and the package know nothing
of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.storage.base import FileMeta, StagedFile
from delta_orch.storage.local import LocalStore

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
