"""Bases of the operators.

`DeltaTableOperator` opens the table, maps errors to Airflow's, and reports to XCom, asset events and OpenLineage.
`DeltaUnitOperator` adds the unit of work: who writes, and what a redo means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseOperatorLink
from airflow.sdk.definitions.asset import AssetRef

from delta_orch.airflow.arguments import (
    MappedArguments,
    RenderedArguments,
    ensure_switches,
    mapped_arguments,
    unnamed_instance,
)
from delta_orch.airflow.assets import create_asset, declared_asset, outlet_for
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.airflow.run_context import OtherTasks, TaskRun, ensure_same_instances, mapped_name
from delta_orch.airflow.spark_session import interrupt_spark
from delta_orch.airflow.versions import AirflowException, AirflowFailException, AirflowTaskTimeout
from delta_orch.errors import DeltaError, InvalidRequestError, VersionNotFoundError
from delta_orch.pipeline.audit import rule_findings
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.target_table import AIRFLOW
from delta_orch.pipeline.unit import ON_REDO, OnRedo, StepReport
from delta_orch.pipeline.write_settings import OLD_ARGUMENTS, ensure_choice, refuse_old_names

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.protocol.types import StructType


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task.

    Attributes:
        table: The table it worked on.
        xcom: What it reported.
    """

    table: DeltaTable
    xcom: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Source:
    """A table that was read, as it was then."""

    uri: str
    snapshot: TableSnapshot


class Reporting(Protocol):
    """An operator that has ended."""

    outcome: Outcome | None
    has_read: Mapping[str, tuple[DeltaTable, int]]
    writes: bool


def lineage_of(operator: Reporting) -> OperatorLineage:
    """Inputs and outputs of a task that has ended.

    Datasets are named by their location, as Spark's own integration does. Versions are the table's. Where columns come
    from is known for a query on tables.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet, Fields, InputField
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    outcome = operator.outcome
    if outcome is None:
        return OperatorLineage()
    # The tables as they were opened: OpenLineage's listener asks in a process forked off, where Airflow cannot be asked
    # for a connection.
    sources = {
        name: Source(table.uri, table.snapshot(version=version)) for name, (table, version) in operator.has_read.items()
    }
    inputs = [
        InputDataset(*dataset_name(source.uri), facets=_facets(source.snapshot.schema, source.snapshot.version))
        for source in sources.values()
    ]
    version = outcome.xcom["version"]
    if not isinstance(version, int):
        return OperatorLineage(inputs=inputs)
    written = outcome.table.snapshot(version=version)
    facets = _facets(written.schema, version)
    if not operator.writes:
        return OperatorLineage(inputs=[*inputs, InputDataset(*dataset_name(outcome.table.uri), facets=facets)])
    sql = getattr(operator, "sql", None)
    if isinstance(sql, str) and is_by_name(operator) and (columns := origins(sql, sources, written.schema.names)):
        facets["columnLineage"] = ColumnLineageDatasetFacet(
            {
                column: Fields([InputField(*dataset_name(uri), field) for uri, field in fields])
                for column, fields in columns.items()
            }
        )
    metrics = outcome.xcom.get("operation_metrics")
    numbers: Mapping[str, Any] = metrics if isinstance(metrics, Mapping) else {}
    statistics = OutputStatisticsOutputDatasetFacet(
        rowCount=_first(numbers, "numOutputRows"),
        size=_first(numbers, "numOutputBytes", "numAddedBytes"),
        fileCount=_first(numbers, "numFiles", "numAddedFiles", "numTargetFilesAdded"),
    )
    output = OutputDataset(
        *dataset_name(outcome.table.uri),
        facets=facets,
        outputFacets={"outputStatistics": statistics} if numbers else {},
    )
    return OperatorLineage(inputs=inputs, outputs=[output])


def dataset_name(table_uri: str) -> tuple[str, str]:
    """Namespace and name of a table among OpenLineage's datasets: `s3://lake` and `bronze/flights`, `file` and
    `/data/flights`."""
    parts = urlsplit(table_uri)
    if parts.scheme in ("", "file", "local"):
        return "file", (table_uri if not parts.scheme else parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _facets(schema: StructType, version: int) -> dict[str, Any]:
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    fields = [SchemaDatasetFacetFields(field.name, str(field.data_type)) for field in schema.fields]
    return {"schema": SchemaDatasetFacet(fields=fields), "version": DatasetVersionDatasetFacet(str(version))}


def is_by_name(operator: object) -> bool:
    """Whether each column is written from the column of its name; a merge's clauses may say otherwise."""
    clauses: Iterable[Mapping[str, Mapping[str, object]]] = getattr(operator, "clauses", ())
    return all(arguments.keys() <= {"condition"} for clause in clauses for arguments in clause.values())


def origins(sql: str, sources: Mapping[str, Source], written: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """The columns of the sources, with the source's location, that each written column of a query is made of; without
    those that cannot be followed, and empty if sqlglot is not installed."""
    if find_spec("sqlglot") is None:
        return {}
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage

    by_name = {name.lower(): source for name, source in sources.items()}
    schema = {
        name: {field.name: "string" for field in source.snapshot.schema.fields} for name, source in sources.items()
    }
    sources_of_column: dict[str, set[tuple[str, str]]] = {}
    for column in written:
        # The table may have columns that the query does not fill.
        with suppress(SqlglotError, ValueError):
            for node in lineage(column, sql, schema=schema, dialect="spark").walk():
                table = getattr(node.expression, "name", "")
                if not isinstance(node.expression, exp.Table) or table.lower() not in by_name:
                    continue
                source = by_name[table.lower()]
                # A name may have dots.
                field = source.snapshot.schema.find(sqlglot.parse_one(node.name).name)
                if field is not None:
                    sources_of_column.setdefault(column, set()).add((source.uri, field.name))
    return {column: sorted(fields) for column, fields in sources_of_column.items()}


def _first(metrics: Mapping[str, Any], *names: str) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), None)


OperatorArgument = Any
"""An argument of Airflow's `BaseOperator`, or a value for the user's function."""

XCom = dict[str, object]
"""What a task reports, in JSON's types and never data: `table_uri` (canonical), `version` (the one it committed or
recovered, else the one it found; None without a table, and for what is staged), `table_id` (of that version, where
there is one: a task that reads it refuses another table at the same place), `outcome` (see `pipeline.unit.Outcome`),
`rows_replaced`, `fenced_by` (the id of a run), `staged` (the reference of a staged write), `starting_version` (the
first of several commits, others' may lie between), `operation_metrics`, `broken_rules` (rule of `expect` → how many
rows break it), and details."""

CHANGED = ("written", "replaced", "recovered")
"""Outcomes of tasks whose rows are in the table."""

_IN_EACH_LINE = ("table_uri", "version", "table_id", "outcome")


def xcom_of(report: StepReport, **details: object) -> XCom:
    """The report of a step. `operation_metrics` only where there is a commit of the task."""
    xcom: XCom = {"table_uri": report.table.uri, "version": report.version, "outcome": report.outcome}
    if report.rows_replaced is not None:
        xcom["rows_replaced"] = report.rows_replaced
    if report.fenced_by is not None:
        xcom["fenced_by"] = report.fenced_by
    if report.has_written and report.commit is not None and report.commit.staged is not None:
        xcom |= {"version": None, "staged": report.commit.staged}
    if report.outcome in CHANGED and (report.commit is not None or report.recovered is not None):
        xcom["operation_metrics"] = report.metrics
    if report.expected is not None:
        xcom["broken_rules"] = report.expected.counts
    return {**xcom, **details}


class DeltaTableLink(BaseOperatorLink):  # type: ignore[misc]
    """From a run to its commit: `table_page` in the connection's extra, a URL with `{table_uri}` and `{version}`.

    There is no link where the connection has no `table_page`. The way back, from a commit to its run, is `log_url` in
    the commit's `userMetadata`.
    """

    name = "Delta table"

    def get_link(self, operator: DeltaTableOperator, *, ti_key: object) -> str:
        # A mapped task that was refused before it began is no operator yet.
        outcome = getattr(operator, "outcome", None)
        page = None if outcome is None else operator.hook.table_page()
        if outcome is None or page is None:
            return ""
        version = outcome.xcom["version"]
        shown = {"{table_uri}": outcome.table.uri, "{version}": "" if version is None else str(version)}
        for name, value in shown.items():
            page = page.replace(name, quote(value, safe=""))
        return page


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Let errors worth a retry through and end the task on the others.

    Raises:
        AirflowFailException: For a DeltaError that is not `retryable`; the error is its cause.
    """
    try:
        yield
    except DeltaError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{error.code}: {error}") from error


class DeltaTableOperator(MappedArguments, RenderedArguments, BaseOperator):  # type: ignore[misc]
    """Base of the operators that work on one table; subclasses implement `execute_on_table`.

    Retryable errors (`DeltaError.retryable`) are raised unchanged, so the task's retries apply. Other DeltaErrors fail
    the task at once. The XCom and the extra of each outlet's asset event hold `table_uri`, `version`, `table_id` and
    `outcome`, and the event `rows` and `partitions` where they are known. A task whose work is done already succeeds
    and is not skipped, so the tasks after it run. But it emits no asset event.

    If `outlets` or `inlets` are not given, the operator fills them in. It takes assets that were given as locations.
    For a table that was given in another way, it takes the asset with the table's URI, under any name. No event
    is emitted if no DAG has declared such an asset, or if the asset is watched: then the watcher reports the commit
    (`delta_table_asset(watch=True)`).

    Args:
        table_uri: A URI, a path, an `ObjectStoragePath`, an asset (or its `delta://` URI), or a name below the
            connection's `table_root`. (templated)
        delta_conn_id: The connection with the storage options. (templated)
        emit_when_unchanged: Emit the outlets' asset events also where the task has committed nothing.
    """

    template_fields: Sequence[str] = ("table_uri", "delta_conn_id")
    operator_extra_links = (DeltaTableLink(),)
    ui_color = "#d4ecf7"
    writes = True
    """Whether the task changes rows of the table."""
    has_units = False
    """Whether the task writes units of work, and logs what became of them."""

    _fills_outlets = False
    _fills_inlets = False
    _executing_in: int | None = None
    _killed = False
    outcome: Outcome | None = None
    """What the task has done, once it has."""
    has_read: Mapping[str, tuple[DeltaTable, int]] = MappingProxyType({})
    """Name → table and version of what the task has read."""

    def __init__(
        self,
        *,
        table_uri: TableLocation,
        delta_conn_id: str = DEFAULT_CONN_ID,
        emit_when_unchanged: bool = False,
        **kwargs: OperatorArgument,
    ) -> None:
        refuse_old_names(kwargs, OLD_ARGUMENTS)
        super().__init__(**kwargs)
        ensure_switches(emit_when_unchanged=emit_when_unchanged)
        self.table_uri = checked_location(table_uri)
        self.delta_conn_id = delta_conn_id
        self.emit_when_unchanged = emit_when_unchanged
        watched = isinstance(table_uri, Asset) and bool(table_uri.watchers)
        self._fills_outlets = self.writes and not watched and kwargs.get("outlets") is None
        self._fills_inlets = kwargs.get("inlets") is None
        outlet = outlet_for(table_uri) if self._fills_outlets else None
        if outlet is not None:
            self.outlets = [outlet]
            # A named asset gets the events.
            self._fills_outlets = not isinstance(outlet, Asset)

    def reads_from(self, *tables: object) -> None:
        """Fill in the inlets, where none were given."""
        if self._fills_inlets:
            self.inlets = [table for table in tables if isinstance(table, Asset)]

    def refusal(
        self, what: str, cause: str | None = None, remedy: str = "Correct the operator's arguments"
    ) -> InvalidRequestError:
        """The error for arguments that do not go together."""
        return InvalidRequestError(f"Task {self.task_id} {what}", cause=cause, remedy=remedy, task_id=self.task_id)

    @property
    def hook(self) -> DeltaHook:
        return DeltaHook(self.delta_conn_id)

    def execute(self, context: Context) -> XCom:
        self._executing_in = get_ident()
        try:
            with airflow_failures():
                run = TaskRun.from_context(context)
                table = self.hook.table(self.table_uri)
                try:
                    xcom = self.execute_on_table(context, run, table)
                finally:
                    # The process of a task ends in a way that waits for no thread.
                    table.wait_for_upkeep()
                xcom |= _identity(table, xcom["version"])
                self._emit(context, xcom, table)
        finally:
            self._executing_in = None
        self.outcome = Outcome(table, xcom)
        if not self.has_units:
            details = {name: value for name, value in xcom.items() if name not in _IN_EACH_LINE}
            outcome, version = str(xcom["outcome"]).capitalize(), xcom["version"]
            self.log.info("%s: version %s of %s %s", outcome, version, table.uri, json.dumps(details, default=str))
        return xcom

    def _emit(self, context: Context, xcom: XCom, table: DeltaTable) -> None:
        task = context["ti"].task
        if xcom.get("staged") or (xcom["outcome"] not in CHANGED and not self.emit_when_unchanged):
            # Airflow emits what it finds among the outlets when the task ends.
            task.outlets = []
            return
        if self._fills_outlets:
            task.outlets = [ref for ref in [declared_asset(context, table.uri)] if ref is not None]
        attach_to_outlets(context, task.outlets, xcom, table)

    def on_kill(self) -> None:
        """Interrupt what Spark is at, and end the task before it commits. The table stays as it was: nothing is visible
        before the commit, and the commit is one file."""
        self._killed = True
        interrupt_spark()
        # Airflow goes on with a task whose signal handler returns. After its time-out the task has ended already.
        if self._executing_in == get_ident() and not isinstance(sys.exc_info()[1], AirflowTaskTimeout):
            raise SystemExit(f"Task {self.task_id} was killed")

    def ensure_alive(self) -> None:
        """Go no further, if the task was killed from another thread.

        Raises:
            AirflowException: It was.
        """
        if self._killed:
            raise AirflowException(f"Task {self.task_id} was killed")

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage:
        """The table as OpenLineage describes it: schema, version, output statistics, and where columns come from."""
        return lineage_of(self)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        """Do the work. DeltaErrors raised here are mapped as the class says."""
        raise NotImplementedError


def attach_to_outlets(context: Context, outlets: Sequence[object], xcom: XCom, table: DeltaTable) -> None:
    """Put the report into the asset events the task will emit.

    An alias among the outlets resolves to the asset beside it that stands for the table, else to one named by its URI.
    """
    events = context["outlet_events"]
    if not outlets:
        return
    extra: dict[str, object] = {
        name: xcom[name]
        for name in ("table_uri", "version", "starting_version", "table_id", "outcome", "rows_replaced")
        if name in xcom
    }
    metrics, version = xcom.get("operation_metrics"), xcom["version"]
    first = xcom.get("starting_version", version)
    if first == version and isinstance(metrics, Mapping) and "numOutputRows" in metrics:
        extra["rows"] = int(metrics["numOutputRows"])
    if xcom["outcome"] in CHANGED and isinstance(version, int) and isinstance(first, int):
        from delta_orch.pipeline.tail import partitions_as_text, partitions_of_versions

        extra["partitions"] = partitions_as_text(partitions_of_versions(table.log, first, version))
    for outlet in outlets:
        if isinstance(outlet, Asset | AssetRef):
            events[outlet].extra.update(extra)
        elif isinstance(outlet, AssetAlias):
            events[outlet].add(_asset_of_table(str(xcom["table_uri"]), outlets), extra=extra)


def _identity(table: DeltaTable, version: object) -> XCom:
    """Which table has the version. Old versions may be gone from the log; then nobody reads them either."""
    if not isinstance(version, int):
        return {}
    try:
        newest = table.snapshot()
        snapshot = newest if newest.version == version else table.snapshot(version=version)
    except VersionNotFoundError:
        return {}
    return {"table_id": snapshot.metadata.id}


def _asset_of_table(table_uri: str, outlets: Sequence[object]) -> Asset:
    """Two assets with one URI would shadow each other, so a new one is made only where there is none."""
    named_by_uri = create_asset(table_uri=table_uri)
    beside = [outlet for outlet in outlets if isinstance(outlet, Asset) and outlet.uri == named_by_uri.uri]
    return beside[0] if beside else named_by_uri


NO_VALUE = ("", "None", "null", "undefined")
"""Texts that a template without a value renders to."""


class DeltaUnitOperator(DeltaTableOperator):
    """Base of the operators that change rows of a table, exactly once.

    Each run of the task is one unit of work, named `airflow:{dag_id}.{task_id}:{logical date}` (`run:{run id}` for runs
    without logical date) and recorded in the commit of its rows. A retry that finds the commit of the attempt before it
    changes nothing. A clear, a backfill, and a run that was deleted and created again replace the rows of the unit. An
    attempt that began before the newest one changes nothing. `outcome` in the XCom says which it was.

    Args:
        identity: What a mapped instance writes, in your words, in place of its mapped arguments. Needed where those are
            not JSON values. (templated)
        writer: `{dag_id}.{task_id}`, in place of the task's own. A task that was renamed, or moved into a group, goes
            on with its units. `table.units()` shows it. (templated)
        on_redo: What a unit does that is done again: `replace` its rows, `keep` them, or `add` the new ones to them.
        exactly_once: False: every attempt writes, and records no unit.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "identity", "writer")
    has_units = True
    _unit: tuple[OtherTasks, Step] | None = None
    """The other tasks, and the write of this attempt."""

    def __init__(
        self,
        *,
        identity: str | None = None,
        writer: str | None = None,
        on_redo: str = "replace",
        exactly_once: bool = True,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.identity = identity
        self.writer = writer
        self.on_redo = on_redo
        self.exactly_once = exactly_once
        ensure_switches(exactly_once=exactly_once)
        ensure_choice("on_redo", on_redo, ON_REDO)
        if not exactly_once and (identity, writer, on_redo) != (None, None, "replace"):
            raise self.refusal("has exactly_once=False, which uses no identity, writer or on_redo")
        if writer is not None and not is_template(writer):
            self._ensure_writer(writer)

    def _ensure_writer(self, writer: str) -> None:
        if not all(writer.partition(".")) or set(":[]") & set(writer):
            raise self.refusal(
                f"has writer={writer!r}, which is no writer of units",
                remedy="Write the DAG and the task, as table.units() shows them: writer='my_dag.my_task'",
            )

    def unit_writer(self, context: Context, run: TaskRun) -> str:
        """The writer: the task, and which of its mapped instances."""
        if self.writer is not None:
            self._ensure_writer(self.writer)
        if self.identity is not None:
            if self.identity.strip() in NO_VALUE:
                raise self.refusal(
                    f"has identity={self.identity!r}, which names nothing",
                    cause="Its template has no value in this run, so all such instances would be one unit",
                    remedy="Use a value that every instance has: identity='{{ task.op_kwargs[\"region\"] }}'",
                )
            return run.writer(self.writer, f"={self.identity}")
        if run.map_index < 0:
            return run.writer(self.writer)
        arguments = mapped_arguments(context)
        name = mapped_name(arguments)
        if name is None:
            raise unnamed_instance(self.task_id, arguments)
        return run.writer(self.writer, name)

    def unit_step(self, context: Context, run: TaskRun, table: DeltaTable, mode: Mode) -> Step:
        """The write of this attempt."""
        writer = self.unit_writer(context, run) if self.exactly_once else ""
        step = Step(
            f"Task {self.task_id}",
            table,
            mode,
            attempt=run.attempt(writer) if self.exactly_once else None,
            on_redo=cast("OnRedo", self.on_redo),
            owner=AIRFLOW,
            options={"user_metadata": run.user_metadata()},
        )
        tasks = OtherTasks(context, run)
        ensure_same_instances(tasks, step)
        self._unit = (tasks, step)
        return step

    def xcom_and_log(self, report: StepReport, **details: object) -> XCom:
        """The XCom of a report, and its one line in the log.

        Raises:
            InvalidRequestError: As `ensure_same_instances`. The rows of this attempt are in the table.
        """
        self.log.info("%s", report.sentence())
        if self._unit is not None and report.outcome in CHANGED:
            # Instances that ran at the same time did not see each other. The last that commits sees all.
            ensure_same_instances(*self._unit)
        for finding in [] if report.expected is None else rule_findings(report.expected):
            if not finding.passed:
                self.log.warning("%s", finding.description)
                for row in finding.rows:
                    self.log.warning("  %s", dict(row))
        return xcom_of(report, **details)
