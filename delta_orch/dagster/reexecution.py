"""What a run that re-executes a part of another leaves out, or would count twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from functools import lru_cache
from typing import Any

import dagster as dg

from delta_orch.dagster.run import is_in_run
from delta_orch.errors import InvalidRequestError

_REMEDY = "Re-execute all steps"


def ensure_whole(context: dg.InputContext | dg.OutputContext) -> None:
    """Check that a run which re-executes a part of another gets each output of it once, and that it leaves no mapped
    step out. Dagster goes by what is there: not by what a step would yield that was never started, but twice by what
    one yielded in two attempts.

    Raises:
        InvalidRequestError: The step collects an output twice, or one is missing; or the run is from failure, and
            there are mapped steps that neither it nor a run before it has come to the end of.
    """
    if is_in_run(context) and context.step_context.dagster_run.step_keys_to_execute:
        _ensure_whole(context.step_context)


@lru_cache(maxsize=1)  # A step may collect thousands of values, one after the other.
def _ensure_whole(step: dg.StepExecutionContext) -> None:
    executed = set(step.dagster_run.step_keys_to_execute or ())
    past, runs = step.get_known_state().parent_state, list[str]()
    outputs = set(step.get_known_state().ready_outputs)
    while past is not None:
        outputs |= past.produced_outputs
        runs.append(past.run_id)
        past = past.get_parent_state()
    collected = set[str]()
    for given in step.step.step_inputs:
        # An input that waits for the checks of an asset loads one of its sources; one of nothing only waits.
        is_collected = hasattr(given.source, "sources") and not hasattr(given.source, "source_to_load_from")
        if is_collected and given.dagster_type_key != "Nothing":
            handles = given.get_step_output_handle_dependencies()
            _ensure_once(step.step.key, handles)
            collected |= {one.step_key for one in set(handles) - outputs}
    steps = _steps_of(step)
    without = {key for key in steps if "[" in key}.difference(one.step_key for one in outputs) | collected
    # Steps that this run executes have ended by now, or will. Their key is not known before they are mapped.
    without = {key for key in without if not executed & {key, re.sub(r"\[.*", "[?]", key)}}
    stats = [one for run in runs if without for one in step.instance.get_run_step_stats(run)]
    ended = {one.step_key for one in stats if one.status and one.status.value in ("SUCCESS", "SKIPPED")}

    def is_over(key: str) -> bool:
        """Whether a step has ended, or is to be skipped as one before it has ended without the output it asks for."""
        given = steps[key].step_inputs if key in steps else ()
        sources = filter(None, (one.get_step_output_handle_dependencies() for one in given))
        return key in ended or any(all(o not in outputs and is_over(o.step_key) for o in some) for some in sources)

    missing = {key for key in without if not is_over(key)}
    if missing & collected or (missing and _is_from_failure(step, executed)):
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


def _steps_of(step: dg.StepExecutionContext) -> dict[str, Any]:
    """All steps of the job by their keys, with the mapped ones of the mapping keys that earlier runs have yielded."""
    mappings = step.get_known_state().dynamic_mappings
    every: list[Any] = list(step.execution_plan.step_dict.values())
    steps = {one.key: one for one in every if not hasattr(one, "resolve")}
    for one in every:
        if hasattr(one, "resolved_by_output_name"):
            known = mappings.get(one.resolved_by_step_key, {}).get(one.resolved_by_output_name)
            steps |= {made.key: made for made in (one.resolve(mappings) if known else ())}
    return steps


def _is_from_failure(step: dg.StepExecutionContext, executed: Set[str]) -> bool:
    """Whether the run is to do all that the one before it has not. A selection of steps leaves out others by choice."""
    parent = step.instance.get_run_by_id(step.dagster_run.parent_run_id or "")
    if parent is None or parent.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
        return False
    return set(step.get_known_state().build_resume_retry_reexecution(step.instance, parent)[0]) == executed
