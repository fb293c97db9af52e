"""The conflict rules: may a transaction still commit, now that another commit came first? Pure, no I/O.

The rules are those of Delta's `WriteSerializable` (default) and `Serializable` isolation: a transaction may be ordered
after the commit that won unless it should have read something of it, or both change the same thing. Under
`WriteSerializable` a blind append counts as if it had come later, so it conflicts with no reader. Commits that only
rearrange rows (compaction) change nothing that a reader sees. They rely only on the files they rearrange, and yield to
a commit that removed one. Under `SnapshotIsolation`, a level for single transactions, what was read is the snapshot,
and only changes of the same thing conflict.

Every pair of operations and its outcome is in `docs/transactions.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

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
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.write.commit_options import SERIALIZABLE, SNAPSHOT_ISOLATION
from delta_orch.log.write.staged_actions import ReadSet, StagedActions, keys_of, paths_of
from delta_orch.protocol.paths import canonical_paths
from delta_orch.table.configuration import TableConfiguration, concerns_writers


@dataclass(frozen=True, slots=True)
class Intent:
    """What a transaction has read and is about to change.

    Attributes:
        reads: Its read set.
        keys_read: The keys of the files of its snapshot that its read set touches. Called only where a commit that won
            has removed rows.
        removed_keys: `reconcile.file_keys` of the files it removes.
        added_again: Canonical paths of data files of the table that it adds once more (with another deletion vector).
        changes_data: False if it only rearranges rows.
        changes_metadata: Whether it replaces the table's metadata.
        begins_to_track_rows: Whether it enables row tracking, for which every file must have row ids.
        app_ids: Application ids of the transaction identifiers it records.
        domains: Domains whose metadata it sets.
        isolation_level: One of `ISOLATION_LEVELS`.
        settled_scopes: Predicates over partition columns; what happens inside them no longer concerns the transaction
            (another run has committed those partitions).
        table: The table as it is before the commit.
    """

    reads: ReadSet
    keys_read: Callable[[], pa.Array]
    removed_keys: pa.Array
    added_again: pa.Array
    changes_data: bool
    changes_metadata: bool
    begins_to_track_rows: bool
    app_ids: frozenset[str]
    domains: frozenset[str]
    isolation_level: str
    settled_scopes: Sequence[Expression]
    table: TableConfiguration


def ensure_no_conflict(
    intent: Intent, winner: Commit, before: TableConfiguration, settled: pa.Array | None = None
) -> None:
    """Check one commit that came first.

    Args:
        before: The table as that commit found it.
        settled: Canonical paths of files of which it deleted rows that are known not to concern the transaction.

    Raises:
        ConflictError: One of its kinds; `context["winning_version"]` names the commit. Nothing was written.
    """
    _ensure_same_table(intent, winner, before)
    _ensure_other_identifiers(intent, winner)
    if intent.begins_to_track_rows:
        _ensure_row_ids(winner)
    _ensure_files_untouched(intent, winner, _changes(winner, settled))


def is_blind_append(commit: Commit) -> bool:
    """Whether the commit says that it read nothing. One that says nothing counts as having read."""
    return commit.commit_info is not None and commit.commit_info.get("isBlindAppend") is True


def _ensure_same_table(intent: Intent, winner: Commit, before: TableConfiguration) -> None:
    # What was checked and written so far fits the protocol and the metadata of before.
    if winner.protocol is not None:
        raise _conflict(ProtocolChangedError, winner, "it changed the table's protocol")
    if winner.metadata is None:
        return
    if intent.changes_metadata or concerns_writers(before.metadata, winner.metadata):
        raise _conflict(MetadataChangedError, winner, "it changed the table's metadata (schema or properties)")


def _ensure_other_identifiers(intent: Intent, winner: Commit) -> None:
    shared = sorted({txn.app_id for txn in winner.txns} & intent.app_ids)
    if shared:
        cause = f"it recorded a transaction of the same application id, {shared[0]!r}"
        raise _conflict(ConcurrentTransactionError, winner, cause, app_ids=shared)
    domains = sorted({d.domain for d in winner.domain_metadata} & intent.domains)
    if domains:
        raise _conflict(
            ConcurrentDomainMetadataError, winner, f"it changed the metadata domain {domains[0]!r} too", domains=domains
        )


def _ensure_row_ids(winner: Commit) -> None:
    without = _first_path(winner.adds, FileTable(winner.adds).base_row_id.is_null())
    if without is not None:
        cause = f"it added the file {without} without row ids, and this one needs all rows to have them"
        raise _conflict(ConcurrentAppendError, winner, cause, path=without)


@dataclass(frozen=True, slots=True)
class _FileChanges:
    adds: pa.Table
    removes: pa.Table


def _changes(winner: Commit, settled: pa.Array | None) -> _FileChanges:
    if settled is None:
        return _FileChanges(winner.adds, winner.removes)
    is_settled = [
        pc.is_in(canonical_paths(FileTable(files).path), value_set=settled) for files in (winner.adds, winner.removes)
    ]
    return _FileChanges(
        *(f.filter(pc.invert(s)) for f, s in zip((winner.adds, winner.removes), is_settled, strict=True))
    )


def _ensure_files_untouched(intent: Intent, winner: Commit, changes: _FileChanges) -> None:
    if intent.reads.is_empty and not len(intent.removed_keys):
        return
    removes = _outside_settled(intent, changes.removes)
    if (path := _first_shared(removes, intent.removed_keys)) is not None:
        cause = f"it removed the file {path}, as this one would"
        raise _conflict(ConcurrentDeleteDeleteError, winner, cause + _yielding(intent), path=path)
    if len(intent.added_again):
        hit = pc.is_in(canonical_paths(FileTable(changes.adds).path), value_set=intent.added_again)
        if (path := _first_path(changes.adds, hit)) is not None:
            cause = f"it added the file {path} again, as this one would"
            raise _conflict(ConcurrentAppendError, winner, cause, path=path)
    if not intent.changes_data:
        for keys in intent.reads.files:
            if (path := _first_shared(removes, keys)) is not None:
                cause = f"it removed the file {path}, whose rows this one rearranges"
                raise _conflict(ConcurrentDeleteReadError, winner, cause + _yielding(intent), path=path)
        # A change of metadata alone has read rows to prove something about all of them, at any isolation level.
        _ensure_no_rows_to_read(intent, winner, changes)
    elif intent.isolation_level != SNAPSHOT_ISOLATION:
        _ensure_read_rows_unchanged(intent, winner, changes)


def _ensure_read_rows_unchanged(intent: Intent, winner: Commit, changes: _FileChanges) -> None:
    if not is_blind_append(winner) or intent.isolation_level == SERIALIZABLE or intent.changes_metadata:
        _ensure_no_rows_to_read(intent, winner, changes)
    if (path := _first_removed(intent, _data_changes(_outside_settled(intent, changes.removes)))) is not None:
        cause = f"it removed the file {path}, whose rows this one has read"
        raise _conflict(ConcurrentDeleteReadError, winner, cause, path=path)


def _ensure_no_rows_to_read(intent: Intent, winner: Commit, changes: _FileChanges) -> None:
    adds = _outside_settled(intent, _data_changes(changes.adds))
    if (path := _first_read(intent, adds)) is not None:
        cause = f"it added the file {path}, whose rows this one should have read"
        raise _conflict(ConcurrentAppendError, winner, cause, path=path)


def note_moved_rows(intent: Intent, winner: Commit) -> None:
    """After a commit without conflict: remember into which files it moved rows that were read, so that a later commit
    that removes those conflicts."""
    if intent.reads.is_empty or not intent.changes_data:
        return
    flags = FileTable(winner.adds).data_change
    moved = winner.adds.filter(pc.and_kleene(pc.invert(flags), flags.is_valid()))
    if not moved.num_rows:
        return
    if not _holds_any(winner.removes, intent.reads.files):
        moved = moved.filter(intent.reads.may_hold_read_rows(moved, intent.table))
    intent.reads.moved.append(keys_of(moved))


def _yielding(intent: Intent) -> str:
    return "" if intent.changes_data else "; a rewrite that changes no row yields to it"


def _holds_any(files: pa.Table, keys: Sequence[pa.Array]) -> bool:
    return any(_first_shared(files, some) is not None for some in keys)


def _first_shared(files: pa.Table, keys: pa.Array) -> str | None:
    """The path of a file that is among the keys, None if none is."""
    if not files.num_rows or not len(keys):
        return None
    return _first_path(files, pc.is_in(keys_of(files), value_set=keys))


def _first_removed(intent: Intent, removes: pa.Table) -> str | None:
    """The path of a removed file whose rows were read: as far as the snapshot tells that was read, or where others have
    moved them since. One that the snapshot did not have was looked at when it was added."""
    if not removes.num_rows or intent.reads.is_empty:
        return None
    for keys in intent.reads.moved:
        if (path := _first_shared(removes, keys)) is not None:
            return path
    if intent.reads.reads_rows:
        # Partition values are at hand; only what they leave over is looked up in the snapshot.
        hit = intent.reads.may_hold_read_rows(removes, intent.table)
        removes = removes if intent.reads.files else removes.filter(hit)
    return _first_shared(removes, intent.keys_read()) if removes.num_rows else None


def _first_read(intent: Intent, files: pa.Table) -> str | None:
    if not files.num_rows or not intent.reads.reads_rows:
        return None
    return _first_path(files, intent.reads.may_hold_read_rows(files, intent.table))


def _first_path(files: pa.Table, hit: pa.Array) -> str | None:
    paths = FileTable(files).path.filter(hit)
    return paths[0].as_py() if len(paths) else None


def _data_changes(files: pa.Table) -> pa.Table:
    flags = FileTable(files).data_change
    return files.filter(pc.or_kleene(flags, flags.is_null()))


def _outside_settled(intent: Intent, files: pa.Table) -> pa.Table:
    for scope in intent.settled_scopes:
        if files.num_rows:
            match = match_files(files, scope, intent.table.schema, intent.table.partition_columns)
            files = files.filter(pc.invert(match.all_match))
    return files


def _conflict(kind: type[ConflictError], winner: Commit, cause: str, **context: object) -> ConflictError:
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


def deleted_rows_conflict(winner: Commit, paths: Sequence[str], num_rows: int) -> ConflictError:
    """The error where both commits delete the same rows by marking them."""
    rows = "a row" if num_rows == 1 else f"{num_rows} rows"
    more = f" and {len(paths) - 1} others" if len(paths) > 1 else ""
    cause = f"it deleted {rows} of the file {paths[0]}{more}, as this one would"
    return _conflict(ConcurrentDeleteDeleteError, winner, cause, path=paths[0], paths=list(paths), num_rows=num_rows)


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
    emptied = pc.unique(touched.filter(is_ours))
    if pc.any(pc.is_in(touched.filter(pc.invert(is_ours)), value_set=emptied)).as_py():
        return None
    if any(_first_path(f, pc.is_in(canonical_paths(FileTable(f).path), value_set=paths_of(gone))) for f in staged.adds):
        # Rows that it only marks lie elsewhere in the new files.
        return None
    added = file_partition_keys(winner.adds, table.schema, table.partition_columns)
    moved = winner.adds.filter(pc.is_in(added, value_set=emptied))
    kept = [
        (files.filter(pc.invert(pc.is_in(keys_of(files), value_set=gone))) if data_change else files, data_change)
        for files, data_change in staged.removes
    ]
    return [*kept, (moved.select([name for name in ADD_SCHEMA.names if name != "stats"]), True)]


def _only_moves_rows(winner: Commit) -> bool:
    if not winner.removes.num_rows:
        return False
    flags = [FileTable(files).data_change for files in (winner.adds, winner.removes)]
    return not any(pc.any(pc.or_kleene(flag, flag.is_null())).as_py() for flag in flags)
