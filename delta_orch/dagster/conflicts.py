"""Conflicts with other writers as Dagster's retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from delta_orch.errors import DeltaError

DEFAULT_CONFLICT_RETRIES = 3
_PAUSE_S = 1.0


@contextmanager
def retry_conflicts(max_retries: int) -> Iterator[None]:
    """Turn retryable errors into a retry of the step; all others pass.

    A conflict means that another commit won and nothing was written. The step runs again as a whole, because what it
    read may have changed. Retries of the step's own `RetryPolicy` count as well.
    """
    try:
        yield
    except DeltaError as error:
        if not error.retryable or max_retries <= 0:
            raise
        raise dg.RetryRequested(max_retries=max_retries, seconds_to_wait=_PAUSE_S) from error
