"""Arrow arrays from Python values and from numpy's arrays, without `pa.array` and `pa.scalar`: those import pandas
where it is installed, which costs a cold process more than reading a log does. Arrays as they come, made plain, or one
of several. And Delta's types ↔ Arrow's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

import delta_orch.arrow_compute as pc
from delta_orch.errors import SchemaMismatchError, UnsupportedError
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    CHAR_VARCHAR_TYPE,
    COLLATIONS,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STATED_DEFINITIONS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    as_stored,
    definitions_in,
    is_variant_storage,
)

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

STRING_MAP = pa.map_(pa.string(), pa.string())

_CODES: dict[DataType, str] = {
    BYTE: "b", SHORT: "h", INTEGER: "i", LONG: "q", FLOAT: "f", DOUBLE: "d", DATE: "i", TIMESTAMP: "q",
    TIMESTAMP_NTZ: "q",
}  # fmt: skip


def string_array(values: Iterable[str | None]) -> pa.StringArray:
    """Strings and nulls. Raises AttributeError for a value of another type."""
    texts = list(values)
    return _byte_strings(texts, [b"" if text is None else text.encode() for text in texts], pa.string(), "i")


def binary_array(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Byte strings, more than 2 GiB where need be."""
    return _byte_strings(values, values, pa.large_binary(), "q")


def int64_array(values: Sequence[int | None]) -> pa.Int64Array:
    """64-bit integers and nulls. Raises TypeError or OverflowError for other values."""
    return _numbers(values, pa.int64(), "q")


def int32_array(values: Sequence[int | None]) -> pa.Int32Array:
    """As `int64_array`, with 32 bits."""
    return _numbers(values, pa.int32(), "i")


def bool_array(values: Sequence[bool | None]) -> pa.BooleanArray:
    """True, false and null."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity_bitmap(values), _bitmap(bytes(map(bool, values)))])


def string_map_array(values: Sequence[Mapping[str, str | None] | None]) -> pa.MapArray:
    """Maps of strings (`file_columns.STRING_MAP`) and nulls."""
    present = [v or {} for v in values]
    entries = pa.StructArray.from_arrays(
        [
            string_array(chain.from_iterable(present)),
            string_array(chain.from_iterable(v.values() for v in present)),
        ],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    )
    buffers = [validity_bitmap(values), _offsets(map(len, present))]
    return pa.Array.from_buffers(STRING_MAP, len(values), buffers, children=[entries])


def struct_array(
    struct_type: pa.StructType, children: Sequence[pa.Array], validity: pa.Buffer | None = None
) -> pa.StructArray:
    """A struct of equally long children, in the type's order; null where the bitmap says so."""
    return pa.Array.from_buffers(struct_type, len(children[0]), [validity], children=list(children))


def validity_bitmap(values: Sequence[T | None]) -> pa.Buffer | None:
    """Arrow's validity bitmap of a list; None where no value is None."""
    return _bitmap(bytes(v is not None for v in values)) if None in values else None


def int64_range(start: int, stop: int) -> pa.Int64Array:
    """start, start + 1, …, stop − 1."""
    return longs_from_numpy(np.arange(start, stop, dtype=np.int64))


def longs_from_numpy(values: npt.NDArray[np.integer]) -> pa.Int64Array:
    """The same numbers, not copied where they lie together."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))])


def booleans_from_numpy(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """The same answers."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def bits_of(buffer: pa.Buffer, offset: int, length: int) -> npt.NDArray[np.bool_]:
    """Bits of a bitmap as booleans."""
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset - 8 * first :][:length].view(np.bool_)


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Where an array has no null."""
    validity = array.buffers()[0]
    if array.null_count == 0 or validity is None:
        return np.ones(len(array), np.bool_)
    return bits_of(validity, array.offset, len(array))


def longs_to_numpy(values: pa.Int64Array) -> npt.NDArray[np.int64]:
    """The same numbers, with 0 for nulls. Without nulls they are not copied."""
    # `to_numpy` and `pa.scalar` would look for pandas first.
    data = values.buffers()[1]
    numbers: npt.NDArray[np.int64] = (
        np.frombuffer(data, np.int64, len(values), values.offset * 8) if data else np.zeros(len(values), np.int64)
    )
    return np.where(valid_mask(values), numbers, 0) if values.null_count else numbers


def all_booleans(value: bool, count: int) -> pa.BooleanArray:
    """The same value `count` times."""
    data = (b"\xff" if value else b"\x00") * ((count + 7) // 8)
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(data)])


def narrowed_mask(mask: pa.BooleanArray, still: pa.BooleanArray) -> pa.BooleanArray:
    """The mask with only those of its marks that `still`, one value a mark, keeps."""
    return pc.replace_with_mask(mask, mask, still)


def _bitmap(flags: bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.frombuffer(flags, np.uint8), bitorder="little"))


def _offsets(lengths: Iterable[int], code: str = "i") -> pa.Buffer:
    return pa.py_buffer(array(code, accumulate(lengths, initial=0)))


def plain(column: pa.Array) -> pa.Array:
    """The same values with plain strings, binaries and lists at every depth; the column itself where it has them."""
    target = plain_type(column.type)
    return column if target == column.type else pc.cast(column, target)


def valid_runs(column: pa.Array) -> list[tuple[int, int]]:
    """The runs of values that are not null, as (start, stop): for columns with few of them. Arrow's compute functions
    cost a cold process more than reading them."""
    if not column.null_count:
        return [(0, len(column))] if len(column) else []
    if pt.is_null(column.type):
        return []
    edges = np.diff(valid_mask(column).astype(np.int8), prepend=0, append=0)
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def int64_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """An int64 column as numbers, 0 for nulls."""
    return np.concatenate([np.zeros(0, np.int64), *map(longs_to_numpy, column.chunks)])


def plain_type(t: pa.DataType) -> pa.DataType:
    """A type without dictionaries, views and 64-bit offsets."""
    if pt.is_dictionary(t) or pt.is_run_end_encoded(t):
        return plain_type(t.value_type)
    if pt.is_large_string(t) or pt.is_string_view(t):
        return pa.string()
    if pt.is_large_binary(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t):
        return pa.binary()
    if pt.is_map(t):
        return pa.map_(t.key_field.with_type(plain_type(t.key_type)), t.item_field.with_type(plain_type(t.item_type)))
    if pt.is_list(t) or pt.is_large_list(t) or pt.is_list_view(t) or pt.is_large_list_view(t):
        return pa.list_(t.value_field.with_type(plain_type(t.value_type)))
    if pt.is_struct(t):
        return pa.struct([field.with_type(plain_type(field.type)) for field in t])
    return t


def children_of(array: pa.Array) -> list[pa.Array]:
    """The fields of a struct, the elements of a list, or the keys and values of a map, as `with_children` takes them;
    none of any other array."""
    if pt.is_struct(array.type):
        return [array.field(index) for index in range(array.type.num_fields)]
    if pt.is_map(array.type):
        return [array.keys, array.items]
    return [array.values] if pt.is_list(array.type) or pt.is_large_list(array.type) else []


def with_children(array: pa.Array, children: Sequence[pa.Array], target: pa.DataType) -> pa.Array:
    """A struct, list or map with other children, as a type that has theirs. Its nulls and lengths stay."""
    mask = pc.is_null(array) if array.null_count else None
    if pt.is_struct(target):
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    offsets = array.offsets
    if mask is not None and offsets.offset:
        # `from_arrays` takes no mask beside offsets that are a slice of a larger buffer.
        offsets = pa.concat_arrays([offsets.slice(0, 1), offsets.slice(1)])
    kind = pa.MapArray if pt.is_map(target) else pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
    return kind.from_arrays(offsets, *children, type=target, mask=mask)


def map_entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The row, the key and the value of each entry."""
    # Slices keep the keys and items of their parent: the offsets decide which are ours.
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys, items = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    return pc.list_parent_indices(pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), keys)), keys, items


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, copied only where it is in several pieces."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 0:
        # `combine_chunks` would import pandas for it.
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def literal_array(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """Values and nulls in the Arrow type of `data_type`, which is not nested.

    Raises:
        TypeError, ValueError, AttributeError, OverflowError, pa.ArrowInvalid: A value does not have that type.
    """

    data_type = as_stored(data_type)
    arrow_type = type_to_arrow(data_type)
    if data_type == STRING:
        return string_array(values)
    if data_type == BOOLEAN:
        return bool_array(values)
    if data_type == BINARY:
        return _byte_strings(values, [b"" if v is None else bytes(v) for v in values], arrow_type, "i")
    if isinstance(data_type, DecimalType):
        return pc.cast(string_array(None if v is None else f"{Decimal(v):f}" for v in values), arrow_type)
    if data_type == DATE:
        from delta_orch.protocol.epoch import days_since_epoch

        values = [None if v is None else days_since_epoch(v) for v in values]
    elif data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        from delta_orch.protocol.epoch import micros_since_epoch

        values = [None if v is None else micros_since_epoch(v) for v in values]
    return _numbers(values, arrow_type, _CODES[data_type])


def literal_scalar(value: Any, data_type: DataType) -> pa.Scalar:
    """One value, or null. Raises as `literal_array`."""
    return literal_array([value], data_type)[0]


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As `to_pylist`. Days and times outside the years 1 to 9999, at any depth, are `FarDate` and `FarMoment`."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        from delta_orch.protocol.epoch import date_of, moment_of

        kind = column.type
    if pt.is_date32(kind):
        return [None if days is None else date_of(days) for days in pc.cast(column, pa.int32()).to_pylist()]
    if pt.is_timestamp(kind):
        micros = pc.cast(pc.cast(column, pa.timestamp("us", kind.tz), safe=False), pa.int64()).to_pylist()
        return [None if value is None else moment_of(value, utc=kind.tz is not None) for value in micros]
    return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    if pt.is_date32(kind) or pt.is_timestamp(kind):
        return python_values(pa.array([value], kind))[0]
    if pt.is_struct(kind):
        return {name: _python_value(part) for name, part in value.items()}
    if pt.is_map(kind):
        return list(zip(*map(python_values, value.values.flatten()), strict=True))
    return python_values(value.values) if pt.is_nested(kind) else value.as_py()


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows by the names of their columns, with values as of `python_values`."""
    try:
        return list(rows.to_pylist())
    except (OverflowError, ValueError):
        columns = map(python_values, rows.columns)
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _numbers(values: Sequence[Any], arrow_type: pa.DataType, code: str) -> pa.Array:
    data = array(code, [0 if v is None else v for v in values] if None in values else values)
    return pa.Array.from_buffers(arrow_type, len(values), [validity_bitmap(values), pa.py_buffer(data)])


def _byte_strings(values: Sequence[object], data: Sequence[bytes], arrow_type: pa.DataType, code: str) -> pa.Array:
    """Strings of these bytes, null where the value is None."""
    buffers = [validity_bitmap(values), _offsets(map(len, data), code), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(arrow_type, len(values), buffers)


# Delta's types ↔ Arrow's.
#
# `timestamp` is `timestamp[us, UTC]`, `timestamp_ntz` is `timestamp[us]`; Arrow types that Delta has no name for map to
# the narrowest Delta type that holds all their values, or are refused. So are invalid Arrow values.


VARIANT_STORAGE = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

_EXTENSION_NAME = b"ARROW:extension:name"
# Arrow 21 to 23 had the second one.
_VARIANT_EXTENSIONS = ("arrow.parquet.variant", "parquet.variant")

_TO_ARROW: dict[DataType, pa.DataType] = {
    STRING: pa.string(),
    LONG: pa.int64(),
    INTEGER: pa.int32(),
    SHORT: pa.int16(),
    BYTE: pa.int8(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    BOOLEAN: pa.bool_(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
    VOID: pa.null(),
    VARIANT: VARIANT_STORAGE,
}


def type_to_arrow(data_type: DataType) -> pa.DataType:
    """The Arrow type for values of a Delta type. A variant is a struct of `metadata` and `value`."""
    match data_type:
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType(element_type, contains_null):
            return pa.list_(pa.field("element", type_to_arrow(element_type), nullable=contains_null))
        case MapType(key_type, value_type, value_contains_null):
            if key_type == VOID:
                # Spark has such a type, for `map()`. Arrow has no such type.
                raise UnsupportedError("Rows have a map whose keys have no type", remedy="Cast the map to a type")
            return pa.map_(
                pa.field("key", type_to_arrow(key_type), nullable=False),
                pa.field("value", type_to_arrow(value_type), nullable=value_contains_null),
            )
        case StructType(fields):
            return pa.struct([field_to_arrow(f) for f in fields])
        case _:
            return _TO_ARROW[as_stored(data_type)]


def field_to_arrow(field: StructField) -> pa.Field:
    # Arrow's null type must be nullable; a void column never holds anything else.
    return pa.field(field.name, type_to_arrow(field.data_type), nullable=field.nullable or field.data_type == VOID)


@lru_cache(maxsize=256)
def schema_to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema of a table; column metadata of the log is not carried over."""
    return pa.schema([field_to_arrow(f) for f in schema])


def schema_from_arrow(schema: pa.Schema) -> StructType:
    """The Delta schema that holds every value of an Arrow schema.

    Unsigned integers become the next wider signed type, those of 64 bits long; larger values are refused when they are
    written. Nanoseconds become microseconds only at write time and only where nothing is lost; a timestamp with any
    time zone is an instant and becomes `timestamp`. A struct of `metadata` and `value` is a variant if its extension
    type says so, `arrow.parquet.variant`.

    Raises:
        SchemaMismatchError: A column's type has no counterpart (interval, time of day, wide decimal, union), or
            a variant is shredded. A type is nested too deeply.

    Returns: Definitions in the metadata of fields are carried along as `STATED_DEFINITIONS`.
    """
    try:
        return StructType(tuple(_field_from_arrow(f, f.name) for f in schema))
    except RecursionError:
        raise SchemaMismatchError(
            "A column's type is nested too deeply",
            cause="Structs, lists and maps stand in each other at hundreds of levels",
            remedy="Store such values as JSON text, or as a variant",
        ) from None


def _field_from_arrow(field: pa.Field, path: str) -> StructField:
    stated = _definitions(field) if field.metadata or field.type.num_fields else {}
    return StructField(
        field.name, _field_type(field, path), field.nullable, {STATED_DEFINITIONS: stated} if stated else {}
    )


def _definitions(field: pa.Field) -> dict[str, str]:
    """Those that its metadata states. In Delta elements, keys and values have none of their own."""
    if field.metadata is None and not field.type.num_fields:
        return {}
    metadata = {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in (field.metadata or {}).items()
    }
    kind, stated = field.type, definitions_in(metadata, (CHAR_VARCHAR_TYPE, COLLATIONS))
    if pa.types.is_map(kind):
        return stated | _definitions(kind.key_field) | _definitions(kind.item_field)
    return stated | _definitions(kind.value_field) if hasattr(kind, "value_field") else stated


def _field_type(field: pa.Field, path: str) -> DataType:
    """Extensions that are not registered with Arrow are recognized only by the field's metadata."""
    is_known = isinstance(field.type, pa.BaseExtensionType)
    name = field.type.extension_name if is_known else (field.metadata or {}).get(_EXTENSION_NAME, b"").decode()
    if name not in _VARIANT_EXTENSIONS:
        return _type_from_arrow(field.type, path)
    storage = _type_from_arrow(field.type.storage_type if is_known else field.type, path)
    if not is_variant_storage(storage):
        raise SchemaMismatchError(
            f"The variant column {path} does not consist of metadata and value alone",
            cause=f"It is stored as {storage}",
            remedy="Reconstruct shredded variants before writing",
            column=path,
        )
    return VARIANT


_PLAIN_EXTENSIONS = ("arrow.json", "arrow.uuid", "geoarrow.wkb")
"""Extension types whose storage says it all: text, sixteen bytes, and WKB, whose system the table knows."""


def _type_from_arrow(t: pa.DataType, path: str) -> DataType:
    types = pa.types
    if types.is_dictionary(t):
        return _type_from_arrow(t.value_type, path)
    if types.is_run_end_encoded(t):
        return _type_from_arrow(t.value_type, path)
    if isinstance(t, pa.BaseExtensionType) and t.extension_name in _PLAIN_EXTENSIONS:
        return _type_from_arrow(t.storage_type, path)
    if isinstance(t, pa.BaseExtensionType) and t.extension_name == "arrow.bool8":
        return BOOLEAN
    if (simple := _SIMPLE_TYPES.get(t.id)) is not None:
        return simple
    if types.is_timestamp(t):
        return TIMESTAMP_NTZ if t.tz is None else TIMESTAMP
    if types.is_decimal(t) and t.precision <= 38 and 0 <= t.scale <= t.precision:
        return DecimalType(t.precision, t.scale)
    if types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t) or _is_list_view(t):
        return ArrayType(_field_type(t.value_field, f"{path}.element"), t.value_field.nullable)
    if types.is_map(t):
        return MapType(
            _field_type(t.key_field, f"{path}.key"),
            _field_type(t.item_field, f"{path}.value"),
            t.item_field.nullable,
        )
    if types.is_struct(t):
        return StructType(tuple(_field_from_arrow(f, f"{path}.{f.name}") for f in t))
    raise SchemaMismatchError(
        f"Column {path} has the Arrow type {t}, which Delta has no type for",
        remedy="Cast the column before writing, for example to a string, a long or a timestamp",
        column=path,
    )


_SIMPLE_TYPES: Mapping[int, DataType] = {
    number: data_type
    for data_type, kinds in (
        (STRING, (pa.string(), pa.large_string(), pa.string_view())),
        (LONG, (pa.int64(), pa.uint32(), pa.uint64())),
        (INTEGER, (pa.int32(), pa.uint16())),
        (DOUBLE, (pa.float64(),)),
        (BOOLEAN, (pa.bool_(),)),
        (DATE, (pa.date32(), pa.date64())),
        (SHORT, (pa.int16(), pa.uint8())),
        (BYTE, (pa.int8(),)),
        (FLOAT, (pa.float32(), pa.float16())),
        (BINARY, (pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view())),
        (VOID, (pa.null(),)),
    )
    for number in [kind.id for kind in kinds]
}
"""By the number that Arrow has for a type, whatever its width or zone."""


def _is_list_view(t: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(t) or pa.types.is_large_list_view(t))


def ensure_sound(rows: pa.RecordBatch | pa.Table) -> None:
    """Check that strings are UTF-8 and decimals have no more digits than their type: Arrow takes both as they are.
    Of the other types every bit pattern is a value.

    Raises:
        SchemaMismatchError: There is such a value.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _may_be_unsound(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as e:
                raise SchemaMismatchError(
                    f"Column {name} has a value that is not a valid {column.type}: {e}",
                    remedy="Find out what has made these bytes; text of another encoding must be decoded as such",
                    column=name,
                ) from e


def _may_be_unsound(data_type: pa.DataType) -> bool:
    types = pa.types
    if isinstance(data_type, pa.ExtensionType):
        return _may_be_unsound(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return True  # an index may be of no value
    if types.is_nested(data_type):
        return any(_may_be_unsound(data_type.field(index).type) for index in range(data_type.num_fields))
    is_text = types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    return bool(is_text or types.is_decimal(data_type))
