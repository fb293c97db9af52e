"""`DELTA_RETRY_POLICY`: retries by class of error, for tasks that use delta_orch in their own code.

Raises InvalidRequestError when it is imported: Airflow is older than 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.errors import DeltaError

if not keeps_state():
    raise needs_newer(
        "DELTA_RETRY_POLICY",
        cause="Older ones have no policies of retries",
        remedy="Leave it out: a task's retries follow every error then. The operators of this package need no policy",
    )

from airflow.sdk import RetryDecision, RetryPolicy

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
