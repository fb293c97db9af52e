"""Whether the version that was read is still the one in the log: a last look before its checkpoint gets a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_orch.errors import VersionNotFoundError

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.storage.base import FileMeta, LogStore


def ensure_version_present(store: LogStore, snapshot: Snapshot) -> None:
    """The file that makes the snapshot's version is still there. Where somebody has deleted the table while its
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
    found = store.head(expected.path)
    return found is not None and found.size == expected.size and _is_same_time(found, expected)


def _is_same_time(one: FileMeta, other: FileMeta) -> bool:
    """Some stores tell whole seconds in one kind of answer, and milliseconds in another."""
    a, b = one.modification_time_ms, other.modification_time_ms
    return a == b or (a // 1000 == b // 1000 and 0 in (a % 1000, b % 1000))
