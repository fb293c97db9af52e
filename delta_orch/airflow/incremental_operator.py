"""`DeltaIncrementalOperator`: what changed in one table, processed into another, cursor and rows in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.arguments import ensure_write
from delta_orch.airflow.locations import checked_location, is_same_table, is_template
from delta_orch.airflow.run_context import CLOCKS_DIFFER_MS
from delta_orch.airflow.table_operator import CHANGED, OperatorArgument, XCom
from delta_orch.airflow.write_operator import DeltaStepOperator, UserFunction
from delta_orch.arrival.file_source import FileSource
from delta_orch.pipeline.incremental import FileBatch, FileReader, IncrementalReader, cdc_app_id, default_consumer
from delta_orch.pipeline.incremental_step import IncrementalStep, default_write, ensure_incremental
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.pipeline.unit import find_txn_commit
from delta_orch.pipeline.write_settings import ensure_choice
from delta_orch.storage.external_paths import is_one_table

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.pipeline.incremental import Bootstrap, OnRecreated
    from delta_orch.pipeline.incremental_step import Batch

WRITES = ("append", "merge", "cdc", "overwrite_partitions", "overwrite_changed")
FILE_WRITES = ("append", "merge", "cdc", "overwrite")
_MOST_NAMED = 20
_SWITCH = {"true": True, "false": False, "none": False, "": False, "1": True, "0": False}


class DeltaIncrementalOperator(DeltaStepOperator):
    """Hand a function what is new in `source` and commit what it returns, together with the cursor, to `target`.

    **Exactly once.** The cursor is in the target's own log. It moves in the commit that holds the rows. If a task is
    killed after its commit, the retry continues behind that commit. If it is killed before, the retry starts over. A
    clear reads again the versions of the source that the run has read, and applies them by `write`. An `append`
    replaces the rows of the run. `full_refresh` computes the whole target anew.

    The function's first argument is a `pipeline.incremental.ChangeBatch`: `batch.scan()` is all rows of the touched
    partitions, `batch.changes` the changed rows, `batch.partitions()` the touched partitions, as of `ending_version`.
    `batch.scan()` is refused where the mode would double its rows, or replace others by them. No task replaces rows
    that one with another `consumer` has written.
    Its other arguments and its result are as for `DeltaWriteOperator`; if it returns no rows, only the cursor moves.

    The task processes everything that was in the source when it began, and reports the last commit.

    Args:
        source: The table to read. For several tables, a dict of names to tables. The function then gets a dict with the
            batches of the tables that have changes (with `overwrite_partitions` of all tables), and one commit holds
            all cursors. Or a `FileSource`: the files that the target has not loaded yet, each once (docs/files-in.md).
            The function gets a `FileBatch` then, and without a function the rows are written as they are. A source
            without storage options has those of the connection. (templated, except a `FileSource`)
        target: The table written to; the first commit creates it. (templated)
        python_callable: `(batch, …) -> rows`. A `FileSource` needs none.
        op_args: Positional arguments after the batch. (templated)
        op_kwargs: Keyword arguments. (templated)
        write: `overwrite_changed` replaces the partitions that changed in the source, also where they are empty now;
            it is the default if the target has the source's partition columns among its own. `overwrite_partitions`
            replaces the target's partitions that the rows belong to; `append` adds the rows; `merge` updates those with
            the same `merge_keys` and inserts the others; `cdc` applies the rows as change events, in any order. With a
            `FileSource` one of `append` (default), `merge`, `cdc` and `overwrite`, which reads all files each time.
        merge_keys: With `merge` and `cdc`: the columns that identify a row.
        sequence_by, delete_when, except_columns, scd, full_snapshot, envelope, tombstone_retention: With `cdc`, as of
            `DeltaTable.apply_changes` (docs/late-rows.md). With a `full_snapshot`, `batch.scan()` is the whole source.
        max_versions: At most so many versions that change data in one batch; None for all there are.
        bootstrap: What the first batch is: `snapshot`, the source as it stands; `changes`, its history; `error`.
        on_recreated: `error`, or `bootstrap` when the source was dropped and created again.
        consumer: The cursor's name; the last part of the target's location by default. Tasks, or mapped ones, that read
            one source into one target each need a name of their own, or are refused. (templated)
        full_refresh: Start anew from the source as it stands, and replace everything that this task has written. The
            table keeps its id. By default what the DAG's parameter `full_refresh` says, where it has one. (templated)
        unit_column, identity, writer, on_redo, exactly_once: As `DeltaWriteOperator`.
        expect, max_quarantined, quarantine: As `DeltaWriteOperator`; each batch of changes is judged on its own.
        partition_by: Partition columns, if the first commit creates the target.
        properties: Properties, if the first commit creates the target. (templated)
        schema_mode: `merge` adds the columns that the target does not have; by default rows must have its columns.
        engine: `auto` (by the data), `spark` or `local`.
        spark_conf: Starts a Spark session for the task, unless one is running, and stops it afterwards. (templated)
        spark_conn_id: Where, as `DeltaWriteOperator`. (templated)
    """

    template_fields: Sequence[str] = (*DeltaStepOperator.template_fields, "source", "consumer", "full_refresh")

    def __init__(
        self,
        *,
        source: TableLocation | Mapping[str, TableLocation] | FileSource,
        target: TableLocation,
        python_callable: UserFunction | None = None,
        write: str | None = None,
        max_versions: int | None = None,
        bootstrap: str = "snapshot",
        on_recreated: str = "error",
        consumer: str | None = None,
        full_refresh: bool | str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        is_of_files = isinstance(source, FileSource)
        ensure_write(write, (None, *(FILE_WRITES if is_of_files else WRITES)))
        super().__init__(table_uri=target, python_callable=python_callable, write=write, **kwargs)
        self.source: object = source
        if isinstance(source, Mapping):
            self.source = {name: checked_location(one) for name, one in source.items()}
        elif not isinstance(source, FileSource):
            self.source = checked_location(source)
        self.max_versions = max_versions
        self.bootstrap = bootstrap
        self.on_recreated = on_recreated
        self.consumer = consumer
        self.full_refresh = full_refresh
        ensure_choice("bootstrap", bootstrap, ("snapshot", "changes", "error"))
        ensure_choice("on_recreated", on_recreated, ("error", "bootstrap"))
        ensure_choice("schema_mode", self.schema_mode, (None, "merge"))
        ensure_incremental(
            write,
            len(source) if isinstance(source, Mapping) else 1,
            on_recreated=on_recreated,
            max_versions=max_versions,
        )
        if not is_template(full_refresh):
            self._refreshes({})
        if is_of_files:
            self.reads_from()
            table_arguments = {
                "max_versions": max_versions is not None,
                "bootstrap": bootstrap != "snapshot",
                "on_recreated": on_recreated != "error",
                "consumer": consumer is not None,
            }
            if unused := [name for name, is_set in table_arguments.items() if is_set]:
                raise self.refusal(f"has {unused[0]}, which is about a table, and its source has files")
            return
        if python_callable is None:
            raise self.refusal("has no python_callable", remedy="Pass a function: (batch, …) -> rows")
        if self.source == {}:
            raise self.refusal("has no source")
        sources = list(self.source.values()) if isinstance(self.source, dict) else [self.source]
        self.reads_from(*(source.values() if isinstance(source, Mapping) else [source]))
        if any(is_same_table(self.table_uri, one) for one in sources):
            raise self.refusal("has one table as source and target")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        refreshes = self._refreshes(context.get("params") or {})
        if isinstance(self.source, FileSource):
            return self._load_files(context, run, table, self.source, refreshes)
        readers = self._readers(table)
        source = next(iter(readers.values())).source
        mode = cast("Mode", self.write or default_write(f"Task {self.task_id}", source, table, self.partition_by))
        before = snapshot_or_none(table)
        if self.consumer is None and before is not None:
            for reader in readers.values():
                self._ensure_own_cursor(run, reader)
        with self.lazy_session(run) as session:

            def rows(batches: Mapping[str, Batch]) -> object:
                for batch in batches.values():
                    start = (
                        "the snapshot" if batch.starting_version is None else f"versions {batch.starting_version} to"
                    )
                    self.log.info("Processing %s %s of %s", start, batch.ending_version, batch.source.uri)
                argument = dict(batches) if isinstance(self.source, dict) else batches[""]
                return self.call_user_function(context, session(), argument)

            report = IncrementalStep.of(self.step(context, run, table, mode)).process_all(
                readers, rows, until_current=True, full_refresh=refreshes
            )
        details: dict[str, object] = {}
        if isinstance(self.source, dict):
            details["source_uris"] = {name: reader.source.uri for name, reader in readers.items()}
            if report.batches:
                details["source_ending_versions"] = {
                    name: batch.ending_version
                    for name, reader in readers.items()
                    for batch in report.batches
                    if batch.source is reader.source
                }
        else:
            details["source_uri"] = readers[""].source.uri
            if report.batches:
                details |= {
                    "source_starting_version": report.batches[0].starting_version,
                    "source_ending_version": report.batches[-1].ending_version,
                    "batches": len(report.batches),
                }
        if report.version is not None and report.outcome in CHANGED:
            details["starting_version"] = self._first_version(run, table, report.version, before)
        # Of a source that had several batches, the last one.
        ends = {batch.source.uri: batch.ending_version for batch in report.batches}
        self.has_read = {
            name: (reader.source, ends[reader.source.uri])
            for name, reader in readers.items()
            if reader.source.uri in ends
        }
        return self.xcom_and_log(report, **details)

    def _load_files(
        self, context: Context, run: TaskRun, table: DeltaTable, source: FileSource, refreshes: bool
    ) -> XCom:

        if source.storage_options is None:
            source = replace(source, storage_options=self.hook.storage_options())
        reader = FileReader(source, table, self.engine, self.unit_column)
        before = snapshot_or_none(table)
        with self.lazy_session(run) as session:

            def rows(batch: Batch) -> object:
                assert isinstance(batch, FileBatch)
                self.log.info("Loading %d files of %s", batch.files.num_rows, source.uri)
                spark = None if self.engine == "local" else session()
                if self.python_callable is None:
                    return batch.rows(as_table=True)
                return self.call_user_function(context, spark, batch)

            mode = cast("Mode", self.write or "append")
            step = IncrementalStep.of(self.step(context, run, table, mode))
            report = step.process(reader, rows, until_current=True, full_refresh=refreshes)
        batches = [batch for batch in report.batches if isinstance(batch, FileBatch)]
        set_aside = [file for batch in batches for file in batch.set_aside.to_pylist()]
        details: dict[str, object] = {
            "source_uri": source.uri,
            "files": sum(batch.files.num_rows for batch in batches) - len(set_aside),
            "files_set_aside": len(set_aside),
        }
        if set_aside:
            details["set_aside"] = [file["path"] for file in set_aside[:_MOST_NAMED]]
        if report.version is not None and report.outcome in CHANGED:
            details["starting_version"] = self._first_version(run, table, report.version, before)
        return self.xcom_and_log(report, **details)

    def _readers(self, table: DeltaTable) -> dict[str, IncrementalReader]:

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
        return readers

    def _refreshes(self, params: Mapping[str, object]) -> bool:
        """Whether everything is computed anew: by the argument, else by the DAG's parameter."""
        choice = self.full_refresh if self.full_refresh is not None else params.get("full_refresh")
        answer = choice if isinstance(choice, bool) else _SWITCH.get(str(choice).strip().lower())
        if answer is None:
            raise self.refusal(
                f"has full_refresh={choice!r}", remedy="Pass True or False, or a template that renders to one of them"
            )
        return answer

    def _first_version(self, run: TaskRun, table: DeltaTable, last: int, before: TableSnapshot | None) -> int:
        """The first of the commits of this attempt, and of those before it that it goes on from."""
        first, newest_before = last, -1 if before is None else before.version
        for commit in table.log.newest_first(last - 1):
            info = commit.commit_info or {}
            if commit.version <= newest_before and (
                run.try_number == 1 or commit.timestamp_ms < run.started_ms - CLOCKS_DIFFER_MS
            ):
                break
            if run.is_of_task(info) and run.is_same_life(info):
                first = commit.version
        return first

    def _ensure_own_cursor(self, run: TaskRun, reader: IncrementalReader) -> None:
        """Fail if another task of this run uses the same cursor: each would get only what the other has not read."""
        app_id = cdc_app_id(reader.consumer, reader.source.snapshot().metadata.id)
        if reader.target.snapshot().txn_version(app_id) is None:
            return
        commit = find_txn_commit(reader.target, app_id)
        info = {} if commit is None else commit.commit_info or {}
        if commit is not None and run.is_of_run(info) and not run.is_of_task(info):
            raise self.refusal(
                f"uses the cursor {app_id!r} of {reader.target.uri}, and so does another task or map index of this "
                f"run, which has moved it in version {commit.version}",
                cause="Each of them would be handed only what the other has not read",
                remedy="Give each a cursor of its own: consumer='{{ … }}'",
            )
