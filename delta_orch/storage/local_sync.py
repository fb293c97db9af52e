"""Waiting until the disk has what a commit depends on."""

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
    """Like `makedirs`, but each new name is on disk before anything relies on it."""
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
    """Return when all of them are on disk: as `sync_path`, all at the same time.

    A file system writes its journal once for everybody who waits at that moment. So what a commit depends on is waited
    for on a thread each, not one after the other: a commit takes two rounds of the journal instead of four.

    Raises:
        StorageError: One could not be saved. Of the others nothing is known.
    """
    pending = deque(paths)
    outcomes: SimpleQueue[tuple[str, Exception] | None] = SimpleQueue()
    others = 0
    try:
        for _ in range(min(len(pending), _MAX_SYNC_THREADS) - 1):
            # `threading.Thread` waits until the thread runs: for a small commit that is as long as the disk takes.
            start_new_thread(lambda: outcomes.put(_work(pending)), ())
            others += 1
    except RuntimeError:
        import logging

        logging.getLogger(__name__).debug("No more threads available: %d wait for the disk", others + 1)
    found = [_work(pending), *(outcomes.get() for _ in range(others))]
    for failure in found:
        if failure is not None:
            path, error = failure
            if isinstance(error, OSError):
                raise storage_error(error, "save", path) from error
            raise error


def _work(pending: deque[str]) -> tuple[str, Exception] | None:
    """Sync what no other thread has begun with, up to the first failure."""
    while pending:
        try:
            path = pending.popleft()
        except IndexError:
            # Another thread was quicker.
            return None
        try:
            sync_path(path)
        except Exception as e:  # noqa: BLE001 - raised where it is waited for
            pending.clear()
            return path, e
    return None


def directories_of(root: str, files: Iterable[str]) -> set[str]:
    """The directories that must be on disk for files below `root` to be found again: theirs, and all from there up to
    `root`. Of files elsewhere, their own directory."""
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
    """All directories above one that this user may open, as everybody may whom they belong to."""
    return {str(parent) for parent in Path(directory).parents if os.access(parent, os.R_OK)}
