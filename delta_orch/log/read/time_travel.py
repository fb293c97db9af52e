"""Which version a caller means: by its number, or by a time (PROTOCOL, "Recommendations for Readers of Tables with
In-Commit Timestamps")."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from delta_orch.errors import DeltaError, InvalidRequestError, ProtocolViolationError, TimestampOutOfRangeError
from delta_orch.log.files.commit_reader import in_commit_timestamp_ms, read_commit
from delta_orch.log.files.listing import LogListing, list_log
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.storage.base import FileMeta, LogStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT = re.compile(r"[vV][0-9]{1,18}|[0-9]{17}", re.ASCII)

Timestamp = datetime | str | int
"""A point in time: a datetime (naive means UTC), ISO 8601 text, or milliseconds since the epoch."""


def ensure_version(version: object, name: str = "version") -> None:
    """Raise InvalidRequestError for what is no version's number. `name` is that of the argument."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise InvalidRequestError(
            f"{name} must be an integer from 0, not {version!r}", remedy="history() lists the versions there are"
        )


def parse_timestamp_ms(timestamp: Timestamp) -> int:
    """Milliseconds since the epoch; parts of a millisecond are cut off.

    Raises:
        InvalidRequestError: Neither a datetime, nor ISO 8601 text, nor an integer.
    """
    value: object = timestamp
    if isinstance(value, str):
        # Python 3.11 reads an offset of less than a second as none. ISO 8601 has no fractions of a second here.
        if "." in value[value.rfind("+" if "+" in value else "-") :] and ("+" in value or value.count("-") > 2):
            raise InvalidRequestError(
                f"{timestamp!r} is not a point in time",
                cause="Its offset from UTC has parts of a second",
                remedy="Write it like 2013-01-01T00:00:00Z",
            )
        # Python's own error would repeat the whole text.
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        # Opening a table does not need it.
        from delta_orch.protocol.epoch import micros_since_epoch

        return micros_since_epoch(value) // 1000
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRequestError(
        f"{timestamp!r} is not a point in time",
        remedy="Pass a datetime, text like 2013-01-01T00:00:00Z (ISO 8601), or whole milliseconds since the epoch",
    )


def split_version(path: str) -> tuple[str, int | None, str | None] | None:
    """The path, the version or the moment in UTC of `path@v1` or `path@yyyyMMddHHmmssSSS`; None for another path."""
    path, _, at = path.rpartition("@")
    version = version_behind_at(at)
    return (path, *version) if path and version is not None else None


def version_behind_at(text: str) -> tuple[int | None, str | None] | None:
    """The version or timestamp after `@`; None if the text is neither."""
    if _AT.fullmatch(text) is None:
        return None
    if text[0] in "vV":
        return int(text[1:]), None
    day, time = f"{text[:4]}-{text[4:6]}-{text[6:8]}", f"{text[8:10]}:{text[10:12]}:{text[12:14]}.{text[14:]}"
    return None, f"{day} {time}"


def resolve_timestamp(store: LogStore, listing: LogListing, properties: TableProperties, timestamp_ms: int) -> int:
    """The newest version that was committed at or before a time, of those that can be loaded.

    File times count with each at least a millisecond after the one before, as copied or touched files may not be in
    order; in-commit timestamps are in order by themselves, and only the commits a binary search meets are read. Where
    in-commit timestamps were enabled later, a time before that is looked for among the file times of the versions
    before, and any other among the versions since. Where they were disabled again, only file times count.

    Args:
        listing: The whole log.
        properties: Of the newest version.

    Raises:
        TimestampOutOfRangeError: The time is before the oldest version that can be loaded, or after the newest.
        CorruptLogError: A commit that had to be read is damaged, or has no in-commit timestamp and must.
    """
    times = _Times(store, _newest_run(listing))
    versions = _loadable(listing, times.commits)
    if not versions:
        raise _out_of_range(timestamp_ms, None, None)
    since: list[int] = []
    before = versions
    time_of: Callable[[int], int]
    if properties.enable_in_commit_timestamps:
        enabled_from = properties.in_commit_timestamp_enablement_version or 0
        before = [v for v in versions if v < enabled_from]
        since = [v for v in versions if v >= enabled_from]
    if since and timestamp_ms >= _enabled_ms(times, properties, since):
        newest, sought, time_of = times.in_commit_ms(since[-1]), since, times.in_commit_ms
    else:
        newest = times.in_commit_ms(since[-1]) if since else times.file_ms[before[-1]]
        sought, time_of = before, times.file_ms.__getitem__
    position = bisect_right(sought, timestamp_ms, key=time_of)
    if not position or timestamp_ms > newest:
        oldest = times.file_ms[before[0]] if before else times.in_commit_ms(since[0])
        raise _out_of_range(timestamp_ms, (versions[0], oldest), (versions[-1], newest))
    return sought[position - 1]


def adjusted_file_times(commits: Mapping[int, FileMeta]) -> dict[int, int]:
    """By version, the modification times of commit files, each at least a millisecond after the one before; a gap
    between versions starts anew. Milliseconds since the epoch."""
    times: dict[int, int] = {}
    for version in sorted(commits):
        before = times.get(version - 1)
        time_ms = commits[version].modification_time_ms
        times[version] = time_ms if before is None else max(time_ms, before + 1)
    return times


def read_adjusted_file_times(store: LogStore, up_to: int) -> dict[int, int]:
    """`adjusted_file_times` of the commits the log holds, up to a version; lists them, reads none.

    Raises:
        StorageError: The log cannot be listed.
    """
    return adjusted_file_times(list_log(store, 0, up_to).commits)


class _Times:
    """The times of a run of commits, by both clocks; milliseconds since the epoch."""

    def __init__(self, store: LogStore, commits: Mapping[int, FileMeta]) -> None:
        self.store = store
        self.commits = commits
        self.file_ms = adjusted_file_times(commits)

    def in_commit_ms(self, version: int) -> int:
        commit = read_commit(self.store, self.commits[version], version)
        time_ms = in_commit_timestamp_ms(commit.commit_info)
        if time_ms is None:
            raise ProtocolViolationError(
                f"Commit {version} of {self.store.uri} has no in-commit timestamp",
                cause="The table has them enabled, and every commit since then must have one",
                remedy="Read the table by version",
                version=version,
                path=self.commits[version].path,
            )
        return time_ms


def _newest_run(listing: LogListing) -> dict[int, FileMeta]:
    """The commits from the newest one back to the first gap."""
    run: dict[int, FileMeta] = {}
    version = max(listing.commits, default=-1)
    while (meta := listing.commits.get(version)) is not None:
        run[version] = meta
        version -= 1
    return run


def _loadable(listing: LogListing, run: Mapping[int, FileMeta]) -> list[int]:
    """The versions of the run that can be loaded, ascending: all of them, or those from its first checkpoint on."""
    first = min(run, default=0)
    if first > 0:
        # A checkpoint right before the run serves all of it.
        first = min((v for v in listing.checkpoints if v >= first - 1), default=first)
    return sorted(v for v in run if v >= first)


def _enabled_ms(times: _Times, properties: TableProperties, since: Sequence[int]) -> int:
    """From which time on in-commit timestamps count. The property may be missing where they always did."""
    if properties.in_commit_timestamp_enablement_ms is not None:
        return properties.in_commit_timestamp_enablement_ms
    return times.in_commit_ms(since[0])


def _out_of_range(timestamp_ms: int, oldest: tuple[int, int] | None, newest: tuple[int, int] | None) -> DeltaError:
    if oldest is None or newest is None:
        return TimestampOutOfRangeError(
            f"No version of the table belongs to the time {_text(timestamp_ms)}",
            cause="Its log has no commit that would tell a time",
            remedy="Choose a version",
            timestamp_ms=timestamp_ms,
            earliest_ms=None,
            latest_ms=None,
        )
    where = "before the oldest version that can be read" if timestamp_ms < oldest[1] else "after the newest version"
    return TimestampOutOfRangeError(
        f"The time {_text(timestamp_ms)} is {where}",
        cause=f"Version {oldest[0]} is of {_text(oldest[1])}, version {newest[0]} of {_text(newest[1])}",
        remedy="Choose a time between them, or a version",
        timestamp_ms=timestamp_ms,
        earliest_ms=oldest[1],
        latest_ms=newest[1],
        earliest_version=oldest[0],
        latest_version=newest[0],
    )


def _text(timestamp_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{timestamp_ms} ms since the epoch"
