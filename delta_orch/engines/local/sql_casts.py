"""Casts of Spark SQL in DuckDB's SQL, under ANSI: a value that does not fit raises while the query runs.

A cast from text accepts only forms that Spark and DuckDB read alike. Other text raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from delta_orch.engines.local.duckdb_columns import type_name
from delta_orch.engines.local.sql_types import (
    MOMENTS,
    Typed,
    common_type_of,
    holds_void,
    is_atomic,
    is_number,
    unsupported,
)
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.constants import type_of
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, natural_type
from delta_orch.expressions.to_sql import duckdb_literal, duckdb_type, quote_duckdb_identifier, quote_duckdb_string
from delta_orch.protocol.type_text import parse_columns
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    GeoType,
    IntervalType,
    MapType,
    StructType,
    as_stored,
)

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


def error(problem: str) -> str:
    """An expression of any type that raises."""
    return f"error({quote_duckdb_string(problem)})"


def widen(value: Typed, target: DataType) -> Typed:
    """A cast as Spark inserts it between operands. Raises UnsupportedExpressionError."""
    source = value.data_type
    if source == target:
        return value
    if source != VOID and holds_void(source):
        return Typed(_cast_inside(value, target, 0), target)
    if not is_atomic(target):
        # Types that differ in what may be null are printed alike.
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
    """A date or a moment. DuckDB takes the ends of their types for infinities, which raise here."""
    # No `error()`, which keys of windows do not take: this is no text of a date.
    text = f"'an end of its type, which only the Spark engine takes: ' || {value.sql}"
    problem = f"CAST({text} AS {duckdb_type(value.data_type)})"
    return replace(value, sql=f"CASE WHEN isinf({value.sql}) THEN {problem} ELSE {value.sql} END")


def cast(value: Typed, target: DataType) -> Typed:
    """An explicit CAST. Raises UnsupportedExpressionError for one whose result or whose failures differ in DuckDB."""
    source = value.data_type
    if isinstance(target, IntervalType | GeoType) and source == as_stored(target):
        return Typed(value.sql, target)
    if source in (target, VOID):
        return replace(widen(value, target), char_width=None)
    if not (is_atomic(source) or is_atomic(target)):
        return Typed(_cast_inside(value, target, 0), target)
    if source == STRING and is_atomic(target):
        return _from_text(value, target)
    if (source, target) == (BINARY, STRING):
        return Typed(f"decode({value.sql})", STRING)
    if source in MOMENTS and target != STRING and value.literal is None:
        value = finite(value)
    to = duckdb_type(target) if is_atomic(target) else ""
    plain = f"CAST({value.sql} AS {to})"
    integral = target in INTEGRAL_RANGES
    if source in INTEGRAL_RANGES and (integral or target in (FLOAT, DOUBLE, STRING, BOOLEAN)):
        return Typed(plain, target)
    if (source in (FLOAT, DOUBLE) or isinstance(source, DecimalType)) and integral:
        return Typed(f"CAST(trunc({value.sql}) AS {to})", target)  # DuckDB would round
    if source == BOOLEAN and (integral or target == STRING):
        return Typed(plain, target)
    if source in MOMENTS and target in MOMENTS:
        return Typed(plain, target)
    if source in MOMENTS and target == STRING:
        return Typed(_moment_text(value), STRING)
    if (source, target) == (FLOAT, DOUBLE):
        return Typed(plain, target)
    if (source, target) == (DOUBLE, FLOAT):
        # Numbers beyond the range of floats become infinite; DuckDB would raise.
        limit = f"abs({value.sql}) >= 3.4028235677973366e38::DOUBLE AND NOT isnan({value.sql})"
        return Typed(
            f"CASE WHEN {limit} THEN CAST(if({value.sql} > 0, 'inf', '-inf') AS FLOAT) ELSE {plain} END", FLOAT
        )
    if isinstance(target, DecimalType) and (source in INTEGRAL_RANGES or isinstance(source, DecimalType)):
        return Typed(plain, target)
    if isinstance(target, DecimalType) and source in (FLOAT, DOUBLE):
        # Spark has a null for what is no number, and for the infinite.
        number = widen(value, DOUBLE).sql
        return Typed(f"CASE WHEN isfinite({number}) THEN CAST(CAST({number} AS VARCHAR) AS {to}) END", target)
    if isinstance(source, DecimalType) and target == DOUBLE:
        return widen(value, target)
    if isinstance(source, DecimalType) and target == FLOAT and source.precision <= _EXACT_FLOAT_DIGITS:
        return Typed(f"CAST(CAST({value.sql} AS VARCHAR) AS FLOAT)", FLOAT)
    if isinstance(source, DecimalType) and target == STRING:
        # DuckDB leaves out a zero before the point where the type has no digit there.
        zero = r", '^(-?)\.', '\1" + "0.')"
        return Typed(f"regexp_replace({plain}{zero}" if source.precision == source.scale else plain, STRING)
    if source in (FLOAT, DOUBLE) and target == STRING:
        return Typed(_floating_text(value), STRING)
    if source == TIMESTAMP and target == LONG:
        return Typed(whole_seconds(value), LONG)
    if source in INTEGRAL_RANGES and target == TIMESTAMP:
        micros = f"multiply(CAST({value.sql} AS BIGINT), 1000000::BIGINT)"
        return Typed(f"CAST(make_timestamp({micros}) AS TIMESTAMPTZ)", TIMESTAMP)
    raise unsupported(f"CAST from {source} to {target}")


def _cast_inside(value: Typed, target: DataType, depth: int) -> str:
    """A CAST between types of one shape: of every element, key and value, and of every field by its place."""
    sql, item = value.sql, f"item{depth}"

    def part(place: str, source: DataType, wanted: DataType) -> str:
        inner = Typed(place, source)
        if source == VOID and not is_atomic(wanted):
            return f"CAST(NULL AS {type_name(wanted)})"
        is_nested = source != wanted and not (is_atomic(source) or is_atomic(wanted))
        return _cast_inside(inner, wanted, depth + 1) if is_nested else cast(inner, wanted).sql

    match value.data_type, target:
        case ArrayType(source), ArrayType(wanted):
            return f"list_transform({sql}, lambda {item}: {part(item, source, wanted)})"
        case MapType(key, held), MapType(wanted_key, wanted):
            entry = f"key := {part(f'{item}.key', key, wanted_key)}, value := {part(f'{item}.value', held, wanted)}"
            return f"map_from_entries(list_transform(map_entries({sql}), lambda {item}: struct_pack({entry})))"
        case StructType(fields), StructType(others) if len(fields) == len(others):
            places = (f"struct_extract({sql}, {quote_duckdb_string(field.name)})" for field in fields)
            packed = ", ".join(
                f"{quote_duckdb_identifier(other.name)} := {part(place, field.data_type, other.data_type)}"
                for place, field, other in zip(places, fields, others, strict=True)
            )
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({packed}) END"
    raise unsupported(f"CAST from {value.data_type} to {target}")


def whole_seconds(value: Typed) -> str:
    """Seconds since 1970 of a moment, rounded down."""
    return (
        f"CAST((epoch_us({value.sql}) - ((epoch_us({value.sql}) % 1000000) + 1000000) % 1000000) // 1000000 AS BIGINT)"
    )


def in_years(value: str, year: str, text: str) -> str:
    """A text of a date, where its year has four digits."""
    problem = error("text of a date outside the years 1 to 9999, for which the local engine is not proven equal")
    return f"CASE WHEN {value} IS NULL THEN NULL WHEN year({year}) BETWEEN 1 AND 9999 THEN {text} ELSE {problem} END"


def _floating_text(value: Typed) -> str:
    """The text of a floating number, in Java's form. Numbers that releases of Java print differently raise: those with
    more digits than their type holds exactly, large ones, and small ones."""
    x, text = value.sql, f"CAST({value.sql} AS VARCHAR)"
    most_digits, limit = (6, "1e7") if value.data_type == FLOAT else (15, "1e15")
    digits = f"rtrim(ltrim(replace(replace({text}, '-', ''), '.', ''), '0'), '0')"
    exponent = f"(instr(replace({text}, '-', ''), '.') - 2)"
    mantissa = f"concat({digits}[1], '.', coalesce(nullif(substring({digits}, 2), ''), '0'))"
    scientific = f"concat(if({x} < 0, '-', ''), {mantissa}, 'E', {exponent})"
    problem = error("text of a floating number of many digits, which only the Spark engine makes")
    return (
        f"CASE WHEN {x} IS NULL OR {x} = 0 THEN {text} WHEN isnan({x}) THEN 'NaN' "
        f"WHEN isinf({x}) THEN if({x} > 0, 'Infinity', '-Infinity') "
        f"WHEN abs({x}) < 1e-3 OR abs({x}) >= {limit} OR length({digits}) > {most_digits} THEN {problem} "
        f"WHEN abs({x}) < 1e7 THEN {text} ELSE {scientific} END"
    )


def _moment_text(value: Typed) -> str:
    plain = f"CAST({value.sql} AS TIMESTAMP)" if value.data_type != DATE else value.sql
    return in_years(value.sql, plain, f"CAST({plain} AS VARCHAR)")


def _from_text(value: Typed, target: DataType) -> Typed:
    """Each rule is the pattern that text must match, and what becomes of its groups. Other text raises."""
    text = value.sql
    if target == BINARY:
        return Typed(f"encode({text})", BINARY)
    if target in INTEGRAL_RANGES:
        pattern, result = "([+-]?[0-9]+)", f"CAST({{1}} AS {duckdb_type(target)})"
    elif target in (FLOAT, DOUBLE):
        return _floating(text, target)
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


def _floating(text: str, target: DataType) -> Typed:
    kind = duckdb_type(target)
    pattern = rf"({_FRACTION}(?:[eE][+-]?[0-9]+)?)[dDfF]?"
    number = _matched(text, pattern, f"CAST({{1}} AS {kind})", target)
    word = f"lower(regexp_extract({text}, '^{_BLANK}(.*?){_BLANK}$', 1))"
    named = " ".join(
        f"WHEN {word} IN ({names}) THEN CAST('{value}' AS {kind})"
        for names, value in (
            ("'nan'", "nan"), ("'inf', '+inf', 'infinity', '+infinity'", "inf"), ("'-inf', '-infinity'", "-inf"),
        )
    )  # fmt: skip
    return Typed(f"CASE {named} ELSE {number} END", target)


def as_boolean(value: Typed, text: Callable[[], str], *, is_cast: bool = True) -> str:
    """A predicate. `is_cast`: Spark makes a boolean of NULL there."""
    if value.data_type != BOOLEAN and not (is_cast and value.data_type == VOID):
        raise InvalidExpressionError(
            f"{text()!r} is not a predicate", cause=f"Its type is {value.data_type}, not boolean"
        )
    return widen(value, BOOLEAN).sql


def as_text(value: Typed) -> str:
    """A string operand; what Spark casts to text for it is cast. Raises UnsupportedExpressionError."""
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
    """The type that CAST names. Raises UnsupportedExpressionError for what is no column's."""
    is_nested = "<" in name and not re.search(r"\bCHAR|\bVARCHAR|\bINTERVAL|\bVARIANT", name)
    target = parse_columns(f"c {name}").fields[0].data_type if is_nested else type_of(name)
    if target is None:
        raise unsupported(f"CAST to {name[:100]}")
    return target


_SIGNED_DIGITS = 34


def short(value: Typed) -> str:
    """A number whose sign may be changed: Spark rounds decimals to 34 digits then, so those of more digits raise."""
    kind = value.data_type
    if not isinstance(kind, DecimalType) or kind.precision <= _SIGNED_DIGITS:
        return value.sql
    limit = f"CAST('1e{_SIGNED_DIGITS - kind.scale}' AS {duckdb_type(kind)})"
    problem = error(f"a decimal of more than {_SIGNED_DIGITS} digits, which Spark rounds where it changes the sign")
    return f"CASE WHEN {value.sql} >= {limit} OR {value.sql} <= -{limit} THEN {problem} ELSE {value.sql} END"
