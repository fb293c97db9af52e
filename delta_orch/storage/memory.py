"""Tables in this process's memory, for tests and scratch work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.storage.data_location import resolve_data_path

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
        return self._file(path).data

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(self._file(path).data)

    def head(self, path: str) -> FileMeta | None:
        file = FILES.get(self._key(path))
        return None if file is None else _file_meta(path, file)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        prefix = f"{directory}/" if directory else ""
        for meta in self._below(prefix):
            name = meta.path[len(prefix) :]
            if "/" not in name and name >= start_name:
                yield meta

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        yield from self._below(f"{directory}/" if directory else "")

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
        FILES.pop(self._key(path), None)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        from delta_orch.storage.memory_filesystem import memory_filesystem

        return memory_filesystem(), self.root

    def resolve(self, log_path: str) -> str:
        return resolve_data_path(self.root, log_path).removeprefix("memory://")

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _file(self, path: str) -> MemoryFile:
        file = FILES.get(self._key(path))
        if file is None:
            raise FileMissingInStoreError(f"Cannot read memory://{self._key(path)}", cause="There is no such file")
        return file

    def _below(self, prefix: str) -> Iterator[FileMeta]:
        start = f"{self.root}/{prefix}"
        cut = len(self.root) + 1
        # Other tables are many more: what is sorted is this one's alone.
        for key, file in sorted(item for item in FILES.copy().items() if item[0].startswith(start)):
            yield _file_meta(key[cut:], file)


def _file_meta(path: str, file: MemoryFile) -> FileMeta:
    return FileMeta(path, len(file.data), file.modification_time_ms)
