"""What the Dagster plugin adds: `python -m benchmarks.dagster_overhead [partitions] [tables]`.

One run over many partitions and a run for each of some partitions are written twice: by the IO manager, and by the verb
it calls, which is the floor. Then a sensor over many tables ticks with nothing new, in process. Printed are
milliseconds.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import dagster as dg
import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.dagster import DeltaLakeIOManager, DeltaTableResource, build_delta_log_sensor

SINGLE_RUNS = 20
TICKS = 5
BOUND_PARTITION_MS, BOUND_TICK_MS = 20.0, 150.0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def rows(keys: list[str]) -> pa.Table:
    return pa.table({"key": keys, "n": list(range(len(keys)))})


def ms(started: float) -> float:
    return (time.perf_counter() - started) * 1000


class Writes:
    """An asset with partitions, and how long its IO manager takes; the step around it is Dagster's."""

    def __init__(self, root: Path, keys: list[str]) -> None:
        self.root, self.keys, self.spent = root, keys, 0.0
        outer = self

        class Timed(DeltaLakeIOManager):
            def handle_output(self, context: dg.OutputContext, obj: object) -> None:
                started = time.perf_counter()
                super().handle_output(context, obj)
                outer.spent = ms(started)

        @dg.asset(
            partitions_def=dg.StaticPartitionsDefinition(keys),
            metadata={"partition_expr": "key"},
            backfill_policy=dg.BackfillPolicy.single_run(),
        )
        def events(context: dg.AssetExecutionContext) -> pa.Table:
            return rows(list(context.partition_keys))

        self.events, self.io_manager = events, Timed(root_uri=str(root))
        self.instance = dg.DagsterInstance.ephemeral()

    def run(self, first: str, last: str) -> float:
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        single = first == last
        dg.materialize(
            [self.events],
            instance=self.instance,
            resources={"io_manager": self.io_manager},
            partition_key=first if single else None,
            tags={} if single else tags,
        )
        return self.spent

    def floor(self, keys: list[str]) -> float:
        table = DeltaTable(self.root / "floor")
        started = time.perf_counter()
        if not table.exists():
            table.append(rows(keys), partition_by=["key"])
        else:
            quoted = ", ".join(f"'{key}'" for key in keys)
            table.overwrite(rows(keys), replace_where=f"key IN ({quoted})")
        return ms(started)


def measure_writes(root: Path, num_partitions: int) -> None:
    keys = [f"p{number:05}" for number in range(num_partitions)]
    writes = Writes(root, keys)
    for name in ("created", "replaced"):
        ours, floor = writes.run(keys[0], keys[-1]), writes.floor(keys)
        added = (ours - floor) / num_partitions
        say(
            f"{name}, one run of {num_partitions:,} partitions: {ours:,.0f}, the verb alone {floor:,.0f}, "
            f"added {added:.2f} a partition (bound {BOUND_PARTITION_MS:.0f})"
        )
    chosen = keys[:SINGLE_RUNS]
    ours_each = [writes.run(key, key) for key in chosen]
    floor_each = [writes.floor([key]) for key in chosen]
    added = median(ours_each) - median(floor_each)
    say(
        f"a run a partition: {median(ours_each):.1f}, the verb alone {median(floor_each):.1f}, "
        f"added {added:.1f} a partition (bound {BOUND_PARTITION_MS:.0f})"
    )


def measure_ticks(root: Path, num_tables: int) -> None:
    tables = {f"t{number}": DeltaTableResource(table_uri=str(root / f"t{number}")) for number in range(num_tables)}
    for table in tables.values():
        table.table().append(rows(["a"]))

    @dg.asset
    def target() -> None: ...

    sensor = build_delta_log_sensor(name="watch", tables=tables, target=[target])
    instance, cursor = dg.DagsterInstance.ephemeral(), None
    spent: list[float] = []
    for _ in range(TICKS + 1):
        with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
            started = time.perf_counter()
            found = sensor(context)
            spent.append(ms(started))
            assert isinstance(found, dg.SensorResult)
            cursor = found.cursor
    say(f"a tick with nothing new over {num_tables} tables: {median(spent[1:]):.1f} (bound {BOUND_TICK_MS:.0f})")


def main(partitions: str = "1000", tables: str = "100") -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        measure_writes(Path(folder), int(partitions))
        measure_ticks(Path(folder), int(tables))


if __name__ == "__main__":
    main(*sys.argv[1:])
