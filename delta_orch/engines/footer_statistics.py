"""Turns Parquet footers into the `stats` of an `add` (PROTOCOL, "Per-file Statistics").

Both engines use Parquet writers of other projects, whose footers already hold every bound. This module turns valid
bounds of Parquet into valid bounds of Delta. A reader may skip a file because of a bound. So each bound is either valid
in Spark's order (UTF-8 bytes, NaN above all numbers, -0.0 equal to 0.0) or left out.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import StatisticsPolicy, WriteSpec
from delta_orch.errors import MissingFileError, StorageError
from delta_orch.protocol.arrow_building import int64_array, string_array
from delta_orch.protocol.partition_values import serialize_float
from delta_orch.protocol.types import (
    VARIANT,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
    indexed_leaves,
    leaves_of,
    traits_of,
)
from delta_orch.storage.parquet_footer import LISTS, STRUCT, ThriftWalk
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.column_mapping import ColumnMappingMode, physical_path

Statistic = Any
"""A bound as pyarrow gives it, of the column's physical type, and what it becomes in JSON."""
ColumnPath = tuple[str, ...]

FOOTER_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
        pa.field("num_records", pa.int64(), nullable=False),
        pa.field("stats", pa.string(), nullable=False),
    ]
)
"""`path` as given, `size` in bytes, `modification_time` in milliseconds since the epoch."""

MAX_STRING_PREFIX_CHARS = 32
_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_FLOATS = frozenset({"float", "double"})
_MAX_CODE_POINT = 0x10FFFF
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_DAY_ORDINAL = dt.date(1970, 1, 1).toordinal()
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class StatisticsColumn(NamedTuple):
    """A leaf whose statistics are wanted, by its path in the table's schema."""

    path: ColumnPath
    data_type: DataType


@lru_cache(maxsize=64)
def statistics_columns(schema: StructType, policy: StatisticsPolicy) -> tuple[StatisticsColumn, ...]:
    """The leaves of `schema` (without partition columns) that the policy covers, in schema order.

    An array, a map and a variant count as one leaf each, as in Delta on Spark.
    """
    indexed = dict(indexed_leaves(schema, policy.columns, policy.num_indexed_columns))
    indexed |= indexed_leaves(schema, policy.also)
    return tuple(StatisticsColumn(path, data_type) for path, data_type in leaves_of(schema) if path in indexed)


def statistics_of_files(spec: WriteSpec) -> tuple[StatisticsColumn, ...]:
    """The leaves with statistics in the files of a write, by their physical paths: so files and log know them."""
    return _statistics_of_files(spec.schema, spec.partition_columns, spec.statistics, spec.column_mapping)


@lru_cache(maxsize=64)
def _statistics_of_files(
    schema: StructType, partition_columns: tuple[str, ...], policy: StatisticsPolicy, mode: ColumnMappingMode
) -> tuple[StatisticsColumn, ...]:
    partitions = {name.lower() for name in partition_columns}
    in_files = StructType(tuple(f for f in schema if f.name.lower() not in partitions))
    columns = statistics_columns(in_files, policy)
    if mode is ColumnMappingMode.NONE:
        return columns
    return tuple(column._replace(path=physical_path(schema, column.path)) for column in columns)


def read_footer_statistics(
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    columns: Sequence[StatisticsColumn],
    *,
    says_tight: bool = False,
) -> pa.Table:
    """Read the footers of files just written, in parallel, and derive their statistics.

    Args:
        filesystem: Where `paths` are.
        columns: The leaves that get statistics, by their paths in the files; those a file does not hold get none.
        says_tight: Write `tightBounds` down.

    Returns: one row a path, in order, with the columns of `FOOTER_SCHEMA`.

    Raises:
        MissingFileError: A path does not exist.
        StorageError: A file cannot be read, or is not Parquet.
    """

    def read(path: str) -> tuple[int, str]:
        metadata = _read_metadata(filesystem, path)
        return metadata.num_rows, serialize_footer_statistics(metadata, columns, says_tight=says_tight)

    footers = list(map_ahead(read, paths, FAR_THREADS))
    infos = filesystem.get_file_info(list(paths))
    return pa.Table.from_arrays(
        [
            string_array(paths),
            int64_array([info.size for info in infos]),
            int64_array([(info.mtime_ns or 0) // 1_000_000 for info in infos]),
            int64_array([num_records for num_records, _ in footers]),
            string_array([stats for _, stats in footers]),
        ],
        schema=FOOTER_SCHEMA,
    )


def _read_metadata(filesystem: pafs.FileSystem, path: str) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path, filesystem=filesystem)
    except FileNotFoundError as e:
        raise MissingFileError(f"The data file {path} does not exist", cause=str(e), path=path) from e
    except pa.ArrowInvalid as e:
        raise StorageError(f"{path} is not a readable Parquet file", cause=str(e), path=path) from e
    except OSError as e:
        raise StorageError(f"The footer of {path} cannot be read", cause=str(e), path=path) from e


def serialize_footer_statistics(
    metadata: pq.FileMetaData,
    columns: Sequence[StatisticsColumn],
    *,
    nan_free: Collection[ColumnPath] = (),
    seen: Mapping[ColumnPath, Found] = MappingProxyType({}),
    says_tight: bool = False,
    groups: Sequence[int] | None = None,
) -> str:
    """The `stats` JSON of one file, or of these row groups of it.

    Bounds of a float column count NaN only if parquet-mr (Spark) wrote them; other writers pass over NaN, and a maximum
    that does is no upper bound where NaN is the greatest number. From those writers the maximum is used only for leaves
    in `nan_free`. Bounds that the writer has `seen` replace those of the footer.

    A nested leaf counts as null wherever one of its parents is, as Delta counts it. Binary and boolean columns, arrays,
    maps and variants get no bounds.
    """
    is_nan_counted = (metadata.created_by or "").startswith("parquet-mr")
    chunks = _chunks_by_path(metadata)
    row_groups = list(map(metadata.row_group, range(metadata.num_row_groups) if groups is None else groups))
    lists: dict[int, int] = {}
    for path, data_type in columns if groups is None else ():
        if isinstance(data_type, (ArrayType, MapType)) and path in chunks:
            lists[chunks[path].index] = chunks[path].null_levels
    of_lists = null_counts_of_lists(metadata, lists) if lists else {}
    min_values: dict[str, Statistic] = {}
    max_values: dict[str, Statistic] = {}
    null_counts: dict[str, Statistic] = {}
    for column in columns:
        # A variant that is there has metadata, shredded or not.
        path = (*column.path, "metadata") if column.data_type == VARIANT else column.path
        chunk = chunks.get(path)
        if chunk is None:
            continue
        if isinstance(column.data_type, (ArrayType, MapType)):
            if chunk.index in of_lists:
                _put(null_counts, column.path, of_lists[chunk.index])
            continue
        index, arrow_type = chunk.index, chunk.kind
        merged = seen.get(column.path) or _merge_row_groups(row_groups, index, arrow_type)
        if merged.null_count is not None:
            _put(null_counts, column.path, merged.null_count)
        if traits_of(column.data_type).has_box:
            for bounds, corner in zip((min_values, max_values), _corners(row_groups, index), strict=False):
                _put(bounds, column.path, corner)
            continue
        rule = _bound_rule(column.data_type)
        if merged.minimum is None or rule is None:
            continue
        lower = rule(merged.minimum, False, arrow_type)
        upper = rule(merged.maximum, True, arrow_type)
        is_float = isinstance(column.data_type, PrimitiveType) and column.data_type.name in _FLOATS
        if is_float and not (is_nan_counted or column.path in nan_free):
            upper = None
        if lower is not None:
            _put(min_values, column.path, lower)
        if upper is not None:
            _put(max_values, column.path, upper)
    num_records = metadata.num_rows if groups is None else sum(group.num_rows for group in row_groups)
    stats: dict[str, Statistic] = {"numRecords": num_records}
    if says_tight:
        stats["tightBounds"] = True
    for key, values in (("minValues", min_values), ("maxValues", max_values), ("nullCount", null_counts)):
        if values:
            stats[key] = values
    return orjson.dumps(stats).decode()


def _put(tree: dict[str, Statistic], path: ColumnPath, value: Statistic) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Where the values of a column are: the index of its column chunk, of a list's first one; its Arrow type; and at
    how many definition levels it is null."""

    index: int
    kind: pa.DataType
    null_levels: int


def _chunks_by_path(metadata: pq.FileMetaData) -> Mapping[ColumnPath, _Chunk]:
    """Each leaf outside lists and maps, and each list and map that is inside no other.

    Walks the Arrow schema in leaf order: the footer's own dotted paths are ambiguous where names hold dots.
    """
    chunks: dict[ColumnPath, _Chunk] = {}
    index = 0

    def walk(field: pa.Field, path: ColumnPath | None, levels: int) -> None:
        nonlocal index
        kind = field.type
        levels += field.nullable
        if pa.types.is_struct(kind):
            for child in kind:
                walk(child, None if path is None else (*path, child.name), levels)
            return
        if isinstance(kind, pa.BaseExtensionType):
            is_shape = kind.extension_name == "geoarrow.wkb"
            walk(pa.field(field.name, kind.storage_type, nullable=False), path if is_shape else None, levels)
            return
        if path is not None:
            chunks[path] = _Chunk(index, kind, levels)
        if pa.types.is_map(kind):
            walk(kind.key_field, None, levels)
            walk(kind.item_field, None, levels)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            walk(kind.value_field, None, levels)
        else:
            index += 1

    for field in metadata.schema.to_arrow_schema():
        walk(field, (field.name,), 0)
    # A leaf order that does not match would pair columns with each other's bounds.
    return chunks if index == metadata.num_columns else {}


@dataclass(slots=True)
class Found:
    """The statistics of one column of a file, with bounds in Parquet's physical type."""

    null_count: int | None = 0
    minimum: Statistic = None
    maximum: Statistic = None

    def add(self, values: pa.ChunkedArray) -> None:
        """Count floats that may hold NaN, which leaves no upper bound that JSON has."""
        self.null_count = (self.null_count or 0) + values.null_count
        minimum = pc.min(values).as_py()
        if minimum is not None and not _is_nan(minimum) and (self.minimum is None or minimum < self.minimum):
            self.minimum = minimum


def _merge_row_groups(row_groups: Sequence[pq.RowGroupMetaData], index: int, kind: pa.DataType) -> Found:
    """Raw physical bounds over all row groups; None where one that has values has no bounds."""
    merged = Found()
    has_bounds = True
    for row_group in row_groups:
        statistics = row_group.column(index).statistics
        if statistics is None:
            return Found(null_count=None)
        null_count = statistics.null_count if statistics.has_null_count else None
        if null_count is None or merged.null_count is None:
            merged.null_count = None
        else:
            merged.null_count += null_count
        if not statistics.has_min_max:
            has_bounds = has_bounds and null_count == row_group.num_rows
            continue
        lower, upper = statistics.min_raw, statistics.max_raw
        if pa.types.is_decimal(kind):
            # As bytes, negative numbers would come after positive ones.
            lower, upper = _unscaled(lower), _unscaled(upper)
        if _is_nan(lower) or merged.minimum is None or (not _is_nan(merged.minimum) and lower < merged.minimum):
            merged.minimum = lower
        if _is_nan(upper) or merged.maximum is None or (not _is_nan(merged.maximum) and upper > merged.maximum):
            merged.maximum = upper
    if not has_bounds:
        merged.minimum = merged.maximum = None
    return merged


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


_AXES = ("x", "y", "z", "m")


def _corners(row_groups: Sequence[pq.RowGroupMetaData], index: int) -> tuple[str, ...]:
    """The lower and the upper corner of the box around all shapes of a column, as text: `POINT(1.0 2.0)`,
    `POINT Z(1.0 2.0 3.0)`. Nothing where a row group has no box: writers keep none for geographies."""
    boxes = [group.column(index).geo_statistics for group in row_groups]
    if not boxes or any(box is None or box.xmin is None or box.ymin is None for box in boxes):
        return ()
    axes = [axis for axis in _AXES if all(getattr(box, f"{axis}min") is not None for box in boxes)]
    name = "POINT " + "".join(axes[2:]).upper() if axes[2:] else "POINT"
    return tuple(
        f"{name}({' '.join(serialize_float(of_all(getattr(box, axis + end) for box in boxes)) for axis in axes)})"
        for end, of_all in (("min", min), ("max", max))
    )


BoundRule = Callable[[Statistic, bool, pa.DataType], Statistic]
"""(raw value, is it the upper bound, the file's Arrow type) -> JSON value, or None to leave the bound out."""


def _bound_rule(data_type: DataType) -> BoundRule | None:
    if isinstance(data_type, DecimalType):
        return _decimal_bound
    if not isinstance(data_type, PrimitiveType):
        return None
    if data_type.name in _INTEGERS:
        return _integer_bound
    if data_type.name in _FLOATS:
        return _float_bound
    return {
        "string": _string_bound,
        "date": _date_bound,
        "timestamp": _timestamp_bound,
        "timestamp_ntz": _timestamp_ntz_bound,
    }.get(data_type.name)


def _integer_bound(raw: Statistic, _is_upper: bool, kind: pa.DataType) -> int | None:
    # Of unsigned numbers, that others wrote, the raw bytes are given as if they had a sign.
    return raw if isinstance(raw, int) and not pa.types.is_unsigned_integer(kind) else None


def _float_bound(raw: Statistic, is_upper: bool, _type: pa.DataType) -> float | None:
    if not isinstance(raw, (int, float)) or not math.isfinite(raw):
        return None
    if raw == 0:
        # Both zeros are equal in Spark, -0.0 is the smaller in other readers.
        return 0.0 if is_upper else -0.0
    return float(raw)


def _decimal_bound(raw: Statistic, _is_upper: bool, kind: pa.DataType) -> orjson.Fragment | None:
    if not pa.types.is_decimal(kind):
        return None
    unscaled = _unscaled(raw)
    digits = str(abs(unscaled)).rjust(kind.scale + 1, "0")
    whole, fraction = digits[: len(digits) - kind.scale], digits[len(digits) - kind.scale :]
    sign = "-" if unscaled < 0 else ""
    return orjson.Fragment(f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}")


def _unscaled(raw: Statistic) -> int:
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)


def _string_bound(raw: Statistic, is_upper: bool, _type: pa.DataType) -> str | None:
    try:
        text: str = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if len(text) <= MAX_STRING_PREFIX_CHARS:
        return text
    prefix = text[:MAX_STRING_PREFIX_CHARS]
    return round_up_prefix(prefix) if is_upper else prefix


def round_up_prefix(prefix: str) -> str | None:
    """The least string of at most that length above every string that starts with `prefix`, by code points (the order
    of UTF-8 bytes, which is Spark's); None where there is none."""
    for end in range(len(prefix), 0, -1):
        code_point = ord(prefix[end - 1])
        if code_point < _MAX_CODE_POINT:
            # Surrogates are no characters of their own.
            successor = 0xE000 if code_point == 0xD7FF else code_point + 1
            return prefix[: end - 1] + chr(successor)
    return None


def _date_bound(raw: Statistic, _is_upper: bool, kind: pa.DataType) -> str | None:
    ordinal = raw + _EPOCH_DAY_ORDINAL
    if not pa.types.is_date32(kind) or not 1 <= ordinal <= dt.date.max.toordinal():
        return None
    return dt.date.fromordinal(ordinal).isoformat()


def _timestamp_bound(raw: Statistic, is_upper: bool, kind: pa.DataType) -> str | None:
    text = _timestamp_ntz_bound(raw, is_upper, kind)
    return None if text is None else text + "Z"


def _timestamp_ntz_bound(raw: Statistic, is_upper: bool, kind: pa.DataType) -> str | None:
    """Milliseconds, since that is what readers keep: the lower bound rounds down, the upper one up."""
    if not pa.types.is_timestamp(kind) or not isinstance(raw, int):
        return None
    if kind.unit == "s":
        milliseconds = raw * 1000
    else:
        per_ms = _UNITS_PER_MS[kind.unit]
        milliseconds = -(-raw // per_ms) if is_upper else raw // per_ms
    try:
        moment = _EPOCH + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds")


# How many arrays or maps of a column are null, from a Parquet footer.
#
# A footer counts what is inside lists; of the lists themselves it keeps, where its writer does, how many values have
# which definition level (`SizeStatistics`). A list that is null, or inside a struct that is, has exactly one value, and
# none of its levels is as high as that of a list that is there.

# Field numbers of the format's Thrift definition.
_ROW_GROUPS, _COLUMNS, _CHUNK_METADATA, _CHUNK_SIZES, _DEFINITION_LEVELS = 4, 1, 3, 16, 3


def null_counts_of_lists(metadata: pq.FileMetaData, lists: Mapping[int, int]) -> dict[int, int]:
    """The number of null lists in each requested column chunk, summed over row groups.

    Args:
        metadata: Of a file just written.
        lists: The index of a leaf inside each list → at how many definition levels the list is not there.

    Returns: By leaf. Leaves whose row groups lack levels are omitted.
    """
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    file = sink.getvalue().to_pybytes()
    counts = dict.fromkeys(lists, 0)
    walk = ThriftWalk(file[-8 - int.from_bytes(file[-8:-4], "little") : -8])
    for _ in walk.only(_ROW_GROUPS, LISTS):
        for _ in range(walk.list_size()):
            levels = _levels_of_row_group(walk, lists)
            for leaf in list(counts):
                if leaf in levels:
                    counts[leaf] += sum(levels[leaf][: lists[leaf]])
                else:
                    del counts[leaf]
    return counts


def _levels_of_row_group(walk: ThriftWalk, lists: Mapping[int, int]) -> dict[int, list[int]]:
    levels_by_leaf: dict[int, list[int]] = {}
    for _ in walk.only(_COLUMNS, LISTS):
        for leaf in range(walk.list_size()):
            levels: list[int] = []
            for _ in walk.only(_CHUNK_METADATA, (STRUCT,)):
                for _ in walk.only(_CHUNK_SIZES, (STRUCT,)):
                    for _ in walk.only(_DEFINITION_LEVELS, LISTS):
                        levels = [walk.integer() for _ in range(walk.list_size())]
            if leaf in lists and len(levels) >= lists[leaf]:
                levels_by_leaf[leaf] = levels
    return levels_by_leaf
