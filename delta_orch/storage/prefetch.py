"""Doing work ahead on threads, in order and with a bound."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_THREADS = 8
FAR_THREADS = 10
"""Threads that mostly wait for an object store: as many as the connections of the clients of Google and Azure."""
FAR_WAIT_BYTES = 8 * 1024 * 1024
"""A rewrite of fewer bytes of remote files mostly waits, so it uses `FAR_THREADS`. Memory limits larger ones."""


def thread_count() -> int:
    """The number of threads for decoding and encoding: the cores of this process, at most `MAX_THREADS`."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))


class Threads:
    """A pool of up to `count` threads that start when there is work.

    At the end of the interpreter, in `atexit` or in a thread that outlives the main thread, Python starts no thread.
    The caller then does the work at once.
    """

    def __init__(self, count: int) -> None:
        self._pool: Executor | None = None
        try:
            from concurrent.futures import ThreadPoolExecutor
        except RuntimeError:
            # At the end of the interpreter, the first import of the module fails, too.
            return
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="delta-orch-ahead")

    def begin(self, work: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Begin a call. Raises RuntimeError if the system has no more threads."""
        from concurrent.futures import Future

        if self._pool is not None:
            try:
                return self._pool.submit(work, *arguments)
            except RuntimeError as e:
                # After any other error, a running thread may already have the work.
                if "after interpreter shutdown" not in str(e):
                    raise
        done: Future[Result] = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as e:  # noqa: BLE001 - `Future.result` raises it
            done.set_exception(e)
        return done

    def end(self) -> None:
        """Wait for running calls, and cancel the others."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def map_ahead(work: Callable[[Task], Result], tasks: Iterable[Task], threads: int | None = None) -> Iterator[Result]:
    """Like `map(work, tasks)` on threads, at most two results a thread ahead of the consumer.

    By default there are `thread_count()` threads. A single task starts no thread; with 0 threads, the consumer does the
    work. The first error ends the iteration. Threads end with the iteration, so no forked child inherits one.
    """
    remaining = iter(tasks)
    first = list(islice(remaining, 2))
    if len(first) < 2 or threads == 0:
        yield from map(work, chain(first, remaining))
        return
    threads = threads or thread_count()
    pool = Threads(threads)
    try:
        pending: deque[Future[Result]] = deque(pool.begin(work, task) for task in first)
        while pending:
            pending.extend(pool.begin(work, task) for task in islice(remaining, 2 * threads - len(pending)))
            yield pending.popleft().result()
    finally:
        pool.end()


@contextmanager
def ahead(items: Iterable[Result]) -> Iterator[Iterator[Result]]:
    """Iterate on a separate thread, one item ahead of the consumer. The consumer gets the errors of `items`.

    The thread ends with the block.
    """
    pool, remaining = Threads(1), iter(items)

    def one_more() -> list[Result]:
        return list(islice(remaining, 1))

    def results() -> Iterator[Result]:
        pending = pool.begin(one_more)
        while item := pending.result():
            pending = pool.begin(one_more)
            yield from item

    try:
        yield results()
    finally:
        pool.end()
