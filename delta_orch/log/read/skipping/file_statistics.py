"""Statistics of files as bounds of columns (PROTOCOL, "Per-file Statistics").

They come from the JSON of `stats`, or from a checkpoint that holds them as columns (`stats_parsed`); of these only the
leaves that a predicate looks at are decoded.

Statistics are read with doubt: whatever is missing, malformed or known to be rounded by some writer widens the bounds
or leaves them unknown. A file is then read although it need not be, and never skipped although it matters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

import delta_orch.arrow_compute as pc
from delta_orch.log.files.file_columns import ROW_COUNT_COLUMNS, FileTable, parse_object, record_counts
from delta_orch.log.files.stats_json import read_stats_json
from delta_orch.protocol.actions import JsonObject, JsonValue
from delta_orch.protocol.arrow_building import (
    int64_array,
    one_chunk,
    string_array,
    type_to_arrow,
)
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructType,
)

_LOGGER = logging.getLogger(__name__)

_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"
_EXACT_TYPES = {
    **dict.fromkeys((LONG, INTEGER, SHORT, BYTE), pa.int64()),
    **dict.fromkeys((FLOAT, DOUBLE), pa.float64()),
    STRING: pa.string(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
}
# Beyond 15 digits a decimal does not survive the doubles that some writers put it through.
_MAX_EXACT_DIGITS = 15
_DOUBLE_ERROR = 2.0**-50
_LEAST_LONG = -(2.0**63)
_ALMOST_A_MILLISECOND = 999
_LAST_MILLISECOND = (1 << 63) - 1000

_BATCH_ROWS = 128 * 1024
_FEW_FILES = 64
"""Up to this number of files Python is quicker than Arrow's JSON reader, which starts threads."""

Path = tuple[str, ...]
_Bounds: TypeAlias = "dict[Path, ColumnBounds]"
_Types: TypeAlias = "dict[str, _Types | pa.DataType]"


def read_bounds(stats: pa.Array | pa.ChunkedArray, columns: Mapping[tuple[str, ...], DataType]) -> _Bounds:
    """Bounds of columns by physical path, from JSON statistics. They are null for files without statistics."""
    if len(stats) <= _FEW_FILES:
        return _parse_each(one_chunk(stats), columns)
    chunks = stats.chunks if isinstance(stats, pa.ChunkedArray) else [stats]
    pieces = [chunk.slice(start, _BATCH_ROWS) for chunk in chunks for start in range(0, len(chunk), _BATCH_ROWS)]
    read = [_parse(piece, columns) for piece in pieces]
    return {path: joined([bounds[path] for bounds in read]) for path in columns}


def _json_type(data_type: DataType) -> pa.DataType | None:
    """How minimum and maximum are read from JSON; None for types without."""
    target = bound_type(data_type)
    return pa.string() if target is not None and (pt.is_date(target) or pt.is_timestamp(target)) else target


def _parse(stats: pa.StringArray, columns: Mapping[tuple[str, ...], DataType]) -> _Bounds:
    if len(stats) <= _FEW_FILES:
        return _parse_each(stats, columns)
    from delta_orch.log.files.stats_json import read_stats_json

    try:
        table = read_stats_json(stats, _json_schema(columns))
    except pa.ArrowInvalid as e:
        _LOGGER.debug("Reading statistics one by one, for some are unusual: %s", e)
        return _parse_each(stats, columns)
    return {path: _bounds_in(table, path, data_type) for path, data_type in columns.items()}


def _json_schema(columns: Mapping[tuple[str, ...], DataType]) -> pa.Schema:
    ranges: _Types = {}
    nulls: _Types = {}
    for path, data_type in columns.items():
        if (json_type := _json_type(data_type)) is not None:
            _insert(ranges, path, json_type)
        _insert(nulls, path, pa.int64())
    fields = [("numRecords", pa.int64()), ("nullCount", _struct_of(nulls))]
    if ranges:
        fields += [("minValues", _struct_of(ranges)), ("maxValues", _struct_of(ranges))]
    return pa.schema(fields)


def _insert(tree: _Types, path: tuple[str, ...], leaf: pa.DataType) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _struct_of(tree: _Types) -> pa.StructType:
    return pa.struct([(name, _struct_of(v) if isinstance(v, dict) else v) for name, v in tree.items()])


def _bounds_in(table: pa.Table, path: tuple[str, ...], data_type: DataType) -> ColumnBounds:
    nothing = pa.nulls(table.num_rows, pa.string())
    has_range = _json_type(data_type) is not None
    return bounds_of(
        data_type,
        _descend(table, "minValues", path) if has_range else nothing,
        _descend(table, "maxValues", path) if has_range else nothing,
        _descend(table, "nullCount", path),
        one_chunk(table["numRecords"]),
    )


def _descend(table: pa.Table, name: str, path: tuple[str, ...]) -> pa.Array:
    column = one_chunk(table[name])
    for step in path:
        column = pc.struct_field(column, [column.type.get_field_index(step)])
    return column


def _parse_each(stats: pa.StringArray, columns: Mapping[tuple[str, ...], DataType]) -> _Bounds:
    """Row by row, also statistics Arrow's reader refuses: what is unusual counts as missing, the rest is used."""
    objects = list(map(parse_object, stats.to_pylist()))
    num_records = _column(objects, ("numRecords",), pa.int64())
    result = {}
    for path, data_type in columns.items():
        json_type = _json_type(data_type) or pa.null()
        minimum = _column(objects, ("minValues", *path), json_type)
        maximum = _column(objects, ("maxValues", *path), json_type)
        null_count = _column(objects, ("nullCount", *path), pa.int64())
        result[path] = bounds_of(data_type, minimum, maximum, null_count, num_records)
    return result


def _integer(value: JsonValue) -> int | None:
    # From 2**53 on, a double is not the only integer that was written so.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return value if fits else None


def _column(objects: Sequence[JsonObject], path: Path, json_type: pa.DataType) -> pa.Array:
    """The values at a path of the objects; null where one is missing, or not of the type."""
    values: list[JsonValue] = []
    for one in objects:
        value: JsonValue = one
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        values.append(value)
    if pt.is_integer(json_type):
        return int64_array(list(map(_integer, values)))
    if pt.is_string(json_type):
        return string_array([v if isinstance(v, str) else None for v in values])
    if pt.is_floating(json_type):
        return pc.cast(string_array([repr(float(v)) if _is_number(v) else None for v in values]), json_type)
    if pt.is_decimal(json_type) and values:
        return pa.concat_arrays([_decimal(v, json_type) for v in values])
    return pa.nulls(len(values), json_type)


def _decimal(value: JsonValue, json_type: pa.DataType) -> pa.Array:
    text = repr(value) if _is_number(value) else value
    if not isinstance(text, str):
        return pa.nulls(1, json_type)
    try:
        return pc.cast(string_array([text]), json_type)
    except pa.ArrowInvalid:
        return pa.nulls(1, json_type)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def leaf_type(schema: StructType, path: Sequence[str]) -> DataType | None:
    """The type at a path of struct fields; None if the path does not exist."""
    current: DataType | None = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        current = None if field is None else field.data_type
    return current


class ColumnBounds(NamedTuple):
    """What the statistics say about one column, one row a file.

    Attributes:
        lower, upper: No value is below, or above; null where nothing is known. NaN is left out of account, and a
            string of 32 or more characters in `upper` may be the prefix of a greater one.
        may_be_null: False where no row is null.
        may_be_value: False where every row is null.
        data_type: The column's type. Integers come as int64, floats and decimals of more than 15 digits as doubles.
    """

    lower: pa.Array
    upper: pa.Array
    may_be_null: pa.BooleanArray
    may_be_value: pa.BooleanArray
    data_type: DataType


def bounds_of(
    data_type: DataType, minimum: pa.Array, maximum: pa.Array, null_count: pa.Array, num_records: pa.Array
) -> ColumnBounds:
    """Bounds from recorded statistics, one row a file, null where something is not recorded.

    Args:
        minimum, maximum: Values in any Arrow type that can be cast to the column's; dates and times may be text.
        null_count, num_records: Integers.
    """
    null_count, num_records = cast_bounds(null_count, pa.int64()), cast_bounds(num_records, pa.int64())
    may_be_null = pc.coalesce(pc.not_equal(null_count, 0), True)
    may_be_value = pc.coalesce(pc.not_equal(null_count, num_records), True)
    lower, upper = _range(data_type, minimum, maximum)
    return ColumnBounds(lower, upper, may_be_null, may_be_value, data_type)


def joined(parts: list[ColumnBounds]) -> ColumnBounds:
    """The bounds of several batches of files as one; of at least one batch."""

    def column(name: str) -> pa.Array:
        return pa.concat_arrays([getattr(part, name) for part in parts])

    return ColumnBounds(
        column("lower"), column("upper"), column("may_be_null"), column("may_be_value"), parts[0].data_type
    )


def bound_type(data_type: DataType) -> pa.DataType | None:
    """The Arrow type of a column's bounds; None for types without bounds."""
    if isinstance(data_type, DecimalType):
        exact = data_type.precision <= _MAX_EXACT_DIGITS
        return pa.decimal128(38, data_type.scale) if exact else pa.float64()
    return _EXACT_TYPES.get(data_type)


def _range(data_type: DataType, minimum: pa.Array, maximum: pa.Array) -> tuple[pa.Array, pa.Array]:
    target = bound_type(data_type)
    if target is None:
        nothing = pa.nulls(len(minimum), type_to_arrow(data_type))
        return nothing, nothing
    lower, upper = cast_bounds(_readable(minimum, target), target), cast_bounds(_readable(maximum, target), target)
    if data_type == FLOAT:
        # In the fewest digits that tell one float from the next, which as a double are another number.
        return _to_floats(lower), _to_floats(upper)
    if data_type == DOUBLE:
        # Files that are older than a type widening have float bounds.
        return pc.min_element_wise(lower, _to_floats(lower)), pc.max_element_wise(upper, _to_floats(upper))
    if isinstance(data_type, DecimalType) and pt.is_floating(target):
        if not data_type.scale:
            # deltalake counts whole numbers in 64 bits, and stops at the last one.
            lower = pc.if_else(pc.equal(lower, _LEAST_LONG), -math.inf, lower)
            upper = pc.if_else(pc.equal(upper, -_LEAST_LONG), math.inf, upper)
        margins = [pc.multiply(pc.abs(values), _DOUBLE_ERROR) for values in (lower, upper)]
        return pc.subtract(lower, margins[0]), pc.add(upper, margins[1])
    # Writers cut timestamps down to milliseconds: the greatest value may lie almost one above the maximum.
    return lower, _up_to_the_millisecond(upper) if pt.is_timestamp(target) else upper


def _to_floats(bounds: pa.DoubleArray) -> pa.DoubleArray:
    """Each bound as the float next to it; one beyond all floats as it is."""
    floats = pc.cast(pc.cast(bounds, pa.float32()), pa.float64())
    return pc.if_else(pc.is_inf(floats), bounds, floats)


def _up_to_the_millisecond(upper: pa.TimestampArray) -> pa.TimestampArray:
    micros = upper.view(pa.int64())
    widened = pc.if_else(pc.less(micros, _LAST_MILLISECOND), pc.add(micros, _ALMOST_A_MILLISECOND), micros)
    return widened.view(upper.type)


def _readable(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Text of timestamps as Arrow reads it; null where nobody can say which instant is meant."""
    if not pt.is_timestamp(target) or not pt.is_string(values.type):
        return values
    nothing = pa.nulls(1, pa.string())[0]
    if target.tz is not None:
        return pc.if_else(pc.match_substring_regex(values, _ZONE), values, nothing)
    bare = pc.replace_substring_regex(values, "Z$", "")
    return pc.if_else(pc.match_substring_regex(bare, _ZONE), nothing, bare)


def cast_bounds(values: pa.Array, target: pa.DataType) -> pa.Array:
    """The values in another type; all null where one of them has no counterpart."""
    if values.type == target:
        return values
    try:
        return pc.cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        _LOGGER.debug("Statistics that are not %s prune nothing: %s", target, e)
        return pa.nulls(len(values), target)


# The smallest and greatest value of a column in each file, where statistics say them exactly.
#
# Bounds that only leave out files may be wide. The bounds here answer queries, so a file with inexact statistics has no
# bounds.


EXACT_TYPES = (BYTE, SHORT, INTEGER, LONG, DATE)
"""Strings may be cut, timestamps are cut to milliseconds, floats leave out NaN, decimals pass through doubles."""
EXACT_COLUMNS = ROW_COUNT_COLUMNS
"""What `exact_extremes` needs of a file table."""

_GREGORIAN = (date(1582, 10, 15) - date(1970, 1, 1)).days
_TIGHT = pa.schema([("tightBounds", pa.bool_())])


def exact_extremes(files: pa.Table, path: Sequence[str], data_type: DataType) -> pa.Table:
    """For each file `is_known`, and `lowest` and `highest` of a column: int64, dates as days since the epoch, both null
    where every value is null.

    Not known are files with a deletion vector or with `tightBounds` false, without a minimum, a maximum or counts, and
    dates before the Gregorian calendar, which old writers count in another one.

    Args:
        files: With `EXACT_COLUMNS`.
        path: The physical path of the column.
        data_type: Its type, one of `EXACT_TYPES`.
    """
    stats = FileTable(files).stats
    bounds = read_bounds(stats, {tuple(path): data_type})[tuple(path)]
    counts = record_counts(files)
    lowest, highest = (_as_int64(values) for values in (bounds.lower, bounds.upper))
    has_range = pc.and_(pc.is_valid(lowest), pc.fill_null(pc.less_equal(lowest, highest), False))
    if data_type == DATE:
        has_range = pc.and_(has_range, pc.fill_null(pc.greater_equal(lowest, _GREGORIAN), False))
    has_none = pc.and_(pc.is_null(lowest), pc.is_null(highest))
    is_empty = pc.and_(pc.and_(pc.invert(bounds.may_be_value), pc.is_valid(counts)), has_none)
    is_tight = pc.and_(pc.is_null(one_chunk(FileTable(files).deletion_vector)), _are_tight(stats))
    is_exact = pc.and_(is_tight, pc.or_(is_empty, pc.and_(has_range, pc.greater(pc.fill_null(counts, 0), 0))))
    nothing = pa.nulls(1, pa.int64())[0]
    return pa.table(
        {
            "is_known": is_exact,
            "lowest": pc.if_else(is_empty, nothing, lowest),
            "highest": pc.if_else(is_empty, nothing, highest),
        }
    )


def _as_int64(values: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(values, pa.int32()) if pa.types.is_date(values.type) else values, pa.int64())


def _are_tight(stats: pa.ChunkedArray) -> pa.Array:
    """Whether bounds are those of the rows: `tightBounds` counts as true where it is not given (PROTOCOL, "Per-file
    Statistics"). A text that Arrow cannot read makes all of them doubtful."""
    parts = []
    for chunk in stats.chunks:
        try:
            tight_bounds = one_chunk(read_stats_json(chunk, _TIGHT)["tightBounds"])
        except pa.ArrowInvalid:
            tight_bounds = pa.array([False] * len(chunk))
        parts.append(pc.fill_null(tight_bounds, True))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.bool_())
