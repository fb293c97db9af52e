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
    """`path` as asked for or listed (relative to the root), `size` in bytes, `modification_time_ms` since the epoch.
    `identity`, where the store tells it, is the same whatever the file is called: device and inode. `etag`, which
    `list_objects` of some stores tells, is another one once the content is."""

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
        required: A table without them is refused. A null value is for the writer to choose.
        suggested: Taken where the user does not say otherwise.
    """

    required: Mapping[str, str | None] = {}
    suggested: Mapping[str, str | None] = {}


class StagedFile(ABC):
    """A finished file without a name. Leaving the `with` block, or `discard`, drops what was not created."""

    @abstractmethod
    def put_if_absent(self, path: str) -> FileMeta:
        """Create `path`, in the directory it was staged for, as `LogStore.put_if_absent` does; once at most.

        After FileExistsInStoreError or StorageOutcomeUnknownError it may be called again.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop it. No error if it is gone already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class StagedOutput(StagedFile):
    """A file without a name that is being written: give `sink` its content, then create it.

    Memory holds no more of it than the writer's own buffers.

    Attributes:
        sink: Where Arrow's writers write to. A full disk shows as OSError there, or as StorageError when it is created.
    """

    sink: pa.NativeFile


class LogStore(ABC):
    """One table's root directory in one store.

    Safe to use from several threads; survives a fork (no client or thread is created before first use, none is shared
    with a child process). `repr` and errors never show `storage_options`.
    """

    uri: str
    """The root in its canonical spelling, without a trailing slash: `file:///data/t`, `s3://bucket/t`, `memory://t`."""

    @property
    def address(self) -> str:
        """What users call the table: its root, or its name in a catalog. Asks nobody."""
        return self.uri

    @property
    def is_near(self) -> bool:
        """Whether nothing is asked across a network: a request costs less than handing it to a thread."""
        return self.uri.startswith(("file:", "memory:"))

    root: str
    """The root's path in `data_filesystem()`'s file system."""

    @property
    def is_catalog_managed(self) -> bool:
        """Whether a catalog decides which commits are versions of the table (PROTOCOL, "Catalog-Managed Tables")."""
        return False

    external_paths: tuple[str, ...] | None = None
    """Where data files outside the root may lie, see `storage.external_paths`. None takes all of the table's own store:
    the file system, the bucket, the container. Empty takes none."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """The whole content of a file of the log. Raises FileMissingInStoreError, StorageError, and
        CorruptLogError where it is larger than `LARGEST_LOG_FILE`."""

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """Random access for Arrow readers. Raises FileMissingInStoreError, StorageError."""

    @abstractmethod
    def head(self, path: str) -> FileMeta | None:
        """One metadata request; None where nothing is there. Never a listing."""

    @abstractmethod
    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        """The files directly in `directory` whose name is ≥ `start_name`, ascending by name (code points).

        A directory that does not exist lists as empty.
        """

    def at_one_moment(self) -> LogStore:
        """The store for several looks at the log that belong together. A catalog that decides which versions there are
        is asked once, now. Where files decide, this is the store itself."""
        return self

    def is_unchanged(self, commit: FileMeta) -> bool:
        """Whether a commit that was seen before still is the commit of its version."""
        return self.head(commit.path) == commit

    def list_names(self, directory: str) -> list[str]:
        """The names of the files directly in `directory`, ascending: what `list_from` lists, without a look at each."""
        return [meta.path.rpartition("/")[2] for meta in self.list_from(directory)]

    @abstractmethod
    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        """Every file below `directory`, in no order. For vacuum."""

    def table_directories(self) -> Iterator[str]:
        """The directories of the tables at the root and below it, relative to the root (its own is empty). A store
        without directories lists every object for this.

        Raises:
            StorageError: A directory cannot be listed.
        """
        found: set[str] = set()
        for file in self.list_recursive():
            directory, log, _ = f"/{file.path}".partition(f"/{LOG_DIRECTORY}/")
            if log and directory not in found:
                found.add(directory)
                yield directory[1:]

    def other_table(self) -> str | None:
        """The location of a Delta table around this root, or of one below it; None where there is neither.

        For the creation of a table: one listing of the root, which is empty then, and a look at each directory above.
        """
        return self._table_around() or self._table_inside()

    def _table_around(self) -> str | None:
        return None

    def _table_inside(self) -> str | None:
        return next((f"{self.uri}/{directory}" for directory in self.table_directories() if directory), None)

    def not_deletable(self, candidates: Sequence[str], needed: Iterable[str], known: Set[tuple[int, int]]) -> set[str]:
        """Those of the listed files that must stay although no version names them as they are listed: they are a needed
        file by another way (a link, a mount), or lie in a table inside this one.

        Args:
            candidates: Paths relative to the root, of `list_recursive`.
            needed: Paths in the file system of `data_filesystem`.
            known: The identities of needed files that were listed.

        Raises:
            StorageError: A needed file cannot be looked at. Nothing is known then.
        """
        return set()

    def ensure_can_commit(self) -> None:  # noqa: B027 - a store that can has nothing to do
        """Check, before any data is written, that the store supports `put_if_absent`.

        Raises:
            UnsupportedStoreError: The store has no exclusive create.
            StorageError: The log is a link.
        """

    def new_file(self, path: str) -> str:
        """Where `data_filesystem()` makes a file of that path below the root.

        Raises:
            StorageError: A link on the way leads elsewhere.
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
        """As `put_if_absent`, for files that can be made again and that nothing relies on.

        After a crash of the machine the file may be gone or empty. Costs as little as the store allows.
        """
        return self.put_if_absent(path, data)

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        """Prepare `data` to be created in `directory`, under a name that is not known yet.

        A commit keeps its content while it looks for a free version. Work that is needed only once is done here.

        Args:
            after: Files that `data` names, as the log spells them, written and closed. When this returns, they and
                their names are as durable as `data`: a store that does not guarantee this by itself waits for them.

        Raises:
            StorageError: e.g. a full disk. `data` was not written.
        """
        return _BufferedFile(self, data)

    def stage_commit(
        self, data: bytes | memoryview, *, before: Metadata | None, after: Sequence[str] = ()
    ) -> StagedFile:
        """As `stage`, for a commit: `put_if_absent` with the path of version v proposes it as version v.

        This is the whole seam between the commit loop and what decides about commits. Files decide by exclusive
        creation; a catalog is asked. Whoever loses sees FileExistsInStoreError, and the winner is then the commit of
        version v that `head` and `read_bytes` show.

        Args:
            before: The table's metadata in the version before; None creates the table. A catalog is told what changes.
        """
        return self.stage(LOG_DIRECTORY, data, after=after)

    def publish(self, version: int) -> bool:
        """Whether the commit of a version lies in the log's directory, where checkpoints may stand for it. A catalog's
        commit is copied there if it is not. Raises StorageError."""
        return True

    def ensure_may_maintain(self, operation: Maintenance, verb: str) -> None:  # noqa: B027 - files allow everything
        """Check that others than the catalog may maintain the table in this way.

        Raises:
            MaintenanceNotAllowedError: The catalog does not allow it. Nothing was done.
        """

    def definition_rules(self) -> DefinitionRules:
        """What the catalog of the table asks of its definition. A store of files asks nothing."""
        return DefinitionRules()

    def report_commit(self, figures: Mapping[str, int | None]) -> None:  # noqa: B027 - files need no report
        """Tell the catalog how much a commit has changed. A failure is logged."""

    def stage_output(self, directory: str) -> StagedOutput:
        """As `stage`, for content that comes in pieces and may be larger than memory.

        Raises:
            StorageError: Nothing was written.
        """
        return _SpooledOutput(self)

    @abstractmethod
    def put(self, path: str, data: bytes) -> FileMeta:
        """Create or replace atomically. Only for hints (`_last_checkpoint`), never for what a commit relies on."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the file. A missing file is no error. Only vacuum and cleanup call it."""

    @abstractmethod
    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        """Arrow's file system for data files and the root path in it."""

    def hadoop_options(self) -> dict[str, str]:
        """Options for Spark's readers and writers: the storage options in Hadoop's names. They may hold secrets."""
        return {}

    @abstractmethod
    def resolve(self, log_path: str) -> str:
        """The path of a data file for `data_filesystem()`'s file system, from an `add.path` as the log spells it.

        Decodes the URI encoding exactly once; absolute URIs (`file:/x`, `s3://…`, `/x`) stay absolute.

        Raises:
            ProtocolViolationError: A relative path that leaves the root, or one no file can have.
            UnsupportedStoreError: Another store, or a place that `external_paths` does not open.
        """

    def ensure_regular(self, paths: Sequence[str]) -> None:  # noqa: B027 - objects are
        """Check that nothing that `resolve` gave is a pipe, a device or a socket: opening one may wait for ever.

        Raises:
            StorageError: One is.
        """

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


class FlatStore(LogStore):
    """A store of objects without directories. Full paths start with the bucket, or with the name of a memory table."""

    @abstractmethod
    def find_object(self, full: str) -> FileMeta | None:
        """One metadata request; None where there is no such object. Raises StorageError."""

    @abstractmethod
    def list_objects(self, full: str, *, recursive: bool, start_name: str = "") -> Iterator[FileMeta]:
        """The objects below a directory whose path behind it is ≥ `start_name`; `path` is a full path. Ascending by
        path, unless the store lists in another order beyond U+FFFF."""

    @abstractmethod
    def delete_object(self, full: str) -> None:
        """A missing object is no error."""

    @abstractmethod
    def read_object(self, full: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`. Raises FileMissingInStoreError, StorageError."""

    @abstractmethod
    def read_end(self, full: str, length: int) -> tuple[bytes, int]:
        """The last bytes of an object, `length` at most, and its size. Raises as `read_object`."""

    @abstractmethod
    def write_object(self, full: str) -> io.RawIOBase | io.BufferedIOBase:
        """A file to write. The object appears when the file is closed. Raises StorageError, as do its methods."""

    def head(self, path: str) -> FileMeta | None:
        found = self.find_object(self._full(path))
        return None if found is None else FileMeta(path, found.size, found.modification_time_ms)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        return map(self._relative, self.list_objects(self._full(directory), recursive=False, start_name=start_name))

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        return map(self._relative, self.list_objects(self._full(directory), recursive=True))

    def _table_around(self) -> str | None:
        above = self.root
        while "/" in above:
            above = above.rpartition("/")[0]
            try:
                found = next(iter(self.list_objects(f"{above}/{LOG_DIRECTORY}", recursive=False)), None)
            except StorageError as e:
                # Credentials for a part of the bucket do not show what lies above it.
                _LOGGER.info("Whether a table lies around %s is not known: %s", self.uri, e)
                return None
            if found is not None:
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
        """Nothing was written yet."""


class _SpooledOutput(StagedOutput):
    """For stores that take a file in one request: it is first written to the local disk, then mapped and sent."""

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
    """Check that what lies at a local path is a file. Nothing is said where nothing is there.

    Raises:
        StorageError: It is a pipe, a device or a socket.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - once a file
    except OSError:
        return  # opening it tells what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StorageError(
            f"Cannot read {path}",
            cause="It is not a file, but a pipe, a device or a socket",
            remedy="Find out who has put it into the table's directory",
            path=path,
        )


LARGEST_LOG_FILE, LARGEST_HINT = 2 << 30, 64 << 20
"""No file of a log is larger, as it is read as a whole; nor what readers can do without, which many begin with."""


def ensure_log_file_size(path: str, size: int) -> None:
    """Check the size of a file before all of it is read.

    Raises:
        CorruptLogError: It is larger than `LARGEST_LOG_FILE`, or `LARGEST_HINT`. Nothing was read.
    """
    if size > (most := LARGEST_HINT if path.endswith((LAST_CHECKPOINT_PATH, ".crc")) else LARGEST_LOG_FILE):
        raise CorruptLogError(
            f"Log file {path.rpartition('/')[2]} cannot be read",
            cause=f"It has {size} bytes: no file of a log that is read as a whole has more than {most}",
            remedy="Restore the file from a backup",
            path=path,
            size_bytes=size,
        )


NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""What `link` answers on file systems without hard links."""


_PASSING = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN,
     errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
)  # fmt: skip
"""What mounted file systems answer while their server is away."""

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
        "Give the directory of the table, not a file in it or beside it",
    ),
    errno.EISDIR: ("A directory is in the place of a file", None),
}


@contextmanager
def os_errors(action: str, path: str) -> Iterator[None]:
    """OSErrors of the block are raised as `storage_error` tells them."""
    try:
        yield
    except OSError as e:
        raise storage_error(e, action, path) from e


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """The error to raise for a failed call; `action` completes "Cannot …", `path` is absolute."""
    if isinstance(error, StorageError):
        return error  # an object store has already said what there is to say
    code = error.errno or 0
    problem = f"Cannot {action} {path}"
    if code == errno.ENOENT:
        return FileMissingInStoreError(problem, cause="There is no such file", path=path, errno=code)
    cause, remedy = _CAUSES_AND_REMEDIES.get(code, (error.strerror or str(error), None))
    passing = {"retryable": True} if is_passing(error) else {}
    return StorageError(problem, cause=cause, remedy=remedy, path=path, errno=error.errno, **passing)


def is_full(error: StorageError) -> bool:
    """Whether a disk, or a quota, has no room left."""
    return error.context.get("errno") in (errno.ENOSPC, errno.EDQUOT)


def is_passing(error: OSError) -> bool:
    """Whether a failed call may succeed when it is made again, without anybody changing anything."""
    return isinstance(error, TimeoutError | ConnectionError | BlockingIOError) or error.errno in _PASSING


def may_pass(error: OSError) -> bool:
    """As `is_passing`, for calls that may be made again without harm: mounted file systems also answer EIO while their
    server is away."""
    return is_passing(error) or error.errno == errno.EIO


class RepeatedTexts(NamedTuple):
    """What is known of the texts of a file before they are read.

    Attributes:
        dictionaries: The leaf columns, by their dotted paths, that can be read as dictionaries: every value is in one.
        wide: Those of them that repeat long values: as a dictionary, a column takes a fraction.
        row_bytes: What the values of other texts take in a row, going by the dictionaries that some of them are in.
    """

    dictionaries: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()
    row_bytes: int = 0
