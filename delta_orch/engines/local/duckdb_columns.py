"""How a table's column comes out of a data file in DuckDB's SQL, with the values that Arrow's reader gives.

Columns that DuckDB may read differently have no SQL, and Arrow reads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from delta_orch.engines.file_lookup import Candidates, find_in_file
from delta_orch.expressions.to_sql import duckdb_type, quote_duckdb_identifier, quote_duckdb_string
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
    GeoType,
    MapType,
    StructField,
    StructType,
    as_stored,
)
from delta_orch.table.column_mapping import ColumnMappingMode

_INTEGER_DIGITS = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 20}
_WIDER: dict[DataType, tuple[DataType, ...]] = {
    BYTE: (SHORT, INTEGER, LONG, DOUBLE),
    SHORT: (INTEGER, LONG, DOUBLE),
    INTEGER: (LONG, DOUBLE),
    FLOAT: (DOUBLE,),
    DATE: (TIMESTAMP_NTZ,),
}
_SAME = (
    (pa.types.is_boolean, BOOLEAN), (pa.types.is_int8, BYTE), (pa.types.is_int16, SHORT), (pa.types.is_int32, INTEGER),
    (pa.types.is_int64, LONG), (pa.types.is_float32, FLOAT), (pa.types.is_float64, DOUBLE),
    (pa.types.is_string, STRING), (pa.types.is_large_string, STRING), (pa.types.is_binary, BINARY),
    (pa.types.is_large_binary, BINARY), (pa.types.is_date32, DATE),
)  # fmt: skip

Path = tuple[str, ...]
_TextOf = Callable[[str], str]


class NotNativeError(Exception):
    """DuckDB is not known to read this as Arrow does. Never leaves the engine."""


@dataclass(slots=True)
class ColumnWriter:
    """Writes the expressions of one kind of file.

    Attributes:
        mode: How the file knows the table's columns.
        nanos_are_int96: What Arrow shows in nanoseconds is INT96, which DuckDB reads in microseconds, rounded down.
        never_null: Structs without null rows, by their names in the file. Their fields can be read one by one.
        rebuilt: Filled with the structs whose fields have other names in the file.
    """

    mode: ColumnMappingMode
    nanos_are_int96: bool
    never_null: frozenset[Path] = frozenset()
    rebuilt: set[Path] = field(default_factory=set)

    def column(self, steps: Sequence[StructField], candidates: Sequence[pa.Field], prefix: str) -> str:
        """The SQL of a column among the columns of a file, which follow `prefix`.

        Args:
            steps: The column, or the structs on the way to a field and the field itself; null where one of them is.

        Raises:
            NotNativeError: DuckDB has no such type.
        """
        text, path = "", Path()
        for step in steps[:-1]:
            index = find_in_file(step, candidates, self.mode)
            if index is None:
                return f"CAST(NULL AS {type_name(steps[-1].data_type)})"
            field = candidates[index]
            _ensure(pa.types.is_struct(field.type))
            text, path = _member(text, prefix, field.name), (*path, field.name)
            candidates = Candidates(field.type)
            _ensure(_are_distinct(candidates))
        return self._child(steps[-1], candidates, lambda name: _member(text, prefix, name), path, 0)

    def _child(
        self,
        table_field: StructField,
        candidates: Sequence[pa.Field],
        text_of: _TextOf,
        parent: Path | None,
        depth: int,
    ) -> str:
        index = find_in_file(table_field, candidates, self.mode)
        if index is None:
            return f"CAST(NULL AS {type_name(table_field.data_type)})"
        field = candidates[index]
        path = None if parent is None else (*parent, field.name)
        return self._value(text_of(field.name), field.type, table_field.data_type, path, depth)

    def _value(self, text: str, source: pa.DataType, target: DataType, path: Path | None, depth: int) -> str:
        if pa.types.is_dictionary(source):
            source = source.value_type
        if pa.types.is_null(source):
            return f"CAST(NULL AS {type_name(target)})"
        match target:
            case StructType():
                return self._struct(text, source, target, path, depth)
            case ArrayType():
                return self._array(text, source, target, depth)
            case MapType():
                _ensure(pa.types.is_map(source))
                inner = [(source.key_type, target.key_type), (source.item_type, target.value_type)]
                _ensure(all(self._value("x", s, t, None, depth) == "x" for s, t in inner))
                return text
            case GeoType():
                raise NotNativeError
            case _:
                return self._scalar(text, source, as_stored(target))

    def _struct(self, text: str, source: pa.DataType, target: StructType, path: Path | None, depth: int) -> str:
        _ensure(pa.types.is_struct(source) and bool(target.fields))
        candidates = Candidates(source)
        _ensure(_are_distinct(candidates))

        def text_of(name: str) -> str:
            return _member(text, "", name)

        _ensure(_are_distinct(target.fields))
        children = [self._child(f, candidates, text_of, path, depth) for f in target]
        if children == [text_of(f.name) for f in target] and [f.name for f in candidates] == list(target.names):
            return text
        if path is not None:
            self.rebuilt.add(path)
        pairs = (f"{quote_duckdb_identifier(f.name)} := {child}" for f, child in zip(target, children, strict=True))
        built = f"struct_pack({', '.join(pairs)})"
        return built if path in self.never_null else f"CASE WHEN {text} IS NULL THEN NULL ELSE {built} END"

    def _array(self, text: str, source: pa.DataType, target: ArrayType, depth: int) -> str:
        _ensure(pa.types.is_list(source) or pa.types.is_large_list(source))
        element = f"x{depth}"
        made = self._value(element, source.value_type, target.element_type, None, depth + 1)
        return text if made == element else f"list_transform({text}, lambda {element}: {made})"

    def _scalar(self, text: str, source: pa.DataType, target: DataType) -> str:
        if target in (TIMESTAMP, TIMESTAMP_NTZ) and pa.types.is_timestamp(source):
            return self._timestamp(text, source, target)
        stored = _stored_type(source)
        if stored == target:
            return text
        _ensure(target in _WIDER.get(stored, ()) or (isinstance(target, DecimalType) and _fits(stored, target)))
        return f"CAST({text} AS {duckdb_type(target)})"

    def _timestamp(self, text: str, source: pa.TimestampType, target: DataType) -> str:
        has_zone = source.tz is not None
        if source.unit == "ns":
            _ensure(self.nanos_are_int96)
        else:
            _ensure(source.unit in ("us", "ms"))
            if has_zone is (target == TIMESTAMP):
                return text if source.unit == "us" else f"CAST({text} AS {duckdb_type(target)})"
        # The same ticks, whatever the session's time zone: zone-less values count as UTC.
        make = "make_timestamptz" if target == TIMESTAMP else "make_timestamp"
        return f"{make}(epoch_us({text}))"


def type_name(data_type: DataType) -> str:
    """DuckDB's name of a type.

    Raises:
        NotNativeError: DuckDB has no type with the same values.
    """
    match data_type:
        case ArrayType(element_type):
            return f"{type_name(element_type)}[]"
        case MapType(key_type, value_type):
            return f"MAP({type_name(key_type)}, {type_name(value_type)})"
        case StructType(fields):
            _ensure(bool(fields) and _are_distinct(fields))
            return f"STRUCT({', '.join(f'{quote_duckdb_identifier(f.name)} {type_name(f.data_type)}' for f in fields)})"
        case _:
            _ensure(data_type not in (VOID, VARIANT))
            return duckdb_type(data_type)


def _stored_type(source: pa.DataType) -> DataType:
    if pa.types.is_decimal(source) and source.precision <= 38:
        return DecimalType(source.precision, source.scale)
    for is_type, data_type in _SAME:
        if is_type(source):
            return data_type
    raise NotNativeError


def _fits(stored: DataType, target: DecimalType) -> bool:
    whole = target.precision - target.scale
    if isinstance(stored, DecimalType):
        return target.scale >= stored.scale and whole >= stored.precision - stored.scale
    return stored in _INTEGER_DIGITS and whole >= _INTEGER_DIGITS[stored]


def _are_distinct(fields: Sequence[pa.Field | StructField]) -> bool:
    # DuckDB knows names without regard to case.
    return len({f.name.lower() for f in fields}) == len(fields)


def _ensure(is_native: bool) -> None:
    if not is_native:
        raise NotNativeError


def _member(struct: str, prefix: str, name: str) -> str:
    """A field of a struct, or a column after `prefix` where `struct` is empty."""
    _ensure("\0" not in name)
    return (
        f"struct_extract({struct}, {quote_duckdb_string(name)})" if struct else prefix + quote_duckdb_identifier(name)
    )
