"""Mapped tasks: their arguments are looked at when the DAG is parsed, and name what each instance writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from delta_orch.airflow.locations import is_output, is_template
from delta_orch.airflow.run_context import mapped_name
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator

_MADE = 100
"""So many mapped tasks are made when a DAG is parsed; each takes half a millisecond."""


class CheckedPartial(OperatorPartial):  # type: ignore[misc]
    """As Airflow's. What the outputs of other tasks decide, the task looks at when it runs."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedOperator:
        self._expand_called = True  # Else Airflow warns of a task that was refused: it was never mapped.
        for arguments in _told(expand_input.value):
            self.operator_class.ensure_known(arguments)
        mapped = super()._expand(expand_input, strict=strict)
        for arguments in islice(_whole(expand_input.value), _MADE):
            mapped.unmap(arguments)  # As Airflow makes the task of them, before it runs.
        if getattr(self.operator_class, "has_units", False):
            ensure_instances(str(self.kwargs.get("task_id")), self.kwargs, expand_input.value)
        return mapped


def checked_partial(found: OperatorPartial) -> CheckedPartial:
    """The same arguments of a mapped task, looked at when it is expanded."""
    found._expand_called = True
    return CheckedPartial(operator_class=found.operator_class, kwargs=found.kwargs, params=found.params)


def ensure_instances(task_id: str, given: Mapping[str, Any], over: object) -> None:
    """Refuse, when a DAG is parsed, mapped instances that would be one unit, or that nothing names.

    Args:
        task_id: The task's.
        given: The arguments that all instances have.
        over: What the task is mapped over.

    Raises:
        InvalidRequestError: Two have the same arguments, or one has an argument that is no JSON value.
    """
    is_named = isinstance(over, Mapping) and "identity" in over
    if is_named or given.get("identity") is not None or given.get("exactly_once") is False:
        return
    seen: set[str] = set()
    for arguments in _single(over):
        if arguments.get("identity") is not None:
            return
        name = mapped_name(arguments)
        if name is None:
            raise unnamed_instance(task_id, arguments)
        if name in seen:
            raise InvalidRequestError(
                f"Task {task_id} is mapped over the same value twice: {name:.100}",
                cause="Each mapped instance is a unit, named by its mapped arguments; the second would replace the "
                "rows of the first",
                remedy="Take the duplicate out of the list, or name each instance: identity='{{ … }}'",
            )
        seen.add(name)


def unnamed_instance(task_id: str, arguments: Mapping[str, object]) -> InvalidRequestError:
    """The error for mapped arguments that name nothing."""
    kinds = ", ".join(sorted({type(value).__name__ for value in arguments.values()}))
    return InvalidRequestError(
        f"Task {task_id} is mapped over values that are not JSON ({kinds}), and has no identity",
        cause="A mapped instance is named by its arguments, as its index changes when the list does",
        remedy="Name what each instance writes: identity='{{ task.op_kwargs[\"region\"] }}'",
    )


def mapped_arguments(context: Context) -> Mapping[str, Any]:
    """The arguments that tell this instance of a mapped task, or of a mapped task group, from others."""
    dag: Any = context["dag"]
    task = dag.task_dict[context["ti"].task_id]
    # 3.0 and 3.1 call the task of a mapped group no mapped one, either.
    is_mapped = hasattr(task, "_get_specified_expand_input")
    over = task._get_specified_expand_input() if is_mapped else next(task.iter_mapped_task_groups())._expand_input
    resolved: tuple[Mapping[str, Any], set[int]] = over.resolve(context)
    return resolved[0]


def _single(over: object) -> Iterator[Mapping[str, Any]]:
    """The values that tell instances apart, if the DAG lists them: each set of arguments, or each value of an argument.
    A value that an argument has twice comes twice beside each value of the others."""
    if isinstance(over, Mapping):
        for name, values in over.items():
            for value in values if isinstance(values, list | tuple) else ():
                if not is_template(value):
                    yield {name: value}
    elif isinstance(over, list | tuple):
        yield from (one for one in over if isinstance(one, Mapping) and not is_template(one))


def _told(over: object) -> Iterator[Mapping[str, Any]]:
    """What a task is mapped over, as far as the DAG says it: one argument after the other, or several together."""
    if isinstance(over, Mapping):
        for name, values in over.items():
            for value in values if isinstance(values, list | tuple) else ():
                yield {} if is_output(value) else {name: value}
    elif isinstance(over, list | tuple):
        for one in over:
            if isinstance(one, Mapping):
                yield {name: value for name, value in one.items() if not is_output(value)}


def _whole(over: object) -> Iterator[Mapping[str, Any]]:
    """The arguments of mapped tasks, where the DAG says all that a task is mapped over: each of a list, or each value
    beside the first ones of the other arguments."""
    if isinstance(over, Mapping):
        values = [value for value in over.values() if isinstance(value, list | tuple) and value]
        if len(values) < len(over) or any(is_output(one) for several in values for one in several):
            return
        first = {name: several[0] for name, several in over.items()}
        for name, several in over.items():
            for value in several:
                yield {**first, name: value}
    elif isinstance(over, list | tuple):
        yield from (one for one in over if isinstance(one, Mapping))
