"""Rows that change, on Spark: evaluated once, and gathered into one bitmap a file by Spark's own functions.

`bitmap_construct_agg` makes 4 KiB of bits for 32768 neighbouring positions where the rows are. What comes to the driver
are these bits, whatever the number of rows; Python workers take no part.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, SparkHost
from delta_orch.expressions.spark_literals import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BITS = 32_768
"""How many positions a bitmap of Spark's has room for."""


@contextmanager
def evaluated(host: SparkHost, rows: DataFrame) -> Iterator[DataFrame]:
    """See `Engine.evaluated`. The rows are in the executors' memory and on their disks. Where an executor is lost they
    are gone, and the write fails: a cache would compute them again, perhaps otherwise."""
    with spark_errors("evaluate the rows that change", is_query=True), host.settings(ANALYSIS_SETTINGS):
        kept = host.pinned(rows, ANALYSIS_SETTINGS).localCheckpoint(eager=True)
    try:
        yield host.unpinned(kept)
    finally:
        # Spark lets go of the blocks once nobody holds the DataFrame.
        del kept
        gc.collect(0)


def row_set_query(kind: str, file_number: str, row_position: str) -> str:
    """The query over `rows` whose answer `gather_bitmaps` takes."""
    kind, file, row = map(quote_identifier, (kind, file_number, row_position))
    return (
        f"SELECT {kind} AS kind, {file} AS file, {row} DIV {_BITS} AS bucket, "
        f"bitmap_construct_agg({row} % {_BITS}) AS bits, count(*) AS num_rows FROM rows GROUP BY 1, 2, 3"
    )


def gather_bitmaps(batches: pa.RecordBatchReader) -> dict[RowKey, RowSet]:
    """See `Engine.row_sets`."""
    found: dict[RowKey, RowSet] = {}
    for batch in batches:
        for row in batch.to_pylist():
            rows = found.setdefault((row["kind"], row["file"]), RowSet())
            if row["file"] is not None:
                bits = np.unpackbits(np.frombuffer(row["bits"], dtype=np.uint8), bitorder="little")
                positions = np.flatnonzero(bits) + row["bucket"] * _BITS
                rows.add(positions.astype(np.int64))
                rows.num_rows -= len(positions)
            rows.num_rows += row["num_rows"]
    return found
