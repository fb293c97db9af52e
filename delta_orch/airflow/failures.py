"""How errors of delta_orch become decisions of Airflow: try again, or give up at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowFailException

from delta_orch.errors import CommitRetriesExhaustedError, ConflictError, DeltaError

DELTA_RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=[ConflictError, CommitRetriesExhaustedError],
            action=RetryAction.RETRY,
            reason="A concurrent commit won; the table is unchanged by this attempt",
        ),
        RetryRule(
            exception=DeltaError,
            action=RetryAction.FAIL,
            reason="The same request would fail the same way again",
        ),
    ]
)
"""`retry_policy=` for tasks that use delta_orch in their own code: conflicts are retried (within `retries`), a wrong
request, an unsupported feature or a corrupt log fails at once, and all else follows the task's own settings. The
operators of this package need no policy; they decide the same way themselves."""


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
