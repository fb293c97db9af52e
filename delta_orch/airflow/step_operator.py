"""What the operators that write rows share: the user's function, the Spark session it needs, the table it fills."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from airflow.sdk.bases.decorator import determine_kwargs

from delta_orch.airflow.locations import is_template
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument
from delta_orch.errors import MissingDependencyError
from delta_orch.pipeline.step import Mode, Step

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable

logger = logging.getLogger(__name__)

ENGINES = ("auto", "spark", "local")
SCHEMA_MODES = (None, "merge", "overwrite")
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
        self.ensure_choice("engine", engine, ENGINES)
        self.ensure_choice("schema_mode", schema_mode, SCHEMA_MODES)
        if spark_conf is not None and engine == "local":
            raise self.refusal("has spark_conf, which the local engine does not use")
        self._ensure_shapes()

    def _ensure_shapes(self) -> None:
        columns = self.partition_by
        if (
            columns is not None
            and not is_template(columns)
            and (isinstance(columns, str) or not all(isinstance(name, str) for name in columns))
        ):
            raise self.refusal(f"has partition_by={columns!r}, which is no list of column names")
        for name in ("table_properties", "spark_conf", "op_kwargs"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping) and not is_template(value):
                raise self.refusal(f"has {name} that is no dict")

    def step(self, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this task, without transaction ids."""
        return Step(
            f"Task {self.task_id}",
            table,
            mode,
            creates_only=True,
            schema_mode=self.schema_mode,
            engine=self.engine,
            options={
                "partition_by": self.partition_by,
                "properties": self.table_properties,
                "user_metadata": run.user_metadata(),
            },
        )

    @contextmanager
    def lazy_session(self, run: TaskRun) -> Iterator[OpenSession]:
        """Gives a function that starts the task's Spark session when it is first called; it is stopped at the end."""
        with ExitStack() as stack:
            name = f"{run.dag_id}.{run.task_id}"
            yield cache(lambda: stack.enter_context(task_spark_session(self.spark_conf, name)))

    def on_kill(self) -> None:
        """Interrupt what Spark is at. The table stays as it was: nothing is visible before the commit, and the commit
        is one file."""
        import sys

        if "pyspark.sql" not in sys.modules:
            return
        session = running_spark_session()
        if session is not None:
            session.interruptAll()

    def call_user_function(self, context: Context, spark: SparkSession | None, *args: object) -> object:
        """Call it with `args` and `op_args`, and with those of `op_kwargs`, `spark` and the task context that its
        signature asks for."""
        assert self.python_callable is not None
        offered = {} if spark is None else {"spark": spark}
        positional = (*args, *self.op_args)
        named = determine_kwargs(self.python_callable, positional, {**context, **offered, **self.op_kwargs})
        return self.python_callable(*positional, **named)


@contextmanager
def task_spark_session(spark_conf: Mapping[str, str] | None, app_name: str) -> Iterator[SparkSession | None]:
    """A session for the duration of a task, or None where `spark_conf` is None.

    A session that is already running is used as it is and left running: it belongs to whoever started it. Only a
    session started here is stopped at the end.

    Args:
        spark_conf: Settings of a session to start, `spark.master` or `spark.remote` among them.
        app_name: The application's name, unless `spark_conf` sets `spark.app.name`.

    Raises:
        MissingDependencyError: pyspark is not installed.
    """
    if spark_conf is None:
        yield None
        return
    running = running_spark_session()
    if running is not None:
        logger.info("Using the running Spark session; the task's spark_conf is not applied to it")
        yield running
        return
    session = _start(spark_conf, app_name)
    try:
        yield session
    finally:
        session.stop()


def running_spark_session() -> SparkSession | None:
    """The active or default session of this process, if there is one.

    Raises:
        MissingDependencyError: pyspark is not installed.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependencyError(
            "The task needs Spark, and pyspark is not installed",
            remedy="Install delta-orch[spark], or leave out spark_conf and return Arrow, pandas or Polars data",
            package="pyspark",
        ) from error
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        if error.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
            raise
        return None


def _start(spark_conf: Mapping[str, str], app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in {"spark.app.name": app_name, **spark_conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
