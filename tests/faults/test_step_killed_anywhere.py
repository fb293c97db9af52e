"""A step that does its unit again dies at every call of the store, and is started again: the rows of the unit are there
once, those of the newest attempt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep as Step
from delta_orch.pipeline.unit import Attempt, StepReport, Unit
from delta_orch.storage.open import open_store
from delta_orch.testing import StoreCall, open_table
from delta_orch.testing.failing_store import Rule, When
from tests.harness.fault_store import FaultStore


class Killed(BaseException):
    """The end of a process: nobody catches it, and no call of the store follows."""


def die(call: StoreCall) -> None:
    raise Killed(f"{call.method} {call.path}")


def dying(path: Path, number: int, when: When) -> tuple[DeltaTable, FaultStore]:
    """A table whose process dies before or after a call, and does nothing after it."""
    store = FaultStore(open_store(str(path)))
    store._rules.append(Rule(lambda call: call.number == number, when, die, 1))
    store._rules.append(Rule(lambda call: call.number > number, "before", die, 10**9))
    return open_table(store), store


def unit(order: int) -> Attempt:
    return Attempt((Unit("airflow:dag.task", "monday"),), order, "run")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{n % 2}" for n in ids]})


Attempted = Callable[[DeltaTable, int], StepReport]


def written(mode: Any, **how: Any) -> Attempted:
    def run(table: DeltaTable, order: int) -> StepReport:
        step = Step("step", table, mode, attempt=unit(order), options={"partition_by": ["day"]}, **how)
        return step.run(lambda: rows(10 * order, 10 * order + 1))

    return run


def processed(table: DeltaTable, order: int) -> StepReport:
    source = DeltaTable(table.uri.removeprefix("file://") + ".source")
    if not source.exists():
        source.append(rows(1, 2))

    def changed(batch: Any) -> pa.Table:
        return rows(*(10 * order + n for n in range(batch.inserted().to_arrow().num_rows)))

    step = Step("step", table, "append", attempt=unit(order))
    return step.process(IncrementalReader(source, table), changed)


WAYS: dict[str, Attempted] = {
    "append": written("append"),
    "append-unit_column": written("append", unit_column="load_id"),
    "overwrite_partitions": written("overwrite_partitions"),
    "overwrite": written("overwrite"),
    "incremental-append": processed,
}


QUICK = [("append", "after"), ("overwrite_partitions", "before")]
CASES = [
    pytest.param(way, when, marks=() if (way, when) in QUICK else pytest.mark.long)
    for way in WAYS
    for when in ("before", "after")
]


@pytest.mark.parametrize(("way", "when"), CASES)
def test_a_step_that_dies_at_any_call_ends_with_its_newest_rows(tmp_path: Path, way: str, when: When) -> None:
    number, outcomes = 0, set()
    while True:
        path = tmp_path / f"{number}"
        WAYS[way](DeltaTable(path), 1)
        table, store = dying(path, number, when)
        try:
            WAYS[way](table, 2)
        except Killed:
            pass
        else:
            assert store.calls[-1].number < number
            break
        seen = ids_of(path)
        assert seen in ([10, 11], [20, 21])
        report = WAYS[way](DeltaTable(path), 2)
        outcomes.add(report.outcome)
        assert report.outcome == ("recovered" if seen == [20, 21] else "replaced"), store.calls[-1]
        assert ids_of(path) == [20, 21]
        number += 1
    assert outcomes == {"replaced", "recovered"}


def ids_of(path: Path) -> list[int]:
    found: list[int] = DeltaTable(path).snapshot().scan(["id"]).to_arrow().column("id").to_pylist()
    return sorted(found)
