"""What all operators on a table share: the connection, the mapping of errors, and what they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator

from delta_orch.airflow.assets import create_asset
from delta_orch.airflow.failures import airflow_failures
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.run_context import TaskRun

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.transaction import CommitResult


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a task says about what it did: its XCom, and the extra of its outlets' asset events. Never data.

    Attributes:
        table_uri: The table's canonical URI.
        version: The version the task committed, or where it committed none the version it found; None: no table.
        skipped: Nothing was committed.
        details: Whatever else the step reports; JSON values.
    """

    table_uri: str
    version: int | None
    skipped: bool
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_commit(cls, table_uri: str, result: CommitResult, **details: Any) -> StepReport:
        metrics = dict(result.operation_metrics or {})
        return cls(table_uri, result.version, result.skipped, {"operation_metrics": metrics, **details})

    def as_xcom(self) -> dict[str, Any]:
        report = asdict(self)
        details = report.pop("details")
        return {**report, **details}


class DeltaTableOperator(BaseOperator):  # type: ignore[misc]
    """Base of the operators that work on one table; subclasses implement `execute_on_table`.

    Errors that are worth a retry (`DeltaError.retryable`) leave as they are, so that the task's retries apply; other
    DeltaErrors fail the task at once. The XCom and the extra of each outlet's asset event hold `table_uri`, `version`
    and `skipped`. A task that finds its work done is a success, not skipped, so that what follows it runs.

    Args:
        table_uri: A URI, a path, a `delta://` asset URI, or a name below the connection's `table_root`. (templated)
        delta_conn_id: The connection with the storage options. (templated)
    """

    template_fields: Sequence[str] = ("table_uri", "delta_conn_id")
    ui_color = "#d4ecf7"

    def __init__(self, *, table_uri: str, delta_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table_uri = table_uri
        self.delta_conn_id = delta_conn_id

    @property
    def hook(self) -> DeltaHook:
        return DeltaHook(self.delta_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_failures():
            run = TaskRun.from_context(context)
            table = self.hook.table(self.table_uri)
            try:
                report = self.execute_on_table(context, run, table)
            finally:
                # The process of a task ends in a way that waits for no thread.
                table.wait_for_upkeep()
        self.log.info(
            "%s: %s version %s of %s",
            self.task_id,
            "nothing to commit at" if report.skipped else "committed",
            report.version,
            report.table_uri,
        )
        attach_to_outlets(context, report)
        return report.as_xcom()

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> StepReport:
        """Do the work. DeltaErrors raised here are mapped as the class says."""
        raise NotImplementedError


def attach_to_outlets(context: Context, report: StepReport) -> None:
    """Put the report into the asset events the task will emit.

    An alias among the outlets resolves to the asset beside it that stands for the table, else to one named by its URI.
    """
    extra = {"table_uri": report.table_uri, "version": report.version, "skipped": report.skipped}
    events, outlets = context["outlet_events"], context["outlets"]
    for outlet in outlets:
        if isinstance(outlet, Asset):
            events[outlet].extra.update(extra)
        elif isinstance(outlet, AssetAlias):
            events[outlet].add(_asset_of_table(report.table_uri, outlets), extra=extra)


def _asset_of_table(table_uri: str, outlets: Sequence[Any]) -> Asset:
    """Two assets with one URI would shadow each other, so a new one is made only where there is none."""
    named_by_uri = create_asset(table_uri=table_uri)
    beside = [outlet for outlet in outlets if isinstance(outlet, Asset) and outlet.uri == named_by_uri.uri]
    return beside[0] if beside else named_by_uri
