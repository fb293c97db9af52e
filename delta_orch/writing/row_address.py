"""The columns by which a relation addresses changed rows, and the result of a change. `row_changes` uses both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.effect import words_of
from delta_orch.log.files.file_columns import FileTable

if TYPE_CHECKING:
    from delta_orch.log.write.staging import Metrics

DELETE, UPDATE, INSERT = "delete", "update", "insert"
"""The kinds of change of a row, which are the values of `ADDRESS.kind`."""


@dataclass(frozen=True, slots=True)
class RowAddress:
    """The names of the columns with the address and the kind of change of a row. The changed table must not have
    columns of these names."""

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
    """The result of a change of rows.

    Attributes:
        deleted, updated, inserted: The number of rows. `deleted` includes rows of whole files. It is None if the row
            count of such a file is unknown.
        copied: The number of rows that were copied without a change.
        added: New data files, as `ADD_SCHEMA`. Files with a new deletion vector do not count.
        removed: Removed data files, with the known columns of `ADD_SCHEMA`. Files with a new deletion vector do not
            count.
        vectors_added, vectors_updated, vectors_removed: The number of deletion vectors that are new, that replace
            another one, and that were removed with their file.
        change_files: The number of change data files.
        scan_ms, rewrite_ms: The time to find the rows and the time to write, in milliseconds.
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
        """Whether no row changes. In that case nothing was staged."""
        return not (self.deleted or self.updated or self.inserted or self.removed.num_rows)


# The operation parameters of DELETE and UPDATE in the log.


def predicate_parameters(where: str | Expression | None) -> dict[str, str]:
    """Return `operationParameters`: the predicate as a list in JSON, in the user's own text if there is one."""
    words = [] if where is None else [words_of(where)]
    return {"predicate": orjson.dumps(words).decode()}


def change_metrics(counts: ChangeCounts, since: float, *, is_update: bool) -> Metrics:
    """Return `operationMetrics` under the names of the reference implementation. Metrics that cannot be counted are
    left out.

    Args:
        since: The start of the statement (`time.monotonic`).
    """
    metrics = {
        "numRemovedFiles": counts.removed.num_rows,
        "numRemovedBytes": FileTable(counts.removed).size_bytes,
        "numAddedFiles": counts.added.num_rows,
        "numAddedBytes": FileTable(counts.added).size_bytes,
        "numCopiedRows": counts.copied,
        "numDeletionVectorsAdded": counts.vectors_added,
        "numDeletionVectorsUpdated": counts.vectors_updated,
        "numDeletionVectorsRemoved": counts.vectors_removed,
        "numAddedChangeFiles": counts.change_files,
        "scanTimeMs": counts.scan_ms,
        "rewriteTimeMs": counts.rewrite_ms,
        "executionTimeMs": int((time.monotonic() - since) * 1000),
    }
    if is_update:
        metrics["numUpdatedRows"] = counts.updated
    elif counts.deleted is not None:
        metrics["numDeletedRows"] = counts.deleted
    return metrics
