"""`DeltaIncrementalOperator`: what changed in one table, processed into another, cursor and rows in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.attempts import Attempts
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.airflow.step_operator import DeltaStepOperator, UserFunction
from delta_orch.airflow.table_operator import OperatorArgument, XCom, xcom_of
from delta_orch.pipeline.step import Mode

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.incremental import Bootstrap, ChangeBatch, OnRecreated
    from delta_orch.pipeline.recorded import RecordedCommit

MODES: dict[str, Mode] = {
    "append": "append",
    "overwrite_partitions": "overwrite_partitions",
    "overwrite_changed": "overwrite_touched",
}


class DeltaIncrementalOperator(DeltaStepOperator):
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

    template_fields: Sequence[str] = ("source", *DeltaStepOperator.template_fields, "consumer")

    def __init__(
        self,
        *,
        source: TableLocation,
        target: TableLocation,
        python_callable: UserFunction,
        mode: str = "overwrite_partitions",
        max_versions: int | None = None,
        bootstrap: str = "snapshot",
        on_recreated: str = "error",
        consumer: str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(table_uri=target, python_callable=python_callable, **kwargs)
        self.source = checked_location(source)
        self.mode = mode
        self.max_versions = max_versions
        self.bootstrap = bootstrap
        self.on_recreated = on_recreated
        self.consumer = consumer
        if self.schema_mode not in (None, "merge"):
            raise self.refusal(
                f"has schema_mode={self.schema_mode!r}; possible is merge",
                cause="An incremental step never replaces all rows",
            )
        if python_callable is None:
            raise self.refusal("has no python_callable")
        self.ensure_choice("mode", mode, tuple(MODES))
        self.ensure_choice("bootstrap", bootstrap, ("snapshot", "changes", "error"))
        self.ensure_choice("on_recreated", on_recreated, ("error", "bootstrap"))
        if max_versions is not None and (
            not isinstance(max_versions, int) or isinstance(max_versions, bool) or max_versions < 1
        ):
            raise self.refusal(f"has max_versions={max_versions!r}, which is below 1 or no number")
        if not is_template(self.source) and self.source == self.table_uri:
            raise self.refusal("has one table as source and target")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        from delta_orch.pipeline.incremental import IncrementalReader
        from delta_orch.pipeline.recorded import find_commit_after

        source = self.hook.table(self.source)
        if source.uri == table.uri:
            raise self.refusal("has one table as source and target")
        reader = IncrementalReader(
            source,
            table,
            consumer=self.consumer,
            bootstrap=cast("Bootstrap", self.bootstrap),  # checked by the reader
            on_recreated=cast("OnRecreated", self.on_recreated),
            max_versions=self.max_versions,
        )
        attempts = Attempts(context)
        attempts.begin_or_continue(run.identity().version, table.version() if table.exists() else -1)
        with self.lazy_session(run) as session:
            report = self.step(run, table, MODES[self.mode]).process(
                reader, lambda batch: self._rows(context, session(), batch), until_current=True
            )
        details: dict[str, object] = {"source_uri": reader.source.uri}
        if not report.batches and report.version is not None and attempts.marker is not None:
            # Of this run, and since the first attempt that Airflow knows no success of.
            found = find_commit_after(table, attempts.marker.table_version, run.is_of_task)
            if found is not None:
                report = replace(report, version=found.version, recovered=found)
                details |= _source_versions(found)
        if report.batches:
            details |= {
                "source_starting_version": report.batches[0].starting_version,
                "source_ending_version": report.batches[-1].ending_version,
                "batches": len(report.batches),
            }
        return xcom_of(report, **details)

    def _rows(self, context: Context, spark: SparkSession | None, batch: ChangeBatch) -> object:
        start = "(snapshot)" if batch.starting_version is None else batch.starting_version
        self.log.info("Processing versions %s to %s of %s", start, batch.ending_version, batch.source.uri)
        return self.call_user_function(context, spark, batch)


def _source_versions(commit: RecordedCommit) -> dict[str, object]:
    info = commit.commit_info or {}
    return {
        "source_starting_version": info.get("sourceStartingVersion"),
        "source_ending_version": info.get("sourceEndingVersion"),
    }
