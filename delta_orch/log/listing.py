"""What is in `_delta_log`: a listing turned into commits and complete checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from delta_orch.protocol.log_path import LOG_DIRECTORY, LogFileKind, LogPath, parse_log_path
from delta_orch.storage.base import FileMeta, LogStore

_LOGGER = logging.getLogger(__name__)
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of one complete checkpoint, in the order of their parts."""

    version: int
    kind: LogFileKind
    files: tuple[FileMeta, ...]

    @property
    def size_bytes(self) -> int:
        return sum(f.size for f in self.files)


@dataclass(frozen=True, slots=True)
class LogListing:
    """The files of the log from `start_version` on (versions below it were not asked for).

    Attributes:
        commits: By version.
        checkpoints: Complete ones by version, the preferred one first. Incomplete multi-part checkpoints are left
            out (PROTOCOL, "Checkpoints": readers must ignore them), and so are empty files.
    """

    start_version: int
    commits: Mapping[int, FileMeta]
    checkpoints: Mapping[int, tuple[CheckpointFiles, ...]]

    @property
    def latest_version(self) -> int | None:
        return max((max(found) for found in (self.commits, self.checkpoints) if found), default=None)

    @property
    def first_commit(self) -> int | None:
        return min(self.commits, default=None)

    def holds(self, version: int) -> bool:
        return version in self.commits or version in self.checkpoints

    def newest_checkpoint(self, at_most: int) -> CheckpointFiles | None:
        """The newest complete checkpoint of a version not above `at_most`."""
        version = max((v for v in self.checkpoints if v <= at_most), default=None)
        return None if version is None else self.checkpoints[version][0]


def list_log(store: LogStore, start_version: int = 0, end_version: int | None = None) -> LogListing:
    """List the log between two versions, both inclusive.

    Raises:
        StorageError: The directory cannot be listed.
    """
    commits: dict[int, FileMeta] = {}
    candidates: list[tuple[LogPath, FileMeta]] = []
    for meta in store.list_from(LOG_DIRECTORY, f"{start_version:0{_DIGITS}d}"):
        name = meta.path.rpartition("/")[2]
        digits = name[:_DIGITS]
        if not (digits.isascii() and digits.isdigit()) or len(digits) < _DIGITS:
            if digits > "9" * _DIGITS:
                break
            continue
        if end_version is not None and int(digits) > end_version:
            break
        if name[_DIGITS:] == ".json":
            commits[int(digits)] = meta
        elif (path := parse_log_path(name)) is not None and path.is_checkpoint:
            candidates.append((path, meta))
    return LogListing(start_version, commits, _complete_checkpoints(candidates))


def _complete_checkpoints(candidates: list[tuple[LogPath, FileMeta]]) -> dict[int, tuple[CheckpointFiles, ...]]:
    parts: dict[tuple[int, int], dict[int, FileMeta]] = {}
    found: dict[int, list[CheckpointFiles]] = {}
    for path, meta in candidates:
        if meta.size == 0:
            _LOGGER.warning("Ignoring the empty checkpoint file %s", meta.path)
        elif path.part is not None and path.num_parts is not None:
            parts.setdefault((path.version, path.num_parts), {})[path.part] = meta
        else:
            found.setdefault(path.version, []).append(CheckpointFiles(path.version, path.kind, (meta,)))
    for (version, num_parts), files in parts.items():
        if len(files) == num_parts:
            ordered = tuple(files[part] for part in range(1, num_parts + 1))
            checkpoint = CheckpointFiles(version, LogFileKind.CHECKPOINT_MULTIPART, ordered)
            found.setdefault(version, []).append(checkpoint)
        else:
            _LOGGER.info("Ignoring a checkpoint of version %d with %d of %d parts", version, len(files), num_parts)
    return {version: tuple(sorted(sets, key=_preference)) for version, sets in found.items()}


def _preference(checkpoint: CheckpointFiles) -> tuple[int, str]:
    # One file before many; among several UUID-named ones any will do, but always the same.
    return len(checkpoint.files), checkpoint.files[0].path
