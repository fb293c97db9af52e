"""What every store promises, held against each that can be had without a network."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.errors import (
    FileExistsInStoreError,
    FileMissingInStoreError,
    InvalidRequestError,
    MissingDependencyError,
    ProtocolViolationError,
    UnsupportedStoreError,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.fsspec_store import FsspecStore
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from delta_orch.storage.open import open_store

STORES = ("local", "memory", "fsspec")
LOG = "_delta_log"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    if request.param == "local":
        return open_store(tmp_path / "table")
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4()}/table")
    return FsspecStore(f"memory://{uuid.uuid4()}/table", {"single_writer": "true"})


@pytest.fixture(params=("local", "memory"))
def exclusive_store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    """The stores that several writers may share."""
    return open_store(tmp_path / "table") if request.param == "local" else open_store(f"memory://{uuid.uuid4()}")


def test_put_if_absent_creates_once(store: LogStore) -> None:
    written = store.put_if_absent(f"{LOG}/1.json", b"first")
    assert (written.path, written.size) == (f"{LOG}/1.json", 5)
    with pytest.raises(FileExistsInStoreError):
        store.put_if_absent(f"{LOG}/1.json", b"second")
    assert store.read_bytes(f"{LOG}/1.json") == b"first"
    assert store.head(f"{LOG}/1.json") == written
    assert written.modification_time_ms > 1_600_000_000_000


def test_output_of_any_length_is_created_once_and_whole(store: LogStore) -> None:
    with store.stage_output("d") as output:
        for piece in (b"x" * 70_000, b"", b"y"):
            output.sink.write(piece)
        assert store.head("d/streamed") is None
        assert output.put_if_absent("d/streamed").size == 70_001
    assert store.read_bytes("d/streamed") == b"x" * 70_000 + b"y"
    with store.stage_output("d") as second:
        second.sink.write(b"z")
        with pytest.raises(FileExistsInStoreError):
            second.put_if_absent("d/streamed")
        assert second.put_if_absent("d/other").size == 1
    with store.stage_output("d") as empty:
        assert empty.put_if_absent("d/empty").size == 0
    with store.stage_output("d") as dropped:
        dropped.sink.write(b"never created")
    assert sorted(file.path for file in store.list_recursive()) == ["d/empty", "d/other", "d/streamed"]


def test_put_replaces(store: LogStore) -> None:
    store.put(f"{LOG}/_last_checkpoint", b"old")
    store.put(f"{LOG}/_last_checkpoint", b"newer")
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


def test_list_from_is_sorted_flat_and_starts_at_a_name(store: LogStore) -> None:
    for name in ("10.json", "09.json", "11.checkpoint.parquet", "_last_checkpoint"):
        store.put(f"{LOG}/{name}", name.encode())
    store.put(f"{LOG}/_sidecars/a.parquet", b"x")
    names = [f.path for f in store.list_from(LOG, "10")]
    assert names == [f"{LOG}/10.json", f"{LOG}/11.checkpoint.parquet", f"{LOG}/_last_checkpoint"]
    assert {f.path: f.size for f in store.list_recursive()}[f"{LOG}/_sidecars/a.parquet"] == 1
    assert sum(1 for _ in store.list_recursive(LOG)) == 5


def test_delete_removes(store: LogStore) -> None:
    store.put("a/b.parquet", b"x")
    store.delete("a/b.parquet")
    assert store.head("a/b.parquet") is None


def test_open_input_is_random_access(store: LogStore) -> None:
    store.put("f", bytes(range(100)))
    with store.open_input("f") as file:
        file.seek(90)
        assert file.read(5) == bytes(range(90, 95))
        assert file.size() == 100


def test_data_filesystem_writes_what_the_store_lists(store: LogStore) -> None:
    filesystem, root = store.data_filesystem()
    table = pa.table({"a": [1, 2, 3]})
    filesystem.create_dir(f"{root}/day=1 x", recursive=True)
    pq.write_table(table, f"{root}/day=1 x/p.parquet", filesystem=filesystem)
    assert [f.path for f in store.list_recursive()] == ["day=1 x/p.parquet"]
    assert pq.read_table(store.resolve("day=1%20x/p.parquet"), filesystem=filesystem).equals(table)


@pytest.mark.parametrize(
    ("log_path", "expected"),
    [
        ("a/b.parquet", "{root}/a/b.parquet"),
        ("a%20b/100%25.parquet", "{root}/a b/100%.parquet"),
        ("a%2520b", "{root}/a%20b"),
        ("x/../y", "{root}/x/../y"),
        ("file:/data/x%20y", "/data/x y"),
        ("file:///data/x", "/data/x"),
        ("/data/x", "/data/x"),
        ("s3://bucket/k%20ey", "s3://bucket/k ey"),
        ("a%3Ab", "{root}/a:b"),
    ],
)
def test_local_resolve(tmp_path: Path, log_path: str, expected: str) -> None:
    assert open_store(tmp_path).resolve(log_path) == expected.format(root=tmp_path)


@pytest.mark.parametrize("log_path", ["../x", "a/../../x", "%2e%2e/x", "a/%2E%2E/../..", "", "a%00b"])
def test_paths_outside_the_table_are_refused(store: LogStore, log_path: str) -> None:
    with pytest.raises(ProtocolViolationError):
        store.resolve(log_path)


def test_of_many_threads_one_creates(exclusive_store: LogStore) -> None:
    for round_number in range(20):
        winners = _race(lambda n, r=round_number: _try_create(exclusive_store, f"{LOG}/{r}.json", b"%d" % n * 1000))
        assert len(winners) == 1
        assert exclusive_store.read_bytes(f"{LOG}/{round_number}.json") == b"%d" % winners[0] * 1000


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


def _try_create(store: LogStore, path: str, data: bytes) -> bool:
    try:
        store.put_if_absent(path, data)
    except FileExistsInStoreError:
        return False
    return True


def test_of_many_processes_one_creates_and_no_reader_sees_a_prefix(tmp_path: Path) -> None:
    store = open_store(tmp_path / "table")
    context = multiprocessing.get_context("fork")
    rounds, size = 40, 300_000
    barrier, wins = context.Barrier(8), context.Queue()

    def write(number: int) -> None:
        won = 0
        for round_number in range(rounds):
            barrier.wait()
            won += _try_create(store, f"{LOG}/{round_number}.json", b"%d" % number * size)
        wins.put(won)

    processes = [context.Process(target=write, args=(n,)) for n in range(8)]
    for process in processes:
        process.start()
    sizes = set()
    while any(p.is_alive() for p in processes):
        sizes.update(len(store.read_bytes(f.path)) for f in store.list_from(LOG))
    for process in processes:
        process.join()
    assert sum(wins.get() for _ in processes) == rounds
    assert sizes <= {size}
    contents = [store.read_bytes(f"{LOG}/{n}.json") for n in range(rounds)]
    assert all(len(c) == size and len(set(c)) == 1 for c in contents)
    assert not list((tmp_path / "table" / LOG).glob(".*"))


def test_leftovers_of_killed_writers_are_not_listed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(f"{LOG}/1.json", b"x")
    (tmp_path / LOG / ".2.json.0123456789abcdef.tmp").write_bytes(b"half")
    assert [f.path for f in store.list_from(LOG)] == [f"{LOG}/1.json"]


def test_memory_tables_are_shared_by_name_and_apart_otherwise() -> None:
    name = str(uuid.uuid4())
    open_store(f"memory://{name}").put("a", b"1")
    assert open_store(f"memory://{name}/").read_bytes("a") == b"1"
    assert open_store(f"memory://{name}2").head("a") is None


def test_memory_filesystem_shows_no_unfinished_file() -> None:
    store = open_store(f"memory://{uuid.uuid4()}")
    filesystem, root = store.data_filesystem()
    with filesystem.open_output_stream(f"{root}/x") as out:
        out.write(b"abc")
        assert store.head("x") is None
    assert store.read_bytes("x") == b"abc"


def test_a_store_without_exclusive_create_refuses_to_commit() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4()}")
    with pytest.raises(UnsupportedStoreError, match="single_writer"):
        store.put_if_absent(f"{LOG}/0.json", b"x")
    assert store.head(f"{LOG}/0.json") is None


def test_fsspec_store_hides_its_options_and_survives_pickling() -> None:
    store = FsspecStore("memory://t", {"single_writer": "true", "secret": "hunter2"})
    assert "hunter2" not in repr(store) + str(store)
    assert pickle.loads(pickle.dumps(store)).uri == "memory://t"


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/data/t", "file:///data/t"),
        ("/data/t/", "file:///data/t"),
        ("file:/data/t", "file:///data/t"),
        ("file:///data/my%20t", "file:///data/my%20t"),
        ("file://localhost/data/t", "file:///data/t"),
        ("/data/my t#1", "file:///data/my%20t%231"),
        ("file:///data/my t#1", "file:///data/my%20t%231"),
        ("memory://a/b/", "memory://a/b"),
    ],
)
def test_open_store_canonical_uri(location: str, uri: str) -> None:
    assert open_store(location).uri == uri


def test_open_store_takes_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("t").uri == open_store(Path("t")).uri == (tmp_path / "t").as_uri()
    assert isinstance(open_store("t:x/y"), LocalStore)
    assert isinstance(open_store("memory://t"), MemoryStore)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("", InvalidRequestError),
        ("  ", InvalidRequestError),
        ("a\0b", InvalidRequestError),
        (None, InvalidRequestError),
        (17, InvalidRequestError),
        ("nope://a/b", UnsupportedStoreError),
        ("file://host/data", UnsupportedStoreError),
    ],
)
def test_open_store_refuses(location: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_store(location)


def test_a_store_whose_library_is_missing_says_what_to_install() -> None:
    import importlib.util

    if importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(MissingDependencyError, match=r"pip install 'delta-orch\[s3\]'"):
        open_store("s3://bucket/t")
