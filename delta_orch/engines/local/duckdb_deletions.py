"""Deleted rows as conditions in DuckDB's SQL: which files of a scan are read how, and the masks for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from delta_orch.protocol.deletion_vector import DeletionVector

_MOST_BRANCHES = 64
"""Files with deletion vectors, or parts of them, up to which each gets a query of its own: quicker by a tenth."""
_MASK_ROWS = 1 << 20
"""The rows of such a part. DuckDB copies a constant for every 2048 rows, so that masks must be short."""
MASKS_TOGETHER = 8
"""Masks in a list that one statement hands over. The list is copied for each of them."""
_MOST_RUNS = 8
Runs = list[tuple[int, int]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Branch:
    """A file with a deletion vector, or some of its row groups, as a query of its own.

    Attributes:
        file: Its place among the files.
        rows: The rows of the file that are read; None for all.
        runs: Deleted rows, from the first to the last.
        mask: All others that are deleted, see `mask_of`. Where `rows` is given, the row's number modulo `_MASK_ROWS`
            is its place: inside for rows of other branches, too, for which DuckDB may ask before it drops them.
    """

    file: int
    rows: range | None = None
    runs: Runs = field(default_factory=list)
    mask: bytes | None = None

    def conditions(self, row: str, mask: str) -> list[str]:
        """True of the rows that are read and not deleted, all of them. `row` is a row's number, `mask` the mask."""
        conditions = [f"{row} NOT BETWEEN {first} AND {last}" for first, last in self.runs]
        if self.rows is not None:
            conditions.append(f"{row} BETWEEN {self.rows[0]} AND {self.rows[-1]}")
            row = f"{row} & {_MASK_ROWS - 1}"
        return conditions if self.mask is None else [*conditions, f"get_bit({mask}, CAST({row} AS INTEGER)) = 0"]


def deleted_rows(vector: DeletionVector | None, num_rows: int) -> Rows:
    """The deleted rows of a file, ascending."""
    rows = np.zeros(0, dtype=np.uint64) if vector is None else vector.row_indexes(num_rows)
    return rows.astype(np.int64)


def _few_runs(rows: Rows) -> Runs | None:
    """Ascending rows as a few runs of neighbours, of each the first and the last; None if they are no few."""
    ends = np.flatnonzero(np.diff(rows) > 1)
    if len(ends) >= _MOST_RUNS:
        return None
    firsts, lasts = [0, *(ends + 1)], [*ends, len(rows) - 1]
    return [(int(rows[first]), int(rows[last])) for first, last in zip(firsts, lasts, strict=True)] if len(rows) else []


def row_parts(metadata: pq.FileMetaData) -> tuple[range, ...]:
    """The row groups of a file, neighbours together as long as they have no more rows than a mask should."""
    if metadata.num_rows <= _MASK_ROWS:
        return (range(metadata.num_rows),)
    parts = [range(0)]
    for group in range(metadata.num_row_groups):
        first, stop = parts[-1].start, parts[-1].stop + metadata.row_group(group).num_rows
        if stop - first > _MASK_ROWS and parts[-1]:
            first = parts[-1].stop
            parts.append(range(first, stop))
        else:
            parts[-1] = range(first, stop)
    return tuple(parts)


def branches_of(parts: Sequence[Sequence[range]], deleted: Sequence[Rows]) -> list[Branch] | None:
    """Files with a deletion vector as single queries; None where those were too many, or their masks too long.

    Args:
        parts: `row_parts` of each file.
        deleted: `deleted_rows` of each file.
    """
    if len(deleted) > _MOST_BRANCHES:
        return None
    branches: list[Branch] = []
    for file, (ranges, rows) in enumerate(zip(parts, deleted, strict=True)):
        runs = _few_runs(rows)
        if runs is not None:
            branches.append(Branch(file, runs=runs))
        elif len(branches) + len(ranges) > _MOST_BRANCHES or max(map(len, ranges)) > _MASK_ROWS:
            return None
        elif len(ranges) == 1:
            branches.append(Branch(file, mask=mask_of(rows, len(ranges[0]))))
        else:
            branches += [Branch(file, part, mask=_part_mask(rows, part)) for part in ranges]
    return branches if len(branches) <= _MOST_BRANCHES else None


def _part_mask(rows: Rows, part: range) -> bytes:
    inside = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.stop)]
    return mask_of(inside % _MASK_ROWS, _MASK_ROWS)


def mask_of(rows: Rows, num_rows: int) -> bytes:
    """One bit a row, the first one highest; set where the row is deleted."""
    flags = np.zeros(num_rows, dtype=np.bool_)
    flags[rows] = True
    return np.packbits(flags).tobytes() or b"\0"
