"""`python -m tests.harness.torture DIRECTORY`: exit code 0 where nothing is lost, doubled or halved."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.harness.emulators import azure_emulator, s3_emulator
from tests.harness.fault_proxy import FaultProxy
from tests.harness.torture.run import TortureFailure, run_torture
from tests.harness.unity_emulator import unity_emulator


def main(arguments: list[str] | None = None) -> int:
    """Run, and say what went on."""
    given = _parser().parse_args(arguments)
    directory = given.directory / time.strftime("%Y%m%d-%H%M%S")
    with ExitStack() as stack:
        uri = str(directory / "table")
        options: Mapping[str, str] | None = None
        chance = random.Random(given.seed)
        if given.store == "catalog":
            tables = directory / "tables"
            tables.mkdir(parents=True)
            unity = stack.enter_context(unity_emulator(tables))
            unity.allowed_maintenance = ["DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"]
            uri, options = "uc://main.default.torture", unity.options
            if given.flaky:
                proxy = stack.enter_context(FaultProxy(unity.endpoint, flaky=given.flaky, chance=chance))
                options = {**options, "unity_catalog_uri": proxy.endpoint}
            stack.callback(unity.ensure_lawful)
        elif given.store != "local":
            emulator = stack.enter_context(s3_emulator() if given.store == "s3" else azure_emulator())
            if given.flaky:
                proxy = stack.enter_context(FaultProxy(emulator.endpoint, flaky=given.flaky, chance=chance))
                emulator = emulator.behind(proxy.endpoint)
            uri, options = emulator.table_uri("torture"), emulator.storage_options
        try:
            report = run_torture(
                uri,
                directory / "notes",
                seconds=given.seconds,
                processes=given.processes,
                seed=given.seed,
                kill_seconds=given.kill_seconds,
                storage_options=options,
            )
        except TortureFailure as e:
            sys.stdout.write(f"FAILED with --seed {given.seed}; everything is left in {directory}\n{e}\n")
            return 1
    operations = ", ".join(f"{name} {count}" for name, count in report.operations.most_common())
    sys.stdout.write(
        f"{report.seconds:.0f} s on {given.store} with {given.processes} processes, {report.kills} of them killed\n"
        f"{report.versions} versions ({operations}); the log begins at {report.earliest_version}\n"
        f"{report.acknowledged} operations acknowledged, each there once; {report.failed} given up after conflicts, "
        f"none there; {report.unacknowledged} nobody was told about\n{report.rows} rows, those of a serial replay\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.harness.torture", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the table and the notes of the workers go")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default 600)")
    parser.add_argument("--processes", type=int, default=8, help="how many (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="decides what is done, not in which order (default 0)")
    parser.add_argument("--kill-seconds", type=float, default=1.5, help="mean time between two kills (default 1.5)")
    parser.add_argument(
        "--store", choices=("local", "s3", "azure", "catalog"), default="local", help="all but local: an emulator here"
    )
    parser.add_argument("--flaky", type=int, default=0, metavar="N", help="one of N requests meets a passing fault")
    return parser


if __name__ == "__main__":
    sys.exit(main())
