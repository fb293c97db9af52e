from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import DeltaTableResource, MaintenancePolicy, build_delta_maintenance_assets
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.maintenance import ALWAYS

STEPS = ("compaction", "checkpoint", "vacuum")


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    for number in range(4):
        table.append(
            pa.table({"day": ["a"], "n": [number]}),
            partition_by=["day"],
            properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"},
        )
    return table


def build(table: DeltaTable, **arguments: Any) -> list[dg.AssetsDefinition]:
    return build_delta_maintenance_assets({"flights": DeltaTableResource(table_uri=table.uri)}, **arguments)


def run(assets: list[dg.AssetsDefinition]) -> dict[str, dict[str, Any]]:
    result = dg.materialize(assets)
    metadata = {}
    for step in STEPS:
        (event,) = result.asset_materializations_for_node(f"maintenance__flights__{step}")
        metadata[step] = {name: value.value for name, value in event.metadata.items()}
    return metadata


def data_files(table: DeltaTable) -> int:
    return len(list(Path(table.uri.removeprefix("file://")).rglob("day=a/*.parquet")))


def test_everything_there_is_to_do(table: DeltaTable) -> None:
    rows = table.snapshot().scan().to_arrow().sort_by("n")
    metadata = run(build(table, policy=ALWAYS))
    fresh = DeltaTable(table.uri)
    assert metadata["compaction"]["delta/num_files_before"] == 4
    assert metadata["compaction"]["delta/num_files"] == 1
    assert metadata["compaction"]["delta/health/num_compactable_files"] == 4
    assert metadata["checkpoint"]["delta/checkpoint_version"] == 4
    assert metadata["vacuum"]["delta/vacuum_found_files"] == 4
    assert metadata["vacuum"]["delta/vacuum_deleted_files"] == 4
    assert data_files(table) == 1
    assert fresh.snapshot().num_files == 1
    assert fresh.snapshot().scan().to_arrow().sort_by("n").equals(rows)
    assert "maintenance/flights/compaction" in str([entry.user_metadata for entry in fresh.history()])


def test_a_healthy_table_is_left_alone(table: DeltaTable) -> None:
    metadata = run(build(table, policy=MaintenancePolicy(5, 10, 1)))
    assert all(metadata[step]["delta/skipped"] is True for step in STEPS)
    assert metadata["compaction"]["delta/skip_reason"] == "the policy sees no need"
    assert table.version() == 3


def test_a_second_run_finds_nothing(table: DeltaTable) -> None:
    run(build(table, policy=ALWAYS))
    version = DeltaTable(table.uri).version()
    again = run(build(table, policy=MaintenancePolicy(2, 10, 0)))
    assert all(again[step]["delta/skipped"] is True for step in STEPS)
    assert DeltaTable(table.uri).version() == version


def test_vacuum_may_only_report(table: DeltaTable) -> None:
    metadata = run(build(table, policy=ALWAYS, vacuum_dry_run_only=True))
    assert metadata["vacuum"]["delta/vacuum_found_files"] == 4
    assert "delta/vacuum_deleted_files" not in metadata["vacuum"]
    assert data_files(table) == 5


def test_order_pools_and_dependencies(table: DeltaTable) -> None:
    @dg.asset
    def flights() -> None: ...

    compaction, checkpoint, vacuum = build(table, deps={"flights": flights}, pool="lake", key_prefix=["ops", "delta"])
    keys = [asset.key for asset in (compaction, checkpoint, vacuum)]
    assert keys == [dg.AssetKey(["ops", "delta", "flights", step]) for step in STEPS]
    parents = [asset.asset_deps[asset.key] for asset in (compaction, checkpoint, vacuum)]
    assert parents == [{dg.AssetKey("flights")}, {keys[0]}, {keys[1]}]
    assert {asset.op.pool for asset in (compaction, checkpoint, vacuum)} == {"lake"}
    assert all("dagster/kind/deltalake" in asset.specs_by_key[asset.key].tags for asset in (compaction, checkpoint))


def test_automation(table: DeltaTable) -> None:
    condition = dg.AutomationCondition.on_cron("0 3 * * *")
    assets = build(table, automation_condition=condition)
    found = [asset.automation_conditions_by_key[asset.key] for asset in assets]
    assert found[0] == condition
    assert all(other is not None and other != condition for other in found[1:])


def test_deps_of_an_unknown_table(table: DeltaTable) -> None:
    with pytest.raises(InvalidRequestError, match="not one of the tables"):
        build(table, deps={"flight": "flights"})


@pytest.mark.parametrize("inner", ["lake/t", "lake/t/inner", "lake"])
def test_tables_that_share_a_folder_are_refused(inner: str) -> None:
    tables = {"t": DeltaTableResource(table_uri="lake/t"), "other": DeltaTableResource(table_uri=inner)}
    with pytest.raises(InvalidRequestError, match="share a folder"):
        build_delta_maintenance_assets(tables)
    assert build_delta_maintenance_assets({"t": tables["t"], "u": DeltaTableResource(table_uri="lake/tt")})
