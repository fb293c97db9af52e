"""The attempts to break the pipeline. Each leaves evidence: what had to hold, looked up in logs, runs and tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from tests.demo.control_totals import Comparison
from tests.demo.dagster_runs import Pipeline, RunReport
from tests.demo.processes import Processes
from tests.demo.results import BreakStep, Check
from tests.demo.source import month_name
from tests.demo.verification import as_checks, quarantined
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


def arrive_late_and_twice(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Files come in any order, and again: a month after later ones; a month that is there once more, under another name
    and under its own.
    """
    late, again, source = pipeline.plan.late, pipeline.plan.in_time[0], pipeline.source
    pipeline.deliver(late)
    before = pipeline.rows("flights")
    pipeline.landing.deliver_flights(source, again, f"{month_name(again)}-again")
    copies = pipeline.arrive("flights")
    pipeline.landing.deliver_flights(source, again)
    same_name = pipeline.arrive("flights")
    refreshed = pipeline.refresh()
    real = len(source.months["flights"][late])
    checks = [
        Check("the late month is there", pipeline.rows("flights", late) == real),
        Check("the copy under another name was loaded once", len(copies) == 1 and copies[0].success),
        Check("under its own name nothing was new", same_name == []),
        Check("no flight was added by the copies", pipeline.rows("flights") == before),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    rows = pipeline.rows("flights", again)
    outcome = (
        f"{month_name(late)} came last, and its {real:,} flights are there; {month_name(again)} came three times, and "
        f"its {rows:,} flights are there once"
    )
    return Outcome(outcome, checks)


def repair_damaged(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Doing it again replaces: a file is cut off, and set aside. It comes whole, but some values are damaged: these
    rows go to the quarantine. It is repaired, and its run is executed again.
    """
    month, source, landing = pipeline.plan.damaged, pipeline.source, pipeline.landing
    landing.deliver_weather(source, month)
    pipeline.arrive("weather")
    landing.cut_off(source, month)
    (cut_off,) = pipeline.arrive("flights")
    set_aside = cut_off.metadata.get("flights", {}).get("delta/files_set_aside") or []
    rows_cut_off = pipeline.rows("flights", month)
    broken = landing.deliver_damaged(source, month)
    (damaged,) = pipeline.arrive("flights")
    waiting, rows_damaged = quarantined(pipeline.places.tables), pipeline.rows("flights", month)
    landing.deliver_flights(source, month)
    again = pipeline.runs.reexecute(damaged.run_id, from_failure=False)
    pipeline.loaded.add(month)
    left, rows = quarantined(pipeline.places.tables), pipeline.rows("flights", month)
    refreshed = pipeline.refresh()
    real, bad = len(source.months["flights"][month]), sum(broken.values())
    checks = [
        Check(
            "the file that was cut off was set aside, and named",
            [file["path"] for file in set_aside] == [f"{month_name(month)}.csv"],
        ),
        Check("none of its rows was loaded", rows_cut_off == 0),
        Check("each damaged row went to the quarantine, with its rule", waiting == broken),
        Check("the other rows were loaded", rows_damaged == real - bad),
        Check("the run that was executed again replaced its rows", again.outcome("flights") == "replaced"),
        Check("and those in the quarantine: none is left", left == {}),
        Check("now all rows are there", rows == real),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    outcome = (
        f"{month_name(month)}: replaced; {bad} damaged rows left the quarantine, and all {real:,} flights are "
        "there, in silver and gold, too"
    )
    return Outcome(outcome, checks, {"replaced": 1, "rows_repaired": bad})


def recover_after_crash(pipeline: Pipeline, processes: Processes) -> Outcome:
    """A crash never doubles: SIGKILL right after the commit of a month; Dagster's retry from failure follows."""
    month = pipeline.plan.killed
    pipeline.landing.deliver(pipeline.source, month)
    pipeline.arrive("weather")
    killed = _kill_and_retry(pipeline, processes, "killed", month)
    version, rows = pipeline.versions()["flights"], pipeline.rows("flights", month)
    refreshed = pipeline.refresh()
    checks = [*killed, *_followed(pipeline, refreshed), *as_checks(pipeline.verify())]
    outcome = (
        f"{month_name(month)}: recovered; {rows:,} flights after the kill and its retry, version {version} unchanged"
    )
    return Outcome(outcome, checks, {"recovered": 1})


def fence_late_attempt(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Late never wins: a run has read the first reports of a month and hangs. Dagster believes it dead, and executes it
    again, with better reports. Then the old attempt wakes up.
    """
    month, source = pipeline.plan.fenced, pipeline.source
    pipeline.landing.deliver_first_reports(source, month)
    pipeline.landing.deliver_weather(source, month)
    pipeline.arrive("weather")
    late = processes.worker("late", "--hold-before-commit", "flights")
    late.wait_until_held()
    run = pipeline.runs.find(**{WORKER_TAG: "late"})[0]
    pipeline.runs.instance.report_run_failed(run, "The process of the run does not answer.")
    pipeline.landing.deliver_flights(source, month)
    newer = pipeline.runs.reexecute(run.run_id, from_failure=True)
    pipeline.loaded.add(month)
    committed = pipeline.versions()
    go_file(pipeline.places, "late").touch()
    late.wait()
    told = pipeline.runs.report(run.run_id)
    after = pipeline.versions()
    refreshed = pipeline.refresh()
    real = len(source.months["flights"][month])
    was_fenced = told.outcome("flights") == "fenced"
    checks = [
        Check(
            "the newer attempt wrote the month while the older one held its rows", newer.outcome("flights") == "written"
        ),
        Check("the older attempt was fenced", was_fenced),
        Check("it names the newer run", told.metadata.get("flights", {}).get("delta/fenced_by") == newer.run_id),
        Check("it added no version", after == committed),
        Check("bronze has the newer rows", pipeline.rows("flights", month) == real),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{month_name(month)}: fenced; bronze keeps the {real:,} flights of the newer attempt"
    return Outcome(outcome, checks, {"fenced": int(was_fenced)})


def undo_run(pipeline: Pipeline, processes: Processes) -> Outcome:
    """A run loads the weather of a month too early: readings are missing. `delta-orch undo` takes back what it wrote,
    and its file is new again.
    """
    month, source, table = pipeline.plan.undone, pipeline.source, "weather_readings"
    pipeline.landing.deliver_flights(source, month)
    pipeline.arrive("flights", month)
    before = pipeline.rows(table)
    early_rows = pipeline.landing.deliver_first_readings(source, month)
    (early,) = pipeline.arrive("weather")
    pipeline.refresh()
    loaded = pipeline.rows(table, month)
    undone = processes.command("undo", str(pipeline.places.tables / table), "--run", early.run_id)
    after = pipeline.rows(table)
    pipeline.landing.deliver_weather(source, month)
    (again,) = pipeline.arrive("weather")
    refreshed = pipeline.refresh()
    real = len(source.months["weather"][month])
    checks = [
        Check("the run had loaded the readings that were there", loaded == early_rows < real),
        Check("undo removed as many rows as it had loaded", undone["rows_removed"] == loaded),
        Check("the table had as many rows as before the run", after == before),
        Check("the next run wrote the month anew", again.outcome(table) == "written"),
        Check("now it has all readings", pipeline.rows(table, month) == real),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    outcome = f"{month_name(month)}: undone; {loaded:,} readings were taken back, and all {real:,} came in later"
    return Outcome(outcome, checks, {"undone": loaded})


def race_for_files(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Several processes load the same new file: all stand before their first commit, then all go at once."""
    month, number = pipeline.plan.raced, pipeline.plan.processes
    pipeline.landing.deliver(pipeline.source, month)
    pipeline.arrive("weather")
    before = pipeline.versions()["flights"]
    workers = [processes.worker(f"race-{number}", "--hold-before-commit", "flights") for number in range(1, number + 1)]
    for worker in workers:
        worker.wait_until_held()
    go_file(pipeline.places, "race").touch()
    for worker in workers:
        worker.ensure_success()
    pipeline.loaded.add(month)
    reports = [pipeline.runs.report(run.run_id) for w in workers for run in pipeline.runs.find(**{WORKER_TAG: w.name})]
    outcomes = sorted(report.outcome("flights") for report in reports)
    refreshed = pipeline.refresh()
    checks = [
        Check(f"{number} runs succeeded", len(reports) == number and all(report.success for report in reports)),
        Check(
            "one wrote the rows, the others found nothing new", outcomes == ["nothing new"] * (number - 1) + ["written"]
        ),
        Check("there is one commit more", pipeline.versions()["flights"] == before + 1),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    rows = pipeline.rows("flights", month)
    outcome = f"{month_name(month)}: {number} loaders, one commit, {rows:,} flights; the others found nothing new"
    return Outcome(outcome, checks, {"loaders_without_news": outcomes.count("nothing new")})


def correct_out_of_order(pipeline: Pipeline, processes: Processes) -> Outcome:
    """Corrections of a month come out of order, the newer file first. The older one has damaged lines, and its run is
    killed right after its commit.
    """
    month, source, landing = pipeline.plan.amended, pipeline.source, pipeline.landing
    reported = landing.deliver_first_reports(source, month)
    landing.deliver_weather(source, month)
    pipeline.arrive("weather")
    pipeline.arrive("flights")
    first = pipeline.rows("flights", month)
    counts = landing.deliver_corrections(source, month)
    pipeline.arrive("flights", month)
    newer = pipeline.verify()
    broken = landing.deliver_earlier_corrections(source, month)
    killed = _kill_and_retry(pipeline, processes, "older", month)
    older, waiting = pipeline.verify(), quarantined(pipeline.places.tables)
    refreshed = pipeline.refresh()
    real = len(source.months["flights"][month])
    checks = [
        *killed,
        Check("before, the flights that were reported at first were there", first == reported == real - counts["new"]),
        Check("the newer file corrected them all", _is_confirmed(newer, "flights")),
        Check("the older file changed none of them", _is_confirmed(older, "flights")),
        Check("its damaged rows wait in the quarantine", waiting == broken),
        *_followed(pipeline, refreshed),
        *as_checks(pipeline.verify()),
    ]
    outcome = (
        f"{month_name(month)}: {counts['changed']:,} flights corrected and {counts['new']:,} added; the older file, "
        f"which came last, changed none, and {sum(broken.values())} of its rows wait in the quarantine"
    )
    numbers = {"recovered": 1, "flights_corrected": counts["changed"], "flights_added": counts["new"]}
    return Outcome(outcome, checks, {**numbers, "rows_quarantined": sum(broken.values())})


ATTEMPTS = (
    Attempt("arrived", "Files come late and twice: a month after later ones, a month again", arrive_late_and_twice),
    Attempt("replaced", "Redo: a damaged file is repaired, and its run is executed again", repair_damaged),
    Attempt(
        "recovered", "Recovery: a run is killed (SIGKILL) right after its commit, and retried", recover_after_crash
    ),
    Attempt("fenced", "A late attempt: a run that was believed dead ends after its retry", fence_late_attempt),
    Attempt("undone", "Undo: what a run loaded too early is taken back with `delta-orch undo`", undo_run),
    Attempt("raced", "Several processes load the same new file at once", race_for_files),
    Attempt(
        "corrected", "Corrections come out of order, some damaged; the run of the last is killed", correct_out_of_order
    ),
)


def _kill_and_retry(pipeline: Pipeline, processes: Processes, name: str, month: int) -> list[Check]:
    """A worker's run dies right after it has committed new flights; Dagster retries it."""
    before = pipeline.versions()["flights"]
    worker = processes.worker(name, "--kill-after-commit", "flights")
    code = worker.wait()
    committed = pipeline.versions()
    run = pipeline.runs.find(**{WORKER_TAG: name})[0]
    was_open = run.status == dg.DagsterRunStatus.STARTED
    # What Dagster's run monitoring does when a run's process is gone.
    pipeline.runs.instance.report_run_failed(run, "The process of the run is gone.")
    retry = pipeline.runs.reexecute(run.run_id, from_failure=True)
    pipeline.loaded.add(month)
    return [
        Check("the process died of SIGKILL", code == -signal.SIGKILL),
        Check("Dagster never heard of the commit: the run was still open", was_open),
        Check("the commit is in the log", committed["flights"] == before + 1),
        Check("the retry has the killed run as its root", retry.root_run_id == run.run_id and retry.success),
        Check("the retry recovered the commit, and made none", retry.outcome("flights") == "recovered"),
        Check("no version was added by the retry", pipeline.versions() == committed),
    ]


def _followed(pipeline: Pipeline, refreshed: Sequence[RunReport]) -> list[Check]:
    """Silver and gold followed in the runs that the sensors asked for, and know how far."""
    return [
        Check("the sensors asked for silver and gold", bool(refreshed) and all(report.success for report in refreshed)),
        Check("silver has a commit of rows with its cursors on bronze", _cursors_came_with_rows(pipeline)),
    ]


def _cursors_came_with_rows(pipeline: Pipeline) -> bool:
    silver = pipeline.table("flights_enriched")
    commit, cursors = silver.log.read_commit(silver.version()), silver.txns()
    tables = [pipeline.table(name).snapshot() for name in ("flights", "weather_readings")]
    bronze = {table.metadata.id: table.version for table in tables}
    read = {app_id.partition("<-")[2]: version for app_id, version in cursors.items() if app_id.startswith("cdc:")}
    return read == bronze and commit.adds.num_rows > 0 and any(txn.app_id.startswith("cdc:") for txn in commit.txns)


def _is_confirmed(comparisons: Sequence[Comparison], table: str) -> bool:
    return all(comparison.confirmed for comparison in comparisons if comparison.table == table)
