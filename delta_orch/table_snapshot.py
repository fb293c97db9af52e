"""`TableSnapshot`: a version of a table and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_orch.arguments import checked
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.snapshot_listings import SnapshotListings
from delta_orch.snapshot_writes import SnapshotWrites

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from delta_orch.expressions.nodes import Expression
    from delta_orch.scan.scan import Scan


@checked
class TableSnapshot(SnapshotListings, SnapshotWrites, Snapshot):
    """One version of a table, with its rows.

    It never changes, whatever is committed afterwards; its rows can be read until vacuum deletes files that newer
    versions do not need (then `MissingFileError`)."""

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | Expression | pc.Expression | None = None,
        *,
        row_tracking: bool = False,
    ) -> Scan:
        """Choose rows to read: nothing is read yet.

        Args:
            columns: Columns, in this order, or fields inside structs (``a.b``, ``a.`c.d` ``), of which no more than
                that is read and which are called by their last name, as with Spark's `select`; None for all columns,
                none at all for rows without columns.
            where: A predicate in Spark SQL, as an `Expression`, or as an expression of pyarrow; rows for which it is
                true are kept. An expression of pyarrow has pyarrow's meaning; where that has no counterpart in Spark
                SQL it leaves out no file, and Spark asks Python workers which rows to keep.
            row_tracking: Add the columns `row_id` and `row_commit_version` (both long, PROTOCOL, "Row Tracking");
                `where` may use them, too.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: They do not fit the table.
            InvalidRequestError: `row_tracking` without `delta.enableRowTracking`, or the table has a column of one of
                these names.
        """
        from delta_orch.scan.scan import Scan

        return Scan(self, columns, where, row_tracking=row_tracking)
