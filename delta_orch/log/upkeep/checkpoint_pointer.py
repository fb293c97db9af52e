"""The last steps of a checkpoint: a look whether its version is still there, and `_last_checkpoint` (PROTOCOL, "Last
Checkpoint File")."""

from __future__ import annotations

from delta_orch.errors import VersionNotFoundError
from delta_orch.log.read.segment import read_last_checkpoint
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.last_checkpoint import LastCheckpoint, serialize_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH
from delta_orch.storage.base import FileMeta, LogStore


def point_at(store: LogStore, last: LastCheckpoint) -> None:
    """Write `_last_checkpoint` for an existing checkpoint. A pointer to a newer one is not moved back.

    Raises:
        StorageError: The pointer may be the old one. Readers find the checkpoint by listing.
    """
    pointed_at = read_last_checkpoint(store)
    if pointed_at is not None and pointed_at.version > last.version:
        return
    if pointed_at != last:
        store.put(LAST_CHECKPOINT_PATH, serialize_last_checkpoint(last))


def ensure_version_present(store: LogStore, snapshot: Snapshot) -> None:
    """Whether the file of the snapshot's version still exists. Where somebody has deleted the table while its
    checkpoint was being written, and perhaps created another one in its place, that must not get it.

    Raises:
        VersionNotFoundError: It is gone, or another one.
    """
    if not is_version_present(store, snapshot):
        raise VersionNotFoundError(
            f"Version {snapshot.version} of {store.uri} was deleted while its checkpoint was being written",
            cause="The table was deleted, or its log cleaned up",
            remedy="Write a checkpoint of the newest version, where there still is one",
            version=snapshot.version,
        )


def is_version_present(store: LogStore, snapshot: Snapshot) -> bool:
    """Whether the file that makes the snapshot's version is the one it was read from. One metadata request."""
    expected = snapshot.segment.version_file
    if store.is_catalog_managed:
        return store.is_unchanged(expected)
    version_file = store.head(expected.path)
    return version_file is not None and version_file.size == expected.size and _is_same_time(version_file, expected)


def _is_same_time(one: FileMeta, other: FileMeta) -> bool:
    """Some stores tell whole seconds in one kind of answer, and milliseconds in another."""
    a, b = one.modification_time_ms, other.modification_time_ms
    return a == b or (a // 1000 == b // 1000 and 0 in (a % 1000, b % 1000))
