"""The Dagster run behind a write: its identity, its words in the commit, its retries, and whose rows it must leave.

`ensure_whole` fails a run that re-executes a part of another one and would leave steps out, or count a value twice.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_orch.errors import ConflictError, DeltaError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.files.txn import UNIT_PREFIXES, is_unit_name
from delta_orch.pipeline.target_table import RowGuard, asset_owner
from delta_orch.pipeline.unit import Attempt, Relation, Unit, escaped
from delta_orch.storage.storage_options import public_uri
from delta_orch.verbs.unit_records import REPLACING, RecordedUnit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot


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
            # It began before this root run was created, so the commit need not be read.
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
    # Every reader of the table would see a password in it.
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


_REMEDY = "Re-execute all steps"
_WHOLE: set[str] = set()
"""Runs that were found to be whole."""


def ensure_whole(context: dg.InputContext | dg.OutputContext | dg.InitResourceContext) -> None:
    """Check that a run which re-executes a part of another collects each output once, and that it leaves no mapped
    step out. Dagster goes by what is there: not by what a step would yield that was never started, but twice by what
    one yielded in two attempts.

    Args:
        context: Of a value that is read or written; or of a resource that a step of the run asks for.

    Raises:
        InvalidRequestError: A step collects an output twice, or one is missing; or the run is from failure, and there
            are mapped steps that neither it nor a run before it has come to the end of.
    """
    if isinstance(context, dg.InitResourceContext):
        run, instance = context.run, context.instance
    else:
        step = context.step_context if is_in_run(context) else None
        run, instance = (None, None) if step is None else (step.dagster_run, step.instance)
    if run is None or instance is None or not run.step_keys_to_execute or not run.execution_plan_snapshot_id:
        return
    # A step may collect thousands of values, one after the other.
    if run.run_id not in _WHOLE:
        _ensure_whole(run, instance)
        _WHOLE.add(run.run_id)


def _ensure_whole(run: dg.DagsterRun, instance: dg.DagsterInstance) -> None:
    plan: Any = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id or "")
    executed, known_state = set(run.step_keys_to_execute or ()), plan.initial_known_state
    if known_state is None:
        return
    past, runs, outputs = known_state.parent_state, list[str](), set[Any]()
    while past is not None:
        outputs |= past.produced_outputs
        runs.append(past.run_id)
        past = past.get_parent_state()
    steps = _inputs_of_steps(plan, known_state.dynamic_mappings)
    collected = set[str]()
    for step in plan.steps:
        for value in step.inputs if step.key in executed else ():
            # An input that waits for the checks of an asset loads one of its sources; one of nothing only waits.
            is_collected = hasattr(value.source, "sources") and not hasattr(value.source, "source_to_load_from")
            if is_collected and value.dagster_type_key != "Nothing":
                _ensure_once(step.key, value.upstream_output_handles)
                collected |= {one.step_key for one in set(value.upstream_output_handles) - outputs}
    without = {key for key in steps if "[" in key}.difference(one.step_key for one in outputs) | collected
    # Steps that this run executes have ended by now, or will. Their key is not known before they are mapped.
    without = {key for key in without if not executed & {key, re.sub(r"\[.*", "[?]", key)}}
    stats = [one for run_id in runs if without for one in instance.get_run_step_stats(run_id)]
    ended = {one.step_key for one in stats if one.status and one.status.value in ("SUCCESS", "SKIPPED")}

    def is_over(key: str) -> bool:
        """Whether a step has ended, or is to be skipped as one before it has ended without the output it asks for."""
        sources = filter(None, steps.get(key, ()))
        return key in ended or any(all(o not in outputs and is_over(o.step_key) for o in some) for some in sources)

    missing = {key for key in without if not is_over(key)}
    if missing & collected or (missing and _is_from_failure(run, instance, known_state)):
        raise InvalidRequestError(
            f"The run would go on without {min(missing)}",
            cause="Neither it nor a run that it repeats has come to the end of that step: re-executing from "
            "failure, Dagster leaves out mapped steps that were never started",
            remedy=_REMEDY,
        )


def _ensure_once(name: str, handles: Any) -> None:
    for one, count in Counter(handles).items():
        # A list may name an output twice; a mapping key comes once.
        if count > 1 and (one.mapping_key or "[" in one.step_key):
            raise InvalidRequestError(
                f"Step {name} would collect an output of {one.step_key} twice",
                cause="Re-executing from failure, Dagster counts a mapping key for each attempt that yielded it",
                remedy=_REMEDY,
            )


def _inputs_of_steps(plan: Any, mappings: Any) -> dict[str, list[Any]]:
    """Return the upstream outputs of each input, by the key of its step. Mapped steps are expanded by the mapping keys
    of earlier runs."""
    inputs: dict[str, list[Any]] = {}
    for step in plan.steps:
        if "[?]" not in step.key:
            inputs[step.key] = [value.upstream_output_handles for value in step.inputs]
            continue
        (by,) = {
            (value.source.resolved_by_step_key, value.source.resolved_by_output_name)
            for value in step.inputs
            if hasattr(value.source, "resolved_by_step_key")
        }
        for key in mappings.get(by[0], {}).get(by[1]) or ():
            inputs[step.key.replace("[?]", f"[{key}]")] = [
                [value.source.resolve(key).step_output_handle]
                if hasattr(value.source, "resolved_by_step_key")
                else value.upstream_output_handles
                for value in step.inputs
            ]
    return inputs


def _is_from_failure(run: dg.DagsterRun, instance: dg.DagsterInstance, known_state: Any) -> bool:
    """Whether a run is to do all that the one before it has not. A selection of steps leaves out others by choice."""
    parent = instance.get_run_by_id(run.parent_run_id or "")
    if parent is None or parent.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        return False
    return set(known_state.build_resume_retry_reexecution(instance, parent)[0]) == set(run.step_keys_to_execute or ())


BY_SCOPE = "assets by scope"
"""The owner of a table in which assets replace partitions, or the rows of a predicate. None replaces the whole."""


def owner_of_write(
    table: DeltaTable,
    before: TableSnapshot | None,
    key: Sequence[str],
    attempt: Attempt | None,
    write: str,
    *,
    is_scoped: bool,
) -> tuple[str, tuple[RowGuard, ...]]:
    """The owner that a write of an asset needs, and whose rows it leaves.

    Args:
        key: The asset's.
        attempt: The attempt that writes; None for `exactly_once=False`.
        write: How it writes.
        is_scoped: An overwrite replaces partitions, or the rows of a predicate.
    """
    owner, writer = asset_owner(key), asset_writer(key)
    is_dynamic = write == "overwrite_partitions"
    if not is_dynamic and not (is_scoped and write == "overwrite"):
        return owner, ()
    guards = (_rows_of_newer_runs(table, writer, attempt),) if is_dynamic and attempt is not None else ()
    # An asset may get partitions when it has a table of its own already.
    if before is not None and before.properties.owner == owner:
        return owner, guards
    return BY_SCOPE, (*guards, _rows_of_others(table, writer))


def _rows_of_newer_runs(table: DeltaTable, writer: str, attempt: Attempt) -> RowGuard:
    """No partition is replaced which a run that began later has written. Each run is a unit of its own, so their order
    alone would not keep a late run out."""
    own = {unit.name for unit in attempt.units}

    def applies(before: TableSnapshot) -> bool:
        return any(order > attempt.order for order in before.txns.named((f"{writer}:",)).values())

    def refusal(unit: RecordedUnit) -> ConflictError | None:
        if unit.order <= attempt.order:
            return None
        return ConflictError(
            f"The write of {writer} would replace rows that {unit.name} has written to {table.uri}",
            cause="That run began later",
            remedy="Run the step again, so that it computes the newest rows",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: name.startswith(f"{writer}:") and name not in own, refusal)


def _rows_of_others(table: DeltaTable, writer: str) -> RowGuard:
    """No rows are replaced which another step has replaced others by. What others append or merge is replaced with the
    rows beside it.

    Args:
        writer: What the names of the units of the asset begin with.
    """

    def applies(before: TableSnapshot) -> bool:
        return any(order >= 0 for order in before.txns.named(UNIT_PREFIXES, but=(f"{writer}:",)).values())

    def refusal(unit: RecordedUnit) -> InvalidRequestError | None:
        has_replaced = unit.version is None or (unit.step is not None and unit.step.write in REPLACING)
        if unit.order < 0 or not has_replaced:
            return None
        return InvalidRequestError(
            f"The write of {writer} would replace rows that {unit.name} has written to {table.uri}",
            cause="Two steps replace rows of one table, and their scopes overlap",
            remedy="Give each partitions or a table of its own. To hand the rows over, delete them, or take "
            f"them back first: DeltaTable({table.uri!r}).undo(unit={unit.name!r})",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: is_unit_name(name) and not name.startswith(f"{writer}:"), refusal)
