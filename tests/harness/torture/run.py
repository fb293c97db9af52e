"""Starts the workers, kills some, reads along, and judges what is left."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import VersionNotFoundError
from tests.harness.results import Commit
from tests.harness.torture.model import Row, replay
from tests.harness.torture.plan import COMMITS, MAY_FIND_NOTHING, WRITES, Step, plan_step
from tests.harness.torture.worker import WorkerOptions, notes_of, read_notes, run_worker

_SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64()), ("op", pa.string())])
PROPERTIES = {
    "delta.checkpointInterval": "7",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableRowTracking": "true",
    "delta.logRetentionDuration": "interval 90 seconds",
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
}


class TortureFailure(AssertionError):
    """The table is not what the acknowledged operations make it. It is left for inspection."""


@dataclass(slots=True)
class TortureReport:
    """What went on. All counts are of the whole run."""

    seconds: float = 0.0
    kills: int = 0
    versions: int = 0
    rows: int = 0
    acknowledged: int = 0
    failed: int = 0
    unacknowledged: int = 0
    earliest_version: int = 0
    operations: Counter[str] = field(default_factory=Counter)


def run_torture(
    table_uri: str,
    notes: Path,
    *,
    seconds: float,
    processes: int = 8,
    seed: int = 0,
    kill_seconds: float = 1.5,
    storage_options: Mapping[str, str] | None = None,
) -> TortureReport:
    """Work on a new table for some time, and judge it.

    Args:
        notes: A directory for what the workers note.
        seconds: How long they work.
        seed: Decides what is done and how often, not in which order.
        kill_seconds: The mean time between two kills.

    Raises:
        TortureFailure: A commit is lost, doubled or halved, a version is missing, or the rows are wrong.
    """
    notes.mkdir(parents=True, exist_ok=True)
    options = WorkerOptions(table_uri, storage_options, notes, seed)
    table = DeltaTable(table_uri, storage_options)
    table.create(_SCHEMA, partition_by=["day"], properties=PROPERTIES)
    report = TortureReport()
    commits = _let_work(options, table, report, seconds, processes, kill_seconds)
    judge(options, table, commits, report, processes)
    return report


def _let_work(
    options: WorkerOptions,
    table: DeltaTable,
    report: TortureReport,
    seconds: float,
    processes: int,
    kill_seconds: float,
) -> list[Commit]:
    chance = random.Random(options.seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_worker.__module__])
    workers = [_start(context, options, n) for n in range(processes)]
    commits: list[Commit] = []
    started = time.monotonic()
    try:
        while True:
            pause, left = chance.expovariate(1 / kill_seconds), started + seconds - time.monotonic()
            time.sleep(max(0, min(pause, left)))
            # Read along: cleanup removes what is old.
            read_new(table, commits)
            if pause >= left:
                break
            number = chance.randrange(processes)
            if workers[number].exitcode not in (None, 0):
                raise TortureFailure(f"Worker {number} ended with code {workers[number].exitcode}")
            workers[number].kill()
            workers[number].join()
            report.kills += 1
            workers[number] = _start(context, options, number)
        (options.notes / "stop").touch()
        for number, worker in enumerate(workers):
            worker.join(timeout=120)
            if worker.exitcode != 0:
                raise TortureFailure(f"Worker {number} ended with code {worker.exitcode}")
    finally:
        for worker in workers:
            worker.kill()
    read_new(table, commits)
    report.seconds = time.monotonic() - started
    return commits


def _start(context: multiprocessing.context.ForkServerContext, options: WorkerOptions, number: int) -> BaseProcess:
    process = context.Process(target=run_worker, args=(options, number), daemon=True)
    process.start()
    return process


def read_new(table: DeltaTable, commits: list[Commit]) -> None:
    """Append the commits that are new."""
    while True:
        try:
            commits.append(table.log.read_commit(len(commits)))
        except VersionNotFoundError:
            return


def judge(
    options: WorkerOptions, table: DeltaTable, commits: list[Commit], report: TortureReport, processes: int
) -> None:
    """Hold the table against the notes of the workers and against a serial replay of its own commits.

    Args:
        commits: All of them, from version 0 on.

    Raises:
        TortureFailure: See `run_torture`.
    """
    snapshot = DeltaTable(options.table_uri, options.storage_options).snapshot()
    _ensure(f"versions 0 to {snapshot.version}", [c.version for c in commits], list(range(snapshot.version + 1)))
    _ensure("the advanced snapshot's version", table.snapshot().version, snapshot.version)
    steps: list[tuple[int, Step | None, int | None]] = []
    seen: Counter[str] = Counter()
    for commit in commits:
        info = commit.commit_info or {}
        report.operations[str(info.get("operation"))] += 1
        if isinstance(op_id := info.get("userMetadata"), str) and op_id:
            seen[op_id] += 1
            worker, number = map(int, op_id.split("-"))
            step = plan_step(options.seed, worker, number)
            parameters: Any = info.get("operationParameters")
            restored = int(parameters["version"]) if step.kind == "restore" else None
            steps.append((commit.version, step if step.kind in WRITES else None, restored))
        else:
            steps.append((commit.version, None, None))
    _ensure("operations that were committed twice", {op for op, times in seen.items() if times > 1}, set())
    _judge_notes(options, seen, report, processes)
    rows = _rows(snapshot.scan(columns=["day", "id", "op"]).to_arrow())
    _ensure("rows", rows, replay(steps))
    _ensure("rows of the advanced snapshot", _rows(table.snapshot().scan(["day", "id", "op"]).to_arrow()), rows)
    snapshot.validate()
    problems = [p for p in table.fsck(check_files=True).problems if p.severity == "error"]
    _ensure("problems that fsck finds", problems, [])
    report.versions, report.rows = snapshot.version + 1, rows.total()
    report.earliest_version = table.log.earliest_version()


def _judge_notes(options: WorkerOptions, seen: Counter[str], report: TortureReport, processes: int) -> None:
    """Acknowledged means there, failed means not there; of the rest nobody was told."""
    for worker in range(processes):
        events: dict[int, str] = {}
        for number, event, version in read_notes(notes_of(options, worker)):
            # A step that a kill cut short is begun again; it may turn out to be done already (`skipped`, no version).
            events[number] = event if version is not None or event != "done" else "done before"
        for number, event in events.items():
            step = plan_step(options.seed, worker, number)
            if step.kind not in COMMITS:
                continue
            report.acknowledged += event.startswith("done")
            report.failed += event == "failed"
            report.unacknowledged += event == "begins"
            # Where no row is found, no commit is made, and none is looked for.
            finds_nothing = step.kind in MAY_FIND_NOTHING and event == "done before" and not seen[step.op_id]
            if event != "begins" and not finds_nothing:
                _ensure(f"commits of step {step.op_id}, {event}", seen[step.op_id], int(event != "failed"))


def _rows(table: pa.Table) -> Counter[Row]:
    return Counter(zip(*(table[name].to_pylist() for name in ("day", "id", "op")), strict=True))


def _ensure(what: str, actual: object, expected: object) -> None:
    if actual != expected:
        if isinstance(actual, Counter) and isinstance(expected, Counter):
            actual, expected = actual - expected, expected - actual
        raise TortureFailure(f"{what}:\n  is       {str(actual)[:2000]}\n  expected {str(expected)[:2000]}")
