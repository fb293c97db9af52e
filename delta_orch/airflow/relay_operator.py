"""`DeltaPartitionRelayOperator`: the partitions in which a table has changed become partitioned asset events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow.sdk import Asset

from delta_orch.airflow.table_operator import CHANGED, DeltaTableOperator, OperatorArgument, XCom
from delta_orch.airflow.versions import keeps_state, needs_newer
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable

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
