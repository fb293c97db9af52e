"""`python -m tests.harness.sequences --cases 300 --spark`: random sequences beside Delta on Spark.

It needs what `scripts/setup_reference.sh` installs. The exit code is 0 where nothing differs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from delta_orch.engines.local import write
from tests.harness.sequences.run import Differs, check_sequence
from tests.interop.reference_client import start_reference


def spark_session() -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.showConsoleProgress": "false",
        # Tables of a few rows: to compile a query costs a hundred times what it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def chosen_engines(*, with_spark: bool) -> dict[str, object]:
    """Our engines, by the names that reports have for them."""
    # Threads share the files of these small tables, as they do those of large ones.
    write._SHARED_FILE_BYTES = 0
    write.thread_count = lambda: 1  # type: ignore[attr-defined]
    engines: dict[str, object] = {"local": "local"}
    if with_spark:
        from delta_orch.engines.spark.engine import SparkEngine

        engines["spark"] = SparkEngine(spark_session())
    return engines


def main() -> int:
    """Run the sequences. Returns how many differed, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true", help="also on our Spark engine")
    parser.add_argument("--most-wrong", type=int, default=10)
    asked = parser.parse_args()
    engines = chosen_engines(with_spark=asked.spark)
    wrong = refused = unsupported = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, start_reference(Path(scratch)) as reference:
        for seed in range(asked.first_seed, asked.first_seed + asked.cases):
            with tempfile.TemporaryDirectory() as directory:
                try:
                    done = check_sequence(seed, Path(directory), reference, engines)
                    refused += done.refused
                    unsupported += len(done.unsupported)
                    sys.stdout.writelines(f"unsupported: {text}\n" for text in done.unsupported)
                except Differs as error:
                    wrong += 1
                    sys.stdout.write(f"--- seed {seed}: {error}\n")
                    if wrong >= asked.most_wrong:
                        break
            sys.stdout.write(f"... seed {seed}, {wrong} wrong, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{seed - asked.first_seed + 1} sequences, {wrong} differ, {refused} statements refused by all, ")
    sys.stdout.write(f"{unsupported} not evaluated by {next(iter(engines))}\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
