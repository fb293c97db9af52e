"""Statistics of files as bounds of columns, read from the JSON of `stats` (PROTOCOL, "Per-file Statistics").

Statistics are read with doubt: whatever is missing, malformed or known to be rounded by some writer widens the bounds
or leaves them unknown. A file is then read although it need not be, and never skipped although it matters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from delta_orch.log.arrow_building import bool_array, int32_array, int64_array, string_array, string_scalar
from delta_orch.log.literal_scalar import float64_array
from delta_orch.log.partition_columns import one_chunk
from delta_orch.protocol.arrow_types import type_to_arrow
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

_MIN_BLOCK_BYTES = 1 << 20
_BATCH_ROWS = 128 * 1024
_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"
_INTEGERS = (LONG, INTEGER, SHORT, BYTE)
# Beyond 15 digits a decimal does not survive the doubles that some writers put it through.
_MAX_EXACT_DIGITS = 15
_DOUBLE_ERROR = float64_array([2.0**-50])[0]
_ALMOST_A_MILLISECOND = int64_array([999])[0]
_LAST_MILLISECOND = int64_array([(1 << 63) - 1000])[0]


@dataclass(frozen=True, slots=True)
class ColumnBounds:
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


def read_bounds(
    stats: pa.Array | pa.ChunkedArray, columns: Mapping[tuple[str, ...], DataType]
) -> dict[tuple[str, ...], ColumnBounds]:
    """Bounds of columns, given by physical path, from JSON statistics (null where a file has none)."""
    chunks = stats.chunks if isinstance(stats, pa.ChunkedArray) else [stats]
    pieces = [chunk.slice(start, _BATCH_ROWS) for chunk in chunks for start in range(0, len(chunk), _BATCH_ROWS)]
    read = [_parse(piece, columns) for piece in pieces]
    return {path: _bounds(path, data_type, read) for path, data_type in columns.items()}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The raw statistics of one column, for one batch of files."""

    minimum: pa.Array
    maximum: pa.Array
    null_count: pa.Array
    num_records: pa.Array


_Read = Mapping[tuple[str, ...], _Leaf]


def _bounds(path: tuple[str, ...], data_type: DataType, read: Sequence[_Read]) -> ColumnBounds:
    parts = [_leaf_bounds(leaves[path], data_type) for leaves in read] or [
        _leaf_bounds(_empty_leaf(data_type), data_type)
    ]

    def joined(name: str) -> pa.Array:
        return pa.concat_arrays([getattr(part, name) for part in parts])

    return ColumnBounds(joined("lower"), joined("upper"), joined("may_be_null"), joined("may_be_value"), data_type)


def _empty_leaf(data_type: DataType) -> _Leaf:
    values = pa.nulls(0, _json_type(data_type) or pa.string())
    return _Leaf(values, values, int64_array([]), int64_array([]))


def _leaf_bounds(leaf: _Leaf, data_type: DataType) -> ColumnBounds:
    yes = bool_array([True])[0]
    may_be_null = pc.coalesce(pc.not_equal(leaf.null_count, int64_array([0])[0]), yes)
    may_be_value = pc.coalesce(pc.not_equal(leaf.null_count, leaf.num_records), yes)
    lower, upper = _RANGES[_kind(data_type)](leaf, data_type)
    return ColumnBounds(lower, upper, may_be_null, may_be_value, data_type)


_Range = tuple[pa.Array, pa.Array]


def _exact_range(leaf: _Leaf, data_type: DataType) -> _Range:
    return leaf.minimum, leaf.maximum


def _wide_decimal_range(leaf: _Leaf, data_type: DataType) -> _Range:
    lower_margin, upper_margin = (pc.multiply(pc.abs(v), _DOUBLE_ERROR) for v in (leaf.minimum, leaf.maximum))
    return pc.subtract(leaf.minimum, lower_margin), pc.add(leaf.maximum, upper_margin)


def _date_range(leaf: _Leaf, data_type: DataType) -> _Range:
    return _cast(leaf.minimum, pa.date32()), _cast(leaf.maximum, pa.date32())


def _timestamp_range(leaf: _Leaf, data_type: DataType) -> _Range:
    """Writers cut timestamps down to milliseconds: the greatest value may lie almost one above the maximum."""
    lower, upper = (_timestamps(text, data_type) for text in (leaf.minimum, leaf.maximum))
    micros = upper.view(pa.int64())
    widened = pc.if_else(pc.less(micros, _LAST_MILLISECOND), pc.add(micros, _ALMOST_A_MILLISECOND), micros)
    return lower, widened.view(upper.type)


def _no_range(leaf: _Leaf, data_type: DataType) -> _Range:
    nothing = pa.nulls(len(leaf.null_count), type_to_arrow(data_type))
    return nothing, nothing


def _timestamps(text: pa.StringArray, data_type: DataType) -> pa.Array:
    zoned = pc.match_substring_regex(text, _ZONE)
    nothing = pa.nulls(1, pa.string())[0]
    if data_type == TIMESTAMP:
        # Without a zone nobody can say which instant is meant.
        return _cast(pc.if_else(zoned, text, nothing), pa.timestamp("us", "UTC"))
    bare = pc.replace_substring_regex(text, "Z$", "")
    return _cast(pc.if_else(pc.match_substring_regex(bare, _ZONE), nothing, bare), pa.timestamp("us"))


def _cast(text: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    try:
        return pc.cast(text, arrow_type)
    except pa.ArrowInvalid as e:
        _LOGGER.debug("Statistics that are no %s prune nothing: %s", arrow_type, e)
        return pa.nulls(len(text), arrow_type)


def _kind(data_type: DataType) -> str:
    if isinstance(data_type, DecimalType):
        return "decimal" if data_type.precision <= _MAX_EXACT_DIGITS else "wide decimal"
    if data_type in _INTEGERS:
        return "integer"
    if data_type in (FLOAT, DOUBLE):
        return "float"
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        return "timestamp"
    if data_type == STRING:
        return "string"
    return "date" if data_type == DATE else "none"


_RANGES: Mapping[str, Callable[[_Leaf, DataType], _Range]] = {
    "decimal": _exact_range,
    "wide decimal": _wide_decimal_range,
    "integer": _exact_range,
    "float": _exact_range,
    "timestamp": _timestamp_range,
    "string": _exact_range,
    "date": _date_range,
    "none": _no_range,
}


def _json_type(data_type: DataType) -> pa.DataType | None:
    """How minimum and maximum are read from JSON; None for types without."""
    kind = _kind(data_type)
    if isinstance(data_type, DecimalType) and kind == "decimal":
        return pa.decimal128(38, data_type.scale)
    types = {"integer": pa.int64(), "float": pa.float64(), "wide decimal": pa.float64(), "none": None}
    return types.get(kind, pa.string())


def _parse(stats: pa.StringArray, columns: Mapping[tuple[str, ...], DataType]) -> _Read:
    wanted = _json_schema(columns)
    try:
        table = _parse_all(stats, wanted)
    except pa.ArrowInvalid as e:
        _LOGGER.debug("Reading statistics one by one, for some are unusual: %s", e)
        return _parse_each(stats, columns)
    return {path: _leaf_of(table, path, data_type) for path, data_type in columns.items()}


def _parse_all(stats: pa.StringArray, schema: pa.Schema) -> pa.Table:
    """All rows by Arrow's JSON reader at once. Raises pa.ArrowInvalid where that cannot be relied on."""
    text = pc.ascii_trim_whitespace(pc.replace_substring(pc.coalesce(stats, string_scalar("{}")), "\n", " "))
    # The reader goes by objects, not by lines: each line must be one.
    if not pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py():
        raise pa.ArrowInvalid("a line is no object")
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    offsets = int32_array([0, len(text)])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, text), string_scalar("\n"))
    table = pj.read_json(
        pa.BufferReader(joined[0].as_buffer()),
        read_options=pj.ReadOptions(block_size=max(_MIN_BLOCK_BYTES, 2 * longest + 2)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(stats):
        raise pa.ArrowInvalid("a line is more than one object")
    return table.combine_chunks()


def _json_schema(columns: Mapping[tuple[str, ...], DataType]) -> pa.Schema:
    ranges: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path, data_type in columns.items():
        if (json_type := _json_type(data_type)) is not None:
            _insert(ranges, path, json_type)
        _insert(nulls, path, pa.int64())
    fields = [("numRecords", pa.int64()), ("nullCount", _struct_of(nulls))]
    if ranges:
        fields += [("minValues", _struct_of(ranges)), ("maxValues", _struct_of(ranges))]
    return pa.schema(fields)


def _insert(tree: dict[str, Any], path: tuple[str, ...], leaf: pa.DataType) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _struct_of(tree: Mapping[str, Any]) -> pa.StructType:
    return pa.struct([(name, _struct_of(v) if isinstance(v, dict) else v) for name, v in tree.items()])


def _leaf_of(table: pa.Table, path: tuple[str, ...], data_type: DataType) -> _Leaf:
    json_type = _json_type(data_type)
    nothing = pa.nulls(table.num_rows, pa.string())
    return _Leaf(
        minimum=nothing if json_type is None else _descend(table, "minValues", path),
        maximum=nothing if json_type is None else _descend(table, "maxValues", path),
        null_count=_descend(table, "nullCount", path),
        num_records=one_chunk(table["numRecords"]),
    )


def _descend(table: pa.Table, name: str, path: tuple[str, ...]) -> pa.Array:
    column = one_chunk(table[name])
    for step in path:
        column = pc.struct_field(column, [column.type.get_field_index(step)])
    return column


def _parse_each(stats: pa.StringArray, columns: Mapping[tuple[str, ...], DataType]) -> _Read:
    """Row by row, for statistics Arrow's reader refuses: what is unusual counts as missing, the rest is used."""
    objects = [_object(text) for text in stats.to_pylist()]
    num_records = int64_array([_integer(o.get("numRecords")) for o in objects])
    result = {}
    for path, data_type in columns.items():
        convert = _PYTHON_VALUES.get(_kind(data_type))
        minimum, maximum = (
            pa.nulls(len(objects), pa.string())
            if convert is None
            else convert([_value(o.get(name), path) for o in objects], data_type)
            for name in ("minValues", "maxValues")
        )
        null_count = int64_array([_integer(_value(o.get("nullCount"), path)) for o in objects])
        result[path] = _Leaf(minimum, maximum, null_count, num_records)
    return result


def _object(text: str | None) -> Mapping[str, Any]:
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _value(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _integer(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return value if fits else None


def _integers(values: Sequence[Any], data_type: DataType) -> pa.Array:
    return int64_array([_integer(v) for v in values])


def _floats(values: Sequence[Any], data_type: DataType) -> pa.Array:
    texts = [repr(float(v)) if isinstance(v, (int, float)) and not isinstance(v, bool) else None for v in values]
    return string_array(texts).cast(pa.float64())


def _strings(values: Sequence[Any], data_type: DataType) -> pa.Array:
    return string_array([v if isinstance(v, str) else None for v in values])


def _decimals(values: Sequence[Any], data_type: DataType) -> pa.Array:
    arrow_type = _json_type(data_type)
    columns = [_decimal(v, arrow_type) for v in values]
    return pa.concat_arrays(columns) if columns else pa.nulls(0, arrow_type)


def _decimal(value: Any, arrow_type: pa.DataType | None) -> pa.Array:
    text = repr(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        return pa.nulls(1, arrow_type)
    try:
        return string_array([text]).cast(arrow_type)
    except pa.ArrowInvalid:
        return pa.nulls(1, arrow_type)


_PYTHON_VALUES: Mapping[str, Callable[[Sequence[Any], DataType], pa.Array]] = {
    "integer": _integers,
    "float": _floats,
    "wide decimal": _floats,
    "decimal": _decimals,
    "string": _strings,
    "date": _strings,
    "timestamp": _strings,
}


def leaf_type(schema: StructType, path: Sequence[str]) -> DataType | None:
    """The type at a path of struct fields; None where there is none."""
    current: DataType | None = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        current = None if field is None else field.data_type
    return current
