"""Finds the files that the tombstones of a log name, for a vacuum that does not list the table."""

from __future__ import annotations

import posixpath

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.errors import StorageError, UnsupportedStoreError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import string_array
from delta_orch.protocol.deletion_vector import relative_path
from delta_orch.protocol.paths import LOG_DIRECTORY, encode_path
from delta_orch.storage.base import FileMeta, LogStore

_CHUNK_FILES = 1000


def removed_files(snapshot: Snapshot, expired_ms: int) -> list[FileMeta]:
    """Return the existing data files and deletion vectors below the root whose tombstones are older than `expired_ms`.

    Three kinds of files are not included, because only a listing finds them: files of writes that never committed,
    change data files, and files whose tombstones a checkpoint has dropped.

    Raises:
        StorageError: The store does not answer.
    """
    tombstones = snapshot.tombstones(["path", "deletion_vector", "deletion_timestamp"])
    is_expired = pc.less_equal(FileTable(tombstones).deletion_timestamp, expired_ms)
    # A tombstone without a timestamp counts as expired.
    expired = pc.filter(tombstones, pc.fill_null(is_expired, True))
    filesystem, directory = snapshot.store.data_filesystem()
    root = directory.rstrip("/") + "/"
    places = {}
    for spelled in (*FileTable(expired).path.to_pylist(), *vector_paths(expired).to_pylist()):
        try:
            place = posixpath.normpath(snapshot.store.resolve(spelled))
        except UnsupportedStoreError:
            # The table cannot read this file, so it must not delete it.
            continue
        if place.startswith(root):
            places[place] = place[len(root) :]
    every = list(places)
    removed = []
    for start in range(0, len(every), _CHUNK_FILES):
        for info in _look_up(filesystem, every[start : start + _CHUNK_FILES]):
            if info.type == pafs.FileType.File:
                removed.append(FileMeta(places[info.path], info.size, (info.mtime_ns or 0) // 1_000_000))
    return removed


def vector_paths(files: pa.Table) -> pa.Array:
    """Return the files of deletion vectors (PROTOCOL, "Deletion Vectors"), spelled as in the log."""
    descriptors = [d for d in deletion_vector_descriptors(files) if d is not None]
    relative = [encode_path(relative_path(d)) for d in descriptors if d.storage_type == "u"]
    return string_array([*relative, *(d.path_or_inline_dv for d in descriptors if d.storage_type == "p")])


def inner_tables_above(store: LogStore, directories: pa.Array) -> tuple[str, ...]:
    """Return the directories that hold another table, among the given directories and their parents. Nothing is listed.

    Args:
        directories: Directories below the root, each with a leading slash. An empty text is the root itself.

    Raises:
        StorageError: The store does not answer.
    """
    above: set[str] = set()
    for directory in directories.to_pylist():
        parts = directory.strip("/").split("/")
        above.update("/".join(parts[: end + 1]) for end in range(len(parts)))
    filesystem, root = store.data_filesystem()
    places = {f"{root.rstrip('/')}/{inner}/{LOG_DIRECTORY}": inner for inner in sorted(above - {""})}
    return tuple(places[i.path] for i in _look_up(filesystem, list(places)) if i.type != pafs.FileType.NotFound)


def _look_up(filesystem: pafs.FileSystem, places: list[str]) -> list[pafs.FileInfo]:
    try:
        return list(filesystem.get_file_info(places)) if places else []
    except OSError as e:
        raise StorageError("The removed files cannot be listed", cause=str(e), errno=e.errno) from e
