"""The attempts to break the pipeline. Each leaves evidence: what had to hold, looked up in logs, runs and tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from delta_orch.pipeline.incremental import cdc_app_id
from tests.demo.dagster_runs import Pipeline, RunReport
from tests.demo.processes import Processes
from tests.demo.results import BreakStep, Check
from tests.demo.verification import as_checks
from tests.demo.worker import WORKER_TAG, go_file


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt; see `BreakStep` for the attributes."""

    outcome: str
    checks: Sequence[Check]
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to break the pipeline."""

    name: str
    title: str
    make: Callable[[Pipeline, Processes], Outcome]

    def run(self, pipeline: Pipeline, processes: Processes) -> BreakStep:
        """Make the attempt, and look at what it has left."""
        started = time.monotonic()
        end = self.make(pipeline, processes)
        seconds = time.monotonic() - started
        return BreakStep(self.name, self.title, end.outcome, end.checks, seconds, end.numbers)


def recover_after_crash(pipeline: Pipeline, processes: Processes) -> Outcome:
    """A crash never doubles: SIGKILL right after the commit of an appended day; Dagster's retry from failure follows.

    An append is hit, because a second one would double the day.
    """
    day = pipeline.plan.killed
    pipeline.landing.deliver(pipeline.source, [day])
    killed = _kill_and_retry(pipeline, processes, "killed", day, "weather_readings", "weather_readings")
    version = pipeline.versions()["weather_readings"]
    refreshed = pipeline.refresh()
    rows = pipeline.rows("weather_readings", day)
    checks = [*killed, *_followed(pipeline, refreshed, 1), *as_checks(pipeline.verify())]
    outcome = f"{day}: recovered; {rows} readings after the kill and its retry, version {version} unchanged"
    return Outcome(outcome, checks, {"recovered": 1})


def replace_by_redo(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Doing it again replaces: the source corrects a day, and the day's run is executed again, all of its steps.

    One step overwrites a partition, the other one appends. Exactly the rows of the first run leave.
    """
    day, bronze = pipeline.plan.corrected, ("flights", "weather_readings")
    tables = (*bronze, "flights_enriched")
    first = _run_of_day(pipeline, day)
    before, all_before = ({table: pipeline.rows(table, one) for table in tables} for one in (day, None))
    versions = pipeline.versions()
    pipeline.landing.deliver(pipeline.source, [day])
    again = pipeline.runs.reexecute(first.run_id, from_failure=False)
    committed = pipeline.versions()
    refreshed = pipeline.refresh()
    after, all_after = ({table: pipeline.rows(table, one) for table in tables} for one in (day, None))
    real = _real_rows(pipeline, day)
    preliminary = {table: rows - _tenth(rows) for table, rows in real.items()}
    replaced = {table: again.metadata[table].get("delta/rows_replaced") for table in bronze}
    checks = [
        Check("before, the tables had the preliminary rows", before == preliminary),
        Check("both steps replaced their rows", [again.outcome(table) for table in bronze] == ["replaced"] * 2),
        Check("each in one commit", all(committed[table] == versions[table] + 1 for table in bronze)),
        Check("exactly the rows of the first run left", replaced == {table: before[table] for table in bronze}),
        Check("now the tables have the real rows", after == real),
        Check(
            "no other day has gained or lost a row",
            all(all_after[table] - after[table] == all_before[table] - before[table] for table in tables),
        ),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    flights, readings = (f"{before[table]} → {after[table]}" for table in bronze)
    outcome = f"{day}: replaced; flights {flights}, readings {readings}, and silver and gold followed"
    return Outcome(outcome, checks, {"replaced": len(bronze)})


def fence_late_run(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Late never wins: a run has computed a day from preliminary data and hangs; a newer one writes the day; the older
    one wakes up.
    """
    day = pipeline.plan.fenced
    pipeline.landing.deliver_preliminary(pipeline.source, [day])
    late = processes.worker("late", [day], "--assets", "flights", "--hold-before-commit", "flights")
    late.wait_until_held()
    pipeline.landing.deliver(pipeline.source, [day])
    newer = pipeline.runs.bronze([day])
    committed = pipeline.versions()
    go_file(pipeline.places, "late").touch()
    late.ensure_success()
    older = pipeline.runs.report(pipeline.runs.find(**{WORKER_TAG: "late"})[0].run_id)
    after = pipeline.versions()
    refreshed = pipeline.refresh()
    real = len(pipeline.source.days["flights"][day])
    was_fenced = older.outcome("flights") == "fenced"
    fenced_by = older.metadata["flights"].get("delta/fenced_by")
    checks = [
        Check(
            "the newer run wrote the day while the older one held its rows ready", newer.outcome("flights") == "written"
        ),
        Check("the older run ended well, fenced", older.success and was_fenced),
        Check("it names the newer run", fenced_by == newer.run_id),
        Check("it added no version", after == committed),
        Check("bronze has the newer run's rows", pipeline.rows("flights", day) == real),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{day}: fenced; bronze keeps the {real} flights of the newer run"
    return Outcome(outcome, checks, {"fenced": int(was_fenced)})


def undo_run(pipeline: Pipeline, processes: Processes) -> Outcome:
    """A run loads a day from preliminary data, too early. `delta-orch undo` takes back what it wrote. Later the day
    comes in, in the middle of what has been processed long ago.
    """
    day, bronze = pipeline.plan.undone, ("flights", "weather_readings")
    tables = (*bronze, "flights_enriched")
    before = {table: pipeline.rows(table) for table in tables}
    pipeline.landing.deliver_preliminary(pipeline.source, [day])
    early = pipeline.runs.bronze([day])
    pipeline.refresh()
    loaded = {table: pipeline.rows(table, day) for table in tables}
    undone = {
        table: processes.command("undo", str(pipeline.places.tables / table), "--run", early.run_id) for table in bronze
    }
    pipeline.refresh()
    after = {table: pipeline.rows(table) for table in tables}
    pipeline.landing.deliver(pipeline.source, [day])
    again = pipeline.runs.bronze([day])
    refreshed = pipeline.refresh()
    removed = {table: undone[table]["rows_removed"] for table in bronze}
    checks = [
        Check("the run had loaded the day", all(loaded.values())),
        Check("undo removed as many rows as it had loaded", removed == {table: loaded[table] for table in bronze}),
        Check("bronze, weather and silver had as many rows as before the run", after == before),
        Check("the next run wrote the day anew", [again.outcome(table) for table in bronze] == ["written"] * 2),
        Check("now all have the real rows", _real_rows(pipeline, day) == {t: pipeline.rows(t, day) for t in tables}),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    rows = sum(removed.values())
    outcome = f"{day}: undone; {rows} rows were taken back, and the day came in later as if it had never been there"
    return Outcome(outcome, checks, {"undone": rows})


def backfill_in_parallel(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Processes that backfill different days of one table; all stand before their first commit, then all go at once."""
    shares = pipeline.plan.parallel
    days = [day for share in shares for day in share]
    pipeline.landing.deliver(pipeline.source, days)
    before = pipeline.versions()
    options = ("--assets", "flights", "--hold-before-commit", "flights")
    workers = [processes.worker(f"backfill-{number}", share, *options) for number, share in enumerate(shares, 1)]
    for worker in workers:
        worker.wait_until_held()
    go_file(pipeline.places, "backfill").touch()
    for worker in workers:
        worker.ensure_success()
    after = pipeline.versions()
    reports = [
        pipeline.runs.report(run.run_id)
        for worker in workers
        for run in pipeline.runs.find(**{WORKER_TAG: worker.name})
    ]
    rebased = sum(bool(report.metadata["flights"].get("delta/rebased_versions")) for report in reports)
    refreshed = pipeline.refresh()
    checks = [
        Check(f"{len(days)} runs succeeded", len(reports) == len(days) and all(report.success for report in reports)),
        Check(f"they made {len(days)} commits", after["flights"] == before["flights"] + len(days)),
        Check("each replaced its day", all(report.outcome("flights") == "replaced" for report in reports)),
        Check(f"at least {len(shares) - 1} found their version taken and were rebased", rebased >= len(shares) - 1),
        *_followed(pipeline, refreshed, len(days)),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{len(days)} days in {len(days)} commits, {rebased} of them rebased, none failed, none lost"
    return Outcome(outcome, checks, {"conflicts_rebased": rebased, "replaced": len(reports)})


def upsert_corrections(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Late corrections of a day are upserted into bronze; SIGKILL right after the commit, and Dagster's retry."""
    day = pipeline.plan.amended
    rows_before = {table: pipeline.rows(table, day) for table in ("flights", "flights_enriched")}
    changed, new = pipeline.landing.deliver_corrections(pipeline.source, day)
    killed = _kill_and_retry(pipeline, processes, "upserted", day, "flights", "corrections/flights", "--corrections")
    metrics = pipeline.table("flights").history(limit=1)[0].operation_metrics or {}
    counts = [int(metrics.get(f"numTargetRows{what}") or 0) for what in ("Updated", "Inserted", "Deleted")]
    refreshed = pipeline.refresh()
    rows_after = {table: pipeline.rows(table, day) for table in ("flights", "flights_enriched")}
    real = len(pipeline.source.days["flights"][day])
    checks = [
        *killed,
        Check(f"the commit changed {changed} flights and added {new}, as delivered", counts == [changed, new, 0]),
        Check("before, bronze and silver lacked the new ones", set(rows_before.values()) == {real - new}),
        Check("now both have all", set(rows_after.values()) == {real}),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{day}: {changed} flights corrected and {new} added, each once, after the kill and its retry"
    return Outcome(outcome, checks, {"recovered": 1, "flights_corrected": changed, "flights_added": new})


ATTEMPTS = (
    Attempt(
        "recovered", "A crash: a step is killed (SIGKILL) right after its commit, and retried", recover_after_crash
    ),
    Attempt("replaced", "Doing it again: a run is executed again after its source was corrected", replace_by_redo),
    Attempt("fenced", "A late run: it ends after a newer run has written its day", fence_late_run),
    Attempt("undone", "An undo: what a run loaded too early is taken back with `delta-orch undo`", undo_run),
    Attempt("parallel", "Several processes backfill different days of one table at once", backfill_in_parallel),
    Attempt(
        "upserted", "An upsert of late corrections is killed right after its commit, and retried", upsert_corrections
    ),
)


def _kill_and_retry(
    pipeline: Pipeline, processes: Processes, name: str, day: date, table: str, asset: str, *options: str
) -> list[Check]:
    """A worker's run of a day dies right after `asset` has committed to `table`; Dagster retries it."""
    before = pipeline.versions()
    worker = processes.worker(name, [day], "--kill-after-commit", table, *options)
    code = worker.wait()
    committed = pipeline.versions()
    run = pipeline.runs.find(**{WORKER_TAG: name})[0]
    was_open = run.status == dg.DagsterRunStatus.STARTED
    # What Dagster's run monitoring does when a run's process is gone.
    pipeline.runs.instance.report_run_failed(run, "The process of the run is gone.")
    retry = pipeline.runs.reexecute(run.run_id, from_failure=True)
    return [
        Check("the process died of SIGKILL", code == -signal.SIGKILL),
        Check("Dagster never heard of the commit: the run was still open", was_open),
        Check("the commit is in the log", committed[table] == before[table] + 1),
        Check("the retry has the killed run as its root", retry.root_run_id == run.run_id and retry.success),
        Check("the retry recovered the commit, and made none", retry.outcome(asset) == "recovered"),
        Check("no version was added by the retry", pipeline.versions() == committed),
    ]


def _followed(pipeline: Pipeline, refreshed: Sequence[RunReport], days: int) -> list[Check]:
    """Silver and gold recomputed exactly so many days, in one run that the sensor asked for, and know how far."""
    touched = [report.metadata[table].get("delta/touched_partitions") for report in refreshed for table in _FOLLOWERS]
    return [
        Check(f"silver and gold recomputed {days} day(s), no more", touched == [days] * len(_FOLLOWERS)),
        Check(
            "silver's last commit holds its rows and its cursor on bronze together", _cursor_came_with_rows(pipeline)
        ),
    ]


def _cursor_came_with_rows(pipeline: Pipeline) -> bool:
    bronze, silver = pipeline.table("flights").snapshot(), pipeline.table("flights_enriched")
    commit = silver.log.read_commit(silver.version())
    cursor = cdc_app_id("flights_enriched", bronze.metadata.id)
    has_cursor = any(txn.app_id == cursor and txn.version == bronze.version for txn in commit.txns)
    return has_cursor and commit.adds.num_rows > 0


_FOLLOWERS = ("flights_enriched", "carrier_daily")


def _run_of_day(pipeline: Pipeline, day: date) -> dg.DagsterRun:
    found = pipeline.runs.find(**{"dagster/partition": day.isoformat()})
    if len(found) != 1:
        raise LookupError(f"There should be one run of {day}, not {len(found)}")
    return found[0]


def _real_rows(pipeline: Pipeline, day: date) -> dict[str, int]:
    """The rows of a day that bronze, weather and silver must have."""
    days = pipeline.source.days
    flights = len(days["flights"][day])
    return {"flights": flights, "weather_readings": len(days["weather"][day]), "flights_enriched": flights}


def _tenth(rows: int) -> int:
    """How many flights a preliminary delivery leaves out."""
    return len(range(0, rows, 10))
