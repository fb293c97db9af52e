"""Tables in other file systems of fsspec (`hdfs:`, `sftp:`, …). They are read-only, because fsspec does not promise
exclusive creation, unless the user promises a single writer."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from delta_orch.errors import (
    DeltaError,
    FileExistsInStoreError,
    FileMissingInStoreError,
    MissingDependencyError,
    StorageError,
    UnsupportedStoreError,
)
from delta_orch.protocol.paths import resolve_data_path, without_file_scheme
from delta_orch.redaction import secrets_in
from delta_orch.storage.base import FileMeta, LogStore, is_passing
from delta_orch.storage.external_paths import in_another_store, lies_in, outside, place_of
from delta_orch.storage.log_redaction import hide_in_logs, shows_secret
from delta_orch.storage.patience import Patience, is_passing_status
from delta_orch.storage.storage_options import SINGLE_WRITER_OPTION, public_uri, read_only, secret_texts

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

Fsspec = Any
"""A file system of fsspec, or its information about a file. They have no types."""

_TIME_KEYS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created", "date")


class FsspecStore(LogStore):
    """One directory of an fsspec file system. The file system is made at first use, and again in a forked child.

    Args:
        uri: `protocol://…`.
        storage_options: Options for fsspec, and `single_writer`. `repr` and errors never show them.

    Raises:
        UnsupportedStoreError: fsspec knows no such protocol.
        MissingDependencyError: The package that speaks the protocol is not installed.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, object] | None = None) -> None:
        options = dict(storage_options or {})
        self._single_writer = str(options.pop(SINGLE_WRITER_OPTION, "false")).lower() == "true"
        self._options = options
        hide_in_logs([*secret_texts(options), *secrets_in(uri)])
        self._protocol = uri.partition(":")[0]
        # A query may hold a signature, so `uri`, which is shown, does not contain it.
        self.uri = public_uri(uri).rstrip("/")
        self.root = _filesystem_class(self._protocol)._strip_protocol(uri.rstrip("/")).rstrip("/")
        self._made: tuple[int, Fsspec] | None = None

    def __getstate__(self) -> dict[str, Fsspec]:
        return {**self.__dict__, "_made": None}

    def read_bytes(self, path: str) -> bytes:
        data: bytes = self._ask("read", path, lambda: self._filesystem.cat_file(self._full(path)))
        return data

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.PythonFile(self._ask("open", path, lambda: self._filesystem.open(self._full(path), "rb")), mode="r")

    def head(self, path: str) -> FileMeta | None:
        try:
            # A cached listing would hide a new commit.
            self._filesystem.invalidate_cache(self._full(path))
            info = self._ask("look at", path, lambda: self._filesystem.info(self._full(path)))
        except FileMissingInStoreError:
            return None
        return None if info["type"] == "directory" else _file_meta(path, info)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        infos: list[Fsspec] = []
        with suppress(FileMissingInStoreError):
            self._filesystem.invalidate_cache(self._full(directory))
            infos = self._ask("list", directory, lambda: self._filesystem.ls(self._full(directory), detail=True))
        prefix = f"{directory}/" if directory else ""
        named = {info["name"].rstrip("/").rpartition("/")[2]: info for info in infos if info["type"] != "directory"}
        for name in sorted(named):
            if name >= start_name:
                yield _file_meta(prefix + name, named[name])

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        infos: dict[str, Fsspec] = {}
        with suppress(FileMissingInStoreError):
            self._filesystem.invalidate_cache(self._full(directory))
            infos = self._ask("list", directory, lambda: self._filesystem.find(self._full(directory), detail=True))
        cut = len(self.root) + 1
        for name, info in infos.items():
            yield _file_meta(name[cut:], info)

    def ensure_can_commit(self) -> None:
        if not self._single_writer:
            cause = f"Exclusive creation of a commit is not implemented for {self._protocol}"
            raise read_only(self.uri, self._protocol, cause)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        self.ensure_can_commit()
        if self.head(path) is not None:
            raise FileExistsInStoreError(f"{self.uri}/{path} exists already", path=path)
        return self.put(path, bytes(data))

    def put(self, path: str, data: bytes) -> FileMeta:
        def write() -> None:
            self._filesystem.makedirs(self._full(path).rpartition("/")[0], exist_ok=True)
            self._filesystem.pipe_file(self._full(path), bytes(data))

        self._ask("write", path, write)
        written = self.head(path)
        if written is None:
            raise StorageError(
                f"Cannot write {self.uri}/{path}", cause="The file was missing right after it was written"
            )
        return written

    def delete(self, path: str) -> None:
        with suppress(FileMissingInStoreError):
            self._ask("delete", path, lambda: self._filesystem.rm_file(self._full(path)))

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        import pyarrow.fs as pafs

        return pafs.PyFileSystem(pafs.FSSpecHandler(self._filesystem)), self.root

    def resolve(self, log_path: str) -> str:
        path = resolve_data_path(self.root, log_path)
        if path.startswith(f"{self._protocol}://"):
            if _authority(path) != _authority(self.uri):
                # The file system has one host, and would look for the path there.
                raise in_another_store(self.uri, log_path)
            full = str(_filesystem_class(self._protocol)._strip_protocol(path))
        elif "://" in without_file_scheme(log_path):
            raise in_another_store(self.uri, log_path)
        else:
            full = path
        if self.external_paths is not None and not lies_in(posixpath.normpath(full), [self.root]):
            place = place_of(log_path if "://" in log_path else f"{self._protocol}://{_authority(self.uri)}/{full}")
            if not lies_in(place, self.external_paths):
                raise outside(self.uri, place)
        return full

    @property
    def _filesystem(self) -> Fsspec:
        made = self._made
        if made is None or made[0] != os.getpid():
            made = (os.getpid(), self._connect())
            self._made = made
        return made[1]

    def _connect(self) -> Fsspec:
        make = _filesystem_class(self._protocol)
        try:
            return make(**self._options)
        except (TypeError, ValueError, OSError) as e:
            failed = type(e).__name__
        # The text of the library may repeat an option, and options hold secrets, so the error shows only its class. It
        # is raised outside the handler, so that it does not carry the other error as its context.
        raise StorageError(
            f"Cannot open the store of {self.uri}",
            cause=f"{failed} from fsspec's {self._protocol} file system",
            remedy="Check the storage options of that file system, and that it can be reached",
            store=self._protocol,
        )

    def _ask(self, action: str, path: str, request: Callable[[], Fsspec]) -> Fsspec:
        """Make a request that may be repeated. If it fails temporarily, repeat it for `retry_seconds`."""
        patience = Patience()
        while True:
            try:
                return request()
            except DeltaError:
                raise
            except Exception as e:  # noqa: BLE001 - each file system of fsspec raises what its library raises
                error = self._error(e, action, path)
                # The text of the library may hold a signed request.
                cause = None if shows_secret(e) else e
            # Raised outside the handler, the error does not carry the other error as its context.
            if not error.retryable or not patience.wait():
                raise error from cause

    def _error(self, error: Exception, action: str, path: str) -> StorageError:
        kind = FileMissingInStoreError if isinstance(error, FileNotFoundError) else StorageError
        passing: dict[str, Any] = {"retryable": True} if _is_passing(error) else {}
        cause = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        return kind(f"Cannot {action} {self.uri}/{path}", cause=cause, path=path, **passing)


def _authority(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0]


def _is_passing(error: Exception) -> bool:
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return is_passing_status(status)
    # The names are of aiohttp, whose errors are not all OSErrors.
    return (isinstance(error, OSError) and is_passing(error)) or type(error).__name__ in (
        "ServerDisconnectedError", "ClientConnectorError", "ClientOSError", "ClientPayloadError",
    )  # fmt: skip


def _filesystem_class(protocol: str) -> Fsspec:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as e:
        cause = str(e)
    except ValueError:
        cause = ""
    # Raised outside the handler, because fsspec's error repeats the location, which may hold a password.
    if cause:
        raise MissingDependencyError(
            f"Cannot open {protocol}:// tables", cause=cause, remedy="Install the fsspec package for this protocol"
        )
    raise UnsupportedStoreError(
        f"There is no store for {protocol}:// locations",
        remedy="Use a local path, file:, memory: or a protocol that fsspec knows",
        store=protocol,
    )


def _file_meta(path: str, info: Mapping[str, Fsspec]) -> FileMeta:
    return FileMeta(path, int(info.get("size") or 0), _modification_time_ms(info))


def _modification_time_ms(info: Mapping[str, Fsspec]) -> int:
    """The time of a file, 0 if unknown. fsspec has no common key or type for it."""
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1000)
        if isinstance(value, int | float):
            return int(value * 1000)
        if isinstance(value, str) and value:
            return int(_parse_time(value).timestamp() * 1000)
    return 0


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)
