"""CSV files to a gold table, in three assets.

landing/*.csv ──► orders (bronze) ──► sales (silver) ──► daily_sales (gold)
                  └─► orders_quarantine
"""

from pathlib import Path

import dagster as dg
import pyarrow as pa

from delta_orch import Expect, FileSource
from delta_orch.dagster import ChangeBatch, DeltaTableResource, FileBatch, build_delta_file_sensor, delta_asset

HOME = Path(__file__).resolve().parents[1]
landing = FileSource(HOME / "landing", pattern="*.csv", format="csv")
bronze, silver, gold = (
    DeltaTableResource(table_uri=str(HOME / "lake" / name)) for name in ("orders", "sales", "daily_sales")
)


@delta_asset(
    incremental_from=landing,
    table=bronze,
    partition_by=["day"],
    expect={"amount is positive": Expect("amount > 0", "quarantine")},
)
def orders(batch: FileBatch) -> pa.RecordBatchReader:
    """The rows of the files, each file once. Bad rows go to the table orders_quarantine."""
    return batch.rows(as_table=True)


@delta_asset(
    incremental_from=bronze,
    table=silver,
    write="cdc",
    merge_keys=["id"],
    sequence_by="updated",
    partition_by=["day"],
    deps=[orders],
)
def sales(batch: ChangeBatch) -> pa.Table:
    """The newest row of each order. Rows may come again, and in any order."""
    return batch.scan().to_arrow()


@delta_asset(incremental_from=silver, table=gold, partition_by=["day"], deps=[sales])
def daily_sales(batch: ChangeBatch) -> pa.Table:
    """The sales of each day. A run computes the days that changed."""
    return batch.scan().to_arrow().group_by("day").aggregate([("id", "count"), ("amount", "sum")])


new_files = build_delta_file_sensor(name="new_files", source=landing, table=bronze, target="*")

defs = dg.Definitions(
    assets=[orders, sales, daily_sales],
    sensors=[new_files],
    # All steps of a run in one process.
    executor=dg.in_process_executor,
)
