import os
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaOut,
    DeltaTableResource,
    MaintenanceConfig,
    MaintenancePolicy,
    build_delta_maintenance_assets,
    delta_asset,
    delta_multi_asset,
    with_delta_maintenance,
)
from delta_orch.dagster.all_tables import tables_of
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError, DeltaError, InvalidPropertyError, InvalidRequestError
from delta_orch.pipeline.maintenance import ALWAYS

STEPS = ("compaction", "purge", "checkpoint", "vacuum", "log_cleanup")


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


def run(assets: list[dg.AssetsDefinition], **arguments: Any) -> dict[str, dict[str, Any]]:
    result = dg.materialize(assets, **arguments)
    metadata = {}
    for step in STEPS:
        (event,) = result.asset_materializations_for_node(f"maintenance__flights__{step}")
        metadata[step] = {name: value.value for name, value in event.metadata.items()}
    return metadata


def named(assets: list[dg.AssetsDefinition], step: str) -> dg.AssetsDefinition:
    (found,) = [asset for asset in assets if asset.key.path[-1] == step]
    return found


def data_files(table: DeltaTable) -> int:
    return len(list(Path(table.uri.removeprefix("file://")).rglob("day=a/*.parquet")))


@pytest.mark.parametrize(("error", "retries"), [(ConflictError, 1), (InvalidPropertyError, 0)])
def test_only_errors_that_pass_are_tried_again(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, error: type[DeltaError], retries: int
) -> None:
    optimize = DeltaTable.optimize
    failed: list[bool] = []

    def fail_once(self: DeltaTable, *arguments: Any, **options: Any) -> Any:
        if failed:
            return optimize(self, *arguments, **options)
        failed.append(True)
        raise error("It failed")

    monkeypatch.setattr(DeltaTable, "optimize", fail_once)
    result = dg.materialize(build(table, policy=ALWAYS), raise_on_error=False)
    events = [event.event_type_value for event in result.events_for_node("maintenance__flights__compaction")]
    assert (events.count("STEP_RESTARTED"), result.success) == (retries, retries > 0)


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


def test_a_dry_run_only_reports(table: DeltaTable) -> None:
    config = dg.RunConfig({f"maintenance__flights__{step}": MaintenanceConfig(dry_run=True) for step in STEPS})
    metadata = run(build(table, policy=ALWAYS), run_config=config)
    assert all(metadata[step]["delta/skipped"] for step in STEPS)
    due = [step for step in STEPS if metadata[step]["delta/is_due"]]
    assert due == ["compaction", "checkpoint", "vacuum"]
    assert metadata["vacuum"]["delta/skip_reason"] == "the run is a dry one"
    assert (DeltaTable(table.uri).version(), data_files(table)) == (3, 4)
    # What could be vacuumed is still in use: nothing was compacted.
    assert metadata["vacuum"]["delta/vacuum_found_files"] == 0


def test_order_pools_and_dependencies(table: DeltaTable) -> None:
    @dg.asset
    def flights() -> None: ...

    assets = build(table, deps={"flights": flights}, pool="lake", key_prefix=["ops", "delta"])
    keys = [asset.key for asset in assets]
    assert keys == [dg.AssetKey(["ops", "delta", "flights", step]) for step in ("health", *STEPS)]
    parents = [asset.asset_deps[asset.key] for asset in assets]
    assert parents == [{dg.AssetKey("flights")}, *({key} for key in keys[:-1])]
    assert [asset.op.pool for asset in assets] == [None, *["lake"] * len(STEPS)]
    assert all("dagster/kind/deltalake" in asset.specs_by_key[asset.key].tags for asset in assets)


# Of Dagster itself, where it evaluates conditions by hand.
@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_what_a_measurement_finds_due_runs_by_itself(table: DeltaTable) -> None:
    condition = dg.AutomationCondition.on_cron("0 3 * * *")
    policy = MaintenancePolicy(2, 100, 1)
    assets = build(table, automation_condition=condition, policy=policy)
    assert assets[0].automation_conditions_by_key[assets[0].key] == condition
    defs, instance = dg.Definitions(assets), dg.DagsterInstance.ephemeral()
    cursor = None

    def requested() -> set[str]:
        nonlocal cursor
        found = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = found.cursor
        return {
            step
            for step in ("health", *STEPS)
            for asset in assets
            if asset.key.path[-1] == step and found.get_num_requested(asset.key)
        }

    assert requested() == set()
    assert dg.materialize(assets, selection=[assets[0]], instance=instance).success
    # Four small files, four commits, nothing removed yet.
    assert requested() == {"compaction"}
    assert requested() == set()
    assert dg.materialize(assets, selection=[assets[1]], instance=instance).success
    assert requested() == set()
    result = dg.materialize(assets, selection=[assets[0]], instance=instance)
    assert [(one.check_name, one.passed) for one in result.get_asset_check_evaluations()] == [
        (f"needs_{step}", step != "vacuum") for step in STEPS
    ]
    assert requested() == {"vacuum"}
    (event,) = result.asset_materializations_for_node("maintenance__flights__health")
    assert event.metadata["delta/health/num_expired_tombstones"].value == 4
    assert dg.materialize(assets, selection=[named(assets, "vacuum")], instance=instance).success
    assert data_files(table) == 1


def test_vacuum_keeps_what_consumers_have_to_read(tmp_path: Path) -> None:
    source, target = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("bronze", "silver"))
    no_retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}

    @delta_asset(incremental_from=source, table=target, write="overwrite")
    def silver(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    source.table().append(pa.table({"n": [1]}), properties=no_retention)
    assets = build_delta_maintenance_assets({"bronze": source}, policy=ALWAYS, consumers={"bronze": [target]})

    def vacuumed() -> int:
        result = dg.materialize(assets, selection=[named(assets, "vacuum")])
        (event,) = result.asset_materializations_for_node("maintenance__bronze__vacuum")
        found = event.metadata["delta/vacuum_found_files"].value
        assert isinstance(found, int)
        return found

    source.table().overwrite(pa.table({"n": [2]}))
    # Who has never run begins with what is there.
    assert vacuumed() == 1
    assert dg.materialize([silver]).success
    source.table().overwrite(pa.table({"n": [3]}))
    assert vacuumed() == 0
    # What was removed in the very millisecond of the last version that it has read would be kept.
    source.table().append(pa.table({"n": [4]}))
    assert dg.materialize([silver]).success
    assert vacuumed() == 1


def test_a_purge_takes_deleted_rows_out_of_their_files(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"n": range(100)}), properties={"delta.enableDeletionVectors": "true"})
    table.delete("n < 4")
    policy = MaintenancePolicy(max_deleted_rows_ratio=0.04)
    metadata = run(build(table, policy=policy))
    assert metadata["purge"]["delta/skip_reason"] == "the policy sees no need"
    assert metadata["purge"]["delta/health/deleted_rows_ratio"] == 0.04
    table.delete("n = 4")
    metadata = run(build(table, policy=policy))
    assert metadata["purge"]["delta/skipped"] is False
    assert metadata["checkpoint"]["delta/health/deleted_rows_ratio"] == 0
    found = DeltaTable(table.uri).snapshot()
    assert sorted(found.scan().to_arrow()["n"].to_pylist()) == list(range(5, 100))
    assert "maintenance/flights/purge" in str([entry.user_metadata for entry in table.history()])


def grow_old(table: DeltaTable, days: int) -> None:
    """The log, as if it had been written so long ago."""
    seconds = time.time() - days * 24 * 60 * 60
    for number, file in enumerate(sorted((Path(table.uri.removeprefix("file://")) / "_delta_log").iterdir())):
        os.utime(file, (seconds + number, seconds + number))


@pytest.mark.slow
def test_the_log_is_cleaned_up_behind_its_consumers(tmp_path: Path) -> None:
    source, target = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("bronze", "silver"))

    @delta_asset(incremental_from=source, table=target, write="append")
    def silver(batch: ChangeBatch) -> pa.Table:
        return batch.inserted().to_arrow()

    table = source.table()
    table.append(pa.table({"n": [0]}))
    assert dg.materialize([silver]).success
    for number in range(1, 6):
        table.append(pa.table({"n": [number]}))
    table.checkpoint()
    grow_old(table, 60)
    table.append(pa.table({"n": [6]}))
    assets = build_delta_maintenance_assets({"bronze": source}, consumers={"bronze": [target]})

    def cleaned_up(**config: bool) -> dict[str, Any]:
        name = "maintenance__bronze__log_cleanup"
        asked = dg.RunConfig({name: MaintenanceConfig(**config)}) if config else None
        result = dg.materialize(assets, selection=[named(assets, "log_cleanup")], run_config=asked)
        (event,) = result.asset_materializations_for_node(name)
        return {key: value.value for key, value in event.metadata.items()}

    told = cleaned_up()
    # Due by the age of its files, but somebody has not read them.
    assert told["delta/health/num_expired_log_files"] >= 5
    assert told["delta/log_cleanup_deleted_files"] == 0
    assert dg.materialize([silver]).success
    assert sorted(target.table().snapshot().scan().to_arrow()["n"].to_pylist()) == list(range(7))
    told = cleaned_up(dry_run=True)
    assert told["delta/log_cleanup_found_files"] == told["delta/health/num_expired_log_files"]
    told = cleaned_up()
    assert told["delta/log_cleanup_deleted_files"] == told["delta/health/num_expired_log_files"]
    assert cleaned_up()["delta/skip_reason"] == "the policy sees no need"
    fresh = DeltaTable(table.uri).snapshot()
    assert sorted(fresh.scan().to_arrow()["n"].to_pylist()) == list(range(7))


def test_the_log_of_a_table_that_keeps_its_history_is_left_alone(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for number in range(4):
        table.append(pa.table({"n": [number]}), properties={"delta.enableExpiredLogCleanup": "false"})
    table.checkpoint()
    grow_old(table, 60)
    metadata = run(build(table, policy=ALWAYS))
    assert metadata["log_cleanup"]["delta/health/num_expired_log_files"] == 0
    assert metadata["log_cleanup"]["delta/skip_reason"] == "the policy sees no need"
    assert DeltaTable(table.uri).snapshot(version=0).scan().to_arrow()["n"].to_pylist() == [0]


@pytest.mark.slow
def test_one_line_covers_a_code_location(tmp_path: Path) -> None:
    @dg.asset(key=["bronze", "flights"])
    def flights() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset(
        key=["fix", "flights"], metadata={"schema": "bronze", "write": "append"}, deps=[flights], io_manager_key="fixes"
    )
    def fixes() -> pa.Table:
        return pa.table({"n": [2]})

    @dg.asset
    def elsewhere() -> None: ...

    @dg.asset(io_manager_key="other")
    def another() -> int:
        return 1

    source = DeltaTableResource(table_uri=str(tmp_path / "bronze" / "flights"))

    @delta_asset(incremental_from=source, table="silver", write="append")
    def silver(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    outs = {name: DeltaOut(DeltaTableResource(table_uri=str(tmp_path / name)), "overwrite") for name in ("one", "two")}

    @delta_multi_asset(incremental_from=source, outs=outs)
    def split(batch: ChangeBatch) -> dict[str, pa.Table]:
        rows = batch.scan().to_arrow()
        return {"one": rows, "two": rows}

    plain = dg.Definitions(
        assets=[flights, fixes, elsewhere, another, silver.with_attributes(group_names_by_key={}), split],
        resources={
            "io_manager": DeltaLakeIOManager(root_uri=str(tmp_path)),
            "fixes": DeltaLakeIOManager(root_uri=str(tmp_path)),
            "other": dg.FilesystemIOManager(base_dir=str(tmp_path / "files")),
            "silver": DeltaTableResource(table_uri=str(tmp_path / "silver_table")),
        },
    )
    defs = with_delta_maintenance(plain, policy=ALWAYS)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    health = [key for key in graph.get_all_asset_keys() if key.path[-1] == "health"]
    assert sorted("/".join(key.path[1:-1]) for key in health) == ["bronze/flights", "one", "silver", "two"]
    first = dg.AssetKey(["maintenance", "bronze", "flights", "health"])
    assert graph.get(first).parent_keys == {flights.key, fixes.key}
    assert graph.get(first).automation_condition is not None
    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    table = DeltaTable(tmp_path / "silver_table")
    assert "maintenance/silver/compaction" not in str(table.history())
    assert table.snapshot().segment.checkpoint is not None
    readers = {name: len(found.read_by) for name, found in tables_of(plain).items()}
    assert readers == {"bronze/flights": 3, "one": 0, "silver": 0, "two": 0}
    with pytest.raises(InvalidRequestError, match="No asset"):
        with_delta_maintenance(dg.Definitions([elsewhere]))


@pytest.mark.parametrize("arguments", [{"target_file_size_bytes": 0}, {"vacuum_retention_hours": -1}])
def test_what_no_run_could_do_is_refused(table: DeltaTable, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="too small"):
        build(table, **arguments)


@pytest.mark.parametrize("name", ["", "a//b", "a/"])
def test_a_name_without_a_part_is_refused(table: DeltaTable, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="has an empty part"):
        build_delta_maintenance_assets({name: DeltaTableResource(table_uri=table.uri)})


def test_deps_of_an_unknown_table(table: DeltaTable) -> None:
    with pytest.raises(InvalidRequestError, match="not one of the tables"):
        build(table, deps={"flight": "flights"})


@pytest.mark.parametrize("inner", ["lake/t", "lake/t/inner", "lake"])
def test_tables_that_share_a_folder_are_refused(inner: str) -> None:
    tables = {"t": DeltaTableResource(table_uri="lake/t"), "other": DeltaTableResource(table_uri=inner)}
    with pytest.raises(InvalidRequestError, match="share a folder"):
        build_delta_maintenance_assets(tables)
    assert build_delta_maintenance_assets({"t": tables["t"], "u": DeltaTableResource(table_uri="lake/tt")})
