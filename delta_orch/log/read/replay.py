"""The tail: the reconciled state of the commits after a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from typing import Protocol as Shape

from delta_orch.log.files.commit_reader import LogActions
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol, Txn

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.read.reconcile import TailFiles, TouchedFiles

_MAX_PENDING = 64


class UnsettledRun(Shape):
    """A run of commits whose files are settled when somebody asks for them: `compactions.CompactedRun`."""

    @property
    def num_files(self) -> int: ...

    def settled(self, before: TailFiles | None, runs: Sequence[LogActions]) -> LogActions: ...


class _PendingFiles:
    """Files that are reconciled when somebody asks for them: a writer that only appends never does.

    Safe to share between threads: at worst two do the same work.
    """

    __slots__ = ("_state",)

    def __init__(self, before: TailFiles | None = None, runs: tuple[LogActions | UnsettledRun, ...] = ()) -> None:
        # Both at once, for who reads them while another thread replaces them.
        self._state = before, runs

    def plus(self, actions: LogActions | UnsettledRun) -> _PendingFiles:
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

    def fold(self, actions: LogActions, files: UnsettledRun | None = None) -> Tail:
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
