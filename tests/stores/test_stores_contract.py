"""What every store promises, held against each kind of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError, ProtocolViolationError, StorageError
from delta_orch.storage.base import LogStore
from delta_orch.storage.local import LocalStore
from tests.harness.emulators import Emulator

LOG = "_delta_log"
NAMES = (
    "plain.json",
    "with space.json",
    "100%.json",
    "a%20b.json",
    "plus+and&and=.json",
    "hash#and?.json",
    "ü-日本-😀.json",
    "quote'\"`.json",
    "semi;colon:comma,.json",
    "~tilde (1)[2]{3}.json",
    "p=__HIVE_DEFAULT_PARTITION__.json",
)


# Exclusive creation


def test_put_if_absent_creates_once(store: LogStore) -> None:
    written = store.put_if_absent(f"{LOG}/1.json", b"first")
    assert (written.path, written.size) == (f"{LOG}/1.json", 5)
    with pytest.raises(FileExistsInStoreError):
        store.put_if_absent(f"{LOG}/1.json", b"second")
    assert store.read_bytes(f"{LOG}/1.json") == b"first"
    assert store.head(f"{LOG}/1.json") == written
    assert abs(written.modification_time_ms - time.time() * 1000) < 60_000


def test_a_staged_file_is_created_once_under_the_name_that_is_free(store: LogStore) -> None:
    store.put_if_absent(f"{LOG}/1.json", b"other")
    with store.stage(LOG, b"staged") as staged:
        with pytest.raises(FileExistsInStoreError):
            staged.put_if_absent(f"{LOG}/1.json")
        assert staged.put_if_absent(f"{LOG}/2.json") == store.head(f"{LOG}/2.json")
    assert [store.read_bytes(f.path) for f in store.list_from(LOG)] == [b"other", b"staged"]


@pytest.mark.parametrize("pieces", [0, 3, 90])
def test_content_that_comes_in_pieces_is_created_once(store: LogStore, pieces: int) -> None:
    piece = os.urandom(100_000)
    store.put_if_absent("_delta_log/1", b"other")
    with store.stage_output("_delta_log") as staged:
        for _ in range(pieces):
            staged.sink.write(piece)
        with pytest.raises(FileExistsInStoreError):
            staged.put_if_absent("_delta_log/1")
        assert [f.path for f in store.list_from("_delta_log")] == ["_delta_log/1"]
        assert staged.put_if_absent("_delta_log/2") == store.head("_delta_log/2")
    assert store.read_bytes("_delta_log/2") == piece * pieces


@pytest.mark.long
def test_of_many_threads_one_creates(shared_store: LogStore) -> None:
    for number in range(8):
        winners = _race(partial(_try_numbered, shared_store, f"{LOG}/{number}.json"))
        assert len(winners) == 1
        assert shared_store.read_bytes(f"{LOG}/{number}.json") == b"%d" % winners[0] * 1000


def _race(attempt: Callable[[int], bool], writers: int = 8) -> list[int]:
    barrier, winners = threading.Barrier(writers), list[int]()

    def run(number: int) -> None:
        barrier.wait()
        if attempt(number):
            winners.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def _try_numbered(store: LogStore, path: str, number: int) -> bool:
    return _try_create(store, path, b"%d" % number * 1000)


def _try_create(store: LogStore, path: str, data: bytes) -> bool:
    try:
        store.put_if_absent(path, data)
    except FileExistsInStoreError:
        return False
    return True


@pytest.mark.long
def test_of_many_processes_one_creates_and_no_reader_sees_a_prefix(process_store: LogStore) -> None:
    store = process_store
    store.put(f"{LOG}/_last_checkpoint", b"")  # connected before the fork: no child may use that connection
    is_local = store.uri.startswith("file:")
    context = multiprocessing.get_context("fork")
    writers, rounds, size = (8, 40, 300_000) if is_local else (4, 12, 100_000)
    barrier, wins = context.Barrier(writers), context.Queue()

    def write(number: int) -> None:
        won = 0
        for round_number in range(rounds):
            barrier.wait()
            won += _try_create(store, f"{LOG}/{round_number}.json", b"%d" % number * size)
        wins.put(won)

    processes = [context.Process(target=write, args=(n,)) for n in range(writers)]
    for process in processes:
        process.start()
    sizes: set[int] = set()
    while any(p.is_alive() for p in processes):
        time.sleep(0 if is_local else 0.05)
        sizes.update(len(store.read_bytes(f.path)) for f in store.list_from(LOG) if f.size)
    for process in processes:
        process.join()
    assert sum(wins.get() for _ in processes) == rounds
    assert sizes <= {size}
    contents = [store.read_bytes(f"{LOG}/{n}.json") for n in range(rounds)]
    assert all(len(c) == size and len(set(c)) == 1 for c in contents)
    left_over = {f.path for f in store.list_recursive()} - {f"{LOG}/{n}.json" for n in range(rounds)}
    assert left_over == {f"{LOG}/_last_checkpoint"}


# Plain writing, reading, deleting


def test_put_replaces(store: LogStore) -> None:
    store.put(f"{LOG}/_last_checkpoint", b"old")
    written = store.put(f"{LOG}/_last_checkpoint", b"newer")
    assert (written.path, written.size) == (f"{LOG}/_last_checkpoint", 5)
    assert store.read_bytes(f"{LOG}/_last_checkpoint") == b"newer"
    assert [f.path for f in store.list_from(LOG)] == [f"{LOG}/_last_checkpoint"]


def test_missing_files_have_their_own_error(store: LogStore) -> None:
    assert store.head(f"{LOG}/9.json") is None
    assert list(store.list_from(LOG)) == []
    assert list(store.list_recursive()) == []
    with pytest.raises(FileMissingInStoreError):
        store.read_bytes(f"{LOG}/9.json")
    with pytest.raises(FileMissingInStoreError):
        store.open_input(f"{LOG}/9.json")
    store.delete(f"{LOG}/9.json")


def test_delete_removes(store: LogStore) -> None:
    store.put("a/b.parquet", b"x")
    store.delete("a/b.parquet")
    assert store.head("a/b.parquet") is None
    assert list(store.list_recursive()) == []
    store.put_if_absent("a/b.parquet", b"again")


@pytest.mark.parametrize("size", [0, 1, 100, 300_000])
def test_any_range_can_be_read(store: LogStore, size: int) -> None:
    data = os.urandom(size)
    store.put_if_absent("f", data)
    assert store.read_bytes("f") == data
    with store.open_input("f") as file:
        assert file.size() == size
        file.seek(size // 2)
        assert file.read(5) == data[size // 2 : size // 2 + 5]
        file.seek(max(size - 3, 0))
        assert file.read(1000) == data[max(size - 3, 0) :]
        file.seek(0)
        assert file.read() == data


@pytest.mark.parametrize("name", NAMES)
def test_names_are_what_they_are(store: LogStore, name: str) -> None:
    path = f"{LOG}/{name}"
    store.put_if_absent(path, b"log")
    with pytest.raises(FileExistsInStoreError):
        store.put_if_absent(path, b"again")
    found = store.head(path)
    assert found is not None
    assert found.path == path
    assert [f.path for f in store.list_from(LOG)] == [path]
    assert [f.path for f in store.list_from(LOG, name)] == [path]
    assert [f.path for f in store.list_recursive()] == [path]
    assert store.read_bytes(path) == b"log"
    with store.open_input(path) as file:
        assert file.read() == b"log"
    store.delete(path)
    assert store.head(path) is None


# Listing


def test_list_from_is_sorted_flat_and_starts_at_a_name(store: LogStore) -> None:
    for name in ("10.json", "09.json", "11.checkpoint.parquet", "_last_checkpoint"):
        store.put(f"{LOG}/{name}", name.encode())
    store.put(f"{LOG}/_sidecars/a.parquet", b"x")
    store.put("_delta_log_of_another/12.json", b"x")
    names = [f.path for f in store.list_from(LOG, "10")]
    assert names == [f"{LOG}/10.json", f"{LOG}/11.checkpoint.parquet", f"{LOG}/_last_checkpoint"]
    assert [f.path for f in store.list_from(LOG, "10.json")] == names
    assert [f.path for f in store.list_from(LOG, "10.jsona")] == names[1:]
    assert [f.path for f in store.list_from(LOG, "zz")] == []
    assert store.list_names(LOG) == ["09.json", "10.json", "11.checkpoint.parquet", "_last_checkpoint"]
    assert store.list_names("nowhere") == []
    assert [f.size for f in store.list_from(LOG, "_")] == [len("_last_checkpoint")]
    assert {f.path: f.size for f in store.list_recursive()}[f"{LOG}/_sidecars/a.parquet"] == 1
    assert sum(1 for _ in store.list_recursive(LOG)) == 5
    assert sum(1 for _ in store.list_recursive()) == 6


def test_tables_are_found_at_the_root_and_below(store: LogStore) -> None:
    assert list(store.table_directories()) == []
    for path in ("a/b", "a/b-c", "a", "a.d/e e", "10"):
        store.put(f"{path}/part.parquet", b"x")
    for path in ("a/b", "a/b-c", "a.d/e e", "10"):
        store.put(f"{path}/{LOG}/0.json", b"x")
        store.put(f"{path}/{LOG}/1.json", b"x")
    store.put("a/not_delta_log/0.json", b"x")
    assert sorted(store.table_directories()) == ["10", "a.d/e e", "a/b", "a/b-c"]
    store.put(f"{LOG}/0.json", b"x")
    assert "" in list(store.table_directories())


def test_names_are_listed_by_code_point(store: LogStore) -> None:
    names = ["A", "Z", "_", "a", "z", "ä", "ﬁ"]
    if store.uri.partition(":")[0] not in ("az", "abfss"):  # ordered by UTF-16 there; names in a log are ASCII
        names.append("😀")
    for name in reversed(names):
        store.put(f"{LOG}/{name}", b"")
    assert [f.path for f in store.list_from(LOG)] == [f"{LOG}/{n}" for n in names]
    assert store.list_names(LOG) == names
    for index, name in enumerate(names):
        assert [f.path for f in store.list_from(LOG, name)] == [f"{LOG}/{n}" for n in names[index:]]


def test_on_disk_only_files_have_names(tmp_path: Path) -> None:
    """Links count as what they lead to; hidden files of writers that were killed do not count."""
    log = tmp_path / "table" / LOG
    log.mkdir(parents=True)
    for name in ("0.json", ".0123.tmp"):
        (log / name).write_bytes(b"x")
    (log / "1.json").symlink_to(log / "0.json")
    (log / "2.json").symlink_to(log / "nothing")
    (log / "3.json").symlink_to(tmp_path)
    (log / "4.json").mkdir()
    os.mkfifo(log / "5.json")
    store = LocalStore(tmp_path / "table")
    assert store.list_names(LOG) == ["0.json", "1.json"]
    assert [f.path for f in store.list_from(LOG)] == [f"{LOG}/0.json", f"{LOG}/1.json"]


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_listings_of_many_pages(cloud_store: LogStore, page: int) -> None:
    cloud_store.page_objects = page  # type: ignore[attr-defined]
    for number in range(6):
        cloud_store.put(f"{LOG}/{number}.json", b"x")
        cloud_store.put(f"{LOG}/_{number}/sub.json", b"x")
    assert [f.path for f in cloud_store.list_from(LOG)] == [f"{LOG}/{n}.json" for n in range(6)]
    assert [f.path for f in cloud_store.list_from(LOG, "3")] == [f"{LOG}/{n}.json" for n in range(3, 6)]
    assert next(iter(cloud_store.list_from(LOG, "5"))).path == f"{LOG}/5.json"
    assert sum(1 for _ in cloud_store.list_recursive()) == 12


def test_a_listing_shows_what_was_just_written_and_not_what_was_deleted(store: LogStore) -> None:
    for number in range(5):
        assert len(list(store.list_from(LOG))) == number
        written = store.put_if_absent(f"{LOG}/{number}.json", b"x" * number)
        assert list(store.list_from(LOG))[-1] == written
        assert written in list(store.list_recursive())
    store.delete(f"{LOG}/0.json")
    assert len(list(store.list_from(LOG))) == 4


# Data files


def test_data_filesystem_writes_what_the_store_lists(store: LogStore) -> None:
    filesystem, root = store.data_filesystem()
    table = pa.table({"a": [1, 2, 3]})
    filesystem.create_dir(f"{root}/day=1 x", recursive=True)
    pq.write_table(table, f"{root}/day=1 x/p.parquet", filesystem=filesystem)
    (found,) = store.list_recursive()
    assert found.path == "day=1 x/p.parquet"
    path = store.resolve("day=1%20x/p.parquet")
    assert pq.read_table(path, filesystem=filesystem).equals(table)
    (info,) = filesystem.get_file_info([path])
    assert (info.is_file, info.size) == (True, found.size)
    missing, directory = filesystem.get_file_info([f"{root}/none", f"{root}/day=1 x"])
    assert (missing.type, directory.type) == (pa.fs.FileType.NotFound, pa.fs.FileType.Directory)
    with pytest.raises(FileNotFoundError):
        filesystem.open_input_file(f"{root}/none.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_data_files_of_any_name(store: LogStore, name: str) -> None:
    filesystem, root = store.data_filesystem()
    filesystem.create_dir(f"{root}/{name}", recursive=True)
    with filesystem.open_output_stream(f"{root}/{name}/x {name}") as out:
        out.write(b"abc")
    assert [f.path for f in store.list_recursive()] == [f"{name}/x {name}"]
    with filesystem.open_input_file(f"{root}/{name}/x {name}") as file:
        assert file.read() == b"abc"


def test_large_data_files_are_read_by_ranges(store: LogStore) -> None:
    filesystem, root = store.data_filesystem()
    table = pa.table({"a": range(200_000), "b": [f"row {n * 7919 % 200_000}" for n in range(200_000)]})
    filesystem.create_dir(root, recursive=True)
    pq.write_table(table, f"{root}/p.parquet", filesystem=filesystem, row_group_size=50_000)
    file = pq.ParquetFile(filesystem.open_input_file(f"{root}/p.parquet"), pre_buffer=True)
    assert file.read().equals(table)
    assert file.read_row_group(2, columns=["a"]).column("a").to_pylist() == list(range(100_000, 150_000))


@pytest.mark.parametrize("log_path", ["../x", "a/../../x", "%2e%2e/x", "a/%2E%2E/../..", "", "a%00b"])
def test_paths_outside_the_table_are_refused(store: LogStore, log_path: str) -> None:
    with pytest.raises(ProtocolViolationError):
        store.resolve(log_path)


# Where a store may go


def test_a_store_can_be_carried_to_another_process(process_store: LogStore) -> None:
    process_store.put_if_absent("a", b"1")
    carried = pickle.loads(pickle.dumps(process_store))
    assert (repr(carried), carried.read_bytes("a")) == (repr(process_store), b"1")


def test_a_forked_child_may_use_and_leave_it(process_store: LogStore) -> None:
    process_store.put_if_absent("a", b"1")
    child = os.fork()
    if child == 0:
        is_right = False
        try:
            is_right = process_store.read_bytes("a") == b"1" and process_store.put_if_absent("b", b"2").size == 1
        finally:
            # As a child of an orchestrator ends: the parent's test session must not go on in it.
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process_store.read_bytes("b") == b"2"


_FORKS = """
import os, sys
import pyarrow as pa
from delta_orch import DeltaTable
tables = [DeltaTable(uri, options) for uri, options in eval(sys.argv[1])]
for table in tables:
    table.append(pa.table({"id": [1]}))
    assert table.snapshot().scan().to_arrow().num_rows == 1
child = os.fork()
if child == 0:
    for table in tables:
        table.append(pa.table({"id": [2]}))
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.long
def test_a_forked_child_ends_like_any_process(emulator_named: Callable[[str], Emulator]) -> None:
    """Finalizers of the libraries' connections run in it, without the threads they were made by."""
    emulators = [emulator_named(name) for name in ("s3", "gcs", "azure")]
    places = [(e.table_uri(f"{uuid.uuid4()}"), dict(e.storage_options)) for e in emulators]
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, repr(places)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_buckets_are_named(cloud_store: Any) -> None:
    missing = type(cloud_store)(replace(cloud_store.location, bucket="nobucket"), cloud_store.options)
    for request in (
        lambda: missing.read_bytes("a"),
        lambda: missing.put_if_absent("a", b""),
        lambda: missing.put("a", b""),
        lambda: list(missing.list_from(LOG)),
    ):
        with pytest.raises(StorageError) as raised:
            request()
        assert "nobucket" in str(raised.value)
