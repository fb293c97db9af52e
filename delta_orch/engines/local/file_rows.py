"""Which rows of a data file are in the table, and which rows they are, while the file is read in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.engines.local.tracked_columns import TrackedColumns
from delta_orch.protocol.deletion_vector import DeletionVector

Part = tuple[int, int]
"""Rows of a file, from a position to one before another."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """What is known of the rows of a file by their position in it.

    Attributes:
        group_offsets: Where its row groups begin, and where the last one ends.
        deleted: The rows that its deletion vector marks, ascending (PROTOCOL, "Deletion Vectors"); None where the file
            has none.
        tracked: Columns to add that depend on the position; None where none are wanted.
    """

    group_offsets: tuple[int, ...]
    deleted: npt.NDArray[np.int64] | None = None
    tracked: TrackedColumns | None = None

    @classmethod
    def of_file(
        cls, metadata: pq.FileMetaData, vector: DeletionVector | None, tracked: TrackedColumns | None
    ) -> FileRows:
        groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        offsets = tuple(accumulate(groups, initial=0))
        if vector is None:
            return cls(offsets, None, tracked)
        return cls(offsets, vector.row_indexes(offsets[-1]).astype(np.int64), tracked)

    def choose(self, rows: pa.Table, groups: Sequence[int]) -> pa.Table:
        """The live rows among all rows of some row groups, with the tracked columns added.

        Raises:
            pyarrow.ArrowInvalid: The row groups have another number of rows than the footer says.
        """
        parts = list(self._parts_of(groups))
        # Only now is it known that there are as many rows as the footer says: nothing of that size is made before.
        _ensure_length(rows.num_rows, sum(stop - start for start, stop in parts))
        return self._choose(rows, parts)

    def choose_batches(self, batches: Iterable[pa.RecordBatch], groups: Sequence[int]) -> Iterator[pa.Table]:
        """As `choose`, for batches that together hold the row groups, in order."""
        ahead = deque(self._parts_of(groups))
        for batch in batches:
            yield self._choose(pa.Table.from_batches([batch]), list(_take(ahead, batch.num_rows)))
        _ensure_length(0, sum(stop - start for start, stop in ahead))

    def _parts_of(self, groups: Sequence[int]) -> Iterator[Part]:
        return ((self.group_offsets[group], self.group_offsets[group + 1]) for group in groups)

    def _choose(self, rows: pa.Table, parts: Sequence[Part]) -> pa.Table:
        if self.tracked is not None:
            positions = [np.arange(start, stop, dtype=np.int64) for start, stop in parts]
            rows = self.tracked.added_to(rows, np.concatenate([np.zeros(0, dtype=np.int64), *positions]))
        if self.deleted is None:
            return rows
        live = [_live(self.deleted, start, stop) for start, stop in parts]
        return rows.filter(pa.array(np.concatenate([np.zeros(0, dtype=np.bool_), *live])))


def _live(deleted: npt.NDArray[np.int64], start: int, stop: int) -> npt.NDArray[np.bool_]:
    """One flag for each row from `start` to `stop`, false where it is deleted."""
    live = np.ones(stop - start, dtype=np.bool_)
    first, last = np.searchsorted(deleted, (start, stop))
    live[deleted[first:last] - start] = False
    return live


def _take(ahead: deque[Part], count: int) -> Iterator[Part]:
    """So many rows from the front of what is ahead."""
    while count:
        _ensure_length(count, count if ahead else 0)
        start, stop = ahead.popleft()
        if stop - start > count:
            ahead.appendleft((start + count, stop))
            stop = start + count
        count -= stop - start
        yield start, stop


def _ensure_length(found: int, told: int) -> None:
    if found != told:
        raise pa.ArrowInvalid(f"Row groups have {found} rows where the footer tells of {told}")
