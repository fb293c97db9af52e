"""Columns and types in Spark SQL queries that DuckDB runs: what two sides widen to, and which casts mean the same in
both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import quote_duckdb_identifier, quote_duckdb_string
from delta_orch.protocol.schema import char_width
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
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    types_of,
)

_DIGITS: dict[DataType, int] = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 20}
MOMENTS = (DATE, TIMESTAMP_NTZ, TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Typed:
    """A scalar in DuckDB's SQL with the type Spark gives it; `literal` where it is a constant, `char_width` where it is
    a column declared `char(n)`."""

    sql: str
    data_type: DataType
    literal: Literal | None = None
    char_width: int | None = None


def unsupported(what: str) -> UnsupportedExpressionError:
    """The error for what is not proven to mean the same in DuckDB as in Spark."""
    return UnsupportedExpressionError(
        f"The local engine does not run {what}",
        cause="It runs only what is proven to mean the same in DuckDB as in Spark",
        remedy='Use the Spark engine (engine="spark")',
        construct=what,
    )


def is_atomic(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or (isinstance(data_type, PrimitiveType) and data_type.name != "variant")


def is_number(data_type: DataType) -> bool:
    return data_type in _DIGITS or data_type in (FLOAT, DOUBLE) or isinstance(data_type, DecimalType)


def common_type(left: DataType, right: DataType) -> DataType:
    """The common type to which Spark widens two operands. Raises UnsupportedExpressionError where there is no such
    type, or where it takes digits beyond 38."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if left in MOMENTS and right in MOMENTS:
        return max(left, right, key=MOMENTS.index)
    if STRING in (left, right) and is_atomic(left) and is_atomic(right):
        other = right if left == STRING else left
        return LONG if other in _DIGITS else DOUBLE if is_number(other) else other
    match left, right:
        case ArrayType(), ArrayType():
            return ArrayType(_common_part(left.element_type, right.element_type), True)
        case StructType(), StructType() if left.names == right.names:
            kinds = (_common_part(a.data_type, b.data_type) for a, b in zip(left, right, strict=True))
            return StructType(tuple(StructField(name, kind) for name, kind in zip(left.names, kinds, strict=True)))
    raise unsupported(f"an expression that mixes {left} and {right}")


def _common_part(left: DataType, right: DataType) -> DataType:
    """Inside arrays and structs, whose parts DuckDB casts: only integers become wider, and nulls anything."""
    is_cast = str(left) == str(right) or VOID in (left, right) or (left in _DIGITS and right in _DIGITS)
    if not is_cast and (is_atomic(left) or is_atomic(right)):
        raise unsupported(f"an expression that mixes {left} and {right} in arrays or structs")
    return common_type(left, right)


def holds_void(data_type: DataType) -> bool:
    """Whether a part of a type is that of nulls alone, as in `array()`: a value that is yet to be cast."""
    return VOID in types_of(data_type)


def has_equality(data_type: DataType) -> bool:
    """Whether values compare as in Spark: not maps and variants, nor what holds some."""
    match data_type:
        case ArrayType():
            return has_equality(data_type.element_type)
        case StructType():
            return all(has_equality(field.data_type) for field in data_type)
    return is_atomic(data_type)


def common_type_of(data_types: Sequence[DataType]) -> DataType:
    """`common_type` of several."""
    return reduce(common_type, data_types)


def _common_number(left: DataType, right: DataType) -> DataType:
    if left in _DIGITS and right in _DIGITS:
        return max(left, right, key=lambda kind: _DIGITS[kind])
    if left in (FLOAT, DOUBLE) or right in (FLOAT, DOUBLE):
        return DOUBLE
    a, b = as_decimal(left), as_decimal(right)
    scale = max(a.scale, b.scale)
    precision = max(a.precision - a.scale, b.precision - b.scale) + scale
    if precision > MAX_DECIMAL_DIGITS:
        raise unsupported(f"an expression that mixes {left} and {right}")
    return DecimalType(precision, scale)


def as_decimal(data_type: DataType) -> DecimalType:
    """The decimal that holds every value of an integral or decimal type."""
    return data_type if isinstance(data_type, DecimalType) else DecimalType(_DIGITS[data_type], 0)


@dataclass(frozen=True, slots=True)
class Source:
    """The columns of one relation that a query reads. `used` collects the top-level columns that are read."""

    alias: str
    schema: StructType
    used: set[str] = field(default_factory=set)

    def find(self, path: tuple[str, ...]) -> Typed:
        """See `Columns.find`."""
        spelled, _ = find_column(path, self.schema)
        top = self.schema.find(spelled[0])
        assert top is not None
        if top.data_type == VOID:
            return Typed("NULL", VOID)
        self.used.add(top.name)
        value = Typed(qualified(self.alias, top.name), top.data_type, char_width=char_width(top))
        for name in spelled[1:]:
            value = struct_field(value, name)
        return value


def qualified(alias: str, name: str) -> str:
    """A column of a relation."""
    return f"{quote_duckdb_identifier(alias)}.{quote_duckdb_identifier(name)}"


def struct_field(value: Typed, name: str) -> Typed:
    """A field of a struct, by name without regard to case; of the structs in an array, and the value of a map's key, as
    Spark has it. Raises InvalidExpressionError."""
    match value.data_type:
        case ArrayType(StructType() as inner):
            part = struct_field(Typed("one", inner), name)
            return Typed(f"list_transform({value.sql}, lambda one: {part.sql})", ArrayType(part.data_type, True))
        case MapType(key_type, value_type) if key_type == STRING:
            return Typed(f"{value.sql}[{quote_duckdb_string(name)}]", value_type)
    field = value.data_type.find(name) if isinstance(value.data_type, StructType) else None
    if field is None:
        is_struct = isinstance(value.data_type, StructType)
        cause = None if is_struct else "Only structs have fields"
        raise InvalidExpressionError(f"{value.data_type} has no field {name!r}", cause=cause, field=name)
    return Typed(f"struct_extract({value.sql}, {quote_duckdb_string(field.name)})", field.data_type)


def struct_of(fields: Sequence[tuple[str, Typed]]) -> Typed:
    packed = (f"{quote_duckdb_identifier(name)} := {value.sql}" for name, value in fields)
    schema = StructType(tuple(StructField(name, value.data_type) for name, value in fields))
    return Typed(f"struct_pack({', '.join(packed)})", schema)


def ensure_computable(left: Typed, right: Typed, what: str) -> None:
    """Raises UnsupportedExpressionError: One is of a type that nothing is computed with."""
    for value in (left, right):
        if value.data_type not in (STRING, VOID) and not is_number(value.data_type):
            raise unsupported(f"{what}: arithmetic on {value.data_type}")


def arithmetic_type(left: Typed, right: Typed, what: str) -> DataType:
    """The type in which Spark computes: text beside a number becomes a number, and nulls alone become doubles. Raises
    UnsupportedExpressionError."""
    ensure_computable(left, right, what)
    kind = common_type(left.data_type, right.data_type)
    kind = DOUBLE if kind == VOID else kind
    if not is_number(kind):
        raise unsupported(f"{what}: arithmetic on {kind}")
    return kind


def decimal_operand(value: Typed) -> DecimalType:
    """The decimal that stands for an operand beside a decimal: constants but bytes have just their own digits."""
    if value.literal is not None and type(value.literal.value) is int and value.data_type != BYTE:
        return DecimalType(len(str(abs(value.literal.value))), 0)
    return as_decimal(value.data_type)
