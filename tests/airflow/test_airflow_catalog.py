"""Airflow and a table of a catalog: connection, operators, trigger, assets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.airflow.conftest import DAY_1, Runs
from tests.harness.unity_emulator import UnityEmulator, unity_emulator


@pytest.fixture
def unity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityEmulator]:
    """A catalog, and the connection `lake` whose root is a schema of it."""
    with unity_emulator(tmp_path) as emulator:
        extra = {
            "table_root": "uc://main.default",
            "unity_catalog_uri": emulator.endpoint,
            "secret_storage_options": {"unity_catalog_token": emulator.options["unity_catalog_token"]},
        }
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "extra": extra}))
        yield emulator
        emulator.ensure_lawful()


def test_operators_write_a_table_of_the_root(unity: UnityEmulator, runs: Runs) -> None:
    from airflow.sdk import DAG

    from delta_orch.airflow import DeltaDeleteOperator, DeltaHook, DeltaWriteOperator

    with DAG("catalog_writes", schedule=None, start_date=DAY_1) as dag:
        write = DeltaWriteOperator(task_id="write", table_uri="orders", delta_conn_id="lake", python_callable=_rows)
        delete = DeltaDeleteOperator(
            task_id="delete", table_uri="uc://main.default.orders", delta_conn_id="lake", where="id = 1"
        )
        write >> delete
    run = runs.run(dag)
    assert (runs.state(run, "write"), runs.state(run, "delete")) == ("success", "success")
    assert runs.xcom(run, "write")["table_uri"] == "uc://main.default.orders"
    assert DeltaTable("uc://main.default.orders", unity.options).snapshot().scan().to_arrow()["id"].to_pylist() == [2]
    ok, text = DeltaHook("lake").test_connection()
    assert ok, text


def _rows() -> pa.Table:
    return pa.table({"id": [1, 2]})


def test_a_sensor_and_its_trigger_poll_the_catalog(unity: UnityEmulator, runs: Runs) -> None:
    from airflow.sdk import DAG

    from delta_orch.airflow import DeltaTableVersionSensor

    table = DeltaTable("uc://main.default.orders", unity.options)
    table.append(_rows())
    table.append(_rows())
    for mode, options in (("poke", {"mode": "poke"}), ("deferrable", {"deferrable": True})):
        with DAG(f"catalog_waits_{mode}", schedule=None, start_date=DAY_1) as dag:
            DeltaTableVersionSensor(
                task_id="wait", table_uri="orders", delta_conn_id="lake", after_version=0, **options
            )
        run = runs.run(dag)
        assert runs.state(run, "wait") == "success"


def test_assets_of_a_schema(unity: UnityEmulator) -> None:
    from delta_orch.airflow import delta_catalog_assets
    from delta_orch.airflow.locations import table_uri_of_asset

    for name in ("a", "b"):
        DeltaTable(f"uc://main.default.{name}", unity.options).append(_rows())
    assets = delta_catalog_assets("uc://main.default", unity.options)
    assert {name: asset.uri for name, asset in assets.items()} == {
        "a": "delta://uc/main.default.a",
        "b": "delta://uc/main.default.b",
    }
    assert table_uri_of_asset(assets["a"].uri) == "uc://main.default.a"
