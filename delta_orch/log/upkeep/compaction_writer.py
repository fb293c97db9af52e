"""Writing log compactions: a run of commits reconciled into one file (PROTOCOL, "Log Compaction Files").

A compaction says nothing new: readers may take it instead of the commits, which stay. It keeps what reconciliation
keeps for the state before it, removals included: tombstones of files, and removed domains, which without a trace would
come back to life. Readers here open one only where its last version has a version checksum, which is written with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.errors import FileExistsInStoreError
from delta_orch.log.files.commit_json import serialize_actions, serialize_adds, serialize_tombstones
from delta_orch.log.files.commit_reader import parse_log_files, read_commits
from delta_orch.log.read.replay import Tail
from delta_orch.log.upkeep.checksum_writer import compute_checksum, write_checksum
from delta_orch.protocol.actions import Action
from delta_orch.protocol.paths import checksum_path, compaction_path

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.base import FileMeta


def write_compaction(log: TableLog, snapshot: Snapshot, start_version: int, end_version: int) -> FileMeta | None:
    """Write the compaction of the commits `start_version` to `end_version`, both inclusive.

    Args:
        snapshot: Of `end_version`.

    Returns: The file; None where there is one already, which stays as it is, or the commits have nothing in them.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table as it was somewhere
            in the range: it might not understand a commit. Nothing was written.
        VersionNotFoundError: A commit is gone. Nothing was written.
        CorruptLogError: One is damaged. Nothing was written.
        StorageError: Nothing was written.
    """
    _ensure_understood(log, snapshot, start_version, end_version)
    data = _serialize(_reconcile(log, start_version, end_version))
    if not data:
        # To readers an empty file is a broken one.
        return None
    if log.store.head(checksum_path(end_version)) is None:
        write_checksum(log.store, end_version, compute_checksum(snapshot))
    try:
        return log.store.put_if_absent(compaction_path(start_version, end_version), data)
    except FileExistsInStoreError:
        return None


def _ensure_understood(log: TableLog, snapshot: Snapshot, start_version: int, end_version: int) -> None:
    table = snapshot.configuration.for_writing()
    for commit in log.commits(start_version, end_version):
        if commit.protocol is not None:
            table.after(commit.protocol, commit.metadata).for_writing()


def _reconcile(log: TableLog, start_version: int, end_version: int) -> Tail:
    versions = range(start_version, end_version + 1)
    metas = [log.find_commit(version) for version in versions]
    return Tail().fold(parse_log_files(read_commits(log.store, metas, versions)))


def _serialize(tail: Tail) -> bytes:
    small: list[Action] = [action for action in (tail.protocol, tail.metadata) if action is not None]
    small += [*tail.txns.values(), *tail.domain_metadata.values()]
    return serialize_actions(small) + serialize_adds(tail.adds) + serialize_tombstones(tail.tombstones)
