"""Reads one data file of a scan into the table's columns (PROTOCOL, "Data Files")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import truediv

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.batch_bytes import BATCH_BYTES, cut_by_bytes, decoded, keeping_dictionaries, most_bytes
from delta_orch.engines.conform import conform_table
from delta_orch.engines.file_lookup import Candidates, ensure_field_ids, find_in_file, paths_in_file
from delta_orch.engines.local.file_rows import FileRows, FileTask, TrackedColumns, marked
from delta_orch.engines.read_errors import reading
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import DeltaError
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.tree import columns_of, conjunction, conjuncts, is_opaque, with_columns
from delta_orch.log.read.deletion_vectors import read_deletion_vector
from delta_orch.protocol.arrow_building import children_of, ensure_sound, field_to_arrow, string_array, with_children
from delta_orch.protocol.schema import Places, below, char_columns
from delta_orch.protocol.types import (
    BINARY,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    holds_variant,
    types_of,
)
from delta_orch.storage.base import RepeatedTexts, ensure_regular_file
from delta_orch.storage.parquet_footer import ParquetFooter, read_footer
from delta_orch.storage.prefetch import map_ahead
from delta_orch.table.column_mapping import ColumnMappingMode

BATCH_ROWS = 131_072
SMALL_BYTES = 16 * 1024 * 1024
"""Uncompressed size up to which a file, or a row group, is decoded in one go."""
_ROWS_AT_ONCE = 1 << 22
"""Of rows without columns, so many are made at once."""
WHOLE_BYTES = 256 * 1024
"""Size up to which a file is fetched as a whole: one request, and Arrow then decodes from memory."""


RowFilter = Callable[[pa.Table], pa.Table]
_NO_TEXTS = RepeatedTexts()


@dataclass(slots=True)
class FileReader:
    """How to read each file of a scan. Threads may share it.

    Attributes:
        plan: The scan.
        needed: The columns to produce before filtering, in order, in the table's types.
        filter: The rows to keep, of those with the columns `needed`.
        skipping: A condition that `filter` implies, by which row groups may be skipped, None if there is none.
        threads: As `map_ahead`, for the row groups of a file.
    """

    plan: ScanPlan
    needed: pa.Schema
    filter: RowFilter | None = None
    skipping: RowGroupSkipping | None = None
    threads: int | None = None
    filesystem: pafs.FileSystem = field(init=False)
    _output: tuple[str, ...] = field(init=False)
    _keeps_dictionaries: bool = field(init=False)
    _chars: Mapping[str, Places] = field(init=False)
    # The columns to read from the last file, which the next file probably has as well.
    _known: tuple[pa.Schema, list[str]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.filesystem = self.plan.store.data_filesystem()[0]
        self._output, self._chars = self.plan.read_schema.names, char_columns(self.plan.schema)
        # Filters are about plain text.
        is_of_text = False
        for column in () if self.plan.where is None else columns_of(self.plan.where):
            declared = self.plan.schema.find(column.path[0])
            is_of_text = is_of_text or declared is None or declared.data_type in (STRING, BINARY)
        self._keeps_dictionaries = not (is_of_text or self._chars or self.plan.arrow_filter is not None)

    @property
    def _is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def read_together(self, tasks: Sequence[FileTask]) -> list[Iterable[pa.RecordBatch]]:
        """All rows of some small files, in order, in large batches. Raises as `batches`. Large parts are read when
        their batches are requested."""
        parts: list[Iterable[pa.RecordBatch]] = []
        alike: list[tuple[FileTask, pa.Table]] = []
        num_bytes = 0
        for task in tasks:
            rows, texts = self._rows_in(task) if num_bytes <= BATCH_BYTES else (None, None)
            is_plain = texts is not None and not texts.dictionaries
            if alike and (rows is None or not is_plain or not _are_alike(alike[0], (task, rows))):
                parts.append(self._finish_together(alike))
                alike = []
            if rows is None or not is_plain:
                parts.append(self.stream(task, texts))
            else:
                alike.append((task, rows))
                num_bytes += rows.nbytes
        if alike:
            parts.append(self._finish_together(alike))
        if not self._output or not all(isinstance(part, list) for part in parts):
            return parts
        batches = [batch for part in parts for batch in part]
        return [pa.Table.from_batches(batches).combine_chunks().to_batches(BATCH_ROWS)] if batches else []

    def _finish_together(self, files: Sequence[tuple[FileTask, pa.Table]]) -> list[pa.RecordBatch]:
        """The batches of files that are alike."""
        if len(files) > 1:
            try:
                return list(self._finish(pa.concat_tables([rows for _, rows in files]), files[0][0], _NO_TEXTS))
            except (pa.ArrowException, DeltaError):
                # Read one by one, the file that does not fit is named.
                return [batch for file in files for batch in self._finish_together([file])]
        [(task, rows)] = files
        with reading(task.path):
            return [batch for batch in self._finish(rows, task, _NO_TEXTS) if batch.num_rows]

    def batches(self, task: FileTask) -> Iterable[pa.RecordBatch]:
        """All batches of a file. Parts that are too large to decode at once are decoded batch by batch, and
        dictionaries become plain columns.

        Raises:
            MissingFileError: The file does not exist.
            TableError: It is not a readable Parquet file, or its columns do not fit the schema.
            StorageError: It cannot be read.
        """
        rows, texts = self._rows_in(task)
        if rows is None:
            return self.stream(task, texts)
        return self._lazily(rows, task, texts) if texts.dictionaries else self._finish_together([(task, rows)])

    def _lazily(self, rows: pa.Table, task: FileTask, texts: RepeatedTexts) -> Iterator[pa.RecordBatch]:
        with reading(task.path):
            yield from self._finish(rows, task, texts)

    def count_row_groups(self, task: FileTask) -> tuple[int, int]:
        """All row groups of a file, and those to read. Raises as `batches`."""
        with reading(task.path), self._open(task.path) as (file, footer, _):
            return file.metadata.num_row_groups, len(self._wanted_groups(file, footer, task))

    def _rows_in(self, task: FileTask) -> tuple[pa.Table | None, RepeatedTexts]:
        """The live rows of a file as the file has them, or None if it is too large to decode in one go. Texts that it
        repeats are dictionaries."""
        with reading(task.path), self._open(task.path) as (file, footer, source):
            names, groups = self._names_in(file, task), self._groups_of(file, footer, task)
            texts = self._texts_in(source, footer, groups, names, task)
            if not names:
                num_rows = _num_rows(file.metadata, groups)
                if num_rows > _ROWS_AT_ONCE:
                    return None, texts
                rows = _rows_only(num_rows)
            elif (
                sum(_selected_bytes(footer, groups, names)) + _num_rows(file.metadata, groups) * texts.row_bytes
                > SMALL_BYTES
            ):
                return None, texts
            else:
                if texts.dictionaries:
                    file = self._decoder(source, footer, footer.metadata, texts.dictionaries)
                runs = [[group] for group in groups] if texts.dictionaries else [groups]  # See `stream`.
                read = [file.read_row_groups(run, columns=names, use_threads=False) for run in runs]
                rows = _gregorian(pa.concat_tables(read), footer)
                if texts.dictionaries and not texts.wide and _is_short(rows):
                    rows, texts = pa.Table.from_batches([decoded(batch, ()) for batch in rows.to_batches()]), _NO_TEXTS
            return self._rows_of(file.metadata, task).choose(rows, groups), texts

    def _texts_in(
        self, source: pa.NativeFile, footer: ParquetFooter, groups: list[int], names: list[str], task: FileTask
    ) -> RepeatedTexts:
        if not footer.may_expand:
            return _NO_TEXTS
        from delta_orch.storage.expansion import ensure_bounded

        return ensure_bounded(source, footer, groups, names, path=task.path, is_near=self._is_local)

    def stream(self, task: FileTask, texts: RepeatedTexts | None = None) -> Iterator[pa.RecordBatch]:
        """The batches of a file of any size: row groups on threads, a very large one bit by bit. Raises as `batches`.

        Args:
            texts: Those of the file, where they are looked up already.
        """
        with reading(task.path), self._open(task.path) as (file, footer, source):
            names, groups, metadata = self._names_in(file, task), self._groups_of(file, footer, task), file.metadata
            chosen = self._rows_of(metadata, task)
            if texts is None:
                texts = self._texts_in(source, footer, groups, names, task)
            sizes = _selected_bytes(footer, groups, names) if names else []
            lengths = [max(metadata.row_group(group).num_rows, 1) for group in groups]
            row_bytes = max(map(truediv, sizes, lengths), default=0) + texts.row_bytes
            if not names or row_bytes * max(lengths, default=0) > SMALL_BYTES:
                batches: Iterable[pa.RecordBatch] = _empty_batches(_num_rows(metadata, groups))
                if names:
                    if texts.dictionaries:
                        file = self._decoder(source, footer, footer.metadata, texts.dictionaries)
                    most_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))
                    # Each row group has dictionaries of its own, and Arrow reads no nested ones of several.
                    runs = [[group] for group in groups] if texts.dictionaries else [groups]
                    batches = chain.from_iterable(
                        file.iter_batches(most_rows, row_groups=run, columns=names, use_threads=self.threads != 0)
                        for run in runs
                    )
                for rows in chosen.choose_batches(batches, groups):
                    yield from self._finish(_gregorian(rows, footer) if names else rows, task, texts)
                return

        def read_group(group: int) -> Iterable[pa.RecordBatch]:
            with reading(task.path), self._open(task.path, footer, texts.dictionaries) as (file, _, _):
                rows = _gregorian(file.read_row_group(group, columns=names, use_threads=False), footer)
                rows = chosen.choose(rows, [group])
                return self._lazily(rows, task, texts) if texts.wide else list(self._finish(rows, task, texts))

        for batches in map_ahead(read_group, groups, self.threads):
            yield from batches

    @contextmanager
    def _open(
        self, path: str, footer: ParquetFooter | None = None, dictionaries: Sequence[str] = ()
    ) -> Iterator[tuple[pq.ParquetFile, ParquetFooter, pa.NativeFile]]:
        is_local = self._is_local
        if is_local:
            ensure_regular_file(path)
        with self.filesystem.open_input_file(path) as file_source:
            source = pa.BufferReader(file_source.read()) if file_source.size() <= WHOLE_BYTES else file_source
            is_known, footer = footer is not None, footer or read_footer(source)
            # Where reading the footer again costs no round trip, Arrow does so quicker than it takes it from elsewhere.
            metadata = footer.metadata if is_known or not is_local else None
            yield self._decoder(source, footer, metadata, dictionaries), footer, source

    def _decoder(
        self,
        source: pa.NativeFile,
        footer: ParquetFooter,
        metadata: pq.FileMetaData | None,
        dictionaries: Sequence[str] = (),
    ) -> pq.ParquetFile:
        # INT96 in the year 9999 overflows nanoseconds. Reading ahead pays where each request costs a round trip.
        decoder = partial(
            pq.ParquetFile,
            source,
            coerce_int96_timestamp_unit="us",
            pre_buffer=not self._is_local,
            read_dictionary=list(dictionaries) or None,
        )
        try:
            file = decoder(metadata=metadata)
        except pa.ArrowInvalid:
            file = decoder(metadata=footer.plain_metadata)
        if b"ARROW:schema" in (file.metadata.metadata or {}):
            cached, schema = self._known, file.schema_arrow
            if (cached is None or not cached[0].equals(schema)) and any(_holds_view(field.type) for field in schema):
                file = decoder(metadata=footer.plain_metadata)
        if metadata is None:
            footer.adopt(file.metadata)
        return file

    def _names_in(self, file: pq.ParquetFile, task: FileTask) -> list[str]:
        cached, schema = self._known, file.schema_arrow
        if cached is None or not cached[0].equals(schema, check_metadata=True):
            self._known = cached = (schema, self._names_for(schema, task))
        return cached[1]

    def _names_for(self, file_schema: pa.Schema, task: FileTask) -> list[str]:
        in_file = Candidates(file_schema)
        looked_up = (self.plan.schema.find(name) for name in self._names_from_file(task))
        fields = [field for field in looked_up if field is not None]
        ensure_field_ids(fields, in_file, self.plan.column_mapping)
        places = [(field, find_in_file(field, in_file, self.plan.column_mapping)) for field in fields]
        names = [
            path
            for field, index in places
            if index is not None
            for path in paths_in_file(field, in_file[index], self.plan.column_mapping)
        ]
        tracked = self._tracked(task)
        return names if tracked is None else [*names, *tracked.names_in_file(file_schema.names)]

    def _names_from_file(self, task: FileTask) -> list[str]:
        made = self.plan.made_columns
        return [name for name in self.needed.names if name not in task.constants and name not in made]

    def _tracked(self, task: FileTask) -> TrackedColumns | None:
        made_names = tuple(name for name in self.plan.made_columns if name in self.needed.names)
        return TrackedColumns(self.plan, task, made_names) if made_names else None

    def _rows_of(self, metadata: pq.FileMetaData, task: FileTask) -> FileRows:
        vector = None if task.deletion_vector is None else read_deletion_vector(self.plan.store, task.deletion_vector)
        return FileRows.of_file(metadata, vector, self._tracked(task))

    def _groups_of(self, file: pq.ParquetFile, footer: ParquetFooter, task: FileTask) -> list[int]:
        groups = self._wanted_groups(file, footer, task)
        if self.plan.opened is not None:
            self.plan.opened.append((file.metadata.num_row_groups, len(groups)))
        return groups

    def _wanted_groups(self, file: pq.ParquetFile, footer: ParquetFooter, task: FileTask) -> list[int]:
        count = file.metadata.num_row_groups
        if self.skipping is None or count < 2:
            return list(range(count))
        columns = file.schema_arrow
        if footer.calendar is not None:
            # Statistics are as the values are in the file, not as the condition means them.
            columns = pa.schema([field for field in columns if not pa.types.is_temporal(field.type)])
        names = self.skipping.names_in(columns)
        if names is None:
            return list(range(count))
        footer.ensure_sound_chunks(footer.leaves_below(names.values()))
        return self.skipping.groups_of(file.metadata, names)

    def _finish(self, rows: pa.Table, task: FileTask, texts: RepeatedTexts) -> Iterator[pa.RecordBatch]:
        """The rows as the plan wants them. Long texts that are repeated stay dictionaries."""
        if not texts.dictionaries and rows.nbytes <= BATCH_BYTES:
            yield from self._finish_part(rows, task)
            return
        kept = texts.wide if self._keeps_dictionaries else frozenset()
        for batch in rows.to_batches():
            for part in cut_by_bytes(batch, kept):
                yield from self._finish_part(pa.Table.from_batches([decoded(part, kept)]), task)

    def _finish_part(self, rows: pa.Table, task: FileTask) -> Iterator[pa.RecordBatch]:
        names = self._names_from_file(task)
        from_file = pa.schema([self.needed.field(name) for name in names])
        named = rows
        if self.plan.column_mapping is not ColumnMappingMode.NONE:
            named = with_logical_names(rows, self.plan.schema, self.plan.column_mapping)
        if holds_variant(self.plan.schema):
            named = _with_variants(named, self.plan.schema)
        from_file = keeping_dictionaries(from_file, named.schema)
        table = conform_table(named, from_file, lossless=False) if names else rows.select([])
        ensure_sound(table)
        num_rows, file_names = rows.num_rows, frozenset(names)
        for index, column in enumerate(self.needed):
            if column.name in task.constants:
                table = table.add_column(index, column, pa.repeat(task.constants[column.name], num_rows))
            elif column.name not in file_names:
                table = table.add_column(index, column, rows.column(marked(column.name)))
        if self._chars:
            table = filled_up(table, self._chars)
        if self.filter is not None:
            table = self.filter(table)
        yield from table.select(self._output).to_batches(max_chunksize=BATCH_ROWS)


def _holds_view(data_type: pa.DataType) -> bool:
    if pa.types.is_nested(data_type):
        return any(_holds_view(data_type.field(index).type) for index in range(data_type.num_fields))
    return bool(pa.types.is_string_view(data_type) or pa.types.is_binary_view(data_type))


def _are_alike(one: tuple[FileTask, pa.Table], other: tuple[FileTask, pa.Table]) -> bool:
    """Whether files have the same columns and the same partition values."""
    same_values = one[0].constants is other[0].constants or one[0].constants == other[0].constants
    return same_values and bool(one[1].schema.equals(other[1].schema, check_metadata=True))


def _with_variants(rows: pa.Table, schema: StructType) -> pa.Table:
    """The rows of a file with each variant in them, shredded or not, as struct<metadata: binary, value: binary>
    (variant-shredding, "Reconstructing a Shredded Variant").

    Raises:
        InvalidVariantError: A file holds a value that is not a variant.
    """
    from delta_orch.protocol.variant.reconstruct import reconstruct_columns

    for index, name in enumerate(rows.column_names):
        field = schema.find(name)
        if field is not None and holds_variant(field.data_type):
            rows = rows.set_column(index, name, reconstruct_columns(rows.column(index), field.data_type))
    return rows


def _is_short(rows: pa.Table) -> bool:
    """Whether there are rows, and all of them may be made plain."""
    return bool(rows.num_rows) and sum(map(most_bytes, rows.to_batches())) <= BATCH_BYTES


def _gregorian(rows: pa.Table, footer: ParquetFooter) -> pa.Table:
    return rows if footer.calendar is None else footer.calendar.rebase_table(rows)


def _rows_only(num_rows: int) -> pa.Table:
    """A table of that many rows for constant columns. Its one column is never selected."""
    return pa.Table.from_arrays([pa.nulls(num_rows)], names=["\0"])


def _num_rows(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    return sum(metadata.row_group(group).num_rows for group in groups)


def _empty_batches(num_rows: int) -> Iterator[pa.RecordBatch]:
    """As `_rows_only`, for any number of rows."""
    for start in range(0, num_rows, _ROWS_AT_ONCE):
        yield from _rows_only(min(_ROWS_AT_ONCE, num_rows - start)).to_batches()


def _selected_bytes(footer: ParquetFooter, groups: Sequence[int], names: Sequence[str]) -> list[int]:
    """The uncompressed size of the columns to read, for each row group. A small row group counts as a whole. A row
    takes at least a byte. The sizes and row counts of a footer may be false."""
    row_groups = [footer.metadata.row_group(group) for group in groups]
    sizes = [max(int(group.total_byte_size), int(group.num_rows)) for group in row_groups]
    if all(size <= SMALL_BYTES for size in sizes):
        return sizes
    leaves = footer.leaves_below(names)
    footer.ensure_sound_chunks(leaves)
    return [
        size
        if size <= SMALL_BYTES
        else max(sum(group.column(leaf).total_uncompressed_size for leaf in leaves), int(group.num_rows))
        for size, group in zip(sizes, row_groups, strict=True)
    ]


def ordered_columns(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The fields of those names, in schema order."""
    return pa.schema([field for field in schema if field.name in names])


@dataclass(frozen=True, slots=True)
class RowGroupSkipping:
    """A condition over top-level columns of a table, for files that hold these in the table's types.

    Attributes:
        condition: Over logical names.
        fields: The columns it mentions.
        column_mapping: How files name the columns. Their statistics use the names in the file.
    """

    condition: Expression
    fields: tuple[StructField, ...]
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE

    def groups_of(self, metadata: pq.FileMetaData, names: Mapping[str, str]) -> list[int]:
        """The row groups that may hold a row for which the condition is true.

        Args:
            names: As `names_in` gives them. The column chunks of these columns must be known to be sound.
        """
        from delta_orch.engines.footer_statistics import StatisticsColumn, serialize_footer_statistics
        from delta_orch.log.read.skipping.data_skipping import may_match_statistics

        condition = with_columns(self.condition, lambda column: Column((names[column.path[0]],)))
        in_file = StructType(tuple(replace(field, name=names[field.name]) for field in self.fields))
        columns = [StatisticsColumn((field.name,), field.data_type) for field in in_file]
        groups = range(metadata.num_row_groups)
        stats = string_array([serialize_footer_statistics(metadata, columns, groups=[group]) for group in groups])
        may_match = may_match_statistics(stats, condition, in_file).to_pylist()
        return [group for group in groups if may_match[group]]

    def names_in(self, file_schema: pa.Schema) -> dict[str, str] | None:
        """The names of the columns in the file; None if it lacks one, or has another type for it, or the name twice."""
        candidates, names = list(file_schema), {}
        for column in self.fields:
            index = find_in_file(column, candidates, self.column_mapping)
            if index is None or not candidates[index].type.equals(field_to_arrow(column).type):
                return None
            names[column.name] = candidates[index].name
            if file_schema.get_field_index(candidates[index].name) != index:
                return None
        return names


def row_group_skipping(
    where: Expression | None,
    schema: StructType,
    partition_columns: tuple[str, ...],
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE,
) -> RowGroupSkipping | None:
    """The part of a resolved predicate that can skip row groups; None if no part can."""
    usable = [part for part in conjuncts(where) if _is_usable(part, schema, partition_columns)]
    if not usable:
        return None
    condition, fields = conjunction(*usable), dict[str, StructField]()
    for column in columns_of(condition):
        if (declared := schema.find(column.path[0])) is not None:
            fields[column.path[0]] = declared
    return RowGroupSkipping(condition, tuple(fields.values()), column_mapping)


def _is_usable(part: Expression, schema: StructType, partition_columns: tuple[str, ...]) -> bool:
    columns = columns_of(part)
    if is_opaque(part) or not columns:
        return False
    for column in columns:
        field = schema.find(column.path[0])
        if field is None or len(column.path) > 1 or field.name in partition_columns:
            return False
        if not isinstance(field.data_type, PrimitiveType | DecimalType):
            return False
    return True


# Columns as readers of the table see them: under their logical names at every level, and texts declared `char(n)`
# filled up with spaces.
#
# Files know a column by its physical name, and in mode `id` by its field id (PROTOCOL, "Reader Requirements for Column
# Mapping"). Renaming copies no values.


def with_logical_names(rows: pa.Table, schema: StructType, mode: ColumnMappingMode) -> pa.Table:
    """The columns of `rows` that belong to the schema, named and nested as the schema has them; others are left out."""
    fields, columns = Candidates(rows.schema), {}
    for declared in schema:
        index = find_in_file(declared, fields, mode)
        if index is not None:
            columns[declared.name] = _renamed_column(rows.column(index), declared.data_type, mode)
    return pa.table(columns) if columns else rows.select([])


def _renamed_column(column: pa.ChunkedArray, data_type: DataType, mode: ColumnMappingMode) -> pa.ChunkedArray:
    if not _holds_struct(data_type):
        return column
    chunks = [_with_names(chunk, data_type, mode) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def _with_names(array: pa.Array, data_type: DataType, mode: ColumnMappingMode) -> pa.Array:
    match data_type:
        case StructType() if pa.types.is_struct(array.type):
            return _renamed_struct(array, data_type, mode)
        case ArrayType(element_type) if pa.types.is_list(array.type) and _holds_struct(element_type):
            elements = _with_names(array.values, element_type, mode)
            return with_children(array, [elements], pa.list_(elements.type))
        case MapType(key_type, value_type) if pa.types.is_map(array.type) and _holds_struct(data_type):
            keys, items = _with_names(array.keys, key_type, mode), _with_names(array.items, value_type, mode)
            return with_children(array, [keys, items], pa.map_(keys.type, items.type))
        case _:
            # A type that does not fit is for the conversion that follows to refuse.
            return array


def _renamed_struct(array: pa.StructArray, struct: StructType, mode: ColumnMappingMode) -> pa.Array:
    candidates, children, names = Candidates(array.type), [], []
    parts = array.flatten()
    for declared in struct:
        index = find_in_file(declared, candidates, mode)
        if index is not None:
            children.append(_with_names(parts[index], declared.data_type, mode))
            names.append(declared.name)
    mask = pc.is_null(array) if array.null_count else None
    if not children:
        # A struct without fields in the file: null or a struct of nulls, as the parent requires.
        children, names = [pa.nulls(len(array))], [struct.fields[0].name if struct.fields else ""]
    return pa.StructArray.from_arrays(children, names, mask=mask)


def _holds_struct(data_type: DataType) -> bool:
    return any(isinstance(inner, StructType) for inner in types_of(data_type))


def filled_up(rows: pa.Table, columns: Mapping[str, Places]) -> pa.Table:
    """Rows in the types of a table. A text that is longer than declared is not cut."""
    for index, declared in enumerate(rows.schema):
        if (places := columns.get(declared.name)) is not None:
            chunks = [_filled(chunk, places) for chunk in rows.column(index).chunks]
            rows = rows.set_column(index, declared, pa.chunked_array(chunks, declared.type))
    return rows


def _filled(array: pa.Array, places: Places) -> pa.Array:
    if not places:
        return array
    if () in places:
        return pc.utf8_rpad(array, width=places[()], padding=" ")
    if pa.types.is_struct(array.type):
        names = [declared.name for declared in array.type]
    else:
        names = ["key", "value"] if pa.types.is_map(array.type) else ["element"]
    parts = [_filled(child, below(places, name)) for child, name in zip(children_of(array), names, strict=True)]
    return with_children(array, parts, array.type)
