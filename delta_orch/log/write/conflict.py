"""Has a commit that came first changed rows that a transaction has read?

Partition values and statistics answer first, and cost nothing. Where they leave it open, rows decide: which ones a
deletion vector has gained is compared with those that the transaction knows it depends on, and a few new rows are
looked at through the transaction's own eyes (`ReadSet.look`). A commit that is not proven harmless is a conflict.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainMetadataError,
    ConcurrentTransactionError,
    ConflictError,
    DeltaError,
    MetadataChangedError,
    ProtocolChangedError,
)
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import disjunction
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.write.commit_options import SERIALIZABLE, SNAPSHOT_ISOLATION, VACUUM_START
from delta_orch.log.write.staged_actions import ReadSet, StagedActions, keys_of, paths_of
from delta_orch.protocol.arrow_building import all_booleans, int64_array, one_chunk
from delta_orch.protocol.paths import canonical_paths
from delta_orch.table.configuration import TableConfiguration, concerns_writers

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from delta_orch.storage.base import LogStore

_LOGGER = logging.getLogger(__name__)

MOST_FILES_LOOKED_AT = 64
MOST_BYTES_LOOKED_AT = 64 * 1024 * 1024
"""The files of a commit that came first are read for rows that matter up to this number and these bytes in all. Beyond
that running the operation again is not much dearer than finding out whether it must."""


def is_blind_append(commit: Commit) -> bool:
    """Whether the commit records that it read nothing. A commit without this record counts as having read."""
    return commit.commit_info is not None and commit.commit_info.get("isBlindAppend") is True


def ensure_read_rows_unchanged(intent: Intent, winner: Commit) -> None:
    """Check that a commit added no rows that the transaction should have read, and removed none that it has.

    Raises:
        ConcurrentAppendError, ConcurrentDeleteReadError: It did.
    """
    changes = _changes(intent, winner)
    whole, marked = _split(changes)
    if not is_blind_append(winner) or intent.isolation_level == SERIALIZABLE or intent.changes_metadata:
        _ensure_none_added(intent, winner, whole.adds)
    if marked.adds.num_rows:
        _ensure_marked_rows_unread(intent, winner, marked)
    _ensure_none_removed(intent, winner, whole.removes)


def ensure_no_rows_to_read(intent: Intent, winner: Commit) -> None:
    """Check that a commit added no rows that the transaction should have read. Raises ConcurrentAppendError."""
    _ensure_none_added(intent, winner, _changes(intent, winner).adds)


def note_moved_rows(intent: Intent, winner: Commit) -> None:
    """After a commit without conflict, remember the files into which it moved rows that were read. A later commit that
    removes those files conflicts."""
    if intent.reads.is_empty or not intent.changes_data:
        return
    flags = FileTable(winner.adds).data_change
    moved = pc.filter(winner.adds, pc.and_kleene(pc.invert(flags), pc.is_valid(flags)))
    if not moved.num_rows:
        return
    if not any(first_shared(winner.removes, keys) for keys in intent.reads.files):
        moved = pc.filter(moved, intent.reads.may_hold_read_rows(moved, intent.table))
    intent.reads.moved.append(keys_of(moved))


def _changes(intent: Intent, winner: Commit) -> FileChanges:
    adds, removes = data_changes(winner.adds), data_changes(winner.removes)
    outside = outside_settled(intent, adds)
    if intent.reads.across_scopes and intent.settled_scopes:
        again = has_path(adds, canonical_paths(FileTable(removes).path))
        outside = pa.concat_tables([pc.filter(adds, pc.invert(again)), outside_settled(intent, pc.filter(adds, again))])
    return FileChanges(outside, outside_settled(intent, removes))


def _split(changes: FileChanges) -> tuple[FileChanges, FileChanges]:
    """Files that came or went as a whole, and those that got another deletion vector: one row a file, in one order."""
    removed = one_chunk(canonical_paths(FileTable(changes.removes).path))
    partners = pc.index_in(removed, value_set=one_chunk(canonical_paths(FileTable(changes.adds).path)))
    stays = pc.is_valid(partners)
    if not stays.true_count:
        return changes, FileChanges(changes.adds.slice(0, 0), changes.removes.slice(0, 0))
    marked = FileChanges(pc.take(changes.adds, pc.filter(partners, stays)), pc.filter(changes.removes, stays))
    return changes.without(one_chunk(canonical_paths(FileTable(marked.adds).path))), marked


# Rows that came


def _ensure_none_added(intent: Intent, winner: Commit, adds: pa.Table) -> None:
    if not adds.num_rows or not intent.reads.reads_rows:
        return
    adds = pc.filter(adds, intent.reads.may_hold_read_rows(adds, intent.table))
    if (path := _first_read(intent, adds)) is not None:
        cause = f"It added the file {path}, whose rows this one should have read"
        raise conflict_error(ConcurrentAppendError, winner, cause, path=path)


def _first_read(intent: Intent, files: pa.Table) -> str | None:
    """The path of a file with a row that was read, or would have been read, among candidate files."""
    reads = intent.reads
    if not files.num_rows:
        return None
    certain = reads.lie_in_read_partitions(files, intent.table)
    if certain.true_count or reads.look is None:
        return first_path(files, certain if certain.true_count else all_booleans(True, files.num_rows))
    bytes_in_all = FileTable(files).size_bytes
    if files.num_rows > MOST_FILES_LOOKED_AT or bytes_in_all is None or bytes_in_all > MOST_BYTES_LOOKED_AT:
        return first_path(files, all_booleans(True, files.num_rows))
    try:
        return reads.look(files, disjunction(*reads.predicates))
    except DeltaError as e:
        # Nothing is proven, so it stands as statistics have it.
        _LOGGER.warning("The rows of another commit could not be looked at, which counts as a conflict: %s", e)
        return first_path(files, all_booleans(True, files.num_rows))


# Rows that went


def _ensure_none_removed(intent: Intent, winner: Commit, removes: pa.Table) -> None:
    reads = intent.reads
    if not removes.num_rows or reads.is_empty:
        return
    if reads.looked_at:
        removes = pc.filter(removes, pc.invert(has_path(removes, pa.concat_arrays(reads.looked_at))))
    if (path := _first_removed(intent, removes)) is not None:
        cause = f"It removed the file {path}, whose rows this one has read"
        raise conflict_error(ConcurrentDeleteReadError, winner, cause, path=path)


def _first_removed(intent: Intent, removes: pa.Table) -> str | None:
    """The path of a removed file whose rows were read, from the snapshot or from later moves of its rows. A file
    outside the snapshot was checked when it was added."""
    reads = intent.reads
    if not removes.num_rows:
        return None
    # By path: in between others may have given the file another deletion vector, without conflict.
    for keys in reads.moved:
        if (path := first_path(removes, has_path(removes, paths_of(keys)))) is not None:
            return path
    if reads.reads_rows:
        # Partition values are at hand; only what they leave over is looked up in the snapshot.
        hit = reads.may_hold_read_rows(removes, intent.table)
        removes = removes if reads.files else pc.filter(removes, hit)
    return first_path(removes, has_path(removes, paths_of(intent.keys_read()))) if removes.num_rows else None


# Rows that were marked


def _ensure_marked_rows_unread(intent: Intent, winner: Commit, marked: FileChanges) -> None:
    """Check the rows that a commit deleted by marking them, or brought back."""
    reads = intent.reads
    paths = one_chunk(canonical_paths(FileTable(marked.adds).path))
    is_named = _is_in(paths, [paths_of(keys) for keys in (*reads.files, *reads.moved)])
    is_known = _is_in(paths, reads.looked_at)
    may_match = reads.may_hold_read_rows(marked.adds, intent.table)
    concerned = pc.or_(pc.or_(is_known, is_named), may_match)
    if not concerned.true_count:
        return
    from delta_orch.log.write.deletion_vector_writer import bitmaps_of

    paths, row_counts, named_too, matching = (
        pc.filter(array, concerned).to_pylist() for array in (paths, is_known, is_named, may_match)
    )
    adds = pc.filter(marked.adds, concerned).combine_chunks()
    before, after = (
        bitmaps_of(intent.store, files) for files in (pc.filter(marked.removes, concerned).combine_chunks(), adds)
    )
    # Which rows a vector leaves can be looked at where the statistics tell how many the file has.
    counted = pc.is_valid(record_counts(adds)).to_pylist()
    open_questions: list[int] = []
    for index, path in enumerate(paths):
        gone, back = after[index] - before[index], before[index] - after[index]
        if back and (matching[index] or named_too[index]):
            cause = f"It brought back {_count(back)} of the file {path}, which this one should have read"
            raise conflict_error(ConcurrentAppendError, winner, cause, path=path, num_rows=len(back))
        if row_counts[index]:
            continue  # Only the rows that the transaction deletes matter: `marks_on_top` compares them.
        if matching[index] and not named_too[index] and counted[index]:
            open_questions.append(index)
        elif gone:
            raise _deleted(winner, path, gone)
    open_questions = [index for index in open_questions if after[index] != before[index]]
    if open_questions:
        files = _only_rows(pc.take(adds, int64_array(open_questions)), [after[i] - before[i] for i in open_questions])
        if (path := _first_read(intent, files)) is not None:
            cause = f"It deleted rows of the file {path} that this one has read"
            raise conflict_error(ConcurrentDeleteReadError, winner, cause, path=path)


def _is_in(paths: pa.Array, some: Sequence[pa.Array]) -> pa.Array:
    return pc.is_in(paths, value_set=pa.concat_arrays(some) if some else pa.nulls(0, pa.string()))


def _deleted(winner: Commit, path: str, rows: BitMap64) -> DeltaError:
    cause = f"It deleted {_count(rows)} of the file {path} that this one has read"
    return conflict_error(ConcurrentDeleteReadError, winner, cause, path=path, num_rows=len(rows))


def _count(rows: BitMap64) -> str:
    return "a row" if len(rows) == 1 else f"{len(rows)} rows"


def _only_rows(files: pa.Table, rows: list[BitMap64]) -> pa.Table:
    """The files as if they had no rows but these."""
    from pyroaring import BitMap64

    from delta_orch.log.write.deletion_vector_writer import with_deletion_vectors
    from delta_orch.protocol.deletion_vector import DeletionVector

    counts = record_counts(files).to_pylist()
    others = [BitMap64(range(count)) - rows_of_file for count, rows_of_file in zip(counts, rows, strict=True)]
    return with_deletion_vectors(files, [DeletionVector(bitmap).inline_descriptor() for bitmap in others])


# The conflict rules: may a transaction still commit, now that another commit came first?
#
# The rules are those of Delta's `WriteSerializable` (default) and `Serializable` isolation: a transaction may be
# ordered after the commit that won unless it should have read something of it, or both change the same thing. Under
# `WriteSerializable` a blind append counts as if it had come later, so it conflicts with no reader. Commits that only
# rearrange rows (compaction) change nothing that a reader sees. They rely only on the files they rearrange, and yield
# to a commit that removed one. Under `SnapshotIsolation`, a level for single transactions, what was read is the
# snapshot, and only changes of the same thing conflict.
#
# What was read is compared by what follows below, which looks at single rows where that can tell more than statistics.
# Every pair of operations and its outcome is in `docs/conflicts.md`.


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
    # The checks and files so far are valid only for the previous protocol and metadata.
    if winner.protocol is not None:
        raise conflict_error(ProtocolChangedError, winner, "It changed the table's protocol")
    if winner.metadata is None:
        return
    if intent.changes_metadata or concerns_writers(before.metadata, winner.metadata):
        raise conflict_error(MetadataChangedError, winner, "It changed the table's metadata (schema or properties)")


def _ensure_other_identifiers(intent: Intent, winner: Commit) -> None:
    ids = intent.app_ids
    shared = sorted({txn.app_id for txn in winner.txns if ids.get(txn.app_id, txn.version) != txn.version})
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
    keeps would be deleted as well.

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
    return [*kept, (moved.select(ADD_SCHEMA.names), True)]


def _only_moves_rows(winner: Commit) -> bool:
    if not winner.removes.num_rows:
        return False
    flags = [FileTable(files).data_change for files in (winner.adds, winner.removes)]
    return not any(pc.any(pc.or_kleene(flag, pc.is_null(flag))).as_py() for flag in flags)


# The reads and changes of a transaction, and the errors of a conflict.


class Intent(NamedTuple):
    """The reads and changes of a transaction.

    Attributes:
        reads: Its read set.
        keys_read: The keys of the files of its snapshot that its read set touches. Called only where a commit that won
            has removed rows.
        removed_keys: `reconcile.file_keys` of the files it removes.
        added_again: Canonical paths of data files of the table that it adds once more (with another deletion vector).
        changes_data: False if it only rearranges rows.
        changes_metadata: Whether it replaces the table's metadata.
        begins_to_track_rows: Whether it enables row tracking, for which every file must have row ids.
        app_ids: Application id of each transaction identifier that it records → the version that another commit may
            record as well (`TxnId.ordered`), None where no other may.
        domains: Domains whose metadata it sets.
        isolation_level: One of `ISOLATION_LEVELS`.
        settled_scopes: Predicates over partition columns; what happens inside them no longer concerns the transaction
            (another run has committed those partitions).
        table: The table as it is before the commit.
        store: Where deletion vectors are read.
    """

    reads: ReadSet
    keys_read: Callable[[], pa.Array]
    removed_keys: pa.Array
    added_again: pa.Array
    changes_data: bool
    changes_metadata: bool
    begins_to_track_rows: bool
    app_ids: Mapping[str, int | None]
    domains: frozenset[str]
    isolation_level: str
    settled_scopes: Sequence[Expression]
    table: TableConfiguration
    store: LogStore


class FileChanges(NamedTuple):
    """Files that a commit adds and removes."""

    adds: pa.Table
    removes: pa.Table

    def without(self, paths: pa.Array) -> FileChanges:
        """The files with none of these canonical paths."""
        return FileChanges(
            *(pc.filter(files, pc.invert(has_path(files, paths))) for files in (self.adds, self.removes))
        )


def has_path(files: pa.Table, paths: pa.Array) -> pa.Array:
    """For each file whether its canonical path is among some."""
    return pc.is_in(canonical_paths(FileTable(files).path), value_set=paths)


def first_shared(files: pa.Table, keys: pa.Array) -> str | None:
    """The path of a file that is among the keys, None if none is."""
    if not files.num_rows or not len(keys):
        return None
    return first_path(files, pc.is_in(keys_of(files), value_set=keys))


def first_path(files: pa.Table, hit: pa.Array) -> str | None:
    """The path of the first file that is hit, None if none is."""
    paths = pc.filter(FileTable(files).path, hit)
    return paths[0].as_py() if len(paths) else None


def data_changes(files: pa.Table) -> pa.Table:
    """The files that change what a reader sees."""
    flags = FileTable(files).data_change
    return pc.filter(files, pc.or_kleene(flags, pc.is_null(flags)))


def outside_settled(intent: Intent, files: pa.Table) -> pa.Table:
    """The files that still concern the transaction."""
    for scope in intent.settled_scopes:
        if files.num_rows:
            match = match_files(files, scope, intent.table.schema, intent.table.partition_columns)
            files = pc.filter(files, pc.invert(match.all_match))
    return files


def conflict_error(kind: type[ConflictError], winner: Commit, cause: str, **context: object) -> ConflictError:
    """The error that a commit stands in the way."""
    operation = (winner.commit_info or {}).get("operation")
    when = datetime.fromtimestamp(winner.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return kind(
        f"The commit conflicts with version {winner.version}, which another writer committed first "
        f"({operation or 'unknown operation'}, {when})",
        cause=cause,
        remedy="Run the operation again: it will start from the new version",
        winning_version=winner.version,
        winning_operation=operation,
        winning_timestamp_ms=winner.timestamp_ms,
        **context,
    )
