"""A store that counts its calls, fails, dies or waits on command: for tests of whatever commits.

store = FaultStore(open_store(path))
store.at(Moment.COMMIT_PUT, "before", do=store.fail)      # nothing written
store.at(Moment.COMMIT_PUT, "after", do=store.lose_answer)  # written, but nobody is told
gate = store.gate(Moment.COMMIT_PUT, "before")            # hold a writer right before its commit
store.at_call(7, "after", do=store.kill)                  # SIGKILL after the 8th call
store.instead(("list_from", 0), lambda call, act: old_listing)  # what the first listing answers
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from delta_orch.errors import StorageError, StorageOutcomeUnknownError
from delta_orch.storage.base import FileMeta, LogStore, StagedFile, StagedOutput

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

T = TypeVar("T")
When = Literal["before", "after"]
_COMMIT = "_delta_log/*.json"
_CHECKPOINT = "_delta_log/*.checkpoint.parquet"


class Moment(Enum):
    """The phases of a commit that tests stop at: a method of the store and the paths it is called with."""

    COMMIT_PUT = ("put_if_absent", _COMMIT)
    COMMIT_HEAD = ("head", _COMMIT)
    COMMIT_READ = ("read_bytes", _COMMIT)
    CHECKPOINT_PUT = ("put_if_absent", _CHECKPOINT)
    POINTER_PUT = ("put", "_delta_log/_last_checkpoint")


@dataclass(frozen=True, slots=True)
class StoreCall:
    """`number` counts from 0; `path` is the first argument, or the directory of a listing, which asks for names from
    `start_name` on."""

    number: int
    method: str
    path: str
    start_name: str = ""


Instead = Callable[[StoreCall, Callable[[], Any]], Any]
"""Is given a call and what would do it, and answers in its place."""


@dataclass(slots=True)
class Gate:
    """Holds whoever comes to it until it is opened."""

    _reached: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)

    def pass_through(self, call: StoreCall) -> None:
        self._reached.set()
        if not self._opened.wait(timeout=60):
            raise TimeoutError(f"nobody opened the gate at {call}")

    def wait_until_reached(self) -> None:
        if not self._reached.wait(timeout=60):
            raise TimeoutError("nobody came to the gate")

    def open(self) -> None:
        self._opened.set()


@dataclass(slots=True)
class _Rule:
    matches: Callable[[StoreCall], bool]
    when: When
    do: Callable[[StoreCall], None]
    remaining: int


class FaultStore(LogStore):
    """Passes every call on to another store, and does what it was told to do before or after it.

    Args:
        inner: The store.
        watch_data: Count the calls of `data_filesystem()`, too, as `data_…` (`fault_filesystem`). Engines then take it
            for the file system of no store they know.

    Attributes:
        calls: Every call so far, in order.
        keeps_staged: Staged files stay usable after they are discarded: for requests that take effect late.
    """

    def __init__(self, inner: LogStore, *, watch_data: bool = False) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.calls: list[StoreCall] = []
        self.keeps_staged = False
        self._watch_data = watch_data
        self._seen: Counter[str] = Counter()
        self._instead: dict[tuple[str, int], Instead] = {}
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultStore({self.inner!r})"

    # What to do, and when

    def at(self, moment: Moment, when: When, *, do: Callable[[StoreCall], None], times: int = 1) -> None:
        """Do something at the next `times` calls of a phase."""
        method, pattern = moment.value
        self._rules.append(
            _Rule(lambda call: call.method == method and fnmatchcase(call.path, pattern), when, do, times)
        )

    def at_call(self, number: int, when: When, *, do: Callable[[StoreCall], None]) -> None:
        """Do something at the call of that number, whatever it is."""
        self._rules.append(_Rule(lambda call: call.number == number, when, do, 1))

    def instead(self, nth: tuple[str, int], do: Instead) -> None:
        """Let something else answer the n-th call of a method, from 0."""
        self._instead[nth] = do

    @property
    def is_obeyed(self) -> bool:
        """Whether every call that `instead` waits for has come."""
        return not self._instead

    def gate(self, moment: Moment, when: When) -> Gate:
        """A gate that holds the next call of a phase."""
        gate = Gate()
        self.at(moment, when, do=gate.pass_through)
        return gate

    def count(self, method: str | None = None, pattern: str = "*") -> int:
        """How many calls there were, of a method and of paths like `pattern`."""
        return sum((method is None or c.method == method) and fnmatchcase(c.path, pattern) for c in self.calls)

    def counts(self) -> Counter[str]:
        """Calls by method."""
        return Counter(call.method for call in self.calls)

    def forget_calls(self) -> None:
        """Count from 0 again."""
        self.calls = []
        self._seen.clear()

    @staticmethod
    def fail(call: StoreCall) -> None:
        """Raise as a store does that did nothing."""
        raise StorageError(f"Injected failure of {call.method}", path=call.path)

    @staticmethod
    def lose_answer(call: StoreCall) -> None:
        """Raise as a store does whose answer got lost."""
        raise StorageOutcomeUnknownError(f"Injected loss of the answer to {call.method}", path=call.path)

    @staticmethod
    def kill(call: StoreCall) -> None:
        """End this process as a power cut would: no handler, no `finally`."""
        os.kill(os.getpid(), signal.SIGKILL)

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

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        return self.watch("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put_regenerable(self, path: str, data: bytes) -> FileMeta:
        return self.watch("put_if_absent", path, lambda: self.inner.put_regenerable(path, data))

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        return _WatchedFile(
            self, self.watch("stage", directory, lambda: self.inner.stage(directory, data, after=after))
        )

    def stage_output(self, directory: str) -> StagedOutput:
        return _WatchedOutput(self, self.watch("stage", directory, lambda: self.inner.stage_output(directory)))

    def put(self, path: str, data: bytes) -> FileMeta:
        return self.watch("put", path, lambda: self.inner.put(path, data))

    def delete(self, path: str) -> None:
        self.watch("delete", path, lambda: self.inner.delete(path))

    def ensure_can_commit(self) -> None:
        self.inner.ensure_can_commit()

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        filesystem, root = self.inner.data_filesystem()
        if not self._watch_data:
            return filesystem, root
        from tests.harness.fault_filesystem import watched_filesystem

        return watched_filesystem(self, filesystem), root

    def resolve(self, log_path: str) -> str:
        return self.inner.resolve(log_path)

    def watch(self, method: str, path: str, call_inner: Callable[[], T], start_name: str = "") -> T:
        """Count a call, and do what is due before and after it, or instead."""
        with self._lock:
            call = StoreCall(len(self.calls), method, path, start_name)
            self.calls.append(call)
            instead = self._instead.pop((method, self._seen[method]), None)
            self._seen[method] += 1
        self._obey(call, "before")
        try:
            if instead is not None:
                answer: T = instead(call, call_inner)
                return answer
            return call_inner()
        finally:
            # After a call that failed, too; what is raised here takes the place of its error.
            self._obey(call, "after")

    def _obey(self, call: StoreCall, when: When) -> None:
        for rule in self._rules:
            if rule.when == when and rule.remaining and rule.matches(call):
                rule.remaining -= 1
                rule.do(call)


class _WatchedFile(StagedFile):
    """Its creation counts as `put_if_absent`, like any other."""

    def __init__(self, store: FaultStore, inner: StagedFile) -> None:
        self._store = store
        self._inner = inner

    def put_if_absent(self, path: str) -> FileMeta:
        return self._store.watch("put_if_absent", path, lambda: self._inner.put_if_absent(path))

    def discard(self) -> None:
        if not self._store.keeps_staged:
            self._inner.discard()


class _WatchedOutput(_WatchedFile, StagedOutput):
    """What is written to it is not watched: it is no request of its own."""

    def __init__(self, store: FaultStore, inner: StagedOutput) -> None:
        super().__init__(store, inner)
        self.sink = inner.sink
