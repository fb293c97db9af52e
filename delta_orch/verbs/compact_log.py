"""`compact_log`: a run of commits in one file, for readers between two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.point_in_time import ensure_version
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.compaction_writer import write_compaction


@dataclass(frozen=True, slots=True)
class LogCompactionResult:
    """What was compacted.

    Attributes:
        skipped: Nothing was written: the compaction is there already, or there are not two commits to compact, or they
            say nothing about the table.
        start_version, end_version: The first and the last commit in it; None where there are not two.
        path, size_bytes: Of the file, relative to the table's root; None where none was written.
    """

    skipped: bool
    start_version: int | None = None
    end_version: int | None = None
    path: str | None = None
    size_bytes: int | None = None


def compact_log(
    table_log: TableLog, newest: Snapshot, start_version: int | None = None, end_version: int | None = None
) -> LogCompactionResult:
    """Write the log compaction of a range of commits. The commits stay, and nobody reads anything else than before.

    Args:
        newest: The newest version.
        start_version: The first commit; by default the one after the last checkpoint up to `end_version`, as readers
            have no use for older ones.
        end_version: The last commit; by default the newest.

    Raises:
        InvalidRequestError: A range of less than two commits, or beyond the newest version. Nothing was written.
        VersionNotFoundError: A commit of the range was cleaned up. Nothing was written.
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table. Nothing was written.
        StorageError: Nothing was written.
    """
    for name, version in (("start_version", start_version), ("end_version", end_version)):
        if version is not None:
            ensure_version(version, name)
    end = newest.version if end_version is None else end_version
    if not 0 <= end <= newest.version:
        raise InvalidRequestError(
            f"There is no version {end} to compact the log up to", remedy=f"The newest version is {newest.version}"
        )
    # Loaded anew: one that was advanced knows nothing of checkpoints written since.
    snapshot = table_log.snapshot(end)
    start = snapshot.segment.first_commit if start_version is None else start_version
    if start_version is None and start >= end:
        return LogCompactionResult(skipped=True)
    if not 0 <= start < end:
        raise InvalidRequestError(
            f"The commits {start} to {end} cannot be compacted", remedy="Give a range of two commits or more"
        )
    file = write_compaction(table_log, snapshot, start, end)
    if file is None:
        return LogCompactionResult(True, start, end)
    return LogCompactionResult(False, start, end, file.path, file.size)
