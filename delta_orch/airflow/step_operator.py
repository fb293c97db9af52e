"""What the operators that write rows share: the user's function, the Spark session it needs, the table it fills."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from delta_orch.airflow.arguments import ensure_choice, ensure_list, ensure_properties, ensure_switches
from delta_orch.airflow.locations import TableLocation, checked_location, is_output, is_template
from delta_orch.airflow.spark_session import connection_conf, task_spark_session
from delta_orch.airflow.table_operator import OperatorArgument
from delta_orch.airflow.unit_operator import DeltaUnitOperator
from delta_orch.airflow.versions import determine_kwargs
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.write_settings import ensure_merge_keys, ensure_unit_column
from delta_orch.verbs.change_events import Changes, parse_changes
from delta_orch.verbs.expect import Expectations

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.verbs.change_events import Envelope

ENGINES = ("auto", "spark", "local")
SCHEMA_MODES = (None, "merge", "overwrite")
UserFunction = Callable[..., object]
OpenSession = Callable[[], "SparkSession | None"]


class DeltaStepOperator(DeltaUnitOperator):
    """Base of the operators that commit the rows of a function. `DeltaWriteOperator` describes the arguments."""

    template_fields: Sequence[str] = (
        # First: the others may refer to them, and Airflow renders in this order.
        "op_args",
        "op_kwargs",
        *DeltaUnitOperator.template_fields,
        "properties",
        "quarantine",
        "spark_conf",
        "spark_conn_id",
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 (Airflow's class attribute)
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")
    changes: Changes | None = None
    """How the rows are change events, with `write="cdc"`."""

    def __init__(
        self,
        *,
        python_callable: UserFunction | None = None,
        op_args: Collection[OperatorArgument] | None = None,
        op_kwargs: Mapping[str, OperatorArgument] | None = None,
        write: str | None,
        merge_keys: Sequence[str] | None = None,
        sequence_by: str | Sequence[str] | None = None,
        delete_when: str | None = None,
        except_columns: Sequence[str] | None = None,
        scd: int | None = None,
        full_snapshot: bool = False,
        envelope: Envelope | None = None,
        tombstone_retention: str | None = None,
        partition_by: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        unit_column: str | None = None,
        expect: Mapping[str, object] | None = None,
        max_quarantined: float | None = None,
        quarantine: TableLocation | None = None,
        schema_mode: str | None = None,
        engine: str = "auto",
        spark_conf: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.write = write
        self.merge_keys = merge_keys
        self.partition_by = partition_by
        self.properties = properties
        self.unit_column = unit_column
        self.expect = expect
        self.max_quarantined = max_quarantined
        self.quarantine = None if quarantine is None else checked_location(quarantine)
        self.schema_mode = schema_mode
        self.engine = engine
        self.spark_conf = spark_conf
        self.spark_conn_id = spark_conn_id
        if not (is_output(op_args) or is_output(op_kwargs)):
            self._ensure_taken(python_callable)
        ensure_list("merge_keys", merge_keys)
        ensure_merge_keys(write, merge_keys)
        ensure_unit_column(write, unit_column)
        ensure_switches(full_snapshot=full_snapshot)
        self.changes = parse_changes(
            write,
            {
                "sequence_by": sequence_by,
                "delete_when": delete_when,
                "except_columns": except_columns,
                "scd": scd,
                "full_snapshot": full_snapshot,
                "envelope": envelope,
                "tombstone_retention": tombstone_retention,
            },
        )
        if self.changes is not None and schema_mode is not None:
            raise self.refusal("has write='cdc' and schema_mode: change events have the columns of the table")
        ensure_choice("engine", engine, ENGINES)
        ensure_choice("schema_mode", schema_mode, SCHEMA_MODES)
        ensure_list("partition_by", partition_by)
        ensure_properties(properties)
        if not is_template(max_quarantined):
            rules = Expectations.of(expect, max_quarantined)
            if quarantine is not None and not (rules and rules.quarantines):
                raise self.refusal("has a quarantine, and no rule in expect puts rows there")
        for name in ("spark_conf", "spark_conn_id"):
            if getattr(self, name) is not None and engine == "local":
                raise self.refusal(f"has {name}, which the local engine does not use")
        if spark_conn_id is not None and {"spark.master", "spark.remote"} & set(spark_conf or ()):
            raise self.refusal("has spark_conn_id, and a master or server in spark_conf")
        if unit_column is not None and not self.exactly_once:
            raise self.refusal("has unit_column, which exactly_once=False does not fill")

    def step(self, context: Context, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this attempt."""
        step = self.unit_step(context, run, table, mode)
        return replace(
            step,
            creates_only=True,
            unit_column=self.unit_column,
            expect=Expectations.of(self.expect, self.max_quarantined),
            quarantine=None if self.quarantine is None else self.hook.table(self.quarantine),
            merge_keys=tuple(self.merge_keys or ()),
            changes=self.changes,
            schema_mode=self.schema_mode,
            engine=self.engine,
            options={**step.options, "partition_by": self.partition_by, "properties": self.properties},
        )

    @contextmanager
    def lazy_session(self, run: TaskRun) -> Iterator[OpenSession]:
        """Gives a function that starts the task's Spark session when it is first called; it is stopped at the end."""
        with ExitStack() as stack:
            name = f"{run.dag_id}.{run.task_id}"
            yield cache(lambda: stack.enter_context(task_spark_session(self._session_conf(), name)))

    def _session_conf(self) -> Mapping[str, str] | None:
        if self.spark_conn_id is None:
            return self.spark_conf
        return {**connection_conf(self.hook.get_connection(self.spark_conn_id)), **(self.spark_conf or {})}

    def call_user_function(self, context: Context, spark: SparkSession | None, *args: object) -> object:
        """Call it with `args` and `op_args`, and with those of `op_kwargs`, `spark` and the task context that its
        signature asks for."""
        assert self.python_callable is not None
        self._ensure_taken(self.python_callable)
        offered = {} if spark is None else {"spark": spark}
        positional = (*args, *self.op_args)
        named = determine_kwargs(self.python_callable, positional, {**context, **offered, **self.op_kwargs})
        rows = self.python_callable(*positional, **named)
        self.ensure_alive()
        return rows

    def _ensure_taken(self, function: UserFunction | None) -> None:
        """Refuse arguments that the function has no parameters for: it would go on without them."""
        if function is None:
            return
        try:
            inspect.signature(function).bind_partial(*self.op_args, **self.op_kwargs)
        except TypeError as error:
            raise self.refusal(f"has op_args or op_kwargs that its function does not take: {error}") from None
