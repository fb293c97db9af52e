"""`python -m tests.harness.conformance --tables DIR`: exit code 0 where no case fails and none is left out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from delta_orch.engines.base import Engine
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import spark_engine
from tests.harness.conformance.page import render_features, render_kinds, render_labels, write_page
from tests.harness.conformance.runner import CaseResult, Outcome, run_cases
from tests.harness.golden import ALL_KINDS, load_cases

ENGINES = ("local", "spark")


def main(arguments: list[str] | None = None) -> int:
    """Run, print the tables, and write the page where one is given."""
    given = _parser().parse_args(arguments)
    if not (given.tables / "index.json").is_file():
        _say(f"No golden tables at {given.tables}: nothing was run")
        return 1
    cases = load_cases(given.tables, ALL_KINDS)
    results = []
    with ExitStack() as stack:
        engines = {name: stack.enter_context(_engine(name)) for name in given.engine or ENGINES}
        for result in run_cases(cases, engines):
            results.append(result)
            if result.outcome is Outcome.FAILED:
                _say(f"FAILED {result.case.name} on {result.engine}: {result.why}\n")
    problems = _missing(given.tables, results, list(engines))
    _say("\n\n".join([render_labels(results), render_features(results), render_kinds(results)]))
    _say(_closing(results, problems))
    failed = any(r.outcome is Outcome.FAILED for r in results) or bool(problems)
    if given.page is not None and not failed:
        write_page(given.page, results)
        _say(f"Written: {given.page}")
    return 1 if failed else 0


def _missing(tables: Path, results: list[CaseResult], engines: list[str]) -> list[str]:
    """Cases of the index without a result, and skips without a reason: neither may pass for a success."""
    ran = {(r.case.name, r.engine) for r in results}
    names = [entry["name"] for entry in json.loads((tables / "index.json").read_bytes())]
    absent = [f"{name} was not run on {e}" for e in engines for name in names if (name, e) not in ran]
    unexplained = [
        f"{r.case.name} was skipped on {r.engine} without a reason"
        for r in results
        if r.outcome is Outcome.SKIPPED and not r.why
    ]
    return absent + unexplained


def _closing(results: list[CaseResult], problems: list[str]) -> str:
    count = {outcome: sum(r.outcome is outcome for r in results) for outcome in Outcome}
    seconds = sum(r.seconds for r in results)
    reasons = sorted({f"{r.engine}: {r.why}" for r in results if r.outcome is Outcome.SKIPPED})
    lines = [f"\n{', '.join(f'{number} {outcome}' for outcome, number in count.items())} in {seconds:.0f} s"]
    return "\n".join([*lines, *(f"skipped on {reason}" for reason in reasons), *problems])


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    if name == "local":
        yield LocalEngine()
        return
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("delta_orch conformance")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield spark_engine(session)
    finally:
        session.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.harness.conformance", description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="the directory of the golden tables")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--page", type=Path, help="a Markdown page whose generated part is written anew on success")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
