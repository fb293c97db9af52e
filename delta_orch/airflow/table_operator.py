"""What all operators on a table share: the connection, the mapping of errors, and what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator

from delta_orch.airflow.assets import create_asset
from delta_orch.airflow.events import touched_partitions
from delta_orch.airflow.failures import airflow_failures
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import checked_location
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.step import StepReport


OperatorArgument = Any
"""An argument of Airflow's `BaseOperator`, or a value for the user's function."""

XCom = dict[str, object]
"""What a task reports, in JSON's types and never data: `table_uri` (canonical), `version` (the one it committed, or
where it committed none the one it found; None without a table), `skipped` (the task has committed nothing), and
details. Where an earlier attempt had made the commit, it is described as if this one had, and `recovered` is true."""


def xcom_of(report: StepReport, **details: object) -> XCom:
    """The report of a step. `operation_metrics` only where the step computed something."""
    found: XCom = {"table_uri": report.table.uri, "version": report.version, "skipped": report.skipped}
    if report.recovered is not None:
        found |= {"skipped": False, "recovered": True}
    if report.commit is not None or report.recovered is not None:
        found["operation_metrics"] = report.metrics
    return {**found, **details}


class DeltaTableOperator(BaseOperator):  # type: ignore[misc]
    """Base of the operators that work on one table; subclasses implement `execute_on_table`.

    Errors that are worth a retry (`DeltaError.retryable`) leave as they are, so that the task's retries apply; other
    DeltaErrors fail the task at once. The XCom and the extra of each outlet's asset event hold `table_uri`, `version`
    and `skipped`, and the event `rows` and `partitions` where they are known. A task that finds its work done is a
    success, not skipped, so that what follows it runs; but it emits no asset event.

    Args:
        table_uri: A URI, a path, an `ObjectStoragePath`, an asset (or its `delta://` URI), or a name below the
            connection's `table_root`. (templated)
        delta_conn_id: The connection with the storage options. (templated)
        emit_when_unchanged: Emit the outlets' asset events also where the task has committed nothing.
    """

    template_fields: Sequence[str] = ("table_uri", "delta_conn_id")
    ui_color = "#d4ecf7"

    def __init__(
        self,
        *,
        table_uri: TableLocation,
        delta_conn_id: str = DEFAULT_CONN_ID,
        emit_when_unchanged: bool = False,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.table_uri = checked_location(table_uri)
        self.delta_conn_id = delta_conn_id
        self.emit_when_unchanged = emit_when_unchanged
        self.ensure_flag("emit_when_unchanged", emit_when_unchanged)

    def refusal(self, what: str, cause: str | None = None) -> InvalidRequestError:
        """The error for arguments that do not go together."""
        return InvalidRequestError(
            f"Task {self.task_id} {what}", cause=cause, remedy="Correct the operator's arguments", task_id=self.task_id
        )

    def ensure_choice(self, name: str, value: object, allowed: Sequence[object]) -> None:
        """Refuse a value that is none of the possible ones."""
        if value not in allowed:
            named = ", ".join(str(choice) for choice in allowed if choice is not None)
            raise self.refusal(f"has {name}={value!r}; possible are {named}")

    def ensure_flag(self, name: str, value: object) -> None:
        """Refuse what Python would take for true or false."""
        if not isinstance(value, bool):
            raise self.refusal(f"has {name}={value!r}; possible are True and False")

    @property
    def hook(self) -> DeltaHook:
        return DeltaHook(self.delta_conn_id)

    def execute(self, context: Context) -> XCom:
        with airflow_failures():
            run = TaskRun.from_context(context)
            table = self.hook.table(self.table_uri)
            try:
                xcom = self.execute_on_table(context, run, table)
            finally:
                # The process of a task ends in a way that waits for no thread.
                table.wait_for_upkeep()
            if not xcom["skipped"] or self.emit_when_unchanged:
                attach_to_outlets(context, xcom, table)
            else:
                # Airflow emits what it finds among the outlets when the task ends.
                context["ti"].task.outlets = []
        done = "nothing to commit at" if xcom["skipped"] else "recovered" if "recovered" in xcom else "committed"
        self.log.info("%s: %s version %s of %s", self.task_id, done, xcom["version"], xcom["table_uri"])
        return xcom

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        """Do the work. DeltaErrors raised here are mapped as the class says."""
        raise NotImplementedError


def attach_to_outlets(context: Context, xcom: XCom, table: DeltaTable) -> None:
    """Put the report into the asset events the task will emit.

    An alias among the outlets resolves to the asset beside it that stands for the table, else to one named by its URI.
    """
    events, outlets = context["outlet_events"], context["outlets"]
    if not outlets:
        return
    extra: dict[str, object] = {
        name: xcom[name] for name in ("table_uri", "version", "skipped", "recovered") if name in xcom
    }
    metrics = xcom.get("operation_metrics")
    if isinstance(metrics, Mapping) and "numOutputRows" in metrics:
        extra["rows"] = int(metrics["numOutputRows"])
    if not xcom["skipped"] and isinstance(version := xcom["version"], int):
        extra["partitions"] = touched_partitions(table, version)
    for outlet in outlets:
        if isinstance(outlet, Asset):
            events[outlet].extra.update(extra)
        elif isinstance(outlet, AssetAlias):
            events[outlet].add(_asset_of_table(str(xcom["table_uri"]), outlets), extra=extra)


def _asset_of_table(table_uri: str, outlets: Sequence[object]) -> Asset:
    """Two assets with one URI would shadow each other, so a new one is made only where there is none."""
    named_by_uri = create_asset(table_uri=table_uri)
    beside = [outlet for outlet in outlets if isinstance(outlet, Asset) and outlet.uri == named_by_uri.uri]
    return beside[0] if beside else named_by_uri
