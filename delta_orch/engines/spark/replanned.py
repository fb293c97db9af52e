"""Scans that Spark plans anew for each query: of more files than its driver can list, or of the newest version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import ColumnNotFoundError, SchemaMismatchError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.spark_literals import quote_identifier, type_sql
from delta_orch.expressions.tree import conjunction
from delta_orch.log.files.file_columns import ADD_SCHEMA, live_row_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.scan_plan import FilePruning


LARGE = 500_000
"""A number of files. For fewer files, one list for all queries of a session is cheaper than one list per query."""


def is_large(snapshot: Snapshot) -> bool:
    """Whether a snapshot may have more than `LARGE` files, by the footers of its checkpoint."""
    return snapshot.most_files() > LARGE


@dataclass(frozen=True)
class LargeScan:
    """The scan of a snapshot, planned for the filters of each query. Safe to share between threads.

    Attributes:
        snapshot: The version to scan.
        where: The scan's own predicate.
        plan_with: Makes the scan of the files that a function returns. The function is called with the needed columns.
        pruning: Returns the files that a predicate does not exclude.
    """

    snapshot: Snapshot
    where: Expression | None
    plan_with: Callable[[Callable[[Sequence[str]], pa.Table]], ScanPlan]
    pruning: Callable[[Expression | None], FilePruning]

    @property
    def schema(self) -> StructType:
        """The columns that filters may use."""
        return self.snapshot.schema

    def plan_of(self, filters: Expression | None) -> ScanPlan:
        """Return the scan without files that the filters exclude. Raises as `Snapshot.files`."""
        where = filters if self.where is None else conjunction(self.where, filters)
        plan = self.plan_with(lambda columns: self.snapshot.files(columns, where))
        return replace(plan, prune=self.pruning(where))

    def plan_of_rows(self, count: int) -> ScanPlan:
        """Return the scan of enough files for a number of rows. It has all files if row counts are unknown. Raises as
        `plan_of`."""
        if self.where is not None:
            return self.plan_of(None)
        import pyarrow as pa

        pieces: list[pa.Table] = []
        for piece in self.snapshot.iter_files():
            rows = pc.cumulative_sum(pc.fill_null(live_row_counts(piece), 0))
            before = pc.sum(pc.less(rows, count)).as_py() or 0
            pieces.append(piece.slice(0, before + 1))
            if before < len(rows):
                break
            count -= rows[-1].as_py() if len(rows) else 0
        files = pa.concat_tables(pieces)
        return replace(self.plan_with(lambda columns: files.select(list(columns))), prune=None)

    def plan_of_nothing(self) -> ScanPlan:
        """The scan without any file."""
        return self.plan_with(lambda columns: ADD_SCHEMA.empty_table().select(list(columns)))


class Planned(Protocol):
    """A `Scan`."""

    @property
    def schema(self) -> StructType:
        """The columns of the rows, in order."""

    def plan(self) -> ScanPlan:
        """The files to read."""


class FollowedScan:
    """The rows of a table at its newest version. Safe to share between threads.

    Args:
        snapshot: The version to begin with.
        make: Makes the scan of a version.

    Attributes:
        uri: The location of the table.
        plan: The plan of the first scan.
    """

    def __init__(self, snapshot: Snapshot, scan: Planned, make: Callable[[Snapshot, list[str]], Planned]) -> None:
        self._schema = scan.schema
        self._make = make
        self._known = snapshot
        self._log = TableLog(snapshot.store, type(snapshot))
        self.uri = snapshot.store.uri
        self.plan = scan.plan()

    def newest_version(self) -> int:
        """Return the newest version. Raises as `TableLog.snapshot`."""
        self._known = self._log.newest(self._known)
        return self._known.version

    def plan_of(self, version: int) -> ScanPlan:
        """Return the scan of a version.

        Raises:
            SchemaMismatchError: The columns changed.
            Otherwise as `TableLog.snapshot`, or as a new scan.
        """
        cached = self._known
        snapshot = cached if cached.version == version else self._log.snapshot(version)
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
            f"Version {version} changed columns of a DataFrame that follows the table",
            cause=cause,
            remedy="Create the DataFrame or the view again",
            version=version,
        )
