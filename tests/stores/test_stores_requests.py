"""How often a far store is asked, and how much at once: each request takes its time there."""

from __future__ import annotations

import gc
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.local import write
from delta_orch.errors import ConstraintViolationError, FileMissingInStoreError
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.storage.base import FlatStore, LogStore
from tests.harness.emulators import Emulator
from tests.harness.fault_proxy import Fault, FaultProxy
from tests.stores.conftest import CLOUDS

FILES = 12  # more than lie between two checkpoints
ROWS = pa.table({"id": range(FILES), "p": [f"p{i}" for i in range(FILES)], "s": ["x"] * FILES})


@contextmanager
def slow_table(emulator: Emulator) -> Iterator[tuple[FaultProxy, Callable[[], DeltaTable]]]:
    """What opens one table anew, and what every one of its requests goes through."""
    with FaultProxy(emulator.endpoint, slow_s=0.05) as proxy:
        there = emulator.behind(proxy.endpoint)
        uri = there.table_uri(str(uuid.uuid4()))

        def reopened() -> DeltaTable:
            table = DeltaTable(uri, there.storage_options)
            if table.exists():
                table.version()
            proxy.clear()
            proxy.at("*", "*", Fault.SLOW, times=10_000)
            return table

        yield proxy, reopened


@pytest.mark.long
@pytest.mark.parametrize("name", CLOUDS)
def test_files_are_sent_and_read_side_by_side(emulator_named: Callable[[str], Emulator], name: str) -> None:
    with slow_table(emulator_named(name)) as (proxy, reopened):
        reopened().append(ROWS.slice(0, 1), partition_by=["p"], properties={"delta.enableChangeDataFeed": "true"})
        table = reopened()
        table.append(ROWS)
        assert proxy.most_at_once >= 4
        assert proxy.count("PUT", "*.parquet*") + proxy.count("POST", "*/upload/*") >= FILES
        assert proxy.count("HEAD") <= 1, "the time of the commit"
        table = reopened()
        assert table.snapshot().scan(where="s = 'x'").to_arrow().num_rows == FILES + 1
        assert proxy.most_at_once >= 4
        if name != "gcs":
            assert proxy.count("GET", "*.parquet*") == FILES + 1, "one request for each small file"
        assert proxy.count("HEAD") == 0
        reopened().update({"s": "'y'"})
        assert proxy.most_at_once >= 4
        reopened().optimize()
        reopened().delete("id < 5")
        reopened().restore(version=1)
        assert proxy.most_at_once >= 4, "the files of that version are looked up"
        assert reopened().snapshot().scan().to_arrow().num_rows == FILES + 1
        table = reopened()
        table.optimize(zorder_by=["id"])
        assert proxy.most_at_once >= 6, "partitions are put in order side by side"
        assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [0, *range(FILES)]


@pytest.mark.long
def test_commits_are_read_side_by_side(s3: Emulator) -> None:
    with slow_table(s3) as (proxy, reopened):
        table = DeltaTable(reopened().uri, s3.storage_options)
        table.append(ROWS.slice(0, 1), properties={"delta.enableChangeDataFeed": "true"})
        for number in range(FILES):
            table.append(ROWS.slice(number, 1))
        table = reopened()
        proxy.clear()
        proxy.at("*", "*", Fault.SLOW, times=10_000)
        assert table.changes(starting_version=1).files().num_rows == FILES
        assert proxy.most_at_once >= 4
        assert proxy.count("GET", "*.json*") < 2 * FILES
        assert proxy.count("HEAD") == 0, "a listing tells the times of commits"


@pytest.mark.long
def test_a_batch_reads_no_more_commits_than_it_may_have(s3: Emulator) -> None:
    with slow_table(s3) as (proxy, reopened):
        source = DeltaTable(reopened().uri, s3.storage_options)
        for number in range(FILES):
            source.append(ROWS.slice(number, 1))
        far = reopened()
        proxy.clear()
        reader = IncrementalReader(
            far, DeltaTable("memory://" + str(uuid.uuid4())), bootstrap="changes", max_versions=2
        )
        batch = reader.next_batch()
        assert batch is not None
        assert (batch.starting_version, batch.ending_version) == (0, 1)
        assert [proxy.count("GET", f"*{version:020}.json*") for version in range(2, 10)] == [0] * 8


@pytest.mark.long
def test_what_a_refused_write_has_begun_is_not_sent(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_table(emulator) as (proxy, reopened):
        reopened().create(ROWS.schema, partition_by=["p"], properties={"delta.constraints.few": f"id < {FILES - 1}"})
        table = reopened()
        monkeypatch.setattr(write, "MAX_BUFFERED_BYTES", 1)
        with pytest.raises(ConstraintViolationError):
            table.append(pa.concat_tables([ROWS.slice(0, FILES - 1), ROWS.slice(FILES - 1)]))
        gc.collect()
        assert proxy.count("PUT") + proxy.count("POST") == 0


def test_an_end_that_was_cut_is_not_taken_for_the_end(s3: Emulator) -> None:
    rows = pa.table({"x": [random.random() for _ in range(50_000)]})
    with slow_table(s3) as (proxy, reopened):
        reopened().append(rows)
        table = reopened()
        proxy.clear()
        proxy.at("GET", "*.parquet*", Fault.SHORT)
        assert table.snapshot().scan().to_arrow() == rows


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 700_000])
def test_an_object_is_read_by_any_way(shared_store: LogStore, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    shared_store.put_if_absent("d/object", content)
    with shared_store.open_input("d/object") as file:
        assert file.size() == size
        for start, length in ((0, 10), (size - 10, 20), (size // 2, size), (size - 262_144, 7), (size - 262_146, 9)):
            file.seek(max(0, start))
            assert file.read(length) == content[max(0, start) :][:length]
        file.seek(0)
        assert file.read() == content
    with pytest.raises(FileMissingInStoreError):
        shared_store.open_input("d/missing")


def test_the_end_of_an_object(shared_store: LogStore) -> None:
    if not isinstance(shared_store, FlatStore):
        return  # a local file is opened, and nothing is asked for
    shared_store.put_if_absent("d/object", b"0123456789")
    full = f"{shared_store.root}/d/object"
    assert shared_store.read_end(full, 4) == (b"6789", 10)
    assert shared_store.read_end(full, 100) == (b"0123456789", 10)
    with pytest.raises(FileMissingInStoreError, match="missing"):
        shared_store.read_end(f"{shared_store.root}/d/missing", 4)
