"""One data file of a scan, from Parquet to the table's columns (PROTOCOL, "Data Files")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from delta_orch.engines.local.conform import conform_table
from delta_orch.engines.local.live_rows import LiveRows
from delta_orch.engines.local.logical_names import find_in_file, with_logical_names
from delta_orch.engines.local.prefetch import map_ahead
from delta_orch.engines.local.row_group_skipping import RowGroupSkipping
from delta_orch.errors import DeltaError, MissingFileError, SchemaMismatchError, TableError
from delta_orch.features.column_mapping import ColumnMappingMode
from delta_orch.log.deletion_vectors import read_deletion_vector
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.types import StructType
from delta_orch.storage.base import LogStore
from delta_orch.storage.os_errors import storage_error

BATCH_ROWS = 131_072
SMALL_BYTES = 64 * 1024 * 1024
"""Uncompressed size up to which a file, or a row group, is decoded in one go."""


@dataclass(frozen=True, slots=True)
class FileTask:
    """What to read of one file.

    Attributes:
        path: For the store's file system.
        constants: Partition values as Arrow scalars, by column name.
        deletion_vector: Marks rows of the file that are not in the table.
    """

    path: str
    constants: dict[str, pa.Scalar]
    deletion_vector: DeletionVectorDescriptor | None = None


@dataclass(frozen=True, slots=True)
class FileReader:
    """How to read each file of a scan.

    Attributes:
        store: Where the files are.
        schema: The table's schema.
        column_mapping: How files know its columns.
        needed: The columns to produce before filtering, in order, in the table's types.
        output: The names to return, in order.
        filter: Rows to keep; over the columns `needed`.
        skipping: A part of `filter` by which row groups may be skipped, None if there is none.
    """

    store: LogStore
    schema: StructType
    column_mapping: ColumnMappingMode
    needed: pa.Schema
    output: tuple[str, ...]
    filter: pc.Expression | None = None
    skipping: RowGroupSkipping | None = None

    def read_small(self, task: FileTask) -> list[pa.RecordBatch] | None:
        """All batches of a file, or None if it is too large to decode in one go.

        Raises:
            MissingFileError: The file is not there.
            TableError: It is not a readable Parquet file, or its columns do not fit the schema.
            StorageError: It cannot be read.
        """
        with _own_errors(task.path), self._open(task.path) as file:
            names, groups = self._names_in(file, task), self._groups_of(file, task)
            live = self._live_rows(file.metadata, task)
            if not names:
                rows = _rows_only(sum(file.metadata.row_group(group).num_rows for group in groups))
            elif sum(_selected_bytes(file.metadata, group, names) for group in groups) > SMALL_BYTES:
                return None
            else:
                rows = file.read_row_groups(groups, columns=names, use_threads=False)
            if live is not None:
                rows = rows.filter(live.of_groups(groups))
            return [batch for batch in self._finish(rows, task) if batch.num_rows]

    def stream(self, task: FileTask) -> Iterator[pa.RecordBatch]:
        """The batches of a file of any size: row groups on threads, a very large one bit by bit. Raises as
        `read_small`."""
        with _own_errors(task.path), self._open(task.path) as file:
            names, groups, metadata = self._names_in(file, task), self._groups_of(file, task), file.metadata
            live = self._live_rows(metadata, task)
            if max((_selected_bytes(metadata, group, names) for group in groups), default=0) > SMALL_BYTES:
                batches = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=names, use_threads=True)
                tables = _as_tables(batches) if live is None else live.filter_batches(batches, groups)
                for rows in tables:
                    yield from self._finish(rows, task)
                return

        def read_group(group: int) -> list[pa.RecordBatch]:
            with _own_errors(task.path), self._open(task.path, metadata) as own:
                rows = own.read_row_group(group, columns=names, use_threads=False)
                if live is not None:
                    rows = rows.filter(live.of_groups([group]))
                return list(self._finish(rows, task))

        for _, batches in map_ahead(read_group, groups):
            yield from batches

    @contextmanager
    def _open(self, path: str, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
        filesystem = self.store.data_filesystem()[0]
        is_local = isinstance(filesystem, pafs.LocalFileSystem)
        with filesystem.open_input_file(path) as source:
            # INT96 in the year 9999 overflows nanoseconds. Reading ahead pays where each request costs a round trip.
            yield pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit="us", pre_buffer=not is_local)

    def _names_in(self, file: pq.ParquetFile, task: FileTask) -> list[str]:
        in_file = list(file.schema_arrow)
        wanted = (self.schema.find(field.name) for field in self.needed if field.name not in task.constants)
        found = (find_in_file(field, in_file, self.column_mapping) for field in wanted if field is not None)
        return [in_file[index].name for index in found if index is not None]

    def _live_rows(self, metadata: pq.FileMetaData, task: FileTask) -> LiveRows | None:
        if task.deletion_vector is None:
            return None
        return LiveRows.of_file(metadata, read_deletion_vector(self.store, task.deletion_vector))

    def _groups_of(self, file: pq.ParquetFile, task: FileTask) -> list[int]:
        count = file.metadata.num_row_groups
        if self.skipping is None or count < 2:
            return list(range(count))
        return self.skipping.groups_of(self.store.data_filesystem()[0], task.path, file.schema_arrow, count)

    def _finish(self, rows: pa.Table, task: FileTask) -> Iterator[pa.RecordBatch]:
        from_file = pa.schema([field for field in self.needed if field.name not in task.constants])
        named = with_logical_names(rows, self.schema, self.column_mapping)
        table = conform_table(named, from_file, lossless=False) if len(from_file) else rows.select([])
        num_rows = rows.num_rows
        for index, field in enumerate(self.needed):
            if field.name in task.constants:
                table = table.add_column(index, field, pa.repeat(task.constants[field.name], num_rows))
        if self.filter is not None:
            table = table.filter(self.filter)
        yield from table.select(self.output).to_batches(max_chunksize=BATCH_ROWS)


def _as_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)


def _rows_only(num_rows: int) -> pa.Table:
    """A table of that many rows to which constants can be added; its one column is never selected."""
    return pa.Table.from_arrays([pa.nulls(num_rows)], names=["\0"])


def _selected_bytes(metadata: pq.FileMetaData, group: int, names: Sequence[str]) -> int:
    """Uncompressed size of the columns to read of a row group; at most what the group has in all."""
    row_group = metadata.row_group(group)
    total = int(row_group.total_byte_size)
    if total <= SMALL_BYTES:
        return total
    wanted = set(names)
    columns = map(row_group.column, range(row_group.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema in wanted or column.path_in_schema.split(".", 1)[0] in wanted
    )


@contextmanager
def _own_errors(path: str) -> Iterator[None]:
    try:
        yield
    except DeltaError as e:
        if isinstance(e, SchemaMismatchError):
            raise read_error(e, path) from e
        raise
    except (OSError, pa.ArrowException) as e:
        raise read_error(e, path) from e


def read_error(error: Exception, path: str) -> DeltaError:
    """The error to raise for what went wrong while a data file was read."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            f"The data file {path} is not there",
            cause="The log names it, but vacuum or something else has deleted it",
            remedy="Read a newer version, or restore the file",
            path=path,
        )
    if isinstance(error, SchemaMismatchError):
        return TableError(f"The data file {path} does not fit the table's schema", cause=error.problem, path=path)
    if isinstance(error, OSError) and error.errno is not None:
        return storage_error(error, "read", path)
    return TableError(
        f"The data file {path} is not readable as Parquet",
        cause=str(error),
        remedy="Restore the file from a backup, or remove it from the table",
        path=path,
    )


def ordered_columns(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The fields of those names, in schema order."""
    wanted = set(names)
    return pa.schema([field for field in schema if field.name in wanted])
