"""Dagster and a table of a catalog: IO manager, resource, sensor, maintenance, component."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from delta_orch import DeltaTable
from delta_orch.dagster import (
    DeltaCatalogComponent,
    DeltaLakeIOManager,
    DeltaTableResource,
    build_delta_log_sensor,
    build_delta_maintenance_assets,
)
from tests.harness.unity_emulator import UnityEmulator, unity_emulator

SCHEMA = "uc://main.default"


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[UnityEmulator]:
    with unity_emulator(tmp_path) as emulator:
        yield emulator
        emulator.ensure_lawful()


def _ids(table: DeltaTable) -> list[int]:
    found: list[int] = sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())
    return found


def test_assets_in_a_schema(unity: UnityEmulator) -> None:
    rows = pa.table({"id": [1, 2], "day": ["a", "a"]})

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
        metadata={"partition_expr": "day"},
        key_prefix="raw",
    )
    def orders() -> pa.Table:
        return rows

    @dg.asset
    def total(orders: pa.Table) -> pa.Table:
        return pa.table({"id": [orders.num_rows]})

    manager = DeltaLakeIOManager(root_uri=SCHEMA, storage_options=unity.options)
    resources = {"io_manager": manager}
    with dg.DagsterInstance.ephemeral() as instance, unity.counting() as at_definition:
        dg.Definitions(assets=[orders], resources=resources).resolve_asset_graph()
        assert not at_definition
        for partition in ("a", "a"):
            done = dg.materialize([orders], partition_key=partition, resources=resources, instance=instance)
            assert done.success
        event = done.asset_materializations_for_node("raw__orders")[0]
        assert event.metadata["dagster/uri"].value == f"{SCHEMA}.raw__orders"
    assert _ids(DeltaTable(f"{SCHEMA}.raw__orders", unity.options)) == [1, 2]
    assert unity.table("main.default.raw__orders").latest >= 1


def test_a_sensor_polls_the_catalog(unity: UnityEmulator) -> None:
    table = DeltaTable(f"{SCHEMA}.t", unity.options)
    table.append(pa.table({"id": [1]}))

    @dg.job
    def work() -> None:
        """Nothing."""

    sensor = build_delta_log_sensor(name="s", table_uri=f"{SCHEMA}.t", storage_options=unity.options, job=work)
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
            definitions = dg.Definitions(jobs=[work], sensors=[sensor])
            context = dg.build_sensor_context(instance, cursor=cursor, repository_def=definitions.get_repository_def())
            found = sensor(context)
            assert isinstance(found, dg.SensorResult | dg.SkipReason)
            return found

        first = tick(None)
        assert isinstance(first, dg.SensorResult)
        with unity.counting() as quiet:
            second = tick(first.cursor)
        assert not getattr(second, "run_requests", None)
        assert quiet["loadTable"] <= 2
        table.append(pa.table({"id": [2]}))
        third = tick(first.cursor)
        assert isinstance(third, dg.SensorResult)
        assert third.run_requests


def test_maintenance_is_left_to_the_catalog(unity: UnityEmulator) -> None:
    table = DeltaTable(f"{SCHEMA}.t", unity.options)
    for number in range(25):
        table.append(pa.table({"id": [number]}))
    resource = DeltaTableResource(table_uri=f"{SCHEMA}.t", storage_options=unity.options)
    assets = build_delta_maintenance_assets({"t": resource})
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(assets, instance=instance, selection=dg.AssetSelection.assets(*assets))
        assert done.success
        (observed,) = done.get_asset_observation_events()
        assert "compaction" in str(observed.asset_observation_data.asset_observation.metadata["delta/left_to_catalog"])
    assert unity.table("main.default.t").latest == 24


@pytest.mark.filterwarnings("ignore")
def test_a_component_makes_assets_of_a_schema(unity: UnityEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        DeltaTable(f"{SCHEMA}.{name}", unity.options).append(pa.table({"id": [1]}))
    monkeypatch.setenv("CATALOG_TOKEN", unity.options["unity_catalog_token"])
    attributes: dict[str, object] = {
        "storage_options": {"unity_catalog_uri": unity.endpoint},
        "secrets": {"unity_catalog_token": "CATALOG_TOKEN"},
        "catalog_schema": SCHEMA,
        "key_prefix": ["main"],
    }
    with create_defs_folder_sandbox() as sandbox:
        sandbox.scaffold_component(component_cls=DeltaCatalogComponent, defs_yaml_contents=_yaml(attributes))
        with sandbox.build_all_defs() as defs:
            found = defs.resolve_asset_graph().get_all_asset_keys()
            assert {key.to_user_string() for key in found} == {"main/a", "main/b", "main/c"}
    with create_defs_folder_sandbox() as sandbox:
        wrong = _yaml({**attributes, "tables": ["nope"]})
        sandbox.scaffold_component(component_cls=DeltaCatalogComponent, defs_yaml_contents=wrong)
        with pytest.raises(Exception) as caught, sandbox.build_all_defs():
            pass
        assert "has no table 'nope'" in str(caught.value.__cause__)


def _yaml(attributes: dict[str, object]) -> dict[str, object]:
    return {"type": "delta_orch.dagster.DeltaCatalogComponent", "attributes": attributes}
