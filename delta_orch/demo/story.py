"""The demo's story, stage by stage. See `runner` for who tells it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import dagster as dg

from delta_orch.demo.break_it import ATTEMPTS
from delta_orch.demo.control_totals import TABLES
from delta_orch.demo.dagster_runs import Runs
from delta_orch.demo.pipeline_runs import Pipeline
from delta_orch.demo.places import Places
from delta_orch.demo.plan import Plan
from delta_orch.demo.processes import Processes
from delta_orch.demo.readers import Reader, find_readers
from delta_orch.demo.results import Compaction, Results, Vacuum
from delta_orch.demo.session import spark_session
from delta_orch.demo.source import Landing, Source
from delta_orch.demo.sqlite import relax_sqlite
from delta_orch.demo.terminal import Stages
from delta_orch.demo.verification import Verifier

DAYS_BETWEEN_REFRESHES = 7
FOLLOWER = "carriers_read"


def tell(places: Places, plan: Plan, stages: Stages, results: Results) -> None:
    """All of it; what it finds out goes into `results`."""
    with Processes(places) as processes, ThreadPoolExecutor(1) as thread:
        # Whether an extension can be downloaded may take a while to find out.
        readers = thread.submit(find_readers, places.home / "duckdb_extensions")
        pipeline = set_up(places, plan, stages)
        load_day_by_day(pipeline, stages)
        load_range(pipeline, stages)
        maintain(pipeline, stages, results)
        break_it(pipeline, processes, stages, results)
        run_airflow(pipeline, processes, stages, results)
        available, results.readers_unavailable = readers.result()
        confirm(pipeline, available, stages, results)


def set_up(places: Places, plan: Plan, stages: Stages) -> Pipeline:
    with stages.stage("Unpack the source, start Dagster and Spark"):
        source, landing = Source.unpack(places.source), Landing(places.landing)
        landing.deliver_reference(source)
        spark_session()
        relax_sqlite()
        runs = Runs(dg.DagsterInstance.get())
        return Pipeline(places, plan, source, landing, runs, Verifier(places.tables))


def load_day_by_day(pipeline: Pipeline, stages: Stages) -> None:
    """Bronze and weather day by day, each day a run; silver and gold follow once a week."""
    days = pipeline.plan.daily
    name = f"{len(days)} days one by one: bronze, silver and gold"
    with stages.stage(name, len(days)) as advance:
        for week in weeks(days):
            for day in week:
                deliver(pipeline, [day])
                pipeline.runs.bronze([day])
                advance()
            pipeline.refresh()


def load_range(pipeline: Pipeline, stages: Stages) -> None:
    """The rest as one range, in one run."""
    days = pipeline.plan.backfill
    with stages.stage(f"{len(days)} days as one backfill: bronze"):
        deliver(pipeline, days)
        pipeline.runs.bronze(days)
    with stages.stage(f"{len(days)} days as one backfill: silver and gold"):
        pipeline.refresh()


def maintain(pipeline: Pipeline, stages: Stages, results: Results) -> None:
    """Compaction, checkpoint and vacuum, by an asset for each table."""
    with stages.stage("Maintenance: compaction, checkpoint, vacuum"):
        before = {name: pipeline.file_sizes(name) for name in TABLES}
        report = pipeline.runs.maintenance()
        for name in TABLES:
            results.compactions.append(Compaction(name, before[name], pipeline.file_sizes(name)))
            metadata = report.metadata[f"maintenance/{name}"]
            results.vacuums.append(
                Vacuum(
                    name,
                    files_found=metadata["delta/vacuum/found_files"],
                    files_deleted=metadata.get("delta/vacuum/deleted_files", 0),
                    bytes_deleted=metadata.get("delta/vacuum/deleted_bytes", 0),
                )
            )


def break_it(pipeline: Pipeline, processes: Processes, stages: Stages, results: Results) -> None:
    """All attempts; after each the tables are compared with the CSV."""
    for attempt in ATTEMPTS:
        with stages.stage(f"Break it: {attempt.name}", label=attempt.title, is_reported=False):
            step = attempt.run(pipeline, processes)
        results.steps.append(step)
        stages.show_attempt(step)


def run_airflow(pipeline: Pipeline, processes: Processes, stages: Stages, results: Results) -> None:
    """A week once more as the Airflow DAG, into tables of its own; and a DAG that Dagster's commits start, for which a
    Dagster sensor waits."""
    days, places = pipeline.plan.airflow, pipeline.places
    result = places.home / "airflow_week.json"
    with stages.stage(f"{len(days)} days again as the Airflow DAG"):
        before = pipeline.asked_by(FOLLOWER)
        arguments = ["--result", str(result), "--days", *(day.isoformat() for day in days)]
        processes.module("delta_orch.demo.airflow_week", "airflow", arguments).ensure_success()
        results.airflow = json.loads(result.read_text())
        results.airflow["handshake"] = {"before": before, "after": pipeline.asked_by(FOLLOWER)}


def confirm(pipeline: Pipeline, available: Sequence[Reader], stages: Stages, results: Results) -> None:
    """Every table by every independent reader, value for value; and the numbers for the report."""
    with stages.stage("Independent readers confirm every table"):
        plan, source = pipeline.plan, pipeline.source
        results.rows_in_source = pipeline.verifier.rows_in_source(source, plan.days)
        results.comparisons = pipeline.verifier.against_source(source, plan.days, available)
        airflow = Verifier(pipeline.places.home / "airflow_tables")
        results.airflow_comparisons = airflow.against_source(source, plan.airflow, available)
        results.days = pipeline.verifier.rows_per_day(source, plan.days, {day: plan.origin(day) for day in plan.days})
        results.commits = pipeline.commits()
        results.dagster_runs = pipeline.runs.count()
        packages = ("delta-orch", "pyspark", "dagster", "apache-airflow", "deltalake", "duckdb", "pyarrow")
        results.versions = {name: importlib.metadata.version(name) for name in packages}


def deliver(pipeline: Pipeline, days: Sequence[date]) -> None:
    """The source delivers days; some of them as preliminary data, to be corrected later."""
    plan, landing, source = pipeline.plan, pipeline.landing, pipeline.source
    for day in days:
        if day == plan.amended:
            landing.deliver_uncorrected(source, day)
        elif day in plan.preliminary:
            landing.deliver_preliminary(source, [day])
            if day == plan.corrected:
                landing.deliver_first_readings(source, day)
        else:
            landing.deliver(source, [day])


def weeks(days: Sequence[date]) -> list[tuple[date, ...]]:
    return [
        tuple(days[start : start + DAYS_BETWEEN_REFRESHES]) for start in range(0, len(days), DAYS_BETWEEN_REFRESHES)
    ]
