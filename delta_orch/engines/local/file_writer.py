"""Writing one Parquet data file, and describing it as an `add`."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.footer_statistics import (
    ColumnPath,
    StatisticsColumn,
    serialize_footer_statistics,
    statistics_columns,
)
from delta_orch.engines.local.durability import sync_file
from delta_orch.errors import InvalidPropertyError
from delta_orch.log.arrow_building import bool_array, int64_array, string_array, string_map_array
from delta_orch.log.file_columns import ADD_SCHEMA
from delta_orch.protocol.arrow_types import schema_to_arrow
from delta_orch.protocol.data_path import encode_path
from delta_orch.protocol.partition_values import partition_directory
from delta_orch.protocol.types import DOUBLE, FLOAT, VOID, ArrayType, DataType, MapType, StructType
from delta_orch.storage.os_errors import storage_error

PartitionKey = tuple[str | None, ...]
_CODECS = {"uncompressed": "none", "none": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4_raw": "lz4"}
_SUFFIXES = {"none": "", "snappy": ".snappy", "gzip": ".gz", "zstd": ".zstd", "lz4": ".lz4raw"}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What the log needs to know of a finished file. `path` is decoded and relative to the table's root."""

    path: str
    partition: PartitionKey
    size: int
    modification_time_ms: int
    stats: str


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Everything the files of one write have in common.

    Attributes:
        file_schema: Arrow schema of the files: no partition columns, no void columns, everything nullable.
        float_leaves: Float columns with statistics, whose NaNs must be watched for: Arrow's bounds pass over them.
    """

    filesystem: pafs.FileSystem
    root: str
    partition_columns: tuple[str, ...]
    file_schema: pa.Schema
    codec: str
    statistics: tuple[StatisticsColumn, ...]
    float_leaves: tuple[ColumnPath, ...]

    @staticmethod
    def of(spec: WriteSpec) -> FileLayout:
        """Raises InvalidPropertyError for an unknown compression."""
        codec = _CODECS.get(spec.compression.lower())
        if codec is None:
            raise InvalidPropertyError(
                f"There is no compression {spec.compression!r}", remedy=f"Use one of {', '.join(sorted(_CODECS))}"
            )
        in_files = StructType(tuple(f for f in spec.schema if f.name not in spec.partition_columns))
        columns = statistics_columns(in_files, spec.statistics)
        filesystem, root = spec.store.data_filesystem()
        return FileLayout(
            filesystem,
            root,
            spec.partition_columns,
            schema_to_arrow(as_nullable(StructType(tuple(f for f in in_files if f.data_type != VOID)))),
            codec,
            columns,
            tuple(column.path for column in columns if column.data_type in (FLOAT, DOUBLE)),
        )


def as_nullable(schema: StructType) -> StructType:
    """The schema in which rows are written. NOT NULL is verified row by row and stands in the log; in Parquet, a
    required field inside an optional struct would only keep writers from writing null structs."""
    return StructType(tuple(replace(f, data_type=_as_nullable_type(f.data_type), nullable=True) for f in schema))


def _as_nullable_type(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return as_nullable(data_type)
        case ArrayType(element_type):
            return ArrayType(_as_nullable_type(element_type), True)
        case MapType(key_type, value_type):
            return MapType(_as_nullable_type(key_type), _as_nullable_type(value_type), True)
    return data_type


class FileWriter:
    """One file that is being written. Not safe to use from two threads at once."""

    def __init__(self, layout: FileLayout, partition: PartitionKey) -> None:
        """Creates the file under a name that no other file has. Raises StorageError."""
        self._layout = layout
        self._partition = partition
        directory = partition_directory(layout.partition_columns, partition)
        name = f"part-00000-{uuid.uuid4()}.c000{_SUFFIXES[layout.codec]}.parquet"
        self._path = f"{directory}/{name}" if directory else name
        self._full_path = f"{layout.root}/{self._path}"
        self._with_nan: set[ColumnPath] = set()
        self._metadata: list[pq.FileMetaData] = []
        try:
            self._sink = self._open()
            self._writer = pq.ParquetWriter(
                self._sink,
                layout.file_schema,
                compression=layout.codec,
                metadata_collector=self._metadata,
                # Spark and other readers take types from the log; Arrow's own schema would only repeat them.
                store_schema=False,
                # Smaller, and what other engines read fastest.
                store_decimal_as_integer=True,
            )
        except OSError as e:
            raise storage_error(e, "create", self._full_path) from e

    def _open(self) -> pa.NativeFile:
        try:
            return self._layout.filesystem.open_output_stream(self._full_path)
        except FileNotFoundError:
            self._layout.filesystem.create_dir(posixpath.dirname(self._full_path), recursive=True)
            return self._layout.filesystem.open_output_stream(self._full_path)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Append one row group. Raises StorageError."""
        for path in self._layout.float_leaves:
            if path not in self._with_nan and _has_nan(rows, path):
                self._with_nan.add(path)
        try:
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        except OSError as e:
            raise storage_error(e, "write", self._full_path) from e

    def close(self) -> WrittenFile:
        """Finish the file; its content is on disk then, its name only after `sync_directories`. Raises StorageError."""
        try:
            self._writer.close()
            size = self.size_bytes
            self._sink.close()
        except OSError as e:
            raise storage_error(e, "write", self._full_path) from e
        sync_file(self._layout.filesystem, self._full_path)
        nan_free = [path for path in self._layout.float_leaves if path not in self._with_nan]
        stats = serialize_footer_statistics(self._metadata[0], self._layout.statistics, nan_free=nan_free)
        return WrittenFile(self._path, self._partition, size, time.time_ns() // 1_000_000, stats)

    def abandon(self) -> None:
        """Let go of a file that will never be named by a commit; vacuum removes what there is of it."""
        # Left open, it would try to finish the file when it is collected.
        self._writer.is_open = False
        try:
            self._sink.close()
        except OSError:
            # The error that made the caller give up is the one to report, and this is most likely the same.
            return


def _has_nan(rows: pa.Table, path: ColumnPath) -> bool:
    column = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return bool(pc.any(pc.is_nan(column)).as_py())


def add_table(files: Sequence[WrittenFile], partition_columns: Sequence[str]) -> pa.Table:
    """Finished files as rows of `ADD_SCHEMA`, in order."""
    columns = {
        "path": string_array([encode_path(file.path) for file in files]),
        "partition_values": string_map_array(
            [dict(zip(partition_columns, file.partition, strict=True)) for file in files]
        ),
        "size": int64_array([file.size for file in files]),
        "modification_time": int64_array([file.modification_time_ms for file in files]),
        "data_change": bool_array([True] * len(files)),
        "stats": string_array([file.stats for file in files]),
    }
    arrays = [columns.get(field.name, pa.nulls(len(files), field.type)) for field in ADD_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)
