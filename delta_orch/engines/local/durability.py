"""Making data files survive a crash of the machine before a commit names them.

A commit is on disk when it returns (`LogStore.put_if_absent`); the files it names must be there first. Object stores
guarantee that on their own, a local disk only when asked.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable

import pyarrow.fs as pafs

from delta_orch.storage.os_errors import storage_error


def sync_file(filesystem: pafs.FileSystem, path: str) -> None:
    """Return when the content of a finished file is on disk. Raises StorageError."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        _sync(path, os.O_RDONLY)


def sync_directories(filesystem: pafs.FileSystem, root: str, files: Iterable[str]) -> None:
    """Return when the names of files below `root` are on disk, new directories included. Raises StorageError."""
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return
    directories = {posixpath.dirname(file) for file in files}
    for directory in list(directories):
        while len(directory) > len(root):
            directory = posixpath.dirname(directory)
            directories.add(directory)
    for directory in sorted(directories, reverse=True):
        _sync(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))


def _sync(path: str, flags: int) -> None:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as e:
        raise storage_error(e, "save", path) from e
