"""All cases, and how many there were."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from delta_orch.engines.local.duckdb_session import connect
from tests.harness.fault_matrix.cases import Case, Fault, MatrixFailure, cases_of, rehearse, run_case
from tests.harness.fault_matrix.tables import make_templates
from tests.harness.fault_matrix.verbs import VERBS, Verb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MEMORY = Path("/dev/shm")


@dataclass
class MatrixReport:
    """What was tried.

    Attributes:
        counts: Cases by the verb's name and the fault.
        calls: Calls of the store by the verb's name.
        failures: What did not hold, a line each.
        missed: Cases whose fault never came: another order of threads had fewer such calls.
    """

    counts: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    missed: list[Case] = field(default_factory=list)

    def count(self, verb: str | None = None, fault: Fault | None = None) -> int:
        """How many cases there were."""
        return sum(n for (v, f), n in self.counts.items() if verb in (None, v) and fault in (None, f))

    def add(self, other: MatrixReport) -> None:
        """Count what another run has tried as well."""
        self.counts += other.counts
        self.calls += other.calls
        self.failures += other.failures
        self.missed += other.missed

    def table(self) -> str:
        """The cases by verb and fault."""
        names = list(self.calls)
        width = max(map(len, names), default=4) + 2
        lines = [" " * width + "calls" + "".join(f"{fault.name.lower():>13}" for fault in Fault) + f"{'all':>8}"]
        for name in [*names, None]:
            cells = "".join(f"{self.count(name, fault):>13}" for fault in Fault)
            calls = self.calls.total() if name is None else self.calls[name]
            lines.append(f"{name or 'all':<{width}}{calls:>5}{cells}{self.count(name):>8}")
        return "\n".join(lines)


def run_matrix(
    verbs: Sequence[Verb] = VERBS,
    *,
    kill_at_reads: bool = False,
    choose: Callable[[Sequence[Case]], Sequence[Case]] = lambda cases: cases,
) -> MatrixReport:
    """Try every call of the verbs with every fault it can have.

    Args:
        choose: Of all cases of a verb, those to try.
        kill_at_reads: See `cases_of`.
    """
    templates, report = make_templates(), MatrixReport()
    with _quiet(), _one_database(), _scratch() as directory:
        for verb in verbs:
            template = templates[verb.template]
            rehearsal = rehearse(verb, template)
            report.calls[verb.name] = len(rehearsal.calls)
            cases = cases_of(verb, template, rehearsal, kill_at_reads=kill_at_reads)
            for number, case in enumerate(choose(cases)):
                place = directory / str(number)
                try:
                    came_about = run_case(case, template, rehearsal, place)
                except MatrixFailure as e:
                    report.failures.append(str(e))
                    came_about = True
                shutil.rmtree(place, ignore_errors=True)
                if came_about:
                    report.counts[verb.name, case.fault] += 1
                else:
                    report.missed.append(case)
    return report


@contextmanager
def _scratch() -> Iterator[Path]:
    """Where the tables of killed processes lie: in memory if there is such a place, as nobody waits for a disk there.
    `tests/faults/test_power_loss.py` has what becomes of what a disk has not yet."""
    with tempfile.TemporaryDirectory(prefix="fault-matrix-", dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        yield Path(directory)


@contextmanager
def _one_database() -> Iterator[None]:
    """All queries of a process share one database of DuckDB: to open it takes longer than most of what is done here."""
    opened: dict[int, DuckDBPyConnection] = {}

    def connect_again() -> DuckDBPyConnection:
        if os.getpid() not in opened:
            opened[os.getpid()] = connect()
        connection = opened[os.getpid()].cursor()
        connection.execute("SET TimeZone = 'UTC'")
        return connection

    with mock.patch("delta_orch.engines.local.duckdb_query.connect", connect_again):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong here was asked for: no warnings about it."""
    logger = logging.getLogger("delta_orch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
