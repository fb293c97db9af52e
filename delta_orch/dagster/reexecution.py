"""What a run that re-executes a part of another leaves out, or would count twice."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import dagster as dg

from delta_orch.dagster.run import is_in_run
from delta_orch.errors import InvalidRequestError

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
    """What each input of the steps of a job is made of, by the steps' keys: the mapped ones of the mapping keys that
    earlier runs have yielded."""
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
