"""`python -m tests.harness.conformance`: exit code 0 where no case fails and none is left out."""

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
from tests.harness.conformance.cases import GOLDEN
from tests.harness.conformance.made_tables import made_cases
from tests.harness.conformance.page import render_features, render_kinds, render_labels, write_page
from tests.harness.conformance.runner import CaseResult, Outcome, run_cases
from tests.harness.golden import ALL_KINDS, load_cases

ENGINES = ("local", "spark")


def main(arguments: list[str] | None = None) -> int:
    """Run, print the tables, and write the page where one is given."""
    given = _parser().parse_args(arguments)
    tables = given.tables or GOLDEN
    has_tables = (tables / "index.json").is_file()
    if not has_tables:
        _say(f"There are no golden tables at {tables}")
        if given.tables is not None:
            return 1
    golden = load_cases(tables, ALL_KINDS)
    cases = golden if given.tables else [*made_cases(ALL_KINDS), *golden]
    results = []
    with ExitStack() as stack:
        engines = {name: stack.enter_context(_engine(name)) for name in given.engine or ENGINES}
        for result in run_cases(cases, engines):
            results.append(result)
            if result.outcome is Outcome.FAILED:
                _say(f"FAILED {result.case.name} on {result.engine}: {result.why}\n")
    problems = _missing(tables, results, list(engines)) if has_tables else []
    _say("\n\n".join([render_labels(results), render_features(results), render_kinds(results)]))
    _say(_closing(results, problems))
    failed = any(r.outcome is Outcome.FAILED for r in results) or bool(problems)
    if given.page is not None and has_tables and not failed:
        write_page(given.page, [result for result in results if result.case in golden])
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
    parser.add_argument("--tables", type=Path, help="a directory of golden tables: read these and no others")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one (may be repeated)")
    parser.add_argument(
        "--page", type=Path, help="a Markdown page whose generated part, about golden tables, is written anew"
    )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
