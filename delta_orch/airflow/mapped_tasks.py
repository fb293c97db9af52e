"""Mapped tasks: their arguments name what each instance writes, and are checked when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from delta_orch.airflow.arguments import ensure_locations
from delta_orch.airflow.locations import is_template
from delta_orch.airflow.run_context import mapped_name
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.write_settings import OLD_ARGUMENTS, refuse_old_names

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator


class CheckedPartial(OperatorPartial):  # type: ignore[misc]
    """As Airflow's; what a task is mapped over is checked when the DAG is parsed."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedOperator:
        self._expand_called = True  # Else Airflow warns of a task that was refused: it was never mapped.
        ensure_mapped(self.operator_class, self.kwargs, expand_input.value)
        return super()._expand(expand_input, strict=strict)


class MappedArguments:
    """Mixed into operators: `partial` gives a `CheckedPartial`."""

    @classmethod
    def partial(cls, **kwargs: Any) -> CheckedPartial:
        """As Airflow's: some arguments of a mapped task."""
        made = super().partial(**kwargs)  # type: ignore[misc]
        made._expand_called = True
        return CheckedPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)


def ensure_mapped(kind: type, common: Mapping[str, Any], over: object) -> None:
    """Check the arguments of a mapped task, as far as the DAG lists them.

    Args:
        kind: The operator.
        common: The arguments that all instances have.
        over: What the task is mapped over.

    Raises:
        InvalidRequestError: An argument has its old name. A location is wrong or carries a login. Or the operator
            writes units, and two instances have the same arguments, or one has arguments that are not JSON values, so
            that nothing names it.
    """
    listed = list(_listed(over))
    for arguments in (common, *listed):
        if not issubclass(kind, BaseSensorOperator):  # A sensor's mode is Airflow's.
            refuse_old_names(arguments, OLD_ARGUMENTS)
        ensure_locations(arguments)
    is_named = any(arguments.get("identity") is not None for arguments in (common, *listed))
    is_named |= isinstance(over, Mapping) and "identity" in over
    if is_named or not getattr(kind, "has_units", False) or common.get("exactly_once") is False:
        return
    task_id = str(common.get("task_id"))
    names: set[str] = set()
    for arguments in listed:
        if is_template(arguments):
            continue
        name = mapped_name(arguments)
        if name is None:
            raise unnamed_instance(task_id, arguments)
        if name in names:
            raise InvalidRequestError(
                f"Task {task_id} is mapped over the same value twice: {name:.100}",
                cause="Each mapped instance is a unit, named by its mapped arguments; the second would replace the "
                "rows of the first",
                remedy="Take the duplicate out of the list, or name each instance: identity='{{ … }}'",
            )
        names.add(name)


def unnamed_instance(task_id: str, arguments: Mapping[str, object]) -> InvalidRequestError:
    """The error for mapped arguments that name nothing."""
    kinds = ", ".join(sorted({type(value).__name__ for value in arguments.values()}))
    return InvalidRequestError(
        f"Task {task_id} is mapped over values that are not JSON ({kinds}), and has no identity",
        cause="A mapped instance is named by its arguments, as its index changes when the list does",
        remedy="Name what each instance writes: identity='{{ task.op_kwargs[\"region\"] }}'",
    )


def mapped_arguments(context: Context) -> Mapping[str, Any]:
    """The arguments that tell this instance of a mapped task, or of a mapped task group, from others.

    Raises:
        InvalidRequestError: The task is no longer mapped. Airflow runs the instances that a run has, all the same.
    """
    dag: Any = context["dag"]
    task = dag.task_dict[context["ti"].task_id]
    # 3.0 and 3.1 call the task of a mapped group no mapped one, either.
    if hasattr(task, "_get_specified_expand_input"):
        over = task._get_specified_expand_input()
    elif groups := list(task.iter_mapped_task_groups()):
        over = groups[0]._expand_input
    else:
        raise InvalidRequestError(
            f"Task {task.task_id} is not mapped any more, and Airflow runs map index {context['ti'].map_index} of it",
            cause="Each instance that the run had before would write all rows",
            remedy="Delete the run, and trigger it again with its logical date",
        )
    resolved: tuple[Mapping[str, Any], set[int]] = over.resolve(context)
    return resolved[0]


def _listed(over: object) -> Iterator[Mapping[str, Any]]:
    """What the DAG lists of the values that tell instances apart: each set of arguments, or each value of an argument.
    A value that an argument has twice comes twice beside each value of the others."""
    if isinstance(over, Mapping):
        for name, values in over.items():
            yield from ({name: value} for value in (values if isinstance(values, list | tuple) else ()))
    elif isinstance(over, list | tuple):
        yield from (arguments for arguments in over if isinstance(arguments, Mapping))
