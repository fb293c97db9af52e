"""An object store as an Arrow file system, for the engines' data files.

Reads are the exact ranges that Arrow asks for (it knows the file's layout, and reads ahead itself); writes go through
fsspec's upload, and an object appears when its file is closed. Whatever fails is an OSError.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.errors import FileMissingInStoreError, StorageError

if TYPE_CHECKING:
    from delta_orch.storage.object_store import ObjectStore

T = TypeVar("T")
# Below this, one request for the whole object is faster than one for the footer and one for what it points to.
_WHOLE_BYTES = 256 * 1024


def object_filesystem(store: ObjectStore) -> pafs.PyFileSystem:
    """Paths are `bucket/key`."""
    return pafs.PyFileSystem(_ObjectHandler(store))


def open_object(store: ObjectStore, path: str) -> pa.NativeFile:
    """Random access. Raises FileMissingInStoreError, StorageError."""
    found = store.find_object(path)
    if found is None:
        raise FileMissingInStoreError(f"Cannot open {path}", cause="There is no such object", path=path)
    if found.size <= _WHOLE_BYTES:
        return pa.BufferReader(store.read_object(path, 0, found.size) if found.size else b"")
    return pa.PythonFile(_ObjectInput(store, path, found.size), mode="r")


class _ObjectInput(io.RawIOBase):
    """Each read is one request for the bytes asked for."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
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
        data = self._store.read_object(self._path, self._at, end)
        self._at += len(data)
        return data


class _ObjectOutput(io.RawIOBase):
    """fsspec's file, with our errors. After a failure it is given up: nothing is uploaded any more."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._file: Any = store.write_object(path)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def write(self, data: Any) -> int:
        return int(self._checked(lambda: self._file.write(data)))

    def flush(self) -> None:
        """Parts are sent when they are large enough."""

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if not self._file.closed:
            self._checked(self._file.close)

    def _checked(self, step: Callable[[], T]) -> T:
        try:
            return self._store.call("write", self._path, step)
        except StorageError:
            # Its finalizer would try to upload once more.
            self._file.closed = True
            raise


class _ObjectHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ObjectHandler) and other._store is self._store

    def __hash__(self) -> int:
        return id(self._store)

    def get_type_name(self) -> str:
        return "delta_orch_objects"

    def normalize_path(self, path: str) -> str:
        return path.rstrip("/")

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir.rstrip("/")
        found = [_file_info(f) for f in self._store.list_objects(base, recursive=selector.recursive)]
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), base)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        """Directories need no making."""

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError("files of a table are deleted one by one, by vacuum")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError("files of a table are deleted one by one, by vacuum")

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("would delete every bucket")

    def delete_file(self, path: str) -> None:
        with _as_os_error(path):
            self._store.delete_object(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("files of a table are never renamed")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError("files of a table are never copied")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _as_os_error(path):
            return open_object(self._store, path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_ObjectOutput(self._store, path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("files of a table are never appended to")

    def _info(self, path: str) -> pafs.FileInfo:
        found = self._store.find_object(path)
        if found is not None:
            return pafs.FileInfo(
                path, pafs.FileType.File, size=found.size, mtime_ns=found.modification_time_ms * 1_000_000
            )
        below = next(iter(self._store.list_objects(path.rstrip("/"), recursive=True)), None)
        return pafs.FileInfo(path, pafs.FileType.NotFound if below is None else pafs.FileType.Directory)


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Engines tell a missing file from other trouble by Python's own class."""
    try:
        yield
    except FileMissingInStoreError as e:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e


def _file_info(found: Any) -> pafs.FileInfo:
    return pafs.FileInfo(
        found.path, pafs.FileType.File, size=found.size, mtime_ns=found.modification_time_ms * 1_000_000
    )
