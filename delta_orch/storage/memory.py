"""Tables in this process's memory, for tests and scratch work."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError
from delta_orch.storage.base import FileMeta, LogStore, resolve_data_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A finished file; it never changes, replacing it puts another in its place."""

    data: bytes
    modification_time_ms: int

    @classmethod
    def of(cls, data: bytes | memoryview) -> MemoryFile:
        return cls(bytes(data), time.time_ns() // 1_000_000)


FILES: dict[str, MemoryFile] = {}
"""Every file of every memory table of the process, by `<table name>/<path>`.

No lock guards it, so none can be held across a fork: the single dict operations used here (`setdefault`, assignment,
`pop`, `copy`) are each atomic, and `setdefault` is an exclusive create.
"""


class MemoryStore(LogStore):
    """`memory://name`: the same table for everyone in the process who uses that name. A forked child gets a copy."""

    def __init__(self, name: str) -> None:
        self.root = name.strip("/")
        self.uri = f"memory://{self.root}"

    def __repr__(self) -> str:
        return f"MemoryStore({self.root!r})"

    def read_bytes(self, path: str) -> bytes:
        return _file(self._key(path)).data

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(_file(self._key(path)).data)

    def head(self, path: str) -> FileMeta | None:
        found = self.find_object(self._key(path))
        return None if found is None else self._relative(found)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        for meta in self._listed(directory, recursive=False):
            if meta.path.rpartition("/")[2] >= start_name:
                yield meta

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        return self._listed(directory, recursive=True)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        file = MemoryFile.of(data)
        key = self._key(path)
        if FILES.setdefault(key, file) is not file:
            raise FileExistsInStoreError(f"memory://{key} exists already", path=f"memory://{key}")
        return _file_meta(path, file)

    def put(self, path: str, data: bytes) -> FileMeta:
        file = MemoryFile.of(data)
        FILES[self._key(path)] = file
        return _file_meta(path, file)

    def delete(self, path: str) -> None:
        self.delete_object(self._key(path))

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        from delta_orch.storage.arrow_filesystem import object_filesystem

        return object_filesystem(_EVERY_TABLE), self.root

    def resolve(self, log_path: str) -> str:
        return resolve_data_path(self.root, log_path).removeprefix("memory://")

    # Files by `<table name>/<path>`, as the data file system names them

    def find_object(self, full: str) -> FileMeta | None:
        """None where there is no such file."""
        file = FILES.get(full)
        return None if file is None else _file_meta(full, file)

    def list_objects(self, full: str, *, recursive: bool) -> Iterator[FileMeta]:
        """The files below a directory, ascending by path."""
        prefix = f"{full}/" if full else ""
        # Other tables are many more: what is sorted is this one's alone.
        for key, file in sorted(item for item in FILES.copy().items() if item[0].startswith(prefix)):
            if recursive or "/" not in key[len(prefix) :]:
                yield _file_meta(key, file)

    def delete_object(self, full: str) -> None:
        """A missing file is no error."""
        FILES.pop(full, None)

    def read_object(self, full: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`. Raises FileMissingInStoreError."""
        return _file(full).data[start:end]

    def write_object(self, full: str) -> io.BytesIO:
        """A file to write; readers see it when it is closed."""
        return _UnfinishedFile(full)

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _listed(self, directory: str, *, recursive: bool) -> Iterator[FileMeta]:
        for meta in self.list_objects(self._key(directory), recursive=recursive):
            yield self._relative(meta)

    def _relative(self, meta: FileMeta) -> FileMeta:
        return FileMeta(meta.path[len(self.root) + 1 :], meta.size, meta.modification_time_ms)


class _UnfinishedFile(io.BytesIO):
    """It becomes a file when it is closed, so that no reader sees half of it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            FILES[self._path] = MemoryFile.of(self.getvalue())
        super().close()


def _file(full: str) -> MemoryFile:
    file = FILES.get(full)
    if file is None:
        raise FileMissingInStoreError(f"Cannot read memory://{full}", cause="There is no such file")
    return file


def _file_meta(path: str, file: MemoryFile) -> FileMeta:
    return FileMeta(path, len(file.data), file.modification_time_ms)


_EVERY_TABLE = MemoryStore("")
"""One for all: their data file systems are equal."""
