"""Operators on a table as a whole: `DeltaRestoreOperator`, `DeltaCloneOperator`, `DeltaUndoOperator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from delta_orch.airflow.arguments import ensure_properties, ensure_switches
from delta_orch.airflow.locations import checked_location, is_same_table, is_template
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom
from delta_orch.airflow.unit_operator import DeltaUnitOperator
from delta_orch.pipeline.conditions import whole_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.pipeline.step import Mode
    from delta_orch.pipeline.step_report import StepReport


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
