"""How many rows a scan has, from statistics where they say so."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.select import local_engine
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, live_row_counts
from delta_orch.log.files.partition_columns import typed_partitions
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.arrow_building import one_chunk

_COUNT = "delta_orch_num_rows"


def count_rows(snapshot: Snapshot, plan: ScanPlan) -> int:
    """See `Scan.count`."""
    plan.ensure_each_once()
    if plan.arrow_filter is not None or not _is_of_partitions(plan):
        return _read(plan)
    counts = live_row_counts(snapshot.files(["path", *ROW_COUNT_COLUMNS], plan.where))
    unknown = pc.filter(plan.files, pc.is_null(counts))
    counted = 0 if not unknown.num_rows else _read(replace(plan, files=unknown))
    known = pc.filter(plan.files, pc.is_valid(counts))
    return counted + _counted(snapshot, replace(plan, files=known), pc.drop_null(counts))


def _is_of_partitions(plan: ScanPlan) -> bool:
    columns = () if plan.where is None else columns_of(plan.where)
    return all(len(column.path) == 1 and column.path[0] in plan.partition_columns for column in columns)


def _counted(snapshot: Snapshot, plan: ScanPlan, counts: pa.Array) -> int:
    if plan.where is not None:
        # Each file stands for its rows: their partition values are the same.
        values = typed_partitions(plan.files, snapshot.schema, plan.partition_columns).append_column(_COUNT, counts)
        engine = local_engine()
        counts = one_chunk(engine.to_arrow(engine.filter(engine.relation(values), plan.where)).column(_COUNT))
    return int(pc.sum(counts).as_py() or 0)


def _read(plan: ScanPlan) -> int:
    engine = local_engine()
    return sum(batch.num_rows for batch in engine.to_reader(engine.scan(replace(plan, columns=(), output=None))))
