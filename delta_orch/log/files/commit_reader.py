"""Commits and other JSON files of the log, parsed into Arrow columns and a few small values.

Lines pass through Python once, as one parsed object each; in batches they become Arrow columns and are forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import orjson

from delta_orch.errors import (
    CorruptLogError,
    DeltaError,
    FileMissingInStoreError,
    LogGapError,
    ProtocolViolationError,
    StorageError,
)
from delta_orch.protocol.action_json import ACTION_NAMES, parse_action, plain_txn
from delta_orch.protocol.actions import CheckpointMetadata, DomainMetadata, Metadata, Protocol, Sidecar, Txn
from delta_orch.storage.base import LARGEST_LOG_FILE, FileMeta, LogStore, ensure_log_file_size

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 512 * 1024
LONGEST_LINE_BYTES = 256 << 20
_MALFORMED = (TypeError, ValueError, AttributeError, KeyError, OverflowError)
_FLUSH_ROWS = 1_000
_ONE_AT_MOST = "A commit and a checkpoint have one at most, and readers differ in which of two counts"
# The years 1 to 9999.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


class LogFile(NamedTuple):
    """The content of one JSON file of the log. `path` is relative to the table's root."""

    path: str
    version: int
    data: bytes


class FileActions:
    """The bodies of one kind of file action, in order, and the table they become.

    Bodies become columns some thousand at a time, the last of them when the table is asked for: a process that reads a
    short log for its protocol, metadata or transaction identifiers does not load Arrow.

    Args:
        action: `add`, `remove` or `cdc`.
    """

    __slots__ = ("_action", "_batches", "_bodies", "_orders", "_paths")

    def __init__(self, action: str) -> None:
        self._action = action
        self._bodies: list[object] = []
        self._paths: list[str] = []
        self._orders = array("q")
        self._batches: list[pa.RecordBatch] = []

    def __len__(self) -> int:
        return len(self._orders)

    def append(self, body: object, order: int, path: str) -> None:
        """Add one action of the log file `path`.

        Raises:
            ProtocolViolationError: This or an earlier action is malformed; the error names the log file.
        """
        if not isinstance(body, dict) or not isinstance(body.get("path"), str):
            raise _malformed(self._action, path, f"It is not an object with a path: {body!r:.100}")
        self._bodies.append(body)
        self._paths.append(path)
        self._orders.append(order)
        if len(self._bodies) >= _FLUSH_ROWS:
            self._batches.append(self._build())
            self._bodies, self._paths = [], []

    def extend(self, later: FileActions, shift: int) -> None:
        """Add the actions of a later run of files, whose orders begin at `shift`. Raises as `append`."""
        if later._batches:
            if self._bodies:
                self._batches.append(self._build())
                self._bodies, self._paths = [], []
            self._batches += later._batches
        self._bodies += later._bodies
        self._paths += later._paths
        self._orders.extend([order + shift for order in later._orders])

    def table(self) -> pa.Table:
        """The columns of `file_columns` for this kind of action. Raises as `append`."""
        import pyarrow as pa

        from delta_orch.log.files.file_columns import SCHEMAS

        batches = [*self._batches, self._build()] if self._bodies else self._batches
        return pa.Table.from_batches(batches, SCHEMAS[self._action])

    def orders(self) -> pa.ChunkedArray:
        """The order of each row, int64."""
        import pyarrow as pa

        orders = pa.Array.from_buffers(pa.int64(), len(self._orders), [None, pa.py_buffer(self._orders)])
        return pa.chunked_array([orders])

    def _build(self) -> pa.RecordBatch:
        from delta_orch.log.files.file_columns import build_batch

        try:
            return build_batch(self._action, self._bodies)
        except _MALFORMED:
            for body, path in zip(self._bodies, self._paths, strict=True):
                try:
                    build_batch(self._action, [body])
                except _MALFORMED as e:
                    raise _malformed(self._action, path, f"{type(e).__name__}: {e}") from None
            raise


def _malformed(action: str, path: str, cause: str) -> DeltaError:
    name = path.rpartition("/")[2]
    return ProtocolViolationError(
        f"Log file {name} holds a malformed {action} action",
        cause=cause,
        remedy="Restore the file from a backup, or read a version before it",
        path=path,
        action=action,
    )


@dataclass(eq=False)
class LogActions:
    """The actions of a run of JSON files, reconciled as far as this needs no file columns.

    File actions stay parsed JSON until somebody asks for their columns: neither opening a table nor an append does.
    Safe to share between threads once it is complete: at worst two of them build the same columns.

    Attributes:
        protocol, metadata: The newest ones, None where no file has one.
        txns: The newest `txn` of each app id.
        domain_metadata: The newest of each domain, removed ones included.
        commit_info: The `commitInfo` of the newest file, or None.
        sidecars, checkpoint_metadata: Of a V2 checkpoint; commits have none.
        num_superseded: How many actions that are no files were replaced by a later one; none within reconciled files.
        num_log_files: Of how many files it was made. Every order is below twice that.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domain_metadata: dict[str, DomainMetadata] = field(default_factory=dict)
    commit_info: Mapping[str, object] | None = None
    sidecars: list[Sidecar] = field(default_factory=list)
    checkpoint_metadata: CheckpointMetadata | None = None
    num_superseded: int = 0
    num_log_files: int = 0
    _adds: FileActions = field(default_factory=partial(FileActions, "add"), repr=False)
    _removes: FileActions = field(default_factory=partial(FileActions, "remove"), repr=False)
    _cdc: FileActions = field(default_factory=partial(FileActions, "cdc"), repr=False)
    _set_by: dict[type, str] = field(default_factory=dict, repr=False)

    @property
    def num_files(self) -> int:
        """How many `add` and `remove` actions there are."""
        return len(self._adds) + len(self._removes)

    @staticmethod
    def files_of(runs: Sequence[LogActions]) -> LogActions:
        """The `add` and `remove` actions of runs that follow each other, as of one run. Raises as `adds`."""
        if len(runs) == 1:
            return runs[0]
        merged = LogActions()
        for run in runs:
            shift = 2 * merged.num_log_files
            merged._adds.extend(run._adds, shift)
            merged._removes.extend(run._removes, shift)
            merged.num_log_files += run.num_log_files
        return merged

    @cached_property
    def adds(self) -> pa.Table:
        """Every `add`, in the order of the log; columns of `file_columns.ADD_SCHEMA`.

        Raises:
            ProtocolViolationError: One is malformed; the error names the file.
        """
        return self._adds.table()

    @cached_property
    def removes(self) -> pa.Table:
        """Every `remove`; columns of `file_columns.REMOVE_SCHEMA`. Raises as `adds`."""
        return self._removes.table()

    @cached_property
    def cdc(self) -> pa.Table:
        """Every `cdc`; columns of `file_columns.CDC_SCHEMA`. Raises as `adds`."""
        return self._cdc.table()

    @property
    def add_order(self) -> pa.ChunkedArray:
        """int64, one a row of `adds`: the later an action applies, the higher. Within one file removes apply before
        adds."""
        return self._adds.orders()

    @property
    def remove_order(self) -> pa.ChunkedArray:
        """As `add_order`, of `removes`."""
        return self._removes.orders()

    def read(self, file: LogFile) -> None:
        """Take in the next file of the run. Raises as `parse_log_files`."""
        self.commit_info = None
        remove_order = 2 * self.num_log_files
        self.num_log_files += 1
        for objects in _parse_lines(file):
            for obj in objects:
                if len(obj) > 1 and sum(obj.get(name) is not None for name in ACTION_NAMES) > 1:
                    raise _corrupt(file, "A line holds two actions, and readers differ in which one counts")
                if (body := obj.get("add")) is not None:
                    self._adds.append(body, remove_order + 1, file.path)
                elif (body := obj.get("remove")) is not None:
                    self._removes.append(body, remove_order, file.path)
                elif (body := obj.get("commitInfo")) is not None:
                    self.commit_info = body if isinstance(body, dict) else None
                elif (body := obj.get("cdc")) is not None:
                    self._cdc.append(body, remove_order, file.path)
                elif (txn := plain_txn(obj.get("txn"))) is not None:
                    self.num_superseded += txn.app_id in self.txns
                    self.txns[txn.app_id] = txn
                else:
                    self.take(obj, file)

    def take(self, obj: Mapping[str, object], file: LogFile) -> None:
        """Take in one action of a file that is no file action. Raises as `read`."""
        try:
            match parse_action(obj):
                case Protocol() as protocol:
                    self._ensure_only_one(self.protocol, protocol, file)
                    self.protocol = protocol
                case Metadata() as metadata:
                    self._ensure_only_one(self.metadata, metadata, file)
                    self.metadata = metadata
                case Txn() as txn:
                    self.num_superseded += txn.app_id in self.txns
                    self.txns[txn.app_id] = txn
                case DomainMetadata() as domain:
                    self.num_superseded += domain.domain in self.domain_metadata
                    self.domain_metadata[domain.domain] = domain
                case Sidecar() as sidecar:
                    self.sidecars.append(sidecar)
                case CheckpointMetadata(version) if version != file.version:
                    raise ProtocolViolationError(f"it is a checkpoint of version {version}")
                case CheckpointMetadata() as checkpoint_metadata:
                    self.checkpoint_metadata = checkpoint_metadata
        except ProtocolViolationError as e:
            name = file.path.rpartition("/")[2]
            raise ProtocolViolationError(
                f"Log file {name}: {e.problem}",
                cause=e.cause,
                remedy="Restore the file from a backup, or read a version before it",
                path=file.path,
                version=file.version,
                **e.context,
            ) from None

    def _ensure_only_one(self, known: Protocol | Metadata | None, new: Protocol | Metadata, file: LogFile) -> None:
        """Of two in one commit that differ nobody knows which one counts."""
        if known is not None:
            self.num_superseded += 1
            if self._set_by.get(type(new)) == file.path and known != new:
                raise ProtocolViolationError(f"two {type(new).__name__.lower()} actions differ", cause=_ONE_AT_MOST)
        self._set_by[type(new)] = file.path


@dataclass(frozen=True)
class Commit:
    """One commit, complete (PROTOCOL, "Delta Log Entries").

    File actions become columns on first use, so that a reader of the other actions does not pay for them.

    Attributes:
        version: Its version.
        timestamp_ms: When it was committed: the in-commit timestamp where the commit has one, else the file's
            modification time. Milliseconds since the epoch.
        commit_info: The `commitInfo` action as parsed, or None.
        protocol, metadata: None unless this commit changes them.
        txns, domain_metadata: In the order of the commit.
        files: Where `adds`, `removes` and `cdc` come from.
    """

    version: int
    timestamp_ms: int
    commit_info: Mapping[str, object] | None
    protocol: Protocol | None
    metadata: Metadata | None
    txns: tuple[Txn, ...]
    domain_metadata: tuple[DomainMetadata, ...]
    files: LogActions = field(repr=False, compare=False)

    @property
    def adds(self) -> pa.Table:
        """Columns of `file_columns.ADD_SCHEMA`. Raises ProtocolViolationError where one is malformed."""
        return self.files.adds

    @property
    def removes(self) -> pa.Table:
        """Columns of `file_columns.REMOVE_SCHEMA`; they apply before the adds. Raises as `adds`."""
        return self.files.removes

    @property
    def cdc(self) -> pa.Table:
        """Columns of `file_columns.CDC_SCHEMA`. Raises as `adds`."""
        return self.files.cdc


def user_metadata_of(commit_info: Mapping[str, object] | None) -> Mapping[str, object]:
    """`commitInfo.userMetadata` as a JSON object, as both plugins write it; empty if it is not a JSON object."""
    try:
        user_metadata = orjson.loads(str((commit_info or {}).get("userMetadata")))
    except ValueError:
        return {}
    return user_metadata if isinstance(user_metadata, dict) else {}


def read_commits(store: LogStore, commits: Sequence[FileMeta], versions: Sequence[int]) -> Iterator[LogFile]:
    """Read commits in the order given; remote stores are read ahead on threads.

    Raises:
        LogGapError: A commit vanished after it was listed.
        CorruptLogError: It is larger than any commit is.
        StorageError: It cannot be read, or is not as long as the store lists it.
    """
    for meta in commits:
        if meta.size > LARGEST_LOG_FILE:
            ensure_log_file_size(meta.path, meta.size)
    files = read_paths(store, [meta.path for meta in commits], versions)
    for meta, file in zip(commits, files, strict=True):
        if meta.size and len(file.data) != meta.size:
            # Cut at the end of a line, it would read as a commit that did less.
            raise StorageError(
                f"The store gave {len(file.data)} bytes of {meta.path}, and lists it with {meta.size}",
                cause="The answer was cut, or the file was replaced since it was listed",
                remedy="Try again",
                path=meta.path,
                retryable=True,
            )
        yield file


def read_paths(store: LogStore, paths: Sequence[str], versions: Sequence[int]) -> Iterator[LogFile]:
    """As `read_commits`, by the paths of the commits."""
    for path, version, data in zip(paths, versions, _read_all(store, paths), strict=True):
        if data is None:
            raise LogGapError(
                f"Commit {version} of the log is gone",
                cause="It was listed, and vanished before it was read",
                remedy="Look for a process that deletes log files; try again",
                version=version,
                path=path,
            )
        yield LogFile(path, version, data)


def _read_all(store: LogStore, paths: Sequence[str]) -> Iterator[bytes | None]:
    def read(path: str) -> bytes | None:
        try:
            return store.read_bytes(path)
        except FileMissingInStoreError:
            return None

    # A local read is shorter than handing it to a thread; a remote one waits for the network.
    if store.is_near:
        yield from map(read, paths)
        return
    from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

    yield from map_ahead(read, paths, FAR_THREADS)


def read_commit(store: LogStore, meta: FileMeta, version: int) -> Commit:
    """Read and parse one commit.

    Raises:
        CorruptLogError: It is empty or not JSON; the error names the file.
        ProtocolViolationError: An action that is no file lacks what the protocol requires.
    """
    (file,) = read_commits(store, [meta], [version])
    return parse_commit(file, meta)


def parse_commit(file: LogFile, meta: FileMeta) -> Commit:
    """A commit that was read. Raises as `read_commit`."""
    actions = parse_log_files([file])
    return Commit(
        version=file.version,
        timestamp_ms=commit_timestamp_ms(actions.commit_info, meta),
        commit_info=actions.commit_info,
        protocol=actions.protocol,
        metadata=actions.metadata,
        txns=tuple(actions.txns.values()),
        domain_metadata=tuple(actions.domain_metadata.values()),
        files=actions,
    )


def commit_timestamp_ms(commit_info: Mapping[str, object] | None, meta: FileMeta) -> int:
    """The in-commit timestamp, or the file's modification time (PROTOCOL, "In-Commit Timestamps").

    Writers put `inCommitTimestamp` into a commit exactly while the feature is enabled, so its presence decides.
    Raises as `in_commit_timestamp_ms`.
    """
    in_commit = in_commit_timestamp_ms(commit_info)
    return meta.modification_time_ms if in_commit is None else in_commit


def in_commit_timestamp_ms(commit_info: Mapping[str, object] | None) -> int | None:
    """The time that a commit records in itself, or None.

    Raises:
        ProtocolViolationError: It is no time of the years 1 to 9999.
    """
    value = None if commit_info is None else commit_info.get("inCommitTimestamp")
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if not _FIRST_MS <= value <= _LAST_MS:
        raise ProtocolViolationError("A commit has an impossible inCommitTimestamp", cause=f"It is {value}")
    return value


def parse_log_files(files: Iterable[LogFile]) -> LogActions:
    """Parse JSON files of the log, oldest first.

    Unknown actions and fields are passed over (PROTOCOL, "Protocol Evolution").

    Raises:
        CorruptLogError: A file is empty, or a line is not a JSON object; the error names the file.
        ProtocolViolationError: A known action lacks what the protocol requires.
    """
    actions = LogActions()
    for file in files:
        actions.read(file)
    return actions


def _parse_lines(file: LogFile) -> Iterator[list[Mapping[str, object]]]:
    """The objects of a file, some hundred kilobytes of whole lines at a time: many objects alive at once cost more in
    garbage collection than parsing them."""
    data, start = file.data, 0
    while True:
        end = data.find(b"\n", start + _BLOCK_BYTES)
        if (len(data) if end < 0 else end) - start > LONGEST_LINE_BYTES:
            raise _corrupt(file, f"A line is longer than {LONGEST_LINE_BYTES} bytes")
        block = data[start:] if end < 0 else data[start:end]
        # Blank lines at the end are no block of their own, but a file without any line is broken.
        if start == 0 or block.strip():
            yield _parse_block(file, block)
        if end < 0:
            return
        start = end + 1


def _parse_block(file: LogFile, block: bytes) -> list[Mapping[str, object]]:
    # A raw line break cannot stand inside a JSON string: the lines become one array, parsed at one go.
    body = block.strip()
    if not body:
        raise _corrupt(file, "The file is empty")
    try:
        objects: list[Mapping[str, object]] = orjson.loads(b"[" + body.replace(b"\n", b",") + b"]")
        is_one_a_line = len(objects) - 1 == body.count(b"\n")
    except orjson.JSONDecodeError:
        is_one_a_line = False
    if not is_one_a_line:
        objects = [_parse_line(file, line) for line in body.split(b"\n") if line.strip()]
    if not {*map(type, objects)} <= {dict}:
        raise _corrupt(file, "A line holds something that is not a JSON object")
    return objects


def _parse_line(file: LogFile, line: bytes) -> Mapping[str, object]:
    try:
        parsed: Mapping[str, object] = orjson.loads(line)
        return parsed
    except orjson.JSONDecodeError as e:
        raise _corrupt(file, f"A line is not JSON: {e}") from None


def _corrupt(file: LogFile, cause: str) -> DeltaError:
    name = file.path.rpartition("/")[2]
    return CorruptLogError(
        f"Log file {name} cannot be read",
        cause=cause,
        remedy="Restore the file from a backup, or read a version before it",
        path=file.path,
        version=file.version,
    )
