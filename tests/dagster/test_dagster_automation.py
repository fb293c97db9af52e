"""What starts behind a step that has, or has not, found new data."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import (
    ChangeBatch,
    DeltaAutomation,
    DeltaLakeIOManager,
    DeltaTableResource,
    build_delta_observations,
    delta_asset,
)
from delta_orch.delta_table import DeltaTable

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-04")


# Of Dagster itself, where it loads observations, and evaluates conditions by hand.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Parameter `include_sources`"),
    pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`"),
]


class Chain:
    """bronze → silver (incremental) → gold, which runs on new data."""

    def __init__(self, root: Path, gold: Any, **arguments: Any) -> None:
        self.instance = dg.DagsterInstance.ephemeral()
        self.bronze = DeltaTable(root / "bronze")
        self.cursor: Any = None
        silver_table = DeltaTableResource(table_uri=str(root / "silver"))
        (observed,) = build_delta_observations({"bronze": DeltaTableResource(table_uri=self.bronze.uri)})
        self.observed = observed

        @delta_asset(
            incremental_from=DeltaTableResource(table_uri=self.bronze.uri),
            table=silver_table,
            write="append",
            deps=["bronze"],
            automation_condition=DeltaAutomation.on_new_data(),
            **arguments,
        )
        def silver(batch: ChangeBatch) -> Any:
            return batch.inserted().to_arrow()

        @dg.asset(name="gold", deps=[silver], automation_condition=gold)
        def behind() -> None: ...

        self.silver, self.gold = silver, behind
        look = dg.define_asset_job("look", selection=dg.AssetSelection.assets(dg.AssetKey("bronze")))
        self.defs = dg.Definitions(assets=[observed, silver, behind], jobs=[look])
        dg.Definitions.validate_loadable(self.defs)

    def write(self, number: int) -> None:
        self.bronze.append(pa.table({"n": [number]}))

    def observe(self) -> None:
        assert self.defs.resolve_job_def("look").execute_in_process(instance=self.instance).success

    def tick(self) -> set[str]:
        """The assets that a tick starts; they run."""
        found = dg.evaluate_automation_conditions(self.defs, self.instance, cursor=self.cursor)
        self.cursor = found.cursor
        started = {
            name for asset in (self.silver, self.gold) if found.get_num_requested(asset.key) for name in asset.key.path
        }
        asked = [asset for asset in (self.silver, self.gold) if asset.key.path[-1] in started]
        if asked:
            assert dg.materialize([*asked], instance=self.instance).success
        return started


def test_only_new_data_starts_what_is_behind_it(tmp_path: Path) -> None:
    chain = Chain(tmp_path, DeltaAutomation.on_new_data())
    chain.write(1)
    chain.tick()
    chain.observe()
    # One after the other: whether silver has new data is known when it has ended.
    assert [chain.tick(), chain.tick(), chain.tick()] == [{"silver"}, {"gold"}, set()]
    # Nobody has written: an observation tells of no other data version.
    chain.observe()
    assert [chain.tick(), chain.tick()] == [set(), set()]
    # Silver runs by hand and finds nothing.
    assert dg.materialize([chain.silver], instance=chain.instance).success
    assert chain.tick() == set()
    chain.write(2)
    chain.observe()
    assert [chain.tick(), chain.tick(), chain.tick()] == [{"silver"}, {"gold"}, set()]


def test_an_upstream_with_some_of_its_partitions_starts_what_reads_it(tmp_path: Path) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def bronze(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [context.partition_key], "n": [1]})

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=str(tmp_path / "bronze")),
        table=DeltaTableResource(table_uri=str(tmp_path / "silver")),
        partition_by=["day"],
        deps=[bronze],
        automation_condition=DeltaAutomation.on_new_data(),
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.scan().to_arrow()

    instance = dg.DagsterInstance.ephemeral()
    resources = {"io_manager": DeltaLakeIOManager(root_uri=str(tmp_path))}
    defs = dg.Definitions(assets=[bronze, silver], resources=resources)
    first = dg.evaluate_automation_conditions(defs, instance)
    assert dg.materialize([bronze], instance=instance, resources=resources, partition_key="2013-01-02").success
    assert dg.evaluate_automation_conditions(defs, instance, cursor=first.cursor).get_num_requested(silver.key) == 1


@pytest.mark.parametrize("has_policy", [True, False])
def test_a_freshness_policy_counts_a_run_that_found_nothing(tmp_path: Path, has_policy: bool) -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1)) if has_policy else None
    chain = Chain(tmp_path, DeltaAutomation.on_new_data(), freshness_policy=policy)
    chain.write(1)
    first = dg.materialize([chain.silver], instance=chain.instance)
    again = dg.materialize([chain.silver], instance=chain.instance)
    (event,) = first.asset_materializations_for_node("silver")
    version = (event.tags or {})["dagster/data_version"]
    told = again.asset_materializations_for_node("silver")
    assert len(told) == has_policy
    for event in told:
        # Checked, nothing new: what goes by data versions sees no change.
        assert event.metadata["delta/outcome"].value == "nothing new"
        assert (event.tags or {})["dagster/data_version"] == version
    assert len(again.asset_observations_for_node("silver")) == (not has_policy)
