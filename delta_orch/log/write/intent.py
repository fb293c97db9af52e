"""The reads and changes of a transaction, and the errors of a conflict: shared by the conflict rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import ConflictError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.log.write.staged_actions import ReadSet, keys_of
from delta_orch.protocol.paths import canonical_paths
from delta_orch.table.configuration import TableConfiguration

if TYPE_CHECKING:
    from delta_orch.storage.base import LogStore


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
