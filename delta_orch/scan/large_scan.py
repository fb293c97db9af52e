"""A scan of so many files that a list of all of them is too large for the driver of a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import conjunction
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.scan_plan import FilePruning, ScanPlan

LARGE = 500_000
"""Files. Of fewer, one list for all queries of a session is cheaper than a list for each query."""


def is_large(snapshot: Snapshot) -> bool:
    """Whether a snapshot may have more than `LARGE` files, as far as the footers of its checkpoint tell."""
    return snapshot.most_files() > LARGE


@dataclass(frozen=True)
class LargeScan:
    """The scan of a snapshot, planned for the filters of each query. Safe to share between threads.

    Attributes:
        snapshot: The version.
        where: The scan's own predicate.
        plan_with: The scan of the files that a function gives; that is called with the columns that are needed.
        pruning: Looks at no other files than those that a predicate leaves.
    """

    snapshot: Snapshot
    where: Expression | None
    plan_with: Callable[[Callable[[Sequence[str]], pa.Table]], ScanPlan]
    pruning: Callable[[Expression | None], FilePruning]

    @property
    def schema(self) -> StructType:
        """The columns that filters may name."""
        return self.snapshot.schema

    def plan_of(self, filters: Expression | None) -> ScanPlan:
        """The scan, without files of which the filters leave no row. Raises as `Snapshot.files`."""
        where = filters if self.where is None else conjunction(self.where, filters)
        plan = self.plan_with(lambda columns: self.snapshot.files(columns, where))
        return replace(plan, prune=self.pruning(where))

    def plan_of_rows(self, count: int) -> ScanPlan:
        """The scan of some of the files, which have so many rows together; of all where nobody knows. Raises as
        `plan_of`."""
        if self.where is not None:
            return self.plan_of(None)
        import pyarrow as pa

        import delta_orch.arrow_compute as pc
        from delta_orch.log.files.file_columns import live_row_counts

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
        from delta_orch.log.files.file_columns import ADD_SCHEMA

        return self.plan_with(lambda columns: ADD_SCHEMA.empty_table().select(list(columns)))
