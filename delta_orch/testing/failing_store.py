"""A store that counts its calls, and fails on command."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeVar

from delta_orch.errors import StorageError, StorageOutcomeUnknownError
from delta_orch.storage.base import FileMeta, LogStore, StagedFile, StagedOutput

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

T = TypeVar("T")
F = TypeVar("F", bound=StagedFile)
When = Literal["before", "after"]
_COMMIT = "_delta_log/*.json"
_CHECKPOINT = "_delta_log/*.checkpoint.parquet"


class Moment(Enum):
    """A kind of call of a store: the method, and a pattern of the paths it is called with."""

    COMMIT_PUT = ("put_if_absent", _COMMIT)
    """A commit is created."""
    COMMIT_HEAD = ("head", _COMMIT)
    """The store is asked whether a commit exists."""
    COMMIT_READ = ("read_bytes", _COMMIT)
    """A commit is read."""
    CHECKPOINT_PUT = ("put_if_absent", _CHECKPOINT)
    """A checkpoint is created."""
    POINTER_PUT = ("put", "_delta_log/_last_checkpoint")
    """The pointer to the newest checkpoint is replaced."""
    LOG_LIST = ("list_from", "_delta_log")
    """The log is listed."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call of a store.

    Attributes:
        number: Counts from 0.
        method: The method of `LogStore`.
        path: The first argument: a file, or the directory of a listing.
        start_name: The first requested name of a listing.
    """

    number: int
    method: str
    path: str
    start_name: str = ""


@dataclass(slots=True)
class Rule:
    """The action before or after the next `remaining` calls that match."""

    matches: Callable[[StoreCall], bool]
    when: When
    do: Callable[[StoreCall], object]
    remaining: int


class FailingStore(LogStore):
    """Passes every call to another store, and fails at selected calls.

    It sees only the calls that read and write the log, not the calls for data files. Safe to use from several threads.

    Args:
        inner: The store, for example `DeltaTable(…).store`.

    Attributes:
        calls: Every call so far, in order.
    """

    def __init__(self, inner: LogStore) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.external_paths = inner.external_paths
        self.calls: list[StoreCall] = []
        self._rules: list[Rule] = []
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    # Actions

    def fail_at(self, moment: Moment, *, times: int = 1) -> None:
        """Let the next `times` calls of this kind raise StorageError. They do nothing."""
        self.at(moment, "before", do=self.fail, times=times)

    def lose_answer_at(self, moment: Moment, *, times: int = 1) -> None:
        """Let the next `times` calls of this kind take effect, and raise StorageOutcomeUnknownError."""
        self.at(moment, "after", do=self.lose_answer, times=times)

    def at(self, moment: Moment, when: When, *, do: Callable[[StoreCall], object], times: int = 1) -> None:
        """Call `do` before or after the next `times` calls of this kind.

        Errors of `do` are raised to the caller. `do` may use the table from another `DeltaTable`, for example to commit
        something in between.
        """
        method, pattern = moment.value
        self._rules.append(
            Rule(lambda call: call.method == method and fnmatchcase(call.path, pattern), when, do, times)
        )

    @staticmethod
    def fail(call: StoreCall) -> None:
        """Raise a retryable StorageError, like a store that was unreachable and did nothing."""
        raise StorageError(f"Injected failure of {call.method}", path=call.path, retryable=True)

    @staticmethod
    def lose_answer(call: StoreCall) -> None:
        """Raise a retryable StorageOutcomeUnknownError, like a store whose answer was lost."""
        raise StorageOutcomeUnknownError(
            f"Injected loss of the answer to {call.method}", path=call.path, retryable=True
        )

    # Recorded calls

    def count(self, method: str | None = None, pattern: str = "*") -> int:
        """The number of calls, of a method and of paths like `pattern`."""
        return sum((method is None or c.method == method) and fnmatchcase(c.path, pattern) for c in self.calls)

    def counts(self) -> Counter[str]:
        """The number of calls by method."""
        return Counter(call.method for call in self.calls)

    def forget_calls(self) -> None:
        """Count from 0 again."""
        self.calls = []

    # The store

    def read_bytes(self, path: str) -> bytes:
        return self.watch("read_bytes", path, lambda: self.inner.read_bytes(path))

    def open_input(self, path: str) -> pa.NativeFile:
        return self.watch("open_input", path, lambda: self.inner.open_input(path))

    def head(self, path: str) -> FileMeta | None:
        return self.watch("head", path, lambda: self.inner.head(path))

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        return self.watch(
            "list_from", directory, lambda: iter(list(self.inner.list_from(directory, start_name))), start_name
        )

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        return self.watch("list_recursive", directory, lambda: iter(list(self.inner.list_recursive(directory))))

    def other_table(self) -> str | None:
        return self.inner.other_table()

    def not_deletable(
        self, candidates: Sequence[str], needed: Iterable[str], needed_identities: Set[tuple[int, int]]
    ) -> set[str]:
        return self.inner.not_deletable(candidates, needed, needed_identities)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        return self.watch("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put_regenerable(self, path: str, data: bytes) -> FileMeta:
        return self.watch("put_if_absent", path, lambda: self.inner.put_regenerable(path, data))

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        return WatchedFile(self, self._stage(directory, lambda: self.inner.stage(directory, data, after=after)))

    def stage_output(self, directory: str) -> StagedOutput:
        return WatchedOutput(self, self._stage(directory, lambda: self.inner.stage_output(directory)))

    def put(self, path: str, data: bytes) -> FileMeta:
        return self.watch("put", path, lambda: self.inner.put(path, data))

    def delete(self, path: str) -> None:
        self.watch("delete", path, lambda: self.inner.delete(path))

    def ensure_can_commit(self) -> None:
        self.inner.ensure_can_commit()

    def new_file(self, path: str) -> str:
        return self.inner.new_file(path)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        return self.inner.data_filesystem()

    def resolve(self, log_path: str) -> str:
        return self.inner.resolve(log_path)

    def ensure_regular(self, paths: Sequence[str]) -> None:
        self.inner.ensure_regular(paths)

    def watch(self, method: str, path: str, call_inner: Callable[[], T], start_name: str = "") -> T:
        """Count a call, and run the actions that are due before and after it."""
        call = self._record(method, path, start_name)
        self._obey(call, "before")
        try:
            return self._answer(call, call_inner)
        finally:
            # This also runs after a failed call. An error here replaces the error of the call.
            self._obey(call, "after")

    def _stage(self, directory: str, stage: Callable[[], F]) -> F:
        staged: list[F] = []

        def stage_and_keep() -> F:
            staged.append(stage())
            return staged[0]

        try:
            return self.watch("stage", directory, stage_and_keep)
        except BaseException:
            # The call succeeded, but an action failed. The staged file may be open, so it is discarded.
            for lost in staged:
                self.discard(lost)
            raise

    def discard(self, staged: StagedFile) -> None:
        """Drop a staged file. This is not counted as a call."""
        staged.discard()

    def _record(self, method: str, path: str, start_name: str) -> StoreCall:
        with self._lock:
            call = StoreCall(len(self.calls), method, path, start_name)
            self.calls.append(call)
            return call

    def _answer(self, call: StoreCall, call_inner: Callable[[], T]) -> T:
        return call_inner()

    def _obey(self, call: StoreCall, when: When) -> None:
        for rule in self._rules:
            if rule.when == when and rule.remaining and rule.matches(call):
                rule.remaining -= 1
                rule.do(call)


class WatchedFile(StagedFile):
    """A staged file of a `FailingStore`. Its creation counts as `put_if_absent`."""

    def __init__(self, store: FailingStore, inner: StagedFile) -> None:
        self._store = store
        self._inner = inner

    def put_if_absent(self, path: str) -> FileMeta:
        return self._store.watch("put_if_absent", path, lambda: self._inner.put_if_absent(path))

    def discard(self) -> None:
        self._store.discard(self._inner)


class WatchedOutput(WatchedFile, StagedOutput):
    """A staged output of a `FailingStore`. Writing to it is not a call."""

    def __init__(self, store: FailingStore, inner: StagedOutput) -> None:
        super().__init__(store, inner)
        self.sink = inner.sink
