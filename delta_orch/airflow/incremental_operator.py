"""`DeltaIncrementalOperator`: what changed in one table, processed into another, cursor and rows in one commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_orch.airflow.spark_session import task_spark_session
from delta_orch.airflow.table_operator import DeltaTableOperator, StepReport
from delta_orch.airflow.user_code import call_user_function, ensure_callable, ensure_data
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.transaction import CommitResult
    from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader

MODES = ("append", "overwrite_partitions", "overwrite_changed")


class DeltaIncrementalOperator(DeltaTableOperator):
    """Hand a function what is new in `source` and commit what it returns, together with the cursor, to `target`.

    **Exactly once.** How far the target has read the source stands in the target's own log and moves in the commit that
    holds the rows. A task killed after its commit and retried goes on behind it; one killed before starts over. A
    retry, a cleared task and an overlapping run find nothing to do where there is nothing new.

    The function's first argument is a `pipeline.incremental.ChangeBatch`: `batch.scan()` is all rows of the touched
    partitions, `batch.changes` the changed rows, `batch.partitions()` the touched partitions, as of `ending_version`.
    Its other arguments and its result are as for `DeltaWriteOperator`; rows it returns none of move the cursor alone.

    The task goes on until it has processed what was in the source when it began, and reports the last commit.

    Args:
        source: The table read from. (templated)
        target: The table written to; the first commit creates it. (templated)
        python_callable: `(batch, …) -> rows`.
        op_args: Positional arguments after the batch. (templated)
        op_kwargs: Keyword arguments. (templated)
        mode: `overwrite_partitions` replaces the target's partitions that the rows belong to; `overwrite_changed`
            replaces the partitions touched in the source, also where they are empty now (source and target must be
            partitioned alike); `append` adds the rows.
        max_versions: At most so many versions that change data in one batch; None for all there are.
        bootstrap: What the first batch is: `snapshot`, the source as it stands; `changes`, its history; `error`.
        on_recreated: `error`, or `bootstrap` when the source was dropped and created anew.
        consumer: The cursor's name; the last part of the target's location by default. (templated)
        partition_by: Partition columns, if the first commit creates the target.
        table_properties: Properties, if the first commit creates the target. (templated)
        schema_mode: `merge` adds the columns that the target does not have; by default rows must have its columns.
        engine: `auto` (by the data), `spark` or `local`.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
    """

    template_fields: Sequence[str] = (
        "source",
        *DeltaTableOperator.template_fields,
        "op_args",
        "op_kwargs",
        "consumer",
        "table_properties",
        "spark_conf",
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 (Airflow's class attribute)
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")

    def __init__(
        self,
        *,
        source: str,
        target: str,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        mode: str = "overwrite_partitions",
        max_versions: int | None = None,
        bootstrap: str = "snapshot",
        on_recreated: str = "error",
        consumer: str | None = None,
        partition_by: Sequence[str] | None = None,
        table_properties: Mapping[str, str] | None = None,
        schema_mode: str | None = None,
        engine: str = "auto",
        spark_conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(table_uri=target, **kwargs)
        self.source = source
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.mode = mode
        self.max_versions = max_versions
        self.bootstrap = bootstrap
        self.on_recreated = on_recreated
        self.consumer = consumer
        self.partition_by = partition_by
        self.table_properties = table_properties
        self.schema_mode = schema_mode
        self.engine = engine
        self.spark_conf = spark_conf
        ensure_callable(python_callable, self.task_id)
        if schema_mode not in (None, "merge"):
            raise InvalidRequestError(
                f"Task {self.task_id} has schema_mode={schema_mode!r}; possible is merge",
                cause="An incremental step never replaces all rows",
                remedy="Correct the operator's arguments",
                task_id=self.task_id,
            )
        if mode not in MODES:
            raise InvalidRequestError(
                f"Task {self.task_id} has mode={mode!r}; possible are {', '.join(MODES)}",
                remedy="Correct the operator's arguments",
                task_id=self.task_id,
            )

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> StepReport:
        reader = self._reader(table)
        batch = reader.next_batch()
        if batch is None:
            version = table.version() if table.exists() else None
            return StepReport(table.uri, version, skipped=True, details={"source_uri": reader.source.uri})
        goal = reader.source.version()
        with task_spark_session(self.spark_conf, f"{run.dag_id}.{run.task_id}") as spark:
            results: list[CommitResult] = []
            start, end = batch.starting_version, batch.ending_version
            while batch is not None:
                results.append(self._process(batch, table, context, run, spark))
                end = batch.ending_version
                batch = reader.next_batch() if end < goal else None
        return self._report(table, reader, results, start, end)

    def _reader(self, table: DeltaTable) -> IncrementalReader:
        from delta_orch.pipeline.incremental import IncrementalReader

        return IncrementalReader(
            self.hook.table(self.source),
            table,
            consumer=self.consumer,
            bootstrap=self.bootstrap,  # type: ignore[arg-type]  # checked by the reader
            on_recreated=self.on_recreated,  # type: ignore[arg-type]
            max_versions=self.max_versions,
        )

    def _process(
        self, batch: ChangeBatch, table: DeltaTable, context: Context, run: TaskRun, spark: Any
    ) -> CommitResult:
        self.log.info(
            "Processing versions %s to %s of %s",
            "(snapshot)" if batch.starting_version is None else batch.starting_version,
            batch.ending_version,
            batch.source.uri,
        )
        args = (batch, *self.op_args)
        rows = call_user_function(self.python_callable, args, self.op_kwargs, context, spark=spark)
        data = ensure_data(rows, f"The function of task {self.task_id}")
        options: dict[str, Any] = {
            "partition_by": self.partition_by,
            "properties": self.table_properties,
            "engine": self.engine,
            "user_metadata": run.user_metadata(),
        }
        if self.mode == "append":
            return table.append(data, txn=batch.txn, schema_mode=self.schema_mode, **options)
        from delta_orch.pipeline.first_write import ensure_table_for

        ensure_table_for(table, data, **options)
        options["schema_mode"] = self.schema_mode
        if self.mode == "overwrite_partitions":
            return table.overwrite(data, partition_overwrite_mode="dynamic", txn=batch.txn, **options)
        return table.overwrite(data, replace_where=batch.partition_predicate(), txn=batch.txn, **options)

    def _report(
        self, table: DeltaTable, reader: IncrementalReader, results: list[CommitResult], start: int | None, end: int
    ) -> StepReport:
        return StepReport(
            table.uri,
            results[-1].version,
            skipped=all(result.skipped for result in results),
            details={
                "source_uri": reader.source.uri,
                "source_starting_version": start,
                "source_ending_version": end,
                "batches": len(results),
                "operation_metrics": dict(results[-1].operation_metrics or {}),
            },
        )
