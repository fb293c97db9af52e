"""`python -m tests.harness.statements --cases 300 --spark`: random statements beside Delta on Spark.

It needs what `scripts/setup_reference.sh` installs. The exit code is 0 where nothing differs. What only we refuse is
counted by its error; what only we accept is listed, for a reader to judge."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.harness.sequences.__main__ import chosen_engines
from tests.harness.sequences.run import Differs
from tests.harness.statements.run import Found, check_case
from tests.interop.reference_client import start_reference


def main() -> int:
    """Run the cases. Returns how many differed, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true", help="also on our Spark engine")
    parser.add_argument("--refused", action="store_true", help="list what only we refuse")
    asked = parser.parse_args()
    engines = chosen_engines(with_spark=asked.spark)
    total, reasons, wrong = Found(), Counter[str](), 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, start_reference(Path(scratch)) as reference:
        for seed in range(asked.first_seed, asked.first_seed + asked.cases):
            with tempfile.TemporaryDirectory() as directory:
                try:
                    found = check_case(seed, Path(directory), reference, engines)
                except Differs as error:
                    wrong += 1
                    sys.stdout.write(f"--- seed {seed}: {error}\n")
                    continue
            total.ran, total.both = total.ran + found.ran, total.both + found.both
            total.accepted += found.accepted
            sys.stdout.writelines(f"accepted, seed {seed}: {text}\n" for text in found.accepted)
            for text in found.refused:
                reasons[re.sub(r"['\"`(].*", "", text.rpartition("\n    ")[2])[:110]] += 1
                sys.stdout.write(f"refused, seed {seed}: {text}\n" if asked.refused else "")
            sys.stdout.write(f"... seed {seed}, {wrong} wrong, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.writelines(f"{count:6} {reason}\n" for reason, count in reasons.most_common())
    sys.stdout.write(
        f"{asked.cases} cases, {total.ran} statements, {wrong} cases differ, {total.both} statements refused "
    )
    sys.stdout.write(f"by all, {reasons.total()} by us alone, {len(total.accepted)} by the reference alone\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
