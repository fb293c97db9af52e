"""Command line of the random merges."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from delta_orch.errors import DeltaError
from tests.harness.merges.run import check_case


def _spark() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def main() -> int:
    """Run the cases. Returns how many were wrong, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true")
    asked = parser.parse_args()
    session = _spark() if asked.spark else None
    wrong = 0
    for seed in range(asked.first_seed, asked.first_seed + asked.cases):
        with tempfile.TemporaryDirectory() as directory:
            try:
                if session is None:
                    check_case(seed, Path(directory) / "t")
                else:
                    check_case(seed, Path(directory) / "t", session.createDataFrame)
            except (AssertionError, DeltaError) as error:
                wrong += 1
                sys.stdout.write(f"--- seed {seed}: {type(error).__name__}: {error}\n")
                if wrong >= 5:
                    break
    sys.stdout.write(f"{asked.cases} cases, {wrong} wrong\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
