"""The conflict rules: may a transaction still commit, now that another commit came first?

The rules are those of Delta's `WriteSerializable` (default) and `Serializable` isolation: a transaction may be ordered
after the commit that won unless it should have read something of it, or both change the same thing. Under
`WriteSerializable` a blind append counts as if it had come later, so it conflicts with no reader. Commits that only
rearrange rows (compaction) change nothing that a reader sees. They rely only on the files they rearrange, and yield to
a commit that removed one. Under `SnapshotIsolation`, a level for single transactions, what was read is the snapshot,
and only changes of the same thing conflict.

What was read is compared by `read_conflicts`, which looks at single rows where that can tell more than statistics.
Every pair of operations and its outcome is in `docs/transactions.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainMetadataError,
    ConcurrentTransactionError,
    ConflictError,
    MetadataChangedError,
    ProtocolChangedError,
)
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.write.commit_options import SNAPSHOT_ISOLATION, VACUUM_START
from delta_orch.log.write.intent import (
    FileChanges,
    Intent,
    conflict_error,
    first_path,
    first_shared,
    has_path,
    outside_settled,
)
from delta_orch.log.write.read_conflicts import ensure_no_rows_to_read, ensure_read_rows_unchanged
from delta_orch.log.write.staged_actions import StagedActions, keys_of, paths_of
from delta_orch.table.configuration import TableConfiguration, concerns_writers


def ensure_no_conflict(
    intent: Intent, winner: Commit, before: TableConfiguration, united: pa.Array | None = None
) -> None:
    """Check one commit that came first.

    Args:
        before: The table as that commit found it.
        united: Canonical paths of files in which it has deleted rows and the transaction deletes others: the vectors
            that the transaction adds mark both.

    Raises:
        ConflictError: One of its kinds; `context["winning_version"]` names the commit. Nothing was written.
        ProtocolViolationError, MissingFileError, CorruptDeletionVectorError, StorageError: The commit is malformed, or
            one of its deletion vectors cannot be read. Nothing was written.
    """
    _ensure_same_table(intent, winner, before)
    _ensure_other_identifiers(intent, winner)
    if intent.begins_to_track_rows:
        _ensure_row_ids(winner)
    if intent.reads.unnamed_files and (winner.commit_info or {}).get("operation") == VACUUM_START:
        cause = "a vacuum began, which may delete files that this commit adds"
        raise conflict_error(ConcurrentDeleteReadError, winner, cause)
    if intent.reads.is_empty and not len(intent.removed_keys):
        return
    changes = FileChanges(winner.adds, winner.removes)
    _ensure_files_untouched(intent, winner, changes if united is None else changes.without(united))
    if not intent.changes_data:
        # A change of metadata alone has read rows to prove something about all of them, at any isolation level.
        ensure_no_rows_to_read(intent, winner)
    elif intent.isolation_level != SNAPSHOT_ISOLATION:
        ensure_read_rows_unchanged(intent, winner)


def _ensure_same_table(intent: Intent, winner: Commit, before: TableConfiguration) -> None:
    # What was checked and written so far fits the protocol and the metadata of before.
    if winner.protocol is not None:
        raise conflict_error(ProtocolChangedError, winner, "It changed the table's protocol")
    if winner.metadata is None:
        return
    if intent.changes_metadata or concerns_writers(before.metadata, winner.metadata):
        raise conflict_error(MetadataChangedError, winner, "It changed the table's metadata (schema or properties)")


def _ensure_other_identifiers(intent: Intent, winner: Commit) -> None:
    shared = sorted({txn.app_id for txn in winner.txns} & intent.app_ids)
    if shared:
        cause = f"It recorded a transaction of the same application id, {shared[0]!r}"
        raise conflict_error(ConcurrentTransactionError, winner, cause, app_ids=shared)
    domains = sorted({d.domain for d in winner.domain_metadata} & intent.domains)
    if domains:
        raise conflict_error(
            ConcurrentDomainMetadataError, winner, f"It changed the metadata domain {domains[0]!r} too", domains=domains
        )


def _ensure_row_ids(winner: Commit) -> None:
    without = first_path(winner.adds, pc.is_null(FileTable(winner.adds).base_row_id))
    if without is not None:
        cause = f"It added the file {without} without row ids, and this one needs all rows to have them"
        raise conflict_error(ConcurrentAppendError, winner, cause, path=without)


def _ensure_files_untouched(intent: Intent, winner: Commit, changes: FileChanges) -> None:
    removes = outside_settled(intent, changes.removes)
    if (path := first_shared(removes, intent.removed_keys)) is not None:
        cause = f"It removed the file {path}, as this one would"
        if path in FileTable(changes.adds).path.to_pylist():
            cause = f"It deleted rows of the file {path}, which this one would replace"
        raise conflict_error(ConcurrentDeleteDeleteError, winner, cause + _yielding(intent), path=path)
    if len(intent.added_again):
        hit = has_path(changes.adds, intent.added_again)
        if (path := first_path(changes.adds, hit)) is not None:
            cause = f"It added the file {path} again, as this one would"
            raise conflict_error(ConcurrentAppendError, winner, cause, path=path)
    if not intent.changes_data:
        for keys in intent.reads.files:
            if (path := first_shared(removes, keys)) is not None:
                cause = f"It removed the file {path}, whose rows this one rearranges"
                raise conflict_error(ConcurrentDeleteReadError, winner, cause + _yielding(intent), path=path)


def _yielding(intent: Intent) -> str:
    return "" if intent.changes_data else "; a rewrite that changes no row yields to it"


def deleted_rows_conflict(winner: Commit, paths: Sequence[str], num_rows: int) -> ConflictError:
    """The error where both commits delete the same rows by marking them."""
    rows = "a row" if num_rows == 1 else f"{num_rows} rows"
    more = f" and {len(paths) - 1} others" if len(paths) > 1 else ""
    cause = f"It deleted {rows} of the file {paths[0]}{more}, as this one would"
    return conflict_error(
        ConcurrentDeleteDeleteError, winner, cause, path=paths[0], paths=list(paths), num_rows=num_rows
    )


def removes_after_compaction(
    staged: StagedActions, winner: Commit, table: TableConfiguration
) -> list[tuple[pa.Table, bool]] | None:
    """The removes as they must be behind a commit that only moved rows.

    Compaction yields to changes of data, even where it came first: the rows that a transaction takes out have only
    moved. It follows them where it takes out everything that moved, partition by partition. Otherwise rows that it
    keeps would go, too.

    Returns: None where the removes stay as they are, or where the transaction cannot follow (then it conflicts).
    """
    changing = [files for files, data_change in staged.removes if data_change]
    if not changing or not _only_moves_rows(winner):
        return None
    ours = pa.concat_arrays([keys_of(files) for files in changing])
    gone = keys_of(winner.removes)
    is_ours = pc.is_in(gone, value_set=ours)
    if not is_ours.true_count or FileTable(winner.removes).partition_values.null_count:
        return None
    touched = file_partition_keys(winner.removes, table.schema, table.partition_columns)
    emptied = pc.unique(pc.filter(touched, is_ours))
    if pc.any(pc.is_in(pc.filter(touched, pc.invert(is_ours)), value_set=emptied)).as_py():
        return None
    if any(first_path(f, has_path(f, paths_of(gone))) for f in staged.adds):
        # Rows that it only marks lie elsewhere in the new files.
        return None
    added = file_partition_keys(winner.adds, table.schema, table.partition_columns)
    moved = pc.filter(winner.adds, pc.is_in(added, value_set=emptied))
    kept = [
        (pc.filter(files, pc.invert(pc.is_in(keys_of(files), value_set=gone))) if data_change else files, data_change)
        for files, data_change in staged.removes
    ]
    return [*kept, (moved.select([name for name in ADD_SCHEMA.names if name != "stats"]), True)]


def _only_moves_rows(winner: Commit) -> bool:
    if not winner.removes.num_rows:
        return False
    flags = [FileTable(files).data_change for files in (winner.adds, winner.removes)]
    return not any(pc.any(pc.or_kleene(flag, pc.is_null(flag))).as_py() for flag in flags)
