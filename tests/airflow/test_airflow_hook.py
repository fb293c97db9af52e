"""`DeltaHook`: where tables are and which options open them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowNotFoundException

from delta_orch.airflow.hook import DeltaHook
from delta_orch.errors import InvalidRequestError

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


@pytest.mark.parametrize("broken", ['{"secret": "s3cr3t"', '["s3cr3t"]', "s3cr3t"])
def test_malformed_extra_is_refused_without_being_quoted(connection: Define, broken: str) -> None:
    connection("lake", json.dumps({"conn_type": "delta", "extra": broken}))
    with pytest.raises(InvalidRequestError, match="not a JSON object") as caught:
        DeltaHook("lake").table("/t")
    assert "s3cr3t" not in str(caught.value)
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
            from airflow.sdk import BaseHook

            hook = BaseHook.get_hook("lake")
            assert isinstance(hook, DeltaHook)
            return hook.table("flights").uri

        resolve()
    run = runs.run(dag)
    assert runs.xcom(run, "resolve") == f"file://{tmp_path}/flights"
