"""Tables of many columns: work grows with their number, not with its square. Calls are counted, so no clock decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from delta_orch import DeltaTable

FEW, MANY = 60, 240
PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}


def rows(width: int, first: int = 0, count: int = 4) -> pa.Table:
    kinds = [lambda i: i, lambda i: f"v{i}", lambda i: i / 2]
    return pa.table({f"c{j}": [kinds[j % 3](i) for i in range(first, first + count)] for j in range(width)})


def calls_of(run: Callable[[], object]) -> int:
    count = 0

    def watch(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


VERBS: dict[str, Callable[[DeltaTable, int], object]] = {
    "append": lambda table, width: table.append(rows(width, 100)),
    "scan": lambda table, _: table.snapshot().scan(where="c0 > 1 AND c1 LIKE 'v%'").to_arrow(),
    "query": lambda table, _: table.snapshot().scan(where="upper(c1) = 'V2'").to_arrow(),
    "update": lambda table, _: table.update({"c0": "c0 + 10", "c1": "upper(c1)"}, "c0 > 1"),
    "delete": lambda table, _: table.delete("c0 = 2"),
    "merge": lambda table, width: table.upsert(rows(width, 2), ["c0"]),
    "overwrite": lambda table, width: table.overwrite(rows(width, 2, 1), replace_where="c0 = 2"),
    "changes": lambda table, _: table.changes(starting_version=1).to_arrow(),
    "optimize": lambda table, _: table.optimize(),
    "clustering": lambda table, _: table.optimize(zorder_by=["c0", "c3"]),
    "alter": lambda table, _: table.alter().add_constraint("least", "c0 >= 0").commit(),
    "checkpoint": lambda table, _: table.checkpoint(),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("verb", VERBS)
def test_work_grows_with_the_columns(verb: str, mode: str, tmp_path: Path) -> None:
    counts = []
    # The first call of a process imports what it needs.
    for number, width in enumerate((4, FEW, MANY)):
        table = DeltaTable(tmp_path / str(number))
        table.append(rows(width), properties=PROPERTIES | {"delta.columnMapping.mode": mode})
        table.append(rows(width, 4))
        counts.append(calls_of(lambda table=table, width=width: VERBS[verb](table, width)))  # type: ignore[misc]
    _, few, many = counts
    assert many < few * MANY / FEW * 1.25, counts
