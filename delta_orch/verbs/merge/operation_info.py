"""Makes `operationParameters` and `operationMetrics` of a merge, under the names of Delta on Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import orjson

from delta_orch.log.files.effect import words_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.write.staging import Metrics
from delta_orch.verbs.merge.assignments import ResolvedClause
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.writing.row_changes import ChangeCounts


def merge_parameters(on: object, clauses: Sequence[Clause]) -> dict[str, object]:
    """Return `operationParameters`: the condition, and the condition and action of each clause, as JSON with the user's
    text."""

    def predicates_of(kind: Kind) -> str:
        of_kind = [clause for clause in clauses if clause.kind is kind]
        return orjson.dumps(
            [
                {"actionType": clause.action.value}
                if clause.condition is None
                else {"predicate": words_of(clause.condition), "actionType": clause.action.value}
                for clause in of_kind
            ]
        ).decode()

    return {
        "predicate": orjson.dumps([words_of(on)]).decode(),
        "matchedPredicates": predicates_of(Kind.MATCHED),
        "notMatchedPredicates": predicates_of(Kind.NOT_MATCHED),
        "notMatchedBySourcePredicates": predicates_of(Kind.NOT_MATCHED_BY_SOURCE),
    }


def merge_metrics(
    counts: ChangeCounts,
    clauses: Sequence[ResolvedClause],
    by_clause: Mapping[str | int, int],
    *,
    source_rows: int,
    files_before: int,
    files_after: int,
    since: float,
) -> Metrics:
    """Return `operationMetrics`. Metrics that cannot be counted are left out.

    Args:
        by_clause: The number of rows of each clause.
        files_before, files_after: The number of files of the table, and the number of opened files. Opened files may
            match the source or belong to `not_matched_by_source` clauses.
        since: The start of the merge (`time.monotonic`).
    """

    def rows_of(kind: Kind, action: Action) -> int:
        return sum(by_clause.get(c.number, 0) for c in clauses if c.kind is kind and c.action is action)

    updated_by_source = rows_of(Kind.NOT_MATCHED_BY_SOURCE, Action.UPDATE)
    deleted_by_source = rows_of(Kind.NOT_MATCHED_BY_SOURCE, Action.DELETE)
    deleted = counts.deleted or 0
    return {
        "numSourceRows": source_rows,
        "numTargetRowsInserted": counts.inserted,
        "numTargetRowsUpdated": counts.updated,
        "numTargetRowsMatchedUpdated": counts.updated - updated_by_source,
        "numTargetRowsNotMatchedBySourceUpdated": updated_by_source,
        "numTargetRowsDeleted": deleted,
        "numTargetRowsMatchedDeleted": deleted - deleted_by_source,
        "numTargetRowsNotMatchedBySourceDeleted": deleted_by_source,
        "numTargetRowsCopied": counts.copied,
        "numOutputRows": counts.inserted + counts.updated + counts.copied,
        "numTargetFilesBeforeSkipping": files_before,
        "numTargetFilesAfterSkipping": files_after,
        "numTargetFilesAdded": counts.added.num_rows,
        "numTargetFilesRemoved": counts.removed.num_rows,
        "numTargetBytesAdded": FileTable(counts.added).size_bytes,
        "numTargetBytesRemoved": FileTable(counts.removed).size_bytes,
        "numTargetChangeFilesAdded": counts.change_files,
        "numTargetDeletionVectorsAdded": counts.vectors_added,
        "numTargetDeletionVectorsUpdated": counts.vectors_updated,
        "numTargetDeletionVectorsRemoved": counts.vectors_removed,
        "scanTimeMs": counts.scan_ms,
        "rewriteTimeMs": counts.rewrite_ms,
        "executionTimeMs": int((time.monotonic() - since) * 1000),
    }
