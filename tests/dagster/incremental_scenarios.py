"""Random incremental assets on an instance, against a plain model: `python -m tests.dagster.incremental_scenarios`.

A source is appended to, replaced in part, deleted from, compacted and recreated; an asset follows it, in any mode, in
tables that are partitioned as the source is or otherwise. Its runs fail on either side of a commit, and are repeated.
What cannot be exact is refused by name, with the table unchanged. A green run has the rows of the model.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import argparse
import logging
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pyarrow as pa

from delta_orch.dagster import ChangeBatch, DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental_step import IncrementalStep
from delta_orch.pipeline.unit import StepReport

Row = tuple[int, str, str, int]
NAMES = ("id", "day", "region", "n")
LAYOUTS: list[list[str]] = [[], ["day"], ["region"], ["day", "region"]]


def as_table(rows: list[Row]) -> pa.Table:
    schema = pa.schema({"id": pa.int64(), "day": pa.string(), "region": pa.string(), "n": pa.int64()})
    return pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in rows], schema)


class Scenario:
    """A source, an asset that copies it, and what must be in the copy."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = self.random = random.Random(seed)
        self.root, self.stamp = root, 0
        self.write: Any = rng.choice(
            ["overwrite_partitions", "overwrite_partitions", "overwrite_changed", "overwrite", "merge", "append"]
        )
        self.source_by, self.target_by = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
        self.max_versions = rng.choice([None, 1])
        self.source = DeltaTable(root / "source")
        self.target = DeltaTable(root / "target")
        self.rows: list[Row] = []
        self.states: list[list[Row]] = []
        self.expected: list[Row] = []
        self.fault = ""
        self.instance = dg.DagsterInstance.ephemeral()
        self.asset = self._asset()
        self.refused: str | None = None

    def __str__(self) -> str:
        batch = "each version" if self.max_versions else "all versions"
        return f"{self.write} of {self.source_by} into {self.target_by}, {batch}"

    @property
    def is_exact(self) -> bool:
        """Whether the mode is exact for these partitions. If so, it must not be refused."""
        if self.write == "overwrite_partitions":
            return bool(self.target_by) and set(self.source_by) <= set(self.target_by)
        return self.write != "overwrite_changed" or bool(self.source_by)

    def _asset(self) -> dg.AssetsDefinition:
        scenario = self

        @delta_asset(
            incremental_from=DeltaTableResource(table_uri=self.source.uri),
            table=DeltaTableResource(table_uri=self.target.uri),
            write=self.write,
            merge_keys=["id"] if self.write == "merge" else None,
            partition_by=self.target_by,
            max_versions=self.max_versions,
            on_recreated="error" if self.write == "append" else "bootstrap",
            retry_policy=dg.RetryPolicy(max_retries=2),
        )
        def target(batch: ChangeBatch) -> pa.Table:
            if scenario.fault == "before":
                scenario.fault = ""
                raise RuntimeError("lost before the commit")
            is_added = scenario.write == "append" and not batch.is_bootstrap
            return (batch.changes if is_added else batch.scan()).to_arrow().select(NAMES)

        return target

    # The source

    def change(self) -> None:
        self.stamp += 1
        actions = ["append"] * 3 if self.write == "append" else ["append", "append", "replace", "delete", "update"]
        action = self.random.choice([*actions, "compact"])
        if not self.source.exists() or (self.write != "append" and self.random.random() < 0.1):
            self._recreate()
        elif action == "append":
            made = self._made()
            self.source.append(as_table(made))
            self.rows += made
        elif action == "compact":
            self.source.optimize()
            return
        else:
            day = self.random.choice("ab")
            kept = [row for row in self.rows if row[1] != day]
            made = [] if action == "delete" else [(*row[:3], self.stamp) for row in self.rows if row[1] == day]
            if action == "replace":
                made = [(self.stamp * 10, day, self.random.choice("xy"), self.stamp)]
            if action == "delete":
                self.source.delete(f"day = '{day}'")
            else:
                self.source.overwrite(as_table(made), replace_where=f"day = '{day}'")
            if not made and len(kept) == len(self.rows):
                return
            self.rows = kept + made
        self.states.append(list(self.rows))

    def _made(self) -> list[Row]:
        number = self.random.randint(1, 3)
        return [
            (self.stamp * 10 + i, self.random.choice("abc"), self.random.choice("xy"), self.stamp)
            for i in range(number)
        ]

    def _recreate(self) -> None:
        if self.source.exists():
            shutil.rmtree(self.root / "source")
            self.source = DeltaTable(self.root / "source")
        self.rows = self._made()
        self.source.append(as_table(self.rows), partition_by=self.source_by)
        # A recreated source is read as it is found.
        self.states = []
        self.is_new = True

    # The asset

    def run(self) -> None:
        """Run until nothing is new; fail and repeat on the way."""
        found = self.found()
        for _ in range(len(self.states) + 2):
            self.fault = self.random.choice(["", "", "before", "after"])
            try:
                with patch.object(IncrementalStep, "process_all", _faulty(self, IncrementalStep.process_all)):
                    assert dg.materialize([self.asset], instance=self.instance).success
            except Exception as error:  # noqa: BLE001  # it is looked at
                self._refusal(error, found)
                return
            found = self.found()
        states = [self.rows] if self.is_new or self.max_versions is None else self.states
        for state in states:
            self._apply(state)
        self.states, self.is_new = [], False

    def _refusal(self, error: BaseException | None, before: list[Row]) -> None:
        first = error
        while error is not None and not isinstance(error, InvalidRequestError):
            # Retries that are used up have the error as their context.
            error = error.__cause__ or error.__context__
        if error is None or self.is_exact:
            assert first is not None
            raise first
        assert self.found() == before, "a refused run changed the table"
        self.refused = str(error)

    def _apply(self, state: list[Row]) -> None:
        if self.write == "merge":
            merged = {row[0]: row for row in self.expected}
            merged.update({row[0]: row for row in state})
            self.expected = list(merged.values())
        elif self.write == "overwrite_partitions":
            there = {self._partition(row) for row in state}
            # Of a recreated source all that is there is replaced.
            kept = [] if self.is_new else [row for row in self.expected if self._partition(row) not in there]
            self.expected = kept + state
        else:
            self.expected = list(state)

    def _partition(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[NAMES.index(name)] for name in self.target_by)

    def found(self) -> list[Row]:
        if not self.target.exists():
            return []
        found = self.target.snapshot().scan(list(NAMES)).to_arrow().to_pydict()
        return sorted(zip(*(found[name] for name in NAMES), strict=True))


def _faulty(scenario: Scenario, process_all: Any) -> Any:
    def call(step: IncrementalStep, *arguments: Any, **more: Any) -> StepReport:
        report: StepReport = process_all(step, *arguments, **more)
        if scenario.fault == "after":
            scenario.fault = ""
            raise RuntimeError("lost after the commit")
        return report

    return call


def run_incremental(root: Path, seed: int, steps: int = 6) -> str:
    """Run one scenario. Returns what became of it; an assertion names the seed."""
    scenario = Scenario(root, seed)
    told: Counter[str] = Counter()
    for _ in range(steps):
        for _ in range(scenario.random.randint(1, 3)):
            scenario.change()
        scenario.run()
        if scenario.refused:
            told[scenario.refused[:60]] += 1
            break
        told["exact"] += 1
        assert scenario.found() == sorted(scenario.expected), (seed, str(scenario), scenario.found(), scenario.expected)
    return f"{scenario}: {dict(told)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for seed in range(asked.seed, asked.seed + asked.cases):
        with tempfile.TemporaryDirectory() as folder:
            told = run_incremental(Path(folder), seed)
            if asked.verbose:
                print(seed, told, flush=True)  # noqa: T201
    print(f"{asked.cases} incremental assets: every row as the model has it, or refused by name")  # noqa: T201


if __name__ == "__main__":
    main()
