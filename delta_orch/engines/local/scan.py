"""A `ScanPlan` as a relation: the log decides which files, which types and which partition values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.file_rows import FileTask
from delta_orch.engines.local.parquet_read import (
    WHOLE_BYTES,
    FileReader,
    RowFilter,
    ordered_columns,
    row_group_skipping,
)
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import (
    FILE_NUMBERS,
    OutputColumn,
    ScanPlan,
    column_indexes,
    output_columns_schema,
    value_at,
)
from delta_orch.errors import InvalidExpressionError, ProtocolViolationError
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import partition_strings
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import StructField, StructType
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead, thread_count
from delta_orch.table.column_mapping import physical_name

if TYPE_CHECKING:
    from pyarrow.compute import Expression as ArrowExpression

_MANY_FILES, _FILES_TOGETHER = 32, 64
"""From so many small files on, so many of them are one task."""
_SMALL_FILE_THREADS = 1
"""Two are no quicker, and cost half as much again: what a small file costs is too much Python."""


def scan_relation(plan: ScanPlan) -> LocalRelation:
    """The rows of a plan whose `where` Arrow can evaluate, read on request."""
    if plan.output is None:
        return LocalRelation(plan.read_schema, lambda: read_batches(plan), plan)
    return replace(output_relation(scan_relation(replace(plan, output=None)), plan.output), plan=plan)


def output_relation(relation: LocalRelation, output: Sequence[OutputColumn]) -> LocalRelation:
    """The columns and fields that `output` names, in its order. Nothing is copied."""
    paths = [column_indexes(column.path, relation.schema) for column in output]
    names = [column.name for column in output]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in relation.batches(relation.schema.names):
            yield pa.RecordBatch.from_arrays([value_at(batch, path) for path in paths], names=names)

    return LocalRelation(output_columns_schema(output, relation.schema), batches)


def read_batches(plan: ScanPlan, threads: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows, file after file, in the Arrow types of the schema; `plan.where` must have no opaque part.

    Args:
        threads: As `map_ahead`; None for what suits files and store.

    Raises:
        MissingFileError: A file does not exist.
        TableError: A file is not readable as Parquet, or does not fit the schema.
    """
    reader = _reader(plan, _row_filter(plan), threads)
    single = _file_tasks(plan, reader.needed.names)
    if not _are_small(plan, reader.filesystem):
        ahead = _threads(reader.filesystem) if threads is None else threads
        yield from chain.from_iterable(map_ahead(reader.batches, single, ahead))
        return
    for together in map_ahead(reader.read_together, _groups(single), _SMALL_FILE_THREADS):
        yield from chain.from_iterable(together)


def count_row_groups(plan: ScanPlan) -> tuple[int, int]:
    """How many row groups the files have, and how many of them the statistics in the footers do not rule out. Only
    footers are read. Raises as `read_batches`."""
    reader = _reader(plan, None)
    threads = _threads(reader.filesystem)
    counts = list(map_ahead(reader.count_row_groups, _file_tasks(plan, reader.needed.names), threads))
    return sum(total for total, _ in counts), sum(kept for _, kept in counts)


def _reader(plan: ScanPlan, row_filter: RowFilter | None, threads: int | None = None) -> FileReader:
    needed = {*(plan.schema if plan.arrow_filter is not None else plan.read_schema).names}
    for column in () if plan.where is None else columns_of(plan.where):
        needed.add(column.path[0])
    return FileReader(
        plan,
        ordered_columns(schema_to_arrow(plan.schema), needed),
        row_filter,
        row_group_skipping(plan.where, plan.schema, (*plan.partition_columns, *plan.made_columns), plan.column_mapping),
        threads,
    )


def _are_small(plan: ScanPlan, filesystem: pafs.FileSystem) -> bool:
    """Whether the plan has many files of few bytes, on this machine."""
    files = plan.files.num_rows
    is_local = isinstance(filesystem, pafs.LocalFileSystem)
    return is_local and files >= _MANY_FILES and FileTable(plan.files).size_bytes < files * WHOLE_BYTES


def _threads(filesystem: pafs.FileSystem) -> int:
    return thread_count() if isinstance(filesystem, pafs.LocalFileSystem) else FAR_THREADS


def _groups(tasks: Iterator[FileTask]) -> Iterator[list[FileTask]]:
    while group := list(islice(tasks, _FILES_TOGETHER)):
        yield group


def _row_filter(plan: ScanPlan) -> RowFilter | None:
    if plan.where is None and plan.arrow_filter is None:
        return None
    where = None if plan.where is None else arrow_predicate(plan.where, plan.schema)

    def kept(rows: pa.Table) -> pa.Table:
        if where is not None:
            rows = pc.filter(rows, where(rows))
        # An expression of pyarrow may name columns by position: it needs all of them, see `needed`.
        return rows if plan.arrow_filter is None else _arrow_filtered(rows, plan.arrow_filter)

    return kept


def _arrow_filtered(rows: pa.Table, expression: ArrowExpression) -> pa.Table:
    try:
        return rows.filter(expression)
    except MemoryError:
        raise
    except pa.ArrowException as e:
        raise InvalidExpressionError(
            f"The filter {str(expression)[:200]} failed for a row",
            cause=str(e).split("\n")[0],
            remedy="Leave out such rows in a filter before it, or write one that is null for them",
        ) from e


def _file_tasks(plan: ScanPlan, needed: list[str]) -> Iterator[FileTask]:
    if plan.files.num_rows == 0:
        return
    names = [name for name in plan.partition_columns if name in needed]
    values = partition_constants(plan, names) if names else pa.table({})
    nothing: list[int | None] = [None] * plan.files.num_rows
    vectors = deletion_vector_descriptors(plan.files) if plan.has_deletion_vectors else [None] * plan.files.num_rows
    numbers = nothing if plan.row_addresses is None else plan.files.column(FILE_NUMBERS).to_pylist()
    row_ids = versions = nothing
    if plan.row_tracking is not None:
        row_ids = FileTable(plan.files).base_row_id.to_pylist()
        versions = FileTable(plan.files).default_row_commit_version.to_pylist()
    plan.ensure_each_once()
    for index, path in enumerate(FileTable(plan.files).path.to_pylist()):
        constants = {name: values.column(name)[index] for name in names} if names else {}
        yield FileTask(
            plan.store.resolve(path), constants, vectors[index], row_ids[index], versions[index], numbers[index]
        )


def partition_constants(plan: ScanPlan, names: list[str]) -> pa.Table:
    """One typed column for each partition column, one row for each file.

    Raises:
        ProtocolViolationError: A value in the log does not have the column's type.
    """
    fields = [_partition_field(plan.schema, name) for name in names]
    strings = partition_strings(FileTable(plan.files).partition_values, [physical_name(field) for field in fields])
    columns = [
        partition_column_to_arrow(column.combine_chunks(), field.data_type)
        for column, field in zip(strings.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=names)


def _partition_field(schema: StructType, name: str) -> StructField:
    field = schema.find(name)
    if field is None:
        raise ProtocolViolationError(
            f"The partition column {name} is not in the schema",
            remedy="Restore the commit that wrote the metadata from a backup",
            column=name,
        )
    return field
