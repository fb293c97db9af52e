"""What becomes of a request whose answer is lost, late, wrong or old: nothing acknowledged is lost, none is doubled."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    CommitOutcomeUnknownError,
    DeltaError,
    FileExistsInStoreError,
    StorageError,
    StorageOutcomeUnknownError,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from tests.families import family
from tests.harness.emulators import Emulator
from tests.harness.fault_proxy import Fault, FaultProxy

TIMEOUTS = {
    "s3": {"read_timeout": "0.5", "connect_timeout": "2"},
    "gcs": {"requests_timeout": "0.5"},
    "azure": {"read_timeout": "0.5", "connection_timeout": "2"},
}
# GCS does not say that it has done nothing for a request that it throttles.
DONE, UNKNOWN = "done", "unknown"
_LOST = dict.fromkeys(
    (Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.HANG_AFTER), UNKNOWN
)
CREATED = {
    "s3": {**_LOST, Fault.THROTTLE: DONE, Fault.HANG_BEFORE: UNKNOWN},
    "gcs": {**_LOST, Fault.THROTTLE: UNKNOWN},
    "azure": {**_LOST, Fault.THROTTLE: DONE},
}
TAKES_EFFECT = (Fault.DROP_AFTER, Fault.ERROR_AFTER, Fault.HANG_AFTER)
CASES = [(name, fault) for name, faults in CREATED.items() for fault in faults]
IDS = [f"{name}-{fault.name.lower()}" for name, fault in CASES]


@pytest.fixture(scope="module")
def proxies(emulator_named: Callable[[str], Emulator]) -> Iterator[Callable[[str], tuple[FaultProxy, Emulator]]]:
    made: dict[str, tuple[FaultProxy, Emulator]] = {}

    def proxied(name: str) -> tuple[FaultProxy, Emulator]:
        if name not in made:
            emulator = emulator_named(name)
            proxy = FaultProxy(emulator.endpoint, hang_s=1.0).__enter__()
            made[name] = (proxy, emulator.behind(proxy.endpoint))
        made[name][0].clear()
        return made[name]

    yield proxied
    for proxy, _ in made.values():
        proxy.__exit__()


Proxied = Callable[[str], tuple[FaultProxy, Emulator]]


def _open(emulator: Emulator, name: str | None = None) -> LogStore:
    return open_store(
        emulator.table_uri(name or str(uuid.uuid4())), {**emulator.storage_options, **TIMEOUTS[emulator.name]}
    )


def _table(emulator: Emulator, name: str) -> DeltaTable:
    return DeltaTable(emulator.table_uri(name), {**emulator.storage_options, **TIMEOUTS[emulator.name]})


def _fault_at_creation(proxy: FaultProxy, name: str, fault: Fault, version: int | None = None) -> None:
    if name == "gcs":
        proxy.at("POST", "*ifGenerationMatch=0*", fault)
    else:
        proxy.at("PUT", "*.json*" if version is None else f"*{version:020}.json*", fault)


@family(("name", "fault"), CASES, ids=IDS, every=5)
def test_the_creation_of_a_commit_tells_what_is_known_of_it(proxies: Proxied, name: str, fault: Fault) -> None:
    proxy, emulator = proxies(name)
    store = _open(emulator)
    store.ensure_can_commit()
    _fault_at_creation(proxy, name, fault)
    path = f"_delta_log/{1:020}.json"
    if CREATED[name][fault] == DONE:
        assert store.put_if_absent(path, b"mine") == store.head(path)
        assert store.read_bytes(path) == b"mine"
    else:
        with pytest.raises(StorageOutcomeUnknownError) as raised:
            store.put_if_absent(path, b"mine")
        assert raised.value.context["path"].endswith(path)
        assert (store.head(path) is not None) == (fault in TAKES_EFFECT)
    if fault in TAKES_EFFECT:
        with pytest.raises(FileExistsInStoreError):
            store.put_if_absent(path, b"another's")
        assert store.read_bytes(path) == b"mine"


@pytest.mark.long
@pytest.mark.parametrize(("name", "fault"), CASES, ids=IDS)
def test_another_file_is_created_whatever_becomes_of_the_answer(proxies: Proxied, name: str, fault: Fault) -> None:
    proxy, emulator = proxies(name)
    store = _open(emulator)
    store.ensure_can_commit()
    _fault_at_creation(proxy, name, fault)
    path = f"_delta_log/{1:020}.checkpoint.0123.json"
    assert store.put_if_absent(path, b"mine") == store.head(path)
    assert store.read_bytes(path) == b"mine"
    with pytest.raises(FileExistsInStoreError):
        store.put_if_absent(path, b"other")


@pytest.mark.long
@pytest.mark.parametrize(("name", "fault"), CASES, ids=IDS)
def test_a_commit_happens_once_whatever_becomes_of_its_answer(proxies: Proxied, name: str, fault: Fault) -> None:
    proxy, emulator = proxies(name)
    table = _table(emulator, str(uuid.uuid4()))
    table.append(pa.table({"id": [1]}))
    _fault_at_creation(proxy, name, fault, version=1)
    assert table.append(pa.table({"id": [2]})).version == 1
    assert table.append(pa.table({"id": [3]})).version == 2
    assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2, 3]
    assert [h.version for h in table.history()] == [2, 1, 0]


@pytest.mark.long
@pytest.mark.parametrize("name", CREATED)
def test_a_put_that_arrives_late_changes_nothing(proxies: Proxied, name: str) -> None:
    proxy, emulator = proxies(name)
    table = _table(emulator, str(uuid.uuid4()))
    table.append(pa.table({"id": [1]}))
    _fault_at_creation(proxy, name, Fault.LATE, version=1)
    table.append(pa.table({"id": [2]}))
    time.sleep(proxy.late_s * 2)
    assert table.snapshot().version == 1
    assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2]


@pytest.mark.long
def test_a_store_that_falls_silent_leaves_the_outcome_unknown(proxies: Proxied) -> None:
    proxy, emulator = proxies("s3")
    options = {**emulator.storage_options, "config_kwargs": '{"retries": {"total_max_attempts": 1}}'}
    table = DeltaTable(emulator.table_uri(str(uuid.uuid4())), options)
    table.append(pa.table({"id": [1]}))
    proxy.at("PUT", f"*{1:020}.json*", Fault.DROP_AFTER)
    proxy.at("*", f"*{1:020}.json*", Fault.DROP_BEFORE, times=1000)
    with pytest.raises(CommitOutcomeUnknownError):
        table.append(pa.table({"id": [2]}), txn=("job", 1))
    proxy.clear()
    assert table.append(pa.table({"id": [2]}), txn=("job", 1)).skipped
    assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2]


@pytest.mark.parametrize("name", CREATED)
def test_an_old_listing_costs_a_retry_and_nothing_else(proxies: Proxied, name: str) -> None:
    proxy, emulator = proxies(name)
    uri = str(uuid.uuid4())
    table = _table(emulator, uri)
    table.append(pa.table({"id": [1]}))
    late = _table(emulator, uri)
    assert late.version() == 0
    table.append(pa.table({"id": [2]}))
    proxy.at("GET", "*prefix=*", Fault.STALE, times=20)
    fresh = _table(emulator, uri)
    assert fresh.append(pa.table({"id": [3]})).version == 2
    proxy.clear()
    assert sorted(fresh.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("name", ["s3", "gcs"])
def test_a_page_of_a_listing_that_is_refused_is_asked_for_again(proxies: Proxied, name: str) -> None:
    proxy, emulator = proxies(name)
    store = _open(emulator)
    store.page_objects = 2  # type: ignore[attr-defined]
    for number in range(5):
        store.put(f"_delta_log/{number}.json", b"x")
    token = {"s3": "*continuation-token*", "gcs": "*pageToken*"}[name]
    for fault in (Fault.THROTTLE, Fault.DROP_AFTER, Fault.ERROR_BEFORE):
        proxy.at("GET", token, fault)
        assert [f.path for f in store.list_from("_delta_log")] == [f"_delta_log/{n}.json" for n in range(5)]


@pytest.mark.long
@pytest.mark.parametrize("name", CREATED)
def test_what_is_never_sent_is_certain(emulator_named: Callable[[str], Emulator], name: str) -> None:
    emulator = emulator_named(name)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        nowhere = emulator.behind(f"http://127.0.0.1:{taken.getsockname()[1]}")
        options = {**nowhere.storage_options, "single_writer": "true"}
        if name == "s3":
            options["config_kwargs"] = '{"retries": {"total_max_attempts": 2}}'
        store: Any = open_store(nowhere.table_uri("t"), options)
        store._is_exclusive = lambda: True
        with pytest.raises(StorageError, match="cannot be reached") as raised:
            store.put_if_absent("_delta_log/0.json", b"x")
        assert type(raised.value) is StorageError


@pytest.mark.long
@pytest.mark.parametrize("name", CREATED)
@pytest.mark.parametrize("fault", [Fault.HANG_BEFORE, Fault.HANG_AFTER], ids=lambda f: f.name.lower())
def test_a_writer_killed_while_it_waits_for_the_answer(proxies: Proxied, name: str, fault: Fault) -> None:
    proxy, emulator = proxies(name)
    uri = str(uuid.uuid4())
    _table(emulator, uri).append(pa.table({"id": [1]}))
    proxy.clear()
    _fault_at_creation(proxy, name, fault, version=1)

    def write() -> None:
        _table(emulator, uri).append(pa.table({"id": [2]}), txn=("job", 7))

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    pattern = ("POST", "*ifGenerationMatch=0*") if name == "gcs" else ("PUT", f"*{1:020}.json*")
    deadline = time.monotonic() + 30
    while not proxy.count(*pattern) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    again = _table(emulator, uri).append(pa.table({"id": [2]}), txn=("job", 7))
    assert again.skipped == (fault is Fault.HANG_AFTER)
    assert sorted(_table(emulator, uri).snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2]


def test_an_endpoint_that_overwrites_is_not_written_to(s3: Emulator) -> None:
    """Some servers that speak S3 know no conditions: with them, two writers would each take a version for theirs."""
    with _ConditionBlindProxy(s3.endpoint) as proxy:
        blind = s3.behind(proxy.endpoint)
        table = DeltaTable(blind.table_uri("blind"), blind.storage_options)
        with pytest.raises(DeltaError, match="single_writer=true") as raised:
            table.append(pa.table({"id": [1]}))
        assert raised.value.code == "UNSUPPORTED_STORE"
        assert not list(table.store.list_recursive())
        alone = DeltaTable(blind.table_uri("blind"), {**blind.storage_options, "single_writer": "true"})
        assert [alone.append(pa.table({"id": [n]})).version for n in range(3)] == [0, 1, 2]
        with pytest.raises(FileExistsInStoreError):
            alone.store.put_if_absent("_delta_log/00000000000000000000.json", b"x")
    assert DeltaTable(s3.table_uri("blind"), s3.storage_options).snapshot().scan().to_arrow().num_rows == 3


class _ConditionBlindProxy(FaultProxy):
    """Forgets the condition of a request on the way."""

    def _forward(self, request, body):  # type: ignore[no-untyped-def]
        del request.headers["If-None-Match"]
        return super()._forward(request, body)


def test_a_conditional_conflict_is_tried_again(s3: Emulator) -> None:
    """S3 answers 409 where two conditional writes of one name meet; that is neither success nor "exists"."""
    with _ConflictingProxy(s3.endpoint) as proxy:
        emulator = s3.behind(proxy.endpoint)
        store = open_store(emulator.table_uri(str(uuid.uuid4())), emulator.storage_options)
        store.ensure_can_commit()
        proxy.conflicts = 3
        store.put_if_absent("a.json", b"1")
        assert proxy.conflicts == 0
        assert store.read_bytes("a.json") == b"1"
        proxy.conflicts = 1
        with pytest.raises(FileExistsInStoreError):
            store.put_if_absent("a.json", b"2")


class _ConflictingProxy(FaultProxy):
    conflicts = 0

    def _forward(self, request, body):  # type: ignore[no-untyped-def]
        from tests.harness.fault_proxy import _failure

        if request.command == "PUT" and self.conflicts:
            self.conflicts -= 1
            return _failure(409, "ConditionalRequestConflict")
        return super()._forward(request, body)


PARTS = {
    "s3": [("POST", "*?uploads*"), ("PUT", "*partNumber=1*"), ("PUT", "*partNumber=2*"), ("POST", "*uploadId=*")],
    "gcs": [("POST", "*uploadType=resumable*"), ("PUT", "*upload_id=*")],
    "azure": [("PUT", "*comp=block&*"), ("PUT", "*comp=blocklist*")],
}
PART_BYTES = {"s3": "default_block_size", "gcs": "block_size", "azure": "blocksize"}


# The emulator of GCS refuses a part that it already has. GCS ignores bytes that it already has.
LOST_PARTS = [
    (name, fault)
    for name in CREATED
    for fault in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.DROP_AFTER, Fault.THROTTLE)
    if name != "gcs" or fault not in TAKES_EFFECT
]


@pytest.mark.parametrize(("name", "fault"), LOST_PARTS)
def test_a_large_file_is_whole_whatever_becomes_of_an_answer(proxies: Proxied, name: str, fault: Fault) -> None:
    """Each request of an upload in parts fails once: the beginning, a part, the end."""
    proxy, emulator = proxies(name)
    emulator = replace(emulator, storage_options={**emulator.storage_options, PART_BYTES[name]: "5242880"})
    content = random.Random(name).randbytes(13_000_000)
    for request in PARTS[name]:
        filesystem, root = _open(emulator).data_filesystem()
        proxy.clear()
        proxy.at(*request, fault)
        with filesystem.open_output_stream(f"{root}/large.parquet") as sink:
            for start in range(0, len(content), 1_000_003):
                sink.write(content[start : start + 1_000_003])
        assert proxy.count(*request) > 1, proxy.seen
        with filesystem.open_input_file(f"{root}/large.parquet") as source:
            assert source.read() == content


@pytest.mark.parametrize("name", CREATED)
def test_a_large_file_that_cannot_be_sent_does_not_appear(
    proxies: Proxied, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTA_ORCH_RETRY_SECONDS", "0")
    proxy, emulator = proxies(name)
    emulator = replace(emulator, storage_options={**emulator.storage_options, PART_BYTES[name]: "5242880"})
    store = open_store(emulator.table_uri(str(uuid.uuid4())), emulator.storage_options)
    filesystem, root = store.data_filesystem()
    sink = filesystem.open_output_stream(f"{root}/large.parquet")
    sink.write(bytes(6_000_000))
    proxy.at("*", "*", Fault.ERROR_BEFORE, times=1000)
    with pytest.raises(StorageError):
        sink.write(bytes(10_000_000))
    proxy.clear()
    sink.close()
    dropped = filesystem.open_output_stream(f"{root}/dropped.parquet")
    dropped.write(bytes(16_000_000))
    del sink, dropped
    gc.collect()
    assert store.head("large.parquet") is None
    assert store.head("dropped.parquet") is None


@pytest.mark.parametrize("request_number", range(len(PARTS["s3"])))
def test_s3_does_not_keep_the_parts_of_a_failed_upload(
    proxies: Proxied, request_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 charges for parts until an upload is finished or aborted. After a failure nothing more is sent."""
    monkeypatch.setenv("DELTA_ORCH_RETRY_SECONDS", "0")
    proxy, emulator = proxies("s3")
    emulator = replace(emulator, storage_options={**emulator.storage_options, PART_BYTES["s3"]: "5242880"})
    store: Any = open_store(emulator.table_uri(str(uuid.uuid4())), emulator.storage_options)
    filesystem, root = store.data_filesystem()
    proxy.at(*PARTS["s3"][request_number], Fault.ERROR_BEFORE)
    sink = filesystem.open_output_stream(f"{root}/large.parquet")
    with pytest.raises(StorageError):
        for _ in range(4):
            sink.write(bytes(4_000_000))
        sink.close()
    sink.close()
    key = f"{store.location.key}/large.parquet"
    uploads = store.client.list_multipart_uploads(Bucket=store.location.bucket, Prefix=key)
    assert not uploads.get("Uploads")
    assert store.head("large.parquet") is None


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({}, "CRC32"),
        ({"s3_additional_kwargs": '{"ChecksumAlgorithm": "SHA256"}'}, "SHA256"),
        ({"config_kwargs": '{"request_checksum_calculation": "when_required"}'}, None),
    ],
)
def test_an_upload_announces_the_checksums_of_its_parts(
    s3: Emulator, options: dict[str, str], algorithm: str | None
) -> None:
    options = {**s3.storage_options, "default_block_size": "0", **options}
    store: Any = open_store(s3.table_uri(str(uuid.uuid4())), options)
    sent: dict[str, str] = {}

    def keep(model: Any, params: Any, **_: object) -> None:
        sent.update({name.lower(): value for name, value in params["headers"].items()})

    store.client.meta.events.register("before-call.s3", keep)
    filesystem, root = store.data_filesystem()
    with filesystem.open_output_stream(f"{root}/large.parquet") as sink:
        sink.write(bytes(6_000_000))
    assert sent.get("x-amz-checksum-algorithm") == algorithm  # Of the upload.
    assert sent.get("x-amz-sdk-checksum-algorithm") == algorithm  # Of a part.
    assert store.head("large.parquet").size == 6_000_000


def test_the_echo_of_our_own_commit_is_known_for_it(s3: Emulator) -> None:
    """Something on the way repeats each PUT: the second answer, that the name is taken, is the only one to arrive."""
    with _RepeatingProxy(s3.endpoint) as proxy:
        emulator = s3.behind(proxy.endpoint)
        name = str(uuid.uuid4())
        DeltaTable(s3.table_uri(name), s3.storage_options).append(pa.table({"id": [1]}))
        table = DeltaTable(emulator.table_uri(name), {**emulator.storage_options, "single_writer": "false"})
        proxy.is_repeating = True
        for number in range(2, 5):
            result = table.append(pa.table({"id": [number]}))
            assert (result.version, result.rebased_versions) == (number - 1, ())
        assert sorted(table.snapshot().scan().to_arrow().column("id").to_pylist()) == [1, 2, 3, 4]


class _RepeatingProxy(FaultProxy):
    is_repeating = False

    def _forward(self, request, body):  # type: ignore[no-untyped-def]
        if self.is_repeating and request.command == "PUT":
            super()._forward(request, body)
        return super()._forward(request, body)
