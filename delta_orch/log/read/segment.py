"""Which files of the log make up a version: the newest usable checkpoint and every commit after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from delta_orch.errors import (
    CorruptLogError,
    DeltaError,
    FileMissingInStoreError,
    IncompleteCheckpointError,
    LogGapError,
    StorageError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delta_orch.log.files.listing import CheckpointFiles, CompactionFile, LogListing, list_log
from delta_orch.protocol.last_checkpoint import LastCheckpoint, parse_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, commit_path
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.storage.patience import waiting_at_most

_HINT_S = 2.0
_LOGGER = logging.getLogger(__name__)


class LogSegment(NamedTuple):
    """The files a version is replayed from.

    Attributes:
        version: The version.
        checkpoint: None where replay starts at commit 0.
        commits: Every commit after the checkpoint, or from 0 on, up to `version`, ascending and without a gap.
        version_file: The file whose modification time dates the version: its commit, or its checkpoint where the
            commit was cleaned up.
        compactions: Log compactions that stand for some of the commits; ascending, none overlaps another, and all lie
            between `first_commit` and `version`.
    """

    version: int
    checkpoint: CheckpointFiles | None
    commits: tuple[FileMeta, ...]
    version_file: FileMeta
    compactions: tuple[CompactionFile, ...] = ()

    @property
    def first_commit(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.version + 1

    def runs(self) -> Iterator[tuple[CompactionFile | None, range]]:
        """The commits in pieces, ascending: each either a compaction and the versions it stands for, or versions
        without one."""
        start = self.first_commit
        for compaction in self.compactions:
            if start < compaction.start_version:
                yield None, range(start, compaction.start_version)
            start = compaction.end_version + 1
            yield compaction, range(compaction.start_version, start)
        if start <= self.version:
            yield None, range(start, self.version + 1)

    def commits_of(self, versions: range) -> tuple[FileMeta, ...]:
        """The commit files of some of the versions from `first_commit` on."""
        return self.commits[versions.start - self.first_commit : versions.stop - self.first_commit]


def resolve_segment(store: LogStore, version: int | None = None) -> LogSegment:
    """Find the files of a version, or of the newest one.

    `_last_checkpoint` only says where the listing may begin. Newer checkpoints and commits are always found. If the
    hint leads nowhere, the whole log is listed.

    Raises:
        TableNotFoundError: There is no log.
        VersionNotFoundError: The version was never written, or its log is gone.
        LogGapError: A commit between two others is missing; the error names the first one.
    """
    store = store.at_one_moment()
    hint = read_last_checkpoint(store)
    if hint is not None and (version is None or hint.version <= version):
        listing = list_log(store, hint.version, version)
        target = listing.latest_version if version is None else version
        if target is not None and listing.newest_checkpoint(target) is not None and listing.holds(target):
            return _plan_filling_gaps(store, listing, version)
        _LOGGER.info("_last_checkpoint of %s leads nowhere: listing the whole log", store.uri)
    if version is not None:
        listing = list_log(store, 0, version)
        if listing.holds(version) and (listing.first_commit == 0 or listing.newest_checkpoint(version)):
            return _plan_filling_gaps(store, listing, version)
    # Everything, so that an error can tell which versions there are.
    listing = list_log(store)
    ensure_log_exists(store, listing)
    return _plan_filling_gaps(store, listing, version)


def latest_version(store: LogStore) -> int:
    """The newest version, from a listing only. Raises TableNotFoundError."""
    store = store.at_one_moment()
    hint = read_last_checkpoint(store)
    if hint is not None:
        listing = list_log(store, hint.version)
        if listing.latest_version is not None:
            return listing.latest_version
    listing = list_log(store)
    ensure_log_exists(store, listing)
    latest = listing.latest_version
    assert latest is not None
    return latest


def read_last_checkpoint(store: LogStore) -> LastCheckpoint | None:
    """The checkpoint hint, or None if it is missing, unreadable or malformed. A hint never fails a read: if the store
    cannot be reached, the listing after it raises."""
    try:
        with waiting_at_most(_HINT_S):
            return parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH))
    except FileMissingInStoreError:
        return None
    except CorruptLogError as e:
        _LOGGER.warning("Passing over _last_checkpoint of %s: %s", store.uri, e)
        return None
    except StorageError as e:
        _LOGGER.info("Passing over _last_checkpoint of %s: %s", store.uri, e)
        return None


def ensure_log_exists(store: LogStore, listing: LogListing) -> None:
    """Raises TableNotFoundError where the listing holds neither a commit nor a checkpoint, IncompleteCheckpointError
    where what is left of one tells that there was a table."""
    if listing.latest_version is None:
        if listing.incomplete_checkpoints or read_last_checkpoint(store) is not None:
            raise IncompleteCheckpointError(
                f"The log of the table at {store.uri} has lost its commits",
                cause="What is left of a checkpoint tells no version, and nothing else is there",
                remedy="Restore _delta_log from a backup, or delete it to begin a new table",
            )
        raise TableNotFoundError(
            f"There is no Delta table at {store.uri}",
            cause="Its _delta_log directory is missing or holds neither a commit nor a complete checkpoint",
            remedy="Check the location, create the table by writing to it, or convert its Parquet files with convert()",
            uri=store.uri,
        )


def plan_segment(listing: LogListing, version: int | None = None) -> LogSegment:
    """Choose the files of a version from a listing that is not empty. No I/O.

    Raises as `resolve_segment`, except TableNotFoundError.
    """
    latest = listing.latest_version
    assert latest is not None
    target = latest if version is None else version
    if not listing.holds(target):
        raise _not_found(listing, target)
    checkpoint = listing.newest_checkpoint(target)
    first = 0 if checkpoint is None else checkpoint.version + 1
    missing = next((v for v in range(first, target + 1) if v not in listing.commits), None)
    if missing is not None:
        if version is not None and _was_cleaned_up(listing, missing, target):
            raise _not_found(listing, target)
        raise _gap(listing, missing, target)
    commits = tuple(listing.commits[v] for v in range(first, target + 1))
    commit = listing.commits.get(target)
    dated_by = checkpoint.files[0] if commit is None and checkpoint is not None else listing.commits[target]
    return LogSegment(target, checkpoint, commits, dated_by, _choose_compactions(listing, first, target))


def _choose_compactions(listing: LogListing, first: int, target: int) -> tuple[CompactionFile, ...]:
    """From the oldest commit on, always the furthest compaction that has a checksum to vouch for it."""
    furthest: dict[int, CompactionFile] = {}
    for compaction in listing.compactions:
        start = compaction.start_version
        fits = compaction.has_checksum and first <= start and compaction.end_version <= target
        if fits and (start not in furthest or furthest[start].end_version < compaction.end_version):
            furthest[start] = compaction
    chosen: list[CompactionFile] = []
    for start in sorted(furthest):
        if not chosen or chosen[-1].end_version < start:
            chosen.append(furthest[start])
    return tuple(chosen)


def oldest_version(listing: LogListing) -> int:
    """The oldest version that can still be loaded from a whole, non-empty listing."""
    if 0 in listing.commits or not listing.checkpoints:
        return listing.first_commit or 0
    return min(listing.checkpoints)


def _plan_filling_gaps(store: LogStore, listing: LogListing, version: int | None) -> LogSegment:
    """Plan; where a commit seems to be missing, ask for it by name before believing that.

    A listing that runs while others commit may show a later file and not an earlier one.
    """
    while True:
        try:
            return plan_segment(listing, version)
        except LogGapError as gap:
            missing = gap.context["missing_version"]
            meta = store.head(commit_path(missing))
            if meta is None:
                raise
            commits: Mapping[int, FileMeta] = {**listing.commits, missing: meta}
            listing = listing._replace(commits=commits)


def _was_cleaned_up(listing: LogListing, missing: int, target: int) -> bool:
    """Whether the log simply begins later: commits before some point are gone, and a checkpoint covers them."""
    first = listing.first_commit
    begins_later = missing == 0 and first is not None and first > 0
    return begins_later and any(v > target for v in listing.checkpoints)


def _not_found(listing: LogListing, version: int) -> DeltaError:
    oldest, latest = oldest_version(listing), listing.latest_version
    return VersionNotFoundError(
        f"Version {version} of the table cannot be loaded",
        cause="It was never written, or the part of the log it needs was cleaned up",
        remedy=f"Versions {oldest} to {latest} are there" if oldest != latest else f"Only version {oldest} is there",
        version=version,
        earliest_version=oldest,
        latest_version=latest,
    )


def _gap(listing: LogListing, missing: int, target: int) -> DeltaError:
    return LogGapError(
        f"Commit {missing} is missing from the log",
        cause=f"Version {target} needs it, later commits are there, and no checkpoint covers it",
        remedy=f"Restore {commit_path(missing)} from a backup, or read a version before it",
        version=target,
        missing_version=missing,
        latest_version=listing.latest_version,
    )
