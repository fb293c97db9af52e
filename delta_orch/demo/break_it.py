"""The attempts to break the pipeline. Each leaves evidence: what had to hold, looked up in logs, runs and tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from delta_orch.demo.dagster_runs import RunReport
from delta_orch.demo.pipeline_runs import Pipeline
from delta_orch.demo.processes import Processes
from delta_orch.demo.results import BreakStep, Check
from delta_orch.demo.verification import as_checks
from delta_orch.demo.worker import WORKER_TAG, go_file
from delta_orch.pipeline.incremental import cdc_app_id


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
        started_ms = now_ms()
        made = self.make(pipeline, processes)
        return BreakStep(self.name, self.title, made.outcome, made.checks, started_ms, now_ms(), made.numbers)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def kill_after_commit(pipeline: Pipeline, processes: Processes) -> Outcome:
    """SIGKILL right after the commit of an appended day; Dagster's retry from failure follows.

    It is the append-only table that is hit: appending again is what would double a day, were it not for the txn.
    """
    day = pipeline.plan.killed
    pipeline.landing.deliver(pipeline.source, [day])
    killed = _kill_and_retry(pipeline, processes, "killed", day, "weather_readings", "weather_readings")
    version = pipeline.versions()["weather_readings"]
    refreshed = pipeline.refresh()
    rows = pipeline.rows_of_day("weather_readings", day)
    checks = [*killed, *_followed(pipeline, refreshed, 1), *as_checks(pipeline.verify())]
    outcome = f"{day}: {rows} readings after the kill and its retry, version {version} unchanged"
    return Outcome(outcome, checks, {"retries": 1})


def upsert_corrections(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Late corrections of a day are upserted into bronze; SIGKILL right after the commit, and Dagster's retry."""
    day = pipeline.plan.amended
    rows_before = {table: pipeline.rows_of_day(table, day) for table in ("flights", "flights_enriched")}
    changed, new = pipeline.landing.deliver_corrections(pipeline.source, day)
    killed = _kill_and_retry(pipeline, processes, "upserted", day, "flights", "corrections/flights", "--corrections")
    metrics = pipeline.table("flights").history(limit=1)[0].operation_metrics or {}
    counts = [int(metrics.get(f"numTargetRows{what}") or 0) for what in ("Updated", "Inserted", "Deleted")]
    refreshed = pipeline.refresh()
    rows_after = {table: pipeline.rows_of_day(table, day) for table in ("flights", "flights_enriched")}
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
    return Outcome(outcome, checks, {"retries": 1, "flights_corrected": changed, "flights_added": new})


def repeat_run(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Execute a run that has succeeded once more: its rows take the place of those that it wrote."""
    day = pipeline.plan.retried
    first = _run_of_day(pipeline, day)
    before = pipeline.versions()
    again = pipeline.runs.reexecute(first.run_id, from_failure=False)
    after = pipeline.versions()
    refreshed = pipeline.refresh()
    checks = [
        Check("the repeated run has the first one as its root", again.root_run_id == first.run_id),
        Check("the day's flights were replaced", again.outcome("flights") == "replaced"),
        Check("in one commit", after["flights"] == before["flights"] + 1),
        Check("the day's weather is kept, and was not added again", again.outcome("weather_readings") == "recovered"),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{day}: the same rows again, each once, in version {after['flights']} of bronze"
    return Outcome(outcome, checks, {"retries": 1})


def correct_day(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Materialize a day on purpose, after the source has corrected it: replaced, and silver and gold follow."""
    day = pipeline.plan.corrected
    rows_before = {table: pipeline.rows_of_day(table, day) for table in ("flights", "flights_enriched")}
    before = pipeline.versions()
    pipeline.landing.deliver(pipeline.source, [day])
    run = pipeline.runs.bronze([day])
    refreshed = pipeline.refresh()
    after = pipeline.versions()
    rows_after = {table: pipeline.rows_of_day(table, day) for table in ("flights", "flights_enriched")}
    real = len(pipeline.source.days["flights"][day])
    checks = [
        Check("bronze was replaced in one commit", after["flights"] == before["flights"] + 1),
        Check("before, bronze and silver had the preliminary rows", set(rows_before.values()) == {real - _tenth(real)}),
        Check("now both have the real ones", set(rows_after.values()) == {real}),
        Check("the day's weather, there already, was not added again", run.outcome("weather_readings") == "recovered"),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    outcome = (
        f"{day}: {rows_before['flights']} preliminary flights became {rows_after['flights']}, here, in silver and gold"
    )
    return Outcome(outcome, checks)


def fence_zombie(pipeline: Pipeline, processes: Processes) -> Outcome:
    """An older run has computed a day from preliminary data and hangs; a newer one writes it; the older wakes up."""
    day = pipeline.plan.fenced
    pipeline.landing.deliver_preliminary(pipeline.source, [day])
    zombie = processes.worker("zombie", [day], "--assets", "flights", "--hold-before-commit", "flights")
    zombie.wait_until_held()
    pipeline.landing.deliver(pipeline.source, [day])
    newer = pipeline.runs.bronze([day])
    committed = pipeline.versions()
    go_file(pipeline.places, "zombie").touch()
    zombie.ensure_success()
    older = pipeline.runs.report(pipeline.runs.find(**{WORKER_TAG: "zombie"})[0].run_id)
    after = pipeline.versions()
    refreshed = pipeline.refresh()
    real = len(pipeline.source.days["flights"][day])
    was_fenced = older.outcome("flights") == "fenced"
    checks = [
        Check(
            "the newer run wrote the day while the older one held its rows ready", newer.outcome("flights") == "written"
        ),
        Check("the older run ended well, without a commit, told why", older.success and was_fenced),
        Check("it added no version", after == committed),
        Check("bronze has the newer run's rows", pipeline.rows_of_day("flights", day) == real),
        *_followed(pipeline, refreshed, 1),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{day}: the late run of older data was fenced off; bronze keeps the {real} flights of the newer run"
    return Outcome(outcome, checks, {"zombies_fenced": int(was_fenced)})


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
        Check("each wrote its days", all(report.outcome("flights") == "written" for report in reports)),
        Check(f"at least {len(shares) - 1} found their version taken and were rebased", rebased >= len(shares) - 1),
        *_followed(pipeline, refreshed, len(days)),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{len(days)} days in {len(days)} commits, {rebased} of them rebased, none failed, none lost"
    return Outcome(outcome, checks, {"conflicts_rebased": rebased})


def late_day(pipeline: Pipeline, processes: Processes) -> Outcome:
    """The source gains a day in the middle of what has been processed long ago."""
    day = pipeline.plan.late
    rows_before = pipeline.rows_of_day("flights", day)
    pipeline.landing.deliver(pipeline.source, [day])
    pipeline.runs.bronze([day])
    refreshed = pipeline.refresh()
    real = len(pipeline.source.days["flights"][day])
    checks = [
        Check("the day was not there", rows_before == 0),
        *_followed(pipeline, refreshed, 1),
        *(
            Check(f"{table} has it", pipeline.rows_of_day(table, day) == real)
            for table in ("flights", "flights_enriched")
        ),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{day}: {real} flights came in; silver and gold recomputed that one day"
    return Outcome(outcome, checks)


ATTEMPTS = (
    Attempt("killed", "A step is killed (SIGKILL) right after its commit, and retried", kill_after_commit),
    Attempt("repeated", "The same day is materialised again by a retry", repeat_run),
    Attempt("corrected", "The same day on purpose, with corrected data", correct_day),
    Attempt("zombie", "A zombie of an older run finishes late", fence_zombie),
    Attempt("parallel", "Several processes backfill different days of one table at once", backfill_in_parallel),
    Attempt("late", "The source gains a late day", late_day),
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
        Check("the retry recovered the commit and made none", retry.outcome(asset) == "recovered"),
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


def _tenth(rows: int) -> int:
    """How many flights a preliminary delivery leaves out."""
    return len(range(0, rows, 10))
