"""The range of a change feed, by version or by time, within the versions that the log holds."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError, TimestampOutOfRangeError, VersionNotFoundError
from delta_orch.log.files.listing import list_log
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import ensure_version


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The bounds of a change feed as asked for, both inclusive. A start is needed, an end is not.

    Attributes:
        starting_version, ending_version: By number.
        starting_timestamp_ms: The first version committed at this time or later.
        ending_timestamp_ms: The last version committed at this time or earlier.
        allow_out_of_range: Bounds after the newest version end the range there; a start after it makes it empty.
    """

    starting_version: int | None = None
    ending_version: int | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    allow_out_of_range: bool = False


def resolve_change_range(table_log: TableLog, latest: Snapshot, asked: ChangeRange) -> tuple[int, int]:
    """The first and the last version. The first is greater only where the range is empty and may be.

    Raises:
        InvalidRequestError: No start or two, two ends, a version that is not an integer of at least 0, or an end
            before the start.
        VersionNotFoundError, TimestampOutOfRangeError: A bound lies after the newest version, or the end before the
            first.
    """
    _ensure_well_formed(asked)
    start, end = asked.starting_version, asked.ending_version
    if asked.starting_timestamp_ms is not None:
        start = _first_since(table_log, latest, asked.starting_timestamp_ms, asked.allow_out_of_range)
    if asked.ending_timestamp_ms is not None:
        end = _last_until(table_log, latest, asked.ending_timestamp_ms, asked.allow_out_of_range)
    assert start is not None
    end = latest.version if end is None else end
    if max(start, end) > latest.version and not asked.allow_out_of_range:
        missing = start if start > latest.version else end
        raise VersionNotFoundError(
            f"Version {missing} does not exist",
            cause=f"The newest version is {latest.version}",
            remedy="End at the newest version, or pass allow_out_of_range=True for what there is",
            version=missing,
            newest_version=latest.version,
        )
    if start > end and not (start > latest.version and asked.allow_out_of_range):
        raise InvalidRequestError(
            f"The range is empty: it starts at version {start} and ends at version {end}",
            remedy="Start at the version that it ends at, or before",
        )
    return start, min(end, latest.version)


def _ensure_well_formed(asked: ChangeRange) -> None:
    if asked.starting_version is not None:
        ensure_version(asked.starting_version, "starting_version")
    if asked.ending_version is not None:
        ensure_version(asked.ending_version, "ending_version")
    if (asked.starting_version is None) is (asked.starting_timestamp_ms is None):
        raise InvalidRequestError(
            "A change feed needs a starting_version or a starting_timestamp, and not both",
            remedy="Give one of them",
        )
    if asked.ending_version is not None and asked.ending_timestamp_ms is not None:
        raise InvalidRequestError("Both an ending_version and an ending_timestamp are given", remedy="Give one of them")


def _first_since(table_log: TableLog, latest: Snapshot, timestamp_ms: int, allow_out_of_range: bool) -> int:
    try:
        # The newest version before that time: the next one is the first that is not.
        return table_log.snapshot(timestamp_ms=timestamp_ms - 1).version + 1
    except TimestampOutOfRangeError as e:
        if _is_before(e, timestamp_ms - 1):
            return _oldest_commit(table_log, latest)
        if allow_out_of_range:
            return latest.version + 1
        table_log.snapshot(timestamp_ms=timestamp_ms)  # It says so of the time that was asked for.
        raise


def _last_until(table_log: TableLog, latest: Snapshot, timestamp_ms: int, allow_out_of_range: bool) -> int:
    try:
        return table_log.snapshot(timestamp_ms=timestamp_ms).version
    except TimestampOutOfRangeError as e:
        if not _is_before(e, timestamp_ms) and allow_out_of_range:
            return latest.version
        raise


def _is_before(error: TimestampOutOfRangeError, timestamp_ms: int) -> bool:
    earliest_ms = error.context.get("earliest_ms")
    return isinstance(earliest_ms, int) and timestamp_ms < earliest_ms


def _oldest_commit(table_log: TableLog, latest: Snapshot) -> int:
    """The first commit the log holds without a gap up to the newest."""
    commits = list_log(table_log.store).commits
    version = latest.version
    while version - 1 in commits:
        version -= 1
    return version
