"""Random scenarios on an instance, each step against a plain model: `python -m tests.dagster.scenarios --cases 200`.

A lake of five assets and a job of ops: days that are replaced, rows that are appended, items that are merged, the last
day's total, and an incremental copy. Steps run days, ranges and wholes; their writes fail before or after the commit,
and are retried; another client writes to the source; definitions change their columns.
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

        @dg.asset(metadata={"mode": "append"}, retry_policy=RETRY)
        def appended() -> pa.Table:
            return pa.table({"stamp": [scenario.stamp]})

        @dg.asset(metadata={"mode": "merge", "merge_keys": ["id"]}, retry_policy=RETRY)
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
            write="touched_partitions",
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

        self.assets = {asset.key.to_user_string(): asset for asset in (days, appended, items, totals, copied)}
        self.ops = ops

    def step(self) -> str:
        """One step of the scenario. Returns what it did."""
        self.stamp += 1
        self.faults.planned = [self.random.choice(["", "", "before", "after"]) for _ in range(2)]
        action = self.random.choice(
            ["day", "day", "range", "append", "merge", "total", "copy", "ops", "client", "note"]
        )
        getattr(self, f"_{action}")()
        return action

    def _run(self, name: str, **arguments: Any) -> None:
        result = dg.materialize(
            [self.assets[name]], instance=self.instance, resources={"io_manager": self.io_manager}, **arguments
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
