"""Writes files beside the commits: checkpoints, version checksums and log compactions. No row changes."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import ensure_version
from delta_orch.log.upkeep import checksum_writer
from delta_orch.log.upkeep.checkpoint_writer import CheckpointPolicy, V2Format, write_checkpoint
from delta_orch.log.upkeep.post_commit import write_compaction
from delta_orch.protocol.paths import checksum_path
from delta_orch.writing.target import existing_target


def checkpoint(
    table_log: TableLog, snapshot: Snapshot, *, policy: CheckpointPolicy | None = None, v2_format: V2Format = "json"
) -> int:
    """Write the checkpoint of a snapshot, and `_last_checkpoint`. An existing file is not changed.

    Args:
        policy: `classic` (V1, one Parquet file) or `v2` (a small file and sidecars). None uses the table's
            `delta.checkpointPolicy`.
        v2_format: The format of the top file of a V2 checkpoint, `json` or `parquet`.

    Returns: The version of the checkpoint.

    Raises:
        UnsupportedFeatureError: This release cannot write to the table. Nothing was written.
        InvalidRequestError: The policy or the format is unknown, or `v2` is requested for a table without the feature
            v2Checkpoint. Nothing was written.
        StorageError: The checkpoint may exist, but `_last_checkpoint` does not name it. Readers find it by listing the
            log.
    """
    if policy not in (None, "classic", "v2"):
        raise InvalidRequestError(f"There is no checkpoint policy {policy!r}", remedy="Use classic or v2")
    if v2_format not in ("json", "parquet"):
        raise InvalidRequestError(f"V2 checkpoints have no format {v2_format!r}", remedy="Use json or parquet")
    existing_target(snapshot)
    write_checkpoint(table_log, snapshot, policy, v2_format)
    return snapshot.version


@dataclass(frozen=True, slots=True)
class ChecksumResult:
    """The result of writing or verifying the checksum of a version.

    Attributes:
        version: The version.
        written: False if the version had a checksum already, which agrees with the state and stays.
        path: The path of the file, relative to the table's root.
        num_files, size_bytes: The number and the total size of the live files.
    """

    version: int
    written: bool
    path: str
    num_files: int
    size_bytes: int


def write_checksum(snapshot: Snapshot) -> ChecksumResult:
    """Write the version checksum of a snapshot (PROTOCOL, "Version Checksum File"). If it exists, verify it.

    Raises:
        ChecksumMismatchError: The existing checksum disagrees with the state. Nothing was written.
        UnsupportedFeatureError, UnsupportedVersionError: This release cannot write to the table. Nothing was written.
        CorruptLogError: The log, or the checksum, is damaged. Nothing was written.
        StorageError: The file was not written, or another writer wrote it.
    """
    snapshot.configuration.for_writing()
    checksum = checksum_writer.compute_checksum(snapshot)
    written = checksum_writer.write_checksum(snapshot.store, snapshot.version, checksum) is not None
    if not written:
        snapshot.validate()
    path = checksum_path(snapshot.version)
    return ChecksumResult(snapshot.version, written, path, checksum.num_files, checksum.table_size_bytes)


@dataclass(frozen=True, slots=True)
class LogCompactionResult:
    """The result of a log compaction.

    Attributes:
        skipped: Nothing was written, because the compaction exists already, there are not two commits to compact, or
            the commits do not change the state.
        start_version, end_version: The first and the last compacted commit. None if there are not two commits.
        path, size_bytes: The file, with its path relative to the table's root. None if no file was written.
    """

    skipped: bool
    start_version: int | None = None
    end_version: int | None = None
    path: str | None = None
    size_bytes: int | None = None


def compact_log(
    table_log: TableLog, newest: Snapshot, start_version: int | None = None, end_version: int | None = None
) -> LogCompactionResult:
    """Write the log compaction of a range of commits. The commits stay, and readers see the same table.

    Args:
        newest: The newest version.
        start_version: The first commit. By default, the commit after the last checkpoint up to `end_version`, because
            readers do not need older commits.
        end_version: The last commit, by default the newest.

    Raises:
        InvalidRequestError: The range has less than two commits, or ends after the newest version. Nothing was written.
        VersionNotFoundError: A commit of the range was cleaned up. Nothing was written.
        UnsupportedFeatureError, UnsupportedVersionError: This release cannot write to the table. Nothing was written.
        StorageError: Nothing was written.
    """
    for name, version in (("start_version", start_version), ("end_version", end_version)):
        if version is not None:
            ensure_version(version, name)
    end = newest.version if end_version is None else end_version
    if not 0 <= end <= newest.version:
        raise InvalidRequestError(
            f"The log has no version {end} to compact up to", remedy=f"The newest version is {newest.version}"
        )
    # The snapshot is loaded again, because an advanced snapshot does not know later checkpoints.
    snapshot = table_log.snapshot(end)
    start = snapshot.segment.first_commit if start_version is None else start_version
    if start_version is None and start >= end:
        return LogCompactionResult(skipped=True)
    if not 0 <= start < end:
        raise InvalidRequestError(
            f"The commits {start} to {end} cannot be compacted", remedy="Pass a range of at least two commits"
        )
    file = write_compaction(table_log, snapshot, start, end)
    if file is None:
        return LogCompactionResult(True, start, end)
    return LogCompactionResult(False, start, end, file.path, file.size)
