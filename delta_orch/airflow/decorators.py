"""`@task.delta`: a function whose return value is written, exactly once; `@task.delta_changes`: one of what is new."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator

from delta_orch.airflow.arguments import ensure_mapped
from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
from delta_orch.airflow.table_operator import OperatorArgument
from delta_orch.airflow.write_operator import DeltaStepOperator, DeltaWriteOperator, UserFunction
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import XComArg
    from airflow.sdk.bases.decorator import TaskDecorator
    from airflow.sdk.definitions._internal.expandinput import ExpandInput


class _Decorated(DecoratedOperator):  # type: ignore[misc]
    """An operator around a decorated function."""

    xcom_push = None  # Airflow 3.0 reads it and does nothing with it; its operators have none.
    op_args: Collection[OperatorArgument]
    _takes_batch = False
    """Whether the function gets a batch, before the arguments of the call, when the task runs."""

    def __init__(
        self,
        *,
        python_callable: UserFunction,
        op_args: Collection[OperatorArgument] | None = None,
        op_kwargs: Mapping[str, OperatorArgument] | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        upstream = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        # Airflow binds the arguments of the call to the signature.
        bound = (None, *(op_args or ())) if self._takes_batch else op_args
        super().__init__(
            kwargs_to_upstream=upstream, python_callable=python_callable, op_args=bound, op_kwargs=op_kwargs, **kwargs
        )
        if self._takes_batch:
            self.op_args = tuple(op_args or ())

    @property
    def is_async(self) -> bool:
        return False


class DeltaDecoratedOperator(_Decorated, DeltaWriteOperator):
    """`DeltaWriteOperator` around a decorated function."""

    custom_operator_name = "@task.delta"
    template_fields = DeltaWriteOperator.template_fields
    template_fields_renderers = DeltaWriteOperator.template_fields_renderers
    shallow_copy_attrs = DeltaWriteOperator.shallow_copy_attrs


def delta_task(python_callable: UserFunction | None = None, **kwargs: OperatorArgument) -> TaskDecorator:
    """Make a function a task that writes what it returns to a Delta table.

    Takes the arguments of `DeltaWriteOperator` and of any operator; the task's XCom is
    `{table_uri, version, outcome, operation_metrics}`. A parameter `spark=None` receives the session of `spark_conf`.

    Args:
        python_callable: The function, where the decorator is used without parentheses.
        **kwargs: `table_uri` (required), `write`, `replace_where`, …
    """
    return _decorator(DeltaDecoratedOperator, python_callable, kwargs)


class DeltaChangesDecoratedOperator(_Decorated, DeltaIncrementalOperator):
    """`DeltaIncrementalOperator` around a decorated function, whose first parameter is the batch."""

    custom_operator_name = "@task.delta_changes"
    template_fields = DeltaIncrementalOperator.template_fields
    template_fields_renderers = DeltaIncrementalOperator.template_fields_renderers
    shallow_copy_attrs = DeltaIncrementalOperator.shallow_copy_attrs
    _takes_batch = True


def delta_changes_task(python_callable: UserFunction | None = None, **kwargs: OperatorArgument) -> TaskDecorator:
    """Make a function a task that is handed what is new in `source`; what it returns is committed to `target` together
    with the cursor.

    Takes the arguments of `DeltaIncrementalOperator` and of any operator. The function's first parameter is the batch;
    it is not given where the task is called.

    Args:
        python_callable: The function, where the decorator is used without parentheses.
        **kwargs: `source` and `target` (required), `write`, `consumer`, …
    """
    return _decorator(DeltaChangesDecoratedOperator, python_callable, kwargs)


class _MappedDecorator(_TaskDecorator):  # type: ignore[misc]
    """Airflow's decorator, which also checks the mapped values when the DAG is parsed."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> XComArg:
        ensure_mapped(self.operator_class, self.kwargs, expand_input.value)
        return super()._expand(expand_input, strict=strict)


def _decorator(
    kind: type[DeltaStepOperator], function: UserFunction | None, arguments: dict[str, OperatorArgument]
) -> TaskDecorator:
    if wrong := {"op_args", "op_kwargs"} & arguments.keys():
        raise InvalidRequestError(
            f"The decorator has {min(wrong)}", remedy="Give a function's arguments where the task is called"
        )

    def decorate(function: UserFunction) -> _MappedDecorator:
        # The XCom describes the commit, so an annotation like `-> dict` on the function must not split it up.
        is_split = arguments.get("multiple_outputs", False)
        kwargs = {name: value for name, value in arguments.items() if name != "multiple_outputs"}
        return _MappedDecorator(function=function, operator_class=kind, multiple_outputs=is_split, kwargs=kwargs)

    return decorate if function is None else decorate(function)
