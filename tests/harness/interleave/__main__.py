"""`python -m tests.harness.interleave`: exit code 0 where every schedule ends like a serial order."""

from __future__ import annotations

import argparse
import random
import sys
import time
from itertools import combinations_with_replacement
from pathlib import Path

from tests.harness.interleave.explore import LEVELS, Case, Report, Violation, explore, replay
from tests.harness.interleave.verbs import TABLES, VERBS


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.schedule is not None:
        return _replay(Case(tuple(given.verbs.split(",")), given.table or "vectors", given.level or LEVELS[0]), given)
    tables = [given.table] if given.table else list(TABLES)
    levels = [given.level] if given.level else list(LEVELS)
    pairs = [tuple(given.verbs.split(","))] if given.verbs else list(combinations_with_replacement(VERBS, 2))
    report, started = Report(), time.monotonic()
    done = _read_done(given.done)
    cases = _in_rounds([[Case(verbs, table, level) for table in tables for level in levels] for verbs in pairs], given)
    for number, case in enumerate(cases, start=1):
        if given.seconds is not None and time.monotonic() - started > given.seconds:
            break
        told = f"{','.join(case.verbs)} {case.table} {case.level}"
        if told in done:
            continue
        before, schedules = len(report.violations), report.schedules
        explore(case, report, limit=given.limit, crashes=given.crashes, seed=given.seed)
        for violation in report.violations[before:]:
            sys.stdout.write(f"{violation}\n")
        sys.stderr.write(f"{number}/{len(cases)} {told}: {report.schedules - schedules} schedules\n")
        if given.done is not None and len(report.violations) == before:
            with given.done.open("a") as file:
                file.write(f"{told}\n")
    sys.stdout.write(
        f"{report.cases} cases ({report.exhausted} of them exhausted), {report.schedules} schedules "
        f"({report.crashes} with a crash, {report.redundant} given up as repetitions), {report.conflicts} with a "
        f"conflict, {len(report.violations)} violations, {time.monotonic() - started:.0f} s, seed {given.seed}\n"
    )
    return bool(report.violations)


def _in_rounds(cases_of_pairs: list[list[Case]], given: argparse.Namespace) -> list[Case]:
    """One case of each pair, then a second one of each: a run that ends early has seen something of every pair."""
    rng = random.Random(given.seed)
    for cases in cases_of_pairs:
        rng.shuffle(cases)
    rng.shuffle(cases_of_pairs)
    return [case for cases in zip(*cases_of_pairs, strict=True) for case in cases]


def _read_done(path: Path | None) -> set[str]:
    return set() if path is None or not path.exists() else set(path.read_text().splitlines())


def _replay(case: Case, given: argparse.Namespace) -> int:
    try:
        sys.stdout.write(f"{replay(case, given.schedule)}\n")
    except Violation as e:
        sys.stdout.write(f"{e}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.harness.interleave")
    parser.add_argument("--verbs", help="names joined by commas, two or more; by default every pair")
    parser.add_argument("--table", choices=TABLES)
    parser.add_argument("--level", choices=LEVELS)
    parser.add_argument("--limit", type=int, default=60, help="schedules of a case; beyond them they are sampled")
    parser.add_argument("--crashes", type=int, default=6, help="schedules of a case in which somebody dies")
    parser.add_argument("--seconds", type=float, help="begin no case after that time")
    parser.add_argument("--done", type=Path, help="a file of cases to leave out; those that are tried are added")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedule", help="run this one alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
