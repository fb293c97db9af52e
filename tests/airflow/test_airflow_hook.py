"""`DeltaHook`: where tables are and which options open them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

import delta_orch
from delta_orch import DeltaTable
from delta_orch.airflow import DeltaWriteOperator
from delta_orch.airflow.hook import DeltaHook
from delta_orch.airflow.versions import RELEASE, AirflowNotFoundException
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import redact, reset_secrets_masker

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

Define = Callable[[str, str], None]


def extra(**values: object) -> str:
    return json.dumps({"conn_type": "delta", "extra": values})


def test_connection_from_the_environment(connection: Define, tmp_path: Path) -> None:
    connection("delta_default", extra(table_root=str(tmp_path), region="eu-1", storage_options='{"secret": "s3cr3t"}'))
    hook = DeltaHook()
    assert hook.table("flights").uri == f"file://{tmp_path}/flights"
    root, options = hook._settings or (None, {})
    assert (root, options) == (str(tmp_path), {"region": "eu-1", "secret": "s3cr3t"})


def test_default_connection_need_not_exist(tmp_path: Path) -> None:
    assert DeltaHook().table(str(tmp_path / "t")).uri == f"file://{tmp_path}/t"


def test_named_connection_must_exist(tmp_path: Path) -> None:
    with pytest.raises(AirflowNotFoundException, match="lake"):
        DeltaHook("lake").table(str(tmp_path / "t"))


def test_asset_uri_is_understood(tmp_path: Path) -> None:
    assert DeltaHook().table(f"delta://file{tmp_path}/t").uri == f"file://{tmp_path}/t"


def test_absolute_uri_ignores_the_root(connection: Define, tmp_path: Path) -> None:
    connection("lake", extra(table_root="/elsewhere"))
    assert DeltaHook("lake").table(f"file://{tmp_path}/t").uri == f"file://{tmp_path}/t"


def test_relative_uri_without_root_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="relative"):
        DeltaHook().table("flights")


@pytest.mark.parametrize("uri", ["delta://key:sec%2Fret@host/bucket", "delta://host", "delta://:password@"])
def test_what_a_connection_would_not_use_is_refused(connection: Define, uri: str) -> None:
    connection("uri", uri)
    with pytest.raises(InvalidRequestError, match="by its extra only") as caught:
        DeltaHook("uri").table("/t")
    assert "sec/ret" not in str(caught.value)


@pytest.mark.parametrize("name", ["r&oot %41", "a=b;c?d#e", "é +'"])
def test_connections_as_uri_and_json_keep_odd_characters(connection: Define, tmp_path: Path, name: str) -> None:
    root = str(tmp_path / name)
    text = json.dumps({"table_root": root})
    connection("plain", "delta:///?" + urlencode({"table_root": root}))
    connection("nested", "delta:///?" + urlencode({"__extra__": text}))
    connection("text", json.dumps({"conn_type": "delta", "extra": text}))
    connection("object", extra(table_root=root))
    expected = DeltaTable(Path(root) / "t").uri
    assert [DeltaHook(conn).table("t").uri for conn in ("plain", "nested", "text", "object")] == [expected] * 4


@pytest.mark.parametrize("broken", ['{"secret": "s3cr3t"', '["s3cr3t"]', "s3cr3t"])
def test_malformed_extra_is_refused_without_being_quoted(connection: Define, broken: str) -> None:
    connection("lake", json.dumps({"conn_type": "delta", "extra": broken}))
    # Before 3.2 Airflow itself refuses it, and passes that off as no connection.
    refusal = (InvalidRequestError, "not a JSON object") if RELEASE >= (3, 2) else (AirflowNotFoundException, "defined")
    connection("delta_default", json.dumps({"conn_type": "delta", "extra": broken}))
    for name in ("lake", "delta_default"):
        with pytest.raises(refusal[0], match=refusal[1]) as found:
            DeltaHook(name).table("/t")
        assert "s3cr3t" not in str(found.value)
    connection("lake", extra(storage_options=broken))
    with pytest.raises(InvalidRequestError, match="not a JSON object") as caught:
        DeltaHook("lake").table("/t")
    assert "s3cr3t" not in str(caught.value)


def test_options_are_not_shown(connection: Define, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    connection("lake", extra(table_root=str(tmp_path), token="s3cr3t", storage_options='{"password": "pa55"}'))
    with caplog.at_level(logging.DEBUG):
        hook = DeltaHook("lake")
        table = hook.table("flights")
    shown = f"{hook!r} {hook} {table!r} {caplog.text}"
    assert "s3cr3t" not in shown
    assert "pa55" not in shown


def test_test_connection(connection: Define, tmp_path: Path) -> None:
    connection("lake", extra(table_root=str(tmp_path)))
    assert DeltaHook("lake").test_connection() == (True, f"{tmp_path} can be listed.")
    connection("lake", extra(region="eu-1"))
    assert DeltaHook("lake").test_connection()[0]
    connection("lake", extra(table_root="nosuchscheme://x"))
    ok, message = DeltaHook("lake").test_connection()
    assert not ok
    assert message.startswith("UNSUPPORTED_STORE")


def test_hook_is_found_by_connection_type(connection: Define, runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """`BaseHook.get_hook` is how generic Airflow code gets from a connection to its hook, here inside a task."""
    connection("lake", extra(table_root=str(tmp_path)))
    with DAG("hook_by_type", schedule=None) as dag:

        @task
        def resolve() -> str:
            from delta_orch.airflow.versions import BaseHook

            hook = BaseHook.get_hook("lake")
            assert isinstance(hook, DeltaHook)
            return hook.table("flights").uri

        resolve()
    run = runs.run(dag)
    assert runs.xcom(run, "resolve") == f"file://{tmp_path}/flights"


SECRETS = {"account_key": "S3CR3T-account", "key": "S3CR3T-key", "sas_token": "sv=1&sig=S3CR3T-signature"}


@pytest.mark.parametrize("place", ["extra", "storage_options", "storage_options text", "secret_storage_options"])
def test_every_secret_value_is_masked_in_logs(connection: Define, place: str) -> None:
    nested = {"client_kwargs": {"aws_session_token": "S3CR3T-nested"}}
    options = {**SECRETS, **nested, "connection_string": "AccountName=a;AccountKey=S3CR3T-part;x=y"}
    places: dict[str, Any] = {
        "extra": options,
        "storage_options": {"storage_options": options},
        "storage_options text": {"storage_options": json.dumps(options)},
        "secret_storage_options": {"secret_storage_options": json.dumps(options)},
    }
    reset_secrets_masker()
    connection("lake", extra(**places[place]))
    DeltaHook("lake").table("memory://t")
    for said in ("S3CR3T-account", "S3CR3T-key", "S3CR3T-signature", "S3CR3T-nested", "S3CR3T-part"):
        assert "S3CR3T" not in str(redact(f"the log says {said}!")), said


def test_the_rest_api_shows_no_secret_of_the_secret_field() -> None:
    """What the form and the REST API answer: Airflow's own model."""
    from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
    from airflow.models import Connection  # noqa: TID251 (what the API server reads)

    stored = Connection(
        conn_id="lake",
        conn_type="delta",
        extra=json.dumps({"region": "eu-1", "secret_storage_options": json.dumps(SECRETS)}),
    )
    shown = ConnectionResponse.model_validate(stored, from_attributes=True).model_dump_json()
    assert "S3CR3T" not in shown
    assert "eu-1" in shown


def test_secrets_where_airflow_shows_them_are_warned_of(connection: Define, caplog: pytest.LogCaptureFixture) -> None:
    connection("lake", extra(account_key="S3CR3T", secret="hidden", storage_options='{"token": "t0ken"}'))
    with caplog.at_level(logging.WARNING):
        DeltaHook("lake").table("memory://t")
    assert "account_key, token" in caplog.text
    assert "S3CR3T" not in caplog.text


def test_test_connection_does_not_say_yes_to_a_root_that_is_not_there(connection: Define, tmp_path: Path) -> None:
    connection("lake", extra(table_root=str(tmp_path / "nope")))
    ok, message = DeltaHook("lake").test_connection()
    assert not ok
    assert "nothing is there" in message
    connection("lake", extra(table_root="lake"))
    assert not DeltaHook("lake").test_connection()[0]


@pytest.mark.long
def test_test_connection_does_not_wait_for_a_store_as_tasks_do(connection: Define) -> None:
    pytest.importorskip("botocore", reason="botocore is not installed")
    with socket.socket() as nobody:  # It is bound, and does not listen.
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        connection("lake", extra(table_root="s3://bucket/lake", aws_endpoint_url=endpoint, **keys))
        delta_orch.configure(retry_seconds=3600)
        try:
            ok, message = DeltaHook("lake").test_connection()
        finally:
            delta_orch.configure()
    assert not ok
    assert message.startswith("STORAGE")


def test_a_reference_opens_the_version_it_pins(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for _ in range(2):
        table.append(pa.table({"n": [1]}))
    hook = DeltaHook()
    assert hook.snapshot({"table_uri": str(tmp_path / "t"), "version": 0, "skipped": False}).version == 0
    assert hook.snapshot({"table_uri": str(tmp_path / "t")}).version == 1
    assert hook.snapshot(tmp_path / "t").version == 1
    with pytest.raises(InvalidRequestError, match="names no table"):
        hook.snapshot({"version": 0})


def test_a_reference_is_of_one_table(runs: Runs, tmp_path: Path) -> None:
    """Between two tasks somebody drops the table and creates another one there, which has such a version, too."""

    def recreate() -> None:
        shutil.rmtree(tmp_path / "t")
        DeltaTable(tmp_path / "t").append(pa.table({"n": [2]}))

    with DAG("recreated", schedule=None) as dag:
        load = DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "t", python_callable=lambda: pa.table({"n": [1]}), write="overwrite"
        )
        copy = DeltaWriteOperator(
            task_id="copy",
            table_uri=tmp_path / "copy",
            sql="SELECT n FROM t",
            tables={"t": load.output},
            write="overwrite",
        )
        load >> task(recreate)() >> copy
    run = runs.run(dag)
    assert runs.state(run, "copy") == "failed"
    assert not (tmp_path / "copy").exists()
    reference = runs.xcom(run, "load")
    with pytest.raises(InvalidRequestError, match="is not the one that the reference names"):
        DeltaHook().snapshot(reference)
    runs.clear(dag, run, "load", "copy")
    assert DeltaTable(tmp_path / "copy").snapshot().scan().to_arrow().to_pydict() == {"n": [1]}


@pytest.mark.long
def test_connections_of_a_secrets_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of connections, as a secrets backend finds them: the hook asks Airflow, not the environment."""
    about = {"conn_type": "delta", "extra": {"table_root": str(tmp_path), "secret_storage_options": {"key": "hidden"}}}
    (tmp_path / "connections.json").write_text(json.dumps({"vaulted": about}))
    program = (
        "from delta_orch.airflow import DeltaHook as H; h = H('vaulted'); print(h.table('t').uri, h.test_connection())"
    )
    settings = {
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": f"{tmp_path}/connections.json"}),
    }
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert f"file://{tmp_path}/t" in found.stdout, found.stderr
    assert "hidden" not in found.stdout + found.stderr
