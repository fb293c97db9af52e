"""The columns of row tracking of one data file (PROTOCOL, "Reader Requirements for Row Tracking")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.base import RowTracking
from delta_orch.errors import ProtocolViolationError

_MARK = "\0tracked "


@dataclass(frozen=True, slots=True)
class TrackedColumns:
    """How to make the columns of row tracking for the rows of one file.

    Attributes:
        tracking: Where the columns come from.
        names: Those that are wanted, by their names in the schema.
        path: Of the file, for errors.
        base_row_id: The id of its first row; None where the log names none.
        default_row_commit_version: The version its rows are from; None where the log names none.
    """

    tracking: RowTracking
    names: tuple[str, ...]
    path: str
    base_row_id: int | None
    default_row_commit_version: int | None

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
        default = self._default(name, positions)
        stored = self._materialized(name)
        column = rows.column(stored).cast(pa.int64()) if stored in rows.column_names else None
        if column is not None and (column.null_count == 0 or default is not None):
            return column if column.null_count == 0 else pc.coalesce(column, default)
        if default is None and rows.num_rows:
            raise ProtocolViolationError(
                f"The rows of {self.path} have no {name}",
                cause="Row tracking is enabled, but the log lacks "
                + ("baseRowId" if name == self.tracking.row_id else "defaultRowCommitVersion")
                + " for the file",
                remedy="Read without row_tracking",
                path=self.path,
            )
        return pa.nulls(0, pa.int64()) if default is None else default

    def _default(self, name: str, positions: npt.NDArray[np.int64]) -> pa.Array | None:
        if name == self.tracking.row_id:
            return None if self.base_row_id is None else pa.array(positions + self.base_row_id)
        version = self.default_row_commit_version
        return None if version is None else pa.array(np.full(len(positions), version, dtype=np.int64))

    def _materialized(self, name: str) -> str | None:
        tracking = self.tracking
        is_row_id = name == tracking.row_id
        return tracking.materialized_row_id if is_row_id else tracking.materialized_row_commit_version


def marked(name: str) -> str:
    """The name under which a tracked column travels beside the file's own columns."""
    return _MARK + name
