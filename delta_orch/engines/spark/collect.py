"""Rows from Spark to Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.settings import STREAM_SETTINGS
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.schema import parse_schema


def arrow_schema_of(rows: DataFrame) -> pa.Schema:
    """The Arrow schema in which rows of a DataFrame leave the engine."""
    return schema_to_arrow(parse_schema(rows.schema.json()))


def collect_arrow(rows: DataFrame) -> pa.Table:
    """All rows, in the Arrow types of the relation's schema.

    Raises MissingFileError, TableError: A data file is gone or cannot be read.
    """
    with spark_errors("read the rows"):
        # The session's time zone only labels Arrow's columns: the cast puts UTC there.
        return rows.toArrow().cast(arrow_schema_of(rows))


def stream_arrow(host: SparkHost, rows: DataFrame) -> pa.RecordBatchReader:
    """The same rows batch by batch; errors surface while reading."""
    with spark_errors("read the rows"):
        schema = arrow_schema_of(rows)
        pinned = host.pinned(rows, STREAM_SETTINGS)

    def batches() -> Iterator[pa.RecordBatch]:
        with spark_errors("read the rows"), host.settings(STREAM_SETTINGS):
            for batch in host.arrow_batches(pinned, schema):
                yield batch.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
