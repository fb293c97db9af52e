"""Many processes on one table: writers of different days, appenders, a compactor, a vacuum, all at once."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.errors import ConflictError

ROUNDS = 6
DAYS = ("d0", "d1", "d2", "d3")


def rows(day: str, *ids: int) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(ids), pa.string()), "id": pa.array(ids, pa.int64())})


def until_done(attempt: Callable[[], Any]) -> tuple[Any, int]:
    """What an orchestrator does: try again what is retryable."""
    conflicts = 0
    while True:
        try:
            return attempt(), conflicts
        except ConflictError as e:
            assert e.retryable
            conflicts += 1
            assert conflicts < 200


def replace_day(uri: str, day: str) -> dict[str, Any]:
    conflicts = 0
    for i in range(ROUNDS):

        def attempt(i: int = i) -> Any:
            return DeltaTable(uri).overwrite(
                rows(day, i, i + 1000), replace_where=f"day = '{day}'", txn=(f"job:{day}", i)
            )

        result, lost = until_done(attempt)
        assert not result.skipped
        conflicts += lost
    return {"conflicts": conflicts}


def append_rows(uri: str, writer: str) -> dict[str, Any]:
    table = DeltaTable(uri)
    for i in range(ROUNDS):
        # A blind append: nothing it could conflict with.
        assert not table.append(rows("log", i), txn=(f"log:{writer}", i)).skipped
        assert table.append(rows("log", i), txn=(f"log:{writer}", i)).skipped
    return {}


def compact(uri: str, _: str) -> dict[str, Any]:
    conflicts = 0
    for _i in range(ROUNDS):
        _result, lost = until_done(lambda: DeltaTable(uri).optimize())
        conflicts += lost
    return {"conflicts": conflicts}


def look_after(uri: str, _: str) -> dict[str, Any]:
    for _i in range(ROUNDS):
        table = DeltaTable(uri)
        table.checkpoint()
        table.vacuum()
        table.snapshot().scan().to_arrow()
    return {}


def test_everything_at_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    DeltaTable(uri).create(rows("d0").schema, partition_by=["day"], properties={"delta.checkpointInterval": "5"})
    tasks = [(replace_day, day) for day in DAYS] + [
        (append_rows, "x"),
        (append_rows, "y"),
        (compact, ""),
        (look_after, ""),
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(len(tasks)) as pool:
        pending = [pool.apply_async(function, (uri, argument)) for function, argument in tasks]
        for result in pending:
            result.get(timeout=240)

    table = DeltaTable(uri)
    found = table.snapshot().scan().to_arrow()
    actual = Counter(zip(found.column("day").to_pylist(), found.column("id").to_pylist(), strict=True))
    expected = Counter({(day, i): 1 for day in DAYS for i in (ROUNDS - 1, ROUNDS - 1 + 1000)})
    expected.update({("log", i): 2 for i in range(ROUNDS)})
    assert actual == expected
    versions = sorted(entry.version for entry in table.history())
    assert versions == list(range(versions[-1] + 1))
    assert sum(entry.operation == "WRITE" for entry in table.history()) == ROUNDS * (len(DAYS) + 2)
