"""Operators on a table as a whole: upkeep, restore, clone, undo, and the relay of changed partitions.

Upkeep needs no unit of work: a second run finds the work done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset

from delta_orch.airflow.arguments import ensure_list, ensure_predicate, ensure_properties, ensure_switches
from delta_orch.airflow.locations import checked_location, is_same_table, is_template
from delta_orch.airflow.table_operator import (
    CHANGED,
    DeltaTableOperator,
    DeltaUnitOperator,
    OperatorArgument,
    XCom,
    xcom_of,
)
from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.pipeline.conditions import whole_number
from delta_orch.pipeline.unit import StepReport
from delta_orch.protocol.table_properties import parse_size_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.pipeline.step import Mode
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


class _VersionOperator(DeltaUnitOperator):
    """Base of the operators that name a version of their table."""

    kind = ""
    """The verb."""

    template_fields: Sequence[str] = (*DeltaUnitOperator.template_fields, "version", "timestamp")

    def __init__(
        self,
        *,
        version: int | str | None = None,
        timestamp: datetime | str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.timestamp = timestamp
        if version is not None and timestamp is not None:
            raise self.refusal("has a version and a timestamp; give one of them")
        if not is_template(version):
            self._version()
        if timestamp is not None and not is_template(timestamp):
            from delta_orch.log.read.time_travel import parse_timestamp_ms

            parse_timestamp_ms(timestamp)

    def _version(self) -> int | None:
        """As rendered."""
        return None if self.version is None else whole_number("version", self.version, 0)

    def done_once(
        self, context: Context, run: TaskRun, table: DeltaTable, verb: Callable[..., CommitResult]
    ) -> StepReport:
        """A retry finds it done; a clear does it again, which changes nothing twice."""
        step = self.unit_step(context, run, table, cast("Mode", self.kind))

        def again(options: CommitOptions) -> CommitResult:
            accepted: Any = {name: value for name, value in options.items() if name != "stage"}
            return verb(**accepted)

        return step.commit(again)


class DeltaRestoreOperator(_VersionOperator):
    """Make the table what it was at an older version, as a new commit. A retry does not restore a second time.

    Args:
        version: The version. (templated)
        timestamp: Instead: the newest version not after this moment. (templated)
        ignore_missing_files: Commit even where files of the older version are gone.
    """

    kind = "restore"

    def __init__(self, *, ignore_missing_files: bool = False, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.ignore_missing_files = ignore_missing_files
        ensure_switches(ignore_missing_files=ignore_missing_files)
        if self.version is None and self.timestamp is None:
            raise self.refusal("has neither a version nor a timestamp to restore")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        def restore(**options: Any) -> CommitResult:
            missing = self.ignore_missing_files
            return table.restore(self._version(), self.timestamp, ignore_missing_files=missing, **options)

        return self.xcom_and_log(self.done_once(context, run, table, restore))


class DeltaCloneOperator(_VersionOperator):
    """Make a version of a table a table of its own. The XCom and the asset events are about the clone.

    Args:
        source: The table that is cloned. (templated)
        target: Where the clone is; in the same connection. (templated)
        shallow: Name the files of the source; False copies them.
        version: The version, by default the newest. (templated)
        timestamp: Instead: the newest version not after this moment. (templated)
        replace: A table at the target becomes the clone. By default that is refused.
        properties: Of the clone, beside those it takes over. (templated)
    """

    template_fields: Sequence[str] = (*_VersionOperator.template_fields, "source", "properties")
    kind = "clone"

    def __init__(
        self,
        *,
        source: TableLocation,
        target: TableLocation,
        shallow: bool = True,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(table_uri=target, **kwargs)
        self.source = checked_location(source)
        self.reads_from(source)
        self.shallow = shallow
        self.replace = replace
        self.properties = properties
        ensure_switches(shallow=shallow, replace=replace)
        ensure_properties(properties)
        if is_same_table(self.source, self.table_uri):
            raise self.refusal("has one table as source and target")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        source: Any = self.hook.table(self.source)

        def clone(**options: Any) -> CommitResult:
            result: CommitResult = source.clone(
                table.uri,
                self.shallow,
                self._version(),
                self.timestamp,
                self.replace,
                self.properties,
                storage_options=self.hook.storage_options(),
                **options,
            )
            return result

        report = self.done_once(context, run, table, clone)
        self.has_read = {"source": (source, source.snapshot(self._version(), self.timestamp).version)}
        return self.xcom_and_log(report, source_uri=source.uri)


class DeltaUndoOperator(DeltaTableOperator):
    """Remove exactly the rows that a unit wrote, or all units of a run. The unit is then as if it had never been done.

    The XCom has `units`, and `rows_removed`. Undoing what is undone already finds nothing new.

    Args:
        unit: The name of a unit, as `DeltaTable.units()` lists it. (templated)
        run: Instead: the id of a run. Where runs of several DAGs have it, name the units. (templated)
        dry_run: Only report what would be removed.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "unit", "run")

    def __init__(
        self, *, unit: str | None = None, run: str | None = None, dry_run: bool = False, **kwargs: OperatorArgument
    ) -> None:
        super().__init__(**kwargs)
        self.unit = unit
        self.run = run
        self.dry_run = dry_run
        ensure_switches(dry_run=dry_run)
        if (unit is None) == (run is None):
            raise self.refusal("takes unit or run", remedy="Give exactly one of them")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        result = table.undo(unit=self.unit, run=self.run, dry_run=self.dry_run, user_metadata=run.user_metadata())
        is_made = result.preview is None and not result.skipped
        return {
            "table_uri": table.uri,
            "version": result.version if is_made else table.version(),
            "outcome": "replaced" if is_made else "nothing new",
            "rows_removed": result.rows_removed,
            "units": list(result.units),
            "dry_run": self.dry_run,
        }


MAX_KEY_LENGTH = 250
"""Of a partition key of Airflow."""


class DeltaPartitionRelayOperator(DeltaTableOperator):
    """Emit one partitioned asset event a touched partition, so that partition-aware DAGs run for exactly those.

    A watcher's event carries no partition key. A DAG that is scheduled by the watched asset holds this task; it reads
    from the log which partitions the commits of all its triggering events touched, and adds their keys to its outlets.
    A table that was created anew, or whose log was cleaned up unseen, counts as touched everywhere. A run without
    triggering event of this table relays nothing. A partition that cannot be a key (null, an empty text) is an error.

    The XCom is `{table_uri, version, outcome, partition_keys}`. It commits nothing.

    Args:
        column: The partition column whose values are the keys; needed where the table has several.
        outlets: The partitioned assets.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "column")
    writes = False

    def __init__(self, *, column: str | None = None, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        if not keeps_state():
            raise needs_newer(
                f"Task {self.task_id} (DeltaPartitionRelayOperator)",
                cause="In older ones tasks cannot tell partitions to assets, and no table can be watched",
                remedy="Give an incremental task the table: batch.partitions() are those that have changed",
            )
        self.column = column
        self.reads_from(kwargs.get("table_uri"))
        if not self.outlets or not all(isinstance(outlet, Asset) for outlet in self.outlets):
            raise self.refusal("relays partitions to its outlets, which must be assets")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        keys: set[str] = set()
        version: int | None = None
        for first, last, table_id in self._triggering_ranges(context, table):
            version = last if version is None else max(version, last)
            keys |= self._keys_between(table, first, last, table_id)
        for outlet in self.outlets if keys else ():
            context["outlet_events"][outlet].add_partitions(sorted(keys))
        # The events are this task's work.
        outcome = "written" if keys else "nothing new"
        return {"table_uri": table.uri, "version": version, "outcome": outcome, "partition_keys": sorted(keys)}

    def _triggering_ranges(self, context: Context, table: DeltaTable) -> Iterator[tuple[int, int, str]]:
        for events in (context.get("triggering_asset_events") or {}).values():
            for event in events:
                extra = event.extra or {}
                report = extra.get("payload", extra)
                if not isinstance(report, Mapping) or report.get("table_uri") != table.uri:
                    continue
                if isinstance(report.get("ending_version"), int):
                    yield int(report["starting_version"]), int(report["ending_version"]), str(report["table_id"])
                elif isinstance(report.get("version"), int) and report.get("outcome", CHANGED[0]) in CHANGED:
                    # The event of an operator of this package.
                    first = report.get("starting_version", report["version"])
                    yield int(first), int(report["version"]), str(report.get("table_id", ""))

    def _keys_between(self, table: DeltaTable, first: int, last: int, table_id: str) -> set[str]:
        from delta_orch.pipeline.tail import TailCursor, poll

        snapshot = table.snapshot()
        cursor = TailCursor(table_id or snapshot.metadata.id, first - 1)
        batch = poll(table.log, cursor, verify=True, max_versions=last - first + 1)
        return set() if batch is None else set(self._keys(batch.partitions, snapshot.partition_columns))

    def _keys(self, partitions: pa.Table, columns: Sequence[str]) -> Iterator[str]:
        from delta_orch.pipeline.partitions import key_text

        for value in partitions.column(self._column(columns)).unique().to_pylist():
            key = None if value is None else key_text(value)
            if key is None or not key.strip() or len(key) > MAX_KEY_LENGTH:
                raise InvalidRequestError(
                    f"Task {self.task_id}: the touched partition {value!r} cannot be a partition key",
                    cause=f"A key is a text of 1 to {MAX_KEY_LENGTH} characters, not blank",
                    remedy="Write such rows to a table of their own, or relay another column",
                )
            yield key

    def _column(self, columns: Sequence[str]) -> str:
        if self.column is None and len(columns) == 1:
            return columns[0]
        for name in columns:
            if self.column is not None and name.lower() == self.column.lower():
                return name
        raise ColumnNotFoundError(
            f"Task {self.task_id} relays {'one partition column' if self.column is None else repr(self.column)}, "
            f"and the table is partitioned by {', '.join(columns) or 'none'}",
            remedy="Name the partition column whose values are the keys",
        )
