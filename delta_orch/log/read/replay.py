"""From the files of a segment to its reconciled tail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delta_orch.log.files.commit_reader import LogActions, parse_log_files, read_commits
from delta_orch.log.read.segment import LogSegment
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.read.checkpoint_reader import Checkpoint
    from delta_orch.log.read.compactions import CompactedRun
    from delta_orch.log.read.reconcile import TailFiles, TouchedFiles

_MAX_PENDING = 64


class _PendingFiles:
    """Files that are reconciled when somebody asks for them: a writer that only appends never does.

    Safe to share between threads: at worst two do the same work.
    """

    __slots__ = ("_state",)

    def __init__(self, before: TailFiles | None = None, runs: tuple[LogActions | CompactedRun, ...] = ()) -> None:
        # Both at once, for who reads them while another thread replaces them.
        self._state = before, runs

    def plus(self, actions: LogActions | CompactedRun) -> _PendingFiles:
        # A compaction that names no file may leave some out.
        if isinstance(actions, LogActions) and not actions.num_files:
            return self
        before, runs = self._state
        if len(runs) >= _MAX_PENDING:
            before, runs = self.reconciled(), ()
        return _PendingFiles(before, (*runs, actions))

    @property
    def most(self) -> int:
        """At most so many files, known without reconciling them."""
        before, runs = self._state
        rows_before = 0 if before is None else before.adds.num_rows + before.tombstones.num_rows
        return rows_before + sum(run.num_files for run in runs)

    def reconciled(self) -> TailFiles:
        from delta_orch.log.read.reconcile import reconcile_files

        before, runs = self._state
        if runs or before is None:
            settled: list[LogActions] = []
            for run in runs:
                settled.append(run if isinstance(run, LogActions) else run.settled(before, settled))
            before = reconcile_files(before, settled)
            self._state = before, ()
        return before


@dataclass(frozen=True, slots=True)
class Tail:
    """The reconciled state of a run of commits.

    Attributes:
        protocol, metadata: The newest ones, None where no commit has one.
        txns, domain_metadata: The newest of each app id and domain, removed domains included.
        commit_info: Of the newest commit.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)
    domain_metadata: Mapping[str, DomainMetadata] = field(default_factory=dict)
    commit_info: Mapping[str, object] | None = None
    _files: _PendingFiles = field(default_factory=_PendingFiles, repr=False)

    @property
    def adds(self) -> pa.Table:
        """Files that are live, columns of `ADD_SCHEMA`."""
        return self._files.reconciled().adds

    @property
    def tombstones(self) -> pa.Table:
        """Files that are not, columns of `REMOVE_SCHEMA`."""
        return self._files.reconciled().tombstones

    @property
    def most_files(self) -> int:
        """At most so many `adds` and `tombstones`. Costs nothing."""
        return self._files.most

    @property
    def touched(self) -> TouchedFiles:
        """Every file that some commit added or removed. The checkpoint's actions for these files are obsolete."""
        return self._files.reconciled().touched

    def fold(self, actions: LogActions, files: CompactedRun | None = None) -> Tail:
        """This state and the commits that follow it.

        Args:
            files: Of the same commits; None for those of `actions`.
        """
        return Tail(
            protocol=actions.protocol or self.protocol,
            metadata=actions.metadata or self.metadata,
            txns={**self.txns, **actions.txns},
            domain_metadata={**self.domain_metadata, **actions.domain_metadata},
            commit_info=actions.commit_info,
            _files=self._files.plus(files or actions),
        )


def replay_segment(store: LogStore, segment: LogSegment, checkpoint: Checkpoint | None) -> Tail:
    """The reconciled state of everything in a segment that is JSON: its commits, and a V2 checkpoint's own file.

    Raises:
        CorruptLogError: A commit is damaged or gone; the error names the file.
    """
    tail = Tail()
    if checkpoint is not None and checkpoint.json_actions is not None:
        tail = tail.fold(checkpoint.json_actions)
    for compaction, versions in segment.runs():

        def read(versions: range = versions) -> LogActions:
            return parse_log_files(read_commits(store, segment.commits_of(versions), versions))

        if compaction is None:
            tail = tail.fold(read())
            continue
        from delta_orch.log.read.compactions import read_trusted

        run = read_trusted(store, compaction, tail, checkpoint, read)
        tail = tail.fold(read()) if run is None else tail.fold(run.actions, run)
    return tail
