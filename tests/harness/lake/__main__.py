"""`python -m tests.harness.lake --cases 300 --engine both`: random statements over several tables beside a model."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.harness.lake.model import Wrong
from tests.harness.lake.run import STEPS, check_lake


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--engine", choices=["local", "spark", "both"], default="local")
    parser.add_argument("--referees", action="store_true", help="deltalake and DuckDB read each table at its end, too")
    parser.add_argument("--most-wrong", type=int, default=10)
    asked = parser.parse_args()
    engines: dict[str, Any] = {"local": "local"} if asked.engine != "spark" else {}
    if asked.engine != "local":
        from delta_orch.engines.spark.engine import SparkEngine
        from tests.harness.sequences.__main__ import spark_session

        engines["spark"] = SparkEngine(spark_session())
    from tests.harness.lake.referees import running_referees

    wrong, started, told = 0, time.monotonic(), Counter[str]()
    with running_referees(asked.referees) as referees:
        for seed in range(asked.first_seed, asked.first_seed + asked.cases):
            outcomes: dict[str, list[str]] = {}
            for name, engine in engines.items():
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        found = check_lake(seed, Path(folder), engine, referees, asked.steps)
                        outcomes[name] = ["refused" if text == "refused" else "done" for text in found]
                        told.update("done" if text[:1].isdigit() else text for text in found)
                    except Wrong as error:
                        wrong += 1
                        sys.stdout.write(f"--- seed {seed} on {name}: {error}\n")
            if len({*map(tuple, outcomes.values())}) > 1:
                wrong += 1
                sys.stdout.write(f"--- seed {seed}: the engines differ in what they refuse: {outcomes}\n")
            sys.stdout.write(f"... seed {seed}, {wrong} wrong, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
            if wrong >= asked.most_wrong:
                break
    sys.stdout.write(f"{wrong} wrong up to seed {seed}, {time.monotonic() - started:.0f} s, {told.most_common(12)}\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
