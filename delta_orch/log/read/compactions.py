"""Log compactions, which stand in for commits where they can be trusted (PROTOCOL, "Log Compaction Files").

A compaction never decides anything: whatever is odd about one, the commits it stands for are read instead. A compaction
does not show what it omits. So only one whose last version has a version checksum is opened, and the state after it
is held against that: at once what is no file, and the files when somebody asks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import CorruptLogError, StorageError
from delta_orch.log.files.commit_reader import LogActions, LogFile, parse_log_files
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.listing import CompactionFile
from delta_orch.log.read.checksum_file import comparable_metadata, comparable_protocol, read_version_checksum
from delta_orch.log.read.reconcile import names_a_file_twice, reconcile_files
from delta_orch.protocol.actions import DomainMetadata, Metadata, Protocol
from delta_orch.protocol.version_checksum import VersionChecksum
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from delta_orch.log.read.checkpoint_reader import Checkpoint
    from delta_orch.log.read.reconcile import TailFiles
    from delta_orch.log.read.replay import Tail

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CompactedRun:
    """A compaction whose files are counted on first use.

    Attributes:
        actions: What it says.
        checksum: Of its last version.
    """

    path: str
    actions: LogActions
    checksum: VersionChecksum
    _checkpoint: Checkpoint | None
    _read_commits: Callable[[], LogActions]

    @property
    def num_files(self) -> int:
        """As `LogActions.num_files`."""
        return self.actions.num_files

    def settled(self, before: TailFiles | None, runs: Sequence[LogActions]) -> LogActions:
        """Its actions where the checksum counts the same files, else those of the commits.

        Args:
            before, runs: The files before it, after the checkpoint.
        """
        counted = _count(reconcile_files(before, [*runs, self.actions]), self._checkpoint)
        recorded = self.checksum.num_files, self.checksum.table_size_bytes
        if counted == recorded:
            return self.actions
        _warn(self.path, f"after it there are {counted} files and bytes, and the version checksum says {recorded}")
        return self._read_commits()


def read_compaction(store: LogStore, compaction: CompactionFile) -> LogActions:
    """The actions of a compaction.

    Raises:
        CorruptLogError: It is not JSON, or speaks of one thing twice: then its writer did not reconcile its actions,
            and as lines of one file have no order, the state after them is unknown.
        StorageError: It cannot be read.
    """
    path = compaction.file.path
    actions = parse_log_files([LogFile(path, compaction.end_version, store.read_bytes(path))])
    if actions.num_superseded or names_a_file_twice(actions):
        raise CorruptLogError(
            f"Log compaction {path.rpartition('/')[2]} is not reconciled",
            cause="It names something more than once, which leaves open what happened to it last",
            remedy="Delete the file: the commits say the same",
            path=path,
        )
    # A commitInfo in a compaction belongs to an unknown commit.
    actions.commit_info = None
    return actions


def read_trusted(
    store: LogStore,
    compaction: CompactionFile,
    before: Tail,
    checkpoint: Checkpoint | None,
    read_commits: Callable[[], LogActions],
) -> CompactedRun | None:
    """A compaction that agrees with its checksum, or None if the commits must be read instead.

    Args:
        before: The state between the checkpoint and the compaction.
        read_commits: Reads the commits it stands for.
    """
    path = compaction.file.path
    try:
        actions = read_compaction(store, compaction)
        checksum = read_version_checksum(store, compaction.end_version)
        if checksum is None:
            _warn(path, "its version checksum is gone or empty")
            return None
        doubt = _doubt(before, actions, checkpoint, checksum)
    except (CorruptLogError, StorageError) as e:
        _warn(f"a log compaction of {store.uri}", str(e))
        return None
    if doubt is not None:
        _warn(path, doubt)
        return None
    forgotten = _forgotten_domains(before, actions, checkpoint)
    if forgotten:
        _LOGGER.info(
            "Reading the commits instead of %s: it does not tell whether the domains %s were removed", path, forgotten
        )
        return None
    return CompactedRun(path, actions, checksum, checkpoint, read_commits)


def _warn(what: str, why: str) -> None:
    _LOGGER.warning("Reading the commits instead of %s: %s", what, why)


def _doubt(before: Tail, actions: LogActions, checkpoint: Checkpoint | None, checksum: VersionChecksum) -> str | None:
    """Where a compaction contradicts the checksum, except for files."""
    after = before.fold(actions)
    older: tuple[Protocol | None, Metadata | None] = (None, None)
    if checkpoint is not None and (after.protocol is None or after.metadata is None):
        older = checkpoint.protocol_and_metadata
    protocol, metadata = after.protocol or older[0], after.metadata or older[1]
    if protocol is None or metadata is None:
        return "there is no protocol or no metadata after it"
    if checksum.protocol is not None and comparable_protocol(protocol) != comparable_protocol(checksum.protocol):
        return "the version checksum has another protocol"
    if checksum.metadata is not None and comparable_metadata(metadata) != comparable_metadata(checksum.metadata):
        return "the version checksum has other metadata"
    recorded = checksum.txns or ()
    unknown = [txn.app_id for txn in recorded if txn.app_id not in after.txns]
    txns = {**(checkpoint.txns.among(unknown) if unknown and checkpoint is not None else {}), **after.txns}
    for txn in recorded:
        earlier_txn = txns.get(txn.app_id)
        if earlier_txn is None or earlier_txn.version != txn.version:
            return f"the version checksum has version {txn.version} of transaction {txn.app_id!r}"
    return None


def _count(files: TailFiles, checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Number and bytes of the live files."""
    tables = [files.adds.select(["size"])]
    if checkpoint is not None:
        from delta_orch.log.read.checkpoint_decoding import iter_live

        tables += iter_live(checkpoint, "add", ["size"], files.touched)
    return sum(table.num_rows for table in tables), sum(FileTable(table).size_bytes for table in tables)


def _forgotten_domains(before: Tail, actions: LogActions, checkpoint: Checkpoint | None) -> list[str]:
    """Domains that are there before a compaction and that it does not mention.

    They may be untouched, or removed: some writers leave removed domains out of compactions, and so let older metadata
    come back to life.
    """
    domains: dict[str, DomainMetadata] = {}
    protocol = before.protocol
    if checkpoint is not None:
        protocol = protocol or checkpoint.protocol_and_metadata[0]
        # Without the feature there are no domains, and the checkpoint need not be read for them.
        if any(p is not None and "domainMetadata" in (p.writer_features or ()) for p in (protocol, actions.protocol)):
            domains.update(checkpoint.domain_metadata)
    domains.update(before.domain_metadata)
    return sorted(name for name, d in domains.items() if not d.removed and name not in actions.domain_metadata)
