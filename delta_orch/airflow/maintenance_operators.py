"""Operators that keep a table fast and small. None needs a transaction id: doing the work twice finds it done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.airflow.arguments import ensure_list, ensure_predicate, ensure_switches
from delta_orch.airflow.locations import checked_location, is_template
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom, xcom_of
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.step_report import StepReport
from delta_orch.protocol.table_properties import parse_size_bytes

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.unit import Outcome


class DeltaCheckpointOperator(DeltaTableOperator):
    """Write a checkpoint of the newest version, so that readers need not replay the log. Commits nothing."""

    writes = False

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        return {"table_uri": table.uri, "version": table.checkpoint(), "outcome": "nothing new"}


class DeltaOptimizeOperator(DeltaTableOperator):
    """Rewrite small files as fewer large ones. The rows stay the same, and readers of changes see nothing.

    Args:
        where: Only partitions this predicate holds for; all by default. (templated)
        target_size: The size to aim for, in bytes or as `128MB` (of 2**20 bytes); the table's own setting by default.
            (templated)
        zorder_by: Columns by whose values rows are to lie together: every file of the partitions is rewritten, each
            time. (templated)
        full: Cluster every file of a clustered table anew.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "where", "target_size", "zorder_by")
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)
    writes = False

    def __init__(
        self,
        *,
        where: str | None = None,
        target_size: int | str | None = None,
        zorder_by: Sequence[str] | None = None,
        full: bool = False,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.target_size = target_size
        self.zorder_by = zorder_by
        self.full = full
        ensure_predicate(where)
        ensure_list("zorder_by", zorder_by)
        ensure_switches(full=full)
        if full and (where is not None or zorder_by is not None):
            raise self.refusal("has full, which is for clustered tables, and where or zorder_by, which are for others")
        if target_size is not None and not is_template(target_size):
            parse_target_size(target_size)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        size = None if self.target_size is None else parse_target_size(self.target_size)
        result = table.optimize(
            self.where, size, zorder_by=self.zorder_by, full=self.full, user_metadata=run.user_metadata()
        )
        outcome: Outcome = "nothing new" if result.skipped else "written"
        return xcom_of(StepReport(table, result.version, outcome, commit=result))


class DeltaVacuumOperator(DeltaTableOperator):
    """Delete files that no version within the retention period needs.

    What was deleted is recorded in two commits; a dry run, or one that finds nothing, commits nothing.

    Args:
        retention_hours: How long removed files are kept for readers of older versions; the table's
            `delta.deletedFileRetentionDuration` by default. (templated)
        dry_run: Only report what would be deleted.
        enforce_retention: Refuse a retention shorter than the table's.
        respect_consumers: Tables that incremental steps fill from this one: files that they still have to read are
            kept, however long they lag behind. (templated)
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "retention_hours", "respect_consumers")
    writes = False

    def __init__(
        self,
        *,
        retention_hours: float | str | None = None,
        dry_run: bool = False,
        enforce_retention: bool = True,
        respect_consumers: Sequence[TableLocation] = (),
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.retention_hours = retention_hours
        self.dry_run = dry_run
        self.enforce_retention = enforce_retention
        ensure_switches(dry_run=dry_run, enforce_retention=enforce_retention)
        ensure_list("respect_consumers", respect_consumers or None)
        self.respect_consumers = [checked_location(consumer) for consumer in respect_consumers]
        if retention_hours is not None and not is_template(retention_hours):
            _parse_hours(retention_hours)

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        hours = None if self.retention_hours is None else _parse_hours(self.retention_hours)
        if self.respect_consumers:
            from delta_orch.pipeline.maintenance import retention_hours_for

            consumers = [self.hook.table(consumer) for consumer in self.respect_consumers]
            hours = retention_hours_for(table, consumers, hours)
        result = table.vacuum(
            hours, self.dry_run, enforce_retention=self.enforce_retention, user_metadata=run.user_metadata()
        )
        return {
            "table_uri": table.uri,
            "version": table.version(),
            "outcome": "nothing new" if result.dry_run or result.num_files == 0 else "written",
            "dry_run": result.dry_run,
            "num_files": result.num_files,
            "size_bytes": result.size_bytes,
        }


def parse_target_size(size: int | str) -> int:
    """`134217728`, `"134217728"` and `"128MB"` are the same.

    Raises:
        InvalidRequestError: It is not a size above 0.
    """
    try:
        size_bytes = parse_size_bytes(str(size))
    except ValueError:
        size_bytes = 0
    if size_bytes == 0:
        raise InvalidRequestError(f"target_size={size!r} is not a file size", remedy="Pass bytes, or text like '128MB'")
    return size_bytes


def _parse_hours(hours: float | str) -> float:
    try:
        number = float(hours)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf") or isinstance(hours, bool):
        raise InvalidRequestError(
            f"retention_hours={hours!r} is not a number of hours", remedy="Pass hours of at least 0, e.g. 168"
        )
    return number
