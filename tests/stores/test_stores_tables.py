"""Whole tables in object stores: every verb of the local engine, log and data files through the store."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import MissingFileError, StorageError, TableNotFoundError
from delta_orch.storage.open import open_store
from tests.harness.emulators import Emulator

NAMES = ["plain", "a/b", "c?d#e", "ü %20", "with space", "x=y&z+1", "😀", ""]


def _table(emulator: Emulator, name: str | None = None) -> DeltaTable:
    return DeltaTable(emulator.table_uri(name or f"{uuid.uuid4()}/a table"), emulator.storage_options)


def _rows(start: int, count: int = 8) -> pa.Table:
    return pa.table({"id": range(start, start + count), "p": [NAMES[n % len(NAMES)] for n in range(count)]})


def _ids(table: DeltaTable, **version: Any) -> list[int]:
    return sorted(table.snapshot(**version).scan(["id"]).to_arrow().column("id").to_pylist())


@pytest.mark.long
def test_the_life_of_a_table(emulator: Emulator) -> None:
    table = _table(emulator)
    assert not table.exists()
    with pytest.raises(TableNotFoundError):
        table.snapshot()
    properties = {"delta.enableChangeDataFeed": "true"}
    table.create(_rows(0).schema, partition_by=["p"], properties=properties)
    table.append(_rows(0))
    table.append(_rows(8), txn=("job", 1))
    assert table.append(_rows(8), txn=("job", 1)).skipped
    table.checkpoint()
    table.overwrite(pa.table({"id": [100], "p": ["c?d#e"]}), replace_where="p = 'c?d#e'")
    expected = sorted([*(n for n in range(16) if n % 8 != 2), 100])

    again = _table(emulator, table.uri.removeprefix(emulator.root))
    assert again.uri == table.uri
    assert _ids(again) == expected
    assert _ids(again, version=1) == list(range(8))
    assert again.snapshot().scan(where="p = 'a/b'").to_arrow().column("id").to_pylist() == [1, 9]
    assert [h.operation for h in again.history()][-1] == "CREATE TABLE"
    changes = again.changes(starting_version=1).to_arrow()
    kinds = changes.column("_change_type").to_pylist()
    assert (kinds.count("insert"), kinds.count("delete")) == (17, 2)

    optimized = again.optimize()
    assert optimized.operation_metrics["numAddedFiles"] == 7
    assert _ids(again) == expected
    deleted = again.vacuum(retention_hours=0, enforce_retention=False)
    assert deleted.num_files >= 14
    assert _ids(_table(emulator, table.uri.removeprefix(emulator.root))) == expected
    with pytest.raises(MissingFileError):
        _ids(again, version=2)
    assert table.fsck(check_files=True).ok


@pytest.mark.long
def test_four_processes_append_at_once(emulator: Emulator) -> None:
    table = _table(emulator)
    table.append(_rows(0))
    writers, appends = 4, 4
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(writers)

    def write(writer: int) -> None:
        barrier.wait()
        for number in range(appends):
            table.append(_rows(1000 * (writer + 1) + 8 * number), txn=(f"writer-{writer}", number))

    processes = [context.Process(target=write, args=(n,)) for n in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * writers
    fresh = _table(emulator, table.uri.removeprefix(emulator.root))
    assert fresh.version() == writers * appends
    wanted = [1000 * (w + 1) + n for w in range(writers) for n in range(8 * appends)]
    assert _ids(fresh) == _ids(table) == sorted([*range(8), *wanted])
    commits = [f.path for f in fresh.store.list_from("_delta_log", "0" * 20) if f.path.endswith(".json")]
    assert len(commits) == writers * appends + 1


def test_deltalake_reads_and_appends(s3: Emulator) -> None:
    import deltalake

    table = _table(s3, f"{uuid.uuid4()}")
    table.append(_rows(0), partition_by=["p"])
    table.checkpoint()
    table.append(_rows(8))
    options = {
        "AWS_ACCESS_KEY_ID": s3.storage_options["key"],
        "AWS_SECRET_ACCESS_KEY": s3.storage_options["secret"],
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    referee = deltalake.DeltaTable(table.uri, storage_options=options)
    read = pa.table(referee.to_pyarrow_table()).sort_by("id")
    assert read.column("id").to_pylist() == list(range(16))
    assert read.column("p").to_pylist() == [None if n == "" else n for n in NAMES * 2]
    deltalake.write_deltalake(referee, _rows(16, 4), mode="append")
    # The same options lead to the same place here.
    ours = DeltaTable(table.uri, options)
    assert _ids(ours) == list(range(20))
    ours.append(_rows(20, 1))
    assert deltalake.DeltaTable(table.uri, storage_options=options).version() == 3


def test_absolute_paths_into_another_bucket(s3: Emulator) -> None:
    """A shallow clone names the files of its source by whole URIs, each client by the scheme it likes."""
    source = _table(s3, str(uuid.uuid4()))
    source.append(_rows(0, 3))
    clone = _table(s3, str(uuid.uuid4()))
    lines = source.store.read_bytes(f"_delta_log/{0:020}.json").decode().splitlines()
    for scheme in ("s3a", "s3"):
        actions = [json.loads(line) for line in lines]
        for action in actions:
            if "add" in action:
                path = source.uri.replace("s3:", f"{scheme}:") + "/" + action["add"]["path"]
                action["add"]["path"] = path
        clone = _table(s3, str(uuid.uuid4()))
        clone.store.put_if_absent(f"_delta_log/{0:020}.json", "\n".join(map(json.dumps, actions)).encode())
        assert _ids(clone) == [0, 1, 2]


def test_a_bucket_may_be_a_table(s3: Emulator) -> None:
    from urllib.request import Request, urlopen

    bucket = f"whole-{uuid.uuid4()}"
    urlopen(Request(f"{s3.endpoint}/{bucket}", method="PUT")).close()
    table = DeltaTable(f"s3://{bucket}/", s3.storage_options)
    table.append(_rows(0), partition_by=["p"])
    table.append(_rows(8))
    table.checkpoint()
    table.optimize()
    assert table.vacuum(retention_hours=0, enforce_retention=False).num_files == 16
    assert (table.uri, _ids(DeltaTable(f"s3a://{bucket}", s3.storage_options))) == (f"s3://{bucket}", list(range(16)))


def test_a_file_that_is_gone_is_named(emulator: Emulator) -> None:
    table = _table(emulator)
    table.append(pa.table({"id": [1]}))
    (data,) = (f.path for f in table.store.list_recursive() if f.path.endswith(".parquet"))
    table.store.delete(data)
    with pytest.raises(MissingFileError, match=r"part-.*parquet"):
        _ids(table)


def test_requests_of_a_commit_and_of_a_reader_who_knows_the_table(s3: Emulator) -> None:
    """What each costs in requests: a listing where one is needed, and no request that says what is known."""
    from tests.harness.fault_proxy import FaultProxy

    with FaultProxy(s3.endpoint) as proxy:
        emulator = s3.behind(proxy.endpoint)
        table = _table(emulator, str(uuid.uuid4()))
        for number in range(3):
            table.append(pa.table({"id": [number]}))
        proxy.clear()
        table.append(pa.table({"id": [3]}))
        puts = proxy.count("PUT")
        assert (puts, proxy.count("GET", "*list-type*")) == (2, 0)
        proxy.clear()
        assert table.version() == 3
        assert proxy.count("GET", "*list-type*") == 0
        assert len(proxy.seen) <= 4, proxy.seen
        fresh = _table(emulator, table.uri.removeprefix(emulator.root))
        proxy.clear()
        assert fresh.version() == 3
        assert proxy.count("GET", "*list-type*") == 1


def test_a_listing_begins_where_it_is_asked_to(emulator: Emulator) -> None:
    """The log of an old table has thousands of files in front of the ones a reader needs."""
    from tests.harness.fault_proxy import FaultProxy

    with FaultProxy(emulator.endpoint) as proxy:
        there = emulator.behind(proxy.endpoint)
        store = open_store(there.table_uri(str(uuid.uuid4())), there.storage_options)
        for number in range(12):
            store.put(f"_delta_log/{number:020}.json", b"{}")
        proxy.clear()
        names = [f.path for f in store.list_from("_delta_log", f"{9:020}")]
        assert len(names) == 3
        (request,) = proxy.seen
        offset = {"s3": "start-after=", "gcs": "startOffset=", "azure": "startFrom="}[emulator.name]
        assert offset in request
        assert f"{9:020}"[:-1] in request.partition(offset)[2].partition("&")[0]


def test_wrong_credentials_are_told(emulator_named: Callable[[str], Emulator]) -> None:
    emulator = emulator_named("azure")  # the others' emulators take every credential
    options = dict(emulator.storage_options)
    options["connection_string"] = options["connection_string"].replace("AccountKey=E", "AccountKey=F")
    table = DeltaTable(emulator.table_uri("t"), options)
    for request in (table.exists, lambda: table.append(pa.table({"id": [1]})), table.version):
        with pytest.raises(StorageError, match="credentials"):
            request()
