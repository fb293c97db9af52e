"""What DELETE and UPDATE say of themselves in the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.log.files.file_columns import FileTable
from delta_orch.writing.row_address import ChangeCounts

if TYPE_CHECKING:
    from delta_orch.log.write.staging import Metrics


_LONGEST = 65_536
"""Characters of a predicate in the log. A commit is read whole, and what is told is searched for secrets."""


def words_of(condition: object) -> str:
    """A predicate as the log tells of it: in the user's own words, where these are not too many. It is not cut, as
    half of a secret could not be told from other text."""
    words = to_spark_sql(condition) if isinstance(condition, Expression) else str(condition)
    return words if len(words) <= _LONGEST else f"({len(words)} characters)"


def predicate_parameters(where: str | Expression | None) -> dict[str, str]:
    """`operationParameters`: the predicate as a list in JSON, in the user's own words where there are any."""
    words = [] if where is None else [words_of(where)]
    return {"predicate": orjson.dumps(words).decode()}


def change_metrics(counts: ChangeCounts, since: float, *, is_update: bool) -> Metrics:
    """`operationMetrics` under the names of the reference implementation; rows that cannot be counted are left out.

    Args:
        since: When the statement began (`time.monotonic`).
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
