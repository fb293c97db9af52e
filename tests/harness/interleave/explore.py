"""The schedules of some verbs on one table, and what must hold after each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, permutations
from typing import Any

from delta_orch.errors import ConflictError
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.storage.base import LogStore
from delta_orch.testing import open_table
from tests.harness.interleave.schedule import Died, Run, Step, next_prefix, run
from tests.harness.interleave.verbs import CUT_OFF, READER, REFUSALS, VERBS, Row, new_store, rows_after, rows_in

LEVELS = ("WriteSerializable", "Serializable", "SnapshotIsolation")
_LOOSE = "SnapshotIsolation"


class Violation(AssertionError):
    """After a schedule the table is not that of a serial order. The text has the line that repeats it."""


@dataclass(frozen=True, slots=True)
class Case:
    """Verbs that run at the same time, on a table, under an isolation level; each by its name."""

    verbs: tuple[str, ...]
    table: str
    level: str

    def line(self, schedule: str) -> str:
        return (
            f"python -m tests.harness.interleave --verbs {','.join(self.verbs)} --table {self.table} "
            f"--level {self.level} --schedule {schedule}"
        )


@dataclass(slots=True)
class Report:
    """What was tried.

    Attributes:
        exhausted: Cases of which no further schedule would tell anything new.
        schedules: Runs, those in which somebody dies included.
        redundant: Runs that were given up because they repeat another one.
        violations: Their lines, with what was found.
    """

    cases: int = 0
    exhausted: int = 0
    schedules: int = 0
    crashes: int = 0
    redundant: int = 0
    conflicts: int = 0
    violations: list[str] = field(default_factory=list)


def explore(case: Case, report: Report, *, limit: int, crashes: int, seed: int) -> None:
    """Run the schedules of a case, depth first, all of them where they are no more than the limit; what is left over
    then is sampled, as often again as half of it. In as many as `crashes` somebody dies."""
    rng = random.Random(f"{seed} {case}")
    # What a verb imports when it runs first is loaded before two actors can stop each other at it.
    rows_after(case.table, *case.verbs)
    report.cases += 1
    prefix: Sequence[Step] = ()
    calls = 1
    for _ in range(max(1, limit * 2 // 3)):
        found = _try(case, report, prefix=prefix)
        calls = max(calls, len(found.steps))
        following = next_prefix(found.steps)
        if following is None:
            report.exhausted += 1
            break
        prefix = following
    else:
        for _ in range(limit // 3):
            _try(case, report, choose=rng.choice)
    for _ in range(crashes):
        report.crashes += 1
        _try(case, report, choose=rng.choice, crash=(rng.randrange(len(case.verbs)), rng.randrange(calls)))


def replay(case: Case, schedule: str) -> str:
    """Run one schedule. Returns what became of each verb; raises Violation."""
    store = new_store(case.table)
    found = run(store, _acts(case), schedule=schedule)
    ensure_serial(case, store, found)
    return ", ".join(f"{verb}: {_told(outcome)}" for verb, outcome in zip(case.verbs, found.outcomes, strict=True))


def _try(case: Case, report: Report, **how: Any) -> Run:
    store = new_store(case.table)
    found = run(store, _acts(case), **how)
    report.schedules += 1
    if found.is_redundant:
        report.redundant += 1
        return found
    report.conflicts += any(isinstance(outcome, ConflictError) for outcome in found.outcomes)
    try:
        ensure_serial(case, store, found)
    except Violation as e:
        report.violations.append(str(e))
    return found


def _acts(case: Case) -> list[Callable[[LogStore], Any]]:
    options = {"isolation_level": case.level}

    def act(verb: str) -> Callable[[LogStore], Any]:
        return lambda store: VERBS[verb](open_table(store), **options)

    return [act(verb) for verb in case.verbs]


def ensure_serial(case: Case, store: LogStore, found: Run) -> None:
    """Check that the table is as if the verbs that succeeded had run one after the other, and nobody else; under
    `Serializable` in the order of the log. Of `SnapshotIsolation` only that the table can be read.

    Raises:
        Violation: It is not, or a verb ended otherwise than by its success, a conflict or a refusal.
    """

    def fail(what: str) -> Violation:
        told = ", ".join(f"{verb}: {_told(o)}" for verb, o in zip(case.verbs, found.outcomes, strict=True))
        return Violation(f"{case.line(found.schedule)}\n    {what}\n    {told}")

    done: list[int] = []
    perhaps: list[int] = []
    seen: list[int] = []
    refused = False
    for number, outcome in enumerate(found.outcomes):
        if isinstance(outcome, Died):
            perhaps.append(number)
        elif not isinstance(outcome, BaseException):
            (seen if case.verbs[number] == READER else done).append(number)
        elif not isinstance(outcome, ConflictError):
            if not _is_refusal(case.verbs[number], outcome, found):
                raise fail("a verb failed") from outcome
            refused = True
    if not done and not perhaps and not seen and not refused:
        raise fail("everybody lost to somebody")
    try:
        rows = rows_in(store)
    except Exception as e:
        raise fail(f"the table cannot be read: {e}") from e
    if case.level == _LOOSE:
        return
    for number in seen:
        if not any(found.outcomes[number] == rows_after(case.table, *order) for order in _orders(case, done + perhaps)):
            raise fail("a reader saw the rows of no version that there can be")
    some = chain.from_iterable(combinations(perhaps, size) for size in range(len(perhaps) + 1))
    orders = [order for also in some for order in permutations([*done, *also])]
    if case.level == "Serializable":
        orders = [order for order in orders if _is_in_log_order([found.outcomes[number] for number in order])]
    if not any(rows == rows_after(case.table, *(case.verbs[n] for n in order)) for order in orders):
        raise fail(f"the rows are those of no serial order: {_difference(case, rows, orders)}")


def _is_refusal(verb: str, outcome: BaseException, found: Run) -> bool:
    """Whether there may be nothing to do a verb to. What is restored is gone only where somebody cut the log."""
    if isinstance(outcome, CUT_OFF):
        return verb == "restore" and any(step.calls[step.chosen].cuts_log for step in found.steps)
    return isinstance(outcome, REFUSALS.get(verb, ()))


def _orders(case: Case, numbers: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Some of the verbs one after the other, in every order."""
    for size in range(len(numbers) + 1):
        for order in permutations(numbers, size):
            yield tuple(case.verbs[number] for number in order)


def _is_in_log_order(outcomes: Sequence[Any]) -> bool:
    versions = [o.version for o in outcomes if isinstance(o, CommitResult) and not o.skipped]
    return versions == sorted(versions)


def _difference(case: Case, rows: list[Row], orders: Sequence[Sequence[int]]) -> str:
    expected = rows_after(case.table, *(case.verbs[n] for n in orders[0])) if orders else []
    missing, surplus = list(expected), []
    for row in rows:
        if row in missing:
            missing.remove(row)
        else:
            surplus.append(row)
    return f"beside {[case.verbs[n] for n in orders[0]] if orders else []} it lacks {missing} and has {surplus}"


def _told(outcome: Any) -> str:
    if isinstance(outcome, CommitResult):
        return "skipped" if outcome.skipped else f"version {outcome.version}"
    return f"{type(outcome).__name__}: {outcome}"[:300] if isinstance(outcome, BaseException) else "done"
