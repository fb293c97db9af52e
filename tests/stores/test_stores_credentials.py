"""A marked secret goes through everything a pipeline step does; afterwards it is looked for in all that came out."""

from __future__ import annotations

import io
import logging
import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import StorageError
from delta_orch.storage.base import LogStore
from delta_orch.storage.log_redaction import hide_in_logs, shows_secret
from delta_orch.storage.open import open_store
from tests.harness.emulators import Emulator
from tests.harness.fault_proxy import Fault, FaultProxy, _Answer

SECRET, TOKEN = "MARKED-SECRET-5e0f", "MARKED-TOKEN-91ab"
AZURE_KEY = "TUFSS0VELVNFQ1JFVC01ZTBmLU1BUktFRC1TRUNSRVQ="
MARKS = (SECRET, TOKEN, AZURE_KEY, "MARKED-SIG", "MARKED-GOOGLE")


@pytest.fixture
def everything_logged() -> Iterator[Callable[[], str]]:
    """What every logger of the process says, at DEBUG, with tracebacks."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    names = ("botocore", "aiobotocore", "s3fs", "fsspec", "azure", "adlfs", "gcsfs", "google", "urllib3", "delta_orch")
    before = {name: logging.getLogger(name).level for name in ("", *names)}
    root.addHandler(handler)
    for name in before:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield stream.getvalue
    root.removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def _assert_unmarked(text: str) -> None:
    for mark in MARKS:
        found = text.find(mark)
        assert found < 0, f"{mark} in: …{text[max(found - 300, 0) : found + 100]}…"


def _shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(getattr(error, "context", ""))


def _contents(store: LogStore) -> str:
    return "".join(f"{f.path} {store.read_bytes(f.path)!r}" for f in store.list_recursive())


class _DenyingProxy(FaultProxy):
    """Answers as a careless server does: with all that it was sent."""

    is_denying = False

    def _forward(self, request: Any, body: bytes) -> _Answer:
        if not self.is_denying:
            return super()._forward(request, body)
        said = " ".join(f"{k}: {v}" for k, v in request.headers.items()) + request.path
        text = f"<Error><Code>SignatureDoesNotMatch</Code><Message>You said {said}</Message></Error>"
        headers = (("Content-Type", "application/xml"), ("x-ms-error-code", "AuthenticationFailed"))
        return _Answer(403, headers, text.replace("&", "&amp;").encode())


def _step(table: DeltaTable) -> list[Any]:
    """What a pipeline step does, and what it hands on."""
    rows = pa.table({"id": [1, 2], "p": ["a", "b"]})
    results: list[Any] = [table.append(rows, partition_by=["p"], txn=("job", 1)), table.append(rows, txn=("job", 1))]
    table.checkpoint()
    results += [table.snapshot(), table.snapshot().scan(where="p = 'a'"), table.history(), table.fsck(), table]
    results.append(table.snapshot().scan().to_arrow().to_pylist())
    results.append(table.optimize())
    results.append(table.store.data_filesystem())
    return results


def _failing_step(table: DeltaTable, proxy: _DenyingProxy) -> list[BaseException]:
    rows = pa.table({"id": [3], "p": ["c"]})
    failures: list[Callable[[], Any]] = [
        lambda: table.append(pa.table({"wrong": [1]})),
        lambda: table.append(rows),
        lambda: table.snapshot().scan().to_arrow(),
        lambda: table.checkpoint(),
        lambda: table.exists(),
        lambda: list(table.store.list_recursive()),
        lambda: table.store.put("x", b"1"),
    ]
    errors: list[BaseException] = []
    for number, failure in enumerate(failures):
        proxy.is_denying = number > 0
        with pytest.raises(Exception) as raised:
            failure()
        errors.append(raised.value)
    proxy.is_denying = False
    # Whatever asks, engines and Arrow included: the store's own words arrive.
    assert [type(error) for error in errors[1:]] == [StorageError] * (len(errors) - 1)
    assert all("credentials" in str(error) for error in errors[1:])
    return errors


def _options(emulator: Emulator) -> dict[str, str]:
    options = dict(emulator.storage_options)
    if emulator.name == "s3":
        options |= {"secret": SECRET, "token": TOKEN, "config_kwargs": '{"retries": {"total_max_attempts": 2}}'}
    return options


@pytest.mark.long
def test_a_secret_stays_where_it_is_put(emulator: Emulator, everything_logged: Callable[[], str]) -> None:
    marks: tuple[str, ...] = MARKS
    if emulator.name == "azure":  # Azurite checks the key
        marks = (emulator.storage_options["connection_string"].partition("AccountKey=")[2].partition(";")[0],)
    with _DenyingProxy(emulator.endpoint) as proxy:
        there = emulator.behind(proxy.endpoint)
        table = DeltaTable(there.table_uri(str(uuid.uuid4())), _options(there))
        results = _step(table)
        if emulator.name != "gcs":  # without a login there, nothing can be denied: it is tried again and again
            results += [_shown(error) for error in _failing_step(table, proxy)]
        shown = "".join(map(repr, results)) + "".join(map(str, results)) + _contents(table.store)
        for text in (shown, everything_logged(), repr(table.store) + str(vars(table.store)) + repr(table.log)):
            for mark in marks:
                found = text.find(mark)
                assert found < 0, f"{mark} in: …{text[max(found - 300, 0) : found + 100]}…"
    assert len(everything_logged()) > 10_000, "nothing was logged: the test would prove nothing"


def test_nothing_is_hidden_that_the_libraries_need(s3: Emulator, everything_logged: Callable[[], str]) -> None:
    """The signing of requests is logged at DEBUG: without redaction the token would be there."""
    store = open_store(s3.table_uri(str(uuid.uuid4())), _options(s3))
    store.put_if_absent("a", b"1")
    assert "x-amz-security-token:***" in everything_logged()


@pytest.mark.long
def test_lost_connections_and_missing_credentials_say_nothing(
    s3: Emulator, everything_logged: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(s3.endpoint) as proxy:
        store = open_store(s3.table_uri("t"), _options(s3.behind(proxy.endpoint)))
        store.ensure_can_commit()
        proxy.at("*", "*", Fault.DROP_AFTER, times=1000)
        for request in (
            lambda: store.put_if_absent("a", b"1"),
            lambda: store.read_bytes("b"),
            lambda: list(store.list_from("")),
            lambda: store.data_filesystem()[0].open_output_stream("tables/t/x").close(),
        ):
            with pytest.raises(StorageError) as raised:
                request()
            _assert_unmarked(_shown(raised.value))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    with pytest.raises(StorageError, match="no credentials"):
        open_store("s3://tables/t", {"endpoint_url": s3.endpoint, "region": "us-east-1"}).read_bytes("a")
    _assert_unmarked(everything_logged())


def test_credentials_come_from_the_environment_too(s3: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    table = DeltaTable(s3.table_uri(str(uuid.uuid4())))
    table.append(pa.table({"id": [1]}))
    assert table.snapshot().scan().to_arrow().num_rows == 1
    _assert_unmarked(_contents(table.store) + repr(table))


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/t", {"key": "AKIA", "secret": SECRET, "token": TOKEN}),
        ("gs://bucket/t", {"token": '{"type": "service_account", "private_key": "MARKED-GOOGLE"}'}),
        ("az://c/t", {"account_name": "a", "sas_token": "?sv=2024&sig=MARKED-SIG"}),
        ("az://c/t", {"account_name": "a", "account_key": AZURE_KEY}),
        ("az://c/t", {"connection_string": f"AccountName=a;AccountKey={AZURE_KEY};EndpointSuffix=core.windows.net"}),
        ("az://c/t", {"account_name": "a", "client_id": "i", "tenant_id": "t", "client_secret": SECRET}),
    ],
)
def test_no_representation_shows_options(uri: str, options: dict[str, str]) -> None:
    table = DeltaTable(uri, options)
    carried = pickle.loads(pickle.dumps(table))
    for thing in (table, carried):
        _assert_unmarked(repr(thing) + str(thing) + repr(thing.store) + repr(vars(thing.store)) + repr(thing.log))
    assert carried.store.options.library == table.store.options.library  # type: ignore[attr-defined]


def test_options_that_the_library_cannot_use_are_not_repeated() -> None:
    for uri, options in (
        ("gs://bucket/t", {"token": '{"type": "service_account", "private_key": "MARKED-GOOGLE"}'}),
        ("az://c/t", {"connection_string": f"AccountKey={AZURE_KEY}"}),
        ("s3://bucket/t", {"secret": SECRET, "key": "k", "config_kwargs": f'{{"{SECRET}": 1}}'}),
        ("s3://bucket/t", {"secret": SECRET, "profile": "no-such-profile"}),
    ):
        with pytest.raises(StorageError) as raised:
            open_store(uri, options).read_bytes("a")
        _assert_unmarked(_shown(raised.value))


def test_an_error_that_shows_a_secret_is_found_out() -> None:
    hide_in_logs([SECRET])
    inner = ValueError(f"signed with {SECRET}")
    outer = OSError("no")
    outer.__cause__ = inner
    assert shows_secret(inner)
    assert shows_secret(outer)
    assert not shows_secret(OSError("no"))
