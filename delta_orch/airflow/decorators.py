"""`@task.delta`: a function whose return value is written, exactly once; `@task.delta_changes`: one of what is new."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from delta_orch.airflow.checked import CheckedOperator
from delta_orch.airflow.incremental_operator import DeltaIncrementalOperator
from delta_orch.airflow.step_operator import UserFunction
from delta_orch.airflow.table_operator import OperatorArgument
from delta_orch.airflow.write_operator import DeltaWriteOperator
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator


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
    # The XCom describes the commit, so an annotation like `-> dict` on the function must not split it up.
    kwargs.setdefault("multiple_outputs", False)
    _ensure_arguments(DeltaDecoratedOperator, kwargs)
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=DeltaDecoratedOperator, **kwargs
    )


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
    kwargs.setdefault("multiple_outputs", False)
    _ensure_arguments(DeltaChangesDecoratedOperator, kwargs)
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=DeltaChangesDecoratedOperator, **kwargs
    )


def _ensure_arguments(kind: type[CheckedOperator], given: dict[str, OperatorArgument]) -> None:
    """Mapped tasks are made of these when they run; here they are known already."""
    if wrong := {"op_args", "op_kwargs"} & given.keys():
        raise InvalidRequestError(
            f"The decorator has {min(wrong)}", remedy="Give a function's arguments where the task is called"
        )
    kind.ensure_known(given)
