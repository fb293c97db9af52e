"""`DeltaIncrementalOperator`: what changed in one table, processed into another, cursor and rows in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.attempts import Attempts
from delta_orch.airflow.locations import checked_location, is_same_table
from delta_orch.airflow.neighbors import Neighbors
from delta_orch.airflow.rebuilds import ensure_not_newer
from delta_orch.airflow.step_operator import DeltaStepOperator, UserFunction
from delta_orch.airflow.table_operator import OperatorArgument, XCom, xcom_of
from delta_orch.pipeline.recorded import find_commit_after, newest_first
from delta_orch.pipeline.run_identity import cdc_app_id, default_consumer
from delta_orch.pipeline.step import Mode

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.incremental import Bootstrap, ChangeBatch, IncrementalReader, OnRecreated
    from delta_orch.pipeline.recorded import RecordedCommit

MODES: dict[str, Mode] = {
    "append": "append",
    "merge": "merge",
    "scd2": "scd2",
    "overwrite_partitions": "overwrite_partitions",
    "overwrite_changed": "overwrite_touched",
}


class DeltaIncrementalOperator(DeltaStepOperator):
    """Hand a function what is new in `source` and commit what it returns, together with the cursor, to `target`.

    **Exactly once.** The cursor is in the target's own log. It moves in the commit that holds the rows. If a task is
    killed after its commit, the retry continues behind that commit. If it is killed before, the retry starts over. A
    retry, a cleared task and an overlapping run do nothing if the source has no new commits.

    The function's first argument is a `pipeline.incremental.ChangeBatch`: `batch.scan()` is all rows of the touched
    partitions, `batch.changes` the changed rows, `batch.partitions()` the touched partitions, as of `ending_version`.
    `batch.scan()` is refused where the mode would double its rows, or replace others by them. No task replaces rows
    that one with another `consumer` has written.
    Its other arguments and its result are as for `DeltaWriteOperator`; if it returns no rows, only the cursor moves.

    The task processes everything that was in the source when it began, and reports the last commit.

    Args:
        source: The table to read. For several tables, a dict of names to tables. The function then gets a dict with the
            batches of the tables that have changes (with `overwrite_partitions` of all tables), and one commit holds
            all cursors. (templated)
        target: The table written to; the first commit creates it. (templated)
        python_callable: `(batch, …) -> rows`.
        op_args: Positional arguments after the batch. (templated)
        op_kwargs: Keyword arguments. (templated)
        mode: `overwrite_partitions` replaces the target's partitions that the rows belong to; `overwrite_changed`
            replaces the partitions touched in the source, also where they are empty now (source and target must be
            partitioned alike); `append` adds the rows; `merge` updates those with the same `merge_keys` and inserts
            the others; `scd2` keeps a version for each change of a key.
        merge_keys: With `merge` and `scd2`: the columns that identify a row.
        sequence_by: With `scd2`, as `delete_marker` and `full_snapshot`: see `DeltaMergeOperator`. With a
            `full_snapshot` `batch.scan()` is the whole source.
        delete_marker: See `sequence_by`.
        full_snapshot: See `sequence_by`.
        max_versions: At most so many versions that change data in one batch; None for all there are.
        bootstrap: What the first batch is: `snapshot`, the source as it stands; `changes`, its history; `error`.
        on_recreated: `error`, or `bootstrap` when the source was dropped and created again.
        consumer: The cursor's name; the last part of the target's location by default. Tasks, or mapped ones, that read
            one source into one target each need a name of their own, or are refused. (templated)
        partition_by: Partition columns, if the first commit creates the target.
        table_properties: Properties, if the first commit creates the target. (templated)
        schema_mode: `merge` adds the columns that the target does not have; by default rows must have its columns.
        engine: `auto` (by the data), `spark` or `local`.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
        spark_conn_id: Where, as `DeltaWriteOperator`. (templated)
    """

    template_fields: Sequence[str] = (*DeltaStepOperator.template_fields, "source", "consumer")
    choices = MappingProxyType(
        {
            **DeltaStepOperator.choices,
            "mode": tuple(MODES),
            "bootstrap": ("snapshot", "changes", "error"),
            "on_recreated": ("error", "bootstrap"),
        }
    )

    def __init__(
        self,
        *,
        source: TableLocation | Mapping[str, TableLocation],
        target: TableLocation,
        python_callable: UserFunction,
        mode: str = "overwrite_partitions",
        merge_keys: Sequence[str] = (),
        sequence_by: str | None = None,
        delete_marker: str | None = None,
        full_snapshot: bool = False,
        max_versions: int | None = None,
        bootstrap: str = "snapshot",
        on_recreated: str = "error",
        consumer: str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(table_uri=target, python_callable=python_callable, **kwargs)
        self.source = (
            {name: checked_location(one) for name, one in source.items()}
            if isinstance(source, Mapping)
            else checked_location(source)
        )
        self.merge_keys = merge_keys
        self.sequence_by = sequence_by
        self.delete_marker = delete_marker
        self.full_snapshot = full_snapshot
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
        if mode == "append" and on_recreated == "bootstrap":
            raise self.refusal(
                "has mode='append' and on_recreated='bootstrap'",
                cause="The rows of the source that was dropped stay, and those of the new one would be added to them",
            )
        if max_versions is not None and max_versions < 1:
            raise self.refusal(f"has max_versions={max_versions!r}, which is not a number of at least 1")
        self.ensure_text("consumer", consumer)
        self.ensure_columns("merge_keys", merge_keys)
        if (mode in ("merge", "scd2")) != bool(merge_keys):
            raise self.refusal("takes a list of columns as merge_keys with mode='merge' or 'scd2', and only then")
        self.ensure_versions(is_kept=mode == "scd2")
        if self.source == {}:
            raise self.refusal("has no source")
        if isinstance(self.source, dict) and len(self.source) > 1 and mode == "overwrite_changed":
            raise self.refusal("has several sources and mode='overwrite_changed', which replaces what one has touched")
        sources = list(self.source.values()) if isinstance(self.source, dict) else [self.source]
        self.reads_from(*(source.values() if isinstance(source, Mapping) else [source]))
        if any(is_same_table(self.table_uri, one) for one in sources):
            raise self.refusal("has one table as source and target")
        self.ensure_takes_one(python_callable)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        from delta_orch.pipeline.incremental import IncrementalReader
        from delta_orch.storage.external_paths import is_one_table

        several = isinstance(self.source, dict)
        own_name = self.consumer or default_consumer(table.uri)
        readers: dict[str, IncrementalReader] = {}
        for name, location in (self.source if isinstance(self.source, dict) else {"": self.source}).items():
            source = self.hook.table(location)
            if is_one_table(source.uri, table.uri):
                raise self.refusal("has one table as source and target")
            readers[name] = IncrementalReader(
                source,
                table,
                # Two sources of one target have a cursor each.
                consumer=f"{own_name}/{name}" if several else self.consumer,
                base=self.consumer,
                bootstrap=cast("Bootstrap", self.bootstrap),
                on_recreated=cast("OnRecreated", self.on_recreated),
                max_versions=self.max_versions,
            )
        if self.consumer is None and table.exists():
            for reader in readers.values():
                self._ensure_own_cursor(run, reader)
        tasks = Neighbors(context, run)
        if self.mode in ("append", "merge", "scd2") and not self.full_snapshot and tasks.before:
            for reader in readers.values():
                ensure_not_newer(tasks, reader.source.uri, reader.source, reader.source.snapshot())
        attempts = Attempts(context, run)
        attempts.begin_or_continue(run.identity().version, table.version() if table.exists() else -1)
        with self.lazy_session(run) as session:
            step = self.versions(replace(self.step(run, table, MODES[self.mode]), merge_keys=tuple(self.merge_keys)))
            if several:
                report = step.process_all(
                    readers,
                    lambda batches: self.call_user_function(context, session(), dict(batches)),
                    until_current=True,
                )
            else:
                report = step.process(
                    readers[""], lambda batch: self._rows(context, session(), batch), until_current=True
                )
        details: dict[str, object] = {}
        if several:
            details["source_uris"] = {name: reader.source.uri for name, reader in readers.items()}
        else:
            details["source_uri"] = readers[""].source.uri
        marker = attempts.marker
        # Of this run, and since the first attempt that Airflow knows no success of, where it is noted.
        after, since_ms = (-1, run.since_ms) if marker is None else (marker.table_version, 0.0)
        if (
            not report.batches
            and report.version is not None
            and (marker or (not run.keeps_state and run.try_number > 1))
        ):
            found = find_commit_after(table, after, run.is_of_task, since_ms=since_ms)
            if found is not None:
                report = replace(report, version=found.version, recovered=found)
                details |= {} if several else _source_versions(found)
        if report.version is not None and (not report.skipped or report.recovered):
            for commit in newest_first(table, report.version - 1, after + 1):
                if commit.timestamp_ms < since_ms:
                    break
                if run.is_of_task(commit.commit_info or {}):
                    details["starting_version"] = commit.version
        if report.batches and several:
            details["source_ending_versions"] = {
                name: batch.ending_version
                for name, reader in readers.items()
                for batch in report.batches
                if batch.source is reader.source
            }
        elif report.batches:
            details |= {
                "source_starting_version": report.batches[0].starting_version,
                "source_ending_version": report.batches[-1].ending_version,
                "batches": len(report.batches),
            }
        # Of a source that had several batches, the last one.
        ends = {batch.source.uri: batch.ending_version for batch in report.batches}
        self.has_read = {
            name: (reader.source, ends[reader.source.uri])
            for name, reader in readers.items()
            if reader.source.uri in ends
        }
        return xcom_of(report, **details)

    def _ensure_own_cursor(self, run: TaskRun, reader: IncrementalReader) -> None:
        """Two tasks of one run that go by one cursor each get what the other has not read: rows are lost."""
        app_id = cdc_app_id(reader.consumer, reader.source.snapshot().metadata.id)
        if reader.target.snapshot().txn_version(app_id) is None:
            return
        found = find_commit_after(reader.target, -1, run.is_of_another_task, app_id=app_id, since_ms=run.since_ms)
        if found is not None:
            raise self.refusal(
                f"goes by the cursor {app_id!r} of {reader.target.uri}, and so does another task or map index of this "
                f"run, which has moved it in version {found.version}",
                cause="Each of them would be handed only what the other has not read",
                remedy="Give each a cursor of its own: consumer='{{ … }}'",
            )

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
