"""A listing of `_delta_log`, turned into commits, complete checkpoints and log compactions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from delta_orch.protocol.paths import LOG_DIRECTORY, LogFileKind, LogPath, parse_log_path
from delta_orch.storage.base import FileMeta, LogStore

_LOGGER = logging.getLogger(__name__)
_DIGITS = 20


class CheckpointFiles(NamedTuple):
    """The files of one complete checkpoint, in the order of their parts. `has_checksum`: as of a `CompactionFile`."""

    version: int
    kind: LogFileKind
    files: tuple[FileMeta, ...]
    has_checksum: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(f.size for f in self.files)


class CompactionFile(NamedTuple):
    """A log compaction: commits `start_version` to `end_version`, both inclusive and not the same, in one file.
    `has_checksum`: whether its last version has a version checksum, as far as the listing shows."""

    start_version: int
    end_version: int
    file: FileMeta
    has_checksum: bool = False


class LogListing(NamedTuple):
    """The files of the log from `start_version` on (versions below it were not asked for).

    Attributes:
        commits: By version.
        checkpoints: Complete ones by version, the preferred one first. Incomplete multi-part checkpoints are left
            out (PROTOCOL, "Checkpoints": readers must ignore them), and so are empty files.
        incomplete_checkpoints: By version, those that are left out.
        compactions: In no particular order; those of a single commit are left out, as they save nothing.
    """

    start_version: int
    commits: Mapping[int, FileMeta]
    checkpoints: Mapping[int, tuple[CheckpointFiles, ...]]
    incomplete_checkpoints: Mapping[int, tuple[CheckpointFiles, ...]]
    compactions: tuple[CompactionFile, ...] = ()

    @property
    def latest_version(self) -> int | None:
        return max((max(versions) for versions in (self.commits, self.checkpoints) if versions), default=None)

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
    return build_listing(store.list_from(LOG_DIRECTORY, f"{start_version:0{_DIGITS}d}"), start_version, end_version)


def build_listing(files: Iterable[FileMeta], start_version: int = 0, end_version: int | None = None) -> LogListing:
    """The log out of the files of its directory, ascending by name and from `start_version` on. No I/O of its own."""
    commits: dict[int, FileMeta] = {}
    candidates: list[tuple[LogPath, FileMeta]] = []
    checksums: set[int] = set()
    compactions: list[CompactionFile] = []
    for meta in files:
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
        elif name[_DIGITS:] == ".crc":
            checksums.add(int(digits))
        elif (path := parse_log_path(name)) is None:
            continue
        elif path.is_checkpoint:
            candidates.append((path, meta))
        elif path.end_version is not None and path.version < path.end_version and meta.size:
            compactions.append(CompactionFile(path.version, path.end_version, meta))
    complete, incomplete = _group_checkpoints(candidates)
    complete = {
        version: tuple(c._replace(has_checksum=version in checksums) for c in parts)
        for version, parts in complete.items()
    }
    known_compactions = tuple(c._replace(has_checksum=c.end_version in checksums) for c in compactions)
    return LogListing(start_version, commits, complete, incomplete, known_compactions)


_ByVersion = dict[int, tuple[CheckpointFiles, ...]]


def _group_checkpoints(candidates: list[tuple[LogPath, FileMeta]]) -> tuple[_ByVersion, _ByVersion]:
    """Complete and incomplete checkpoints."""
    parts: dict[tuple[int, int], dict[int, FileMeta]] = {}
    sets_by_version: dict[int, list[CheckpointFiles]] = {}
    broken: dict[int, list[CheckpointFiles]] = {}
    for path, meta in candidates:
        if meta.size == 0:
            _LOGGER.warning("Ignoring the empty checkpoint file %s", meta.path)
            broken.setdefault(path.version, []).append(CheckpointFiles(path.version, path.kind, (meta,)))
        elif path.part is not None and path.num_parts is not None:
            parts.setdefault((path.version, path.num_parts), {})[path.part] = meta
        else:
            sets_by_version.setdefault(path.version, []).append(CheckpointFiles(path.version, path.kind, (meta,)))
    for (version, num_parts), files in parts.items():
        ordered = tuple(meta for _, meta in sorted(files.items()))
        checkpoint = CheckpointFiles(version, LogFileKind.CHECKPOINT_MULTIPART, ordered)
        if len(files) == num_parts:
            sets_by_version.setdefault(version, []).append(checkpoint)
        else:
            _LOGGER.info("Ignoring a checkpoint of version %d with %d of %d parts", version, len(files), num_parts)
            broken.setdefault(version, []).append(checkpoint)
    return _sorted_sets(sets_by_version), _sorted_sets(broken)


def _sorted_sets(sets_by_version: Mapping[int, list[CheckpointFiles]]) -> _ByVersion:
    return {version: tuple(sorted(sets, key=_preference)) for version, sets in sets_by_version.items()}


def _preference(checkpoint: CheckpointFiles) -> tuple[int, str]:
    # A single-part checkpoint is preferred. Among several UUID-named ones the choice is always the same.
    return len(checkpoint.files), checkpoint.files[0].path
