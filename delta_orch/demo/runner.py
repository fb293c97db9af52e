"""`delta-orch demo`: an exactly-once pipeline of real flights, and six attempts to break it.

The flights of New York in 2013 go through bronze, silver and gold Delta tables, run by Dagster. Then the demo kills
runs after their commits, does one again with corrected data, lets one end late, undoes one, and races several. It
compares every table with the CSV files after each. A week goes through the Airflow DAG as well. Readers that share no
code with this package confirm the result.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from delta_orch.demo.places import Places, default_home, enter
from delta_orch.demo.plan import DAYS_IN_YEAR, PROCESSES, Plan, make_plan
from delta_orch.demo.results import Results
from delta_orch.demo.terminal import Stages, quiet_terminal, show_closing_table
from delta_orch.errors import MissingDependencyError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns: 0 where everything is as it must be, 1 otherwise. `summary.json` and `report.html` are written in both
        cases, unless a stage could not be finished.

    Raises:
        InvalidRequestError: The folder holds something else, or the package was installed without the pipelines.
        MissingDependencyError: There is no Java runtime, or the package with the flights is missing.
    """
    parser = argparse.ArgumentParser(prog="delta-orch demo", description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=DAYS_IN_YEAR, help="only the first days of the year (12 to 365)")
    parser.add_argument("--home", type=Path, help="where everything is written; by default build/demo in the checkout")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many backfill at once")
    options = parser.parse_args(arguments)
    plan = make_plan(options.days, options.processes)
    places = Places((options.home or default_home()).resolve())
    ensure_java()
    places.prepare()
    enter(places)
    warnings.simplefilter("ignore")
    results = Results(started_ms=time.time_ns() // 1_000_000)
    log_file = places.logs / "demo.log"
    with quiet_terminal(log_file) as console:
        try:
            return _run(places, plan, console, results)
        except Exception as error:  # noqa: BLE001 (the whole story goes to the log, its end to the user)
            traceback.print_exc()
            console.print(f"  [red]✘ {type(error).__name__}:[/] {_first_lines(error)}", soft_wrap=True)
            console.print(f"  [dim]More in {log_file}[/]", soft_wrap=True)
            return 1


def ensure_java() -> None:
    """Spark needs Java; say so before anything else happens."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=f"{home}/bin" if home else None):
        raise MissingDependencyError(
            "Spark needs a Java runtime, version 17 or newer, and there is none",
            cause=f"JAVA_HOME is {home}" if home else "There is no `java` on the PATH",
            remedy="On Debian or Ubuntu: apt-get install default-jre-headless",
        )


def _run(places: Places, plan: Plan, console: Console, results: Results) -> int:
    # Only here, where output is redirected: these import Dagster, which has much to say.
    from delta_orch.demo.report import render_report
    from delta_orch.demo.story import tell

    console.print(f"[bold]New York's flights of 2013, exactly once[/] [dim]{len(plan.days)} days[/]")
    tell(places, plan, Stages(console, results), results)
    summary, report = places.home / "summary.json", places.home / "report.html"
    summary.write_text(json.dumps(results.summary(), indent=2) + "\n")
    report.write_text(render_report(results), encoding="utf-8")
    show_closing_table(console, results, report, summary)
    return 1 if results.failures() else 0


def _first_lines(error: Exception) -> str:
    from rich.markup import escape

    return escape("\n".join(str(error).splitlines()[:3]))
