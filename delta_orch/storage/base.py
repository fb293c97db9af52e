"""The interface of a store; the modules beside this one implement it, one for each kind of store. Paths are relative to
the table's root, separated by `/`, and not URL-encoded. Errors of the operating system become `StorageError` here."""

from __future__ import annotations

import errno
import io
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

from delta_orch.errors import CorruptLogError, FileMissingInStoreError, StorageError
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, LOG_DIRECTORY

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

    from delta_orch.protocol.actions import Metadata

_LOGGER = logging.getLogger(__name__)


class FileMeta(NamedTuple):
    """A file of a store.

    Attributes:
        path: Relative to the root.
        size: In bytes.
        modification_time_ms: Since the epoch.
        identity: Device and inode of a local file, the same under all its names; None on other stores.
        etag: It changes with the content. Only `list_objects` of some stores sets it.
    """

    path: str
    size: int
    modification_time_ms: int
    identity: tuple[int, int] | None = None
    etag: str | None = None


class Maintenance(Enum):
    """Kinds of maintenance, by the names that catalogs allow them under."""

    REORGANIZE = "DATA_REORGANIZATION"
    """Rewrite data files without a change of rows: OPTIMIZE, REORG."""
    CLEAN_DATA = "DATA_CLEANUP"
    """Delete data files that no version needs: VACUUM."""
    CLEAN_LOG = "METADATA_CLEANUP"
    """Delete old files of the log."""


class DefinitionRules(NamedTuple):
    """Table properties that a catalog asks for, `delta.feature.<name>` included.

    Attributes:
        required: A table without them is refused. The writer chooses a value that is null.
        suggested: They apply unless the user sets another value.
    """

    required: Mapping[str, str | None] = {}
    suggested: Mapping[str, str | None] = {}


class StagedFile(ABC):
    """A finished file without a name. `discard`, or the end of the `with` block, deletes it if it was not created."""

    @abstractmethod
    def put_if_absent(self, path: str) -> FileMeta:
        """Create `path` in the directory of `stage`, like `LogStore.put_if_absent`. It succeeds once at most.

        After FileExistsInStoreError or StorageOutcomeUnknownError, the caller may try again.
        """

    @abstractmethod
    def discard(self) -> None:
        """Delete the staged file. A file that is already gone is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class StagedOutput(StagedFile):
    """A file without a name that is written in pieces: write its content to `sink`, then create the file.

    Memory holds only the buffers of the writer.

    Attributes:
        sink: The target of Arrow's writers. A full disk raises OSError there, or StorageError when the file is created.
    """

    sink: pa.NativeFile


class LogStore(ABC):
    """The root directory of one table in one store.

    Several threads may use it, and it survives a fork: clients and threads are created at first use, and a forked child
    creates its own. `repr` and errors never show `storage_options`.
    """

    uri: str
    """The root in its canonical spelling, without a trailing slash: `file:///data/t`, `s3://bucket/t`, `memory://t`."""

    @property
    def address(self) -> str:
        """The name of the table for users: its root, or its name in a catalog. Makes no request."""
        return self.uri

    @property
    def is_near(self) -> bool:
        """Whether the store needs no network. A request then costs less than a thread."""
        return self.uri.startswith(("file:", "memory:"))

    root: str
    """The root's path in `data_filesystem()`'s file system."""

    @property
    def is_catalog_managed(self) -> bool:
        """Whether a catalog decides which commits are versions of the table (PROTOCOL, "Catalog-Managed Tables")."""
        return False

    external_paths: tuple[str, ...] | None = None
    """The places outside the root where data files may lie, see `storage.external_paths`. None allows the whole store
    of the table: the file system, the bucket, the container. An empty tuple allows no place."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """Read a whole file of the log. Raises FileMissingInStoreError, StorageError, and CorruptLogError for a file
        that is larger than `LARGEST_LOG_FILE`."""

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access by Arrow readers. Raises FileMissingInStoreError, StorageError."""

    @abstractmethod
    def head(self, path: str) -> FileMeta | None:
        """Make one metadata request, never a listing. Returns None if there is no file."""

    @abstractmethod
    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        """List the files directly in `directory` whose name is ≥ `start_name`, ascending by name (code points).

        A missing directory lists as empty.
        """

    def at_one_moment(self) -> LogStore:
        """A store for several reads of the log that belong together. A catalog that decides which versions exist
        answers once, now. A store of files returns itself."""
        return self

    def is_unchanged(self, commit: FileMeta) -> bool:
        """Whether an earlier result for a commit still describes the commit of its version."""
        return self.head(commit.path) == commit

    def list_names(self, directory: str) -> list[str]:
        """List the names of `list_from`, ascending, without the metadata of each file."""
        return [meta.path.rpartition("/")[2] for meta in self.list_from(directory)]

    @abstractmethod
    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        """List every file below `directory`, in no order. For vacuum."""

    def table_directories(self) -> Iterator[str]:
        """Find the tables at the root and below it. Yields their directories relative to the root, "" for the root.

        A store without directories lists every object.

        Raises:
            StorageError: A directory cannot be listed.
        """
        directories: set[str] = set()
        for file in self.list_recursive():
            directory, log, _ = f"/{file.path}".partition(f"/{LOG_DIRECTORY}/")
            if log and directory not in directories:
                directories.add(directory)
                yield directory[1:]

    def other_table(self) -> str | None:
        """Find the location of a Delta table above or below this root; None if there is no such table.

        For the creation of a table. It lists the root, which is then empty, and checks each directory above.
        """
        return self._table_around() or self._table_inside()

    def _table_around(self) -> str | None:
        return None

    def _table_inside(self) -> str | None:
        return next((f"{self.uri}/{directory}" for directory in self.table_directories() if directory), None)

    def not_deletable(
        self, candidates: Sequence[str], needed: Iterable[str], needed_identities: Set[tuple[int, int]]
    ) -> set[str]:
        """Select the listed files that must stay although no version has a file of their path.

        Such a file is a needed file under another path (a link, a mount), or it lies in a table inside this table.

        Args:
            candidates: Paths relative to the root, of `list_recursive`.
            needed: Paths in the file system of `data_filesystem`.
            needed_identities: The identities of needed files that were listed.

        Raises:
            StorageError: A needed file cannot be inspected. Nothing may be deleted.
        """
        return set()

    def ensure_can_commit(self) -> None:  # noqa: B027 - a store that can has nothing to do
        """Check, before any data is written, that the store supports `put_if_absent`.

        Raises:
            UnsupportedStoreError: The store has no exclusive create.
            StorageError: The log is a link.
        """

    def new_file(self, path: str) -> str:
        """The path for `data_filesystem()` of a new file below the root.

        Raises:
            StorageError: A directory of the path is a link.
        """
        return self._full(path)

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        """Create `path` holding exactly `data`, or change nothing.

        The only operation that commits rely on for mutual exclusion (PROTOCOL, "Creation of New Log Entries"): of any
        number of concurrent callers exactly one returns; a reader sees no object or all of `data`.

        Raises:
            FileExistsInStoreError: `path` exists. Nothing was written.
            StorageOutcomeUnknownError: The request may have succeeded; read `path` back before retrying.
            UnsupportedStoreError: The store has no exclusive create. Nothing was written.
            StorageError: Nothing was written.
        """

    def put_regenerable(self, path: str, data: bytes) -> FileMeta:
        """Create a file like `put_if_absent`, without waiting for the disk. For files that can be written again.

        After a crash of the machine, the file may be missing or empty.
        """
        return self.put_if_absent(path, data)

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        """Prepare `data` for a file in `directory` that gets its name later.

        A commit keeps its content while it searches for a free version, so this does the work that is needed once.

        Args:
            after: Paths, as the log spells them, of finished files that `data` refers to. When `stage` returns, these
                files and their names are as durable as `data`.

        Raises:
            StorageError: e.g. a full disk. `data` was not written.
        """
        return _BufferedFile(self, data)

    def stage_commit(
        self, data: bytes | memoryview, *, before: Metadata | None, after: Sequence[str] = ()
    ) -> StagedFile:
        """Stage a commit. `put_if_absent` with the path of version v then proposes it as version v.

        Exclusive creation, or a catalog, decides which proposal becomes version v. The others get
        FileExistsInStoreError. `head` and `read_bytes` then show the winner as the commit of version v.

        Args:
            before: The metadata of the table in the version before; None if the commit creates the table. A catalog
                receives the changes to it.
        """
        return self.stage(LOG_DIRECTORY, data, after=after)

    def publish(self, version: int) -> bool:
        """Copy a commit of a catalog to the directory of the log, if it is not there. Returns whether it is there: only
        then may a checkpoint of the version be written. Raises StorageError."""
        return True

    def ensure_may_maintain(self, operation: Maintenance, verb: str) -> None:  # noqa: B027 - files allow everything
        """Check that the catalog allows clients this kind of maintenance.

        Raises:
            MaintenanceNotAllowedError: The catalog does not allow it. Nothing was changed.
        """

    def definition_rules(self) -> DefinitionRules:
        """The table properties that the catalog of the table asks for. A store of files asks for no properties."""
        return DefinitionRules()

    def report_commit(self, figures: Mapping[str, int | None]) -> None:  # noqa: B027 - files need no report
        """Report the metrics of a commit to the catalog. A failure is logged."""

    def stage_output(self, directory: str) -> StagedOutput:
        """Stage a file whose content is written in pieces and may be larger than memory.

        Raises:
            StorageError: Nothing was written.
        """
        return _SpooledOutput(self)

    @abstractmethod
    def put(self, path: str, data: bytes) -> FileMeta:
        """Create or replace atomically. Only for hints (`_last_checkpoint`), never for what a commit relies on."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete the file. A missing file is no error. Only vacuum and cleanup call it."""

    @abstractmethod
    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        """Arrow's file system for data files and the root path in it."""

    def hadoop_options(self) -> dict[str, str]:
        """The storage options under Hadoop's names, for Spark's readers and writers. They may hold secrets."""
        return {}

    @abstractmethod
    def resolve(self, log_path: str) -> str:
        """The path of a data file for `data_filesystem()`'s file system, from an `add.path` as the log spells it.

        Decodes the URI encoding exactly once; absolute URIs (`file:/x`, `s3://…`, `/x`) stay absolute.

        Raises:
            ProtocolViolationError: A relative path that leaves the root, or one no file can have.
            UnsupportedStoreError: A file in another store, or in a place that `external_paths` does not allow.
        """

    def ensure_regular(self, paths: Sequence[str]) -> None:  # noqa: B027 - objects are
        """Check that no path of `resolve` is a pipe, a device or a socket, because opening it may wait forever.

        Raises:
            StorageError: A path is not a file.
        """

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


class FlatStore(LogStore):
    """A store of objects without directories. Full paths start with the bucket, or with the name of a memory table."""

    @abstractmethod
    def find_object(self, full: str) -> FileMeta | None:
        """Make one metadata request. Returns None if there is no such object. Raises StorageError."""

    @abstractmethod
    def list_objects(self, full: str, *, recursive: bool, start_name: str = "") -> Iterator[FileMeta]:
        """List the objects below a directory whose path relative to it is ≥ `start_name`. `path` is a full path.

        The order is ascending by path. Some stores order characters beyond U+FFFF otherwise.
        """

    @abstractmethod
    def delete_object(self, full: str) -> None:
        """A missing object is no error."""

    @abstractmethod
    def read_object(self, full: str, start: int, end: int) -> bytes:
        """Read the bytes from `start` to before `end`. Raises FileMissingInStoreError, StorageError."""

    @abstractmethod
    def read_end(self, full: str, length: int) -> tuple[bytes, int]:
        """Read the last bytes of an object, `length` at most, and its size. Raises like `read_object`."""

    @abstractmethod
    def write_object(self, full: str) -> io.RawIOBase | io.BufferedIOBase:
        """Open a file for writing. The object appears when it is closed. Raises StorageError, like its methods."""

    def head(self, path: str) -> FileMeta | None:
        meta = self.find_object(self._full(path))
        return None if meta is None else FileMeta(path, meta.size, meta.modification_time_ms)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        return map(self._relative, self.list_objects(self._full(directory), recursive=False, start_name=start_name))

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        return map(self._relative, self.list_objects(self._full(directory), recursive=True))

    def _table_around(self) -> str | None:
        above = self.root
        while "/" in above:
            above = above.rpartition("/")[0]
            try:
                log_file = next(iter(self.list_objects(f"{above}/{LOG_DIRECTORY}", recursive=False)), None)
            except StorageError as e:
                # Credentials for a part of the bucket do not permit listings above it.
                _LOGGER.info("Cannot check whether a table lies above %s: %s", self.uri, e)
                return None
            if log_file is not None:
                return self.uri[: len(self.uri) - len(self.root) + len(above)]
        return None

    def delete(self, path: str) -> None:
        self.delete_object(self._full(path))

    def _relative(self, meta: FileMeta) -> FileMeta:
        return FileMeta(meta.path[len(self.root) + 1 :], meta.size, meta.modification_time_ms)


class _BufferedFile(StagedFile):
    """For stores that create a name and its content in one request."""

    def __init__(self, store: LogStore, data: bytes | memoryview) -> None:
        self._store = store
        self._data = data

    def put_if_absent(self, path: str) -> FileMeta:
        return self._store.put_if_absent(path, self._data)

    def discard(self) -> None:
        """Do nothing: no byte was written."""


class _SpooledOutput(StagedOutput):
    """For stores that take a file in one request. It is written to the local disk, then mapped and sent."""

    def __init__(self, store: LogStore) -> None:
        import tempfile

        import pyarrow as pa

        self._store = store
        self._file = tempfile.TemporaryFile(prefix="delta-orch-")  # noqa: SIM115 - closed by discard
        self.sink = pa.PythonFile(self._file, mode="w")

    def put_if_absent(self, path: str) -> FileMeta:
        import mmap

        if not self.sink.closed:
            self.sink.flush()
        self._file.flush()
        if not self._file.tell():
            return self._store.put_if_absent(path, b"")
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            return self._store.put_if_absent(path, data)

    def discard(self) -> None:
        self._file.close()


def ensure_regular_file(path: str) -> None:
    """Check that a local path is a file or a directory. A missing path passes the check.

    Raises:
        StorageError: The path is a pipe, a device or a socket.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - once a file
    except OSError:
        return  # Opening it raises the right error.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StorageError(
            f"Cannot read {path}",
            cause="It is a pipe, a device or a socket, not a file",
            remedy="Find out who created it in the directory of the table",
            path=path,
        )


LARGEST_LOG_FILE, LARGEST_HINT = 2 << 30, 64 << 20
"""The largest size in bytes of a file of the log, which is read as a whole; and of hints, which readers do not need."""


def ensure_log_file_size(path: str, size: int) -> None:
    """Check the size of a file of the log before it is read as a whole.

    Raises:
        CorruptLogError: The file is larger than `LARGEST_LOG_FILE`, or a hint than `LARGEST_HINT`. Nothing was read.
    """
    if size > (most := LARGEST_HINT if path.endswith((LAST_CHECKPOINT_PATH, ".crc")) else LARGEST_LOG_FILE):
        raise CorruptLogError(
            f"Log file {path.rpartition('/')[2]} cannot be read",
            cause=f"It has {size} bytes, more than {most}. A file of the log is read as a whole",
            remedy="Restore the file from a backup",
            path=path,
            size_bytes=size,
        )


NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""The errors of `link` on file systems without hard links."""


_PASSING = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN,
     errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
)  # fmt: skip
"""The errors of mounted file systems while their server is unavailable."""

_TRY_AGAIN = "and try again; the table is unchanged"
_DENIED = (
    "Permission denied: this user may not read or change the file or directory",
    "Grant this user access to it, or use another location",
)
_CAUSES_AND_REMEDIES = {
    errno.ENOSPC: ("The disk is full", f"Free some space {_TRY_AGAIN}"),
    errno.EDQUOT: ("The disk quota is used up", f"Free some space {_TRY_AGAIN}"),
    errno.EFBIG: (
        "The file would exceed the largest size that this process or file system allows",
        f"Raise the limit (`ulimit -f`) {_TRY_AGAIN}",
    ),
    errno.EROFS: ("The file system is mounted read-only", "Mount it writable, or write to another location"),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOTDIR: (
        "A file is in the place of a directory",
        "Use the directory of the table as its location, not a file in it or beside it",
    ),
    errno.EISDIR: ("A directory is in the place of a file", None),
}


@contextmanager
def os_errors(action: str, path: str) -> Iterator[None]:
    """Raise OSErrors of the block as `storage_error` does."""
    try:
        yield
    except OSError as e:
        raise storage_error(e, action, path) from e


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """Translate the error of a failed call. `action` completes "Cannot …"; `path` is absolute."""
    if isinstance(error, StorageError):
        return error  # An object store has already translated it.
    code = error.errno or 0
    problem = f"Cannot {action} {path}"
    if code == errno.ENOENT:
        return FileMissingInStoreError(problem, cause="There is no such file", path=path, errno=code)
    cause, remedy = _CAUSES_AND_REMEDIES.get(code, (error.strerror or str(error), None))
    passing = {"retryable": True} if is_passing(error) else {}
    return StorageError(problem, cause=cause, remedy=remedy, path=path, errno=error.errno, **passing)


def is_full(error: StorageError) -> bool:
    """Whether a disk is full, or a quota used up."""
    return error.context.get("errno") in (errno.ENOSPC, errno.EDQUOT)


def is_passing(error: OSError) -> bool:
    """Whether a failed call may succeed later without a change by a user."""
    return isinstance(error, TimeoutError | ConnectionError | BlockingIOError) or error.errno in _PASSING


def may_pass(error: OSError) -> bool:
    """Like `is_passing`, for calls that may be repeated without harm. Mounted file systems also raise EIO while their
    server is unavailable."""
    return is_passing(error) or error.errno == errno.EIO


class RepeatedTexts(NamedTuple):
    """Estimates about the text columns of a file, made before they are read.

    Attributes:
        dictionaries: The leaf columns, by dotted paths, that can be read as dictionaries because all values are in one.
        wide: The `dictionaries` that repeat long values. As a dictionary, such a column takes a fraction of the memory.
        row_bytes: The bytes that the other text columns take in a row, estimated from their dictionaries.
    """

    dictionaries: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()
    row_bytes: int = 0
