"""Rows from Spark to Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from delta_orch.engines.conform import conform_batch
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.settings import STREAM_SETTINGS
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import (
    BINARY,
    VARIANT,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    holds_variant,
)

_SENT_VARIANT = StructType((StructField("value", BINARY), StructField("metadata", BINARY)))


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
    sent, target = _schema_as_sent(schema), schema_to_arrow(schema)

    def batches() -> Iterator[pa.RecordBatch]:
        with spark_errors("read the rows"), host.settings(STREAM_SETTINGS):
            for batch in host.arrow_batches(pinned, sent):
                yield batch.cast(target) if sent.equals(target) else conform_batch(batch, target, lossless=True)

    return pa.RecordBatchReader.from_batches(target, batches())


def _schema_as_sent(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark sends the rows: of a variant, `value` comes before `metadata`."""
    return schema_to_arrow(StructType(tuple(replace(f, data_type=_type_as_sent(f.data_type)) for f in schema)))


def _type_as_sent(data_type: DataType) -> DataType:
    match data_type:
        case StructType(fields):
            return StructType(tuple(replace(f, data_type=_type_as_sent(f.data_type)) for f in fields))
        case ArrayType(element_type, contains_null):
            return ArrayType(_type_as_sent(element_type), contains_null)
        case MapType(key_type, value_type, value_contains_null):
            return MapType(_type_as_sent(key_type), _type_as_sent(value_type), value_contains_null)
        case _:
            return _SENT_VARIANT if data_type == VARIANT else data_type
