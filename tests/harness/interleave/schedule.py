"""Actors that take turns at the calls of a store, in an order that is chosen and can be repeated.

An actor runs on a thread of its own, and waits before each call that others could notice: of the log, of deletions and
of listings. Exactly one runs at a time. A schedule is a text with one letter a call: a digit lets that actor go on, an
`x` behind it means that the actor dies at this call, which then does not happen.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from delta_orch.storage.base import LogStore
from delta_orch.testing import FailingStore, StoreCall
from delta_orch.testing.failing_store import T

_LOG = "_delta_log"
_WRITES = frozenset({"put_if_absent", "put", "delete"})
_LISTINGS = frozenset({"list_from", "list_recursive"})
_PATIENCE_S = 300


class Died(BaseException):
    """The actor is dead: as if its process had been killed. No `except Exception` sees it."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an actor is about to do."""

    method: str
    path: str

    @property
    def writes(self) -> bool:
        return self.method in _WRITES

    @property
    def cuts_log(self) -> bool:
        return self.method == "delete" and self.path.startswith(_LOG)

    def commutes_with(self, other: Call) -> bool:
        """Whether nobody can tell in which order the two came."""
        if not self.writes and not other.writes:
            return True
        for listing, one in ((self, other), (other, self)):
            if listing.method in _LISTINGS:
                return not one.path.startswith(listing.path)
        return self.path != other.path


class TurnStore(FailingStore):
    """A store whose calls wait for their turn."""

    def __init__(self, inner: LogStore, wait: Callable[[Call], None]) -> None:
        super().__init__(inner)
        # What one process remembers of a table, another one does not know.
        self.uri = f"{inner.uri}-{id(self)}"
        self._wait = wait

    def _answer(self, call: StoreCall, call_inner: Callable[[], T]) -> T:
        if call.method != "stage" and (call.path.startswith(_LOG) or call.method in ("delete", "list_recursive")):
            self._wait(Call(call.method, call.path))
        return call_inner()


_modules_seen = 0


def _share_no_locks() -> None:
    """Up to Python 3.11 a cached property of a class has one lock for all its objects, as if processes shared it: an
    actor that waits for its turn inside of one would stop the others."""
    global _modules_seen
    if len(sys.modules) == _modules_seen:
        return
    _modules_seen = len(sys.modules)
    for name, module in list(sys.modules.items()):
        if name.startswith("delta_orch"):
            for kind in list(vars(module).values()):
                for attribute in vars(kind).values() if isinstance(kind, type) else ():
                    if isinstance(attribute, functools.cached_property) and hasattr(attribute, "lock"):
                        attribute.lock = nullcontext()


class Actor:
    """Runs a function on a thread, call by call.

    Attributes:
        outcome: What it returned or raised; `Died` where it was let die. None while it runs.
    """

    def __init__(self, act: Callable[[LogStore], Any], store: LogStore) -> None:
        self._condition = threading.Condition()
        self._pending: list[Call] = []
        self._turns = 0
        self._is_dead = False
        self.outcome: Any = None
        self._has_ended = False
        watched = TurnStore(store, self._wait)
        self._thread = threading.Thread(target=self._run, args=(act, watched), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[LogStore], Any], store: LogStore) -> None:
        try:
            outcome = act(store)
        except BaseException as e:  # noqa: BLE001 - the caller judges it
            outcome = e
        with self._condition:
            self.outcome, self._has_ended = outcome, True
            self._condition.notify_all()

    def _wait(self, call: Call) -> None:
        with self._condition:
            if self._is_dead:
                raise Died
            self._pending.append(call)
            self._condition.notify_all()
            if not self._condition.wait_for(lambda: self._is_dead or self._turns > 0, _PATIENCE_S):
                raise TimeoutError(f"nobody gave {call} its turn")
            if self._is_dead:
                raise Died
            self._turns -= 1
            self._pending.remove(call)

    def next_call(self) -> Call | None:
        """What it waits for, once it does; None when it has ended."""
        with self._condition:
            settled = self._condition.wait_for(
                lambda: self._has_ended or (bool(self._pending) and not self._turns), _PATIENCE_S
            )
            if not settled:
                raise TimeoutError("an actor neither ends nor asks for its turn")
            return None if self._has_ended else self._pending[0]

    def go_on(self) -> None:
        """Let its call happen."""
        with self._condition:
            self._turns += 1
            self._condition.notify_all()

    def die(self) -> None:
        """Let nothing of it happen any more."""
        with self._condition:
            self._is_dead = True
            self._pending.clear()
            self._condition.notify_all()


@dataclass(slots=True)
class Step:
    """A moment at which somebody is chosen.

    Attributes:
        calls: What each actor that has not ended is about to do.
        asleep: Actors whose turn here would only repeat, in another order, what was tried before (sleep sets,
            Godefroid 1996).
        tried: Actors that were chosen here before.
        chosen: The actor that goes on.
    """

    calls: Mapping[int, Call]
    asleep: frozenset[int]
    tried: frozenset[int]
    chosen: int

    def asleep_after(self) -> frozenset[int]:
        """Who need not be chosen next: what it does commutes with what happens now."""
        mine = self.calls[self.chosen]
        return frozenset(
            actor
            for actor in self.asleep | self.tried
            if actor != self.chosen and actor in self.calls and self.calls[actor].commutes_with(mine)
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a schedule. `is_redundant`: it was given up, because another one tells the same."""

    schedule: str
    outcomes: tuple[Any, ...]
    steps: list[Step]
    is_redundant: bool


Choose = Callable[[Sequence[int]], int]


def run(
    store: LogStore,
    acts: Sequence[Callable[[LogStore], Any]],
    prefix: Sequence[Step] = (),
    *,
    choose: Choose = min,
    crash: tuple[int, int] | None = None,
    schedule: str | None = None,
) -> Run:
    """Let actors take turns until all have ended.

    Args:
        prefix: The first choices, of an earlier run.
        choose: Whom to choose after them, among those who need not sleep.
        crash: An actor, and the number of its call at which it dies.
        schedule: All choices, instead of the others.
    """
    _share_no_locks()
    actors = [Actor(act, store) for act in acts]
    steps: list[Step] = []
    told: list[str] = []
    counts = [0] * len(actors)
    dead: set[int] = set()
    orders = [] if schedule is None else _orders(schedule)
    asleep: frozenset[int] = frozenset()
    is_redundant = False
    try:
        while True:
            calls = {n: call for n, a in enumerate(actors) if n not in dead and (call := a.next_call()) is not None}
            if not calls:
                break
            tried: frozenset[int] = frozenset()
            dies = False
            if schedule is not None:
                chosen, dies = orders[len(told)] if len(told) < len(orders) else (min(calls), False)
                if chosen not in calls:
                    chosen, dies = min(calls), False
            elif len(steps) < len(prefix):
                planned = prefix[len(steps)]
                chosen, asleep, tried = planned.chosen, planned.asleep, planned.tried
                if chosen not in calls:
                    chosen, tried = min(calls), frozenset()
            else:
                awake = [actor for actor in calls if actor not in asleep]
                if not awake:
                    is_redundant = True
                    break
                chosen = choose(awake)
            step = Step(calls, asleep, tried, chosen)
            steps.append(step)
            asleep = step.asleep_after()
            dies = dies or crash == (chosen, counts[chosen])
            counts[chosen] += 1
            told.append(f"{chosen}x" if dies else str(chosen))
            if dies:
                actors[chosen].die()
                dead.add(chosen)
                actors[chosen].next_call()
                asleep = frozenset()
            else:
                actors[chosen].go_on()
                actors[chosen].next_call()
    finally:
        for actor in actors:
            actor.die()
        for actor in actors:
            actor.next_call()
    # Whatever it makes of its death on the way out, nobody hears of it.
    outcomes = (
        Died() if number in dead and isinstance(actor.outcome, BaseException) else actor.outcome
        for number, actor in enumerate(actors)
    )
    return Run("".join(told), tuple(outcomes), steps, is_redundant)


def _orders(schedule: str) -> list[tuple[int, bool]]:
    found: list[tuple[int, bool]] = []
    for letter in schedule:
        if letter == "x":
            found[-1] = (found[-1][0], True)
        else:
            found.append((int(letter), False))
    return found


def next_prefix(steps: Sequence[Step]) -> list[Step] | None:
    """The choices that lead to the next schedule, depth first; None where all were tried."""
    for depth in range(len(steps) - 1, -1, -1):
        step = steps[depth]
        tried = step.tried | {step.chosen}
        left = [actor for actor in step.calls if actor not in tried and actor not in step.asleep]
        if left:
            return [*steps[:depth], Step(step.calls, step.asleep, tried, min(left))]
    return None
