"""Stores that are slow, throttle, or answer with other bytes, lengths or ETags: the right rows, or an error of this
package. Never other rows, and the table is as it was."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from tests.families import family
from tests.harness.emulators import Emulator
from tests.harness.fault_proxy import Fault, FaultProxy

CLOUDS = ("s3", "gcs", "azure")
ROWS = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    delta_orch.configure(retry_seconds=20)
    yield
    delta_orch.configure(retry_seconds=None)


def _ids(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("name", CLOUDS)
def test_slow_and_throttling_stores_cost_time_alone(emulator_named: Callable[[str], Emulator], name: str) -> None:
    emulator = emulator_named(name)
    with FaultProxy(emulator.endpoint, slow_s=0.3) as proxy:
        there = emulator.behind(proxy.endpoint)
        table = DeltaTable(there.table_uri(str(uuid.uuid4())), there.storage_options)
        for number, fault in enumerate((Fault.SLOW, Fault.TOO_MANY, Fault.THROTTLE)):
            proxy.clear()
            proxy.at("*", "*", fault, times=2)
            assert table.append(pa.table({"id": [number]})).version == number
            proxy.at("GET", "*", fault)
            assert _ids(DeltaTable(table.uri, there.storage_options)) == list(range(number + 1))


@family("fault", [Fault.OTHER_BYTES, Fault.SHORT, Fault.OTHER_ETAG], ids=lambda f: f.name.lower(), every=3)
@pytest.mark.parametrize("name", CLOUDS)
def test_a_wrong_answer_is_no_other_rows(emulator_named: Callable[[str], Emulator], name: str, fault: Fault) -> None:
    delta_orch.configure(retry_seconds=0)
    emulator = emulator_named(name)
    with FaultProxy(emulator.endpoint) as proxy:
        there = emulator.behind(proxy.endpoint)
        uri = there.table_uri(str(uuid.uuid4()))
        table = DeltaTable(uri, there.storage_options)
        table.append(ROWS, properties={"delta.enableDeletionVectors": "true"})
        table.delete("id = 2")
        table.checkpoint()
        table.append(pa.table({"id": [4], "s": ["d"]}))
        table.wait_for_upkeep()
        proxy.clear()
        assert _ids(DeltaTable(uri, there.storage_options)) == [1, 3, 4]
        reads = [line.partition("?")[0] for line in proxy.seen if line.startswith("GET ")]
        asked = {line.rpartition("/")[2] for line in reads}
        kinds = {file[-12:]: file for file in asked if "." in file or file == "_last_checkpoint"}
        assert len(kinds) >= 3
        for file in kinds.values():
            proxy.clear()
            proxy.at("GET", f"*{file}*", fault, times=4)
            try:
                found = _ids(DeltaTable(uri, there.storage_options))
            except DeltaError as e:
                assert str(e)
            else:
                assert found == [1, 3, 4], file
        proxy.clear()
        assert _ids(DeltaTable(uri, there.storage_options)) == [1, 3, 4]
