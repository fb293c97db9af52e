"""The Arrow columns in which files travel through the core: one row a logical file, never one Python object.

A logical file is keyed by (`path`, `dv_id`) (PROTOCOL, "Action Reconciliation"). `path` is spelled as in the log.
"""

from __future__ import annotations

import pyarrow as pa


class _Column:
    """A column of a `FileTable`, under the name of the attribute."""

    def __set_name__(self, owner: type[FileTable], name: str) -> None:
        self._name = name

    def __get__(self, files: FileTable, owner: type[FileTable]) -> pa.ChunkedArray:
        return files.table.column(self._name)


class FileTable:
    """A table of files, or a batch of one, with its columns as attributes: `FileTable(adds).path`.

    One name for each column of `ADD_SCHEMA`, `REMOVE_SCHEMA` and `CDC_SCHEMA`, which have their types. An attribute
    raises KeyError where the table was read without that column.
    """

    __slots__ = ("table",)

    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self.table = table

    path = _Column()
    dv_id = _Column()
    partition_values = _Column()
    size = _Column()
    modification_time = _Column()
    data_change = _Column()
    stats = _Column()
    tags = _Column()
    deletion_vector = _Column()
    base_row_id = _Column()
    default_row_commit_version = _Column()
    clustering_provider = _Column()
    deletion_timestamp = _Column()
    extended_file_metadata = _Column()


STRING_MAP = pa.map_(pa.string(), pa.string())

DELETION_VECTOR_TYPE = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline_dv", pa.string()),
        ("offset", pa.int32()),
        ("size_in_bytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

ADD_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("dv_id", pa.string()),
        pa.field("partition_values", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("modification_time", pa.int64()),
        pa.field("data_change", pa.bool_()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletion_vector", DELETION_VECTOR_TYPE),
        pa.field("base_row_id", pa.int64()),
        pa.field("default_row_commit_version", pa.int64()),
        pa.field("clustering_provider", pa.string()),
    ]
)
"""Live files, and files about to be added. Times in milliseconds since the epoch, sizes in bytes."""

REMOVE_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("dv_id", pa.string()),
        pa.field("deletion_timestamp", pa.int64()),
        pa.field("data_change", pa.bool_()),
        pa.field("extended_file_metadata", pa.bool_()),
        pa.field("partition_values", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletion_vector", DELETION_VECTOR_TYPE),
        pa.field("base_row_id", pa.int64()),
        pa.field("default_row_commit_version", pa.int64()),
    ]
)
"""Tombstones, and files about to be removed."""

CDC_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("partition_values", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("data_change", pa.bool_()),
        pa.field("tags", STRING_MAP),
    ]
)
"""Change data files of one commit (PROTOCOL, "Add CDC File")."""
