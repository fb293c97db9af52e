"""From a snapshot to the next version: the only way anything is committed.

A commit is one file, created exclusively (PROTOCOL, "Creation of New Log Entries"). A writer that finds the next
version taken reads the winning commits, checks by the rules of `conflict` that it may come after them, and tries the
version after those. Every lost attempt is another writer's success, so the table always makes progress.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from delta_orch.errors import (
    CommitOutcomeUnknownError,
    CommitRetriesExhaustedError,
    ConflictError,
    FileExistsInStoreError,
    InvalidRequestError,
    ProtocolViolationError,
    StorageError,
    StorageOutcomeUnknownError,
    VersionNotFoundError,
)
from delta_orch.log.files.commit_json import serialize_actions
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.txn import Recorded, TxnId, ensure_follows, is_wholly_stale, stale_among
from delta_orch.log.write.commit_base import CommitBase, depends_on_version, fit_to_version
from delta_orch.log.write.commit_checks import ensure_joinable, ensure_may_commit, ensure_start
from delta_orch.log.write.commit_options import (
    SERIALIZABLE,
    CommitOptions,
    CommitPreview,
    CommitResult,
    Committed,
    EveryRow,
    ensure_options,
    parse_txns,
)
from delta_orch.log.write.staged_actions import StagedActions, paths_of
from delta_orch.log.write.staging import Provenance, Staging
from delta_orch.protocol.actions import Txn
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.patience import Patience
from delta_orch.table.registry import ensure_asks_catalog
from delta_orch.table.row_tracking import with_materialized_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.conflict import Intent
    from delta_orch.storage.base import FileMeta, StagedFile

_LOGGER = logging.getLogger(__name__)

DEFAULT_MAX_ATTEMPTS = 1000
_LAST_VERSION = (1 << 63) - 1
_LONGEST_PAUSE_S = 1.0


class Transaction(Staging):
    """One attempt to change a table: stage the reads and changes (`Staging`), then `commit` once.

    Nothing is written before `commit`. Not safe to share between threads.

    Args:
        log: The table.
        snapshot: The version it starts from; None creates the table (stage metadata and protocol), or joins it where
            another writer has just created it with the same schema, partitioning and properties.
        operation: `commitInfo.operation`, e.g. `WRITE`.
        operation_parameters: `commitInfo.operationParameters`.
        max_attempts: How often to try before giving up.
        options: `CommitOptions`. A `txn` recorded already (see `TxnId`) without scope makes the commit a no-op; with a
            scope, files in its partitions are left out. Of a dry run `commit` writes nothing.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        UnsupportedStoreError: The store cannot keep concurrent writers apart.
        InvalidRequestError: An unknown or invalid option.
    """

    def __init__(
        self,
        log: TableLog,
        snapshot: Snapshot | None,
        *,
        operation: str,
        operation_parameters: Mapping[str, object] | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        **options: Unpack[CommitOptions],
    ) -> None:
        ensure_options(options, CommitOptions)
        ensure_start(options, snapshot)
        txns = parse_txns(options.get("txn"))
        self._read_version = options.get("read_version")
        self._isolation_level = options.get("isolation_level")
        if self._read_version is not None and self._isolation_level is None:
            self._isolation_level = SERIALIZABLE
        if options.get("stage"):
            raise InvalidRequestError(
                f"The operation {operation} cannot be staged",
                cause="It writes no rows, or takes several commits",
                remedy="Stage an append, overwrite, delete, update, merge or upsert",
            )
        metrics = options.get("operation_metrics") or {}
        if callable(metrics):
            raise InvalidRequestError(
                f"The operation {operation} takes no function as operation_metrics",
                cause="It writes no rows to be counted",
                remedy="Pass the metrics",
            )
        log.store.ensure_can_commit()
        provenance = Provenance(
            operation,
            operation_parameters or {},
            options.get("user_metadata"),
            options.get("commit_info") or {},
            metrics,
        )
        super().__init__(snapshot, provenance, txns)
        self.log = log
        self._is_dry_run = options.get("dry_run", False)
        self._max_attempts = max_attempts
        self._recorded: Recorded | None = None
        self._skipped_txns: tuple[TxnId, ...] = ()
        # Of the newest attempt.
        self._now_ms = 0
        self._in_commit_timestamp_ms: int | None = None
        # What was last written, or tried, as it was fitted to its version.
        self._fitted: StagedActions | None = None
        # Derived from what is staged, and kept while it stays the same.
        self._file: StagedFile | None = None
        self._intent: Intent | None = None
        # Set while it is unknown whether the version tried last is ours.
        self._doubt: StorageError | None = None
        self._rebased: list[int] = []
        self._has_ended = False

    # Idempotency keys, before any work

    def stale_txns(self) -> tuple[TxnId, ...]:
        """Identifiers that the snapshot has recorded, see `TxnId`. Worth asking before work."""
        return stale_among(self._txns, self._read_recorded()) if self._txns else ()

    def ensure_follows(self) -> None:
        """Check what `TxnId.follows` asks for against the snapshot. Worth doing before work; `commit` does it again.

        Raises:
            ConcurrentTransactionError: Another version is recorded.
        """
        if self._txns:
            ensure_follows(self._txns, self._read_recorded(), None if self.snapshot is None else self.snapshot.version)

    def _read_recorded(self) -> Recorded:
        if self._recorded is None:
            snapshot = self.snapshot
            self._recorded = {} if snapshot is None else snapshot.txn_versions([txn.app_id for txn in self._txns])
        return self._recorded

    # The commit

    def commit(self) -> CommitResult:
        """Make the staged changes the table's next version: all of them, or none.

        Returns: The version, or `skipped`; of a dry run the `preview` of what would have been written.

        Raises:
            ConflictError: Another commit stands in the way. Nothing was committed; running again may succeed.
            CommitRetriesExhaustedError: Others were faster `max_attempts` times. Nothing was committed.
            CommitOutcomeUnknownError: The store did not tell and cannot be asked. With `txns`, running again is safe.
            StorageError: e.g. a full disk. Nothing was committed.
            UnsupportedFeatureError, UnsupportedVersionError, AppendOnlyError, InvalidRequestError: Nothing was
                committed.
        """
        self._ensure_committable()
        if self._txns:
            stale = self.stale_txns()
            if self._base is not None and self._leave_out(stale, self._base):
                return self._skip(self._base, attempt=0)
            self.ensure_follows()
        try:
            if (over := self._catch_up()) is not None:
                return over
            return self._rehearse() if self._is_dry_run else self._commit_behind_others()
        finally:
            self._drop_file()

    def skip(self) -> CommitResult:
        """End where there is nothing to change: without a commit, unless an identifier is to be recorded. Whoever was
        told so must not find anything when it asks again. Raises ConflictError as `commit`."""
        if self._txns:
            return self.commit()
        assert self._base is not None
        self._has_ended = True
        if (over := self._catch_up()) is not None:
            return over
        return self._end(self._base.version, self._base.timestamp_ms, 0, {}, skipped=True)

    def _catch_up(self) -> CommitResult | None:
        """Move behind what others have committed since `read_version`. None if the transaction continues.

        Raises ConflictError: They changed what it concerns.
        """
        return None if self._read_version is None else self._rebase(self._next_version, attempt=0)

    def _commit_behind_others(self) -> CommitResult:
        patience: Patience | None = None
        for attempt in range(1, self._max_attempts + 1):
            version = self._next_version
            started = time.monotonic()
            file = self._put(version)
            if file is not None:
                in_commit_ms = self._in_commit_timestamp_ms
                return self._finish(
                    version, file.modification_time_ms if in_commit_ms is None else in_commit_ms, attempt
                )
            if attempt > 1:
                # Spread the writers over about the time one request takes, before looking at what they did.
                time.sleep(random.random() * min(time.monotonic() - started, _LONGEST_PAUSE_S))
            result = self._rebase(version, attempt)
            if result is not None:
                return result
            # According to the store, the version is free.
            if self._doubt is not None:
                patience = patience or Patience()
                if not patience.wait():
                    raise self._outcome_unknown(version, self._doubt)
        if self._doubt is not None:
            raise self._outcome_unknown(version, self._doubt)
        raise CommitRetriesExhaustedError(
            f"{self._max_attempts} attempts to commit were all overtaken by other writers",
            remedy="Try again when fewer writers are at work, or raise max_attempts",
            attempts=self._max_attempts,
        )

    @property
    def txn_id(self) -> str:
        """`commitInfo.txnId` of the commit."""
        return self._provenance.txn_id

    @property
    def _next_version(self) -> int:
        version = 0 if self._base is None else self._base.version + 1
        if version > _LAST_VERSION:
            raise ProtocolViolationError("The table has reached the greatest version", remedy="Clone it")
        return version

    def _put(self, version: int) -> FileMeta | None:
        """Write the commit. None where the version is taken, or where nobody knows: then look."""
        try:
            if self._file is None:
                self._write_vectors()
                after = self._paths_just_written()
                before = None if self._base is None else self._base.table.metadata
                self._file = self.log.store.stage_commit(self._serialize(version), before=before, after=after)
                self._just_written.clear()
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
            raise self._outcome_unknown(version, e) from e
        return None

    def _paths_just_written(self) -> list[str]:
        return [path for files in self._just_written for path in FileTable(files).path.to_pylist()]

    def _rebase(self, version: int, attempt: int) -> CommitResult | None:
        """Move behind every commit from `version` on.

        Returns: None where the transaction should try again; a result where it turns out to be over: one of the commits
            is its own, or they leave it nothing to do.
        """
        try:
            return self._move_behind(version, attempt)
        except ConflictError as e:
            if self._read_version is None or isinstance(self._read_version, EveryRow):
                raise
            context = {**e.context, "read_version": self._read_version, "retryable": False}
            remedy = "Read the table again, work the change out from what is there, and commit that"
            raise type(e)(e.problem, cause=e.cause, remedy=remedy, **context) from e

    def _move_behind(self, version: int, attempt: int) -> CommitResult | None:
        from delta_orch.log.write.conflict import ensure_no_conflict, note_moved_rows

        for winner in self._winners(version):
            # This also applies if the store said "exists": that may be the echo of our own request, repeated on the
            # way.
            if winner.commit_info is not None and winner.commit_info.get("txnId") == self._provenance.txn_id:
                return self._finish(winner.version, winner.timestamp_ms, attempt)
            self._rebased.append(winner.version)
            before = self._base
            if before is None:
                base = self._join(winner)
                winner = replace(winner, protocol=None, metadata=None)
            else:
                base = before.after(winner)
            stale = stale_among(self._txns, {txn.app_id: txn.version for txn in winner.txns})
            if self._moves_across_scopes and not is_wholly_stale(self._txns, stale):
                stale = ()  # None can be left out without the others: `ensure_no_conflict` says so.
            if self._leave_out(stale, base):
                return self._skip(base, attempt)
            self._base = base
            ensure_asks_catalog(base.table.protocol, self.log.store.is_catalog_managed, self.log.store.uri)
            self._follow_moved_rows(winner, base)
            united = self._put_marks_on_top(winner)
            intent = self._intent = self._intent or self._intend(
                base.table, self._txns, self._skipped_txns, self._isolation_level, self.log.store
            )
            ensure_no_conflict(intent, winner, (before or base).table, united)
            note_moved_rows(intent, winner)
        if self.snapshot is None and self._base is not None and not self._txns and self._staged.is_empty:
            return self._skip(self._base, attempt)
        if depends_on_version(self._staged, self._result()):
            self._drop_file()
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
                raise self._outcome_unknown(version, e) from e
            # The name is taken for good, so no request of ours can take effect any more.
            self._doubt = None
            yield winner
            version += 1

    def _join(self, first: Commit) -> CommitBase:
        """Another writer has created the table: go on as if it had existed, if it is the table we wanted."""
        created = CommitBase.of_first_commit(first)
        ensure_joinable(self._result(), created)
        created.table.for_writing()
        self._staged.metadata = self._staged.protocol = None
        self._forget_derived()
        return created

    def _follow_moved_rows(self, winner: Commit, base: CommitBase) -> None:
        """A compaction that came first yields: what it moved and we remove is removed from where it is now."""
        from delta_orch.log.write.conflict import removes_after_compaction

        removes = removes_after_compaction(self._staged, winner, base.table)
        if removes is not None:
            self._staged.removes = removes
            self._provenance.metrics = self._staged.recount(self._provenance.metrics)
            self._forget_derived()

    def _write_vectors(self) -> None:
        """Make the deletion vectors durable that the commit names."""
        while self._marks is not None and self._marks.vector_files:
            file = self._marks.vector_files[0]
            self.log.store.put_if_absent(file.path, file.content)
            del self._marks.vector_files[0]

    def _put_marks_on_top(self, winner: Commit) -> pa.Array | None:
        """An earlier commit marked rows of the same files. Its marks and these are united.

        Returns: Canonical paths of those files, or None.
        """
        if self._marks is None:
            return None
        from delta_orch.log.write.conflict import deleted_rows_conflict
        from delta_orch.log.write.deletion_vector_writer import join_marked, marks_on_top

        on_top, overlap = marks_on_top(self._marks, self.log.store, winner.adds, winner.removes)
        if overlap is not None:
            raise deleted_rows_conflict(winner, overlap.paths, overlap.num_rows)
        if on_top is None:
            return None
        self._staged.forget_files(on_top.paths)
        on_top.stage(self._staged)
        self._marks = join_marked(self._marks.without(on_top.paths), on_top)
        self._forget_derived()
        return on_top.paths

    def _leave_out(self, stale: Sequence[TxnId], base: CommitBase) -> bool:
        """Drop what recorded identifiers guard. True where that is everything: there is nothing to commit then."""
        if not stale:
            return False
        self._skipped_txns += tuple(stale)
        recorded = {txn.app_id for txn in stale}
        self._txns = tuple(txn for txn in self._txns if txn.app_id not in recorded)
        if not self._txns or any(txn.scope is None for txn in stale):
            return True
        for txn in stale:
            if txn.scope is not None:
                self._staged.drop_files_in(txn.scope, base.table)
        if self._marks is not None:
            self._marks = self._marks.among(paths_of(self._staged.removed_keys()))
        self._provenance.metrics = self._staged.recount(self._provenance.metrics)
        self._forget_derived()
        return False

    def _outcome_unknown(self, version: int, error: StorageError) -> CommitOutcomeUnknownError:
        """The error for a commit that may have happened."""
        txn_id = self._provenance.txn_id
        return CommitOutcomeUnknownError(
            f"It is unknown whether version {version} of {self.log.store.uri} was committed",
            cause=str(error),
            remedy=f"Check whether commitInfo.txnId of that version is {txn_id} before writing again; "
            "with transaction identifiers (`txn`) running again is always safe",
            version=version,
            txn_id=txn_id,
            retryable=bool(self._txns or self._skipped_txns),
        )

    # How it ends

    def _finish(self, version: int, timestamp_ms: int, attempt: int) -> CommitResult:
        _LOGGER.info("Committed version %d of %s in attempt %d", version, self.log.store.uri, attempt)
        if self.log.observer is not None:
            actions = self._fitted or self._staged
            commit = Committed(
                version=version,
                actions=actions,
                txns=self._txn_actions(),
                txn_id=self._provenance.txn_id,
                operation=self._provenance.operation,
                in_commit_timestamp_ms=self._in_commit_timestamp_ms,
                before=self._base,
                table=self._result().after(actions.protocol, actions.metadata),
            )
            self.log.observer(self.log, self.snapshot, commit)
        return self._end(version, timestamp_ms, attempt, self._provenance.all_metrics)

    def _skip(self, base: CommitBase, attempt: int) -> CommitResult:
        _LOGGER.info("Nothing to commit to %s: recorded already by version %d", self.log.store.uri, base.version)
        return self._end(base.version, base.timestamp_ms, attempt, {}, skipped=True)

    def _rehearse(self) -> CommitResult:
        """The end of a dry run: everything is checked and nothing written."""
        version, adds, removes = self._next_version, self._staged.adds, self._staged.removes
        preview = CommitPreview(version, self._serialize(version), tuple(adds), tuple(files for files, _ in removes))
        return self._end(version, self._now_ms, 0, self._provenance.all_metrics, preview=preview)

    def _end(
        self,
        version: int,
        timestamp_ms: int,
        attempt: int,
        metrics: Mapping[str, int | str],
        *,
        skipped: bool = False,
        preview: CommitPreview | None = None,
    ) -> CommitResult:
        effect, rebased = None if skipped else self._count_rows(), tuple(self._rebased)
        result_fields = (version, skipped, self._skipped_txns, metrics, attempt, rebased, timestamp_ms)
        return CommitResult(*result_fields, preview=preview, effect=effect)

    # Parts of an attempt

    def _serialize(self, version: int) -> bytes:
        result = self._result()
        now_ms = self._now_ms = time.time_ns() // 1_000_000
        fitted, in_commit_timestamp_ms = fit_to_version(
            self._staged, self._base, result, version=version, now_ms=now_ms
        )
        self._fitted, self._in_commit_timestamp_ms = fitted, in_commit_timestamp_ms
        info = self._provenance.commit_info(
            now_ms=now_ms,
            read_version=None if self.snapshot is None else self.snapshot.version,
            isolation_level=self._isolation_level or result.properties.isolation_level,
            is_blind_append=self._reads.is_empty and not self._staged.num_removed,
            in_commit_timestamp_ms=in_commit_timestamp_ms,
            tracks_rows=result.assigns_row_ids,
            effect=self._count_rows(),
        )
        # Not before the version whose files it removes: by a clock that is slow, they would be garbage too early.
        removed_ms = now_ms if self._base is None else max(now_ms, self._base.timestamp_ms)
        return serialize_actions([info]) + fitted.serialize(self._txn_actions(), removed_ms)

    def _txn_actions(self) -> tuple[Txn, ...]:
        versions = dict(self._taken_back)
        for txn in self._txns:
            versions[txn.app_id] = txn.version
        return tuple([Txn(app_id, version, self._now_ms) for app_id, version in versions.items()])

    def _forget_derived(self) -> None:
        self._intent = self._effect = None
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None

    # Checks before the first attempt

    def _ensure_committable(self) -> None:
        if self._has_ended:
            raise InvalidRequestError("A transaction commits once", remedy="Begin a new one from the newest snapshot")
        self._has_ended = True
        if self._staged.metadata is not None and self._result().enables("rowTracking"):
            self._staged.metadata = with_materialized_columns(self._staged.metadata)
        ensure_may_commit(self.log, self.snapshot, self._base, self._staged, self._result())
