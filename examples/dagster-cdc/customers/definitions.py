"""Change events to two tables: the newest row of each customer (SCD 1), and all versions of it (SCD 2).

events/*.json ──► customers (SCD 1)
              └─► customers_history (SCD 2)
"""

from pathlib import Path

import dagster as dg
import pyarrow as pa

from delta_orch import FileSource
from delta_orch.dagster import DeltaTableResource, FileBatch, build_delta_file_sensor, delta_asset

HOME = Path(__file__).resolve().parents[1]
events = FileSource(HOME / "events", pattern="*.json", format="json")
newest = DeltaTableResource(table_uri=str(HOME / "lake" / "customers"))
history = DeltaTableResource(table_uri=str(HOME / "lake" / "customers_history"))


@delta_asset(
    incremental_from=events,
    table=newest,
    write="cdc",
    merge_keys=["id"],
    sequence_by="changed",
    delete_when="op = 'D'",
    except_columns=["op"],
)
def customers(batch: FileBatch) -> pa.Table:
    """The newest row of each customer. A deleted customer leaves a row with `_deleted_at`."""
    return batch.to_arrow()


@delta_asset(
    incremental_from=events,
    table=history,
    write="cdc",
    scd=2,
    merge_keys=["id"],
    sequence_by="changed",
    delete_when="op = 'D'",
    except_columns=["op"],
)
def customers_history(batch: FileBatch) -> pa.Table:
    """All versions of each customer, with `valid_from` and `valid_to`. Late events find their place."""
    return batch.to_arrow()


new_events = build_delta_file_sensor(name="new_events", source=events, table=newest, target="*")

defs = dg.Definitions(
    assets=[customers, customers_history],
    sensors=[new_events],
    # All steps of a run in one process.
    executor=dg.in_process_executor,
)
