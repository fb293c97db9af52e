"""A local store that notices who leaves the table's directory."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.storage.base import FileMeta
from delta_orch.storage.local import LocalStore

_OWN_PLACE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


class WatchedStore(LocalStore):
    """Reads like `LocalStore`.

    Attributes:
        escapes: What was opened outside the table's directory although the log names no absolute path for it.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.escapes: list[str] = []
        self._resolved_absolute: set[str] = set()
        self._filesystem = _WatchedFilesystem(self)

    def read_bytes(self, path: str) -> bytes:
        self.notice(f"{self.root}/{path}")
        return super().read_bytes(path)

    def open_input(self, path: str) -> pa.NativeFile:
        self.notice(f"{self.root}/{path}")
        return super().open_input(path)

    def head(self, path: str) -> FileMeta | None:
        self.notice(f"{self.root}/{path}")
        return super().head(path)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        self.notice(f"{self.root}/{directory}")
        return super().list_from(directory, start_name)

    def resolve(self, log_path: str) -> str:
        path = super().resolve(log_path)
        if _OWN_PLACE.match(log_path):
            self._resolved_absolute.add(path)
        return path

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        return self._filesystem, self.root

    def notice(self, path: str) -> None:
        """Note a path that is about to be opened, if it lies outside and the log did not ask for it."""
        normal = posixpath.normpath(path)
        if normal != self.root and not normal.startswith(f"{self.root}/") and path not in self._resolved_absolute:
            self.escapes.append(path)


class _WatchedFilesystem(pafs.LocalFileSystem):  # type: ignore[misc]
    def __init__(self, store: WatchedStore) -> None:
        super().__init__()
        self._store = store

    def open_input_file(self, path: str) -> Any:
        self._store.notice(path)
        return super().open_input_file(path)

    def open_input_stream(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._store.notice(path)
        return super().open_input_stream(path, *args, **kwargs)
