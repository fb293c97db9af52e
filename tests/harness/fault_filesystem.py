"""An Arrow file system whose calls a `FaultStore` counts and may let fail: the way of data files to and from a store.

`data_create`, `data_write` (the first of each file), `data_close`, `data_open`, `data_read` (the first of each
opening), `data_info`, `data_list`, `data_delete`; the path is the file system's own.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

if TYPE_CHECKING:
    from tests.harness.fault_store import FaultStore


def watched_filesystem(store: FaultStore, inner: pafs.FileSystem) -> pafs.PyFileSystem:
    """The same files, by way of the store's `watch`."""
    return pafs.PyFileSystem(_WatchedHandler(store, inner))


class _WatchedHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, store: FaultStore, inner: pafs.FileSystem) -> None:
        self._store = store
        self._inner = inner

    def get_type_name(self) -> str:
        return f"watched {self._inner.type_name}"

    def normalize_path(self, path: str) -> str:
        normal: str = self._inner.normalize_path(path)
        return normal

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return self._store.watch("data_info", paths[0] if paths else "", lambda: self._inner.get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return self._store.watch("data_list", selector.base_dir, lambda: self._inner.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError("a table never deletes a directory")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError("a table never empties a directory")

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("a table never empties a directory")

    def delete_file(self, path: str) -> None:
        self._store.watch("data_delete", path, lambda: self._inner.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("a table never moves a file")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError("a table never copies a file")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        inner = self._store.watch("data_open", path, lambda: self._inner.open_input_file(path))
        return pa.PythonFile(_WatchedInput(self._store, path, inner), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        inner = self._store.watch("data_create", path, lambda: self._inner.open_output_stream(path))
        return pa.PythonFile(_WatchedSink(self._store, path, inner), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("files of a table are never appended to")


class _WatchedInput(io.RawIOBase):
    def __init__(self, store: FaultStore, path: str, inner: pa.NativeFile) -> None:
        self._store = store
        self._path = path
        self._inner = inner
        self._was_read = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        return int(self._inner.tell())

    def read(self, size: int | None = -1) -> bytes:
        def read() -> bytes:
            content: bytes = self._inner.read() if size is None or size < 0 else self._inner.read(size)
            return content

        if self._was_read:
            return read()
        self._was_read = True
        return self._store.watch("data_read", self._path, read)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _WatchedSink(io.RawIOBase):
    def __init__(self, store: FaultStore, path: str, inner: pa.NativeFile) -> None:
        self._store = store
        self._path = path
        self._inner = inner
        self._was_written = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._inner.tell())

    def write(self, data: Any) -> int:
        def write() -> int:
            self._inner.write(data)
            return len(memoryview(data).cast("B"))

        if self._was_written:
            return write()
        self._was_written = True
        return self._store.watch("data_write", self._path, write)

    def flush(self) -> None:
        """Nothing is promised before it is closed."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._store.watch("data_close", self._path, self._inner.close)
