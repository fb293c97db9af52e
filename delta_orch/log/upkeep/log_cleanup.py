"""Removing the part of the log that nobody needs any more (PROTOCOL, "Metadata Cleanup").

It keeps every version since the cut-off, the checkpoint that they are loaded from, and the commit of that checkpoint's
    version, which holds its time.
version, which alone tells its time. It deletes commits, checkpoints, version checksums and log compactions before that
checkpoint, sidecars without a checkpoint, and unfinished files of killed writers. Nothing else.

Only whole days count, so that all who clean up the same day agree.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import CorruptLogError, StorageError
from delta_orch.log.files.listing import CheckpointFiles, LogListing, build_listing
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.log_check import ensure_checkpoint_agrees, ensure_complete
from delta_orch.log.read.segment import oldest_version
from delta_orch.log.read.time_travel import adjusted_file_times
from delta_orch.log.upkeep.checkpoint_writer import write_classic_copy_of
from delta_orch.protocol.paths import LOG_DIRECTORY, SIDECAR_DIRECTORY, LogFileKind, parse_log_path
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.storage.base import Maintenance
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.base import FileMeta, LogStore

_LOGGER = logging.getLogger(__name__)
_DAY_MS = 24 * 60 * 60 * 1000
_SAFE_DAYS = 1
"""So long at least, a file that nothing refers to may still be in the making."""
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The result of a cleanup, or of its dry run.

    Attributes:
        dry_run: Nothing was removed.
        cut_off_ms: Midnight UTC of the day that `delta.logRetentionDuration` reaches back to; milliseconds since the
            epoch.
        earliest_version: The oldest version that can be loaded afterwards; None where no version has expired that a
            checkpoint could stand for, and none is removed.
        paths: Of the files, relative to the table's root, in the order they are removed in.
        size_bytes: Their sizes together.
    """

    dry_run: bool
    cut_off_ms: int
    earliest_version: int | None
    paths: tuple[str, ...]
    size_bytes: int


def clean_up_log(
    log: TableLog,
    snapshot: Snapshot,
    *,
    dry_run: bool = False,
    now_ms: int | None = None,
    cut_off: int | None = None,
) -> CleanupResult:
    """Remove what has expired.

    Interrupted anywhere, the table is as readable as before, and the next cleanup goes on.

    Args:
        snapshot: The newest version; its properties decide. `delta.enableExpiredLogCleanup` does not: whoever calls
            this wants it.
        now_ms: Milliseconds since the epoch; by default the clock's, or the store's where that is a minute behind.
        cut_off: Until when versions expire, milliseconds since the epoch; by default `cut_off_ms`.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table. Nothing was removed.
        UnsupportedStoreError: The store does not say when files were written. Nothing was removed.
        MaintenanceNotAllowedError: The catalog of the table does this itself. Nothing was removed.
        StorageError: A file could not be listed or removed. The files before it in the plan are deleted.
    """
    snapshot.configuration.for_writing()
    store = log.store
    if not dry_run:
        store.ensure_may_maintain(Maintenance.CLEAN_LOG, "cleanup of the log")
    given_ms, given_cut_off = now_ms, cut_off
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    files = list(store.list_recursive(LOG_DIRECTORY))
    listing = build_listing(sorted((f for f in files if _is_in_log(f)), key=lambda f: f.path))
    cut_off = cut_off_ms(snapshot.properties, now_ms) if cut_off is None else cut_off
    checkpoint = _cut_off_checkpoint(store, listing, cut_off)
    if checkpoint is not None and _is_protected(snapshot, checkpoint.version):
        _LOGGER.info("The log of %s is protected beyond its cut-off checkpoint: nothing is removed", store.uri)
        checkpoint = None
    expired: list[FileMeta] = []
    if checkpoint is not None:
        expired = _expired_files(files, checkpoint.version, commits_first=_has_protection(snapshot))
    is_cut = bool(expired)
    expired += _orphans(store, files, listing, 0 if checkpoint is None else checkpoint.version, now_ms)
    if expired and not dry_run:
        # Each append imports this module.
        from delta_orch.storage.store_clock import present_ms

        if given_ms is None and (ahead_ms := now_ms - present_ms(store, now_ms)):
            earlier = None if given_cut_off is None else given_cut_off - ahead_ms
            return clean_up_log(log, snapshot, now_ms=now_ms - ahead_ms, cut_off=earlier)
        if is_cut and checkpoint is not None:
            _keep_a_classic_name(log, snapshot, listing, checkpoint.version)
        _delete(store, [f.path for f in expired])
    earliest = checkpoint.version if checkpoint is not None and expired else None
    return CleanupResult(dry_run, cut_off, earliest, tuple(f.path for f in expired), sum(f.size for f in expired))


def cut_off_ms(properties: TableProperties, now_ms: int) -> int:
    """Midnight UTC of the day that the retention reaches back to."""
    return (now_ms - properties.log_retention_ms) // _DAY_MS * _DAY_MS


def _safe_ms(now_ms: int) -> int:
    """Older unfinished files belong to no running writer. The limit is a day, at midnight UTC."""
    return now_ms // _DAY_MS * _DAY_MS - _SAFE_DAYS * _DAY_MS


def _cut_off_checkpoint(store: LogStore, listing: LogListing, cut_off: int) -> CheckpointFiles | None:
    """The newest checkpoint not newer than the newest commit not newer than the cut-off; only one that is whole,
    and that its version checksum, or without one the log before it, does not contradict, may stand for what is
    removed."""
    times = adjusted_file_times(listing.commits)
    cut_off_commit = max((version for version, time_ms in times.items() if time_ms <= cut_off), default=-1)
    for version in sorted((v for v in listing.checkpoints if v <= cut_off_commit), reverse=True):
        checkpoint = listing.checkpoints[version][0]
        whole = Checkpoint(store, checkpoint)
        try:
            ensure_complete(whole)
            if not whole.agrees_with_checksum:
                # Begins with what nobody vouches for only where nothing else is left of the time before.
                oldest = oldest_version(listing)
                vouched = {v: c for v, c in listing.checkpoints.items() if v == oldest or c[0].has_checksum}
                before = listing._replace(checkpoints=vouched)
                ensure_checkpoint_agrees(store, before, checkpoint, with_commits=True)
        except CorruptLogError as e:
            _LOGGER.warning("A checkpoint of %s cannot stand for the commits before it: %s", store.uri, e)
            continue
        return checkpoint
    return None


def _has_protection(snapshot: Snapshot) -> bool:
    return snapshot.configuration.supports("checkpointProtection")


def _is_protected(snapshot: Snapshot, version: int) -> bool:
    """Whether history that must go in one piece, or not at all, would go in part (`checkpointProtection`)."""
    before = snapshot.properties.require_checkpoint_protection_before_version or 0
    return _has_protection(snapshot) and version < before


def _expired_files(files: Iterable[FileMeta], kept: int, *, commits_first: bool) -> list[FileMeta]:
    """The files before version `kept`, oldest version first, so that the rest of the log stays contiguous at every
    moment.

    Args:
        commits_first: All commits before any checkpoint: protected checkpoints must outlive the commits they shield.
    """
    expired = []
    for file in files:
        path = parse_log_path(file.path.rpartition("/")[2]) if _is_in_log(file) else None
        if path is None:
            continue
        is_compaction = path.kind is LogFileKind.COMPACTION
        if path.version < kept or (is_compaction and path.version == kept):
            expired.append((commits_first and path.is_checkpoint, path.version, path.is_checkpoint, file.path, file))
    return [file for *_, file in sorted(expired, key=lambda entry: entry[:-1])]


def _keep_a_classic_name(log: TableLog, snapshot: Snapshot, listing: LogListing, kept: int) -> None:
    """See to it that readers that do not know UUID-named checkpoints find one (PROTOCOL, "Handling Backward
    compatibility while moving to UUID-named v2 Checkpoints")."""
    if not snapshot.configuration.supports("v2Checkpoint"):
        return
    remaining = {version: checkpoints for version, checkpoints in listing.checkpoints.items() if version >= kept}
    if any(c.kind is not LogFileKind.CHECKPOINT_UUID for checkpoints in remaining.values() for c in checkpoints):
        return
    for version in sorted(remaining, reverse=True):
        try:
            write_classic_copy_of(log.store, log.snapshot(version))
        except CorruptLogError as e:
            _LOGGER.warning("A checkpoint of %s cannot be copied: %s", log.store.uri, e)
        else:
            return


def _orphans(store: LogStore, files: Sequence[FileMeta], listing: LogListing, kept: int, now_ms: int) -> list[FileMeta]:
    """Sidecars that no checkpoint from version `kept` on refers to, whatever they are called, and then what killed
    writers have left of files that never got their names. Files of the last day or two stay: their checkpoint may be
    in the making.
    """
    old = [file for file in files if file.modification_time_ms < _safe_ms(now_ms)]
    unnamed = [file for file in old if _is_in_log(file) and _is_temporary(file)]
    sidecars = [file for file in old if file.path.startswith(f"{SIDECAR_DIRECTORY}/")]
    if not sidecars:
        return unnamed
    checkpoints = [c for version, of_version in listing.checkpoints.items() if version >= kept for c in of_version]
    try:
        referred = {path for c in checkpoints for path in Checkpoint(store, c).sidecar_paths}
    except (CorruptLogError, StorageError) as e:
        _LOGGER.warning(
            "Keeping all sidecars of %s, as one checkpoint does not tell which are its own: %s", store.uri, e
        )
        return unnamed
    orphaned = [file for file in sidecars if file.path not in referred]
    return [*sorted(orphaned, key=_is_temporary), *unnamed]


def _is_in_log(file: FileMeta) -> bool:
    return file.path.rpartition("/")[0] == LOG_DIRECTORY


def _is_temporary(file: FileMeta) -> bool:
    """Whether it is called as what a killed writer leaves."""
    return _TEMPORARY.fullmatch(file.path.rpartition("/")[2]) is not None


def _delete(store: LogStore, paths: Sequence[str]) -> None:
    # In about the order of the plan: whatever is left when this is interrupted, the log begins somewhere.
    for _ in map(store.delete, paths) if store.is_near else map_ahead(store.delete, paths, FAR_THREADS):
        pass
