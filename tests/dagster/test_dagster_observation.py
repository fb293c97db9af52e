import shutil
from datetime import date
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import (
    DeltaLakeIOManager,
    DeltaTableResource,
    build_delta_observations,
    report_existing_partitions,
)
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, TableNotFoundError

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-10")


# Of Dagster itself, where it runs an observation in process.
@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`")
def test_observations_follow_the_data(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders")
    (asset,) = build_delta_observations({"orders": DeltaTableResource(table_uri=table.uri)}, key_prefix="raw")
    instance = dg.DagsterInstance.ephemeral()
    key = dg.AssetKey(["raw", "orders"])

    def observe() -> tuple[str, int]:
        job = dg.Definitions([asset], jobs=[dg.define_asset_job("look", [key])]).resolve_job_def("look")
        result = job.execute_in_process(instance=instance)
        (observation,) = result.asset_observations_for_node("raw__orders")
        assert observation.asset_key == key
        rows = observation.metadata["dagster/row_count"].value
        assert isinstance(rows, int)
        return observation.tags["dagster/data_version"], rows

    with pytest.raises(TableNotFoundError):
        observe()
    table.append(pa.table({"n": [1]}))
    table.append(pa.table({"n": [2]}))
    table_id = table.snapshot().metadata.id
    assert observe() == (f"{table_id}:1", 2)
    table.optimize()
    assert observe() == (f"{table_id}:1", 2)
    table.append(pa.table({"n": [3]}))
    assert observe() == (f"{table_id}:3", 3)


@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`")
def test_an_asset_that_gets_partitions_observes_those_that_are_there(tmp_path: Path) -> None:
    table, instance = DeltaTable(tmp_path / "orders"), dg.DagsterInstance.ephemeral()
    resource = DeltaTableResource(table_uri=table.uri)
    table.append(pa.table({"day": ["2013-01-01", "2013-01-02"], "n": [1, 2]}), partition_by=["day"])
    for partitions, found in ((None, {None}), (DAYS, {"2013-01-01", "2013-01-02"}), (DAYS, set())):
        (asset,) = build_delta_observations({"orders": resource}, partitions_def=partitions)
        job = dg.Definitions([asset], jobs=[dg.define_asset_job("look", [asset.key])]).resolve_job_def("look")
        observations = job.execute_in_process(instance=instance).asset_observations_for_node("orders")
        assert {one.partition for one in observations} == found


@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`")
def test_each_partition_is_observed_on_its_own(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders")
    resource = DeltaTableResource(table_uri=table.uri)
    (asset,) = build_delta_observations({"orders": resource}, partitions_def=DAYS)
    instance = dg.DagsterInstance.ephemeral()

    def observe() -> dict[str | None, str]:
        job = dg.Definitions([asset], jobs=[dg.define_asset_job("look", [asset.key])]).resolve_job_def("look")
        found = job.execute_in_process(instance=instance).asset_observations_for_node("orders")
        return {one.partition: one.tags["dagster/data_version"].rpartition(":")[2] for one in found}

    def write(*days: int) -> None:
        rows = pa.table({"day": [date(2013, 1, day) for day in days], "n": range(len(days))})
        table.append(rows, partition_by=["day"])

    write(1, 2)
    write(2, 3)
    assert observe() == {"2013-01-01": "1", "2013-01-02": "1", "2013-01-03": "1"}
    assert observe() == {}
    table.optimize()
    assert observe() == {}
    write(3)
    write(9)
    # The partition of the tenth is none of these: it is passed over.
    write(4, 10)
    last = str(table.version())
    assert observe() == {"2013-01-03": last, "2013-01-04": last, "2013-01-09": last}
    table.delete("day = DATE'2013-01-04'")
    assert observe() == {"2013-01-04": str(table.version())}
    # Another table in its place: also what is not there any more has changed.
    shutil.rmtree(tmp_path / "orders")
    write(7)
    every = ["2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04", "2013-01-07", "2013-01-09"]
    assert observe() == dict.fromkeys(every, "0")
    with pytest.raises(InvalidRequestError, match="needs partitions_def"):
        build_delta_observations({"orders": resource}, partition_expr="day")


@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`")
def test_an_observed_table_is_an_input_where_it_lies(tmp_path: Path) -> None:
    """What else has its name below the root of the IO manager is not taken for it."""
    for folder in ("lake", "other"):
        rows = pa.table({"day": ["2013-01-01", "2013-01-02"], "in": [folder] * 2})
        DeltaTable(tmp_path / folder / "orders").append(rows)

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def use(orders: pa.Table) -> pa.Table:
        return orders

    def run(folder: str) -> dg.ExecuteInProcessResult:
        resource = DeltaTableResource(table_uri=str(tmp_path / folder / "orders"))
        observed = build_delta_observations({"orders": resource}, partitions_def=DAYS, partition_expr="day")
        manager = DeltaLakeIOManager(root_uri=str(tmp_path / "lake"))
        return dg.materialize(
            [*observed, use], resources={"io_manager": manager}, partition_key="2013-01-02", selection=[use]
        )

    assert run("lake").success
    assert DeltaTable(tmp_path / "lake" / "use").snapshot().scan().to_arrow().to_pylist() == [
        {"day": "2013-01-02", "in": "lake"}
    ]
    with pytest.raises(InvalidRequestError, match="which this IO manager does not keep"):
        run("other")


def test_partitions_that_are_there(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders")
    days = [date(2013, 1, 2), date(2013, 1, 3), date(2012, 12, 31), None]
    table.append(pa.table({"day": days, "n": range(4)}), partition_by=["day"])
    instance = dg.DagsterInstance.ephemeral()
    resource = DeltaTableResource(table_uri=table.uri)
    for _ in range(2):
        assert report_existing_partitions(instance, "orders", resource, DAYS) == ("2013-01-02", "2013-01-03")
    assert instance.get_materialized_partitions(dg.AssetKey("orders")) == {"2013-01-02", "2013-01-03"}
    with pytest.raises(InvalidRequestError, match="midnight"):
        report_existing_partitions(instance, "hours", resource, dg.HourlyPartitionsDefinition("2013-01-01-00:00"))
    assert not instance.get_materialized_partitions(dg.AssetKey("hours"))


def test_a_table_without_partitions_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders")
    table.append(pa.table({"n": [1]}))
    with pytest.raises(InvalidRequestError, match="not partitioned"):
        report_existing_partitions(
            dg.DagsterInstance.ephemeral(), "orders", DeltaTableResource(table_uri=table.uri), DAYS
        )
    with pytest.raises(InvalidRequestError, match="No table"):
        build_delta_observations({})
