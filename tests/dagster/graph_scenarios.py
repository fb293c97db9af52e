"""Random jobs of ops, each run against the same job with values in memory: `python -m tests.dagster.graph_scenarios`.

A job has chains, nested graphs whose ops share names, outputs that fan out and map through graphs, fan-in lists,
optional outputs and several outputs of one op, in every kind of value. Its runs overlap, fail on either side of a
commit, and are executed again from failure. Every step must get what the same step gets in memory.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import argparse
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, get_args
from zlib import crc32

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

from delta_orch.dagster import DeltaLakeIOManager

VALUES: dict[str, tuple[Any, Callable[[pa.Table], Any]]] = {
    "arrow": (pa.Table, lambda rows: rows),
    "reader": (pa.RecordBatchReader, lambda rows: rows.to_reader(max_chunksize=2)),
    "pandas": (pd.DataFrame, lambda rows: rows.to_pandas()),
    "polars": (pl.DataFrame, pl.from_arrow),
    "lazy": (pl.LazyFrame, lambda rows: pl.from_arrow(rows).lazy()),
    "duckdb": (duckdb.DuckDBPyRelation, duckdb.from_arrow),
}


def tokens_of(value: Any) -> list[str]:
    """What a value holds, whichever library it is of."""
    if value is None:
        return ["none"]
    if isinstance(value, list):
        return sorted(token for one in value for token in tokens_of(one))
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    if isinstance(value, pl.LazyFrame):
        value = value.collect()
    if isinstance(value, pl.DataFrame):
        value = value.to_arrow()
    if isinstance(value, duckdb.DuckDBPyRelation):
        value = value.to_arrow_table()
    tokens = value["token"].tolist() if isinstance(value, pd.DataFrame) else value["token"].to_pylist()
    return sorted(tokens)


class Recorder:
    """What each step of each root run got, in a file that all processes write."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "seen.jsonl"

    def note(self, stamp: str, step: str, received: list[list[str]]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps([stamp, step, received]) + "\n")

    def seen(self, stamp: str) -> dict[str, list[list[list[str]]]]:
        found: dict[str, list[list[list[str]]]] = {}
        for line in self.file.read_text().splitlines():
            of, step, received = json.loads(line)
            if of == stamp:
                found.setdefault(step, []).append(received)
        return found


class Builder:
    """Makes a random job. The same seed makes the same job, in every process."""

    def __init__(self, seed: int, recorder: Recorder) -> None:
        self.random, self.recorder = random.Random(seed), recorder
        self.count = self.depth = 0

    def job(self, **arguments: Any) -> dg.JobDefinition:
        @dg.graph(name="etl")
        def etl() -> None:
            values = [self.op("load", 0)() for _ in range(2)]
            for _ in range(self.random.randint(2, 5)):
                values.append(
                    self.random.choice([self.chain, self.nested, self.fan_in, self.mapped, self.both])(values)
                )

        made: dg.JobDefinition = etl.to_job(**arguments)
        return made

    def name(self) -> str:
        """Of a definition: one in a job has one of each name."""
        self.count += 1
        return f"definition_{self.count}"

    def alias(self, made: Any, name: str) -> Any:
        """Of a node: the same in each nested graph, another one beside each other."""
        return made.alias(name if self.depth else f"{name}_{self.count}")

    def op(self, name: str, inputs: int, *, listed: bool = False) -> Any:
        """An op that notes what it gets, and gives a token of its own beside it."""
        rng, recorder = self.random, self.recorder
        kind = rng.choice(list(VALUES))
        optional, columns = rng.random() < 0.25, rng.randrange(3)
        retry = rng.random() < 0.5
        ins = {}
        for number in range(inputs):
            of: Any = Optional[VALUES[rng.choice(list(VALUES))][0]] if not listed else list[Optional[pa.Table]]  # noqa: UP045
            ins[f"in{number}"] = dg.In(of)

        def body(context: dg.OpExecutionContext, **given: Any) -> Any:
            stamp = context.run.tags["stamp"]
            step = context.get_step_execution_context().step.key
            received = [tokens_of(given[name]) for name in sorted(given)]
            recorder.note(stamp, step, received)
            if optional and crc32(f"{stamp}{step}".encode()) % 3 == 0:
                return None
            tokens = [f"{step}@{stamp}", *{token for one in received for token in one}]
            more = {f"c{columns}": pa.array([str(columns)] * len(tokens))}
            return VALUES[kind][1](pa.table({"token": tokens, **more}))

        out: Any = VALUES[kind][0]
        out = Optional[out] if optional else out  # noqa: UP045
        made = dg.op(
            name=self.name(),
            ins=ins,
            out=dg.Out(out),
            retry_policy=dg.RetryPolicy(max_retries=3) if retry else None,
        )(body)
        return self.alias(made, name)

    def splitter(self) -> Any:
        recorder, number = self.recorder, self.random.randint(0, 3)

        def split(context: dg.OpExecutionContext, in0: Any) -> Any:
            stamp, step = context.run.tags["stamp"], context.get_step_execution_context().step.key
            recorder.note(stamp, step, [tokens_of(in0)])
            for key in range(number):
                yield dg.DynamicOutput(pa.table({"token": [f"{step}/{key}@{stamp}"]}), mapping_key=f"k{key}")

        of: Any = Optional[pa.Table]  # noqa: UP045
        made = dg.op(name=self.name(), ins={"in0": dg.In(of)}, out=dg.DynamicOut(pa.Table))(split)
        return self.alias(made, "split")

    def pick(self, values: list[Any]) -> Any:
        return self.random.choice(values)

    def chain(self, values: list[Any]) -> Any:
        made = self.op(self.random.choice(["load", "clean"]), 1)(in0=self.pick(values))
        return self.op("clean", 1)(in0=made) if self.random.random() < 0.5 else made

    def nested(self, values: list[Any]) -> Any:
        """A graph whose ops are named as those of the others."""
        is_deep = self.depth < 1 and self.random.random() < 0.5
        self.depth += 1

        @dg.graph(name=self.name(), ins={"in0": dg.GraphIn()}, out=dg.GraphOut())
        def nested(in0: Any) -> Any:
            inside = self.op("load", 1)(in0=in0)
            if is_deep:
                inside = self.nested([inside])
            return self.op("clean", 1)(in0=inside)

        self.depth -= 1
        return self.alias(nested, "inner")(self.pick(values))

    def fan_in(self, values: list[Any]) -> Any:
        chosen = self.random.sample(values, min(len(values), self.random.randint(1, 3)))
        return self.op("join", 1, listed=True)(in0=chosen)

    def both(self, values: list[Any]) -> Any:
        return self.op("join", 2)(in0=self.pick(values), in1=self.pick(values))

    def mapped(self, values: list[Any]) -> Any:
        parts = self.splitter()(in0=self.pick(values))
        through = self.random.choice([self.chain, self.nested])
        mapped = parts.map(lambda part: through([part]))
        if self.random.random() < 0.5:
            mapped = mapped.map(lambda part: self.op("clean", 1)(in0=part))
        return self.op("join", 1, listed=True)(in0=mapped.collect())


class MemoryIOManager(dg.IOManager):
    """Keeps values in memory, and gives them as they are asked for."""

    def __init__(self) -> None:
        self.values: dict[Any, pa.Table | None] = {}

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self.values[tuple(context.get_identifier())] = None if obj is None else pa.table({"token": tokens_of(obj)})

    def load_input(self, context: dg.InputContext) -> Any:
        assert context.upstream_output is not None
        rows = self.values[tuple(context.upstream_output.get_identifier())]
        wanted = context.dagster_type.typing_type
        while get_args(wanted):
            wanted = next(one for one in get_args(wanted) if one is not type(None))
        return None if rows is None else next(make(rows) for made, make in VALUES.values() if made is wanted)


class FaultyIOManager(DeltaLakeIOManager):
    """Fails a write on either side of its commit, once a step, run and side, as its seed says."""

    faults: int
    folder: str
    kills: bool

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        stamp = context.step_context.dagster_run.tags["stamp"]
        name = f"{stamp}.{context.step_key}.{context.mapping_key}"
        side = crc32(f"{self.faults}{name}".encode()) % 6
        marker = Path(self.folder) / f"fault.{crc32(name.encode())}"
        is_first = side < 3 and not marker.exists()
        if is_first:
            marker.touch()
        if is_first and side == 0:
            raise RuntimeError("lost before the commit")
        super().handle_output(context, obj)
        if is_first and side == 1:
            raise RuntimeError("lost after the commit")
        if is_first and side == 2:
            if self.kills:
                os._exit(9)
            raise RuntimeError("lost after the commit")


def scenario_job(seed: int, folder: str, kill: bool) -> dg.JobDefinition:  # Dagster passes it
    """The job of a scenario. Dagster calls it in every process."""
    manager = FaultyIOManager(root_uri=f"{folder}/lake", faults=seed + 1, folder=folder, kills=kill)
    executor = dg.multiprocess_executor if kill else dg.in_process_executor
    builder = Builder(seed, Recorder(Path(folder)))
    return builder.job(resource_defs={"io_manager": manager}, executor_def=executor)


def run_graphs(folder: Path, seed: int, *, kill: bool = False) -> str:
    """Run one scenario: three runs in turns, each again from failure until it succeeds."""
    (folder / "home").mkdir()
    (folder / "memory").mkdir()
    recorder, memory = Recorder(folder), Recorder(folder / "memory")
    stamps = ["one"] if kill else ["one", "two", "three"]
    again = 0
    arguments: Any = (seed, str(folder), kill)
    job = dg.build_reconstructable_job(__name__, scenario_job.__name__, arguments)
    # What the runs print is theirs.
    quiet = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    overrides = {"telemetry": {"enabled": False}, "compute_logs": quiet}
    with dg.DagsterInstance.local_temp(str(folder / "home"), overrides=overrides) as instance:
        failed: dict[str, str | None] = dict.fromkeys(stamps)
        for _ in range(12):
            # Each goes on a little in its turn.
            for stamp, run_id in list(failed.items()):
                from_failure = None if run_id is None else dg.ReexecutionOptions.from_failure(run_id, instance)
                again += from_failure is not None
                result = dg.execute_job(
                    job,
                    instance,
                    tags={"stamp": stamp},
                    raise_on_error=False,
                    reexecution_options=from_failure,
                )
                failed[stamp] = result.run_id
                if result.success:
                    del failed[stamp]
        assert not failed, (
            seed,
            [str(event.event_specific_data)[:3000] for event in result.all_events if event.is_step_failure],
        )
    for stamp in stamps:
        manager = dg.IOManagerDefinition.hardcoded_io_manager(MemoryIOManager())
        in_memory = Builder(seed, memory).job(resource_defs={"io_manager": manager})
        assert in_memory.execute_in_process(tags={"stamp": stamp}).success
        expected = {step: found[0] for step, found in memory.seen(stamp).items()}
        found = recorder.seen(stamp)
        assert set(found) == set(expected), (seed, stamp, set(found) ^ set(expected))
        for step, received in found.items():
            for one in received:
                assert one == expected[step], (seed, stamp, step, one, expected[step])
    return f"{len(expected)} steps, {again} re-executions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", action="store_true", help="kill processes after their commits")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for seed in range(asked.seed, asked.seed + asked.cases):
        with tempfile.TemporaryDirectory() as folder:
            told = run_graphs(Path(folder), seed, kill=asked.kill)
            if asked.verbose:
                print(seed, told, flush=True)  # noqa: T201
    print(f"{asked.cases} jobs of ops: every step got what it gets in memory")  # noqa: T201


if __name__ == "__main__":
    # Dagster loads the job from the module, and not from the script.
    from tests.dagster import graph_scenarios

    graph_scenarios.main()
