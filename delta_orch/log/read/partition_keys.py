"""The partitions that files lie in, as typed columns and as keys that compare."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from delta_orch.log.files import partition_columns as log_partitions
from delta_orch.log.files.arrow_building import string_array
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import StructType
from delta_orch.table.column_mapping import physical_path


def partition_strings(files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Table:
    """The files' partition values, one string column a partition column under its logical name, spelled as in the
    log."""
    physical = [physical_path(schema, [name])[0] for name in partition_columns]
    strings = log_partitions.partition_strings(files.column("partition_values"), physical)
    return strings.rename_columns(list(partition_columns))


def typed_partitions(files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Table:
    """The files' partition values in the Arrow types of their columns, one row a file."""
    strings = partition_strings(files, schema, partition_columns)
    fields = [field for name in partition_columns if (field := schema.find(name)) is not None]
    columns = [
        partition_column_to_arrow(column, field.data_type)
        for column, field in zip(strings.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=list(partition_columns))


def partition_keys(files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Array:
    """One string a file; two files have the same one exactly if they lie in the same partition."""
    if not partition_columns:
        return string_array([""] * files.num_rows)
    return log_partitions.partition_keys(partition_strings(files, schema, partition_columns), schema)
