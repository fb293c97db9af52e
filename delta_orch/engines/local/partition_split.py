"""Splitting a batch by partition, column-wise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.file_writer import PartitionKey
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.protocol.partition_values import partition_column_from_arrow
from delta_orch.protocol.types import StructType


def split_by_partition(
    batch: pa.RecordBatch, schema: StructType, partition_columns: Sequence[str]
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The rows of each partition, in their order; keys are the strings the log records (empty is null).

    Args:
        batch: All columns of `schema`, in its types.

    Raises InvalidRequestError for a binary value that is not UTF-8, and for days beyond the years 1 to 9999.
    """
    if batch.num_rows == 0:
        return
    codes, keys = _encode(batch, schema, partition_columns)
    if len(keys) == 1:
        yield keys[0], batch
        return
    # A stable sort keeps the rows of a partition in their order.
    order = pc.sort_indices(codes)
    counts = pc.value_counts(pc.take(codes, order))
    rows = pc.take(batch, order)
    start = 0
    for code, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        yield keys[code], rows.slice(start, count)
        start += count


def _encode(
    batch: pa.RecordBatch, schema: StructType, partition_columns: Sequence[str]
) -> tuple[pa.Array, list[PartitionKey]]:
    """A number a row, and the key each number stands for."""
    codes: pa.Array | None = None
    keys: list[PartitionKey] = [()]
    for name in partition_columns:
        field = schema.find(name)
        assert field is not None
        try:
            texts = partition_column_from_arrow(batch.column(field.name), field.data_type)
        except DeltaError:
            raise
        except (OverflowError, ValueError) as e:
            raise InvalidRequestError(
                f"The column {field.name} has a value that no partition can have",
                cause=f"{e}; partitions have days of the years 1 to 9999",
                remedy="Leave out such rows, or partition by another column",
                column=field.name,
            ) from e
        encoded = pc.dictionary_encode(texts, null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        own = pc.cast(encoded.indices, pa.int64())
        codes = own if codes is None else pc.add(pc.multiply(codes, len(values)), own)
        # Only combinations that occur: their number is bounded by the rows, their product is not.
        combined = pc.dictionary_encode(codes)
        keys = [(*keys[code // len(values)], values[code % len(values)]) for code in combined.dictionary.to_pylist()]
        codes = pc.cast(combined.indices, pa.int64())
    assert codes is not None
    return codes, keys
