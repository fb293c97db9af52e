"""The files of memory tables as an Arrow file system, for engines that read and write through Arrow."""

from __future__ import annotations

import errno
import io
import os
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.storage.memory import FILES, MemoryFile


@cache
def memory_filesystem() -> pafs.PyFileSystem:
    """Paths are `<table name>/<path>`; directories exist where a file lies below them."""
    return pafs.PyFileSystem(_MemoryHandler())


class _UnfinishedFile(io.BytesIO):
    """What a writer fills; it becomes a file when it is closed, so that no reader sees half of it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            FILES[self._path] = MemoryFile.of(self.getvalue())
        super().close()


class _MemoryHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    def get_type_name(self) -> str:
        return "delta_orch_memory"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir.strip("/")
        prefix = f"{base}/" if base else ""
        below = [key for key in FILES.copy() if key.startswith(prefix)]
        if not below and not selector.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), base)
        found: set[str] = set()
        for key in below:
            parts = key[len(prefix) :].split("/")
            depth = len(parts) if selector.recursive else 1
            found.update(prefix + "/".join(parts[:n]) for n in range(1, depth + 1))
        return [self._info(path) for path in sorted(found)]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Directories need no making."""

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path, missing_dir_ok=False)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        below = [key for key in FILES.copy() if key.startswith(f"{path.strip('/')}/")]
        if not below and not missing_dir_ok:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for key in below:
            FILES.pop(key, None)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("would delete every memory table of the process")

    def delete_file(self, path: str) -> None:
        if FILES.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        FILES.pop(src, None)

    def copy_file(self, src: str, dest: str) -> None:
        FILES[dest] = MemoryFile.of(self._data(src))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._data(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._data(path))

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_UnfinishedFile(path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("files of a table are never appended to")

    def _data(self, path: str) -> bytes:
        file = FILES.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file.data

    def _info(self, path: str) -> pafs.FileInfo:
        path = path.strip("/")
        file = FILES.get(path)
        if file is not None:
            return pafs.FileInfo(
                path, pafs.FileType.File, size=len(file.data), mtime_ns=file.modification_time_ms * 1_000_000
            )
        if not path or any(key.startswith(f"{path}/") for key in FILES.copy()):
            return pafs.FileInfo(path, pafs.FileType.Directory)
        return pafs.FileInfo(path, pafs.FileType.NotFound)
