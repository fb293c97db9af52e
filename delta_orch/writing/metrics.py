"""`operationMetrics` of a write."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.record_counts import record_counts

Metrics = dict[str, int]


def write_metrics(adds: pa.Table, removed: pa.Table | None = None) -> Metrics:
    """`operationMetrics` of a write, under the names of the reference implementation. `numOutputRows` is left out where
    a file does not say how many rows it has."""
    metrics = {"numFiles": adds.num_rows, "numOutputBytes": FileTable(adds).size_bytes}
    counts = record_counts(adds)
    if not counts.null_count:
        metrics["numOutputRows"] = pc.sum(counts).as_py() or 0
    if removed is not None:
        metrics["numRemovedFiles"] = removed.num_rows
        metrics["numRemovedBytes"] = FileTable(removed).size_bytes
    return metrics
