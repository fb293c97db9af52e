"""Merge a stream that is ten times as large as the memory that the join may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.row_changes import VECTORS, on_a_copy, tables

SOURCE_ROWS, BATCH_ROWS = 12_000_000, 500_000
LIMIT = "128MB"
TITLE = f"MERGE of a stream of {SOURCE_ROWS:,} rows, 1.3 GB in Arrow, by a join that may take {LIMIT}"

Run = Callable[[Path], object]

prepare = tables


def delta_orch() -> Run:
    """An upsert of which a twelfth is new."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from delta_orch import DeltaTable
    from delta_orch.engines.local import duckdb_query, duckdb_session

    def connect() -> Any:
        connection = duckdb_session.connect()
        connection.execute(f"SET memory_limit = '{LIMIT}'")
        return connection

    def batches() -> Iterator[pa.RecordBatch]:
        import numpy as np

        for start in range(0, SOURCE_ROWS, BATCH_ROWS):
            ids = np.arange(start, start + BATCH_ROWS) + 9_000_000
            text = pc.binary_join_element_wise(pa.array(ids).cast(pa.string()), "-" * 60, "")
            days = pa.repeat(pa.scalar(18_000, pa.int32()).cast(pa.date32()), BATCH_ROWS)
            yield pa.RecordBatch.from_arrays(
                [pa.array(ids), pa.array(ids), pa.array(ids / 2), text, days], names=list(schema.names)
            )

    types = {"id": pa.int64(), "k": pa.int64(), "value": pa.float64(), "name": pa.string(), "day": pa.date32()}
    schema = pa.schema(list(types.items()))

    def merge(copy: Path) -> object:
        with patch.object(duckdb_query, "connect", connect):
            metrics = DeltaTable(copy).upsert(pa.RecordBatchReader.from_batches(schema, batches()), ["id"]).metrics
        return metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]

    return on_a_copy(VECTORS, merge)


CONTESTANTS = {"delta_orch, deletion vectors": delta_orch}
