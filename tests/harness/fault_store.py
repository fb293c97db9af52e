"""A store that fails, dies, waits or lies on command: `delta_orch.testing.FailingStore`, and what only our own tests
need of one.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from delta_orch.storage.base import LogStore, StagedFile
from delta_orch.testing import FailingStore, Moment, StoreCall
from delta_orch.testing.failing_store import Rule, T, When

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["FaultStore", "Gate", "Instead", "Moment", "StoreCall", "When"]

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


class FaultStore(FailingStore):
    """Passes every call on to another store, and does what it was told to do before it, after it or instead of it.

    Args:
        inner: The store.
        watch_data: Count the calls of `data_filesystem()`, too, as `data_…` (`fault_filesystem`). Engines then take it
            for the file system of no store they know.

    Attributes:
        keeps_staged: Staged files stay usable after they are discarded: for requests that take effect late.
    """

    def __init__(self, inner: LogStore, *, watch_data: bool = False) -> None:
        super().__init__(inner)
        self.keeps_staged = False
        self._kept: list[StagedFile] = []
        self._watch_data = watch_data
        self._seen: Counter[str] = Counter()
        self._instead: dict[tuple[str, int], Instead] = {}
        self._due: dict[int, Instead] = {}

    def at_call(self, number: int, when: When, *, do: Callable[[StoreCall], object]) -> None:
        """Do something at the call of that number, whatever it is."""
        self._rules.append(Rule(lambda call: call.number == number, when, do, 1))

    def instead(self, nth: tuple[str, int], do: Instead) -> None:
        """Let something else answer the n-th call of a method, from 0."""
        self._instead[nth] = do

    @property
    def is_obeyed(self) -> bool:
        """Whether every call that `instead` waits for has come."""
        return not self._instead

    def gate(self, moment: Moment, when: When) -> Gate:
        """A gate that holds the next call of a kind."""
        gate = Gate()
        self.at(moment, when, do=gate.pass_through)
        return gate

    def forget_calls(self) -> None:
        super().forget_calls()
        self._seen.clear()

    @staticmethod
    def kill(call: StoreCall) -> None:
        """End this process as a power cut would: no handler, no `finally`."""
        os.kill(os.getpid(), signal.SIGKILL)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        filesystem, root = self.inner.data_filesystem()
        if not self._watch_data:
            return filesystem, root
        from tests.harness.fault_filesystem import watched_filesystem

        return watched_filesystem(self, filesystem), root

    def discard(self, staged: StagedFile) -> None:
        if self.keeps_staged:
            self._kept.append(staged)
        else:
            staged.discard()

    def discard_kept(self) -> None:
        """Discard what `keeps_staged` has kept: no request is late any more."""
        while self._kept:
            self._kept.pop().discard()

    def _record(self, method: str, path: str, start_name: str) -> StoreCall:
        with self._lock:
            call = super()._record(method, path, start_name)
            instead = self._instead.pop((method, self._seen[method]), None)
            if instead is not None:
                self._due[call.number] = instead
            self._seen[method] += 1
            return call

    def _answer(self, call: StoreCall, call_inner: Callable[[], T]) -> T:
        instead = self._due.pop(call.number, None)
        if instead is None:
            return call_inner()
        answer: T = instead(call, call_inner)
        return answer
