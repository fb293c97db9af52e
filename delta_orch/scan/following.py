"""A scan that is made again of newer versions, with the columns that it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import ColumnNotFoundError, SchemaMismatchError
from delta_orch.expressions.spark_literals import quote_identifier, type_sql
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.types import StructType


class Planned(Protocol):
    """A `Scan`."""

    @property
    def schema(self) -> StructType:
        """The columns of the rows, in order."""

    def plan(self) -> ScanPlan:
        """The files to read."""


class FollowedScan:
    """The rows of one table, version after version. Safe to share between threads.

    Args:
        snapshot: The version to begin with.
        make: The scan of a version: the columns that it names, in SQL.

    Attributes:
        uri: Of the table.
        plan: Of the scan at first.
    """

    def __init__(self, snapshot: Snapshot, scan: Planned, make: Callable[[Snapshot, list[str]], Planned]) -> None:
        self._schema = scan.schema
        self._make = make
        self._known = snapshot
        self._log = TableLog(snapshot.store, type(snapshot))
        self.uri = snapshot.store.uri
        self.plan = scan.plan()

    def newest_version(self) -> int:
        """The newest version. Raises as `TableLog.snapshot`."""
        self._known = self._log.newest(self._known)
        return self._known.version

    def plan_of(self, version: int) -> ScanPlan:
        """The scan of a version.

        Raises:
            SchemaMismatchError: Its columns are not what they were.
            Otherwise as `TableLog.snapshot`, or as a new scan.
        """
        known = self._known
        snapshot = known if known.version == version else self._log.snapshot(version)
        try:
            scan = self._make(snapshot, [quote_identifier(name) for name in self._schema.names])
        except ColumnNotFoundError as e:
            raise self._changed(version, e.problem) from e
        for old, new in zip(self._schema, scan.schema, strict=True):
            if type_sql(old.data_type) != type_sql(new.data_type):
                raise self._changed(version, f"{old.name} is {new.data_type} now, and was {old.data_type}")
        return scan.plan()

    def _changed(self, version: int, cause: str) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"Version {version} changed columns that a DataFrame has which follows the table",
            cause=cause,
            remedy="Make the DataFrame, or the view, again",
            version=version,
        )
