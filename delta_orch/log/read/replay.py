"""From the files of a segment to its reconciled tail.

Log compactions stand in for commits where they can be trusted (PROTOCOL, "Log Compaction Files"). A compaction never
decides anything: whatever is odd about one, the commits it stands for are read instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delta_orch.errors import CorruptLogError, StorageError
from delta_orch.log.files.commit_reader import LogActions, LogFile, parse_log_files, read_commits
from delta_orch.log.files.listing import CompactionFile
from delta_orch.log.read.segment import LogSegment
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.read.checkpoint_reader import Checkpoint
    from delta_orch.log.read.reconcile import TailFiles, TouchedFiles

_MAX_PENDING = 64
_LOGGER = logging.getLogger(__name__)


class _PendingFiles:
    """Files that are reconciled when somebody asks for them: a writer that only appends never does.

    Safe to share between threads: at worst two do the same work.
    """

    __slots__ = ("_state",)

    def __init__(self, before: TailFiles | None = None, runs: tuple[LogActions, ...] = ()) -> None:
        # Both at once, for who reads them while another thread replaces them.
        self._state = before, runs

    def plus(self, actions: LogActions) -> _PendingFiles:
        if not actions.num_files:
            return self
        before, runs = self._state
        if len(runs) >= _MAX_PENDING:
            before, runs = self.reconciled(), ()
        return _PendingFiles(before, (*runs, actions))

    @property
    def most(self) -> int:
        """At most so many files, known without reconciling them."""
        before, runs = self._state
        known = 0 if before is None else before.adds.num_rows + before.tombstones.num_rows
        return known + sum(run.num_files for run in runs)

    def reconciled(self) -> TailFiles:
        from delta_orch.log.read.reconcile import reconcile_files

        before, runs = self._state
        if runs or before is None:
            before = reconcile_files(before, runs)
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
        """Every file some commit added or removed: what the checkpoint says of them no longer counts."""
        return self._files.reconciled().touched

    def fold(self, actions: LogActions) -> Tail:
        """This state and the commits that follow it."""
        return Tail(
            protocol=actions.protocol or self.protocol,
            metadata=actions.metadata or self.metadata,
            txns={**self.txns, **actions.txns},
            domain_metadata={**self.domain_metadata, **actions.domain_metadata},
            commit_info=actions.commit_info,
            _files=self._files.plus(actions),
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
        actions = None if compaction is None else _read_trusted(store, compaction, tail, checkpoint)
        if actions is None:
            actions = parse_log_files(read_commits(store, segment.commits_of(versions), versions))
        tail = tail.fold(actions)
    return tail


def read_compaction(store: LogStore, compaction: CompactionFile) -> LogActions:
    """The actions of a compaction.

    Raises:
        CorruptLogError: It is not JSON, or speaks of one thing twice: then its writer did not reconcile its actions,
            and as lines of one file have no order, the state after them is unknown.
        StorageError: It cannot be read.
    """
    from delta_orch.log.read.reconcile import names_a_file_twice

    path = compaction.file.path
    actions = parse_log_files([LogFile(path, compaction.end_version, store.read_bytes(path))])
    if actions.num_superseded or names_a_file_twice(actions):
        raise CorruptLogError(
            f"Log compaction {path.rpartition('/')[2]} is not reconciled",
            cause="It names something more than once, which leaves open what happened to it last",
            remedy="Delete the file: the commits say the same",
            path=path,
        )
    # Nobody knows of which commit a commitInfo in here would be.
    actions.commit_info = None
    return actions


def _read_trusted(
    store: LogStore, compaction: CompactionFile, before: Tail, checkpoint: Checkpoint | None
) -> LogActions | None:
    try:
        actions = read_compaction(store, compaction)
    except (CorruptLogError, StorageError) as e:
        _LOGGER.warning("Reading the commits instead of a log compaction of %s: %s", store.uri, e)
        return None
    forgotten = _forgotten_domains(before, actions, checkpoint)
    if forgotten:
        _LOGGER.info(
            "Reading the commits instead of %s: it does not tell whether the domains %s were removed",
            compaction.file.path, forgotten,
        )  # fmt: skip
        return None
    return actions


def _forgotten_domains(before: Tail, actions: LogActions, checkpoint: Checkpoint | None) -> list[str]:
    """Domains that are there before a compaction and that it does not mention.

    They may be untouched, or removed: some writers leave removed domains out of compactions, and so let older metadata
    come back to life.
    """
    domains: dict[str, DomainMetadata] = {}
    protocol = before.protocol
    if checkpoint is not None:
        protocol = protocol or checkpoint.protocol_and_metadata[0]
        # Without the feature there are none, and the checkpoint need not be read for them.
        if any(p is not None and "domainMetadata" in (p.writer_features or ()) for p in (protocol, actions.protocol)):
            domains.update(checkpoint.domain_metadata)
    domains.update(before.domain_metadata)
    return sorted(name for name, d in domains.items() if not d.removed and name not in actions.domain_metadata)
