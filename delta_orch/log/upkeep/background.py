"""Upkeep that goes on after the call that made it due has returned.

One thread does it, for all tables of the process, so that memory is needed for one at a time. What becomes due for a
table takes the place of what waits for it: only the newest counts. The interpreter waits for all of it before it ends.
A process that ends otherwise (a signal, `os._exit`) drops waiting jobs. This is harmless: interrupted upkeep leaves no
visible part, and it is due again some versions later.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

Job = Callable[[], object]


class _Background:
    """The state of this process. A forked child begins with a new one: threads are not inherited."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Job] = {}
        self._running: str | None = None
        self._thread: threading.Thread | None = None
        self._completed: set[str] = set()

    def submit(self, table: str, job: Job) -> None:
        with self._changed:
            self._waiting[table] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="delta-orch-upkeep", daemon=True)
                self._thread.start()

    def wait(self, table: str | None, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy(table), timeout_s)

    def is_known_to_complete(self, table: str) -> bool:
        with self._changed:
            return table in self._completed or self._is_busy(table)

    def _is_busy(self, table: str | None) -> bool:
        if table is None:
            return self._thread is not None
        return table == self._running or table in self._waiting

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    # Decided under the lock: whoever submits now starts another thread.
                    self._thread = None
                    self._changed.notify_all()
                    return
                table = self._running = next(iter(self._waiting))
                job = self._waiting.pop(table)
            try:
                job()
            except BaseException:
                # Nobody joins this thread, and whoever waits for the next job must not wait for a dead one.
                _LOGGER.warning("Upkeep of %s failed", table, exc_info=True)
            finally:
                with self._changed:
                    self._running = None
                    self._completed.add(table)
                    self._changed.notify_all()


_state = _Background()
_is_registered = False


def run_behind(table: str, job: Job) -> None:
    """Run a job after those of other tables. It replaces a waiting job of the same table.

    Where the interpreter is about to end already, it is run at once.

    Args:
        table: The table's URI.
    """
    global _is_registered
    if not _is_registered:
        try:
            # Thread pools must still take work while the last upkeep is waited for: reading and writing on many stores
            # makes use of them. Handlers run in reverse order of registration, and `atexit` runs after all of them.
            import concurrent.futures.thread  # noqa: F401

            threading._register_atexit(_finish)  # type: ignore[attr-defined]
        except RuntimeError:
            job()
            return
        _is_registered = True
    _state.submit(table, job)


def is_known_to_complete(table: str) -> bool:
    """Whether this process has finished a job of the table, or is at it."""
    return _state.is_known_to_complete(table)


def wait_for_upkeep(table: str | None = None, timeout_s: float | None = None) -> bool:
    """Wait until there is nothing left to do.

    Args:
        table: Of one table, by its URI; None for all.
        timeout_s: Longest time in seconds; None for as long as it takes.

    Returns: Whether there is nothing left.
    """
    return _state.wait(table, timeout_s)


def _finish() -> None:
    started = time.monotonic()
    wait_for_upkeep()
    if (seconds := time.monotonic() - started) > 1:
        _LOGGER.info("Waited %.1f s for upkeep in the background", seconds)


def _begin_anew() -> None:
    global _state
    _state = _Background()


os.register_at_fork(after_in_child=_begin_anew)
