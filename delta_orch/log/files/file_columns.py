"""The Arrow columns in which files travel through the core: one row a logical file, never one Python object.

A logical file is keyed by (`path`, `dv_id`) (PROTOCOL, "Action Reconciliation"). `path` is spelled as in the log.
"""

from __future__ import annotations

import pyarrow as pa

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


class _Column:
    """A column of a `FileTable`, under the name of the attribute."""

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type

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

    @property
    def size_bytes(self) -> int:
        """The sizes of all files together; 0 for no files."""
        import pyarrow.compute as pc

        return pc.sum(self.size).as_py() or 0

    path = _Column(pa.string())
    dv_id = _Column(pa.string())
    partition_values = _Column(STRING_MAP)
    size = _Column(pa.int64())
    modification_time = _Column(pa.int64())
    data_change = _Column(pa.bool_())
    stats = _Column(pa.string())
    tags = _Column(STRING_MAP)
    deletion_vector = _Column(DELETION_VECTOR_TYPE)
    base_row_id = _Column(pa.int64())
    default_row_commit_version = _Column(pa.int64())
    clustering_provider = _Column(pa.string())
    deletion_timestamp = _Column(pa.int64())
    extended_file_metadata = _Column(pa.bool_())


FILE_TYPES = {name: column.type for name, column in vars(FileTable).items() if isinstance(column, _Column)}
"""The type of each column, by its name."""


def _schema(names: str) -> pa.Schema:
    return pa.schema([pa.field(name, FILE_TYPES[name], nullable=name != "path") for name in names.split()])


ADD_SCHEMA = _schema(
    "path dv_id partition_values size modification_time data_change stats tags deletion_vector base_row_id "
    "default_row_commit_version clustering_provider"
)
"""Live files, and files about to be added. Times in milliseconds since the epoch, sizes in bytes."""

NO_FILES = pa.Table.from_batches([], ADD_SCHEMA)
"""`ADD_SCHEMA.empty_table()` imports pandas where it is installed."""

REMOVE_SCHEMA = _schema(
    "path dv_id deletion_timestamp data_change extended_file_metadata partition_values size stats tags deletion_vector "
    "base_row_id default_row_commit_version"
)
"""Tombstones, and files about to be removed."""

CDC_SCHEMA = _schema("path partition_values size data_change tags")
"""Change data files of one commit (PROTOCOL, "Add CDC File")."""
