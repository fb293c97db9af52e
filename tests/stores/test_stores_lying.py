"""Stores that answer with too little, or with an old listing: an error that may be tried again, never other rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from delta_orch.storage.memory import MemoryStore
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore


def _store() -> MemoryStore:
    store = MemoryStore(f"lying-{uuid.uuid4()}")
    table = open_table(store)
    for number in range(4):
        table.append(pa.table({"id": pa.array([number, number + 100], pa.int64())}))
    table.wait_for_upkeep()
    return store


def _ids(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())


LIES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "a line less": lambda data: data[: data[:-1].rfind(b"\n") + 1],
    "nothing": lambda data: b"",
    "more": lambda data: data + data,
}


@pytest.mark.parametrize("lie", list(LIES))
def test_an_answer_of_another_length_is_no_commit(lie: str) -> None:
    store = _store()
    expected = _ids(open_table(store))
    for nth in range(4):
        faulty = FaultStore(store)

        def answer(call: Any, act: Callable[[], Any]) -> Any:
            data = act()
            return LIES[lie](data) if call.path.endswith(".json") else data

        faulty.instead(("read_bytes", nth), answer)
        try:
            found = _ids(open_table(faulty))
        except DeltaError as e:
            assert e.retryable, e
        else:
            assert found == expected
        assert _ids(open_table(faulty)) == expected


def test_an_old_listing_shows_an_older_version_and_loses_nothing() -> None:
    store = _store()
    faulty = FaultStore(store)
    old = list(store.list_from("_delta_log"))
    open_table(store).append(pa.table({"id": pa.array([7], pa.int64())}))
    faulty.instead(("list_from", 0), lambda call, act: [m for m in old if m.path.rpartition("/")[2] >= call.start_name])
    stale = open_table(faulty)
    assert 7 not in _ids(stale)
    stale.append(pa.table({"id": pa.array([8], pa.int64())}))
    assert {7, 8} <= set(_ids(open_table(store)))
    assert open_table(store).version() == 5
