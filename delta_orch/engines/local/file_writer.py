"""Writing one Parquet data file, and describing it as an `add`."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import WriteSpec
from delta_orch.engines.batch_bytes import (
    holds_dictionaries,
    is_text_dictionary,
    keeping_dictionaries,
    of_types,
    plain_size,
)
from delta_orch.engines.conform import conform_table
from delta_orch.engines.file_schema import (
    CHANGE_TYPE,
    FileColumns,
    arrow_file_schema,
    columns_in_files,
    random_prefix,
)
from delta_orch.engines.footer_statistics import (
    ColumnPath,
    Found,
    StatisticsColumn,
    serialize_footer_statistics,
    statistics_of_files,
)
from delta_orch.errors import InvalidPropertyError, SchemaMismatchError, UnsupportedError
from delta_orch.log.files.file_columns import ADD_SCHEMA, NO_FILES
from delta_orch.protocol.arrow_building import (
    all_booleans,
    children_of,
    int64_array,
    literal_array,
    schema_to_arrow,
    string_array,
    string_map_array,
    with_children,
)
from delta_orch.protocol.partition_values import partition_directory
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.types import (
    BINARY,
    ArrayType,
    DataType,
    GeoType,
    MapType,
    StructType,
    holds_geo,
    traits_of,
)
from delta_orch.storage.base import LogStore, storage_error
from delta_orch.table.column_mapping import ColumnMappingMode

if TYPE_CHECKING:
    from delta_orch.protocol.variant.shred import ShreddingPlan

PartitionKey = tuple[str | None, ...]
_CODECS = {"uncompressed": "none", "none": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4_raw": "lz4"}
_SAMPLED_ROWS, _RUNS, _GLANCE, _SAMPLE = 16 * 1024, 128, 4, 128
"""From so many rows on, a row group is sampled: so many runs of so few rows, then of at most so many."""
_ALWAYS_READ = 512 * 1024 * 1024
"""So much a file may take in memory, whatever its size."""
_SUFFIXES = {"none": "", "snappy": ".snappy", "gzip": ".gz", "zstd": ".zstd", "lz4": ".lz4raw"}


class LateNanError(Exception):
    """NaN came into columns that have bounds in the footer, in rows that are to stay together."""

    def __init__(self, leaves: tuple[ColumnPath, ...], floats: tuple[ColumnPath, ...]) -> None:
        super().__init__(leaves)
        self.leaves = leaves
        self.floats = floats


class WrittenFile(NamedTuple):
    """The facts about a finished file that the log needs. `path` is decoded and relative to the table's root."""

    path: str
    partition: PartitionKey
    size: int
    modification_time_ms: int
    stats: str


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Everything the files of one write have in common.

    Attributes:
        prefix_length: Length of the random directory name each file lies below, None for none.
        directory: The directory of all files below the table's root; "" for the root.
        partition_names: As directories and `partition_values` name them.
        columns: The columns of a file under logical names.
        file_schema: The same as files have them: physical names, field ids, everything nullable.
        shapes: The types of columns with shapes (`shape_types`), which are bytes in `file_schema`.
        shredded: Variant columns that are shredded, by name, and how.
        change_type: The value of a last column `_change_type`, which no relation has.
        float_leaves: Float columns outside lists and maps, whose NaNs must be watched for.
        with_nan: Those of them known to have NaN; None where a file may be split for NaN that comes late.
    """

    filesystem: pafs.FileSystem
    store: LogStore
    prefix_length: int | None
    directory: str
    partition_names: tuple[str, ...]
    columns: pa.Schema
    file_schema: pa.Schema
    change_type: str | None
    codec: str
    data_page_version: str
    page_checksums: bool
    statistics: tuple[StatisticsColumn, ...]
    float_leaves: tuple[ColumnPath, ...]
    says_tight: bool
    with_nan: tuple[ColumnPath, ...] | None
    shapes: Mapping[int, pa.DataType] = field(default_factory=dict)
    shredded: Mapping[str, ShreddingPlan] = field(default_factory=dict)

    @staticmethod
    def of(spec: WriteSpec, with_nan: tuple[ColumnPath, ...] | None = None) -> FileLayout:
        """Raises InvalidPropertyError for an unknown compression, and as `columns_in_files`."""
        codec = _CODECS.get(spec.compression.lower())
        if codec is None:
            raise InvalidPropertyError(
                f"There is no compression {spec.compression!r}", remedy=f"Use one of {', '.join(sorted(_CODECS))}"
            )
        columns = _local_columns(columns_in_files(spec), spec.column_mapping)
        return FileLayout(
            spec.store.data_filesystem()[0],
            spec.store,
            spec.random_prefix_length,
            spec.directory,
            spec.partition_names,
            columns.rows,
            columns.in_file,
            spec.change_type,
            codec,
            spec.data_page_version,
            spec.page_checksums,
            statistics_of_files(spec),
            columns.float_leaves,
            spec.statistics.says_tight,
            with_nan,
            columns.shapes,
        )

    def in_file(self, rows: pa.Table) -> pa.Table:
        """Rows under the table's names as rows of a file: no column copied, unless a struct loses a void field."""
        if self.change_type is not None:
            rows = rows.append_column(CHANGE_TYPE, _repeated(self.change_type, rows.num_rows))
        columns = keeping_dictionaries(self.columns, rows.schema)
        if not rows.schema.equals(columns):
            rows = conform_table(rows.select(columns.names), columns, lossless=True)
        for name, plan in self.shredded.items():
            index = rows.schema.get_field_index(name)
            column = pa.chunked_array([shred_column(chunk, plan) for chunk in rows.column(index).chunks])
            rows = rows.set_column(index, pa.field(name, column.type), column)
        file_schema = _with_types(self.file_schema, rows.schema)
        return rows if rows.schema.equals(file_schema) else renamed(rows, file_schema)

    def shredded_like(self, rows: pa.RecordBatch, variants: Sequence[str]) -> FileLayout:
        """The layout with typed columns for the variants that are like those of some rows."""
        from delta_orch.protocol.variant.shred import plan_shredding

        plans = {name: plan for name in variants if (plan := plan_shredding(rows.column(name))) is not None}
        schema = self.file_schema
        for name, plan in plans.items():
            index = self.columns.get_field_index(name)
            schema = schema.set(index, schema.field(index).with_type(plan.arrow_type))
        return replace(self, file_schema=schema, shredded=plans)

    def new_path(self, partition: PartitionKey, suffix: str) -> str:
        """A path below the root that no other file has, decoded."""
        name = f"{'cdc' if self.directory else 'part'}-00000-{uuid.uuid4()}.c000{suffix}.parquet"
        prefix = "" if self.prefix_length is None else random_prefix(self.prefix_length)
        directory = partition_directory(self.partition_names, partition) if partition else ""
        return "/".join(filter(None, (self.directory, prefix, directory, name)))


def shred_column(variants: pa.Array, plan: ShreddingPlan) -> pa.Array:
    """A variant column with the typed columns of a plan."""
    from delta_orch.protocol.variant.shred import shred_variants

    return shred_variants(variants, plan)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(string_array([text])[0], count)


def renamed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns under the names and with the field metadata of another schema, at every level; types are equal
    apart from that. Nothing is copied."""
    return pa.Table.from_batches([pa.record_batch(_Renamed(batch, schema)) for batch in rows.to_batches()], schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A batch that exports itself under another schema (Arrow's PyCapsule interface)."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


class _LocalColumns(NamedTuple):
    """The columns of files as `FileLayout` has them."""

    rows: pa.Schema
    in_file: pa.Schema
    float_leaves: tuple[ColumnPath, ...]
    shapes: Mapping[int, pa.DataType]


@lru_cache(maxsize=64)
def _local_columns(columns: FileColumns, mode: ColumnMappingMode) -> _LocalColumns:
    logical, in_file = columns.logical, arrow_file_schema(columns, mode)
    shapes = shape_types(in_file, logical) if holds_geo(logical) else {}
    return _LocalColumns(schema_to_arrow(logical), in_file, tuple(_float_leaves(in_file, ())), shapes)


def _float_leaves(fields: Iterable[pa.Field], parent: ColumnPath) -> Iterator[ColumnPath]:
    for leaf in fields:
        if pa.types.is_struct(leaf.type):
            yield from _float_leaves(leaf.type, (*parent, leaf.name))
        elif pa.types.is_floating(leaf.type):
            yield (*parent, leaf.name)


class FileWriter:
    """One unfinished file. Not safe to use from two threads at once.

    Arrow's bounds leave NaN out. Readers that treat NaN as the greatest number, such as Spark, would skip such rows. A
    float column with NaN gets no bounds in the footer, which is said before the first row group. Where NaN comes later,
    what there is becomes a file of its own, or the write starts again (`FileLayout.with_nan`).
    """

    def __init__(self, layout: FileLayout, partition: PartitionKey) -> None:
        """Creates the file under a name that no other file has. Raises StorageError."""
        self._layout = layout
        self._partition = partition
        self._finished: list[WrittenFile] = []
        self._start()

    def _start(self) -> None:
        layout = self._layout
        self._path = layout.new_path(self._partition, _SUFFIXES[layout.codec])
        self._full_path = layout.store.new_file(self._path)
        # Of columns without bounds in the footer.
        self._seen: dict[ColumnPath, Found] = {}
        self._shapes: dict[ColumnPath, Found] = {}
        self._metadata: list[pq.FileMetaData] = []
        self._row_bytes = 0
        try:
            self._sink = self._open_sink()
        except OSError as e:
            raise storage_error(e, "create", self._full_path) from e
        self._writer: pq.ParquetWriter | None = None

    def _open_sink(self) -> pa.NativeFile:
        try:
            return self._layout.filesystem.open_output_stream(self._full_path)
        except FileNotFoundError:
            self._layout.filesystem.create_dir(posixpath.dirname(self._full_path), recursive=True)
            return self._layout.filesystem.open_output_stream(self._full_path)

    def _open_writer(self, rows: pa.Table) -> pq.ParquetWriter:
        layout = self._layout
        schema = _with_types(layout.file_schema, rows.schema)
        return pq.ParquetWriter(
            self._sink,
            schema_with_shapes(schema, layout.shapes) if layout.shapes else schema,
            compression=layout.codec,
            use_dictionary=_dictionary_columns(rows),
            data_page_version=layout.data_page_version,
            write_page_checksum=layout.page_checksums,
            write_statistics=_without_leaves(layout.file_schema, self._seen) if self._seen else True,
            metadata_collector=self._metadata,
            # Spark and other readers take types from the log; Arrow's own schema would only repeat them.
            store_schema=False,
            # Smaller, and what other engines read fastest.
            store_decimal_as_integer=True,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Append one row group of rows under the table's names. Raises StorageError and LateNanError.

        A file that would take more memory than readers allow it for its size (`storage.expansion`) ends before them.
        """
        if holds_dictionaries(rows.schema):
            # One dictionary a column: Arrow writes the first of a row group, and plain values after that.
            rows = rows.unify_dictionaries()
        rows = self._layout.in_file(rows)
        row_bytes = sum(map(plain_size, rows.to_batches()))
        if self._writer is not None and not _is_readable(self._row_bytes + row_bytes, self.size_bytes):
            self._finish()
            self._start()
        self._row_bytes += row_bytes
        if self._writer is not None and not rows.schema.equals(self._types):
            for batch in rows.to_batches():
                for part in of_types(batch, self._types):
                    self._append(pa.Table.from_batches([part]))
            return
        self._append(rows)

    def _append(self, rows: pa.Table) -> None:
        for column in self._layout.statistics:
            if traits_of(column.data_type).has_box:
                # Arrow counts no nulls of shapes in footers.
                found = self._shapes.setdefault(column.path, Found())
                found.null_count = (found.null_count or 0) + _leaf(rows, column.path).null_count
        floats: dict[ColumnPath, pa.ChunkedArray] = {}
        with_nan: list[ColumnPath] = []
        for path in self._layout.float_leaves:
            floats[path] = _leaf(rows, path)
            if pc.any(pc.is_nan(floats[path])).as_py():
                with_nan.append(path)
        if self._writer is not None and (late := tuple(path for path in with_nan if path not in self._seen)):
            if self._layout.with_nan is not None:
                raise LateNanError(late, self._layout.float_leaves)
            self._finish()
            self._start()
        try:
            if self._writer is None:
                for path in (*with_nan, *(self._layout.with_nan or ())):
                    self._seen[path] = Found()
                self._writer, self._types = self._open_writer(rows), rows.schema
            for path, bounds in self._seen.items():
                bounds.add(floats[path])
            if self._layout.shapes:
                rows = as_shapes(rows, self._layout.shapes)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        except OSError as e:
            raise storage_error(e, "write", self._full_path) from e

    def close(self) -> list[WrittenFile]:
        """Finish the file, which waits for no disk. Raises StorageError.

        Returns: the file; several where NaN came late.
        """
        self._finish()
        return self._finished

    def _finish(self) -> None:
        assert self._writer is not None, "no rows were written"
        try:
            self._writer.close()
            size = self.size_bytes
            self._sink.close()
        except OSError as e:
            raise storage_error(e, "write", self._full_path) from e
        stats = serialize_footer_statistics(
            self._metadata[0],
            self._layout.statistics,
            nan_free=self._layout.float_leaves,
            seen=self._seen | self._shapes,
            says_tight=self._layout.says_tight,
        )
        self._finished.append(WrittenFile(self._path, self._partition, size, time.time_ns() // 1_000_000, stats))

    def abandon(self) -> None:
        """Let go of a file that will never be named by a commit; vacuum removes what there is of it."""
        # Left open, it would try to finish the file when it is collected.
        if self._writer is not None:
            self._writer.is_open = False
        if not isinstance(self._layout.filesystem, pafs.LocalFileSystem):
            return  # Closing would send it, each one alone, to a store that may have failed. Unclosed, it is dropped.
        try:
            self._sink.close()
        except OSError:
            # The error that made the caller give up is the one to report, and this is most likely the same.
            return


def _with_types(schema: pa.Schema, source: pa.Schema) -> pa.Schema:
    """The schema with the source's types, place by place, where those are texts in dictionaries."""
    if not holds_dictionaries(source):
        return schema
    fields = zip(schema, source.types, strict=True)
    return pa.schema([field.with_type(kind) if is_text_dictionary(kind) else field for field, kind in fields])


def _is_readable(row_bytes: int, file_bytes: int) -> bool:
    if row_bytes <= _ALWAYS_READ:
        return True
    from delta_orch.storage.expansion import is_readable

    return is_readable(row_bytes, file_bytes)


def _dictionary_columns(rows: pa.Table) -> bool | list[str]:
    """The columns worth a dictionary, given the first row group of a file; True for all.

    The writer gives up a dictionary that has become too large, but to get there costs more than all the rest. A column
    goes without one where nearly all values of a sample differ: a dictionary of so many would not have lasted.
    """
    if rows.num_rows < _SAMPLED_ROWS or any(map(pa.types.is_nested, rows.schema.types)):
        return True
    plain = [n for n, t in zip(rows.column_names, rows.schema.types, strict=True) if not pa.types.is_dictionary(t)]
    # Neighbours are often equal, and so are values of the same place in a period.
    step = rows.num_rows // _RUNS
    samples = [
        int64_array([start + i for start in range(0, rows.num_rows - length, step) for i in range(length)])
        for length in (_GLANCE, min(_SAMPLE, step // 4))
    ]
    unlike = {n for n in plain if all(_differ(pc.take(rows.column(n), places)) for places in samples)}
    return [n for n in rows.column_names if n not in unlike]


def _differ(values: pa.ChunkedArray) -> bool:
    return int(pc.count_distinct(values, mode="all").as_py()) >= len(values) * 99 // 100


def _without_leaves(schema: pa.Schema, leaves: Collection[ColumnPath]) -> list[str]:
    """The other leaves of a file, by the names that Parquet has for them."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    left_out = {".".join(path) for path in leaves}
    in_file = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [path for i in range(len(in_file)) if (path := in_file.column(i).path) not in left_out]


def _leaf(rows: pa.Table, path: ColumnPath) -> pa.ChunkedArray:
    column = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, [name])
    return column


def add_table(files: Sequence[WrittenFile], partition_names: Sequence[str]) -> pa.Table:
    """Finished files as rows of `ADD_SCHEMA`, in order."""
    if not files:
        return NO_FILES
    paths, partitions, sizes, times_ms, stats = zip(*files, strict=True)
    columns = {
        "path": string_array(map(encode_path, paths)),
        "partition_values": string_map_array([dict(zip(partition_names, key, strict=True)) for key in partitions]),
        "size": int64_array(sizes),
        "modification_time": int64_array(times_ms),
        "data_change": all_booleans(True, len(files)),
        "stats": string_array(stats),
    }
    arrays = [columns[f.name] if f.name in columns else pa.nulls(len(files), f.type) for f in ADD_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)


# Columns of shapes as Parquet files have them: WKB under the logical types GEOMETRY and GEOGRAPHY.
#
# Everywhere else they are plain bytes (`GeoType`). Arrow's writer knows them by the extension type `geoarrow.wkb`, and
# keeps the box around the shapes of a geometry in the footer. It writes the system EPSG:4326 as OGC:CRS84, its default;
# readers of a table take the system from the log.


_HEADER_BYTES = 5


class _WkbType(pa.ExtensionType):  # type: ignore[misc]
    """Known by its name; it is not registered, so that whoever reads meets plain bytes."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata


@cache
def _wkb_type(crs: str, algorithm: str) -> _WkbType:
    """One and the same object always: Arrow forgets one that only a nested type refers to."""
    return _WkbType(orjson.dumps({"crs": crs} | ({"edges": algorithm} if algorithm else {})))


def shape_types(schema: pa.Schema, logical: StructType) -> dict[int, pa.DataType]:
    """The types that make Arrow write columns with shapes as the log has them, by their places.

    Args:
        schema: Of the file, in which shapes are bytes.
        logical: The same columns as the table has them.

    Raises UnsupportedError for edges that Arrow writes no geography with.
    """
    return {
        place: _written_type(field.data_type, schema.field(place).type, field.name)
        for place, field in enumerate(logical)
        if holds_geo(field.data_type)
    }


def _written_type(data_type: DataType, plain: pa.DataType, path: str) -> pa.DataType:
    match data_type:
        case GeoType(_, crs, algorithm):
            if algorithm not in ("", "spherical"):
                raise UnsupportedError(
                    f"Column {path} of type {data_type} cannot be written",
                    cause=f"Arrow writes geographies with spherical edges, not with {algorithm} ones",
                    remedy="Write it with another client",
                    column=path,
                )
            return _wkb_type(crs, algorithm)
        case ArrayType(element):
            return pa.list_(_written_field(element, plain.value_field, path))
        case MapType(key, value):
            return pa.map_(_written_field(key, plain.key_field, path), _written_field(value, plain.item_field, path))
        case StructType(fields):
            return pa.struct([_written_field(f.data_type, own, path) for f, own in zip(fields, plain, strict=True)])
    return plain


def _written_field(data_type: DataType, plain: pa.Field, path: str) -> pa.Field:
    return plain.with_type(_written_type(data_type, plain.type, path))


def as_shapes(rows: pa.Table, types: Mapping[int, pa.DataType]) -> pa.Table:
    """Rows of a file with columns in the types of `shape_types`.

    Raises SchemaMismatchError: A value is no WKB.
    """
    for place, kind in types.items():
        field = rows.schema.field(place)
        chunks = [_typed(chunk, kind, field.name) for chunk in rows.column(place).chunks]
        rows = rows.set_column(place, field.with_type(kind), pa.chunked_array(chunks, kind))
    return rows


def schema_with_shapes(schema: pa.Schema, types: Mapping[int, pa.DataType]) -> pa.Schema:
    """The schema of the rows that `as_shapes` returns."""
    for place, kind in types.items():
        schema = schema.set(place, schema.field(place).with_type(kind))
    return schema


def _holds_shapes(kind: pa.DataType) -> bool:
    inner = (kind.field(index).type for index in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return isinstance(kind, _WkbType) or any(map(_holds_shapes, inner))


def _typed(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if isinstance(kind, _WkbType):
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        _ensure_wkb(array, path)
        return kind.wrap_array(array)
    if not _holds_shapes(kind):
        return array
    fields = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [*map(kind.field, range(kind.num_fields))]
    # `flatten` makes the fields of null structs null, whatever bytes there are.
    inside = array.flatten() if pa.types.is_struct(kind) else children_of(array)
    children = [_typed(child, own.type, path) for child, own in zip(inside, fields, strict=True)]
    return with_children(array, children, kind)


_HEADERS = [
    (b"\x01" + number.to_bytes(4, "little"), b"\x00" + number.to_bytes(4, "big"))
    for number in (shape + 1000 * axes for shape, axes in product(range(1, 8), range(4)))
]
"""How WKB begins: the order of bytes, and the number of the shape, more by thousands where points have Z, M or both
(ISO). PostGIS marks them otherwise, which no reader of tables takes."""


def _ensure_wkb(array: pa.BinaryArray, path: str) -> None:
    headers = literal_array([header for both in _HEADERS for header in both], BINARY)
    begins = pc.binary_slice(pc.drop_null(array), 0, _HEADER_BYTES)
    if pc.all(pc.is_in(begins, value_set=headers), min_count=0).as_py():
        return
    raise SchemaMismatchError(
        f"Column {path} has a value that is not WKB",
        cause="It does not begin as a point, line, polygon or collection of these in ISO WKB",
        remedy="Convert it, for example with shapely.to_wkb(…, flavor='iso') or ST_AsBinary(…)",
        column=path,
    )
