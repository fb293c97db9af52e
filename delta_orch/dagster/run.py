"""The Dagster run behind a write: its identity, its words in the commit, and its retries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.pipeline.unit import Attempt, Relation, Unit, escaped
from delta_orch.storage.storage_options import public_uri
from delta_orch.verbs.unit_records import RecordedUnit

WEBSERVER_VARIABLE = "DELTA_ORCH_WEBSERVER_BASE_URL"
"""The environment variable with the address of Dagster's UI, for links from commits to their runs."""

DEFAULT_CONFLICT_RETRIES = 3
_PAUSE_S = 1.0
_CLOCKS_DIFFER_S = 86_400
"""By so much the clock of a worker may be behind that of Dagster's database."""

StepContext = dg.OutputContext | dg.InputContext | dg.AssetExecutionContext | dg.OpExecutionContext

_STARTS = {dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED}
_ENDS = {
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
    dg.DagsterEventType.STEP_SKIPPED,
}


@dataclass(frozen=True, slots=True)
class DagsterRun:
    """One attempt of a step of a run.

    Attributes:
        run_id: The run.
        root_run_id: The first run of a chain of re-executions, or the run itself.
        step_key: The step.
        retry_number: How many attempts of the step the run has had before this one.
        started_ms: When this attempt started, in milliseconds since the epoch.
        instance: Dagster's, which knows the other attempts.
    """

    run_id: str
    root_run_id: str
    step_key: str
    retry_number: int
    started_ms: int
    instance: dg.DagsterInstance

    def attempt(self, units: Sequence[Unit]) -> Attempt:
        """The attempt, at the units that it writes."""
        return Attempt(tuple(units), self.started_ms, self.run_id, self.relation)

    def relation(self, recorded: RecordedUnit, order: int) -> Relation:
        """Compare this attempt with a recorded one.

        Attempts of one root run follow each other as Dagster created their runs and counted their retries. One that
        Dagster has seen no end of was killed: this one repeats it, unless another one has done so before. Attempts of
        other root runs follow each other as they started.
        """
        root = self.instance.get_run_record_by_id(self.root_run_id)
        if root is not None and recorded.order < (root.create_timestamp.timestamp() - _CLOCKS_DIFFER_S) * 1000:
            # Begun before this root run was created. The commit need not be looked for.
            return "earlier"
        recorded_run = user_metadata_of(recorded.commit_info)
        run_id, retry_number = recorded_run.get("run_id"), recorded_run.get("retry_number")
        if recorded_run.get("root_run_id") != self.root_run_id or not isinstance(retry_number, int):
            return "later" if recorded.order > order else "earlier"
        if (run_id, retry_number) == (self.run_id, self.retry_number):
            return "own"
        own, other = (self.instance.get_run_record_by_id(str(one)) for one in (self.run_id, run_id))
        if own is None or other is None:
            return "earlier"
        if (other.storage_id, retry_number) > (own.storage_id, self.retry_number):
            return "later"
        if _has_ended(self.instance, str(run_id), self.step_key, retry_number):
            return "earlier"
        between = (run for run in self._chain(own) if other.storage_id < run.storage_id < own.storage_id)
        return "earlier" if any(self._has_succeeded(run.dagster_run.run_id) for run in between) else "own"

    def _chain(self, own: dg.RunRecord) -> Iterator[dg.RunRecord]:
        """The runs that re-execute the root run, and those that this one re-executes: Python's `execute_job` tags no
        run with its root."""
        yield from self.instance.get_run_records(dg.RunsFilter(tags={"dagster/root_run_id": self.root_run_id}))
        parent: dg.RunRecord | None = own
        while parent is not None and (run_id := parent.dagster_run.parent_run_id) is not None:
            parent = self.instance.get_run_record_by_id(run_id)
            if parent is not None:
                yield parent

    def _has_succeeded(self, run_id: str) -> bool:
        stats = self.instance.get_run_step_stats(run_id, [self.step_key])
        return any(one.status is not None and one.status.value == "SUCCESS" for one in stats)

    def user_metadata(self, asset_key: str, more: Mapping[str, str] | None = None) -> str:
        """`commitInfo.userMetadata`: JSON that names the attempt behind a commit, and `more`. It has the run's page
        where the environment tells the address of the UI.

        Raises:
            InvalidRequestError: `DELTA_ORCH_WEBSERVER_BASE_URL` is not the address of a website.
        """
        import orjson

        values = {
            "orchestrator": "dagster",
            "run_id": self.run_id,
            "root_run_id": self.root_run_id,
            "step_key": self.step_key,
            "retry_number": self.retry_number,
            "asset_key": asset_key,
            **_run_page(self.run_id),
        }
        return orjson.dumps({**values, **(more or {})}).decode()


def asset_writer(key: Sequence[str]) -> str:
    """`dagster:{asset key}`, the parts of the key joined with `/`. What the names of an asset's units begin with."""
    return "dagster:" + "/".join(escaped(part, ":/") for part in key)


LEAVES_OTHER_RUNS = ("append", "merge", "cdc", "overwrite_partitions")
"""Writes that leave rows of other runs in the table. Without partitions, each run is a unit of its own."""


def asset_units(
    key: Sequence[str],
    run: DagsterRun,
    scopes: Mapping[str, Expression | None] | None,
    *,
    write: str,
    by_run: bool = False,
) -> tuple[Unit, ...]:
    """The units of an asset that a run writes: one for each partition; without partitions the asset.

    Args:
        key: The asset key's parts.
        scopes: Partition key → the predicate over partition columns that selects its rows; None as a predicate where
            the table is partitioned otherwise. None for a run without partitions.
        write: How the run writes.
        by_run: Many runs add to one partition: each is a unit.
    """
    writer, of_run = asset_writer(key), f"run:{run.root_run_id}"
    if scopes is None:
        return (Unit(writer, of_run if by_run or write in LEAVES_OTHER_RUNS else ""),)
    return tuple(Unit(writer, f"{part}:{of_run}" if by_run else part, scope) for part, scope in scopes.items())


def op_unit(parts: Sequence[str], mapping_key: str | None, run: DagsterRun) -> Unit:
    """The unit of an output of an op: `dagster-op:{job}/{node path}[{mapping key}]:run:{root run id}`."""
    writer = "dagster-op:" + "/".join(escaped(part, ":/[]") for part in parts)
    mapped = "" if mapping_key is None else f"[{escaped(mapping_key, ':[]')}]"
    return Unit(writer + mapped, f"run:{run.root_run_id}")


def _has_ended(instance: dg.DagsterInstance, run_id: str, step_key: str, retry_number: int) -> bool:
    """Whether Dagster has seen an attempt of a step end, or the step succeed after it. One whose process was killed has
    no end, or one that the process of the run has noted for it."""
    entries = instance.all_logs(run_id, of_type=_STARTS | _ENDS)
    events = [e for entry in entries if (e := entry.dagster_event) is not None and e.step_key == step_key]
    started_in, ended = None, 0
    for event in events:
        if event.event_type in _STARTS:
            started_in = event.pid
            continue
        if event.event_type == dg.DagsterEventType.STEP_SUCCESS and ended >= retry_number:
            return True
        if ended == retry_number and event.pid == started_in:
            return True
        ended += 1
    return False


def _run_page(run_id: str) -> dict[str, str]:
    base = os.environ.get(WEBSERVER_VARIABLE)
    if not base:
        return {}
    # A password in it would be in the log for whoever reads the table.
    if not base.startswith(("http://", "https://")) or public_uri(base) != base:
        raise InvalidRequestError(
            f"{WEBSERVER_VARIABLE} is not the address of Dagster's UI",
            remedy="Set it to the address alone, such as https://dagster.example.com, or leave it out",
        )
    return {"run_url": f"{base.rstrip('/')}/runs/{run_id}"}


def read_run(context: StepContext) -> DagsterRun:
    """The attempt that the context of a running step belongs to.

    Raises:
        InvalidRequestError: There is no run.
    """
    run, instance, step = _run_of(context)
    (stats,) = instance.get_run_step_stats(run.run_id, [step.step.key]) or (None,)
    # A step that has been retried has started several times.
    started = None if stats is None else stats.partial_attempt_start or stats.start_time
    if started is None:
        record = instance.get_run_record_by_id(run.run_id)
        started = 0.0 if record is None else record.create_timestamp.timestamp()
    return DagsterRun(
        run_id=run.run_id,
        root_run_id=run.root_run_id or run.run_id,
        step_key=step.step.key,
        retry_number=step.previous_attempt_count,
        started_ms=int(started * 1000),
        instance=instance,
    )


def _run_of(context: StepContext) -> tuple[dg.DagsterRun, dg.DagsterInstance, dg.StepExecutionContext]:
    try:
        if isinstance(context, dg.OutputContext | dg.InputContext):
            step = context.step_context
        else:
            op_context = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
            step = op_context.get_step_execution_context()
        return step.dagster_run, step.instance, step
    except dg.DagsterError as error:
        raise InvalidRequestError(
            "The write does not happen inside a Dagster run",
            cause="The run is the identity that makes a write happen once",
            remedy="Run it through dg.materialize; an IO manager with exactly_once=False writes without a run",
        ) from error


def is_in_run(context: dg.OutputContext | dg.InputContext) -> bool:
    """Whether a context belongs to a run; one of `dg.build_output_context` or `dg.build_input_context` does not."""
    try:
        return context.step_context is not None
    except dg.DagsterInvariantViolationError:
        return False


def step_name(context: dg.OutputContext) -> str:
    """The step's key, or outside of a run the asset's."""
    return context.step_key if is_in_run(context) else context.asset_key.to_user_string()


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
