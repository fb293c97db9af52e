"""Worker processes and the watchdog over them: a case that crashes, hangs or eats memory is a finding, not the end."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from tests.harness.fuzz.cases import CaseMaker, CaseReport
from tests.harness.fuzz.categories import Category

_STARTUP_SECONDS = 120
_MOST_PATIENCE = 6
"""How many times as long a case may take that waits, for a processor or for ever."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class FuzzOptions:
    """What a run may use.

    Attributes:
        seed: Decides all cases.
        directories: More healthy tables.
        kind: Only cases of this kind; None for all.
        case_seconds: The longest a case may compute; one that takes longer, or six times as long without computing,
            gets a second chance with twice as much, in a new process, before it counts as hanging.
        growth_bytes: The most a case may add to the memory the worker holds; twice as much beside Spark, where it holds
            the rows of both engines.
        address_bytes: The most address space a worker may add to what it starts with.
        save_to: A directory for the inputs of cases that failed.
        with_spark: Read tables on Spark, too; each worker starts a session, and its address space is not limited.
    """

    seed: int
    directories: Sequence[Path] = ()
    kind: str | None = None
    case_seconds: float = 5.0
    growth_bytes: int = 512 * _MEBIBYTE
    address_bytes: int = 6144 * _MEBIBYTE
    save_to: Path | None = None
    with_spark: bool = False


@dataclass(frozen=True)
class Finding:
    """A case that ended as none must, with how it ended."""

    number: int
    problem: str


@dataclass
class FuzzResult:
    """What a run found.

    Attributes:
        kinds: Cases by what was read.
        categories: Cases in which each sort of damage occurred; most have more than one.
        outcomes: Answers and errors; a table is read in many ways.
        slowest: Seconds, and the number of the case.
    """

    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    categories: Counter[Category] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    findings: list[Finding] = field(default_factory=list)


def run_cases(
    numbers: Iterable[int], options: FuzzOptions, on_finding: Callable[[Finding], None] | None = None
) -> FuzzResult:
    """Run cases one after the other, in processes of their own, and survive all of them."""
    result = FuzzResult()
    pending = list(numbers)
    while pending:
        pending = pending[_run_batch(pending, options, result, on_finding) :]
    return result


def _run_batch(
    numbers: list[int], options: FuzzOptions, result: FuzzResult, on_finding: Callable[[Finding], None] | None
) -> int:
    """Run cases in one worker until they are through or the worker is lost; how many are done."""
    worker = _Worker(numbers, options)
    done = 0
    try:
        for number, report in worker.reports(options.case_seconds):
            if isinstance(report, str) and worker.is_lost and report.startswith("no answer"):
                report = _second_chance(number, options, report)
            if isinstance(report, str):
                finding = Finding(number, report)
                result.findings.append(finding)
                _save(finding, options)
                if on_finding is not None:
                    on_finding(finding)
            else:
                result.kinds[report.kind] += 1
                result.categories.update(report.categories)
                result.outcomes.update(report.outcomes)
                result.slowest = max(result.slowest, (report.seconds, number))
            result.cases += 1
            done += 1
    finally:
        worker.end()
    return done


def _second_chance(number: int, options: FuzzOptions, first: str) -> CaseReport | str:
    worker = _Worker([number], options)
    try:
        for _, report in worker.reports(2 * options.case_seconds):
            return report
    finally:
        worker.end()
    return first


def _save(finding: Finding, options: FuzzOptions) -> None:
    """Keep the input; made anew by a worker, because making it may be what kills."""
    if options.save_to is None:
        return
    directory = options.save_to / f"{options.seed}-{finding.number}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "problem.txt").write_text(finding.problem, errors="backslashreplace")
    worker = _Worker([finding.number], options, directory)
    try:
        list(worker.reports(options.case_seconds))
    finally:
        worker.end()


class _Worker:
    """One process that runs cases and reports on each. `reports` ends early where it is lost."""

    def __init__(self, numbers: Sequence[int], options: FuzzOptions, save_to: Path | None = None) -> None:
        context = multiprocessing.get_context("fork")
        self._numbers = numbers
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(theirs, numbers, options, self._stacks, save_to), daemon=True
        )
        self._process.start()
        theirs.close()
        self.is_lost = False

    def reports(self, case_seconds: float) -> Iterator[tuple[int, CaseReport | str]]:
        """For each case its report, or what is wrong with it."""
        if self._receive(_STARTUP_SECONDS) != "ready":
            raise RuntimeError(f"the worker did not start: {self._autopsy()}")
        for number in self._numbers:
            report = self._receive(case_seconds)
            if report is None:
                self.is_lost = True
                yield number, self._autopsy()
                return
            assert isinstance(report, (CaseReport, str))
            yield number, report

    def _receive(self, seconds: float) -> object:
        """What the worker says next; None where it is gone or takes longer.

        A machine that is busy with other things does not make a hang: the worker has longer while it gets less of it.
        """
        assert self._process.pid is not None
        end, busy = time.monotonic() + _MOST_PATIENCE * seconds, _cpu_seconds(self._process.pid)
        wait = seconds
        try:
            while not self._connection.poll(wait):
                used = _cpu_seconds(self._process.pid)
                if busy is None or used is None or used - busy >= seconds or time.monotonic() >= end:
                    return None
                wait = min(max(seconds - (used - busy), 0.05), max(end - time.monotonic(), 0))
            return self._connection.recv()
        except (EOFError, ConnectionError):
            return None

    def _autopsy(self) -> str:
        """How the worker was lost; where it still runs, it is ended, and says where it was."""
        self._process.join(0.2)
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(0.3)
            self._process.kill()
            return "no answer in time\n" + self._stack_text()
        return f"the process ended with {self._process.exitcode}\n" + self._stack_text()

    def _stack_text(self) -> str:
        self._stacks.seek(0)
        return self._stacks.read()[-6000:].decode(errors="replace")

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._connection.close()
        self._stacks.close()


def _work(
    connection: Connection, numbers: Sequence[int], options: FuzzOptions, stacks: IO[bytes], save_to: Path | None
) -> None:
    # What a native library says before it dies belongs to the finding.
    os.dup2(stacks.fileno(), 2)
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    maker = CaseMaker(options.seed, options.directories, options.kind, _spark() if options.with_spark else None)
    if not options.with_spark:
        limit = _address_bytes() + options.address_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send("ready")
    parent = os.getppid()
    for number in numbers:
        if os.getppid() != parent:
            # Nobody is there to tell any more; the pipe would not say so, as later workers hold its other end, too.
            return
        connection.send(_run_one(maker, number, options, save_to))


def _spark() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("delta_orch fuzz").config("spark.ui.enabled", "false")
    # A damaged footer may repeat a file's rows to three million: a driver without memory for them never answers.
    builder = builder.config("spark.driver.memory", "3g").config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _run_one(maker: CaseMaker, number: int, options: FuzzOptions, save_to: Path | None) -> CaseReport | str:
    before = _peak_bytes()
    try:
        report = maker.run(number, save_to)
    except BaseException as e:  # noqa: BLE001 - that is what a fuzzer looks for
        return "".join(traceback.format_exception(e, limit=-12, chain=False))
    grown = _peak_bytes() - before
    if grown > options.growth_bytes * (2 if options.with_spark else 1):
        return f"{grown // _MEBIBYTE} MiB of memory\n{report.kind}: {report.what}"
    return report


def _cpu_seconds(pid: int) -> float | None:
    """What a process has used of all processors; None where the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        # The second field is a name in brackets, which may hold anything.
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return None
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _address_bytes() -> int:
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[0]) if statm.exists() else 0
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    # Linux's `ru_maxrss` begins at the parent's peak, which would hide growth below it.
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(s.split()[1]) for s in status.read_text().splitlines() if s.startswith("VmHWM:")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
