"""Which rows of a data file are still in the table, while it is read in pieces (PROTOCOL, "Deletion Vectors")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.protocol.deletion_vector import DeletionVector


@dataclass(frozen=True, slots=True)
class LiveRows:
    """One flag a row of the file, and where its row groups begin."""

    flags: npt.NDArray[np.bool_]
    group_offsets: tuple[int, ...]

    @classmethod
    def of_file(cls, metadata: pq.FileMetaData, vector: DeletionVector) -> LiveRows:
        offsets = [0]
        for group in range(metadata.num_row_groups):
            offsets.append(offsets[-1] + metadata.row_group(group).num_rows)
        flags = np.ones(offsets[-1], dtype=np.bool_)
        flags[vector.row_indexes(offsets[-1])] = False
        return cls(flags, tuple(offsets))

    def of_groups(self, groups: Sequence[int]) -> pa.BooleanArray:
        """The flags of the rows of these row groups, in their order."""
        return pa.array(self._of_groups(groups))

    def filter_batches(self, batches: Iterable[pa.RecordBatch], groups: Sequence[int]) -> Iterator[pa.Table]:
        """The live rows of batches that together hold the row groups, in order."""
        flags, start = self._of_groups(groups), 0
        for batch in batches:
            stop = start + batch.num_rows
            yield pa.Table.from_batches([batch]).filter(pa.array(flags[start:stop]))
            start = stop

    def _of_groups(self, groups: Sequence[int]) -> npt.NDArray[np.bool_]:
        parts = [self.flags[self.group_offsets[g] : self.group_offsets[g + 1]] for g in groups]
        return np.concatenate(parts) if parts else self.flags[:0]
