"""Tables in this process's memory, for tests and scratch work."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError
from delta_orch.protocol.paths import resolve_data_path
from delta_orch.storage.base import FileMeta, FlatStore
from delta_orch.storage.external_paths import lies_in, outside, place_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A finished file. It never changes; a replacement is a new object."""

    data: bytes
    modification_time_ms: int

    @classmethod
    def of(cls, data: bytes | memoryview) -> MemoryFile:
        return cls(bytes(data), time.time_ns() // 1_000_000)


FILES: dict[str, MemoryFile] = {}
"""Every file of every memory table of the process, by `<table name>/<path>`.

It needs no lock, because a lock could be held during a fork. The dict operations here (`setdefault`, assignment, `pop`,
`copy`) are each atomic, and `setdefault` is an exclusive create.
"""


class MemoryStore(FlatStore):
    """`memory://name`: one table for each name in the process. A forked child gets a copy."""

    def __init__(self, name: str) -> None:
        self.root = name.strip("/")
        self.uri = f"memory://{self.root}"

    def read_bytes(self, path: str) -> bytes:
        return _file(self._full(path)).data

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(_file(self._full(path)).data)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        file = MemoryFile.of(data)
        key = self._full(path)
        if FILES.setdefault(key, file) is not file:
            raise FileExistsInStoreError(f"memory://{key} exists already", path=f"memory://{key}")
        return _file_meta(path, file)

    def put(self, path: str, data: bytes) -> FileMeta:
        file = MemoryFile.of(data)
        FILES[self._full(path)] = file
        return _file_meta(path, file)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        from delta_orch.storage.arrow_filesystem import object_filesystem

        return object_filesystem(_EVERY_TABLE), self.root

    def resolve(self, log_path: str) -> str:
        path = resolve_data_path(self.root, log_path).removeprefix("memory://")
        if self.external_paths is not None:
            place = place_of(f"memory://{path}")
            if not lies_in(place, (place_of(self.uri), *self.external_paths)):
                raise outside(self.uri, place)
        return path

    # Files by `<table name>/<path>`, as in the data file system

    def find_object(self, full: str) -> FileMeta | None:
        file = FILES.get(full)
        return None if file is None else _file_meta(full, file)

    def list_objects(self, full: str, *, recursive: bool, start_name: str = "") -> Iterator[FileMeta]:
        prefix = f"{full}/" if full else ""
        # Only the files of this table are sorted, because other tables may have many more.
        for key, file in sorted(item for item in FILES.copy().items() if item[0].startswith(prefix)):
            name = key[len(prefix) :]
            if name >= start_name and (recursive or "/" not in name):
                yield _file_meta(key, file)

    def delete_object(self, full: str) -> None:
        FILES.pop(full, None)

    def read_object(self, full: str, start: int, end: int) -> bytes:
        return _file(full).data[start:end]

    def read_end(self, full: str, length: int) -> tuple[bytes, int]:
        data = _file(full).data
        return data[-length:], len(data)

    def write_object(self, full: str) -> io.BytesIO:
        return _UnfinishedFile(full)


class _UnfinishedFile(io.BytesIO):
    """A file that appears when it is closed, so that no reader sees a part of it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            FILES[self._path] = MemoryFile.of(self.getvalue())
        super().close()

    def __del__(self) -> None:
        """Discard a file that was not closed."""


def _file(full: str) -> MemoryFile:
    file = FILES.get(full)
    if file is None:
        raise FileMissingInStoreError(f"Cannot read memory://{full}", cause="There is no such file")
    return file


def _file_meta(path: str, file: MemoryFile) -> FileMeta:
    return FileMeta(path, len(file.data), file.modification_time_ms)


_EVERY_TABLE = MemoryStore("")
"""The store behind the data file systems of all tables, so that these are equal."""
