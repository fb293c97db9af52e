"""How a relation says which rows change, and how what came of it is told: the words `row_changes` speaks."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

DELETE, UPDATE, INSERT = "delete", "update", "insert"
"""What becomes of a row: values of `ADDRESS.kind`."""


@dataclass(frozen=True, slots=True)
class RowAddress:
    """The names of the columns that say which row changes, and how. No table that changes may have a column of one."""

    file_number: str = "_delta_orch_file_number"
    row_position: str = "_delta_orch_row_position"
    row_id: str = "_delta_orch_row_id"
    row_commit_version: str = "_delta_orch_row_commit_version"
    kind: str = "_delta_orch_kind"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.file_number, self.row_position, self.row_id, self.row_commit_version, self.kind)


ADDRESS = RowAddress()


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """What changing rows came to.

    Attributes:
        deleted, updated, inserted: Rows. `deleted` counts those of whole files too; None where one of these does not
            say how many rows it has.
        copied: Rows that were written again without being changed.
        added: New data files, columns of `ADD_SCHEMA`. Files that return with another deletion vector are none.
        removed: Data files that left, columns of `ADD_SCHEMA` as far as they are known, likewise.
        vectors_added, vectors_updated, vectors_removed: Deletion vectors of files that had none, in the place of
            others, and of files that left.
        change_files: Files of change data.
        scan_ms, rewrite_ms: How long it took to find the rows and to write.
    """

    deleted: int | None
    updated: int
    inserted: int
    copied: int
    added: pa.Table
    removed: pa.Table
    vectors_added: int = 0
    vectors_updated: int = 0
    vectors_removed: int = 0
    change_files: int = 0
    scan_ms: int = 0
    rewrite_ms: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether no row is touched. Nothing was staged then."""
        return not (self.deleted or self.updated or self.inserted or self.removed.num_rows)
