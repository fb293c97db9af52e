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
"""Where a thread mostly waits for the answer of an object store: as many connections as the libraries of Google and
Azure keep open."""
FAR_WAIT_BYTES = 8 * 1024 * 1024
"""Writing anew far files of fewer bytes is a matter of waiting, and of `FAR_THREADS`. With more it is one of memory."""


def thread_count() -> int:
    """Threads for decoding and encoding: the cores this process may use, at most `MAX_THREADS`."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))


class Threads:
    """Up to a number of threads, each started for work that there is for it.

    Where the interpreter is about to end, in `atexit` or in a thread that outlives the main one, Python starts none any
    more: the work is then done at once, by whoever brings it.
    """

    def __init__(self, count: int) -> None:
        self._pool: Executor | None = None
        try:
            from concurrent.futures import ThreadPoolExecutor
        except RuntimeError:
            # The first import is refused then, too.
            return
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="delta-orch-ahead")

    def begin(self, work: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Do some work. Raises RuntimeError: No thread can be started."""
        from concurrent.futures import Future

        if self._pool is not None:
            try:
                return self._pool.submit(work, *arguments)
            except RuntimeError as e:
                # After any other, a thread that there is may have the work all the same.
                if "after interpreter shutdown" not in str(e):
                    raise
        done: Future[Result] = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as e:  # noqa: BLE001 - raised again where it is waited for
            done.set_exception(e)
        return done

    def end(self) -> None:
        """Wait for what is being done, and leave out the rest."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def map_ahead(work: Callable[[Task], Result], tasks: Iterable[Task], threads: int | None = None) -> Iterator[Result]:
    """`map(work, tasks)`, at most two results a thread ahead of the consumer; by default on `thread_count()` threads.

    The first error ends it. Threads end with the iteration, also where the consumer gives up early: none is ever shared
    with a forked child. A single task starts no thread; with 0 threads, the consumer does the work.
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
    """Iterate on a thread of its own, one item ahead of the consumer. What the items raise is raised to the consumer.

    Leaving the block ends the thread, wherever the consumer is.
    """
    pool, remaining = Threads(1), iter(items)

    def one_more() -> list[Result]:
        return list(islice(remaining, 1))

    def results() -> Iterator[Result]:
        pending = pool.begin(one_more)
        while found := pending.result():
            pending = pool.begin(one_more)
            yield from found

    try:
        yield results()
    finally:
        pool.end()
