import os
import time
from datetime import UTC, datetime, timedelta
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
from delta_orch.dagster.maintenance import tables_of
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError, DeltaError, InvalidPropertyError, InvalidRequestError
from delta_orch.pipeline.maintenance import ALWAYS

NAME = "maintenance__flights"


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


def execute(assets: list[dg.AssetsDefinition], **arguments: Any) -> Any:
    job = dg.define_asset_job("upkeep", selection=dg.AssetSelection.assets(*assets))
    return dg.Definitions(assets, jobs=[job]).resolve_job_def("upkeep").execute_in_process(**arguments)


def run(assets: list[dg.AssetsDefinition], dry: bool = False) -> dict[str, Any]:
    (asset,) = assets
    config = dg.RunConfig({asset.op.name: MaintenanceConfig(dry_run=dry)})
    (event,) = execute(assets, run_config=config).asset_observations_for_node(asset.op.name)
    return {name: value.value for name, value in event.metadata.items()}


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
    result = execute(build(table, policy=ALWAYS), raise_on_error=False)
    events = [event.event_type_value for event in result.events_for_node(NAME)]
    assert (events.count("STEP_RESTARTED"), result.success) == (retries, retries > 0)


def test_everything_there_is_to_do(table: DeltaTable) -> None:
    rows = table.snapshot().scan().to_arrow().sort_by("n")
    metadata = run(build(table, policy=ALWAYS))
    fresh = DeltaTable(table.uri)
    assert metadata["delta/done"] == "compaction, checkpoint, vacuum"
    assert next(iter(metadata)) == "delta/done"
    assert metadata["delta/health/num_compactable_files"] == 4
    assert metadata["delta/checkpoint/version"] == 4
    # What the compaction has removed is due in the same run.
    assert metadata["delta/vacuum/found_files"] == metadata["delta/vacuum/deleted_files"] == 4
    assert data_files(table) == 1
    assert fresh.snapshot().num_files == 1
    assert fresh.snapshot().scan().to_arrow().sort_by("n").equals(rows)
    assert '"asset_key":"maintenance/flights"' in str([entry.user_metadata for entry in fresh.history()])
    assert metadata["delta/version"] == fresh.version()


def test_a_healthy_table_is_left_alone(table: DeltaTable) -> None:
    metadata = run(build(table, policy=MaintenancePolicy(5, 10, 1)))
    assert (metadata["delta/due"], metadata["delta/done"]) == ("none", "none")
    assert table.version() == 3


def test_a_second_run_finds_nothing(table: DeltaTable) -> None:
    run(build(table, policy=ALWAYS))
    version = DeltaTable(table.uri).version()
    again = run(build(table, policy=MaintenancePolicy(2, 10, 0)))
    assert again["delta/done"] == "none"
    assert DeltaTable(table.uri).version() == version


def test_vacuum_may_only_report(table: DeltaTable) -> None:
    metadata = run(build(table, policy=ALWAYS, vacuum_dry_run_only=True))
    assert metadata["delta/vacuum/found_files"] == 4
    assert "delta/vacuum/deleted_files" not in metadata
    assert data_files(table) == 5


def test_a_dry_run_only_reports(table: DeltaTable) -> None:
    metadata = run(build(table, policy=ALWAYS), dry=True)
    assert (metadata["delta/due"], metadata["delta/done"]) == ("compaction, checkpoint, vacuum", "none")
    assert (DeltaTable(table.uri).version(), data_files(table)) == (3, 4)
    # What could be vacuumed is still in use: nothing was compacted.
    assert metadata["delta/vacuum/found_files"] == 0


def test_a_table_that_is_not_there_needs_nothing(tmp_path: Path) -> None:
    assert run(build(DeltaTable(tmp_path / "none"), policy=ALWAYS))["delta/due"] == "none"


def test_pools_dependencies_and_materializing_all(table: DeltaTable) -> None:
    @dg.asset
    def flights() -> None: ...

    (asset,) = assets = build(table, deps={"flights": flights}, pool="lake", key_prefix=["ops", "delta"])
    assert asset.key == dg.AssetKey(["ops", "delta", "flights"])
    assert asset.asset_deps[asset.key] == {flights.key}
    assert asset.op.pool == "lake"
    assert "dagster/kind/deltalake" in asset.specs_by_key[asset.key].tags
    graph = dg.Definitions([flights, *assets]).resolve_asset_graph()
    assert graph.materializable_asset_keys == {flights.key} == dg.AssetSelection.all().resolve(graph)


# Of Dagster itself, where it evaluates conditions by hand.
@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_upkeep_runs_by_itself(table: DeltaTable) -> None:
    condition = dg.AutomationCondition.cron_tick_passed("* * * * *")
    (asset,) = build(table, automation_condition=condition)
    assert asset.automation_conditions_by_key[asset.key] == condition
    defs, instance = dg.Definitions([asset]), dg.DagsterInstance.ephemeral()
    now = datetime.now(UTC)
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=now)
    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=now + timedelta(minutes=1), cursor=first.cursor
    )
    assert (first.total_requested, later.total_requested) == (0, 1)


def test_vacuum_keeps_what_consumers_have_to_read(tmp_path: Path) -> None:
    source, target = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("bronze", "silver"))
    no_retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}

    @delta_asset(incremental_from=source, table=target, write="overwrite")
    def silver(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    source.table().append(pa.table({"n": [1]}), properties=no_retention)
    # A checkpoint would drop the tombstones, which have no retention here.
    policy = MaintenancePolicy(min_expired_tombstones=0)
    assets = build_delta_maintenance_assets({"bronze": source}, policy=policy, consumers={"bronze": [target]})

    def vacuumed() -> int:
        # Nothing was removed that nobody has to read.
        return int(run(assets).get("delta/vacuum/deleted_files", 0))

    source.table().overwrite(pa.table({"n": [2]}))
    # Who has never run begins with what is there.
    assert vacuumed() == 1
    assert dg.materialize([silver]).success
    source.table().overwrite(pa.table({"n": [3]}))
    assert vacuumed() == 0
    # What was removed in the very millisecond of the last version that it has read would be kept.
    source.table().append(pa.table({"n": [4]}))
    assert dg.materialize([silver]).success
    assert vacuumed() >= 1


def test_a_purge_takes_deleted_rows_out_of_their_files(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"n": range(100)}), properties={"delta.enableDeletionVectors": "true"})
    table.delete("n < 4")
    policy = MaintenancePolicy(max_deleted_rows_ratio=0.04)
    metadata = run(build(table, policy=policy))
    assert metadata["delta/due"] == "none"
    assert metadata["delta/health/deleted_rows_ratio"] == 0.04
    table.delete("n = 4")
    assert run(build(table, policy=policy))["delta/done"] == "purge"
    assert run(build(table, policy=policy))["delta/health/deleted_rows_ratio"] == 0
    found = DeltaTable(table.uri).snapshot()
    assert sorted(found.scan().to_arrow()["n"].to_pylist()) == list(range(5, 100))


def grow_old(table: DeltaTable, days: int) -> None:
    """The log, as if it had been written so long ago."""
    seconds = time.time() - days * 24 * 60 * 60
    for number, file in enumerate(sorted((Path(table.uri.removeprefix("file://")) / "_delta_log").iterdir())):
        os.utime(file, (seconds + number, seconds + number))


@pytest.mark.long
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

    told = run(assets)
    # Due by the age of its files, but somebody has not read them.
    assert told["delta/health/num_expired_log_files"] >= 5
    assert told["delta/log_cleanup/deleted_files"] == 0
    assert (told["delta/due"], told["delta/done"]) == ("log_cleanup", "none")
    assert dg.materialize([silver]).success
    assert sorted(target.table().snapshot().scan().to_arrow()["n"].to_pylist()) == list(range(7))
    told = run(assets, dry=True)
    assert told["delta/log_cleanup/found_files"] == told["delta/health/num_expired_log_files"]
    told = run(assets)
    assert told["delta/log_cleanup/deleted_files"] == told["delta/health/num_expired_log_files"]
    assert run(assets)["delta/due"] == "none"
    fresh = DeltaTable(table.uri).snapshot()
    assert sorted(fresh.scan().to_arrow()["n"].to_pylist()) == list(range(7))


def test_the_log_of_a_table_that_keeps_its_history_is_left_alone(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for number in range(4):
        table.append(pa.table({"n": [number]}), properties={"delta.enableExpiredLogCleanup": "false"})
    table.checkpoint()
    grow_old(table, 60)
    metadata = run(build(table, policy=ALWAYS))
    assert metadata["delta/health/num_expired_log_files"] == 0
    assert "log_cleanup" not in metadata["delta/due"]
    assert DeltaTable(table.uri).snapshot(version=0).scan().to_arrow()["n"].to_pylist() == [0]


@pytest.mark.long
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
    upkeep = sorted(key for key in graph.get_all_asset_keys() if key.path[0] == "maintenance")
    assert ["/".join(key.path[1:]) for key in upkeep] == ["bronze/flights", "one", "silver", "two"]
    assert not graph.materializable_asset_keys & set(upkeep)
    first = dg.AssetKey(["maintenance", "bronze", "flights"])
    assert graph.get(first).parent_keys == {flights.key, fixes.key}
    assert graph.get(first).automation_condition is not None
    # "Materialize all" leaves the upkeep out.
    instance = dg.DagsterInstance.ephemeral()
    jobs = [
        dg.define_asset_job("all", selection=dg.AssetSelection.all()),
        dg.define_asset_job("upkeep", selection=dg.AssetSelection.assets(*upkeep)),
    ]
    with_jobs = dg.Definitions.merge(defs, dg.Definitions(jobs=jobs))
    assert with_jobs.resolve_job_def("all").execute_in_process(instance=instance).success
    table = DeltaTable(tmp_path / "silver_table")
    assert table.snapshot().segment.checkpoint is None
    assert with_jobs.resolve_job_def("upkeep").execute_in_process(instance=instance).success
    table = DeltaTable(table.uri)
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
