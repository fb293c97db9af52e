"""Rows from Spark to Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from delta_orch.engines.conform import conform_batch
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.sent_types import schema_as_sent
from delta_orch.engines.spark.settings import STREAM_SETTINGS
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import holds_variant


def collect_arrow(host: SparkHost, rows: DataFrame) -> pa.Table:
    """All rows, in the Arrow types of the relation's schema.

    Raises MissingFileError, TableError: A data file is gone or cannot be read.
    """
    with spark_errors("read the rows"):
        schema = parse_schema(rows.schema.json())
        if holds_variant(schema):
            # pyspark's own `toArrow` fails on variants under a null.
            return stream_arrow(host, rows).read_all()
        # The session's time zone only labels Arrow's columns: the cast puts UTC there.
        return rows.toArrow().cast(schema_to_arrow(schema))


def stream_arrow(host: SparkHost, rows: DataFrame) -> pa.RecordBatchReader:
    """The same rows batch by batch; errors surface while reading."""
    with spark_errors("read the rows"):
        schema = parse_schema(rows.schema.json())
        pinned = host.pinned(rows, STREAM_SETTINGS)
    sent, target = schema_as_sent(schema), schema_to_arrow(schema)

    def batches() -> Iterator[pa.RecordBatch]:
        with spark_errors("read the rows"), host.settings(STREAM_SETTINGS):
            for batch in host.arrow_batches(pinned, sent):
                yield batch.cast(target) if sent.equals(target) else conform_batch(batch, target, lossless=True)

    return pa.RecordBatchReader.from_batches(target, batches())
