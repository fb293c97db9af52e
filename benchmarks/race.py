"""Processes that change one table at the same time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable


def race(path: str, open_table: Callable[[str], Callable[[], object]], writers: int, times: int) -> tuple[float, int]:
    """Processes that open a table and call what they got so many times, all at once. A process is named by
    its number.

    Returns: Seconds from the common start to the last commit, and how many calls raised.
    """
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Barrier(writers + 1), context.Queue()

    def write() -> None:
        failed = 0
        call = open_table(path)
        start.wait()
        for _ in range(times):
            try:
                call()
            except Exception:  # noqa: BLE001  counted
                failed += 1
        outcomes.put(failed)

    processes = [context.Process(target=write, name=str(number)) for number in range(writers)]
    for process in processes:
        process.start()
    start.wait()
    started = time.perf_counter()
    failures = [outcomes.get() for _ in processes]
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return seconds, sum(failures)
