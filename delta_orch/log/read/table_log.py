"""The log of one table: the way from a store to snapshots, commits and history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from delta_orch.errors import InvalidRequestError, LogGapError, VersionNotFoundError
from delta_orch.log.files.commit_reader import (
    Commit,
    LogActions,
    LogFile,
    parse_commit,
    parse_log_files,
    read_commit,
    read_commits,
    read_paths,
)
from delta_orch.log.files.listing import LogListing, list_log
from delta_orch.log.read import segment as segments
from delta_orch.log.read.replay import Tail
from delta_orch.log.read.segment import LogSegment, read_last_checkpoint, resolve_segment
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.actions import Metadata, Protocol, Txn
from delta_orch.protocol.paths import LOG_DIRECTORY, commit_path
from delta_orch.storage.base import FileMeta, LogStore

if TYPE_CHECKING:
    from delta_orch.log.read.checkpoint_reader import Checkpoint
    from delta_orch.log.read.history import HistoryEntry

CommitObserver: TypeAlias = "Callable[[TableLog, Snapshot | None, Any], None]"

_MAX_PROBES = 16
_REBASE_COMMITS = 50
_COMMITS_AT_ONCE = 64


class TableLog:
    """Reads the log of the table in a store. Holds no state: safe to share between threads, and across a fork.

    Args:
        store: The table's store. Nothing is touched before a method is called.
        snapshot_class: What `snapshot` and `advance` make; a subclass of `Snapshot` with the same constructor.
        observer: Called after every successful commit of this object with the log, the snapshot that the commit started
            from, and the commit (`log.write.commit_options.Committed`). It must not raise. `do_upkeep` of
            `log.upkeep.post_commit` keeps the log short; None does nothing.
    """

    def __init__(
        self, store: LogStore, snapshot_class: type[Snapshot] = Snapshot, observer: CommitObserver | None = None
    ) -> None:
        self.store = store
        self.snapshot_class = snapshot_class
        self.observer = observer

    def exists(self) -> bool:
        """Whether there is a table: one request where it has a commit 0 or a checkpoint hint, else a listing."""
        store = self.store.at_one_moment()
        if store.head(commit_path(0)) is not None or segments.read_last_checkpoint(store) is not None:
            return True
        listing = list_log(store)
        return listing.latest_version is not None or bool(listing.incomplete_checkpoints)

    def latest_version(self) -> int:
        """The newest version, without replaying anything. Raises TableNotFoundError."""
        return segments.latest_version(self.store)

    def earliest_version(self) -> int:
        """The oldest version `snapshot` can load. Raises TableNotFoundError."""
        return segments.oldest_version(self._list_all())

    def has_version(self, version: int) -> bool:
        """Whether the commit is there: exactly one metadata request, never a listing."""
        return self.store.head(commit_path(version)) is not None

    def snapshot(self, version: int | None = None, timestamp_ms: int | None = None) -> Snapshot:
        """Load a version: the newest, one by number, or the newest that is not younger than a time.

        Args:
            version: A version; not together with `timestamp_ms`.
            timestamp_ms: Milliseconds since the epoch. Commits are of the time that `history` tells: the newest
                version whose `timestamp_ms` is not above this one.

        Raises:
            TableNotFoundError: There is no log.
            VersionNotFoundError: The version was never written, or its log is gone.
            TimestampOutOfRangeError: Before the oldest version that can be loaded, or after the newest.
            CorruptLogError: A file of the log is damaged or missing (`LogGapError`, `IncompleteCheckpointError`), or
                breaks the protocol (`ProtocolViolationError`).
            UnsupportedFeatureError, UnsupportedVersionError: That version needs what this release does not read.
        """
        if timestamp_ms is not None:
            if version is not None:
                raise InvalidRequestError("Both a version and a timestamp are given", remedy="Give one of them")
            from delta_orch.log.read.time_travel import resolve_timestamp

            version = resolve_timestamp(self.store, self._list_all(), self.snapshot().properties, timestamp_ms)
        segment = segments.resolve_segment(self.store, version)
        checkpoint = self._checkpoint_of(segment)
        return self._load(segment, checkpoint)

    def _load(self, segment: LogSegment, checkpoint: Checkpoint | None) -> Snapshot:
        tail = replay_segment(self.store, segment, checkpoint)
        return self.snapshot_class(self.store, segment, checkpoint, tail)

    def newest(self, known: Snapshot | None = None) -> Snapshot:
        """The newest version; only commits after `known` are read, if that belongs to the table at the location. The
        table may have been deleted, and another one created in its place. Raises as `snapshot`."""
        if known is None or not self.store.is_unchanged(known.segment.version_file):
            return self.snapshot()
        return self.advance(known)

    def advance(self, snapshot: Snapshot, up_to: int | None = None, *, may_rebase: bool = True) -> Snapshot:
        """The newest version, from a snapshot of an older one: only commits that are new are read.

        With nothing new it costs one metadata request and returns the very same object. Every 50 commits it looks for
        a newer checkpoint to start from, so that a long-lived reader neither gathers commits without end nor clings
        to a checkpoint that log cleanup removes one day.

        Args:
            up_to: Go no further than this version.
            may_rebase: Whether to look for a newer checkpoint, which a snapshot of short life is not worth.

        Raises as `snapshot`.
        """
        commits = self._commits_after(snapshot.version)
        if up_to is not None:
            commits = commits[: max(up_to - snapshot.version, 0)]
        if not commits:
            return snapshot
        version = snapshot.version + len(commits)
        tail = snapshot.tail.fold(
            parse_log_files(read_commits(self.store, commits, range(snapshot.version + 1, version + 1)))
        )
        if may_rebase and self._should_rebase(snapshot.segment, version):
            return self._rebase(version, tail.protocol or snapshot.protocol, tail.metadata or snapshot.metadata)
        segment = snapshot.segment._replace(
            version=version, commits=(*snapshot.segment.commits, *commits), version_file=commits[-1]
        )
        return self.snapshot_class(self.store, segment, snapshot.checkpoint, tail, snapshot)

    def _rebase(self, version: int, protocol: Protocol, metadata: Metadata) -> Snapshot:
        """A version from its newest checkpoint. Protocol and metadata come from the commits, so the checkpoint need not
        be read for them."""
        segment = segments.resolve_segment(self.store, version)
        checkpoint = self._checkpoint_of(segment)
        tail = replay_segment(self.store, segment, checkpoint)
        return self.snapshot_class(self.store, segment, checkpoint, replace(tail, protocol=protocol, metadata=metadata))

    def _checkpoint_of(self, segment: LogSegment) -> Checkpoint | None:
        if segment.checkpoint is None:
            return None
        from delta_orch.log.read.checkpoint_reader import Checkpoint

        return Checkpoint(self.store, segment.checkpoint)

    def _should_rebase(self, segment: LogSegment, version: int) -> bool:
        """Whether a snapshot of `version` is better loaded from a checkpoint newer than the segment's."""
        so_far, then = len(segment.commits), len(segment.commits) + version - segment.version
        if so_far // _REBASE_COMMITS == then // _REBASE_COMMITS:
            return False
        hint = segments.read_last_checkpoint(self.store)
        return hint is not None and segment.first_commit <= hint.version <= version

    def _commits_after(self, version: int) -> list[FileMeta]:
        """The commits that follow, contiguous: probed one by one, listed where there are many."""
        files: list[FileMeta] = []
        store = self.store.at_one_moment()
        while (meta := store.head(commit_path(version + 1 + len(files)))) is not None:
            files.append(meta)
            if len(files) == _MAX_PROBES:
                listed = list_log(store, version + 1 + len(files)).commits
                while (meta := listed.get(version + 1 + len(files))) is not None:
                    files.append(meta)
        return files

    def read_commit(self, version: int) -> Commit:
        """One commit, complete.

        Raises:
            VersionNotFoundError: There is no such commit: never written, or cleaned up.
            CorruptLogError: It is damaged; the error names the file.
        """
        return read_commit(self.store, self.find_commit(version), version)

    def last_txn(self, app_id: str) -> Txn | None:
        """The newest `txn` action of an application id, or None. An action that `delta.setTransactionRetentionDuration`
        has expired counts. The log is read newest first, no further than to that action.

        Raises:
            TableNotFoundError: There is no log.
            CorruptLogError: A file that had to be read is damaged or missing.
        """

        return read_last_txn(self.store, app_id)

    def find_commit(self, version: int) -> FileMeta:
        """The file of a commit. Raises VersionNotFoundError."""
        meta = self.store.head(commit_path(version))
        if meta is None:
            raise VersionNotFoundError(
                f"Commit {version} of {self.store.uri} is not there",
                cause="It was never written, or was cleaned up",
                remedy="See the table's history for the commits that are there",
                version=version,
            )
        return meta

    def commits(self, start: int, end: int) -> Iterator[Commit]:
        """The commits of versions `start` to `end`, both inclusive, ascending, read as they are asked for: from a far
        store some at once.

        Raises as `read_commit`.
        """
        if start == end or self.store.is_near:
            for version in range(start, end + 1):
                yield self.read_commit(version)
            return
        listed = list_log(self.store, start, end).commits
        for first in range(start, end + 1, _COMMITS_AT_ONCE):
            versions = range(first, min(first + _COMMITS_AT_ONCE, end + 1))
            metas = [listed.get(version) or self.find_commit(version) for version in versions]
            for meta, file in zip(metas, read_commits(self.store, metas, versions), strict=True):
                yield parse_commit(file, meta)

    def newest_first(self, newest: int, oldest: int = 0) -> Iterator[Commit]:
        """The commits of a range that the log still holds, newest first, read as they are asked for: from a far store
        one, then ever more at once. Raises CorruptLogError: One is damaged."""
        last, at_once, most = newest, 1, 1 if self.store.is_near else _COMMITS_AT_ONCE
        while last >= oldest:
            first = max(oldest, last - at_once + 1)
            try:
                commits = list(self.commits(first, last))
            except VersionNotFoundError:
                if first == last:
                    return  # Cleaned up, and all before it.
                at_once = most = 1
                continue
            yield from reversed(commits)
            last, at_once = first - 1, min(4 * at_once, most)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """What the commits say about themselves, newest first: every commit the log holds, before a gap, too.

        Args:
            limit: At most that many; None for all.

        Raises:
            InvalidRequestError: The limit is no integer from 0.
            TableNotFoundError: There is no log.
            CorruptLogError: A commit is damaged, or is listed and cannot be found (`LogGapError`).
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidRequestError(f"A limit is an integer from 0, not {limit!r}")
        from delta_orch.log.read.history import read_history

        commits = self._list_all().commits
        while True:
            try:
                return read_history(self.store, commits, limit)
            except LogGapError as gap:
                commits = self._list_all().commits
                # A commit that is no longer listed was cleaned up in the meantime.
                if gap.context["version"] in commits:
                    raise

    def _list_all(self) -> LogListing:
        store = self.store.at_one_moment()
        listing = list_log(store)
        segments.ensure_log_exists(store, listing)
        return listing


# The last transaction identifier of one application, newest commit first (PROTOCOL, "Transaction Identifiers").
#
# A table's state needs every commit since the last checkpoint, one identifier only those since it was recorded. Commits
# are searched as bytes: only the lines that may hold the identifier are parsed.


_TXN = b'"txn"'
_MOST_AT_ONCE = 256
_COMMIT_NAME_LENGTH = len("00000000000000000000.json")


def read_last_txn(store: LogStore, app_id: str) -> Txn | None:
    """The newest `txn` action of an application id, or None if the log has no such action. Expired actions count.

    Raises:
        TableNotFoundError: There is no log.
        CorruptLogError: A file that had to be read is damaged or missing. A file that has no line to parse is not
            checked.
    """
    store = store.at_one_moment()
    versions = _uncheckpointed(store)
    checkpoint = None
    if versions is None:
        segment = resolve_segment(store)
        versions = range(segment.first_commit, segment.version + 1)
        checkpoint = segment.checkpoint
    for file in _newest_first(store, versions):
        if (txn := _find(file, app_id)) is not None:
            return txn
    if checkpoint is None:
        return None
    from delta_orch.log.read.checkpoint_reader import Checkpoint

    return Checkpoint(store, checkpoint).txns.get(app_id)


def _uncheckpointed(store: LogStore) -> range | None:
    """The versions of a log of nothing but commits, from the names of its files alone; None for every other log."""
    if read_last_checkpoint(store) is not None:
        return None
    names = store.list_names(LOG_DIRECTORY)
    commits = [name for name in names if len(name) == _COMMIT_NAME_LENGTH and name.endswith(".json")]
    if not commits or any(".checkpoint." in name for name in names):
        return None
    first, last = commits[0][:-5], commits[-1][:-5]
    is_whole = first.strip("0") == "" and last.isdecimal() and int(last) == len(commits) - 1
    return range(len(commits)) if is_whole else None


def _newest_first(store: LogStore, versions: range) -> Iterator[LogFile]:
    stop, count = versions.stop, 1
    while stop > versions.start:
        start = max(versions.start, stop - count)
        batch: Sequence[int] = range(stop - 1, start - 1, -1)
        yield from read_paths(store, [commit_path(version) for version in batch], batch)
        stop, count = start, min(2 * count, _MOST_AT_ONCE)


def _find(file: LogFile, app_id: str) -> Txn | None:
    """The application's `txn` in a commit. A line with an escape may spell the application id in another way."""
    data, txn = file.data, None
    position = data.find(_TXN)
    while position >= 0:
        end = data.find(b"\n", position)
        line = data[data.rfind(b"\n", 0, position) + 1 : len(data) if end < 0 else end]
        if b"\\" in line or orjson.dumps(app_id) in line:
            txn = parse_log_files([LogFile(file.path, file.version, line)]).txns.get(app_id, txn)
        position = -1 if end < 0 else data.find(_TXN, end)
    return txn


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
