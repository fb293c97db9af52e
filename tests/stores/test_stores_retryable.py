"""`retryable` tells the truth for every store, and what passes is waited for."""

from __future__ import annotations

import errno
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import (
    CommitOutcomeUnknownError,
    InvalidRequestError,
    StorageError,
    StorageOutcomeUnknownError,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.fsspec_store import FsspecStore
from delta_orch.storage.open import open_store
from delta_orch.storage.patience import Patience, retry_seconds
from tests.harness.emulators import Emulator
from tests.harness.fault_proxy import Fault, FaultProxy

CLOUDS = ("s3", "gcs", "azure")
ONCE = {
    "s3": {"read_timeout": "0.4", "connect_timeout": "1", "config_kwargs": '{"retries": {"total_max_attempts": 1}}'},
    "gcs": {"requests_timeout": "0.4"},
    "azure": {"read_timeout": "0.4", "connection_timeout": "1"},
}
PASSING = (Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.ERROR_BEFORE, Fault.THROTTLE, Fault.HANG_BEFORE)
FINAL = (Fault.DENY, Fault.REJECT)
PATH = "_delta_log/1.json"
CALLS: dict[str, Callable[[LogStore], object]] = {
    "read": lambda store: store.read_bytes(PATH),
    "head": lambda store: store.head(PATH),
    "list": lambda store: list(store.list_from("_delta_log")),
    "create": lambda store: store.put_if_absent(f"_delta_log/{uuid.uuid4()}.json", b"x"),
    "put": lambda store: store.put("_delta_log/_last_checkpoint", b"x"),
    "delete": lambda store: store.delete("x"),
    "data file": lambda store: _write(store),
}


def _write(store: LogStore) -> None:
    filesystem, root = store.data_filesystem()
    with filesystem.open_output_stream(f"{root}/{uuid.uuid4()}.parquet") as sink:
        sink.write(b"x" * 1000)


@pytest.fixture
def patience() -> Iterator[Callable[[float], None]]:
    yield lambda seconds: delta_orch.configure(retry_seconds=seconds)
    delta_orch.configure(retry_seconds=None)


@pytest.fixture(scope="module")
def proxies(emulator_named: Callable[[str], Emulator]) -> Iterator[Callable[[str], tuple[FaultProxy, LogStore]]]:
    made: dict[str, tuple[FaultProxy, Emulator]] = {}

    def proxied(name: str) -> tuple[FaultProxy, LogStore]:
        if name not in made:
            emulator = emulator_named(name)
            proxy = FaultProxy(emulator.endpoint, hang_s=0.8).__enter__()
            made[name] = (proxy, emulator.behind(proxy.endpoint))
        proxy, emulator = made[name]
        proxy.clear()
        store = open_store(emulator.table_uri(str(uuid.uuid4())), {**emulator.storage_options, **ONCE[name]})
        store.ensure_can_commit()
        store.put_if_absent(PATH, b"x")
        return proxy, store

    yield proxied
    for proxy, _ in made.values():
        proxy.__exit__()


Proxied = Callable[[str], tuple[FaultProxy, LogStore]]


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CLOUDS)
def test_an_error_tells_whether_trying_again_can_help(proxies: Proxied, patience: Any, name: str, call: str) -> None:
    proxy, store = proxies(name)
    patience(0)
    for fault in (*PASSING, *FINAL):
        proxy.clear()
        proxy.at("*", "*", fault, times=100)
        with pytest.raises(StorageError) as caught:
            CALLS[call](store)
        assert caught.value.retryable == (fault in PASSING), (fault, caught.value)


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CLOUDS)
def test_what_passes_is_waited_for(proxies: Proxied, patience: Any, name: str, call: str) -> None:
    proxy, store = proxies(name)
    patience(20)
    for fault in (Fault.DROP_BEFORE, Fault.ERROR_BEFORE, Fault.THROTTLE):
        if call in ("create", "put") and not (name == "s3" and fault is Fault.THROTTLE):
            continue  # of unknown outcome: whoever calls looks first
        proxy.clear()
        proxy.at("*", "*", fault, times=3)
        CALLS[call](store)
        assert len(proxy.seen) > 3


@pytest.mark.parametrize("name", CLOUDS)
def test_what_does_not_pass_is_not_waited_for(proxies: Proxied, patience: Any, name: str) -> None:
    proxy, store = proxies(name)
    patience(60)
    proxy.clear()
    proxy.at("*", "*", Fault.DENY, times=100)
    with pytest.raises(StorageError):
        store.read_bytes(PATH)
    assert len(proxy.seen) < 5


@pytest.mark.parametrize("name", CLOUDS)
def test_a_port_that_refuses(emulator_named: Callable[[str], Emulator], patience: Any, name: str) -> None:
    patience(0)
    emulator = emulator_named(name)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        nowhere = emulator.behind(f"http://127.0.0.1:{taken.getsockname()[1]}")
        table = DeltaTable(nowhere.table_uri("t"), {**nowhere.storage_options, **ONCE[name]})
        with pytest.raises(StorageError) as caught:
            table.snapshot()
        assert caught.value.retryable


@pytest.mark.parametrize("name", CLOUDS)
def test_a_missing_bucket_stays_missing(emulator_named: Callable[[str], Emulator], patience: Any, name: str) -> None:
    patience(60)
    emulator = emulator_named(name)
    uri = emulator.table_uri("t").replace("tables", "no-such-bucket-here")
    started = time.monotonic()
    with pytest.raises(StorageError) as caught:
        DeltaTable(uri, {**emulator.storage_options, **ONCE[name]}).append(pa.table({"id": [1]}))
    assert not caught.value.retryable
    assert time.monotonic() - started < 50


@pytest.mark.long
@pytest.mark.parametrize("name", CLOUDS)
def test_a_commit_survives_a_store_that_fails_for_a_moment(
    emulator_named: Callable[[str], Emulator], patience: Any, name: str
) -> None:
    patience(30)
    emulator = emulator_named(name)
    with FaultProxy(emulator.endpoint) as proxy:
        there = emulator.behind(proxy.endpoint)
        table = DeltaTable(there.table_uri(str(uuid.uuid4())), {**there.storage_options, **ONCE[name]})
        table.append(pa.table({"id": [0]}))
        for number, fault in enumerate((Fault.DROP_AFTER, Fault.ERROR_AFTER, Fault.DROP_BEFORE, Fault.THROTTLE), 1):
            # Whatever it is that is asked, four times in a row.
            proxy.at("*", "*", fault, times=4)
            assert table.append(pa.table({"id": [number]})).version == number
        assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [0, 1, 2, 3, 4]


def test_an_unknown_outcome_is_retryable_where_running_again_is_safe(proxies: Proxied, patience: Any) -> None:
    proxy, store = proxies("s3")
    table = DeltaTable(store.uri, dict(store.options.library))  # type: ignore[attr-defined]
    table.append(pa.table({"id": [1]}))
    patience(0.5)
    for txn, expected in ((None, False), (("job", 1), True)):
        proxy.clear()
        proxy.at("PUT", f"*{1:020}.json*", Fault.DROP_BEFORE, times=1000)
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            table.append(pa.table({"id": [2]}), txn=txn)
        assert caught.value.retryable == expected
    proxy.clear()
    table.append(pa.table({"id": [2]}), txn=("job", 1))
    assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((getattr(errno, n), True) for n in ("ETIMEDOUT", "ESTALE", "EHOSTUNREACH", "EAGAIN", "ECONNRESET", "EBUSY")),
        *((getattr(errno, n), False) for n in ("ENOSPC", "EACCES", "EROFS", "EIO", "ENOENT", "ENAMETOOLONG")),
    ],
)
def test_a_mounted_file_system(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, patience: Any, code: int, expected: bool
) -> None:
    patience(0)
    store = open_store(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("delta_orch.storage.local.os.open", fail)
    with pytest.raises(StorageError) as caught:
        store.put_if_absent("a", b"x")
    assert caught.value.retryable == expected
    assert caught.value.context.get("retryable", False) == expected


class Moody:
    """A file system of fsspec that fails some times."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times = error, times

    def invalidate_cache(self, path: str) -> None:
        """There is none."""

    def cat_file(self, path: str) -> bytes:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return b"x"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(TimeoutError("slow"), True), (ConnectionResetError(), True), (PermissionError(13, "no"), False),
     (RuntimeError("sftp"), False)],
)  # fmt: skip
def test_any_other_file_system(patience: Any, error: Exception, expected: bool) -> None:
    patience(5)
    store = FsspecStore(f"memory://{uuid.uuid4()}")
    store._made = (os.getpid(), Moody(error, 3))
    if expected:
        assert store.read_bytes("a") == b"x"
    patience(0)
    store._made = (os.getpid(), Moody(error, 3))
    with pytest.raises(StorageError) as caught:
        store.read_bytes("a")
    assert caught.value.retryable == expected


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5", 1e9])
def test_the_time_is_a_number_of_seconds(patience: Any, wrong: Any) -> None:
    patience(7)
    with pytest.raises(InvalidRequestError, match="retry_seconds"):
        delta_orch.configure(retry_seconds=wrong)
    assert retry_seconds() == 7


def test_the_environment_sets_the_time(patience: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_ORCH_RETRY_SECONDS", "3.5")
    assert retry_seconds() == 3.5
    monkeypatch.delenv("DELTA_ORCH_RETRY_SECONDS")
    assert retry_seconds() == 60
    monkeypatch.setenv("DELTA_ORCH_RETRY_SECONDS", "soon")
    with pytest.raises(InvalidRequestError, match="DELTA_ORCH_RETRY_SECONDS"):
        retry_seconds()


def test_pauses_grow_and_end(patience: Any) -> None:
    patience(0.3)
    waited = Patience()
    times = 0
    while waited.wait():
        times += 1
    assert 1 <= times <= 15


def test_unknown_outcomes_of_a_store_say_so(proxies: Proxied, patience: Any) -> None:
    proxy, store = proxies("azure")
    patience(0)
    proxy.at("PUT", "*.json*", Fault.ERROR_AFTER)
    with pytest.raises(StorageOutcomeUnknownError) as caught:
        store.put_if_absent("_delta_log/2.json", b"x")
    assert caught.value.retryable
