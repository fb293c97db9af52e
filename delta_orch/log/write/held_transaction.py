"""Transactions that end without their commit, and those that begin from one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitResult
from delta_orch.log.write.held_commit import HeldCommit
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.paths import decode_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_options import CommitOptions


class HeldTransaction(Transaction):
    """A transaction whose `commit` writes everything but the commit, and keeps all of it in a `HeldCommit`."""

    def commit(self) -> CommitResult:
        """Hold the commit back. Whether other commits conflict with it is found out when it is made.

        Returns: `staged` names it. `skipped` where there is nothing to commit.

        Raises:
            InvalidRequestError: A dry run leaves nothing that could be kept.
            StorageError and others: As `Transaction.commit`, but for conflicts. Nothing was kept.
        """
        if self._is_dry_run:
            raise InvalidRequestError("A write is staged, or a dry run", remedy="Leave out stage, or dry_run")
        self._ensure_committable()
        if self._base is not None and self._leave_out(self.stale_txns(), self._base):
            return self._skip(self._base, attempt=0)
        self.ensure_follows()
        version, result = self._next_version, self._result()
        # What cannot be serialized now, cannot be later.
        self._serialize(version)
        after = self._paths_just_written()
        vectors = [] if self._marks is None else [file.path for file in self._marks.vector_files]
        self._write_vectors()
        held = HeldCommit(
            snapshot_version=None if self.snapshot is None else self.snapshot.version,
            table_id=(self._before or result).metadata.id,
            schema=(self._before or result).schema,
            result_schema=result.schema,
            reads=self._reads,
            staged=self._staged,
            provenance=self._provenance,
            marks=self._marks,
            written=(*map(decode_path, after), *vectors),
            txns=self._txns,
            skipped_txns=self._skipped_txns,
            read_version=self._read_version,
            isolation_level=self._isolation_level,
        )
        held.save(self.log.store, after)
        return replace(self._end(version, self._now_ms, 0, self._provenance.all_metrics), staged=held.reference)


class ResumedTransaction(Transaction):
    """The transaction that a `HeldTransaction` has kept, before its commit.

    Its commit looks for itself among those that came since: however often it is made, it is there once.

    Args:
        snapshot: The version it started from.
        is_alone: Prepare the commit as if nobody had committed since, and write nothing.
        if_unchanged: Every change of rows since is a conflict.
        look: Is shown each commit of others since; what it raises ends the transaction.
    """

    def __init__(
        self,
        log: TableLog,
        snapshot: Snapshot | None,
        held: HeldCommit,
        *,
        is_alone: bool = False,
        if_unchanged: bool = False,
        look: Callable[[Commit], None] | None = None,
    ) -> None:
        level = SERIALIZABLE if if_unchanged else held.isolation_level
        options: CommitOptions = {"isolation_level": level, "dry_run": is_alone}
        if not is_alone:
            options["read_version"] = held.read_version
        super().__init__(log, snapshot, operation=held.provenance.operation, **options)
        self._provenance = held.provenance
        self._reads, self._staged, self._marks = held.reads, held.staged, held.marks
        self._txns, self._skipped_txns = held.txns, held.skipped_txns
        if if_unchanged:
            self.read_whole_table()
        self._look = look
        self._reads.is_checked = look is not None

    def _winners(self, version: int) -> Iterator[Commit]:
        for winner in super()._winners(version):
            is_own = (winner.commit_info or {}).get("txnId") == self._provenance.txn_id
            if self._look is not None and not is_own:
                self._look(winner)
            yield winner
