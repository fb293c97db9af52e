"""Types of Spark SQL as DuckDB computes with them: what two operands widen to, and which casts mean the same in both.

Casts are those of ANSI: a value that does not fit raises while the query runs. A cast from text accepts only forms that
Spark and DuckDB read alike. Other text raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from delta_orch.engines.local.duckdb_columns import type_name
from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.constants import type_of
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS, natural_type
from delta_orch.expressions.to_sql import duckdb_literal, duckdb_type, quote_duckdb_identifier, quote_duckdb_string
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.type_text import parse_columns
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
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    traits_of,
    types_of,
)

_DIGITS: dict[DataType, int] = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 20}
MOMENTS = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
_EXACT_DOUBLE_DIGITS = 15
_EXACT_FLOAT_DIGITS = 7
"""DuckDB reads a float by way of a double. Digits and a power of ten that floats represent are not rounded twice."""
# Characters that Spark trims before it parses text: blanks and ISO control characters of ASCII.
_BLANK = r"[\x{00}-\x{20}\x{7f}]*"
_FRACTION = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_DAY = r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})%s)?)?"
_TIME = r"(?:[ T]([01]?[0-9]|2[0-3]):([0-5]?[0-9])(?::([0-5]?[0-9](?:\.[0-9]{0,6})?)[0-9]{0,3})?)?"
_ZONE = r"(?:Z|UTC|([+-])(0[0-9]|1[0-7]):([0-5][0-9]))?"
_MOST_SHOWN = 40
"""Characters of a text that an error shows."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A scalar in DuckDB's SQL.

    Attributes:
        data_type: The type that Spark gives it.
        literal: The constant that it is, or None.
        char_width: The `n` of a column that is declared `char(n)`, or None.
        is_column: It is a column, or a field of one.
    """

    sql: str
    data_type: DataType
    literal: Literal | None = None
    char_width: int | None = None
    is_column: bool = False


def unsupported(what: str) -> UnsupportedExpressionError:
    """The error for a construct that is not proven to mean the same in DuckDB as in Spark."""
    return UnsupportedExpressionError(
        f"The local engine does not run {what}",
        cause="It runs only what is proven to mean the same in DuckDB as in Spark",
        remedy='Use the Spark engine (engine="spark")',
        construct=what,
    )


def is_atomic(data_type: DataType) -> bool:
    return data_type == VOID or traits_of(data_type).is_atomic


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
    """Whether a part of a type is `void`, the type of nulls, as in `array()`. Such a value must be cast."""
    return VOID in types_of(data_type)


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
        return replace(value, is_column=True)


def qualified(alias: str, name: str) -> str:
    """A column with the relation's alias before it."""
    return f"{quote_duckdb_identifier(alias)}.{quote_duckdb_identifier(name)}"


def struct_field(value: Typed, name: str) -> Typed:
    """A field of a struct, by name without regard to case.

    Raises:
        InvalidExpressionError: There is no such field.
        UnsupportedExpressionError: The value is an array of structs or a map, which have fields in Spark alone.
    """
    match value.data_type:
        case ArrayType(StructType()) | MapType():
            raise unsupported(f"a field of {value.data_type}")
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


# Casts


def error(problem: str) -> str:
    """An expression that raises for each row. It has any type."""
    return f"error({quote_duckdb_string(problem)})"


def widen(value: Typed, target: DataType) -> Typed:
    """A cast as Spark inserts it between operands. Raises UnsupportedExpressionError."""
    source = value.data_type
    if source == target:
        return value
    if source != VOID and holds_void(source):
        return Typed(_cast_inside(value, target, 0), target)
    if not is_atomic(target):
        # Types that differ only in nullability have the same text.
        sql = value.sql if str(source) == str(target) or source == VOID else f"CAST({value.sql} AS {type_name(target)})"
        return Typed(sql, target)
    if source == VOID:
        return Typed(null_of(target), target)
    if source == STRING:
        return cast(value, target)
    if isinstance(source, DecimalType) and target == DOUBLE and source.precision > _EXACT_DOUBLE_DIGITS:
        # DuckDB divides the digits by a power of ten, which is exact only while both are.
        return Typed(f"CAST(CAST({value.sql} AS VARCHAR) AS DOUBLE)", DOUBLE)
    if target == DOUBLE and value.literal is not None and value.literal.value is not None and is_number(source):
        number = float(value.literal.value)
        return Typed(duckdb_literal(number, DOUBLE), DOUBLE, Literal(number, DOUBLE))
    literal = value.literal if source in INTEGRAL_RANGES and target in INTEGRAL_RANGES else None
    return Typed(f"CAST({value.sql} AS {duckdb_type(target)})", target, literal and Literal(literal.value, target))


def null_of(data_type: DataType) -> str:
    """A null of a type."""
    return f"CAST(NULL AS {duckdb_type(data_type)})" if is_atomic(data_type) and data_type != VOID else "NULL"


def finite(value: Typed) -> Typed:
    """A date or a moment. The first and the last value of its type raise, because DuckDB reads them as infinities."""
    # A cast that fails, because keys of windows do not take `error()`.
    text = f"'an end of its type, which only the Spark engine takes: ' || {value.sql}"
    problem = f"CAST({text} AS {duckdb_type(value.data_type)})"
    return replace(value, sql=f"CASE WHEN isinf({value.sql}) THEN {problem} ELSE {value.sql} END")


def cast(value: Typed, target: DataType) -> Typed:
    """An explicit CAST. Raises UnsupportedExpressionError for one whose result or whose failures differ in DuckDB."""
    source = value.data_type
    if source == traits_of(target).stored:
        return Typed(value.sql, target)
    if source in (target, VOID):
        return replace(widen(value, target), char_width=None)
    if not (is_atomic(source) or is_atomic(target)):
        return Typed(_cast_inside(value, target, 0), target)
    if source == STRING and is_atomic(target):
        return _from_text(value, target)
    if source in MOMENTS and target != STRING and value.literal is None:
        value = finite(value)
    sql = value.sql
    to = duckdb_type(target) if is_atomic(target) else ""
    plain = f"CAST({sql} AS {to})"
    match _kind(source), _kind(target):
        case (
            ("integer", "integer" | "floating" | "decimal" | "text" | "boolean")
            | ("boolean", "integer" | "text")
            | ("moment", "moment")
            | ("decimal", "decimal")
        ):
            return Typed(plain, target)
        case "floating" | "decimal", "integer":
            return Typed(f"CAST(trunc({sql}) AS {to})", target)  # DuckDB would round
        case "floating", "floating" if target == DOUBLE:
            return Typed(plain, target)
        case "floating", "floating":
            # Numbers beyond the range of floats become infinite; DuckDB would raise.
            limit = f"abs({sql}) >= 3.4028235677973366e38::DOUBLE AND NOT isnan({sql})"
            return Typed(f"CASE WHEN {limit} THEN CAST(if({sql} > 0, 'inf', '-inf') AS FLOAT) ELSE {plain} END", FLOAT)
        case "floating", "decimal":
            # Spark returns null for NaN and for infinities.
            number = widen(value, DOUBLE).sql
            return Typed(f"CASE WHEN isfinite({number}) THEN CAST(CAST({number} AS VARCHAR) AS {to}) END", target)
        case "decimal", "floating" if target == DOUBLE:
            return widen(value, target)
        case "decimal", "floating" if isinstance(source, DecimalType) and source.precision <= _EXACT_FLOAT_DIGITS:
            return Typed(f"CAST(CAST({sql} AS VARCHAR) AS FLOAT)", FLOAT)
        case "decimal", "text":
            # DuckDB leaves out a zero before the point where the type has no digit there.
            zero = r", '^(-?)\.', '\1" + "0.')"
            has_digit = isinstance(source, DecimalType) and source.precision > source.scale
            return Typed(plain if has_digit else f"regexp_replace({plain}{zero}", STRING)
        case "moment", "text":
            moment = sql if source == DATE else f"CAST({sql} AS TIMESTAMP)"
            return Typed(in_years(sql, moment, f"CAST({moment} AS VARCHAR)"), STRING)
        case "binary", "text":
            return Typed(f"decode({sql})", STRING)
    raise unsupported(f"CAST from {source} to {target}")


def _kind(data_type: DataType) -> str:
    """The kind of a type, by which casts are chosen."""
    if isinstance(data_type, DecimalType):
        return "decimal"
    kinds = {**dict.fromkeys(INTEGRAL_RANGES, "integer"), FLOAT: "floating", DOUBLE: "floating", STRING: "text"}
    return "moment" if data_type in MOMENTS else kinds.get(data_type, str(data_type))


def _cast_inside(value: Typed, target: DataType, depth: int) -> str:
    """A CAST between types of one shape: of every element, key and value, and of every field by its place."""
    sql, item = value.sql, f"item{depth}"

    def part(place: str, source: DataType, to: DataType) -> str:
        inner = Typed(place, source)
        if source == VOID and not is_atomic(to):
            return f"CAST(NULL AS {type_name(to)})"
        is_nested = source != to and not (is_atomic(source) or is_atomic(to))
        return _cast_inside(inner, to, depth + 1) if is_nested else cast(inner, to).sql

    match value.data_type, target:
        case ArrayType(source), ArrayType(to):
            return f"list_transform({sql}, lambda {item}: {part(item, source, to)})"
        case MapType(key, value_type), MapType(to_key, to):
            entry = f"key := {part(f'{item}.key', key, to_key)}, value := {part(f'{item}.value', value_type, to)}"
            return f"map_from_entries(list_transform(map_entries({sql}), lambda {item}: struct_pack({entry})))"
        case StructType(fields), StructType(others) if len(fields) == len(others):
            places = (f"struct_extract({sql}, {quote_duckdb_string(field.name)})" for field in fields)
            packed = ", ".join(
                f"{quote_duckdb_identifier(other.name)} := {part(place, field.data_type, other.data_type)}"
                for place, field, other in zip(places, fields, others, strict=True)
            )
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({packed}) END"
    raise unsupported(f"CAST from {value.data_type} to {target}")


def in_years(value: str, year: str, text: str) -> str:
    """The text of a date whose year has four digits. Other years raise."""
    problem = error("text of a date outside the years 1 to 9999, for which the local engine is not proven equal")
    return f"CASE WHEN {value} IS NULL THEN NULL WHEN year({year}) BETWEEN 1 AND 9999 THEN {text} ELSE {problem} END"


def _from_text(value: Typed, target: DataType) -> Typed:
    """Text as a value. Each type has a pattern that text must match, and SQL over its groups. Other text raises."""
    text = value.sql
    if target == BINARY:
        return Typed(f"encode({text})", BINARY)
    if target in INTEGRAL_RANGES:
        pattern, result = "([+-]?[0-9]+)", f"CAST({{1}} AS {duckdb_type(target)})"
    elif target in (FLOAT, DOUBLE):
        pattern, result = rf"({_FRACTION}(?:[eE][+-]?[0-9]+)?)[dDfF]?", f"CAST({{1}} AS {duckdb_type(target)})"
    elif isinstance(target, DecimalType):
        pattern, result = f"({_FRACTION})", f"CAST({{1}} AS {duckdb_type(target)})"
    elif target == BOOLEAN:
        truth = "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in word) for word in _WORDS)
        pattern, result = f"({truth})", "lower({1}) IN ('t', 'true', 'y', 'yes', '1')"
    elif target == DATE:
        pattern, result = _DAY % "(?:[ T].*)?", f"CAST({_YMD}) AS DATE)"
    elif target in (TIMESTAMP, TIMESTAMP_NTZ):
        pattern = _DAY % _TIME + (_ZONE if target == TIMESTAMP else "")
        clock = ", ' ', " + ", ':', ".join(_or(group, "0") for group in (4, 5, 6)) + ")"
        result = f"CAST({_YMD}{clock} AS TIMESTAMP)"
        if target == TIMESTAMP:
            minutes = f"({_number_or(8, 0)} * 60 + {_number_or(9, 0)}) * CASE {{7}} WHEN '-' THEN 1 ELSE -1 END"
            result = f"CAST({result} + to_minutes({minutes}) AS TIMESTAMPTZ)"
    else:
        raise unsupported(f"CAST from string to {target}")
    return Typed(_matched(text, pattern, result, target), target)


_WORDS = ("t", "true", "y", "yes", "1", "f", "false", "n", "no", "0")


def _or(group: int, default: str) -> str:
    return f"coalesce(nullif({{{group}}}, ''), '{default}')"


def _number_or(group: int, default: int) -> str:
    return f"CAST({_or(group, str(default))} AS INTEGER)"


_YMD = "concat({1}, '-', " + ", '-', ".join(_or(group, "1") for group in (2, 3))


def _matched(text: str, pattern: str, result: str, target: DataType) -> str:
    whole = quote_duckdb_string(f"(?s){_BLANK}{pattern}{_BLANK}")
    groups = [
        f"regexp_extract({text}, {quote_duckdb_string(f'(?s)^{_BLANK}{pattern}{_BLANK}$')}, {i})" for i in range(10)
    ]
    kind = quote_duckdb_string(f"' is not a valid {target}, or has a form that only the Spark engine reads")
    problem = f"error('[CAST_INVALID_INPUT] The text ''' || left({text}, {_MOST_SHOWN}) || {kind})"
    valid = f"regexp_full_match({text}, {whole})"
    if target in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        valid += f" AND {groups[1]} <> '0000'"
    return f"CASE WHEN {text} IS NULL THEN NULL WHEN {valid} THEN {result.format(*groups)} ELSE {problem} END"


def as_boolean(value: Typed, text: Callable[[], str], *, is_cast: bool = True) -> str:
    """A predicate. `is_cast`: Spark reads a bare NULL as a boolean here."""
    if value.data_type != BOOLEAN and not (is_cast and value.data_type == VOID):
        raise InvalidExpressionError(
            f"{text()!r} is not a predicate", cause=f"Its type is {value.data_type}, not boolean"
        )
    return widen(value, BOOLEAN).sql


def as_text(value: Typed) -> str:
    """A string operand, cast to text where Spark does so. Raises UnsupportedExpressionError."""
    return cast(value, STRING).sql


def literal_value(literal: Literal) -> Typed:
    if literal.value is None:
        kind = VOID if literal.data_type is None else literal.data_type
        return Typed(null_of(kind), kind, literal)
    kind = literal.data_type if literal.data_type is not None else natural_type(literal.value)
    return Typed(duckdb_literal(literal.value, kind), kind, literal)


def choose(conditions: Sequence[str], results: Sequence[Typed], default: Typed) -> Typed:
    kind = common_type_of([value.data_type for value in (*results, default)])
    branches = " ".join(
        f"WHEN {condition} THEN {widen(value, kind).sql}" for condition, value in zip(conditions, results, strict=True)
    )
    return Typed(f"CASE {branches} ELSE {widen(default, kind).sql} END", kind)


def cast_target(name: str) -> DataType:
    """The type that CAST names. Raises UnsupportedExpressionError: A column cannot have that type."""
    is_nested = "<" in name and not re.search(r"\bCHAR|\bVARCHAR|\bINTERVAL|\bVARIANT", name)
    target = parse_columns(f"c {name}").fields[0].data_type if is_nested else type_of(name)
    if target is None:
        raise unsupported(f"CAST to {name[:100]}")
    return target


_SIGNED_DIGITS = 34


def sign_changed(value: Typed) -> str:
    """A number whose sign may change. Spark rounds decimals to 34 digits then, so that those with more digits raise."""
    kind = value.data_type
    if not isinstance(kind, DecimalType) or kind.precision <= _SIGNED_DIGITS:
        return value.sql
    limit = f"CAST('1e{_SIGNED_DIGITS - kind.scale}' AS {duckdb_type(kind)})"
    problem = error(f"a decimal of more than {_SIGNED_DIGITS} digits, which Spark rounds where it changes the sign")
    return f"CASE WHEN {value.sql} >= {limit} OR {value.sql} <= -{limit} THEN {problem} ELSE {value.sql} END"
