"""From a point in time to a version (PROTOCOL, "Recommendations for Readers of Tables with In-Commit Timestamps")."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from delta_orch.errors import DeltaError, TimestampOutOfRangeError
from delta_orch.log.commit_reader import read_commit
from delta_orch.log.listing import LogListing
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.storage.base import FileMeta, LogStore


def resolve_timestamp(store: LogStore, listing: LogListing, properties: TableProperties, timestamp_ms: int) -> int:
    """The newest version that was committed at or before a time.

    File times count with each at least a millisecond after the one before, as copied or touched files may not be in
    order; in-commit timestamps are in order by themselves, and only the commits a binary search meets are read.

    Args:
        listing: The whole log.
        properties: Of the newest version.

    Raises:
        TimestampOutOfRangeError: The time is before the oldest commit of the log, or after the newest.
        CorruptLogError: A commit that had to be read is damaged.
    """
    commits = _newest_run(listing)
    versions = sorted(commits)
    if not properties.enable_in_commit_timestamps:
        return _by_file_time(versions, commits, timestamp_ms, is_newest=True)
    enabled_from = properties.in_commit_timestamp_enablement_version or 0
    enabled_ms = properties.in_commit_timestamp_enablement_ms
    if enabled_ms is not None and timestamp_ms < enabled_ms:
        before = [v for v in versions if v < enabled_from]
        return _by_file_time(before, commits, timestamp_ms, is_newest=False)
    since = [v for v in versions if v >= enabled_from]
    return _by_in_commit_time(store, since, commits, timestamp_ms)


def _newest_run(listing: LogListing) -> dict[int, FileMeta]:
    """The commits from the newest one back to the first gap."""
    run: dict[int, FileMeta] = {}
    version = max(listing.commits, default=-1)
    while (meta := listing.commits.get(version)) is not None:
        run[version] = meta
        version -= 1
    return run


def _by_file_time(versions: Sequence[int], commits: dict[int, FileMeta], timestamp_ms: int, *, is_newest: bool) -> int:
    times = list(accumulate((commits[v].modification_time_ms for v in versions), lambda a, b: max(b, a + 1)))
    position = bisect_right(times, timestamp_ms)
    if not position or (is_newest and timestamp_ms > times[-1]):
        raise _out_of_range(timestamp_ms, times[0] if times else None, times[-1] if times else None)
    return versions[position - 1]


def _by_in_commit_time(
    store: LogStore, versions: Sequence[int], commits: dict[int, FileMeta], timestamp_ms: int
) -> int:
    def time_of(version: int) -> int:
        return read_commit(store, commits[version], version).timestamp_ms

    if not versions:
        raise _out_of_range(timestamp_ms, None, None)
    newest_ms = time_of(versions[-1])
    position = bisect_right(versions, timestamp_ms, key=time_of)
    if not position or timestamp_ms > newest_ms:
        raise _out_of_range(timestamp_ms, time_of(versions[0]), newest_ms)
    return versions[position - 1]


def _out_of_range(timestamp_ms: int, oldest_ms: int | None, newest_ms: int | None) -> DeltaError:
    return TimestampOutOfRangeError(
        f"No version of the table belongs to the time {timestamp_ms} ms",
        cause=f"The commits of its log span {oldest_ms} to {newest_ms} ms since the epoch"
        if oldest_ms is not None
        else "Its log has no commit of that time",
        remedy="Choose a time between them, or a version",
        timestamp_ms=timestamp_ms,
        earliest_ms=oldest_ms,
        latest_ms=newest_ms,
    )
