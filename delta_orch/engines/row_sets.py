"""The rows of files that a relation addresses, as one bitmap for each file. Positions never become rows of their
own."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import longs_to_numpy

if TYPE_CHECKING:
    from pyroaring import BitMap64

RowKey = tuple[str | int, int | None]
"""The kind of change (a word, or the number of a clause) and the number of the file; None for rows without a file."""

Longs = npt.NDArray[np.int64]


def _empty() -> BitMap64:
    from pyroaring import BitMap64

    return BitMap64()


@dataclass(slots=True)
class RowSet:
    """Rows of one file.

    Attributes:
        positions: Where they stand in the file, each once.
        num_rows: How many came; more than there are positions where a row came twice.
    """

    positions: BitMap64 = field(default_factory=_empty)
    num_rows: int = 0

    def add(self, positions: Longs) -> None:
        """Add rows; a position may be added twice."""
        from pyroaring import BitMap64

        self.num_rows += len(positions)
        first, last = int(positions[0]), int(positions[-1])
        if last - first == len(positions) - 1 and bool((np.diff(positions) == 1).all()):
            self.positions |= BitMap64(range(first, last + 1))
        else:
            self.positions |= BitMap64(array("Q", positions.tobytes()))

    def unite(self, rows: RowSet) -> None:
        """Take the rows of another set of the same file."""
        self.positions |= rows.positions
        self.num_rows += rows.num_rows


def gather_row_sets(
    batches: Iterable[pa.RecordBatch], kind: str, file_number: str, row_position: str
) -> dict[RowKey, RowSet]:
    """The rows of a stream by what happens to them and by file; see `Engine.row_sets`. Memory holds bitmaps."""
    row_sets: dict[RowKey, RowSet] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        kinds = pc.dictionary_encode(batch.column(kind))
        files, positions = batch.column(file_number), batch.column(row_position)
        codes, numbers = _longs(kinds.indices, -1), _longs(files, -1)
        # Scans give the rows of a file together, joins may mix them: each run costs a step.
        together = np.lexsort((numbers, codes))
        codes, numbers = codes[together], numbers[together]
        rows = _longs(positions, -1)[together]
        for start, stop in _runs(codes, numbers):
            number = int(numbers[start])
            key = (kinds.dictionary[int(codes[start])].as_py(), None if number < 0 else number)
            row_set = row_sets.setdefault(key, RowSet())
            if number < 0:
                row_set.num_rows += stop - start
            else:
                row_set.add(rows[start:stop])
    return row_sets


def _longs(values: pa.Array, null: int) -> Longs:
    numbers = pc.cast(values, pa.int64())
    return longs_to_numpy(pc.fill_null(numbers, null) if values.null_count else numbers)


def _runs(codes: Longs, numbers: Longs) -> Iterable[tuple[int, int]]:
    """Neighbours of one kind and one file."""
    ends = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0)) + 1
    bounds = [0, *ends.tolist(), len(codes)]
    return pairwise(bounds)
