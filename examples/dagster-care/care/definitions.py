"""A table with checks before and after each commit, and with maintenance."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa

from delta_orch.dagster import (
    DeltaLakeIOManager,
    DeltaTableResource,
    MaintenancePolicy,
    build_delta_audit_checks,
    build_delta_check,
    checks,
    with_delta_maintenance,
)

LAKE = Path(__file__).resolve().parents[1] / "lake"
table = DeltaTableResource(table_uri=str(LAKE / "readings"))
hours = dg.StaticPartitionsDefinition([f"{hour:02}" for hour in range(24)])


@dg.asset(
    partitions_def=hours,
    metadata={
        "partition_expr": "hour",
        "partition_by": [],
        # Before the commit: if a row breaks it, the step fails and the table stays as it was.
        "audit": {"plausible": "value BETWEEN -50 AND 60"},
        # Each hour adds a file. `load_id` names the hour that wrote a row, also after a compaction.
        "write": "append",
        "unit_column": "load_id",
    },
)
def readings(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"hour": [context.partition_key] * 3, "sensor": [1, 2, 3], "value": [20.5, 21.0, 19.5]})


defs = with_delta_maintenance(
    dg.Definitions(
        [readings],
        asset_checks=[
            *build_delta_audit_checks([readings]),
            # After the commit.
            build_delta_check(readings, table, checks.null_rate(max_null_rates={"sensor": 0.0})),
            build_delta_check(readings, table, checks.freshness(max_age=timedelta(hours=6))),
        ],
        jobs=[
            dg.define_asset_job("maintenance", selection=dg.AssetSelection.groups("maintenance", include_sources=True))
        ],
        resources={"io_manager": DeltaLakeIOManager(root_uri=str(LAKE))},
        executor=dg.in_process_executor,
    ),
    # The default is ten small files. Two are enough to see it.
    policy=MaintenancePolicy(min_compactable_files=2),
)
