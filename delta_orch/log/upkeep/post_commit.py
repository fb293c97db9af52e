"""The work after a commit: its version checksum, a checkpoint when it is due, and the cleanup of expired files.

Nothing here can fail the commit, which is already visible. Errors are logged, and the next commit tries again. Nothing
is done that is not due:

* The checksum is derived from the one before and the commit, on stores where reading and writing a small file costs
  less than the commit itself by far. Across a network, each request would add to the time of every commit: there
  versions with a checkpoint get one, counted while the files pass by on their way into it.
* A checkpoint is due every `delta.checkpointInterval` versions.
* Between two checkpoints, commits are compacted every `delta_orch.logCompactionInterval` versions, if that is set.
* With a checkpoint the log is cleaned up (`delta.enableExpiredLogCleanup`), once a day: its rules go by whole days.

The caller waits for a checkpoint of few files, which costs about as much as a commit. A larger one is written after the
call has returned (`background`). Where processes are ended too early for that again and again, checkpoints fall behind:
one that finds them far behind writes one before it returns.

Rare work is imported at its use, because most tasks append once, in a process of their own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError, IncompleteCheckpointError
from delta_orch.log.files.commit_json import serialize_actions, serialize_adds, serialize_tombstones
from delta_orch.log.files.commit_reader import parse_log_files, read_commits
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.replay import Tail
from delta_orch.log.read.segment import read_last_checkpoint
from delta_orch.log.upkeep.background import is_known_to_complete, run_behind
from delta_orch.log.upkeep.checkpoint_pointer import is_version_present
from delta_orch.log.upkeep.checksum_writer import StateCounter, compute_checksum, derive_checksum, write_checksum
from delta_orch.log.write.commit_options import Committed
from delta_orch.protocol.actions import Action
from delta_orch.protocol.paths import checksum_path, compaction_path
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.version_checksum import VersionChecksum, parse_version_checksum

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.base import FileMeta, LogStore

_LOGGER = logging.getLogger(__name__)
_MAX_REMEMBERED = 1000
_FEW_FILES = 100_000
# Of the checkpoints a caller waits for: where the store is near a tenth of a second, else some megabytes to and fro.
_QUICK_ACTIONS = 100_000
_QUICK_ACTIONS_FAR = 10_000
_FAR_BEHIND_INTERVALS = 5

UPKEEP_VARIABLE = "DELTA_ORCH_UPKEEP"
"""`foreground` in this environment variable lets every commit wait for the upkeep it makes due."""

_cleaned_up: dict[str, int] = {}
"""The cut-off time of the last cleanup of a table by this process. Forgetting costs a listing."""

_last_written: list[tuple[bytes, VersionChecksum] | None] = [None]
"""The last checksum that this process derived: its text and its parsed fields."""


def do_upkeep(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """Do what is due after a commit of this process. Raises nothing.

    Args:
        read: An older snapshot, so that the log need not be read again.
    """
    store, version = log.store, commit.version
    if store.is_near:
        with _attempting(log, version, "write the checksum"):
            _write_checksum(store, commit)
    if commit.table.properties.symlink_manifests:
        from delta_orch.log.upkeep.manifest_writer import keep_manifests

        with _attempting(log, version, "write the symlink manifests"):
            keep_manifests(log, read, commit)
    with _attempting(log, version, "report the commit"):
        if store.is_catalog_managed:
            store.report_commit(_figures(commit))
    if version:
        with _attempting(log, version, "write the checkpoint"):
            _do_or_defer(log, read, commit)


def _figures(commit: Committed) -> dict[str, int | None]:
    """The properties of a commit that catalogs ask for."""
    actions = commit.actions
    return {
        "num-files-added": actions.num_added,
        "num-bytes-added": sum(FileTable(files).size_bytes for files in actions.adds),
        "num-files-removed": actions.num_removed,
    }


def _do_or_defer(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    version, properties = commit.version, commit.table.properties
    if not log.store.publish(version):
        return  # Neither a checkpoint nor a compaction may stand for it.
    if version % properties.checkpoint_interval:
        interval = properties.log_compaction_interval
        if interval is not None and version % interval == 0:
            with _attempting(log, version, "compact the log"):
                _compact_log(log, read, version, interval, properties.checkpoint_interval)
        return

    def act() -> None:
        with _attempting(log, version, "write the checkpoint"):
            _write_checkpoint(log, read, version)
        if properties.enable_expired_log_cleanup and not log.store.is_catalog_managed:
            with _attempting(log, version, "clean up the log"):
                _clean_up_once_a_day(log, version, properties)

    if _may_wait_for(log.store, read, commit):
        act()
    else:
        run_behind(log.store.uri, act)


def _may_wait_for(store: LogStore, read: Snapshot | None, commit: Committed) -> bool:
    """Whether the caller waits for the checkpoint: it is quickly written, or must be written at last."""
    if os.environ.get(UPKEEP_VARIABLE, "").lower() == "foreground":
        return True
    last = read_last_checkpoint(store)
    actions = 0 if last is None else last.size or 0
    since = 0 if read is None else read.tail.most_files
    if actions + since + commit.actions.num_added <= (_QUICK_ACTIONS if store.is_near else _QUICK_ACTIONS_FAR):
        return True
    behind = commit.version - (0 if last is None else last.version)
    is_far_behind = behind >= _FAR_BEHIND_INTERVALS * commit.table.properties.checkpoint_interval
    return is_far_behind and not is_known_to_complete(store.uri)


def _write_checksum(store: LogStore, commit: Committed) -> None:
    before = None if commit.before is None else _read_checksum(store, commit.version - 1)
    checksum = derive_checksum(before, commit)
    if checksum is not None and (data := write_checksum(store, commit.version, checksum)) is not None:
        _last_written[0] = (data, checksum)


def _read_checksum(store: LogStore, version: int) -> VersionChecksum | None:
    """The checksum of a version: always read, but parsed only where it is not what this process has just written."""
    try:
        data = store.read_bytes(checksum_path(version))
    except FileMissingInStoreError:
        return None
    if not data:
        # A crash of the machine may leave a damaged file here, because it is not synced.
        return None
    last = _last_written[0]
    return last[1] if last is not None and last[0] == data else parse_version_checksum(data, checksum_path(version))


def _write_checkpoint(log: TableLog, read: Snapshot | None, version: int) -> None:
    snapshot = _snapshot_of(log, read, version)
    try:
        _write_watched_checkpoint(log, snapshot)
    except IncompleteCheckpointError:
        # An old snapshot may rest on a checkpoint that was cleaned up since.
        _write_watched_checkpoint(log, log.snapshot(version))


def _compact_log(log: TableLog, read: Snapshot | None, version: int, interval: int, checkpoint_interval: int) -> None:
    """Compact the commits since the last compaction, or since the last checkpoint."""
    checkpointed = version // checkpoint_interval * checkpoint_interval
    start = max(version - interval, checkpointed) + 1
    if start < version:
        write_compaction(log, _snapshot_of(log, read, version), start, version)


def _snapshot_of(log: TableLog, read: Snapshot | None, version: int) -> Snapshot:
    if read is not None:
        snapshot = log.advance(read, up_to=version, may_rebase=False)
        # In the background, another table may have taken this path in the meantime.
        if snapshot.version == version and is_version_present(log.store, read):
            return snapshot
    return log.snapshot(version)


def _write_watched_checkpoint(log: TableLog, snapshot: Snapshot) -> None:
    """Write a checkpoint, and the checksum of its version if that is missing and needs no further read."""
    from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint

    if log.store.head(checksum_path(snapshot.version)) is not None:
        write_checkpoint(log, snapshot)
        return
    counter = StateCounter(snapshot)
    if write_checkpoint(log, snapshot, watch=counter.watch):
        write_checksum(log.store, snapshot.version, counter.checksum())
    elif _has_few_files(snapshot):
        write_checksum(log.store, snapshot.version, compute_checksum(snapshot))


def _has_few_files(snapshot: Snapshot) -> bool:
    groups = [] if snapshot.checkpoint is None else snapshot.checkpoint.row_groups("add")
    return sum(group.num_rows for group in groups) <= _FEW_FILES


def _clean_up_once_a_day(log: TableLog, version: int, properties: TableProperties) -> None:
    """Unless this process has already cleaned up to where it would today."""
    from delta_orch.log.upkeep.log_cleanup import clean_up_log, cut_off_ms

    cut_off = cut_off_ms(properties, time.time_ns() // 1_000_000)
    if _cleaned_up.get(log.store.uri) == cut_off:
        return
    clean_up_log(log, log.snapshot(version))
    if len(_cleaned_up) >= _MAX_REMEMBERED:
        _cleaned_up.clear()
    _cleaned_up[log.store.uri] = cut_off


@contextmanager
def _attempting(log: TableLog, version: int, what: str) -> Iterator[None]:
    """Log a failure of the block, as the commit is visible and the next commit tries again."""
    try:
        yield
    except Exception:
        _LOGGER.warning("Could not %s of version %d of %s", what, version, log.store.uri, exc_info=True)


# Writing log compactions: a run of commits reconciled into one file (PROTOCOL, "Log Compaction Files").
#
# A compaction adds no information: readers may read it instead of the commits, which remain. It keeps what
# reconciliation keeps for the state before it, removals included: tombstones of files, and removed domains, which
# without a trace would come back to life. Readers here open one only where its last version has a version checksum,
# which is written with it.


def write_compaction(log: TableLog, snapshot: Snapshot, start_version: int, end_version: int) -> FileMeta | None:
    """Write the compaction of the commits `start_version` to `end_version`, both inclusive.

    Args:
        snapshot: Of `end_version`.

    Returns: The file; None if it exists already (it is not changed) or if the commits are empty.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table as it was somewhere
            in the range: it might not understand a commit. Nothing was written.
        VersionNotFoundError: A commit is gone. Nothing was written.
        CorruptLogError: One is damaged. Nothing was written.
        StorageError: Nothing was written.
    """
    from delta_orch.log.upkeep.checkpoint_writer import ensure_published

    _ensure_understood(log, snapshot, start_version, end_version)
    ensure_published(log.store, end_version)
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
