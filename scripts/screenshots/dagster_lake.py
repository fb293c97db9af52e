"""A small lake without Spark, for the pictures: `definitions` for the web server, `fill` to have something to see."""

import os
import random
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa

from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaTableResource,
    build_delta_audit_checks,
    build_delta_check,
    build_delta_log_sensor,
    checks,
    delta_asset,
    with_delta_maintenance,
)
from delta_orch.pipeline.maintenance import ALWAYS

ROOT = Path(os.environ.get("DELTA_ORCH_SCREENSHOTS", "lake"))
DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-15")
silver = DeltaTableResource(table_uri=str(ROOT / "daily_sales"))
bronze = DeltaTableResource(table_uri=str(ROOT / "orders"))


@dg.asset(
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    metadata={
        "partition_expr": "day",
        "audit": {"positive": "amount > 0", "enough": {"min_rows": 1}},
        "expect": {"amount is plausible": {"rule": "amount < 495", "action": "quarantine"}},
    },
    kinds={"deltalake"},
    group_name="sales",
)
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """Orders as they come, a partition a day."""
    chosen = random.Random(context.run.run_id)
    rows = [(key, n, chosen.randint(1, 500)) for key in context.partition_keys for n in range(chosen.randint(50, 400))]
    day, number, amount = (list(column) for column in zip(*rows, strict=True))
    return pa.table({"day": day, "order": number, "amount": amount})


@delta_asset(
    incremental_from=bronze,
    table=silver,
    write="overwrite_changed",
    partition_by=["day"],
    deps=[orders],
    group_name="sales",
)
def daily_sales(context: dg.AssetExecutionContext, batch: ChangeBatch) -> pa.Table:
    """The total of each day that changed."""
    return batch.scan().to_arrow().group_by("day").aggregate([("amount", "sum"), ("order", "count")])


definitions = with_delta_maintenance(
    dg.Definitions(
        assets=[orders, daily_sales],
        asset_checks=[
            *build_delta_audit_checks([orders]),
            build_delta_check(orders, bronze, checks.row_count(min_rows=1000)),
            build_delta_check(orders, bronze, checks.freshness(max_age=timedelta(hours=6))),
        ],
        sensors=[build_delta_log_sensor(name="orders_changed", table_uri=bronze.table_uri, target=[daily_sales])],
        resources={"io_manager": DeltaLakeIOManager(root_uri=str(ROOT))},
    ),
    policy=ALWAYS,
)


def fill() -> None:
    """Materialize what the pictures show."""
    job = definitions.resolve_implicit_global_asset_job_def()
    instance = dg.DagsterInstance.get()
    keys = DAYS.get_partition_keys()
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[29]}
    chosen = [orders.key, daily_sales.key]
    maintained = [key for key in definitions.resolve_asset_graph().get_all_asset_keys() if key.path[0] == "maintenance"]
    # The last ones are there already, so their rows are replaced.
    for partition in (None, *keys[30:36], *keys[24:30]):
        done = job.execute_in_process(
            instance=instance, asset_selection=[orders.key], partition_key=partition, tags=tags if not partition else {}
        )
        assert done.success
        assert job.execute_in_process(instance=instance, asset_selection=chosen[1:]).success
    assert job.execute_in_process(instance=instance, asset_selection=sorted(maintained)).success


if __name__ == "__main__":
    fill()
