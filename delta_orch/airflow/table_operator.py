"""What all operators on a table share: the connection, the mapping of errors, and what they report and link to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseOperatorLink
from airflow.sdk.definitions.asset import AssetRef

from delta_orch.airflow.arguments import RenderedArguments, ensure_switches
from delta_orch.airflow.assets import create_asset, declared_asset, outlet_for
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.lineage import Outcome, lineage_of
from delta_orch.airflow.locations import checked_location
from delta_orch.airflow.mapped_tasks import MappedArguments
from delta_orch.airflow.run_context import TaskRun
from delta_orch.airflow.spark_session import interrupt_spark
from delta_orch.airflow.versions import AirflowException, AirflowFailException, AirflowTaskTimeout
from delta_orch.errors import DeltaError, InvalidRequestError, VersionNotFoundError
from delta_orch.pipeline.write_settings import OLD_ARGUMENTS, refuse_old_names

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.step_report import StepReport


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
    For a table that was given in another way, it takes the asset with the table's URI, whatever its name is. No event
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
            # An asset that is named is the one that is told.
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
