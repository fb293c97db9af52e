"""How long an operation waits for a store that fails temporarily, and how a process sets that time."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from delta_orch.errors import InvalidRequestError

RETRY_VARIABLE = "DELTA_ORCH_RETRY_SECONDS"
"""The environment variable that sets `retry_seconds` for a process and those it starts."""

_DEFAULT_S = 60.0
_MOST_S = 86_400.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 5.0

_configured: float | None = None
_most: ContextVar[float] = ContextVar("most", default=_MOST_S)


def configure(*, retry_seconds: float | None = None) -> None:
    """Set how this process works with every table. Processes that it starts read the environment instead.

    Args:
        retry_seconds: How long to repeat a request to a store that cannot be reached, is too busy or fails temporarily.
            The pauses are random and grow. The same time applies to a commit whose outcome is unknown. 0 repeats
            nothing. None reads `DELTA_ORCH_RETRY_SECONDS`; without that variable, the time is 60 seconds.

    Raises:
        InvalidRequestError: `retry_seconds` is not a number from 0 to 86,400. Nothing was changed.
    """
    global _configured
    _configured = None if retry_seconds is None else _checked(retry_seconds, "retry_seconds")


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Limit the time of every operation of the block, whatever is set: a person waits for the answer."""
    token = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(token)


def retry_seconds() -> float:
    """The current setting. Raises InvalidRequestError if the environment variable is not such a number."""
    if _configured is not None:
        return _configured
    text = os.environ.get(RETRY_VARIABLE)
    if not text:
        return _DEFAULT_S
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    return _checked(number, RETRY_VARIABLE)


def _checked(value: float, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST_S:
        raise InvalidRequestError(f"{name} must be a number of seconds from 0 to {_MOST_S:.0f}")
    return float(value)


class Patience:
    """The pauses of one operation. The time starts at the first failure."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause before the next attempt. Returns False, without a pause, if the time is over."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + min(retry_seconds(), _most.get())
        pause_s = random.uniform(0.5, 1) * self._pause_s
        if now + pause_s > self._until:
            return False
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        time.sleep(pause_s)
        return True


def is_passing_status(status: int) -> bool:
    """Whether an HTTP status means a temporary failure: too many requests, a time-out, an error of the server."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))
