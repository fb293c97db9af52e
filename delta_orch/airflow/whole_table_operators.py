"""Operators on a table as a whole: `DeltaRestoreOperator`, `DeltaCloneOperator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from delta_orch.airflow.locations import checked_location, is_same_table, is_template
from delta_orch.airflow.neighbors import Neighbors
from delta_orch.airflow.once import OnceWriter, work_of
from delta_orch.airflow.table_operator import DeltaTableOperator, OperatorArgument, XCom, xcom_of
from delta_orch.pipeline.conditions import whole_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable


class _VersionOperator(DeltaTableOperator):
    """Base of the operators that name a version of their table."""

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, "version", "timestamp")

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

    def once(self, context: Context, run: TaskRun, table: DeltaTable) -> OnceWriter:
        """Whoever does it twice finds it done; only retries are kept from repeating it."""
        return OnceWriter(
            tasks=Neighbors(context, run), table=table, idempotency="run", name=None, adds=False, is_said=True,
            work=work_of(self),
        )  # fmt: skip


class DeltaRestoreOperator(_VersionOperator):
    """Make the table what it was at an older version, as a new commit. A retry does not restore a second time.

    Args:
        version: The version. (templated)
        timestamp: Instead: the newest version not after this moment. (templated)
        ignore_missing_files: Commit even where files of the older version are gone.
    """

    def __init__(self, *, ignore_missing_files: bool = False, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.ignore_missing_files = ignore_missing_files
        if self.version is None and self.timestamp is None:
            raise self.refusal("has neither a version nor a timestamp to restore")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        report = self.once(context, run, table).commit(
            f"Task {self.task_id}",
            lambda txns: table.restore(
                self._version(),
                self.timestamp,
                ignore_missing_files=self.ignore_missing_files,
                txn=txns,
                user_metadata=run.user_metadata(),
            ),
        )
        return xcom_of(report)


class DeltaCloneOperator(_VersionOperator):
    """Make a version of a table a table of its own. The XCom and the asset events are about the clone.

    Args:
        source: The table that is cloned. (templated)
        target: Where the clone is; in the same connection. (templated)
        shallow: Name the files of the source; False copies them.
        version: The version, by default the newest. (templated)
        timestamp: Instead: the newest version not after this moment. (templated)
        replace: A table at the target becomes the clone. By default that is refused.
        table_properties: Of the clone, beside those it takes over. (templated)
    """

    template_fields: Sequence[str] = (*_VersionOperator.template_fields, "source", "table_properties")

    def __init__(
        self,
        *,
        source: TableLocation,
        target: TableLocation,
        shallow: bool = True,
        replace: bool = False,
        table_properties: Mapping[str, str] | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(table_uri=target, **kwargs)
        self.source = checked_location(source)
        self.reads_from(source)
        self.shallow = shallow
        self.replace = replace
        self.table_properties = table_properties
        if is_same_table(self.source, self.table_uri):
            raise self.refusal("has one table as source and target")

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        source: Any = self.hook.table(self.source)
        report = self.once(context, run, table).commit(
            f"Task {self.task_id}",
            lambda txns: source.clone(
                table.uri,
                self.shallow,
                self._version(),
                self.timestamp,
                self.replace,
                self.table_properties,
                storage_options=self.hook.storage_options(),
                txn=txns,
                user_metadata=run.user_metadata(),
            ),
        )
        self.has_read = {"source": (source, source.snapshot(self._version(), self.timestamp).version)}
        return xcom_of(report, source_uri=source.uri)
