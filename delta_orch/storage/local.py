"""Tables on a local (or mounted) file system.

The order of the system calls matters, so this module calls `os` directly instead of `pathlib`.
"""

# ruff: noqa: PTH100, PTH105, PTH108, PTH112, PTH113, PTH116, PTH120

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from delta_orch.errors import (
    FileExistsInStoreError,
    ProtocolViolationError,
    StorageError,
    StorageOutcomeUnknownError,
    UnsupportedStoreError,
)
from delta_orch.protocol.paths import LOG_DIRECTORY, decode_path, is_absolute, parse_log_path, resolve_data_path
from delta_orch.storage import local_sync
from delta_orch.storage.base import (
    LARGEST_HINT,
    NO_HARD_LINKS,
    FileMeta,
    LogStore,
    StagedFile,
    StagedOutput,
    ensure_log_file_size,
    ensure_regular_file,
    may_pass,
    os_errors,
    storage_error,
)
from delta_orch.storage.external_paths import in_another_store, lies_in, outside

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

P = ParamSpec("P")
T = TypeVar("T")

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_TEMPORARY_SUFFIX = ".tmp"


class LocalStore(LogStore):
    """A directory. It holds no open file, thread or lock, so threads and forked children may share it.

    Exclusive creation is `link(2)` from a temporary file that is complete and on disk. No other primitive is exclusive
    and never shows a prefix on every local file system. Temporary files are hidden (`.….tmp`). A killed writer may
    leave one; only `list_recursive` lists it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        self.uri = Path(self.root).as_uri()

    def read_bytes(self, path: str) -> bytes:
        full = self._allowed(path)
        return _patiently("read", full, _read, full)

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        full = self._allowed(path)
        ensure_regular_file(full)
        return _patiently("open", full, pa.OSFile, full, "rb")

    def head(self, path: str) -> FileMeta | None:
        full = self._full(path)
        return _patiently("look at", full, _looked_up, path, full)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        entries = [e for e in self._entries(directory) if e.name >= start_name and not _is_temporary(e.name)]
        prefix = f"{directory}/" if directory else ""
        for entry in sorted(entries, key=lambda e: e.name):
            meta = _entry_meta(prefix + entry.name, entry)
            if meta is not None:
                yield meta

    def list_names(self, directory: str) -> list[str]:
        # The entries of the directory have the type of each file. Only links need another call.
        with os_errors("list", self._full(directory)):
            return sorted(e.name for e in self._entries(directory) if not _is_temporary(e.name) and e.is_file())

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        pending = [directory]
        while pending:
            current = pending.pop()
            prefix = f"{current}/" if current else ""
            for entry in self._entries(current):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(prefix + entry.name)
                elif (meta := _entry_meta(prefix + entry.name, entry)) is not None:
                    yield meta

    def table_directories(self) -> Iterator[str]:
        # It does not descend into the directories of a table.
        pending = [""]
        while pending:
            current = pending.pop()
            names = [entry.name for entry in self._entries(current) if entry.is_dir(follow_symlinks=False)]
            if LOG_DIRECTORY in names:
                yield current
            else:
                pending += [f"{current}/{name}" if current else name for name in names]

    def _table_around(self) -> str | None:
        for root in dict.fromkeys((self.root, os.path.realpath(self.root))):
            for above in Path(root).parents:
                if _holds_log(str(above)):
                    return above.as_uri()
        return None

    def _table_inside(self) -> str | None:
        pending = [""]
        while pending:
            current = pending.pop()
            for entry in self._entries(current):
                if entry.name == LOG_DIRECTORY:
                    if current:
                        return Path(self._full(current)).as_uri()
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(f"{current}/{entry.name}" if current else entry.name)
        return None

    def not_deletable(
        self, candidates: Sequence[str], needed: Iterable[str], needed_identities: Set[tuple[int, int]]
    ) -> set[str]:
        if not candidates:
            return set()
        files = needed_identities | {identity for path in needed if (identity := _identity(path)) is not None}
        inner: dict[str, bool] = {"": False}
        return {
            path
            for path in candidates
            if self._is_in_table(os.path.dirname(path), inner) or _identity(self._full(path)) in files
        }

    def _is_in_table(self, directory: str, is_in_table: dict[str, bool]) -> bool:
        """Whether a directory below the root, or one of its parents below the root, has an entry `_delta_log`."""
        is_inside = is_in_table.get(directory)
        if is_inside is None:
            log = f"{self._full(directory)}/{LOG_DIRECTORY}"
            is_inside = os.path.lexists(log) or self._is_in_table(os.path.dirname(directory), is_in_table)
            is_in_table[directory] = is_inside
        return is_inside

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        full = self._allowed(directory)
        return _patiently("list", full, _listed, full)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        with self.stage(os.path.dirname(path), data) as staged:
            return staged.put_if_absent(path)

    def ensure_can_commit(self) -> None:
        self._ensure_below(LOG_DIRECTORY)

    def put_regenerable(self, path: str, data: bytes) -> FileMeta:
        full = self.new_file(path)
        temporary, status = _write_temporary(os.path.dirname(full), data)
        try:
            _link(temporary, full)
        finally:
            _unlink(temporary)
        return _file_meta(path, status)

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        self._ensure_below(directory, *(os.path.dirname(decode_path(path)) for path in after if not is_absolute(path)))
        full = self._full(directory)
        is_new = not os.path.isdir(full)
        temporary, status = _write_temporary(full, data)
        staged = _LocalStagedFile(self.root, temporary, status)
        files = list(dict.fromkeys(self.resolve(path) for path in after))
        directories = local_sync.directories_of(self.root, files)
        if is_new and files:
            # The writer of the first files also created the directory of the table, and perhaps those above it.
            directories |= local_sync.readable_parents(self.root)
        try:
            # The journal that holds the contents often holds the names already, so the second call is short.
            local_sync.sync_all([*files, temporary])
            local_sync.sync_all(directories)
        except BaseException:
            staged.discard()
            raise
        return staged

    def stage_output(self, directory: str) -> StagedOutput:
        self._ensure_below(directory)
        return _LocalOutput(self.root, self._full(directory))

    def put(self, path: str, data: bytes) -> FileMeta:
        full = self.new_file(path)
        temporary, status = _write_temporary(os.path.dirname(full), data)
        try:
            os.replace(temporary, full)
        except OSError as e:
            _unlink(temporary)
            raise storage_error(e, "replace", full) from e
        return _file_meta(path, status)

    def delete(self, path: str) -> None:
        full = self.new_file(path)
        with os_errors("delete", full), suppress(FileNotFoundError):
            os.unlink(full)

    def new_file(self, path: str) -> str:
        self._ensure_below(os.path.dirname(path))
        return self._full(path)

    def _ensure_below(self, *directories: str) -> None:
        """Check that no directory of the paths is a link: the target of a link does not belong to the table."""
        for directory in dict.fromkeys(directories):
            for way in accumulate(filter(None, directory.split("/")), "{}/{}".format):
                if os.path.islink(self._full(way)):  # noqa: PTH114 - which raises where a name is too long
                    raise StorageError(
                        f"Cannot change files in {self._full(directory)}",
                        cause=f"{way} is a symbolic link, and its target does not belong to the table",
                        remedy="Find out who created the link in the directory of the table",
                        path=directory,
                    )

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem(), self.root

    def resolve(self, log_path: str) -> str:
        path = resolve_data_path(self.root, log_path)
        is_foreign = is_absolute(log_path)
        if not path.startswith("/") and is_foreign:
            raise in_another_store(self.uri, log_path)
        if ".." in path or self.external_paths is not None:
            self._ensure_allowed(path, log_path, is_foreign=is_foreign)
        return path

    def _allowed(self, path: str) -> str:
        """The full path of a file or directory of the table. With `external_paths`, links must not lead elsewhere."""
        full = self._full(path)
        if self.external_paths is not None:
            self._ensure_allowed(full, path, is_foreign=True)
        return full

    def _ensure_allowed(self, path: str, log_path: str, *, is_foreign: bool) -> None:
        """Check the place of a path after all its links are followed: `link/..` may be another directory."""
        place = os.path.realpath(path)
        if lies_in(place, [os.path.realpath(self.root)]):
            return
        if self.external_paths is not None:
            if not lies_in(place, self.external_paths):
                raise outside(self.uri, path)
        elif not is_foreign and os.path.normpath(path) != path:
            raise ProtocolViolationError(
                f"The log names a data file outside the table: {log_path!r}",
                cause="A link on the way leads out of the table's directory",
                remedy="Look at the commit that added the file before trusting the table",
                path=log_path,
            )

    def ensure_regular(self, paths: Sequence[str]) -> None:
        for path in paths:
            ensure_regular_file(path)


@dataclass(eq=False)
class _LocalStagedFile(StagedFile):
    """A temporary file, complete and on disk. A hard link gives it its final name."""

    _root: str
    _temporary: str
    _status: os.stat_result
    _is_gone: bool = False

    def put_if_absent(self, path: str) -> FileMeta:
        full = f"{self._root}/{path}"
        # The file may have waited for its name. Its time is that of its creation under that name.
        now_ns = time.time_ns() // 1_000_000 * 1_000_000
        with os_errors("finish", full):
            os.utime(self._temporary, ns=(now_ns, now_ns))
        _link(self._temporary, full)
        self.discard()
        try:
            local_sync.sync_path(os.path.dirname(full))
        except OSError as e:
            raise StorageOutcomeUnknownError(
                f"{full} was created but may not survive a crash of the machine", cause=e.strerror, path=full
            ) from e
        return _file_meta(path, self._status)._replace(modification_time_ms=now_ns // 1_000_000)

    def discard(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            _unlink(self._temporary)


class _LocalOutput(StagedOutput):
    """A temporary file that Arrow writes directly."""

    def __init__(self, root: str, directory: str) -> None:
        import pyarrow as pa

        self._root = root
        self._temporary = _new_temporary(directory)
        self._finished: _LocalStagedFile | None = None
        with os_errors("create a file in", directory):
            os.close(_create(self._temporary))
            self.sink = pa.OSFile(self._temporary, "wb")

    def put_if_absent(self, path: str) -> FileMeta:
        if self._finished is None:
            self._finished = self._finish()
        return self._finished.put_if_absent(path)

    def _finish(self) -> _LocalStagedFile:
        with os_errors("write", self._temporary):
            self.sink.close()
            descriptor = os.open(self._temporary, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        return _LocalStagedFile(self._root, self._temporary, status)

    def discard(self) -> None:
        with suppress(OSError):
            # The content is discarded, so an error while closing does not matter.
            self.sink.close()
        _unlink(self._temporary)


def _write_temporary(directory: str, data: bytes | memoryview) -> tuple[str, os.stat_result]:
    """Write `data` to a new hidden file in `directory`, and create missing directories. Raises StorageError."""
    temporary = _new_temporary(directory)
    try:
        descriptor = _create(temporary)
    except OSError as e:
        temporary = _new_temporary(directory)
        descriptor = _again(e, lambda: _create(temporary), "create a file in", directory)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as e:
        _unlink(temporary)
        raise storage_error(e, "write a file in", directory) from e
    return temporary, status


def _new_temporary(directory: str) -> str:
    return f"{directory}/.{os.urandom(8).hex()}{_TEMPORARY_SUFFIX}"


def _read(full: str) -> bytes:
    # A log may have thousands of small files, so this creates no file object. Opening a pipe must not wait.
    descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            ensure_regular_file(full)
        if status.st_size > LARGEST_HINT:
            ensure_log_file_size(full, status.st_size)
        # The read asks for one byte more than the size. A shorter result proves the end of the file.
        data = os.read(descriptor, status.st_size + 1)
        is_whole = len(data) == status.st_size
        return data if is_whole else data + b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
    finally:
        os.close(descriptor)


def _looked_up(path: str, full: str) -> FileMeta | None:
    try:
        status = os.stat(full)
        return None if stat.S_ISDIR(status.st_mode) else _file_meta(path, status)
    except (FileNotFoundError, ValueError):
        # ValueError: no file can have such a name, for example with a zero byte.
        return None


def _listed(full: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(full) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _patiently(action: str, full: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call that changes nothing, and repeat it if it fails temporarily. Raises like `_again`."""
    try:
        return act(*args, **kwargs)
    except OSError as e:
        return _again(e, partial(act, *args, **kwargs), action, full)


def _again(error: OSError, act: Callable[[], T], action: str, full: str) -> T:
    """Repeat a call that failed and changed nothing, as long as the failure may pass. For example, the server of a
    mounted file system restarts. Raises like `storage_error`."""
    from delta_orch.storage.patience import Patience

    patience = Patience()
    while may_pass(error) and patience.wait():
        try:
            return act()
        except OSError as e:
            error = e
    raise storage_error(error, action, full) from error


def _create(path: str) -> int:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        local_sync.make_directory(os.path.dirname(path))
        return os.open(path, flags, 0o666)


def _link(temporary: str, full: str) -> None:
    """Give the finished file its name, unless something has that name."""
    try:
        os.link(temporary, full)
    except FileExistsError:
        raise _taken(full) from None
    except OSError as e:
        if e.errno in NO_HARD_LINKS:
            raise UnsupportedStoreError(
                f"Cannot create {full} safely",
                cause=f"The file system has no hard links ({e.strerror}), so nothing keeps concurrent writers apart",
                remedy="Keep the table on ext4, XFS, Btrfs, ZFS, APFS or tmpfs, or in an object store",
                path=full,
            ) from e
        if may_pass(e):
            # The server may have created the link before its answer was lost.
            raise StorageOutcomeUnknownError(
                f"It is unknown whether {full} was created", cause=e.strerror, path=full, errno=e.errno
            ) from e
        raise storage_error(e, "create", full) from e


def _unlink(temporary: str) -> None:
    # A file that stays is harmless and hidden. An error here would hide the original error.
    with suppress(OSError):
        os.unlink(temporary)


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(_TEMPORARY_SUFFIX)


def _taken(full: str) -> StorageError:
    # A directory, or a link without a target, has no commit to read, so a retry would never end.
    if os.path.lexists(full) and not os.path.isfile(full):
        remedy = "Find out who created it, and remove it"
        return StorageError(f"Cannot create {full}: there is something that is not a file", remedy=remedy, path=full)
    return FileExistsInStoreError(f"{full} exists already", path=full)


def _entry_meta(path: str, entry: os.DirEntry[str]) -> FileMeta | None:
    """Describe an entry. Returns None for an entry that is no file, or was deleted after the listing."""
    try:
        status = entry.stat()
        return _file_meta(path, status) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        return None
    except OSError as e:
        raise storage_error(e, "look at", entry.path) from e


def _identity(full: str) -> tuple[int, int] | None:
    """The identity of a file, the same under all its names; None if the file does not or cannot exist."""
    try:
        status = os.stat(full)
    except OSError as e:
        if e.errno in _NOT_THERE:
            return None
        raise storage_error(e, "look at", full) from e
    return status.st_dev, status.st_ino


def _holds_log(directory: str) -> bool:
    """Whether a directory is the root of a table."""
    try:
        with os.scandir(f"{directory}/{LOG_DIRECTORY}") as entries:
            return any(parse_log_path(entry.name) is not None for entry in entries)
    except PermissionError:
        # A log without permission to read still counts as a log.
        return os.path.lexists(f"{directory}/{LOG_DIRECTORY}")
    except OSError:
        return False


def _file_meta(path: str, status: os.stat_result) -> FileMeta:
    return FileMeta(path, status.st_size, status.st_mtime_ns // 1_000_000, (status.st_dev, status.st_ino))
