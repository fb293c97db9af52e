"""Random scenarios on an instance, each step against a plain model: `python -m tests.dagster.scenarios --cases 200`.

The model is the contract: each unit's rows are there once, those of the attempt at it that began last.

A lake of assets and a job of ops: days that are replaced, rows that are appended, items that are merged, the last
day's total, an incremental copy, regions that come and go, days whose mode changes, and two tables of one function.
Steps run days, ranges and wholes; their writes fail before or after the commit, and are retried; runs overtake each
other; a value is None; another client writes to the source; definitions change their columns and modes.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import argparse
import logging
import random
import tempfile
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from delta_orch.dagster import ChangeBatch, DeltaLakeIOManager, DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-07")
KEYS = DAYS.get_partition_keys()
LAST_DAY = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
RETRY = dg.RetryPolicy(max_retries=2)


class Faults:
    """What becomes of the next writes: `before` and `after` fail on either side of the commit."""

    def __init__(self) -> None:
        self.planned: list[str] = []


class FaultyIOManager(dg.IOManager):
    def __init__(self, inner: DeltaLakeIOManager, faults: Faults) -> None:
        self.inner, self.faults = inner, faults

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        fault = self.faults.planned.pop(0) if self.faults.planned else ""
        if fault == "before":
            raise RuntimeError("lost before the commit")
        self.inner.handle_output(context, obj)
        if fault == "after":
            raise RuntimeError("lost after the commit")

    def load_input(self, context: dg.InputContext) -> Any:
        return self.inner.load_input(context)


class Scenario:
    """A lake, and what must be in it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.faults = Faults()
        self.instance = dg.DagsterInstance.ephemeral()
        self.io_manager = FaultyIOManager(DeltaLakeIOManager(root_uri=str(root)), self.faults)
        self.stamp = 0
        self.with_note = False
        self.days: dict[str, int] = {}
        self.appended: list[int] = []
        self.items: dict[int, int] = {}
        self.totals: dict[str, int] = {}
        self.copied: dict[str, int] = {}
        self.regions: dict[str, int] = {}
        self.mixed: dict[str, int] = {}
        self.began_last = 0
        self.mode = "overwrite"
        self.halves: dict[str, int] = {}
        self.overtakes = False
        self.mixed_span = (KEYS[0], KEYS[0])
        self._define()

    def _define(self) -> None:
        scenario = self

        @dg.asset(
            partitions_def=DAYS,
            metadata={"partition_expr": "day", "schema_mode": "merge"},
            backfill_policy=dg.BackfillPolicy.single_run(),
            retry_policy=RETRY,
        )
        def days(context: dg.AssetExecutionContext) -> pa.Table:
            keys = list(context.partition_keys)
            columns = {"day": keys, "stamp": [scenario.stamp] * len(keys)}
            return pa.table({**columns, **({"note": keys} if scenario.with_note else {})})

        @dg.asset(metadata={"write": "append"}, retry_policy=RETRY)
        def appended() -> pa.Table:
            return pa.table({"stamp": [scenario.stamp]})

        @dg.asset(metadata={"write": "merge", "merge_keys": ["id"]}, retry_policy=RETRY)
        def items() -> pa.Table:
            return pa.table({"id": [scenario.stamp % 5, scenario.stamp % 3 + 5], "stamp": [scenario.stamp] * 2})

        @dg.asset(
            partitions_def=DAYS,
            metadata={"partition_expr": "day"},
            ins={"totals": dg.AssetIn(partition_mapping=LAST_DAY)},
            retry_policy=RETRY,
        )
        def totals(context: dg.AssetExecutionContext, totals: pa.Table) -> pa.Table:
            last = totals.column("total").to_pylist()[0] if totals.num_rows else 0
            return pa.table({"day": [context.partition_key], "total": [last + scenario.stamp]})

        @delta_asset(
            incremental_from=DeltaTableResource(table_uri=str(self.root / "days")),
            table=DeltaTableResource(table_uri=str(self.root / "copied")),
            write="overwrite_changed",
            partition_by=["day"],
            schema_mode="merge",
            deps=[days],
            retry_policy=RETRY,
        )
        def copied(batch: ChangeBatch) -> pa.Table:
            return batch.scan().to_arrow()

        @dg.op(retry_policy=RETRY)
        def made() -> pa.Table:
            return pa.table({"stamp": [scenario.stamp]})

        @dg.op
        def seen(rows: pa.Table) -> None:
            assert rows.column("stamp").to_pylist() == [scenario.stamp]

        @dg.job(resource_defs={"io_manager": dg.IOManagerDefinition.hardcoded_io_manager(self.io_manager)})
        def ops() -> None:
            seen(made())

        regions_def = dg.DynamicPartitionsDefinition(name="regions")

        @dg.asset(partitions_def=regions_def, metadata={"partition_expr": "region"}, retry_policy=RETRY)
        def regions(context: dg.AssetExecutionContext) -> pa.Table | None:
            none = scenario.stamp % 4 == 0
            return None if none else pa.table({"region": [context.partition_key], "stamp": [scenario.stamp]})

        @dg.asset
        def census(regions: dict[str, pa.Table]) -> None:
            there = scenario.instance.get_dynamic_partitions("regions")
            found = {key: rows.column("stamp").to_pylist() for key, rows in regions.items()}
            assert found == {key: [scenario.regions[key]] if key in scenario.regions else [] for key in there}, found

        @dg.multi_asset(
            outs={name: dg.AssetOut(is_required=False) for name in ("half_one", "half_two")}, can_subset=True
        )
        def halves(context: dg.AssetExecutionContext) -> Any:
            for name in sorted(context.op_execution_context.selected_output_names):
                yield dg.Output(pa.table({"stamp": [scenario.stamp]}), name)

        defined = (days, appended, items, totals, copied, regions, census)
        self.assets = {asset.key.to_user_string(): asset for asset in defined}
        self.halves_asset, self.ops = halves, ops

    def _mixed(self) -> dg.AssetsDefinition:
        """Days whose mode changes from run to run. An older run of the same days may be overtaken by a newer one."""
        scenario, mode = self, self.mode

        @dg.asset(
            partitions_def=DAYS,
            metadata={"partition_expr": "day", "write": mode},
            backfill_policy=dg.BackfillPolicy.single_run(),
            retry_policy=RETRY,
        )
        def mixed(context: dg.AssetExecutionContext) -> pa.Table:
            stamp = scenario.began_last = int(context.run.tags["stamp"])
            if scenario.overtakes and stamp == scenario.stamp:
                scenario.overtakes = False
                scenario.run_mixed(stamp + 1000)
            return pa.table({"day": list(context.partition_keys), "stamp": [stamp] * len(context.partition_keys)})

        return mixed

    def run_mixed(self, stamp: int) -> None:
        first, last = self.mixed_span
        span = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        result = dg.materialize(
            [self._mixed()],
            instance=self.instance,
            resources={"io_manager": self.io_manager},
            tags={"stamp": str(stamp), **span},
        )
        assert result.success

    def _modes(self) -> None:
        first, last = sorted(self.random.choices(range(len(KEYS)), k=2))
        self.mixed_span, keys = (KEYS[first], KEYS[last]), KEYS[first : last + 1]
        self.mode = self.random.choice(["append", "overwrite", "append"])
        self.overtakes = self.random.random() < 0.5
        self.run_mixed(self.stamp)
        # Of an older run that a newer one has overtaken a retry is the newest attempt.
        self.mixed.update(dict.fromkeys(keys, self.began_last))

    def _region(self) -> None:
        key = self.random.choice(["north", "south", "east"])
        there = self.instance.has_dynamic_partition("regions", key)
        if there and self.random.random() < 0.3:
            self.instance.delete_dynamic_partition("regions", key)
        else:
            self.instance.add_dynamic_partitions("regions", [key])
            self._run("regions", partition_key=key)
            if self.stamp % 4:
                self.regions[key] = self.stamp
        if self.table("regions").exists():
            self.faults.planned = []
            self._run("census", regions=True)

    def _half(self) -> None:
        names = self.random.choice([["half_one"], ["half_two"], ["half_one", "half_two"]])
        self.faults.planned = []
        result = dg.materialize(
            [self.halves_asset],
            selection=names,
            instance=self.instance,
            resources={"io_manager": self.io_manager},
        )
        assert result.success
        self.halves.update(dict.fromkeys(names, self.stamp))

    def step(self) -> str:
        """One step of the scenario. Returns what it did."""
        self.stamp += 1
        self.faults.planned = [self.random.choice(["", "", "before", "after"]) for _ in range(2)]
        action = self.random.choice(
            ["day", "day", "range", "append", "merge", "total", "copy", "ops", "client", "note", "half"]
            if self.random.random() < 0.7
            else ["modes", "region"]
        )
        getattr(self, f"_{action}")()
        return action

    def _run(self, name: str, *, regions: bool = False, **arguments: Any) -> None:
        result = dg.materialize(
            [self.assets[name], *(self.assets["regions"].to_source_assets() if regions else [])],
            selection=[self.assets[name]],
            instance=self.instance,
            resources={"io_manager": self.io_manager},
            **arguments,
        )
        assert result.success

    def _day(self) -> None:
        key = self.random.choice(KEYS)
        self._run("days", partition_key=key)
        self.days[key] = self.stamp

    def _range(self) -> None:
        first, last = sorted(self.random.sample(range(len(KEYS)), 2))
        tags = {
            "dagster/asset_partition_range_start": KEYS[first],
            "dagster/asset_partition_range_end": KEYS[last],
        }
        self._run("days", tags=tags)
        self.days.update(dict.fromkeys(KEYS[first : last + 1], self.stamp))

    def _append(self) -> None:
        self._run("appended")
        self.appended.append(self.stamp)

    def _merge(self) -> None:
        self._run("items")
        self.items.update({self.stamp % 5: self.stamp, self.stamp % 3 + 5: self.stamp})

    def _total(self) -> None:
        index = self.random.randrange(len(KEYS))
        self._run("totals", partition_key=KEYS[index])
        before = self.totals.get(KEYS[index - 1], 0) if index else 0
        self.totals[KEYS[index]] = before + self.stamp

    def _copy(self) -> None:
        if self.days:
            self._run("copied")
            self.copied = dict(self.days)

    def _ops(self) -> None:
        assert self.ops.execute_in_process(instance=self.instance).success

    def _client(self) -> None:
        """Another client deletes a day."""
        if self.days:
            key = self.random.choice(sorted(self.days))
            table = self.table("days")
            table.overwrite(table.snapshot().scan().to_arrow().slice(0, 0), replace_where=f"day = '{key}'")
            del self.days[key]

    def _note(self) -> None:
        """The definition gets another column, or loses it."""
        self.with_note = not self.with_note
        self._day()

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.root / name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = self.table(name)
        return table.snapshot().scan().to_arrow().to_pylist() if table.exists() else []

    def check(self) -> None:
        """Compare every table with the model: no row lost, doubled or stale."""
        assert sorted((row["day"], row["stamp"]) for row in self.rows("days")) == sorted(self.days.items())
        assert sorted(row["stamp"] for row in self.rows("appended")) == self.appended
        assert sorted((row["id"], row["stamp"]) for row in self.rows("items")) == sorted(self.items.items())
        assert sorted((row["day"], row["total"]) for row in self.rows("totals")) == sorted(self.totals.items())
        assert sorted((row["day"], row["stamp"]) for row in self.rows("copied")) == sorted(self.copied.items())
        assert sorted((row["region"], row["stamp"]) for row in self.rows("regions")) == sorted(self.regions.items())
        assert sorted((row["day"], row["stamp"]) for row in self.rows("mixed")) == sorted(self.mixed.items())
        for name in ("half_one", "half_two"):
            assert [row["stamp"] for row in self.rows(name)] == [self.halves[name] for _ in range(name in self.halves)]


def run_scenario(root: Path, seed: int, steps: int) -> None:
    """Run one scenario. An assertion names the seed and what was done."""
    scenario, done = Scenario(root, seed), []
    for _ in range(steps):
        done.append(scenario.step())
        try:
            scenario.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} after {done}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for seed in range(asked.seed, asked.seed + asked.cases):
        with tempfile.TemporaryDirectory() as folder:
            run_scenario(Path(folder), seed, asked.steps)
    print(f"{asked.cases} scenarios of {asked.steps} steps: every row as the model has it")  # noqa: T201


if __name__ == "__main__":
    main()
