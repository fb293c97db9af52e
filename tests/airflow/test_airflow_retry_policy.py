"""`DELTA_RETRY_POLICY`: retries by class of error, in tasks that are none of ours."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task

from delta_orch.airflow.versions import keeps_state

if not keeps_state():
    pytest.skip("Airflow before 3.3 has no policies of retries", allow_module_level=True)

from airflow.sdk import RetryAction

from delta_orch.airflow import DELTA_RETRY_POLICY
from delta_orch.errors import (
    CommitRetriesExhaustedError,
    ConcurrentAppendError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (ConcurrentAppendError("x"), RetryAction.RETRY),
        (CommitRetriesExhaustedError("x"), RetryAction.RETRY),
        (TableNotFoundError("x"), RetryAction.FAIL),
        (StorageError("x"), RetryAction.FAIL),
        (ValueError("x"), RetryAction.DEFAULT),
    ],
)
def test_retry_policy(error: Exception, action: RetryAction) -> None:
    assert DELTA_RETRY_POLICY.evaluate(error, 1, 3).action is action
    again = type(DELTA_RETRY_POLICY).deserialize(DELTA_RETRY_POLICY.serialize())
    assert again.evaluate(error, 1, 3).action is action


def test_retry_policy_decides_as_retryable_does() -> None:
    """For every error there is: the policy and the attribute must not drift apart."""
    import delta_orch.errors as errors

    kinds: list[type[errors.DeltaError]] = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DeltaError)
    ]
    assert len(kinds) > 30
    for kind in kinds:
        expected = RetryAction.RETRY if kind.retryable else RetryAction.FAIL
        assert DELTA_RETRY_POLICY.evaluate(kind("x"), 1, 3).action is expected, kind


def test_retry_policy_in_a_run(runs) -> None:  # type: ignore[no-untyped-def]
    with DAG("policy", schedule=None) as dag:
        settings: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(0), "retry_policy": DELTA_RETRY_POLICY}

        @task(**settings)
        def heals(ti: Any) -> None:
            if ti.try_number < 3:
                raise ConcurrentAppendError("lost")

        @task(**settings)
        def never_heals() -> None:
            raise SchemaMismatchError("extra column x")

        heals()
        never_heals()
    run = runs.run(dag)
    assert (runs.state(run, "heals"), runs.tries(run, "heals")) == ("success", 3)
    assert (runs.state(run, "never_heals"), runs.tries(run, "never_heals")) == ("failed", 1)
