"""Waiting until the files and directories of a commit are on disk."""

# ruff: noqa: PTH102, PTH112, PTH120

from __future__ import annotations

import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue

from delta_orch.storage.base import storage_error

_MAX_SYNC_THREADS = 16


def sync_path(path: str) -> None:
    """Return when a file's content, or the names in a directory, are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """Like `makedirs`, with each new name on disk before the next directory is created in it."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(20, "Not a directory", path) from None
        return
    sync_path(parent)


def sync_all(paths: Iterable[str]) -> None:
    """Return when all paths are on disk, like `sync_path` for all at the same time.

    A file system writes its journal once for all threads that wait. So each path has its own thread, and a commit takes
    two rounds of the journal instead of four.

    Raises:
        StorageError: A path could not be saved. The state of the others is unknown.
    """
    pending = deque(paths)
    outcomes: SimpleQueue[tuple[str, Exception] | None] = SimpleQueue()
    num_threads = 0
    try:
        for _ in range(min(len(pending), _MAX_SYNC_THREADS) - 1):
            # `threading.Thread` waits until the thread runs. For a small commit, that takes as long as the disk.
            start_new_thread(lambda: outcomes.put(_work(pending)), ())
            num_threads += 1
    except RuntimeError:
        import logging

        logging.getLogger(__name__).debug("No more threads available: %d wait for the disk", num_threads + 1)
    failures = [_work(pending), *(outcomes.get() for _ in range(num_threads))]
    for failure in failures:
        if failure is not None:
            path, error = failure
            if isinstance(error, OSError):
                raise storage_error(error, "save", path) from error
            raise error


def _work(pending: deque[str]) -> tuple[str, Exception] | None:
    """Sync paths that no other thread has begun, up to the first failure. Returns the failed path and its error."""
    while pending:
        try:
            path = pending.popleft()
        except IndexError:
            # Another thread was quicker.
            return None
        try:
            sync_path(path)
        except Exception as e:  # noqa: BLE001 - `sync_all` raises it
            pending.clear()
            return path, e
    return None


def directories_of(root: str, files: Iterable[str]) -> set[str]:
    """The directories that must be on disk so that `files` exist after a crash.

    For a file below `root`: its directory and all directories up to `root`. For other files: their directory.
    """
    directories: set[str] = set()
    for file in files:
        directory = os.path.dirname(file)
        while directory not in directories:
            directories.add(directory)
            if not directory.startswith(f"{root}/"):
                break
            directory = os.path.dirname(directory)
    return directories


def readable_parents(directory: str) -> set[str]:
    """The directories above `directory` that this user may open. Their owner always may."""
    return {str(parent) for parent in Path(directory).parents if os.access(parent, os.R_OK)}
