"""`write_checksum`: the version checksum of a version that has none, from its whole state."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.upkeep import checksum_writer
from delta_orch.protocol.log_path import checksum_path


@dataclass(frozen=True, slots=True)
class ChecksumResult:
    """The checksum of a version.

    Attributes:
        version: Which version.
        written: False where it had one, which stays and agrees with the state.
        path: Of the file, relative to the table's root.
        num_files, size_bytes: Of the live files.
    """

    version: int
    written: bool
    path: str
    num_files: int
    size_bytes: int


def write_checksum(snapshot: Snapshot) -> ChecksumResult:
    """Write the version checksum of a snapshot (PROTOCOL, "Version Checksum File"), or verify the one there is.

    Raises:
        ChecksumMismatchError: There is one, and it disagrees with the state. Nothing was written.
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table. Nothing was written.
        CorruptLogError: The log, or the checksum, is damaged. Nothing was written.
        StorageError: There is none, or another writer's.
    """
    snapshot.configuration.for_writing()
    checksum = checksum_writer.compute_checksum(snapshot)
    written = checksum_writer.write_checksum(snapshot.store, snapshot.version, checksum) is not None
    if not written:
        snapshot.validate()
    path = checksum_path(snapshot.version)
    return ChecksumResult(snapshot.version, written, path, checksum.num_files, checksum.table_size_bytes)
