"""The Dagster run as the identity of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg
import orjson

from delta_orch.errors import InvalidRequestError

NO_LOCATION = "local"
"""The code location of runs that were started without one: `dg.materialize`, the command line."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What of a run goes into transaction ids and commits.

    Attributes:
        root_run_id: The first run of a chain of retries and re-executions; the run itself where it is none of these.
        root_run_created: When that one was created, timezone-aware.
    """

    code_location: str
    run_id: str
    root_run_id: str
    root_run_created: datetime
    step_key: str


def read_run_identity(context: Any, code_location: str | None = None) -> RunIdentity:
    """The identity of the run a context belongs to.

    Args:
        context: An `OutputContext`, `AssetExecutionContext` or `OpExecutionContext` of a step that runs.
        code_location: Used instead of the one the run was launched from.

    Raises:
        InvalidRequestError: There is no run, or the root run is no longer in the instance.
    """
    run, instance, step_key = _run_of(context)
    root_run_id = run.root_run_id or run.run_id
    record = instance.get_run_record_by_id(root_run_id)
    if record is None:
        raise InvalidRequestError(
            f"Run {run.run_id} repeats run {root_run_id}, which is no longer in the Dagster instance",
            cause="Whether this run repeats work that was committed is told by when its root run was created",
            remedy="Launch a new materialization instead of re-executing this run",
            run_id=run.run_id,
            root_run_id=root_run_id,
        )
    origin = run.remote_job_origin
    return RunIdentity(
        code_location=code_location or (origin.location_name if origin is not None else NO_LOCATION),
        run_id=run.run_id,
        root_run_id=root_run_id,
        root_run_created=record.create_timestamp,
        step_key=step_key,
    )


def _run_of(context: Any) -> tuple[dg.DagsterRun, dg.DagsterInstance, str]:
    try:
        if isinstance(context, dg.OutputContext):
            step = context.step_context
            return step.dagster_run, step.instance, context.step_key
        op_context = getattr(context, "op_execution_context", context)
        return op_context.run, op_context.instance, op_context.get_step_execution_context().step.key
    except dg.DagsterInvariantViolationError as error:
        raise InvalidRequestError(
            "The write does not happen inside a Dagster run",
            cause="Idempotency is told by the run",
            remedy="Run it through dg.materialize, or set idempotency='off'",
        ) from error


def user_metadata(identity: RunIdentity, asset_key: str | None, partitions: Mapping[str, str] | None = None) -> str:
    """`commitInfo.userMetadata`: JSON that names the run behind a commit."""
    values: dict[str, Any] = {
        "orchestrator": "dagster",
        "run_id": identity.run_id,
        "root_run_id": identity.root_run_id,
        "step_key": identity.step_key,
        "code_location": identity.code_location,
    }
    if asset_key is not None:
        values["asset_key"] = asset_key
    values.update(partitions or {})
    return orjson.dumps(values).decode()
