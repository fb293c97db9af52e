"""Which rows of a data file are in the table, and which rows they are, while the file is read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.engines.local.tracked_columns import TrackedColumns
from delta_orch.protocol.deletion_vector import DeletionVector

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class FileRows:
    """What is known of the rows of a file by their position in it.

    Attributes:
        group_offsets: Where its row groups begin, and where the last one ends.
        live: One flag a row, false where its deletion vector marks it (PROTOCOL, "Deletion Vectors"); None where the
            file has none.
        tracked: Columns to add that depend on the position; None where none are wanted.
    """

    group_offsets: tuple[int, ...]
    live: npt.NDArray[np.bool_] | None = None
    tracked: TrackedColumns | None = None

    @classmethod
    def of_file(
        cls, metadata: pq.FileMetaData, vector: DeletionVector | None, tracked: TrackedColumns | None
    ) -> FileRows:
        groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        offsets = tuple(accumulate(groups, initial=0))
        if vector is None:
            return cls(offsets, None, tracked)
        live = np.ones(offsets[-1], dtype=np.bool_)
        live[vector.row_indexes(offsets[-1])] = False
        return cls(offsets, live, tracked)

    def choose(self, rows: pa.Table, groups: Sequence[int]) -> pa.Table:
        """The live rows among all rows of some row groups, with the tracked columns added."""
        return self._choose(rows, self._live_of(groups), self._positions_of(groups))

    def choose_batches(self, batches: Iterable[pa.RecordBatch], groups: Sequence[int]) -> Iterator[pa.Table]:
        """As `choose`, for batches that together hold the row groups, in order."""
        live, positions, start = self._live_of(groups), self._positions_of(groups), 0
        for batch in batches:
            part = slice(start, start + batch.num_rows)
            rows = pa.Table.from_batches([batch])
            yield self._choose(
                rows, None if live is None else live[part], None if positions is None else positions[part]
            )
            start = part.stop

    def _choose(
        self, rows: pa.Table, live: npt.NDArray[np.bool_] | None, positions: npt.NDArray[np.int64] | None
    ) -> pa.Table:
        if self.tracked is not None and positions is not None:
            rows = self.tracked.added_to(rows, positions)
        return rows if live is None else rows.filter(pa.array(live))

    def _live_of(self, groups: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        return None if self.live is None else self._of_groups(self.live, groups)

    def _positions_of(self, groups: Sequence[int]) -> npt.NDArray[np.int64] | None:
        if self.tracked is None:
            return None
        return self._of_groups(np.arange(self.group_offsets[-1], dtype=np.int64), groups)

    def _of_groups(self, values: npt.NDArray[Value], groups: Sequence[int]) -> npt.NDArray[Value]:
        parts = [values[self.group_offsets[group] : self.group_offsets[group + 1]] for group in groups]
        return np.concatenate(parts) if parts else values[:0]
