"""Random definitions on an instance, each run against a plain model: `python -m tests.dagster.definition_scenarios`.

An asset has random partitions (time windows of any length and zone, static, dynamic, two dimensions), a column of a
random type that holds them, a random kind of value and a random mode; another asset reads it through a random mapping
of partitions. A definition may be refused by name, before anything is written. A green run has the rows of the model.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import argparse
import logging
import random
import tempfile
import traceback
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa

from delta_orch.dagster import DeltaLakeIOManager
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError

_TICK = timedelta(microseconds=1)
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Casablanca"]
HOSTILE = [
    "a",
    "A",
    "a b",
    "a=b",
    "a%2Fb",
    "ü",
    "null",
    "__HIVE_DEFAULT_PARTITION__",
    "1",
    "01",
    "2013-01-01",
    "'q'",
    "é",
]
NUMBERS = ["0", "1", "-1", "7", "10", "2147483647"]
DATES = ["2013-01-01", "2013-02-28", "1969-12-31", "2024-02-29"]
WINDOWS = ["hourly", "daily", "weekly", "monthly", "half_day", "quarter_hour"]
VALUES: dict[str, tuple[Any, Any]] = {
    "arrow": (pa.Table, lambda rows: rows),
    "reader": (pa.RecordBatchReader, lambda rows: rows.to_reader(max_chunksize=2)),
    "pandas": (pd.DataFrame, lambda rows: rows.to_pandas()),
    "polars": (pl.DataFrame, pl.from_arrow),
    "lazy": (pl.LazyFrame, lambda rows: pl.from_arrow(rows).lazy()),
}


def as_arrow(value: Any) -> pa.Table:
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if isinstance(value, pd.DataFrame):
        return pa.Table.from_pandas(value, preserve_index=False)
    if isinstance(value, pl.LazyFrame):
        value = value.collect()
    return value.to_arrow() if isinstance(value, pl.DataFrame) else value


class Dimension:
    """Partitions of one dimension, and the column that holds them."""

    def __init__(self, rng: random.Random, column: str, *, dynamic: bool) -> None:
        self.random, self.column = rng, column
        self.kind = rng.choice(["time", "time", "time", "static", *(["dynamic"] if dynamic else [])])
        self.zone = rng.choice(ZONES)
        self.format: str | None = None
        if self.kind == "time":
            self.window = rng.choice(WINDOWS)
            if self.window == "hourly" and self.zone == "Australia/Lord_Howe":
                # Clocks change by half an hour there, and Dagster does not find its own last key.
                self.zone = "Asia/Kolkata"
            self.partitions_def, self.keys = self._time()
            self.type = rng.choice(["timestamp", "timestamp_ntz", "date", "string", "int", "long"])
            if self.type in ("string", "int", "long") and rng.random() < 0.5:
                if self.window == "quarter_hour" and self.type == "int":
                    self.type = "long"
                digits = {"hourly": "%Y%m%d%H", "quarter_hour": "%Y%m%d%H%M", "half_day": "%Y%m%d%H", "monthly": "%Y%m"}
                self.format = digits.get(self.window, "%Y%m%d")
                if self.type == "string" and rng.random() < 0.5:
                    self.format += "%z"
        else:
            self.type = rng.choice(["string", "string", "string", "int", "long", "date"])
            listed = {"int": NUMBERS, "long": NUMBERS, "date": DATES}.get(self.type, HOSTILE)
            self.keys = rng.sample(listed, min(4, len(listed)))
            if self.kind == "static":
                self.partitions_def = dg.StaticPartitionsDefinition(self.keys)
            else:
                self.partitions_def = dg.DynamicPartitionsDefinition(name=f"dynamic_{column}")

    def _time(self) -> tuple[Any, list[str]]:
        # Around a change of clocks, or a leap day, or where nothing happens.
        start = self.random.choice(["2013-03-09", "2013-11-02", "2012-02-28", "2013-01-01", "2013-10-05", "2013-04-06"])
        first = datetime.fromisoformat(start)
        common: dict[str, Any] = {"timezone": self.zone}
        if self.window == "hourly":
            text = "%Y-%m-%d-%H:%M" if self.random.random() < 0.5 else "%Y-%m-%d-%H:%M%z"
            made: Any = dg.HourlyPartitionsDefinition(
                first.strftime("%Y-%m-%d-%H:%M") + ("" if text[-1] == "M" else self._offset(first)),
                end_date=(first + timedelta(days=2)).strftime("%Y-%m-%d-%H:%M")
                + ("" if text[-1] == "M" else self._offset(first + timedelta(days=2))),
                fmt=text,
                **common,
            )
        elif self.window == "daily":
            made = dg.DailyPartitionsDefinition(start, end_date=f"{first + timedelta(days=6):%Y-%m-%d}", **common)
        elif self.window == "weekly":
            made = dg.WeeklyPartitionsDefinition(start, end_date=f"{first + timedelta(days=50):%Y-%m-%d}", **common)
        elif self.window == "monthly":
            made = dg.MonthlyPartitionsDefinition(start, end_date=f"{first + timedelta(days=300):%Y-%m-%d}", **common)
        else:
            cron = "0 0,12 * * *" if self.window == "half_day" else "*/15 * * * *"
            made = dg.TimeWindowPartitionsDefinition(
                start=f"{start}-00:00",
                end=f"{first + timedelta(days=2):%Y-%m-%d}-00:00",
                cron_schedule=cron,
                fmt="%Y-%m-%d-%H:%M",
                **common,
            )
        return made, made.get_partition_keys()

    def _offset(self, moment: datetime) -> str:
        return moment.replace(tzinfo=ZoneInfo(self.zone)).strftime("%z")

    def array(self, keys: list[str], *, at_start: bool) -> pa.Array:
        return pa.array([self.value(key, at_start=at_start) for key in keys], self.arrow_type())

    def arrow_type(self) -> pa.DataType:
        types = {
            "timestamp": pa.timestamp("us", "UTC"),
            "timestamp_ntz": pa.timestamp("us"),
            "date": pa.date32(),
            "string": pa.string(),
            "int": pa.int32(),
            "long": pa.int64(),
        }
        return types[self.type]

    def value(self, key: str, *, at_start: bool) -> Any:
        if self.kind != "time":
            if self.type == "date":
                return datetime.fromisoformat(key).date()
            return int(key) if self.type in ("int", "long") else key
        window = self.partitions_def.time_window_for_partition_key(key)
        first, last = window.start.astimezone(UTC), window.end.astimezone(UTC)
        inside = first if at_start else self.random.choice([first, first + (last - first) / 2, last - _TICK])
        inside = inside.astimezone(ZoneInfo(self.zone))
        if self.type == "timestamp":
            return inside
        if self.type == "timestamp_ntz":
            return inside.replace(tzinfo=None)
        if self.type == "date":
            return inside.date()
        start = window.start.astimezone(ZoneInfo(self.zone))
        if self.format:
            return start.strftime(self.format) if self.type == "string" else int(start.strftime(self.format))
        return key if self.type == "string" else int(start.strftime("%Y%m%d"))

    def __str__(self) -> str:
        window = f"{self.window} {self.zone} " if self.kind == "time" else f"{self.keys} "
        return f"{self.kind} {window}as {self.type} {self.format or ''}".strip()


class Definition:
    """One random pair of assets, and what must be in their tables."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = self.random = random.Random(seed)
        self.root, self.stamp = root, 0
        self.instance = dg.DagsterInstance.ephemeral()
        self.dimensions = [Dimension(rng, "p", dynamic=True)]
        if rng.random() < 0.3:
            self.dimensions = [Dimension(rng, "p", dynamic=False), Dimension(rng, "q", dynamic=False)]
        if len(self.dimensions) == 1:
            self.partitions_def: Any = self.dimensions[0].partitions_def
        else:
            self.partitions_def = dg.MultiPartitionsDefinition({d.column: d.partitions_def for d in self.dimensions})
        for dimension in self.dimensions:
            if dimension.kind == "dynamic":
                self.instance.add_dynamic_partitions(f"dynamic_{dimension.column}", dimension.keys)
        self.write_as = rng.choice(["overwrite", "overwrite", "overwrite_partitions", "append", "merge"])
        self.has_one_value = self.write_as in ("merge", "overwrite_partitions")
        self.kind = rng.choice(list(VALUES))
        self.read_as = rng.choice([*VALUES, "by_key"])
        self.layout = rng.choice([None, None, [], ["other"]])
        self.rows: dict[str, int] = {}
        self.seen: list[tuple[str, int]] = []
        self.wanted: list[str] | None = None
        self.events, self.copy = self._events(), self._copy()
        self.io_manager = DeltaLakeIOManager(root_uri=str(root))

    def __str__(self) -> str:
        dimensions = " × ".join(map(str, self.dimensions))
        return f"{dimensions}; {self.write_as} of {self.kind}, layout {self.layout}; {self.mapping}"

    def pick(self) -> str:
        if len(self.dimensions) == 1:
            return self.random.choice(self.dimensions[0].keys)
        return dg.MultiPartitionKey({d.column: self.random.choice(d.keys) for d in self.dimensions})

    def _events(self) -> dg.AssetsDefinition:
        scenario = self
        formats = {d.column: d.format for d in self.dimensions if d.format}
        is_multi = len(self.dimensions) > 1
        metadata: dict[str, Any] = {
            "partition_expr": {d.column: d.column for d in self.dimensions} if is_multi else "p",
            "write": self.write_as,
        }
        if formats:
            metadata["partition_format"] = formats if is_multi else formats["p"]
        if self.write_as == "merge":
            metadata["merge_keys"] = ["id", *(d.column for d in self.dimensions)]
        if self.layout is not None:
            metadata["partition_by"] = self.layout
        made_as, convert = VALUES[self.kind]

        def events(context: dg.AssetExecutionContext) -> Any:
            keys = [key for key in context.partition_keys for _ in range(3)]
            # What identifies a row of a merge, or what is replaced partition by partition, stays the same.
            columns = {
                d.column: d.array([scenario._part(key, d) for key in keys], at_start=scenario.has_one_value)
                for d in scenario.dimensions
            }
            return convert(
                pa.table(
                    {
                        "id": pa.array([i % 3 for i in range(len(keys))], pa.int64()),
                        **columns,
                        "key": pa.array([str(key) for key in keys]),
                        "stamp": pa.array([scenario.stamp] * len(keys), pa.int64()),
                        "other": pa.array([f"x{i % 2}" for i in range(len(keys))]),
                    }
                )
            )

        events.__annotations__["return"] = made_as
        return dg.asset(
            partitions_def=self.partitions_def, metadata=metadata, backfill_policy=dg.BackfillPolicy.single_run()
        )(events)

    def _part(self, key: str, dimension: Dimension) -> str:
        if len(self.dimensions) == 1:
            return key
        multi = key if isinstance(key, dg.MultiPartitionKey) else self.partitions_def.get_partition_key_from_str(key)
        part: str = multi.keys_by_dimension[dimension.column]
        return part

    def _copy(self) -> dg.AssetsDefinition:
        """An asset that reads `events` through a mapping."""
        scenario, rng = self, self.random
        only = self.dimensions[0]
        choices = ["none", "identity", "all", "last"]
        if len(self.dimensions) > 1:
            choices += ["multi"]
        elif only.kind == "time":
            choices += ["window", "coarser"]
        elif only.kind == "static":
            choices += ["static"]
        self.mapping = rng.choice(choices)
        partitions_def: Any = self.partitions_def
        mapping: Any = None
        if self.mapping == "none":
            partitions_def = None
        elif self.mapping == "all":
            mapping = dg.AllPartitionMapping()
        elif self.mapping == "last":
            mapping = dg.LastPartitionMapping()
        elif self.mapping == "window":
            mapping = dg.TimeWindowPartitionMapping(rng.choice([-2, -1, 0]), 0)
        elif self.mapping == "coarser":
            start = only.partitions_def.start
            partitions_def = dg.WeeklyPartitionsDefinition(
                f"{start - timedelta(days=14):%Y-%m-%d}",
                end_date=f"{start + timedelta(days=400):%Y-%m-%d}",
                timezone=only.zone,
            )
        elif self.mapping == "static":
            partitions_def = dg.StaticPartitionsDefinition(["one", "two"])
            mapping = dg.StaticPartitionMapping({key: ("one", "two")[i % 2] for i, key in enumerate(only.keys)})
        elif self.mapping == "multi":
            partitions_def = only.partitions_def
            mapping = dg.MultiToSingleDimensionPartitionMapping(only.column)
        self.copy_partitions = partitions_def
        by_key = self.read_as == "by_key"

        def copy(context: dg.AssetExecutionContext, events: Any) -> None:
            scenario.wanted = None
            if scenario.mapping != "none":
                scenario.wanted = [str(key) for key in context.asset_partition_keys_for_input("events")]
            if not by_key:
                tables = [as_arrow(events)]
            else:
                tables = list(events.values())
                for key, of_key in events.items():
                    assert set(of_key["key"].to_pylist()) <= {str(key)}, (key, of_key["key"].to_pylist())
            scenario.seen = [
                pair for t in tables for pair in zip(t["key"].to_pylist(), t["stamp"].to_pylist(), strict=True)
            ]

        read_as: Any = VALUES[self.read_as][0] if not by_key else dict[str, pa.Table]
        if by_key and self.mapping == "none":
            read_as, by_key = pa.Table, False
        copy.__annotations__["events"] = read_as
        return dg.asset(
            partitions_def=partitions_def,
            ins={"events": dg.AssetIn(partition_mapping=mapping)},
            backfill_policy=dg.BackfillPolicy.single_run(),
        )(copy)

    def write(self) -> bool:
        """Materialize one partition or a range; False where it was refused."""
        self.stamp += 1
        is_range = len(self.dimensions) == 1 and self.dimensions[0].kind != "dynamic" and self.random.random() < 0.4
        keys, tags, partition = [self.pick()], {}, None
        if is_range:
            every = self.dimensions[0].keys
            first = self.random.randrange(len(every))
            last = min(len(every) - 1, first + self.random.randrange(6))
            keys = every[first : last + 1]
            tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        else:
            partition = keys[0]
        before = self.found()
        try:
            self.run(self.events, partition_key=partition, tags=tags)
        except Exception as error:  # noqa: BLE001  # it is looked at
            self.refusal(error)
            assert self.found() == before, "a refused run changed the table"
            return False
        for key in map(str, keys):
            self.rows[key] = self.stamp
        return True

    def read(self) -> bool:
        partition = None
        if self.copy_partitions is not None:
            keys = (
                self.instance.get_dynamic_partitions(str(self.copy_partitions.name))
                if isinstance(self.copy_partitions, dg.DynamicPartitionsDefinition)
                else self.copy_partitions.get_partition_keys()
            )
            partition = self.random.choice(list(keys))
        try:
            self.run(self.copy, self.events.to_source_assets()[0], partition_key=partition)
        except Exception as error:  # noqa: BLE001  # it is looked at
            self.refusal(error)
            return False
        expected = self.model(self.wanted)
        assert Counter(self.seen) == Counter(expected), (partition, self.wanted, self.seen, expected)
        return True

    def refusal(self, error: BaseException | None) -> None:
        """Check that an error says what is wrong: one of ours, and no other."""
        first = error
        while error is not None and not isinstance(error, DeltaError):
            # Dagster's own word: a window of the reader lies outside of what is read.
            if isinstance(error, dg.DagsterInvariantViolationError) and "invalid partitions" in str(error):
                break
            error = error.__cause__
        assert error is not None, "".join(traceback.format_exception(first))
        self.refused = f"{type(error).__name__}: {error}"

    def run(self, *assets: Any, **arguments: Any) -> None:
        dg.materialize(
            list(assets),
            selection=[assets[0]],
            instance=self.instance,
            resources={"io_manager": self.io_manager},
            **arguments,
        )

    def model(self, keys: list[str] | None = None) -> list[tuple[str, int]]:
        return [(key, stamp) for key, stamp in self.rows.items() if keys is None or key in keys for _ in range(3)]

    def found(self) -> list[tuple[str, int]]:
        table = DeltaTable(self.root / "events")
        rows = table.snapshot().scan().to_arrow() if table.exists() else pa.table({"key": [], "stamp": []})
        return sorted(zip(rows["key"].to_pylist(), rows["stamp"].to_pylist(), strict=True))


def run_definition(root: Path, seed: int, steps: int = 6) -> str:
    """Run one definition. Returns what became of it; an assertion names the seed."""
    definition = Definition(root, seed)
    told: Counter[str] = Counter()
    try:
        for _ in range(steps):
            if definition.write():
                told["written"] += 1
                assert definition.found() == sorted(definition.model()), (definition.found(), definition.model())
            else:
                told[definition.refused[:160]] += 1
            told["read" if definition.read() else f"read: {definition.refused[:160]}"] += 1
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {definition}: {error}") from error
    return f"{definition}: {dict(told)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.cases):
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = run_definition(Path(folder), seed)
                if asked.verbose:
                    print(seed, told, flush=True)  # noqa: T201
            except Exception as error:  # noqa: BLE001  # it is printed, and the end fails
                failed += 1
                print("BROKEN", seed, f"{type(error).__name__}: {error}"[:1500], flush=True)  # noqa: T201
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
    print(f"{asked.cases} definitions, {failed} broken")  # noqa: T201
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
