"""Which rows of a data file are in the table, and which rows they are, while the file is read in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import booleans_from_numpy, longs_from_numpy
from delta_orch.protocol.deletion_vector import DeletionVector

Part = tuple[int, int]
"""Rows of a file, from a position to one before another."""
_MARK = "\0tracked "


class FileTask(NamedTuple):
    """The parts of one file to read.

    Attributes:
        path: For the store's file system.
        constants: Partition values as Arrow scalars, by column name.
        deletion_vector: Marks rows of the file that are not in the table.
        base_row_id, default_row_commit_version: For row tracking.
        number: For addresses of rows.
    """

    path: str
    constants: dict[str, pa.Scalar]
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class TrackedColumns:
    """How to make the columns of row tracking and of addresses for the rows of one file.

    Attributes:
        plan: The scan that they belong to.
        task: The file.
        names: Those that are wanted, by their names in the schema.
    """

    plan: ScanPlan
    task: FileTask
    names: tuple[str, ...]

    def names_in_file(self, columns: Sequence[str]) -> list[str]:
        """The materialised columns to read, of those the file has."""
        stored = map(self._materialized, self.names)
        return [name for name in stored if name is not None and name in columns]

    def added_to(self, rows: pa.Table, positions: npt.NDArray[np.int64]) -> pa.Table:
        """The rows, given with their positions in the file, and the columns added under names no column can have.

        Raises:
            ProtocolViolationError: A row has neither a materialised value nor a default.
        """
        for name in self.names:
            rows = rows.append_column(marked(name), self._column(name, rows, positions))
        return rows

    def _column(self, name: str, rows: pa.Table, positions: npt.NDArray[np.int64]) -> pa.ChunkedArray | pa.Array:
        addresses = self.plan.row_addresses
        if addresses is not None and name == addresses.row_position:
            return longs_from_numpy(positions)
        if addresses is not None and name == addresses.file_number:
            return longs_from_numpy(np.full(len(positions), self.task.number, dtype=np.int64))
        default = self._default(name, positions)
        stored = self._materialized(name)
        column = pc.cast(rows.column(stored), pa.int64()) if stored in rows.column_names else None
        if column is not None and (column.null_count == 0 or default is not None):
            return column if column.null_count == 0 else pc.coalesce(column, default)
        if default is None and rows.num_rows:
            raise ProtocolViolationError(
                f"The rows of {self.task.path} have no {name}",
                cause="Row tracking is enabled, but the log lacks "
                + ("baseRowId" if self._is_row_id(name) else "defaultRowCommitVersion")
                + " for the file",
                remedy="Read without row_tracking",
                path=self.task.path,
            )
        return pa.nulls(0, pa.int64()) if default is None else default

    def _default(self, name: str, positions: npt.NDArray[np.int64]) -> pa.Array | None:
        if self._is_row_id(name):
            base = self.task.base_row_id
            return None if base is None else longs_from_numpy(positions + base)
        version = self.task.default_row_commit_version
        return None if version is None else longs_from_numpy(np.full(len(positions), version, dtype=np.int64))

    def _materialized(self, name: str) -> str | None:
        tracking = self.plan.row_tracking
        if tracking is None or name not in tracking.names:
            return None
        return tracking.materialized_row_id if self._is_row_id(name) else tracking.materialized_row_commit_version

    def _is_row_id(self, name: str) -> bool:
        tracking = self.plan.row_tracking
        return tracking is not None and name == tracking.row_id


def marked(name: str) -> str:
    """The name of a tracked column beside the file's own columns."""
    return _MARK + name


@dataclass(frozen=True, slots=True)
class FileRows:
    """Facts about the rows of a file by their position in it.

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
            pyarrow.ArrowInvalid: The number of rows in the row groups does not match the footer.
        """
        parts = list(self._parts_of(groups))
        # The number of rows in the footer is verified only here, so no array of that size is created earlier.
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
        return pc.filter(rows, booleans_from_numpy(np.concatenate([np.zeros(0, dtype=np.bool_), *live])))


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


def _ensure_length(num_rows: int, footer_rows: int) -> None:
    if num_rows != footer_rows:
        raise pa.ArrowInvalid(f"Row groups have {num_rows} rows, and the footer says {footer_rows}")
