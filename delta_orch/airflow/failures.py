"""How errors of delta_orch become decisions of Airflow: try again, or give up at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowFailException

from delta_orch.errors import DeltaError

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaRetryPolicy(RetryPolicy):  # type: ignore[misc]
    """Asks the error itself: `DeltaError.retryable` says whether the same call may succeed later."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        if not isinstance(exception, DeltaError):
            return RetryDecision.default()
        if exception.retryable:
            return RetryDecision.retry(reason=f"{exception.code} passes; another attempt can succeed")
        return RetryDecision.fail(reason=f"{exception.code}: the same request would fail again")

    def serialize(self) -> dict[str, object]:
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, object]) -> DeltaRetryPolicy:
        return cls()


DELTA_RETRY_POLICY = DeltaRetryPolicy()
"""`retry_policy=` for tasks that use delta_orch in their own code: conflicts and outages are retried (within
`retries`), a wrong request, an unsupported feature or a corrupt log fails at once, and all else follows the task's own
settings. The operators of this package need no policy; they decide the same way themselves."""


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
