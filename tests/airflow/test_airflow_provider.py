"""What Airflow itself sees of the provider."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.resources import files
from types import ModuleType
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager

import delta_orch.airflow
from delta_orch.airflow.provider import get_provider_info
from delta_orch.airflow.versions import RELEASE, keeps_state
from delta_orch.errors import MissingDependencyError
from tests.airflow.internals import providers_of_tasks


@pytest.fixture(scope="module")
def manager() -> ProvidersManager:
    return ProvidersManager()


def test_description_satisfies_airflows_schema() -> None:
    import jsonschema

    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_description_imports_nothing_heavy() -> None:
    code = (
        "import sys, delta_orch.airflow.provider as p; p.get_provider_info();"
        "print([m for m in ('airflow', 'pyarrow', 'pyspark', 'pandas', 'delta_orch.delta_table') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_airflow_lists_the_provider(manager: ProvidersManager) -> None:
    provider = manager.providers["delta-orch"]
    assert provider.data["name"] == "Delta Lake"
    assert provider.version


def test_every_module_it_names_can_be_imported() -> None:
    info: dict[str, Any] = get_provider_info()
    named = [
        module for kind in ("hooks", "operators", "sensors", "triggers") for module in info[kind][0]["python-modules"]
    ]
    assert len(named) >= 6
    for module in named:
        import_module(module)


def test_hook_and_connection_type(manager: ProvidersManager) -> None:
    hook = providers_of_tasks().hooks["delta"]
    assert hook is not None
    assert (hook.hook_class_name, hook.hook_name) == ("delta_orch.airflow.sql_hook.DeltaSqlHook", "Delta Lake")
    assert hook.connection_id_attribute_name == "delta_conn_id"
    if RELEASE < (3, 2):
        pytest.skip("Airflow before 3.2 takes no fields of a connection type from a provider's description")
    widgets = {
        name: widget for name, widget in manager.connection_form_widgets.items() if name.startswith("extra__delta__")
    }
    assert set(widgets) == {"extra__delta__table_root", "extra__delta__secret_storage_options"}
    assert widgets["extra__delta__secret_storage_options"].is_sensitive
    assert "password" in manager.field_behaviours["delta"]["hidden_fields"]


def test_decorator_is_registered() -> None:
    from airflow.sdk import task

    from delta_orch.airflow.decorators import delta_task

    assert dict(providers_of_tasks().taskflow_decorators)["delta"] is delta_task
    assert task.delta is delta_task


def test_asset_uris_are_normalised() -> None:
    from airflow.sdk import Asset

    assert Asset(name="a", uri="delta://s3/lake/flights/").uri == "delta://s3/lake/flights"
    assert Asset(name="b", uri="delta:///data/t").uri == "delta://file/data/t"
    with pytest.raises(ValueError, match="names no table"):
        Asset(name="c", uri="delta://s3")


@pytest.mark.parametrize(
    ("table_uri", "asset_uri"),
    [
        ("/data/t", "delta://file/data/t"),
        ("s3://lake/a/b", "delta://s3/lake/a/b"),
        ("memory://t", "delta://memory/t"),
        ("abfss://container@account.dfs.core.windows.net/t", "delta://abfss/container@account.dfs.core.windows.net/t"),
    ],
)
def test_table_uri_and_asset_uri_are_inverse(table_uri: str, asset_uri: str) -> None:
    from airflow.sdk import Asset

    from delta_orch.airflow.locations import asset_uri_of_table, table_uri_of_asset

    assert asset_uri_of_table(table_uri) == asset_uri
    assert table_uri_of_asset(Asset(name=table_uri, uri=asset_uri).uri) == table_uri


def test_asset_uri_carries_no_password() -> None:
    from delta_orch.airflow.locations import asset_uri_of_table

    assert asset_uri_of_table("s3://key:secret@lake/t") == "delta://s3/lake/t"


def test_relative_uri_is_no_asset() -> None:
    from delta_orch.airflow.locations import asset_uri_of_table
    from delta_orch.errors import InvalidRequestError

    with pytest.raises(InvalidRequestError, match="not an absolute table URI"):
        asset_uri_of_table("flights")


def test_public_names_resolve() -> None:
    for name in delta_orch.airflow.__all__:
        if name == "DELTA_RETRY_POLICY" and not keeps_state():
            continue
        assert getattr(delta_orch.airflow, name) is not None
    with pytest.raises(AttributeError):
        _ = delta_orch.airflow.nothing


@pytest.mark.long
def test_importing_operators_loads_no_engine() -> None:
    """DAG files are parsed again and again; they must stay cheap."""
    code = (
        "import sys; from delta_orch.airflow import DeltaWriteOperator, DeltaIncrementalOperator, "
        "DeltaTableVersionSensor, DeltaVacuumOperator, delta_task;"
        "print([m for m in ('pyspark', 'pandas', 'polars', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(("found", "said"), [("2.11.2", "2.11.2 is installed"), (None, "3.0 or newer.\nRun")])
def test_an_older_airflow_is_named_as_the_problem(
    monkeypatch: pytest.MonkeyPatch, found: str | None, said: str
) -> None:
    """Its SDK lacks names that the modules import."""

    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    def older(name: str) -> ModuleType:
        if name.endswith(".provider"):
            return import_module(name)
        raise ImportError("No module named 'airflow.sdk'")

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("delta_orch.airflow.import_module", older)
    with pytest.raises(MissingDependencyError, match=said):
        delta_orch.airflow.__getattr__("DeltaHook")
