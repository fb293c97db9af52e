"""The conflict rules: may a transaction still commit, now that another commit came first? Pure, no I/O.

The rules are those of Delta's `WriteSerializable` (default) and `Serializable` isolation: a transaction may be ordered
after the commit that won unless it should have read something of it, or both change the same thing. Under
`WriteSerializable` a blind append counts as if it had come later, so it disturbs nobody. Commits that only rearrange
rows (compaction) neither add nor remove anything a reader could have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from delta_orch.log.commit_reader import Commit
from delta_orch.log.data_skipping import match_files
from delta_orch.log.read_set import ReadSet, keys_of
from delta_orch.protocol.types import StructType

SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"
ISOLATION_LEVELS = (WRITE_SERIALIZABLE, SERIALIZABLE)


@dataclass(frozen=True, slots=True)
class Intent:
    """What a transaction has read and is about to change.

    Attributes:
        reads: Its read set.
        removed_keys: `replay.file_keys` of the files it removes.
        changes_data: False if it only rearranges rows.
        changes_metadata: Whether it replaces the table's metadata.
        app_ids: Application ids of the transaction identifiers it records.
        domains: Domains whose metadata it sets.
        isolation_level: One of `ISOLATION_LEVELS`.
        settled_scopes: Predicates over partition columns; what happens inside them no longer concerns the transaction
            (another run has committed those partitions).
        schema, partition_columns: The table's.
    """

    reads: ReadSet
    removed_keys: pa.Array
    changes_data: bool
    changes_metadata: bool
    app_ids: frozenset[str]
    domains: frozenset[str]
    isolation_level: str
    settled_scopes: Sequence[Expression]
    schema: StructType
    partition_columns: tuple[str, ...]


def ensure_no_conflict(intent: Intent, winner: Commit) -> None:
    """Check one commit that came first.

    Raises:
        ConflictError: One of its kinds; `context["winning_version"]` names the commit. Nothing was written.
    """
    _ensure_same_table(intent, winner)
    _ensure_other_identifiers(intent, winner)
    _ensure_files_untouched(intent, winner)


def is_blind_append(commit: Commit) -> bool:
    """Whether the commit says that it read nothing. One that says nothing counts as having read."""
    return commit.commit_info is not None and commit.commit_info.get("isBlindAppend") is True


def _ensure_same_table(intent: Intent, winner: Commit) -> None:
    # Whatever was checked and written here was fitted to the protocol and the metadata as they were before.
    if winner.protocol is not None:
        raise _conflict(ProtocolChangedError, winner, "it changed the table's protocol")
    if winner.metadata is not None:
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


def _ensure_files_untouched(intent: Intent, winner: Commit) -> None:
    if intent.reads.is_empty and not len(intent.removed_keys):
        return
    removes = _outside_settled(intent, winner.removes)
    if (path := _first_shared(removes, [intent.removed_keys])) is not None:
        raise _conflict(
            ConcurrentDeleteDeleteError, winner, f"it removed the file {path}, as this one would", path=path
        )
    # A transaction that only rearranges rows relies on nothing but the files it rearranges.
    if (
        path := _first_shared(_data_changes(removes) if intent.changes_data else removes, intent.reads.files)
    ) is not None:
        raise _conflict(
            ConcurrentDeleteReadError, winner, f"it removed the file {path}, which this one read", path=path
        )
    if not intent.changes_data:
        return
    if not is_blind_append(winner) or intent.isolation_level == SERIALIZABLE or intent.changes_metadata:
        adds = _outside_settled(intent, _data_changes(winner.adds))
        if (path := _first_read(intent, adds)) is not None:
            cause = f"it added the file {path}, whose rows this one should have read"
            raise _conflict(ConcurrentAppendError, winner, cause, path=path)
    if (path := _first_read(intent, _data_changes(removes))) is not None:
        cause = f"it removed the file {path}, whose rows this one may have read"
        raise _conflict(ConcurrentDeleteReadError, winner, cause, path=path)


def _first_shared(files: pa.Table, keys: Sequence[pa.Array]) -> str | None:
    """The path of a file that is among the keys, None if none is."""
    if not files.num_rows or not any(len(k) for k in keys):
        return None
    hit = pc.is_in(keys_of(files), value_set=pa.concat_arrays(keys))
    return _first_path(files, hit)


def _first_read(intent: Intent, files: pa.Table) -> str | None:
    if not files.num_rows or not intent.reads.reads_rows:
        return None
    return _first_path(files, intent.reads.may_hold_read_rows(files, intent.schema, intent.partition_columns))


def _first_path(files: pa.Table, hit: pa.Array) -> str | None:
    paths = files.column("path").filter(hit)
    return paths[0].as_py() if len(paths) else None


def _data_changes(files: pa.Table) -> pa.Table:
    flags = files.column("data_change")
    return files.filter(pc.or_kleene(flags, flags.is_null()))


def _outside_settled(intent: Intent, files: pa.Table) -> pa.Table:
    for scope in intent.settled_scopes:
        if files.num_rows:
            match = match_files(files, scope, intent.schema, intent.partition_columns)
            files = files.filter(pc.invert(match.all_match))
    return files


def _conflict(kind: type[ConflictError], winner: Commit, cause: str, **context: object) -> ConflictError:
    info = winner.commit_info or {}
    operation = info.get("operation")
    return kind(
        f"The commit conflicts with version {winner.version}, which another writer committed first"
        + (f" ({operation})" if operation else ""),
        cause=cause,
        remedy="Run the operation again: it will start from the new version",
        winning_version=winner.version,
        **context,
    )
