"""Delta's types ↔ Arrow's.

`timestamp` is `timestamp[us, UTC]`, `timestamp_ntz` is `timestamp[us]`; Arrow types that Delta has no name for map to
the narrowest Delta type that holds all their values, or are refused. So are Arrow values that are none of their type.
"""

from __future__ import annotations

import pyarrow as pa

from delta_orch.errors import SchemaMismatchError, UnsupportedError
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
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
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    is_variant_storage,
)

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
    """The Arrow type in which values of a Delta type travel. A variant is a struct of `metadata` and `value`."""
    match data_type:
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType(element_type, contains_null):
            return pa.list_(pa.field("element", type_to_arrow(element_type), nullable=contains_null))
        case MapType(key_type, value_type, value_contains_null):
            if key_type == VOID:
                # Spark has such a type, for `map()`. Arrow has none.
                raise UnsupportedError("Rows have a map whose keys have no type", remedy="Cast the map to a type")
            return pa.map_(
                pa.field("key", type_to_arrow(key_type), nullable=False),
                pa.field("value", type_to_arrow(value_type), nullable=value_contains_null),
            )
        case StructType(fields):
            return pa.struct([field_to_arrow(f) for f in fields])
        case _:
            return _TO_ARROW[data_type]


def field_to_arrow(field: StructField) -> pa.Field:
    # Arrow's null type must be nullable; a void column never holds anything else.
    return pa.field(field.name, type_to_arrow(field.data_type), nullable=field.nullable or field.data_type == VOID)


def schema_to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema of a table; column metadata of the log is not carried over."""
    return pa.schema([field_to_arrow(f) for f in schema])


def schema_from_arrow(schema: pa.Schema) -> StructType:
    """The Delta schema that holds every value of an Arrow schema.

    Unsigned integers become the next wider signed type, those of 64 bits long; larger values are refused when they are
    written. Nanoseconds become microseconds only at write time and only
    where nothing is lost; a timestamp with any time zone is an instant and becomes `timestamp`. A struct of `metadata`
    and `value` is a variant where its extension type says so, `arrow.parquet.variant`.

    Raises:
        SchemaMismatchError: A column's type has no counterpart (interval, time of day, wide decimal, union), or
            a variant is shredded.
    """
    return StructType(tuple(_field_from_arrow(f, f.name) for f in schema))


def _field_from_arrow(field: pa.Field, path: str) -> StructField:
    return StructField(field.name, _field_type(field, path), field.nullable)


def _field_type(field: pa.Field, path: str) -> DataType:
    """Extensions that are not registered with Arrow are known by the field's metadata alone."""
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


_PLAIN_EXTENSIONS = ("arrow.json", "arrow.uuid")
"""Extension types whose storage says it all: text, and sixteen bytes."""


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
    if simple := _simple_type_from_arrow(t):
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


def _simple_type_from_arrow(t: pa.DataType) -> DataType | None:
    types = pa.types
    for data_type, tests in (
        (STRING, (types.is_string, types.is_large_string, types.is_string_view)),
        (LONG, (types.is_int64, types.is_uint32, types.is_uint64)),
        (INTEGER, (types.is_int32, types.is_uint16)),
        (DOUBLE, (types.is_float64,)),
        (BOOLEAN, (types.is_boolean,)),
        (DATE, (types.is_date32, types.is_date64)),
        (SHORT, (types.is_int16, types.is_uint8)),
        (BYTE, (types.is_int8,)),
        (FLOAT, (types.is_float32, types.is_float16)),
        (BINARY, (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)),
        (VOID, (types.is_null,)),
    ):
        if any(test(t) for test in tests):
            return data_type
    return None


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
        return _may_be_unsound(data_type.value_type)
    if types.is_nested(data_type):
        return any(_may_be_unsound(data_type.field(index).type) for index in range(data_type.num_fields))
    is_text = types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    return bool(is_text or types.is_decimal(data_type))
