"""Requests that take more than one query of Spark: rows evaluated once, sets of rows, an order along a curve.

`bitmap_construct_agg` makes 4 KiB of bits for 32768 neighbouring positions on the executors. Only these bits reach the
driver, for any number of rows. Python workers are not used.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.engines.space_curve import SAMPLED_ROWS, Curve, grid_of
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.frames import value_to_frame
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, SparkHost
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.protocol.arrow_building import int64_range, python_values
from delta_orch.protocol.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_BITS = 32_768
"""The number of positions in one bitmap of Spark."""


@contextmanager
def evaluated(host: SparkHost, rows: DataFrame) -> Iterator[DataFrame]:
    """Evaluate rows once. See `Engine.evaluated`. The executors hold them in memory and on disk. If an executor is
    lost, the write fails. A cache would compute the rows again, perhaps with another result."""
    with spark_errors("evaluate the rows that change", is_query=True), host.settings(ANALYSIS_SETTINGS):
        kept = host.pinned(rows, ANALYSIS_SETTINGS).localCheckpoint(eager=True)
    try:
        yield host.unpinned(kept)
    finally:
        # Spark deletes the blocks when the DataFrame is garbage-collected.
        del kept
        gc.collect(0)


def row_set_query(kind: str, file_number: str, row_position: str) -> str:
    """Return the query over `rows` whose result is the input of `gather_bitmaps`."""
    kind, file, row = map(quote_identifier, (kind, file_number, row_position))
    return (
        f"SELECT {kind} AS kind, {file} AS file, {row} DIV {_BITS} AS bucket, "
        f"bitmap_construct_agg({row} % {_BITS}) AS bits, count(*) AS num_rows FROM rows GROUP BY 1, 2, 3"
    )


def gather_bitmaps(batches: pa.RecordBatchReader) -> dict[RowKey, RowSet]:
    """Return the addressed rows of files. See `Engine.row_sets`."""
    row_sets: dict[RowKey, RowSet] = {}
    for batch in batches:
        for row in batch.to_pylist():
            rows = row_sets.setdefault((row["kind"], row["file"]), RowSet())
            if row["file"] is not None:
                bits = np.unpackbits(np.frombuffer(row["bits"], dtype=np.uint8), bitorder="little")
                positions = np.flatnonzero(bits) + row["bucket"] * _BITS
                rows.add(positions.astype(np.int64))
                rows.num_rows -= len(positions)
            rows.num_rows += row["num_rows"]
    return row_sets


def along_curve(
    frame: DataFrame,
    columns: Sequence[tuple[tuple[str, ...], DataType]],
    curve: Curve,
    num_rows: int | None,
    num_files: int,
) -> DataFrame:
    """Order rows along a curve. See `Engine.along_curve`. The driver collects only a sample of the columns.

    A tree of comparisons, which Spark compiles, finds the range of a value. A join with a small table adds the position
    of each cell on the curve.
    """
    names = [".".join(map(quote_identifier, path)) for path, _ in columns]
    with spark_errors("order the rows"):
        if len(names) == 1:
            return frame.repartitionByRange(num_files, names[0]).sortWithinPartitions(names[0])
        fraction = 1.0 if num_rows is None else min(1.0, SAMPLED_ROWS / max(num_rows, 1))
        picked = frame.selectExpr(*(f"{name} AS `{i}`" for i, name in enumerate(names)))
        sample: pa.Table = picked.sample(fraction, seed=0).limit(2 * SAMPLED_ROWS).toArrow()
        grid = grid_of(sample, curve)
        cell = "CAST(0 AS BIGINT)"
        for name, (_, data_type), bounds in zip(names, columns, grid.bounds, strict=True):
            texts = [to_spark_sql(Literal(value, data_type)) for value in python_values(bounds)]
            cell = f"(shiftleft({cell}, {grid.bits}) | {_range(name, texts)})"
        number, place = (free_name(f"_delta_orch_{name}", frame.columns) for name in ("cell", "place"))
        table = pa.Table.from_arrays(
            [int64_range(0, len(grid.places)), pa.array(grid.places, pa.int64())], [number, place]
        )
        places = value_to_frame(frame.sparkSession, table).hint("broadcast")
        numbered = frame.selectExpr("*", f"{cell} AS {number}").join(places, number)
        ordered = numbered.repartitionByRange(num_files, place).sortWithinPartitions(place)
        return ordered.drop(number, place)


def _range(name: str, bounds: Sequence[str]) -> str:
    """Return SQL for the number of the range of a value, 0 for null."""

    def below(start: int, stop: int) -> str:
        if start == stop:
            return f"{start + 1}L"
        middle = (start + stop) // 2
        return f"IF({name} < {bounds[middle]}, {below(start, middle)}, {below(middle + 1, stop)})"

    return f"IF({name} IS NULL, 0L, {below(0, len(bounds))})"
