"""`StagedWrite`: a complete write without its commit. It can be read, published or discarded."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from delta_orch.arguments import checked
from delta_orch.errors import (
    ConflictError,
    InvalidRequestError,
    MetadataChangedError,
    StagedWriteGoneError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delta_orch.log.files.commit_reader import LogFile, parse_log_files
from delta_orch.log.read.replay import Tail
from delta_orch.log.read.segment import LogSegment
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.held_commit import HeldCommit, ResumedTransaction, load_held_commit, reference_path
from delta_orch.protocol.paths import STAGED_DIRECTORY, commit_path
from delta_orch.storage.base import FileMeta
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_options import CommitResult

_HOUR_MS = 3_600_000


TableVersion = TypeVar("TableVersion", bound=Snapshot)
"""The snapshots that the table's log makes."""


@checked
class StagedWrite(Generic[TableVersion]):
    """A write that was staged (`stage=True`), in this process or another one.

        reference = table.overwrite(rows, stage=True).staged
        staged = table.staged(reference)
        if staged.snapshot().scan(["id"], where="amount < 0").to_arrow().num_rows == 0:
            staged.publish()

    No reader sees it before it is published. Publishing makes one commit, with the `txn` of the write. The commit comes
    after commits of other writers, or conflicts with them. Vacuum deletes the files of an unpublished write when they
    are older than the retention. Until then the staged version can be read, even if it was discarded.

    Args:
        log: The table.
        reference: `CommitResult.staged`. Plain text, so it travels through XComs and metadata.

    Raises:
        StagedWriteGoneError: There is no such write.
        InvalidRequestError: `reference` cannot be one.
        StorageError: It cannot be read.
    """

    def __init__(self, log: TableLog, reference: str) -> None:
        self._log = log
        self.reference = reference
        self._first_read = load_held_commit(log.store, reference)

    def __repr__(self) -> str:
        return f"<StagedWrite {self.reference} of {self._log.store.uri}>"

    @property
    def read_version(self) -> int | None:
        """The version it was worked out from; None where it creates the table."""
        return self._first_read.snapshot_version

    @property
    def operation(self) -> str:
        """`commitInfo.operation` of the commit."""
        return self._first_read.provenance.operation

    @property
    def operation_metrics(self) -> dict[str, int | str]:
        """`commitInfo.operationMetrics` of the commit, unless it leaves out what others have recorded meanwhile."""
        return self._first_read.provenance.all_metrics

    @property
    def user_metadata(self) -> str | None:
        """`commitInfo.userMetadata` of the commit."""
        return self._first_read.provenance.user_metadata

    @property
    def txns(self) -> tuple[TxnId, ...]:
        """The transaction identifiers that the commit records."""
        return self._first_read.txns

    @property
    def staged_ms(self) -> int:
        """When it was staged, milliseconds since the epoch."""
        return self._first_read.staged_ms

    def snapshot(self) -> TableVersion:
        """The table as this write leaves `read_version`: a snapshot like any other, for reading. Commits that others
        have made since are not in it. Its writing methods raise MetadataChangedError.

        Raises:
            StagedWriteGoneError: It was discarded, or vacuum has removed it.
            MetadataChangedError, VersionNotFoundError: `read_version` is no longer there.
            StorageError: A file cannot be read.
        """
        held = self._load()
        base = self._base(held)
        preview = ResumedTransaction(self._log, base, held, is_alone=True).commit().preview
        assert preview is not None
        name = commit_path(preview.version)
        # There is no such file: a write from this snapshot looks for it, and finds another one or none.
        file = FileMeta(name, len(preview.content), held.staged_ms)
        actions = parse_log_files([LogFile(name, preview.version, preview.content)])
        if base is None:
            segment, checkpoint, tail = LogSegment(preview.version, None, (), file), None, Tail()
        else:
            segment = base.segment._replace(version=preview.version, version_file=file)
            checkpoint, tail = base.checkpoint, base.tail
        snapshot = self._log.snapshot_class(self._log.store, segment, checkpoint, tail.fold(actions), base)
        return cast("TableVersion", snapshot)

    def publish(self, *, if_unchanged: bool = False, look: Callable[[Commit], None] | None = None) -> CommitResult:
        """Commit it. However often, and by however many processes: it is committed once, and each is told the version.

        Args:
            if_unchanged: A commit that changed rows anywhere in the table since `read_version` is a conflict: what was
                found out about the whole table, such as unique keys, holds for the version that is published.
            look: Is shown each commit that others have made since `read_version`; what it raises refuses the write. A
                write that looks is no blind append: who removes such rows meanwhile, and has not seen these, conflicts.

        Returns: The commit. `skipped` where its `txn` was recorded by another commit meanwhile.

        Raises:
            ConflictError: Another commit changed what it relies on. It can never be published.
            StagedWriteGoneError: It was discarded, vacuum has deleted a file of it, or it is older than the retention
                of the table (`delta.deletedFileRetentionDuration`, but at least an hour).
            CommitOutcomeUnknownError: The store did not tell. Publishing again is safe.
            DeltaError: As `DeltaTable.append`. After every error but the one before, the table is unchanged.
        """
        from delta_orch.engines.select import select_engine
        from delta_orch.writing.selection import first_file_with

        held = self._load()
        base = self._base(held)
        transaction = ResumedTransaction(self._log, base, held, if_unchanged=if_unchanged, look=look)
        if base is not None:
            transaction.look_by(partial(first_file_with, select_engine(None, "auto"), base))
        problem = self._problem(held, base)
        if problem is not None and self.published_version() is None:
            raise problem
        try:
            return transaction.commit()
        except ConflictError as e:
            remedy = "Stage the write again: this one does not fit the table any more"
            raise type(e)(e.problem, cause=e.cause, remedy=remedy, **{**e.context, "retryable": False}) from e

    def discard(self) -> None:
        """Forget it: it can no longer be published. Its files stay for vacuum. No error if it is gone already.

        One that is published stays published. Raises StorageError: It is still there.
        """
        self._log.store.delete(reference_path(self.reference))

    def published_version(self) -> int | None:
        """The version as which it was published; None where the log has no such commit.

        Raises:
            StorageError: The log cannot be read.
        """
        start = 0 if self.read_version is None else self.read_version + 1
        for commit in self._commits_from(start):
            if commit.commit_info is not None and commit.commit_info.get("txnId") == self.reference:
                return commit.version
        return None

    def _commits_from(self, version: int) -> Iterator[Commit]:
        while True:
            try:
                yield self._log.read_commit(version)
            except VersionNotFoundError:
                return
            version += 1

    def _load(self) -> HeldCommit:
        # Each transaction takes what it is given apart: it gets one of its own.
        return load_held_commit(self._log.store, self.reference)

    def _base(self, held: HeldCommit) -> Snapshot | None:
        if held.snapshot_version is None:
            return None
        try:
            base = self._log.snapshot(version=held.snapshot_version)
        except TableNotFoundError:
            base = None
        if base is None or base.metadata.id != held.table_id:
            raise MetadataChangedError(
                f"The staged write {self.reference} is of another table",
                cause=f"The table at {self._log.store.uri} was dropped since, or created again",
                remedy="Stage the write again",
                reference=self.reference,
                retryable=False,
            )
        return base

    def _problem(self, held: HeldCommit, base: Snapshot | None) -> StagedWriteGoneError | None:
        """Why it must not be published: vacuum deletes what is older than the retention, now or while this runs."""
        table = held.staged.result_after(None if base is None else base.configuration)
        age_ms = time.time_ns() // 1_000_000 - held.staged_ms
        cause = None
        if age_ms > max(table.properties.deleted_file_retention_ms, _HOUR_MS):
            cause = f"It was staged {age_ms / _HOUR_MS:.1f} hours ago, which is longer than the table's retention"
        else:
            files = map_ahead(self._log.store.head, held.written, FAR_THREADS)
            missing = [path for path, file in zip(held.written, files, strict=True) if file is None]
            if missing:
                cause = f"{len(missing)} of its files are gone, for example {missing[0]}"
        if cause is None:
            return None
        return StagedWriteGoneError(
            f"The staged write {self.reference} of {self._log.store.uri} can no longer be published",
            cause=cause,
            remedy="Stage the write again, and publish within the retention",
            reference=self.reference,
        )


def staged_writes(log: TableLog) -> list[StagedWrite[TableVersion]]:
    """See `DeltaTable.staged_writes`."""
    writes: list[StagedWrite[TableVersion]] = []
    for name in log.store.list_names(STAGED_DIRECTORY):
        try:
            writes.append(StagedWrite(log, name.removesuffix(".json")))
        except (StagedWriteGoneError, InvalidRequestError):
            continue  # Discarded since it was listed, or not ours.
    return sorted(writes, key=lambda staged: staged.staged_ms)
