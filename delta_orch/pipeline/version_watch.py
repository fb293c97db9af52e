"""Waiting for a version of a table, or for a commit after a time, at one metadata request a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.epoch import micros_since_epoch

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog

LOOKS_UNTIL_VERIFIED = 10
"""So many looks for the next commit until one that opens the table."""


@dataclass(frozen=True, slots=True)
class WatchGoal:
    """What is waited for, exactly one of the two.

    Attributes:
        after_version: A version greater than this one; -1 waits for the table to be created.
        after_timestamp_ms: A commit later than this moment, in milliseconds since the epoch.
    """

    after_version: int | None = None
    after_timestamp_ms: int | None = None

    @classmethod
    def parse(cls, after_version: int | str | None, after_timestamp: datetime | str | None) -> WatchGoal:
        """From an operator's arguments, which templates may have rendered to text.

        Raises:
            InvalidRequestError: Not exactly one is given, the version is not an integer ≥ -1, or the timestamp is not
                ISO 8601 with a time zone.
        """
        if (after_version is None) == (after_timestamp is None):
            raise InvalidRequestError(
                "A version sensor waits for a version or for a time, exactly one of them",
                remedy="Pass after_version or after_timestamp",
            )
        if after_version is not None:
            return cls(after_version=_parse_version(after_version))
        assert after_timestamp is not None
        return cls(after_timestamp_ms=_parse_timestamp_ms(after_timestamp))

    def is_met_by(self, version: int, timestamp_ms: int) -> bool:
        if self.after_version is not None:
            return version > self.after_version
        assert self.after_timestamp_ms is not None
        return timestamp_ms > self.after_timestamp_ms


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """The newest version when the goal was found to be met, its commit time in milliseconds since the epoch, and what
    else there is to say of it."""

    version: int
    timestamp_ms: int
    details: Mapping[str, object]

    def report(self, table_uri: str) -> dict[str, object]:
        return {"table_uri": table_uri, "version": self.version, "timestamp_ms": self.timestamp_ms, **self.details}


class VersionWatch:
    """Polls one table's log for a goal.

    The first `check` makes sure where the table stands. From then on a check costs one metadata request for the commit
    after `seen_version`, never a listing, until there is one: versions are contiguous, so without it there is nothing
    newer. Every tenth check opens the table: one that was dropped and created again may have fewer versions.

    Args:
        log: The table's log. There need not be a table yet.
        goal: What to wait for.
        seen_version: A version known not to meet the goal while the one after it was not there (an earlier watch's);
            None to find out.
    """

    def __init__(self, log: TableLog, goal: WatchGoal, seen_version: int | None = None) -> None:
        self._log = log
        self._goal = goal
        self._checks = 0
        self._seen_id = ""
        self.seen_version = seen_version

    def check(self) -> FoundVersion | None:
        """The newest version, if it meets the goal.

        Raises:
            CorruptLogError, UnsupportedFeatureError, StorageError: The table cannot be read.
        """
        if self.seen_version is None and not self._stands_at_goal():
            return self._look()
        assert self.seen_version is not None
        self._checks += 1
        is_due = self._checks % LOOKS_UNTIL_VERIFIED == 0
        return self._look() if self._log.has_version(self.seen_version + 1) or is_due else None

    def _stands_at_goal(self) -> bool:
        """Whether `after_version` is there, so that the commit after it decides. It is not where the table is younger,
        or where cleanup has removed it: then the commit after it may be gone as well."""
        after = self._goal.after_version
        if after is None or after < 0 or not self._log.has_version(after):
            return False
        self.seen_version = after
        return True

    def _look(self) -> FoundVersion | None:
        if not self._log.exists():
            # Whoever creates the table writes version 0.
            self.seen_version = -1
            return None
        snapshot, details = self._reported()
        if details is not None:
            return FoundVersion(snapshot.version, snapshot.timestamp_ms, details)
        self._seen_id, self.seen_version = snapshot.metadata.id, snapshot.version
        return None

    def _is_seen(self, snapshot: Snapshot) -> bool:
        return (snapshot.metadata.id, snapshot.version) == (self._seen_id, self.seen_version)

    def _reported(self) -> tuple[Snapshot, Mapping[str, object] | None]:
        """The newest version, and what there is to report of one that meets the goal, else None."""
        snapshot = self._log.snapshot()
        return snapshot, {} if self._goal.is_met_by(snapshot.version, snapshot.timestamp_ms) else None


def whole_number(value: Any) -> int | None:
    """A whole number, which a template may have made text of; None for anything else."""
    try:
        return None if isinstance(value, bool | float) else int(value)
    except (TypeError, ValueError):
        return None


def _parse_version(value: int | str) -> int:
    version = whole_number(value)
    if version is None or version < -1:
        raise InvalidRequestError(
            f"after_version={value!r} is not a table version", remedy="Pass an integer ≥ 0, or -1 to wait for the table"
        )
    return version


def _parse_timestamp_ms(value: datetime | str) -> int:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequestError(
            f"after_timestamp={value!r} is not a moment in time",
            remedy="Pass a timezone-aware datetime, or ISO 8601 with an offset such as {{ data_interval_end }}",
        )
    return micros_since_epoch(moment) // 1000
