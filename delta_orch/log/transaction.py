"""From a snapshot to the next version: the only way anything is committed.

A commit is one file, created exclusively (PROTOCOL, "Creation of New Log Entries"). Whoever finds the name of the next
version taken reads the commits that won, checks by the rules of `conflict` that it may be ordered after them, and tries
the version after those. Every lost attempt is another writer's success, so the table always makes progress.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_orch._version import ENGINE_INFO
from delta_orch.errors import (
    CommitRetriesExhaustedError,
    FileExistsInStoreError,
    InvalidRequestError,
    StorageError,
    StorageOutcomeUnknownError,
    VersionNotFoundError,
)
from delta_orch.expressions.nodes import Expression
from delta_orch.features.registry import ensure_writable
from delta_orch.log.checkpoint_writer import checkpoint_if_due
from delta_orch.log.commit_checks import (
    ensure_isolation_level,
    ensure_may_remove,
    ensure_next_version_is_new,
    outcome_unknown,
)
from delta_orch.log.commit_json import ensure_json, json_parameters, serialize_actions
from delta_orch.log.commit_reader import Commit
from delta_orch.log.commit_result import CommitResult
from delta_orch.log.conflict import Intent, ensure_no_conflict
from delta_orch.log.read_set import ReadSet, keys_of
from delta_orch.log.recorded_txns import Recorded, ensure_distinct, ensure_follows, stale_among
from delta_orch.log.staged_actions import StagedActions, ensure_file_table, ensure_partitioned
from delta_orch.log.table_state import TableState, ensure_joinable
from delta_orch.log.txn import TxnId
from delta_orch.protocol.actions import CommitInfo, DomainMetadata, Metadata, Protocol, Txn
from delta_orch.protocol.log_path import LOG_DIRECTORY, commit_path

if TYPE_CHECKING:
    from delta_orch.log.snapshot import Snapshot
    from delta_orch.log.table_log import TableLog
    from delta_orch.storage.base import FileMeta, StagedFile

__all__ = ["CommitResult", "Transaction"]

_LOGGER = logging.getLogger(__name__)

DEFAULT_MAX_ATTEMPTS = 1000
_LONGEST_PAUSE_S = 1.0


class Transaction:
    """One attempt to change a table: stage what was read and what changes, then `commit` once.

    Nothing is written before `commit`. Not safe to share between threads.

    Args:
        log: The table.
        snapshot: The version it starts from; None creates the table (stage metadata and protocol), or joins it where
            another writer has just created it with the same schema, partitioning and properties.
        operation: `commitInfo.operation`, e.g. `WRITE`.
        operation_parameters: `commitInfo.operationParameters`.
        txns: Idempotency keys. One recorded already (≥) without scope makes the commit a no-op; with a scope, files in
            its partitions are left out.
        user_metadata: `commitInfo.userMetadata`.
        commit_info: Further keys for `commitInfo`; they cannot replace its own.
        isolation_level: `WriteSerializable` or `Serializable`; None takes the table's.
        max_attempts: How often to try before giving up.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        UnsupportedStoreError: The store cannot keep concurrent writers apart.
        InvalidRequestError: Two `txns` with one app id, an unknown isolation level, or `commit_info` that is no JSON.
    """

    def __init__(
        self,
        log: TableLog,
        snapshot: Snapshot | None,
        *,
        operation: str,
        operation_parameters: Mapping[str, Any] | None = None,
        txns: Sequence[TxnId] = (),
        user_metadata: str | None = None,
        commit_info: Mapping[str, Any] | None = None,
        isolation_level: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> None:
        ensure_distinct(txns)
        ensure_isolation_level(isolation_level)
        log.store.ensure_can_commit()
        self.log = log
        self.snapshot = snapshot
        # The newest version this transaction is known to fit behind; None while it means to create the table.
        self._base = None if snapshot is None else TableState.of_snapshot(snapshot)
        if self._base is not None:
            ensure_writable(self._base.protocol, self._base.metadata)
        self._operation = operation
        self._operation_parameters = json_parameters(operation_parameters or {})
        self._operation_metrics: dict[str, int | str] = {}
        self._user_metadata = user_metadata
        self._commit_info = ensure_json(commit_info or {})
        self._isolation_level = isolation_level
        self._max_attempts = max_attempts
        self._txns = tuple(txns)
        self._recorded: Recorded | None = None
        self._skipped_txns: tuple[TxnId, ...] = ()
        self._reads = ReadSet()
        self._staged = StagedActions()
        # Derived from what is staged, once: every attempt has the same content, whatever its version.
        self._file: StagedFile | None = None
        self._intent: Intent | None = None
        # Identifies this transaction's commit, whatever became of the request that wrote it.
        self._txn_id = str(uuid.uuid4())
        # Set while it is unknown whether the version tried last is ours.
        self._doubt: StorageError | None = None
        self._rebased: list[int] = []
        self._has_ended = False

    # What was read, and what changes

    def stale_txns(self) -> tuple[TxnId, ...]:
        """Identifiers that the snapshot has recorded at the same version or a later one. Worth asking before work."""
        return stale_among(self._txns, self._read_recorded())

    def ensure_follows(self) -> None:
        """Check what `TxnId.follows` asks for against the snapshot. Worth doing before work; `commit` does it again.

        Raises:
            ConcurrentTransactionError: Another version is recorded.
        """
        ensure_follows(self._txns, self._read_recorded(), None if self.snapshot is None else self.snapshot.version)

    def read_whole_table(self) -> None:
        """The change depends on every row."""
        self._reads.whole_table = True

    def read_where(self, where: Expression) -> None:
        """The change depends on the rows for which `where` (resolved against the schema) is true."""
        self._reads.predicates.append(where)

    def read_partitions(self, values: pa.Table) -> None:
        """The change depends on these partitions: one string column a partition column, spelled as in the log."""
        self._reads.partitions.append(values)

    def read_files(self, files: pa.Table) -> None:
        """The change depends on these files (`path`, `dv_id`)."""
        self._reads.files.append(keys_of(files))

    def add_files(self, adds: pa.Table) -> None:
        """Add files: columns of `file_columns.ADD_SCHEMA`. Raises InvalidRequestError where they are not."""
        self._staged.adds.append(ensure_file_table(adds))

    def remove_files(self, files: pa.Table, *, data_change: bool = True) -> None:
        """Remove files of the snapshot: `path`, `dv_id`, `partition_values`, `size`, and what else there is of
        `file_columns.ADD_SCHEMA`. `data_change` is false where other files hold the same rows.

        Raises:
            AppendOnlyError: The table keeps its rows (PROTOCOL, "Append-only Tables").
            InvalidRequestError: The table of files is malformed.
        """
        self._staged.removes.append((ensure_file_table(files), data_change))
        ensure_may_remove(self._staged, self._base)

    def update_metadata(self, metadata: Metadata) -> None:
        """Replace the table's metadata. Where rows of other writers must fit it, read the whole table too."""
        self._staged.metadata = metadata

    def update_protocol(self, protocol: Protocol) -> None:
        self._staged.protocol = protocol

    def set_domain_metadata(self, domain: str, configuration: str, *, removed: bool = False) -> None:
        self._staged.domain_metadata[domain] = DomainMetadata(domain, configuration, removed)

    def set_operation_metrics(self, metrics: Mapping[str, int | str]) -> None:
        """`commitInfo.operationMetrics`."""
        self._operation_metrics = dict(metrics)

    # The commit

    def commit(self) -> CommitResult:
        """Make the staged changes the table's next version: all of them, or none.

        Returns: The version, or `skipped`.

        Raises:
            ConflictError: Another commit stands in the way. Nothing was committed; running again may succeed.
            CommitRetriesExhaustedError: Others were faster `max_attempts` times. Nothing was committed.
            CommitOutcomeUnknownError: The store did not tell and cannot be asked. With `txns`, running again is safe.
            StorageError: e.g. a full disk. Nothing was committed.
            UnsupportedFeatureError, UnsupportedVersionError, AppendOnlyError, InvalidRequestError: Nothing was
                committed.
        """
        self._ensure_committable()
        if self._base is not None and self._leave_out(self.stale_txns(), self._base):
            return self._skip(self._base, attempt=0)
        self.ensure_follows()
        try:
            return self._commit_behind_others()
        finally:
            self._drop_file()

    def _commit_behind_others(self) -> CommitResult:
        for attempt in range(1, self._max_attempts + 1):
            version = 0 if self._base is None else self._base.version + 1
            started = time.monotonic()
            file = self._put(version)
            if file is not None:
                return self._finish(version, file.modification_time_ms, attempt)
            if attempt > 1:
                # Spread the writers over about the time one request takes, before looking at what they did.
                time.sleep(random.random() * min(time.monotonic() - started, _LONGEST_PAUSE_S))
            result = self._rebase(version, attempt)
            if result is not None:
                return result
        if self._doubt is not None:
            raise outcome_unknown(self.log.store.uri, version, self._txn_id, self._doubt)
        raise CommitRetriesExhaustedError(
            f"{self._max_attempts} attempts to commit were all overtaken by other writers",
            remedy="Try again when fewer writers are at work, or raise max_attempts",
            attempts=self._max_attempts,
        )

    def _put(self, version: int) -> FileMeta | None:
        """Write the commit. None where the version is taken, or where nobody knows: then look."""
        try:
            if self._file is None:
                self._file = self.log.store.stage(LOG_DIRECTORY, self._serialize())
            return self._file.put_if_absent(commit_path(version))
        except FileExistsInStoreError as e:
            self._doubt = e
        except StorageOutcomeUnknownError as e:
            _LOGGER.warning("It is unknown whether version %d was written, reading it back: %s", version, e)
            self._doubt = e
        except StorageError as e:
            if self._doubt is None:
                raise
            # Nothing was written now, but an earlier request for this version may still take effect.
            raise outcome_unknown(self.log.store.uri, version, self._txn_id, e) from e
        return None

    def _rebase(self, version: int, attempt: int) -> CommitResult | None:
        """Move behind every commit from `version` on.

        Returns: None where the transaction should try again; a result where it turns out to be over: one of the commits
            is its own, or they leave it nothing to do.
        """
        for winner in self._winners(version):
            # Also where the store said "exists": that may be the echo of our own request, repeated on the way.
            if winner.commit_info is not None and winner.commit_info.get("txnId") == self._txn_id:
                return self._finish(winner.version, winner.timestamp_ms, attempt)
            self._rebased.append(winner.version)
            if self._base is None:
                base = self._join(winner)
                winner = replace(winner, protocol=None, metadata=None)
            else:
                base = self._base.after(winner)
                if winner.protocol is not None:
                    ensure_writable(base.protocol, base.metadata)
            if self._leave_out(stale_among(self._txns, {txn.app_id: txn.version for txn in winner.txns}), base):
                return self._skip(base, attempt)
            self._base = base
            ensure_no_conflict(self._intent or self._derive_intent(base), winner)
        if self.snapshot is None and self._base is not None and not self._txns and self._staged.is_empty:
            return self._skip(self._base, attempt)
        return None

    def _winners(self, version: int) -> Iterator[Commit]:
        """The commits from `version` on, found by probing: no listing, and nothing is read twice."""
        while True:
            try:
                winner = self.log.read_commit(version)
            except VersionNotFoundError:
                return
            except StorageError as e:
                if self._doubt is None:
                    raise
                raise outcome_unknown(self.log.store.uri, version, self._txn_id, e) from e
            # Whoever it is: the name is taken for good, so no request of ours can take effect any more.
            self._doubt = None
            yield winner
            version += 1

    def _join(self, first: Commit) -> TableState:
        """Another writer has created the table: go on as if it had existed, if it is the table we wanted."""
        created = TableState.of_first_commit(first)
        ensure_joinable(self._result(), created)
        ensure_writable(created.protocol, created.metadata)
        self._staged.metadata = self._staged.protocol = None
        self._forget_derived()
        return created

    def _leave_out(self, stale: Sequence[TxnId], base: TableState) -> bool:
        """Drop what recorded identifiers guard. True where that is everything: then nothing must be committed."""
        if not stale:
            return False
        self._skipped_txns += tuple(stale)
        self._txns = tuple(txn for txn in self._txns if txn not in stale)
        if not self._txns or any(txn.scope is None for txn in stale):
            return True
        for txn in stale:
            if txn.scope is not None:
                self._staged.drop_files_in(txn.scope, base.schema, base.partition_columns)
        self._operation_metrics = self._staged.recount(self._operation_metrics)
        self._forget_derived()
        return False

    def _finish(self, version: int, timestamp_ms: int, attempt: int) -> CommitResult:
        _LOGGER.info("Committed version %d of %s in attempt %d", version, self.log.store.uri, attempt)
        checkpoint_if_due(self.log, self.snapshot, version, self._result().properties.checkpoint_interval)
        return self._end(version, timestamp_ms, attempt, skipped=False)

    def _skip(self, base: TableState, attempt: int) -> CommitResult:
        _LOGGER.info("Nothing to commit to %s: recorded already by version %d", self.log.store.uri, base.version)
        return self._end(base.version, base.timestamp_ms, attempt, skipped=True)

    def _end(self, version: int, timestamp_ms: int, attempt: int, *, skipped: bool) -> CommitResult:
        metrics = {} if skipped else self._operation_metrics
        rebased = tuple(self._rebased)
        return CommitResult(version, skipped, self._skipped_txns, metrics, attempt, rebased, timestamp_ms)

    # What the attempts have in common

    def _result(self) -> TableState:
        """Protocol and metadata as they will be after the commit."""
        protocol = self._staged.protocol or (None if self._base is None else self._base.protocol)
        metadata = self._staged.metadata or (None if self._base is None else self._base.metadata)
        if protocol is None or metadata is None:
            raise InvalidRequestError(
                "A transaction without a snapshot creates the table: it needs metadata and protocol"
            )
        if self._base is not None and protocol is self._base.protocol and metadata is self._base.metadata:
            return self._base
        return TableState(-1 if self._base is None else self._base.version, 0, protocol, metadata)

    def _serialize(self) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        txns = [Txn(txn.app_id, txn.version, now_ms) for txn in self._txns]
        own = {
            "timestamp": now_ms,
            "operation": self._operation,
            "operationParameters": self._operation_parameters,
            "operationMetrics": json_parameters(self._operation_metrics),
            "readVersion": None if self.snapshot is None else self.snapshot.version,
            "isolationLevel": self._isolation_level or self._result().properties.isolation_level,
            "isBlindAppend": self._reads.is_empty and not self._staged.num_removed,
            "engineInfo": ENGINE_INFO,
            "userMetadata": self._user_metadata,
            "txnId": self._txn_id,
        }
        info = {**self._commit_info, **{key: value for key, value in own.items() if value is not None}}
        return serialize_actions([CommitInfo(info)]) + self._staged.serialize(txns, now_ms)

    def _forget_derived(self) -> None:
        self._intent = None
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _derive_intent(self, base: TableState) -> Intent:
        self._intent = Intent(
            reads=self._reads,
            removed_keys=self._staged.removed_keys(),
            changes_data=self._staged.changes_data,
            changes_metadata=self._staged.metadata is not None,
            app_ids=frozenset(txn.app_id for txn in self._txns),
            domains=frozenset(self._staged.domain_metadata),
            isolation_level=self._isolation_level or self._result().properties.isolation_level,
            settled_scopes=tuple(txn.scope for txn in self._skipped_txns if txn.scope is not None),
            schema=base.schema,
            partition_columns=base.partition_columns,
        )
        return self._intent

    # Checks before the first attempt

    def _ensure_committable(self) -> None:
        if self._has_ended:
            raise InvalidRequestError("A transaction commits once", remedy="Begin a new one from the newest snapshot")
        self._has_ended = True
        result = self._result()
        if result is not self._base:
            ensure_writable(result.protocol, result.metadata)
        for adds in self._staged.adds:
            ensure_partitioned(adds, result.partition_columns)
        # Parsed now, so that nothing can fail once the commit stands.
        _ = result.properties
        self._staged.ensure_consistent()
        ensure_may_remove(self._staged, self._base)
        ensure_next_version_is_new(self.log, self._base)

    def _read_recorded(self) -> Recorded:
        if self._recorded is None:
            snapshot = self.snapshot
            self._recorded = {} if snapshot is None else {t.app_id: snapshot.txn_version(t.app_id) for t in self._txns}
        return self._recorded
