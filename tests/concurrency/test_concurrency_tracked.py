"""Many writers, lost answers and compactions on a table with row ids and in-commit timestamps: no id is given twice or
lost, and time only goes forward."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConflictError
from delta_orch.table.row_tracking import parse_high_water_mark
from delta_orch.testing import open_table
from tests.certain import a
from tests.concurrency.test_concurrency_writers import run_in_processes
from tests.harness.fault_store import FaultStore, Moment

PROPERTIES = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpointInterval": "7",
}
ROUNDS = 8


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def flaky(uri: str, seed: int) -> DeltaTable:
    """A table whose store loses the answer to every fourth commit or so, before or after it took effect."""
    store, chance = FaultStore(DeltaTable(uri).store), random.Random(seed)

    def lose(call: Any) -> None:
        if chance.random() < 0.25:
            store.lose_answer(call)

    store.at(Moment.COMMIT_PUT, "before", do=lose, times=1000)
    store.at(Moment.COMMIT_PUT, "after", do=lose, times=1000)
    return open_table(store)


def assert_sound(table: DeltaTable, expected: set[int]) -> None:
    """At every version: each row has an id, the same one as ever, and a version not above this one."""
    known: dict[int, tuple[int, int]] = {}
    newest = table.version()
    times = []
    for version in range(newest + 1):
        snapshot = table.snapshot(version)
        read = snapshot.scan(["id"], row_tracking=True).to_arrow().to_pylist()
        found = {row["id"]: (row["row_id"], row["row_commit_version"]) for row in read}
        assert len({row_id for row_id, _ in found.values()}) == len(found) == len(read)
        for key, value in found.items():
            assert known.setdefault(key, value) == value
            assert value[1] <= version
        mark = parse_high_water_mark(snapshot.domain_metadata.get("delta.rowTracking"))
        assert mark >= max((row_id for row_id, _ in found.values()), default=-1)
        info = table.log.read_commit(version).commit_info
        assert info is not None
        times.append(a(int, info["inCommitTimestamp"]))
    assert set(known) == expected
    assert len({row_id for row_id, _ in known.values()}) == len(known)
    assert times == sorted(set(times))


def test_ids_and_times_under_contention(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    DeltaTable(uri).append(rows(0), properties=PROPERTIES)

    def work(number: int) -> list[int]:
        table = flaky(uri, number)
        if number == 0:
            for _ in range(ROUNDS):
                try:
                    table.optimize()
                except ConflictError as e:
                    assert e.retryable
            return []
        written = [1000 * number + i for i in range(ROUNDS * 2)]
        for i in range(0, len(written), 2):
            table.append(rows(*written[i : i + 2]), txn=(f"writer {number}", i))
        return written

    written = run_in_processes(4, work)
    table = DeltaTable(uri)
    expected = {0, *(key for ids in written for key in ids)}
    assert sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == sorted(expected)
    assert_sound(table, expected)


@pytest.mark.parametrize("seed", range(6))
def test_one_writer_that_hears_nothing(tmp_path: Path, seed: int) -> None:
    uri = str(tmp_path / "table")
    DeltaTable(uri).append(rows(0), properties=PROPERTIES)
    table = flaky(uri, seed)
    for i in range(1, 12):
        assert table.append(rows(i)).version == i
    assert_sound(DeltaTable(uri), set(range(12)))
