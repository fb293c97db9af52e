"""Backfills by the real daemon, against what its runs say: `python -m tests.dagster.daemon_scenarios`.

Backfills overlap, one run a partition and one run for all, of days, of keys, and of both; steps are killed on either
side of their commits, or the worker of their run is, while they go on and write beside the retry; the daemon retries
them; backfills are canceled; the command line runs partitions beside the daemon; a sensor fills another table, which a
third one follows on new data. Some assets are graphs of mapped ops, or two of one function. Every row names the root
run that wrote it. In every mode the rows of a partition are there once, those of the attempt at it that began last.

A case takes three to four minutes on two cores, and says every minute how many runs have ended. It fails after
`MOST_SECONDS`.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import dagster as dg
import pyarrow as pa

# Nothing public starts a backfill.
from dagster._core.definitions.selector import (  # noqa: TID251
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill  # noqa: TID251

from delta_orch.dagster import (
    ChangeBatch,
    DeltaAutomation,
    DeltaLakeIOManager,
    DeltaTableResource,
    build_delta_log_sensor,
    delta_asset,
)
from delta_orch.delta_table import DeltaTable

LAKE, COMMAND = "DELTA_SCENARIO_LAKE", "DELTA_SCENARIO_COMMAND"
DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-05")
REGIONS = dg.StaticPartitionsDefinition(["north", "south/west", "ü %", "null"])
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})
SINGLE = dg.BackfillPolicy.single_run()
MERGED = {"write": "merge", "merge_keys": ["key", "id"]}
ASSETS: Mapping[str, tuple[Any, Mapping[str, Any], dg.BackfillPolicy | None]] = {
    "days": (DAYS, {}, None),
    "added": (DAYS, {"write": "append"}, None),
    "ranges": (DAYS, {}, SINGLE),
    "added_ranges": (DAYS, {"write": "append"}, SINGLE),
    "merged": (DAYS, MERGED, dg.BackfillPolicy.multi_run(2)),
    "regions": (REGIONS, {}, SINGLE),
    "added_regions": (REGIONS, {"write": "append"}, dg.BackfillPolicy.multi_run(3)),
    "cells": (BOTH, {}, SINGLE),
    "added_cells": (BOTH, {"write": "append"}, None),
    "mapped": (DAYS, {}, SINGLE),
    "added_mapped": (DAYS, {"write": "append"}, None),
    "one": (DAYS, {}, SINGLE),
    "other": (DAYS, {"write": "append"}, SINGLE),
}
MOST_SECONDS = 1200
PARTS = 3
"""Rows of a partition of an asset that is a graph of mapped ops."""
INSTANCE = """
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {max_concurrent_runs: 3, dequeue_interval_seconds: 1}
run_retries: {enabled: true, max_retries: 2}
telemetry: {enabled: false}
"""


class KilledIOManager(DeltaLakeIOManager):
    """Ends the process on one side of a commit, or the run's worker before it, once an output and first partition, as
    the seed says."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        first = context.step_context.partition_key_range.start
        name = f"{os.environ['DELTA_SCENARIO_SEED']}.{context.step_key}.{context.name}.{context.mapping_key}.{first}"
        marker = Path(os.environ[LAKE]) / "faults" / str(crc32(name.encode()))
        side = crc32(name.encode()) % (5 if context.has_asset_key else 15)
        is_first = side < 3 and not marker.exists()
        marker.parent.mkdir(exist_ok=True)
        marker.touch()
        if is_first and side == 0:
            os._exit(9)
        # Nobody would notice that the command line has died.
        if is_first and side == 2 and COMMAND not in os.environ:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(crc32(name.encode()) % 15)
        super().handle_output(context, obj)
        if is_first:
            os._exit(9)


def rows_of(context: Any, part: int = 0) -> pa.Table:
    keys, root = list(map(str, context.partition_keys)), context.run.root_run_id or context.run.run_id
    columns = {"key": keys, "id": [part] * len(keys), "root": [root] * len(keys)}
    if "|" in keys[0]:
        columns |= {"day": [key.split("|")[0] for key in keys], "region": [key.split("|")[1] for key in keys]}
    return pa.table(columns)


def about(name: str) -> dict[str, Any]:
    partitions_def, metadata, policy = ASSETS[name]
    column = {"day": "day", "region": "region"} if partitions_def is BOTH else "key"
    return {
        "partitions_def": partitions_def,
        "metadata": {"partition_expr": column, **metadata},
        "backfill_policy": policy,
    }


def written(name: str) -> dg.AssetsDefinition:
    def write(context: dg.AssetExecutionContext) -> pa.Table:
        return rows_of(context)

    made: dg.AssetsDefinition = dg.asset(name=name, **about(name))(write)
    return made


@dg.op(out=dg.DynamicOut(pa.Table))
def split(context: dg.OpExecutionContext) -> Iterator[Any]:
    for part in range(PARTS):
        yield dg.DynamicOutput(rows_of(context, part), mapping_key=f"p{part}")


@dg.op
def hand_on(rows: pa.Table) -> pa.Table:
    return rows


@dg.op
def join(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts)


def mapped(name: str) -> dg.AssetsDefinition:
    @dg.graph_asset(name=name, **about(name))
    def made() -> Any:
        return join(split().map(hand_on).collect())

    return made


@dg.multi_asset(
    outs={name: dg.AssetOut(is_required=False, metadata=about(name)["metadata"]) for name in ("one", "other")},
    can_subset=True,
    partitions_def=DAYS,
    backfill_policy=SINGLE,
)
def both(context: dg.AssetExecutionContext) -> Iterator[Any]:
    for name in sorted(context.op_execution_context.selected_output_names):
        yield dg.Output(rows_of(context), name)


def definitions(lake: str) -> dg.Definitions:
    days, copy = (DeltaTableResource(table_uri=f"{lake}/{name}") for name in ("days", "copied"))

    @delta_asset(
        incremental_from=days,
        table=copy,
        write="overwrite_changed",
        partition_by=["key"],
    )
    def copied(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    @delta_asset(
        incremental_from=copy,
        table=DeltaTableResource(table_uri=f"{lake}/followed"),
        partition_by=["key"],
        deps=[copied],
        automation_condition=DeltaAutomation.on_new_data(),
    )
    def followed(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    follow = dg.AutomationConditionSensorDefinition(
        "follow", target=[followed], default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=2
    )
    sensor = build_delta_log_sensor(
        name="watch",
        table_uri=days.table_uri,
        target=[copied],
        start="beginning",
        max_active_runs=1,
        minimum_interval_seconds=2,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    assets = [mapped(name) if "mapped" in name else written(name) for name in ASSETS if name not in ("one", "other")]
    return dg.Definitions(
        [*assets, both, copied, followed],
        sensors=[sensor, follow],
        resources={"io_manager": KilledIOManager(root_uri=lake)},
    )


if LAKE in os.environ:
    defs = definitions(os.environ[LAKE])


class Scenario:
    """An instance with a daemon, and what its runs must have written."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.seed, self.lake = random.Random(seed), seed, folder / "lake"
        (folder / "home").mkdir()
        self.lake.mkdir()
        (folder / "home" / "dagster.yaml").write_text(INSTANCE)
        settings = {"DAGSTER_HOME": str(folder / "home"), LAKE: str(self.lake), "DELTA_SCENARIO_SEED": str(seed)}
        self.environment = {**os.environ, **settings, "PYTHONWARNINGS": "ignore"}
        self.log = folder / "daemon.log"
        self.graph = definitions(str(self.lake)).resolve_asset_graph()
        self.canceled: set[str] = set()

    def run(self, backfills: int, commands: int) -> str:
        command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-m", "tests.dagster.daemon_scenarios"]
        with (
            dg.DagsterInstance.from_config(str(self.environment["DAGSTER_HOME"])) as instance,
            self.log.open("w") as log,
        ):
            instance.get_runs(limit=1)
            daemon = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                for number in range(max(backfills, commands)):
                    if number < backfills:
                        self._backfill(instance, f"backfill{number}")
                        time.sleep(self.random.choice([0, 0, 5]))
                    if number < commands:
                        self._command()
                self._wait(instance)
                runs = self._check(instance)
            finally:
                os.killpg(daemon.pid, signal.SIGTERM)
                try:
                    daemon.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    os.killpg(daemon.pid, signal.SIGKILL)
        return f"{backfills} backfills ({len(self.canceled)} canceled), {commands} commands, {runs} runs"

    def _command(self) -> None:
        """The command line runs a partition. Its step may be killed, and nobody retries it then."""
        name = self.random.choice(["days", "added", "ranges", "added_ranges", "regions"])
        key = self.random.choice(ASSETS[name][0].get_partition_keys())
        dagster = str(Path(sys.executable).with_name("dagster"))
        command = [dagster, "asset", "materialize", "-m", "tests.dagster.daemon_scenarios", "--select", name]
        environment = {**self.environment, COMMAND: "yes"}
        subprocess.run(
            [*command, "--partition", key], env=environment, capture_output=True, check=False, timeout=MOST_SECONDS
        )

    def _backfill(self, instance: dg.DagsterInstance, name: str) -> None:
        partitions_def = ASSETS[self.random.choice(sorted(ASSETS))][0]
        keys = partitions_def.get_partition_keys()
        first, last = sorted(self.random.choices(range(len(keys)), k=2))
        span = PartitionsSelector([PartitionRangeSelector(keys[first], keys[min(last, first + 5)])])
        alike = sorted(name for name, about in ASSETS.items() if about[0] is partitions_def)
        chosen = self.random.sample(alike, self.random.randint(1, 2))
        instance.add_backfill(
            PartitionBackfill.from_partitions_by_assets(
                backfill_id=name,
                asset_graph=self.graph,
                backfill_timestamp=time.time(),
                tags={},
                dynamic_partitions_store=instance,
                partitions_by_assets=[
                    PartitionsByAssetSelector(asset_key=dg.AssetKey(one), partitions=span) for one in chosen
                ],
                title=None,
                description=None,
                run_config=None,
            )
        )
        if self.random.random() < 0.25:
            self.canceled.add(name)

    def _wait(self, instance: dg.DagsterInstance) -> None:
        """Until all backfills and runs have ended; those to be canceled are when they have runs."""
        todo = set(self.canceled)
        began = reported = time.monotonic()
        while time.monotonic() < began + MOST_SECONDS:
            time.sleep(1)
            for name in list(todo):
                found = instance.get_backfill(name)
                assert found is not None
                if instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": name})):
                    todo.discard(name)
                    if found.status == BulkActionStatus.REQUESTED:
                        instance.update_backfill(found.with_status(BulkActionStatus.CANCELING))
            backfills = [found.status for found in instance.get_backfills()]
            runs = instance.get_runs()
            active = [run for run in runs if not run.is_finished]
            if time.monotonic() > reported + 60:
                reported = time.monotonic()
                ended = f"{len(runs) - len(active)} of {len(runs)} runs have ended"
                print(f"{self.seed}: {ended}, {backfills}", flush=True)  # noqa: T201
            open_ones = (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING)
            if not active and not any(status in open_ones for status in backfills) and self._is_copied():
                return
        raise AssertionError(f"seed {self.seed}: not done in time: {backfills}, {self.log.read_text()[-3000:]}")

    def _is_copied(self) -> bool:
        return self._rows("followed") == self._rows("copied") == self._rows("days")

    def _check(self, instance: dg.DagsterInstance) -> int:
        runs = instance.get_runs()
        assert runs, self.log.read_text()[-3000:]
        chains: dict[str, dict[str, Any]] = {}
        for run in runs:
            chain = chains.setdefault(run.root_run_id or run.run_id, {"starts": {}, "green": False, "run": run})
            chain["green"] |= run.status == dg.DagsterRunStatus.SUCCESS
            for step in instance.get_run_step_stats(run.run_id):
                began = [attempt.start_time for attempt in step.attempts_list]
                last = max(
                    time for time in (*began, step.start_time, step.partial_attempt_start, 0) if time is not None
                )
                chain["starts"][step.step_key] = max(last, chain["starts"].get(step.step_key, 0))
        for name, (partitions_def, _, _) in ASSETS.items():
            by_key: dict[str, list[str]] = {}
            for key, root in self._rows(name):
                by_key.setdefault(key, []).append(root)
            for key in partitions_def.get_partition_keys():
                found = by_key.pop(key, [])
                about = {root: chain for root, chain in chains.items() if (name, key) in _written_by(chain["run"])}
                green = {root for root, chain in about.items() if chain["green"]}
                told = (self.seed, name, key, found, sorted(green), sorted(about))
                assert set(found) <= set(about), told
                assert all(found.count(root) == (PARTS if "mapped" in name else 1) for root in found), told
                if green:
                    is_one_of_two = name in ("one", "other")
                    step_key = "both" if is_one_of_two else f"{name}.join" if "mapped" in name else name
                    newest = max(about[root]["starts"][step_key] for root in green)
                    assert len(set(found)) == 1, told
                    assert about[found[0]]["starts"][step_key] >= newest, told
            assert not by_key, (self.seed, name, by_key)
        return len(runs)

    def _rows(self, name: str) -> list[tuple[str, str]]:
        table = DeltaTable(self.lake / name)
        rows = table.snapshot().scan(["key", "root"]).to_arrow().to_pylist() if table.exists() else []
        return sorted((row["key"], row["root"]) for row in rows)


def _written_by(run: dg.DagsterRun) -> set[tuple[str, str]]:
    names = [key.to_user_string() for key in run.asset_selection or ()]
    return {(name, key) for name in names if name in ASSETS for key in _keys(ASSETS[name][0], run.tags)}


def _keys(partitions_def: Any, tags: Mapping[str, str]) -> Sequence[str]:
    first = tags.get("dagster/partition") or tags.get("dagster/asset_partition_range_start")
    last = tags.get("dagster/partition") or tags.get("dagster/asset_partition_range_end")
    if first is None or last is None:
        return []
    found: Sequence[str] = partitions_def.get_partition_keys_in_range(dg.PartitionKeyRange(first, last))
    return found


def scenarios(cases: int, seed: int, backfills: int, commands: int) -> Iterator[str]:
    for number in range(seed, seed + cases):
        with tempfile.TemporaryDirectory() as folder:
            yield f"{number}: {Scenario(Path(folder), number).run(backfills, commands)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--backfills", type=int, default=8)
    parser.add_argument("--commands", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked, _ = parser.parse_known_args()
    for told in scenarios(min(asked.cases, 2), asked.seed, asked.backfills, asked.commands):
        print(told, flush=True)  # noqa: T201
    print(f"{min(asked.cases, 2) * asked.backfills} backfills by the daemon: every green run wrote once")  # noqa: T201


if __name__ == "__main__":
    main()
