"""What the operators that write rows share: the user's function, the Spark session it needs, the table it fills."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from airflow.sdk.bases.decorator import determine_kwargs

from delta_orch.airflow.spark_session import task_spark_session
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.step import Mode, Step

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable

UserFunction = Callable[..., object]
OpenSession = Callable[[], "SparkSession | None"]


class DeltaStepOperator(DeltaTableOperator):
    """Base of the operators that commit the rows of a function. `DeltaWriteOperator` describes the arguments."""

    template_fields: Sequence[str] = (
        *DeltaTableOperator.template_fields,
        "op_args",
        "op_kwargs",
        "table_properties",
        "spark_conf",
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 (Airflow's class attribute)
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: UserFunction | None = None,
        op_args: Collection[OperatorArgument] | None = None,
        op_kwargs: Mapping[str, OperatorArgument] | None = None,
        partition_by: Sequence[str] | None = None,
        table_properties: Mapping[str, str] | None = None,
        schema_mode: str | None = None,
        engine: str = "auto",
        spark_conf: Mapping[str, str] | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.partition_by = partition_by
        self.table_properties = table_properties
        self.schema_mode = schema_mode
        self.engine = engine
        self.spark_conf = spark_conf
        if python_callable is not None and (
            not callable(python_callable) or inspect.iscoroutinefunction(python_callable)
        ):
            raise self.refusal(f"has a python_callable that is not a plain function: {python_callable!r}")

    def step(self, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this task, without transaction ids."""
        return Step(
            f"Task {self.task_id}",
            table,
            mode,
            creates_only=True,
            partition_by=self.partition_by,
            properties=self.table_properties or {},
            schema_mode=self.schema_mode,
            engine=self.engine,
            user_metadata=run.user_metadata(),
        )

    @contextmanager
    def lazy_session(self, run: TaskRun) -> Iterator[OpenSession]:
        """Gives a function that starts the task's Spark session when it is first called; it is stopped at the end."""
        with ExitStack() as stack:
            name = f"{run.dag_id}.{run.task_id}"
            yield cache(lambda: stack.enter_context(task_spark_session(self.spark_conf, name)))

    def call_user_function(self, context: Context, spark: SparkSession | None, *args: object) -> object:
        """Call it with `args` and `op_args`, and with those of `op_kwargs`, `spark` and the task context that its
        signature asks for."""
        assert self.python_callable is not None
        offered = {} if spark is None else {"spark": spark}
        positional = (*args, *self.op_args)
        named = determine_kwargs(self.python_callable, positional, {**context, **offered, **self.op_kwargs})
        return self.python_callable(*positional, **named)

    def refusal(self, what: str, cause: str | None = None) -> InvalidRequestError:
        """The error for arguments that do not go together."""
        return InvalidRequestError(
            f"Task {self.task_id} {what}", cause=cause, remedy="Correct the operator's arguments", task_id=self.task_id
        )
