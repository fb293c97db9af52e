"""Stores whose objects have no directories, as an Arrow file system for the engines' data files.

A directory exists where an object lies below it. Failures are OSErrors.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.errors import FileMissingInStoreError
from delta_orch.storage.base import FileMeta, FlatStore
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

# The first request reads this much of the end of an object, where footers are: all of a small object.
_END_BYTES = 256 * 1024


def object_filesystem(objects: FlatStore) -> pafs.PyFileSystem:
    """Make the Arrow file system of the objects of a store, by their full paths."""
    return pafs.PyFileSystem(_ObjectHandler(objects))


def open_object(objects: FlatStore, path: str) -> pa.NativeFile:
    """Open an object for random access. Raises FileMissingInStoreError, StorageError."""
    end, size = objects.read_end(path, _END_BYTES)
    if len(end) == size:
        return pa.BufferReader(end)
    # A shorter answer was cut off, so it is not the end of the object.
    return pa.PythonFile(_ObjectInput(objects, path, end if len(end) == _END_BYTES else b"", size), mode="r")


class _ObjectInput(io.RawIOBase):
    """Each read is one request, because Arrow knows the layout of the file and reads ahead. A read in the `ending`
    needs no request."""

    def __init__(self, objects: FlatStore, path: str, ending: bytes, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._path = path
        self._ending = ending
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        ending_at = self._size - len(self._ending)
        if self._at >= ending_at:
            data = self._ending[self._at - ending_at : end - ending_at]
        else:
            data = self._objects.read_object(self._path, self._at, end)
        self._at += len(data)
        return data


class _ObjectHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, objects: FlatStore) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ObjectHandler) and other._objects is self._objects

    def __hash__(self) -> int:
        return id(self._objects)

    def get_type_name(self) -> str:
        return "delta_orch_objects"

    def normalize_path(self, path: str) -> str:
        return path.rstrip("/")

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return list(map_ahead(self._info, paths, FAR_THREADS))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir.rstrip("/")
        files = [_file_info(meta) for meta in self._objects.list_objects(base, recursive=selector.recursive)]
        if not files and not selector.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), base)
        return files

    def create_dir(self, path: str, recursive: bool) -> None:
        """Directories need not be made."""

    def delete_file(self, path: str) -> None:
        with _as_os_error(path):
            self._objects.delete_object(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _as_os_error(path):
            return open_object(self._objects, path)

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(self._objects.write_object(path), mode="w")

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError("Files of a table are never renamed, copied or appended to. Vacuum deletes them")

    delete_dir: Callable[..., None] = _refuse
    delete_dir_contents: Callable[..., None] = _refuse
    delete_root_dir_contents: Callable[..., None] = _refuse
    move: Callable[..., None] = _refuse
    copy_file: Callable[..., None] = _refuse
    open_append_stream: Callable[..., None] = _refuse

    def _info(self, path: str) -> pafs.FileInfo:
        meta = self._objects.find_object(path)
        if meta is not None:
            return _file_info(meta)
        below = next(iter(self._objects.list_objects(path.rstrip("/"), recursive=True)), None)
        return pafs.FileInfo(path, pafs.FileType.NotFound if below is None else pafs.FileType.Directory)


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Raise FileNotFoundError for a missing file: engines recognize that class."""
    try:
        yield
    except FileMissingInStoreError as e:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e


def _file_info(meta: FileMeta) -> pafs.FileInfo:
    return pafs.FileInfo(meta.path, pafs.FileType.File, size=meta.size, mtime_ns=meta.modification_time_ms * 1_000_000)
