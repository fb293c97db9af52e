"""`python -m tests.harness.fault_matrix`: every call of every verb with every fault.

The exit code is 0 where all holds."""

from __future__ import annotations

import argparse
import sys
import time

from tests.harness.fault_matrix.run import run_matrix
from tests.harness.fault_matrix.verbs import VERBS


def main(arguments: list[str] | None = None) -> int:
    """Run, and print the cases by verb and fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.fault_matrix", description=__doc__)
    parser.add_argument("--verb", action="append", choices=[verb.name for verb in VERBS], help="only this one")
    parser.add_argument("--quick", action="store_true", help="kill at changes only, as `make test` does")
    given = parser.parse_args(arguments)
    started, used = time.monotonic(), time.process_time()
    chosen = [verb for verb in VERBS if given.verb is None or verb.name in given.verb]
    report = run_matrix(chosen, kill_at_reads=not given.quick)
    sys.stdout.write(report.table() + "\n")
    for case in report.missed:
        sys.stdout.write(f"did not come about: {case}\n")
    for failure in report.failures:
        sys.stdout.write(f"FAILED {failure}\n")
    sys.stdout.write(
        f"{report.count()} cases, {len(report.failures)} failed, {time.monotonic() - started:.0f} s, "
        f"{time.process_time() - used:.0f} s of CPU without the killed\n"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
