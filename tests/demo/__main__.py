"""`make demo`: an exactly-once pipeline of real flights, and seven attempts to break it.

The flights of New York in 2013 arrive as monthly CSV files, and go through bronze, silver and gold Delta tables, run by
Dagster. Some files come late, damaged or twice, and corrections come out of order. The demo kills runs after their
commits, does one again, lets one end late, undoes one, and races several. It compares every table with the source after
each. The same files go through the Airflow DAG as well. Readers that share no code with this package confirm it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from delta_orch.cli.output import print_error
from delta_orch.errors import DeltaError, MissingDependencyError
from tests.demo.places import Places, default_home, enter
from tests.demo.plan import MONTHS_IN_YEAR, PROCESSES, Plan, make_plan
from tests.demo.results import Results

if TYPE_CHECKING:
    from tests.demo.dagster_runs import Pipeline
    from tests.demo.processes import Processes
    from tests.demo.readers import Reader

FOLLOWER = "carriers_read"
PACKAGES = ("delta-orch", "pyspark", "dagster", "apache-airflow", "deltalake", "duckdb", "pyarrow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns: 0 if everything is as it must be, 1 otherwise. `summary.json` is written in both cases, unless a stage
        could not be finished.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--months", type=int, default=MONTHS_IN_YEAR, help="only the first months of the year (8 to 12)"
    )
    parser.add_argument("--home", type=Path, default=default_home(), help="where everything is written")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many load the same file at once")
    options = parser.parse_args(arguments)
    places = Places(options.home.resolve())
    try:
        plan = make_plan(options.months, options.processes)
        ensure_java()
        places.prepare()
    except DeltaError as error:
        print_error(error.code, str(error), error.context, as_json=False)
        return 1
    enter(places)
    warnings.simplefilter("ignore")
    log_file = places.logs / "demo.log"
    with quiet_terminal(log_file) as terminal:
        demo = Demo(places, plan, terminal)
        try:
            return demo.run()
        except Exception as error:  # noqa: BLE001 (the whole story goes to the log, its end to the user)
            traceback.print_exc()
            first_lines = "\n".join(str(error).splitlines()[:3])
            demo.show(f"  ✘ {type(error).__name__}: {first_lines}\n  More in {log_file}")
            return 1


def ensure_java() -> None:
    """Spark needs Java. Say so before anything else happens."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=f"{home}/bin" if home else None):
        raise MissingDependencyError(
            "Spark needs a Java runtime, version 17 or newer, and there is none",
            cause=f"JAVA_HOME is {home}" if home else "There is no `java` on the PATH",
            remedy="On Debian or Ubuntu: apt-get install default-jre-headless",
        )


@contextmanager
def quiet_terminal(log_file: Path) -> Iterator[TextIO]:
    """The real terminal, while all other output goes to `log_file`.

    File descriptors are redirected, because the JVM that Spark starts writes to them, too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    saved = {stream.fileno(): os.dup(stream.fileno()) for stream in (sys.stdout, sys.stderr)}
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for descriptor in saved:
            os.dup2(log, descriptor)
        yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(log)
        terminal.close()


class Demo:
    """The demo's stages, one after the other.

    Args:
        terminal: Where a line is written for each stage and attempt.
    """

    def __init__(self, places: Places, plan: Plan, terminal: TextIO) -> None:
        self.places = places
        self.plan = plan
        self.terminal = terminal
        self.results = Results()

    def show(self, text: str) -> None:
        print(text, file=self.terminal, flush=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, and show it when it has ended."""
        started = time.monotonic()
        yield
        self.results.seconds[name] = time.monotonic() - started
        self.show(f"  ✔ {name} ({self.results.seconds[name]:.1f} s)")

    def run(self) -> int:
        """All stages. Returns as `main`."""
        # Only here, because output is redirected now: these import Dagster, which has much to say.
        from tests.demo.processes import Processes
        from tests.demo.readers import find_readers

        self.show(f"New York's flights of 2013, exactly once: {len(self.plan.months)} monthly files")
        with Processes(self.places) as processes, ThreadPoolExecutor(1) as thread:
            # To find out whether an extension can be downloaded may take a while.
            readers = thread.submit(find_readers, self.places.home / "duckdb_extensions")
            pipeline = self.set_up()
            self.load(pipeline)
            self.break_it(pipeline, processes)
            self.maintain(pipeline)
            self.run_airflow(pipeline, processes)
            available, self.results.readers_unavailable = readers.result()
            with self.stage("Independent readers confirm every table"):
                self.confirm(pipeline, available)
        summary = self.places.home / "summary.json"
        summary.write_text(json.dumps(self.results.summary(), indent=2) + "\n")
        self.show_summary(summary)
        return 1 if self.results.failures() else 0

    def set_up(self) -> Pipeline:
        import dagster as dg

        from dagster_defs.flights_transformations import spark_session
        from tests.demo.dagster_runs import Pipeline, Runs
        from tests.demo.places import relax_sqlite
        from tests.demo.source import Landing, Source
        from tests.demo.verification import Verifier

        with self.stage("Unpack the source, start Dagster and Spark"):
            source, landing = Source.unpack(self.places.source), Landing(self.places.landing)
            landing.deliver_reference(source)
            spark_session()
            relax_sqlite()
            runs = Runs(dg.DagsterInstance.get())
            return Pipeline(self.places, self.plan, source, landing, runs, Verifier(self.places.tables))

    def load(self, pipeline: Pipeline) -> None:
        """The months that arrive as they should."""
        months = self.plan.in_time
        with self.stage(f"{len(months)} files arrive in their order: bronze"):
            pipeline.deliver(*months)
        with self.stage("Silver and gold follow"):
            pipeline.refresh()

    def break_it(self, pipeline: Pipeline, processes: Processes) -> None:
        """All attempts. After each the tables are compared with the source."""
        from tests.demo.break_it import ATTEMPTS

        for attempt in ATTEMPTS:
            step = attempt.run(pipeline, processes)
            self.results.steps.append(step)
            self.results.seconds[f"Break it: {step.name}"] = step.seconds
            self.show(f"  {'✔' if step.passed else '✘'} {step.title} ({step.seconds:.1f} s)\n    {step.outcome}")
            for check in step.checks:
                if not check.passed:
                    self.show(f"    not true: {check.what}")

    def maintain(self, pipeline: Pipeline) -> None:
        """Compaction, checkpoint and vacuum, by an asset for each table."""
        with self.stage("Maintenance: compaction, checkpoint, vacuum"):
            self.results.files_before_compaction = pipeline.num_files()
            report = pipeline.runs.maintenance()
            self.results.files_after_compaction = pipeline.num_files()
            deleted = (metadata.get("delta/vacuum/deleted_files", 0) for metadata in report.metadata.values())
            self.results.files_vacuumed = sum(deleted)

    def run_airflow(self, pipeline: Pipeline, processes: Processes) -> None:
        """The same files once more as the Airflow DAG, into tables of its own; and a DAG that Dagster's commits start,
        which a Dagster sensor waits for."""
        result = self.places.home / "airflow_runs.json"
        with self.stage("The same files again as the Airflow DAG"):
            before = pipeline.asked_by(FOLLOWER)
            arguments = ["--result", str(result), "--month", str(self.plan.months[0])]
            processes.module("tests.demo.airflow_runs", "airflow", arguments).ensure_success()
            self.results.airflow = json.loads(result.read_text())
            self.results.airflow["handshake"] = {"before": before, "after": pipeline.asked_by(FOLLOWER)}

    def confirm(self, pipeline: Pipeline, readers: Sequence[Reader]) -> None:
        """Compare every table, by every independent reader, value for value."""
        from tests.demo.verification import Verifier, quarantined

        source, results, months = pipeline.source, self.results, self.plan.months
        results.rows_in_source = pipeline.verifier.rows_in_source(source, months)
        results.comparisons = pipeline.verifier.against_source(source, months, readers)
        airflow_tables = self.places.home / "airflow_tables"
        results.airflow_comparisons = Verifier(airflow_tables).against_source(source, months, readers)
        results.quarantined = quarantined(self.places.tables)
        results.airflow_quarantined = quarantined(airflow_tables)
        results.dagster_runs = pipeline.runs.count()
        results.versions = {name: importlib.metadata.version(name) for name in PACKAGES}

    def show_summary(self, path: Path) -> None:
        """The numbers that matter, and whether all is well."""
        summary = self.results.summary()
        rows = [summary[f"rows_in_{place}"] for place in ("source", "dagster", "airflow")]
        self.show(f"\n  flights: source = Dagster = Airflow  {' = '.join(f'{number:,}' for number in rows)}")
        self.show(f"  {'rows in quarantine':33}  {sum(self.results.quarantined.values()):,}")
        for rule, number in self.results.quarantined.items():
            self.show(f"    {'not true: ' + rule:43}  {number:,}")
        for label, key in _NUMBERS.items():
            self.show(f"  {label:33}  {summary[key]:,}")
        self.show(f"  {'confirmed by':33}  {', '.join(summary['readers_confirmed']) or 'none'}")
        for name, reason in self.results.readers_unavailable.items():
            self.show(f"  {'not available':33}  {name}: {reason}")
        for failure in summary["failures"]:
            self.show(f"✘ {failure}")
        if summary["passed"]:
            self.show("✔ Every flight exactly once, everywhere.")
        self.show(f"  summary  {path}")


_NUMBERS = {
    "duplicates": "duplicates",
    "lost rows": "lost_rows",
    "crashed steps recovered": "steps_recovered",
    "damaged rows repaired by a redo": "rows_repaired",
    "late runs fenced": "runs_fenced",
    "rows undone": "rows_undone",
    "loaders that found nothing new": "loaders_without_news",
    "files before compaction": "files_before_compaction",
    "files after compaction": "files_after_compaction",
    "files vacuumed": "files_vacuumed",
    "seconds": "seconds",
}
"""The lines of the summary, and their keys in `summary.json`."""


if __name__ == "__main__":
    raise SystemExit(main())
