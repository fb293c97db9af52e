"""How errors of delta_orch become decisions of Airflow: try again, or give up at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta_orch.airflow.versions import AirflowFailException
from delta_orch.errors import DeltaError


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Let errors worth a retry through and end the task on the others.

    Raises:
        AirflowFailException: For a DeltaError that is not `retryable`; the error is its cause.
    """
    try:
        yield
    except DeltaError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{error.code}: {error}") from error
