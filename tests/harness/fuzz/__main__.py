"""`python -m tests.harness.fuzz`: exit code 0 where no case fails."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.harness.fuzz.cases import KINDS, TABLE
from tests.harness.fuzz.categories import Category
from tests.harness.fuzz.runner import Finding, FuzzOptions, FuzzResult, run_cases


def main(arguments: list[str] | None = None) -> int:
    """Run, and say what was found."""
    given = _parser().parse_args(arguments)
    for directory in given.tables:
        if not directory.is_dir():
            _say(f"No tables at {directory}: going on without them")
    options = FuzzOptions(
        given.seed,
        [d for d in given.tables if d.is_dir()],
        TABLE if given.spark else given.kind,
        max(given.case_seconds, 60) if given.spark else given.case_seconds,
        save_to=given.save,
        with_spark=given.spark,
    )
    numbers = [given.only] if given.only is not None else range(given.start, given.start + given.cases)
    start = time.monotonic()
    result = run_cases(numbers, options, lambda finding: _say(_replay(finding, given)))
    _say(_summary(result, time.monotonic() - start))
    return 1 if result.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.harness.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="decides all of them (default 0)")
    parser.add_argument("--start", type=int, default=0, help="number of the first one")
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--kind", choices=KINDS, help="only cases of one kind (then their numbers mean other cases)")
    parser.add_argument("--tables", type=Path, action="append", default=[], help="a directory of more healthy tables")
    parser.add_argument("--case-seconds", type=float, default=5.0, help="the longest a case may take (default 5)")
    parser.add_argument("--spark", action="store_true", help="tables only, and read on Spark, too")
    parser.add_argument("--save", type=Path, help="a directory for the inputs of cases that fail")
    return parser


def _replay(finding: Finding, given: argparse.Namespace) -> str:
    again = f"--seed {given.seed} --only {finding.number}"
    again += f" --kind {given.kind}" if given.kind else ""
    again += " --spark" if given.spark else ""
    again += "".join(f" --tables {directory}" for directory in given.tables)
    return f"\n=== Case {finding.number}; again: python -m tests.harness.fuzz {again}\n{finding.problem}"


def _summary(result: FuzzResult, seconds: float) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.kinds.most_common())
    categories = "\n".join(f"  {category:<38}{result.categories[category]:>8}" for category in Category)
    outcomes = ", ".join(f"{name} {count}" for name, count in result.outcomes.most_common())
    slowest, number = result.slowest
    return (
        f"\n{result.cases} cases in {seconds:.0f} s, {len(result.findings)} failed\nkinds: {kinds}\n"
        f"cases by sort of damage:\n{categories}\n"
        f"outcomes: {outcomes}\nslowest: case {number}, {slowest:.2f} s"
    )


def _say(text: str) -> None:
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
