"""Assertions that a call is bounded in time, which a loaded machine or one collection of garbage does not fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_TRIES = 3
_LOOP, _LOOP_SECONDS = 2_000_000, 0.03
"""What a loop takes where the limits were chosen."""


class Try:
    """One of a few tries of a call.

    Attributes:
        took: Seconds of processor time, also of other threads of this process.
    """

    def __init__(self) -> None:
        self.took = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.process_time()
        try:
            yield
        finally:
            self.took += time.process_time() - started


def _slowness() -> float:
    """How many times as long as elsewhere this machine now takes for a loop, at least 1. What runs beside it counts."""
    started = time.process_time()
    for _ in range(_LOOP):
        pass
    return max(1.0, (time.process_time() - started) / _LOOP_SECONDS)


def tries(seconds: float, what: object = "") -> Iterator[Try]:
    """Tries of the same call, until one takes less processor time than `seconds`, or as much more as this machine is
    slow.

    What never ends or multiplies with its input is slow each time. A collection of garbage in a process that has run
    thousands of tests takes seconds, but not three times in a row.

    Example:
        >>> for one in tries(1):
        ...     with one.timed():
        ...         sum(range(10))
    """
    slowest = []
    for _ in range(_TRIES):
        one = Try()
        yield one
        if one.took < seconds or one.took < seconds * _slowness():
            return
        slowest.append(round(one.took, 1))
    raise AssertionError(f"{what} took {slowest} s of processor time, more than {seconds}")
