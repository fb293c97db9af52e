"""The functions of Spark SQL that run in process, in DuckDB's SQL.

`FUNCTIONS` and `TEMPLATES` at the end are the whole list. Each function gives Spark's value and type for the arguments
that it takes (tests/property). Other functions, and other arguments, are refused by name. A value for which the engines
may differ raises while the query runs. Sessions run in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from delta_orch.engines.local.sql_types import (
    MOMENTS,
    Typed,
    as_boolean,
    as_text,
    cast,
    cast_target,
    choose,
    common_type,
    common_type_of,
    error,
    finite,
    in_years,
    is_atomic,
    is_number,
    sign_changed,
    struct_of,
    unsupported,
    widen,
)
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.constants import CASTS, interval_of
from delta_orch.expressions.nodes import Call, Expression, Literal
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import chain, duckdb_type, quote_duckdb_string
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
)

_Function = Callable[[Sequence[Typed]], Typed]


def named(call: Call, scalar: Callable[[Expression], Typed]) -> Typed:
    """A function by its name. `scalar` translates its arguments.

    Raises UnsupportedExpressionError: The function is not listed here, or not with such arguments.
    """
    name, arguments = _ALIASES.get(call.name, call.name), call.arguments
    if call.detail:
        name, arguments = _without_word(name, call.detail), arguments[::-1]
    if len(arguments) < 3 and name in _LAST_ARGUMENTS:
        arguments = (*arguments, Literal(_LAST_ARGUMENTS[name]))
    if name in FUNCTIONS:
        least, most, function = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            raise unsupported(f"the function {name} with {len(arguments)} arguments")
    elif len(TEMPLATES.get(name, ((),))[0]) == len(arguments) > 0:
        function = _of_template(*TEMPLATES[name])
    else:
        raise unsupported(f"the function {name[:100]}")
    values = list(map(scalar, arguments))
    try:
        return function(values)
    except UnsupportedExpressionError as e:
        construct = str(e.context["construct"])
        raise unsupported(construct if name in construct else f"{name}: {construct}") from None


def _of_template(kinds: Sequence[str], template: str, data_type: DataType) -> _Function:
    def function(values: Sequence[Typed]) -> Typed:
        texts = [_KINDS[kind](value) for kind, value in zip(kinds, values, strict=True)]
        return Typed(f"({template.format(*texts)})", data_type)

    return function


def _without_word(name: str, word: str) -> str:
    """The function that `extract(word FROM date)` and `trim(word characters FROM text)` stand for."""
    alike = {"extract": _EXTRACTED, "trim": {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}}.get(name, {})
    if word not in alike:
        raise unsupported(f"the function {name[:100]} with {word[:40]}")
    return alike[word]


# Arguments: DuckDB's SQL of the type that a function takes. They are cast where Spark casts them.


def _characters(value: Typed) -> str:
    """As `as_text`, for a function that counts characters of a text. Spark counts the bytes of a binary there."""
    if value.data_type == BINARY:
        raise unsupported("a function that counts bytes of a binary")
    return as_text(value)


def _day(value: Typed) -> Typed:
    """Values that Spark accepts as a date: dates, the day of a moment in UTC, text of a date."""
    if value.data_type not in (*MOMENTS, STRING, VOID):
        raise unsupported(f"a date function on {value.data_type}")
    if value.data_type == DATE:
        return finite(value) if value.is_column else value
    return cast(value, DATE)


def _moment(value: Typed) -> Typed:
    """Values that Spark accepts as a timestamp: timestamps, text and dates. A TIMESTAMP of DuckDB, in UTC."""
    value = cast(value, TIMESTAMP) if value.data_type == STRING else value
    if value.data_type not in MOMENTS:
        raise unsupported(f"a time function on {value.data_type}")
    is_finite = not value.is_column or value.data_type != TIMESTAMP_NTZ
    return cast(value, TIMESTAMP_NTZ) if is_finite else finite(value)


def _integer(kind: DataType) -> Callable[[Typed], str]:
    def integer(value: Typed) -> str:
        if value.data_type not in INTEGRAL_RANGES or (kind == INTEGER and value.data_type == LONG):
            raise unsupported(f"a whole number of type {value.data_type}")
        return widen(value, kind).sql

    return integer


def _only(*takes: DataType) -> Callable[[Typed], str]:
    """An argument that has one of some types. Spark casts no other type to them."""

    def argument(value: Typed) -> str:
        if value.data_type not in takes:
            raise unsupported(f"a function of {', '.join(map(str, takes))} on {value.data_type}")
        if value.data_type in MOMENTS:
            return _moment(value).sql
        return value.sql if value.data_type in (BINARY, FLOAT, DOUBLE) else f"encode({as_text(value)})"

    return argument


def constant(value: Typed, kind: type, what: str) -> Any:
    """The value of an argument that must be a constant; an `int` of 32 bits. Raises UnsupportedExpressionError."""
    literal = value.literal
    if literal is None or type(literal.value) is not kind:
        raise unsupported(f"{what} with an argument that is not a constant")
    if isinstance(literal.value, int) and not -(2**31) <= literal.value < 2**31:
        raise unsupported(f"{what} with a number beyond 32 bits")
    return literal.value


def _constant_text(value: Typed) -> str:
    return quote_duckdb_string(constant(value, str, "a function of texts"))


def _filling(value: Typed) -> str:
    """A constant text of at least one character."""
    if constant(value, str, "a function of texts") == "":
        raise unsupported("a function of an empty text")
    return _constant_text(value)


def _count(least: int) -> Callable[[Typed], str]:
    """A constant number of characters, or a place."""

    def count(value: Typed) -> str:
        number = constant(value, int, "a function of texts")
        if not least <= number <= 65_535:
            raise unsupported(f"a function of texts with the number {number}")
        return str(number)

    return count


_binary = _only(STRING, BINARY, VOID)
_KINDS: dict[str, Callable[[Typed], str]] = {
    "any": lambda value: value.sql,
    "text": as_text,
    "characters": _characters,
    "binary": _binary,
    "day": lambda value: _day(value).sql,
    "moment": lambda value: _moment(value).sql,
    "instant": _only(*MOMENTS),
    "floating": _only(FLOAT, DOUBLE),
    "int": _integer(INTEGER),
    "long": _integer(LONG),
    "constant": _constant_text,
    "filling": _filling,
    "width": _count(0),
    "place": _count(1),
}


# Choices


def _same_typed(function: str) -> _Function:
    """`coalesce`, `greatest` and `least`."""

    def chosen(values: Sequence[Typed]) -> Typed:
        kinds = [value.data_type for value in values]
        kind = common_type_of(kinds)
        is_mixed = STRING in kinds and len({*kinds} - {VOID}) > 1
        if function != "coalesce" and (not is_atomic(kind) or is_mixed):
            raise unsupported(f"{function} of these types")
        return Typed(f"{function}({', '.join(widen(value, kind).sql for value in values)})", kind)

    return chosen


def _if(values: Sequence[Typed]) -> Typed:
    return choose([as_boolean(values[0], lambda: "The condition of if")], values[1:2], values[2])


def _cast_to(kind: DataType) -> _Function:
    return lambda values: cast(values[0], kind)


# Numbers


def _absolute(values: Sequence[Typed]) -> Typed:
    (value,) = values
    if not is_number(value.data_type):
        raise unsupported(f"abs of {value.data_type}")
    return Typed(f"abs({sign_changed(value)})", value.data_type)


def _rounded(values: Sequence[Typed]) -> Typed:
    digits = constant(values[1], int, "round") if len(values) > 1 else 0
    value = cast(values[0], DOUBLE) if values[0].data_type == STRING else values[0]
    kind = value.data_type
    if digits >= 0 and kind in INTEGRAL_RANGES:
        return value
    if digits >= 0 and isinstance(kind, DecimalType):
        scale = min(kind.scale, digits)
        target = DecimalType(min(kind.precision - kind.scale + 1 + scale, MAX_DECIMAL_DIGITS), scale)
        return Typed(f"CAST({value.sql} AS {duckdb_type(target)})", target)
    if kind in (FLOAT, DOUBLE) and 0 <= digits <= 15:
        # Java rounds the shortest decimal of a number. Numbers from 1e16 on have no fraction.
        decimal = f"CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38,{digits}))"
        exact = f"CAST(CAST({decimal} AS VARCHAR) AS {duckdb_type(kind)})"
        return Typed(f"CASE WHEN abs({value.sql}) < 1e16 THEN {exact} ELSE {value.sql} END", kind)
    raise unsupported(f"round of {kind} to {digits} digits")


def _whole(function: str) -> _Function:
    """`ceil` and `floor`."""

    def whole(values: Sequence[Typed]) -> Typed:
        (value,) = values
        if value.data_type in INTEGRAL_RANGES:
            return widen(value, LONG)
        if isinstance(value.data_type, DecimalType):
            kind = value.data_type
            target = DecimalType(max(kind.precision - kind.scale + 1, 1), 0)
            if target.precision > MAX_DECIMAL_DIGITS:
                raise unsupported(f"{function} of {kind}")
            return Typed(f"CAST({function}({value.sql}) AS {duckdb_type(target)})", target)
        if value.data_type not in (FLOAT, DOUBLE):
            raise unsupported(f"{function} of {value.data_type}")
        number = f"CAST({value.sql} AS DOUBLE)"
        # Before Spark 4.3, what no long holds became the largest one; now it raises, as here.
        return Typed(f"CASE WHEN isnan({number}) THEN 0 ELSE CAST({function}({number}) AS BIGINT) END", LONG)

    return whole


# Texts

# Latin and Cyrillic letters, without letters that become several letters, or whose case depends on the version of
# Unicode that Java or DuckDB has. Greek is left out, because a sigma at the end of a word has a form of its own.
_SAME_UPPER = r"[\x{01}-\x{DE}\x{E0}-\x{148}\x{14A}-\x{19A}\x{19C}-\x{1EF}\x{1F1}-\x{24F}\x{400}-\x{52F}]*"
_SAME_LOWER = r"[\x{01}-\x{12F}\x{131}-\x{24F}\x{400}-\x{52F}]*"


def _changed_case(function: str) -> _Function:
    """`upper` and `lower`."""

    def changed(values: Sequence[Typed]) -> Typed:
        text = as_text(values[0])
        pattern = quote_duckdb_string(_SAME_UPPER if function == "upper" else _SAME_LOWER)
        problem = error(f"{function} of letters for which the local engine is not proven equal to Spark")
        is_same = f"{text} IS NULL OR regexp_full_match({text}, {pattern})"
        return Typed(f"CASE WHEN {is_same} THEN {function}({text}) ELSE {problem} END", STRING)

    return changed


def concatenated(values: Sequence[Typed]) -> Typed:
    """`concat` and `||` of texts, or of binaries."""
    if all(value.data_type == BINARY for value in values):
        return Typed(f"({chain(' || ', [value.sql for value in values])})", BINARY)
    return Typed(f"({chain(' || ', list(map(as_text, values)))})", STRING)


def _length(values: Sequence[Typed]) -> Typed:
    """Characters of a text, bytes of a binary."""
    (value,) = values
    number = f"octet_length({value.sql})" if value.data_type == BINARY else f"length({as_text(value)})"
    return Typed(f"CAST({number} AS INTEGER)", INTEGER)


def _concat_ws(values: Sequence[Typed]) -> Typed:
    """Texts with a separator between them. Nulls are left out."""
    return Typed(f"concat_ws({', '.join(map(as_text, values))})", STRING)


def _trimmed(function: str) -> _Function:
    """`trim`, `ltrim` and `rtrim`: a text, or characters and the text."""

    def trim(values: Sequence[Typed]) -> Typed:
        *characters, subject = map(as_text, values)
        return Typed(f"{function}({subject}, {characters[0] if characters else quote_duckdb_string(' ')})", STRING)

    return trim


def _substring(values: Sequence[Typed]) -> Typed:
    subject, numbers = _characters(values[0]), values[1:]
    if any(number.data_type not in INTEGRAL_RANGES for number in numbers):
        raise unsupported("substring with positions that are not integers")
    # Positions have 32 bits in Spark: a longer one raises. Without a length, the rest of the text is meant.
    start, *count_of = [widen(cast(number, INTEGER), LONG).sql for number in numbers]
    # A negative position counts from the end. Positions before the first character count as well.
    begin = f"CASE WHEN {start} > 0 THEN {start} - 1 WHEN {start} < 0 THEN length({subject}) + {start} ELSE 0 END"
    count = f"({begin}) + {count_of[0] if count_of else 2**31 - 1} - greatest({begin}, 0)"
    part = f"substring({subject}, greatest({begin}, 0) + 1, greatest({count}, 0))"
    is_null = " OR ".join(f"{value} IS NULL" for value in (subject, start, *count_of))
    return Typed(f"CASE WHEN {is_null} THEN NULL ELSE {part} END", STRING)


def _sha2(values: Sequence[Typed]) -> Typed:
    if constant(values[1], int, "sha2") not in (0, 256):
        raise unsupported("sha2 of any length but 256")
    return Typed(f"sha256({_binary(values[0])})", STRING)


# Dates and moments

_DATE_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "WEEK": "week",
}
_TIME_UNITS = {
    **_DATE_UNITS,
    **dict.fromkeys(("DAY", "DD"), "day"),
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
}


def _unit(value: Typed, units: dict[str, str]) -> str:
    name = constant(value, str, "a date cut off").upper()
    if name not in units:
        raise unsupported(f"a date cut off at {name[:40]}")
    return units[name]


def _truncated_date(values: Sequence[Typed]) -> Typed:
    return Typed(f"CAST(date_trunc('{_unit(values[1], _DATE_UNITS)}', {_day(values[0]).sql}) AS DATE)", DATE)


def _truncated_moment(values: Sequence[Typed]) -> Typed:
    plain = f"CAST(date_trunc('{_unit(values[0], _TIME_UNITS)}', {_moment(values[1]).sql}) AS TIMESTAMP)"
    return cast(Typed(plain, TIMESTAMP_NTZ), TIMESTAMP)


_EXTRACTED = {
    **{part.upper(): part for part in ("year", "quarter", "month", "day", "hour", "minute")},
    **{part.upper(): part for part in ("dayofweek", "dayofyear", "weekofyear")},
    "WEEK": "weekofyear", "DOW": "dayofweek", "DOY": "dayofyear",
}  # fmt: skip
_FORMATTED = {
    "yyyy": "lpad(CAST(year({0}) AS VARCHAR), 4, '0')",
    **{
        letters: f"lpad(CAST({part}({{0}}) AS VARCHAR), 2, '0')"
        for letters, part in (("MM", "month"), ("dd", "day"), ("HH", "hour"), ("mm", "minute"), ("ss", "second"))
    },
}
_FORMAT = re.compile(r"([A-Za-z])\1*|'[^']+'|[^A-Za-z'\[\]{}#]+")


def _date_format(values: Sequence[Typed]) -> Typed:
    """A date by a pattern of the letters in `_FORMATTED`."""
    value = _moment(values[0]).sql
    pattern = constant(values[1], str, "date_format")
    tokens = list(_FORMAT.finditer(pattern))
    if "".join(token[0] for token in tokens) != pattern or any(t[1] and t[0] not in _FORMATTED for t in tokens):
        raise unsupported(f"the date pattern {pattern[:100]!r}")
    pieces = [_FORMATTED[t[0]].format(value) if t[1] else quote_duckdb_string(t[0].strip("'")) for t in tokens]
    return Typed(in_years(value, value, f"concat({', '.join(pieces)})" if pieces else "''"), STRING)


def shifted(operator: str, value: Typed, interval: str) -> Typed:
    """A date or a moment and an interval, as text has it without its first word."""
    step = interval_of(interval)
    if value.data_type not in MOMENTS or step is None or (value.data_type == DATE and step.has_time):
        raise unsupported(f"{value.data_type} and an interval of {interval[:100]}")
    length = f"to_months({step.months})" if step.months else f"to_microseconds({step.micros})"
    moved = f"CAST({cast(value, TIMESTAMP_NTZ).sql} {operator} {length} AS TIMESTAMP)"
    return cast(Typed(moved, TIMESTAMP_NTZ), value.data_type)


# Arrays, maps and structs


def _array(values: Sequence[Typed]) -> Typed:
    kind = common_type_of([VOID, *(value.data_type for value in values)])
    return Typed(f"[{', '.join(widen(value, kind).sql for value in values)}]", ArrayType(kind, True))


def _map(values: Sequence[Typed]) -> Typed:
    """A key that is null or there twice raises, as in Spark."""
    if len(values) % 2:
        raise unsupported("a map with a key without a value")
    key, kind = (common_type_of([VOID, *(value.data_type for value in values[i::2])]) for i in (0, 1))
    if not is_atomic(key) or key in (FLOAT, DOUBLE) or (key == VOID and values):
        raise unsupported(f"a map of {key} and {kind}")
    if not values:
        key = STRING  # Arrow needs a type of keys, and an empty map has no key to cast
    keys, items = (", ".join(widen(v, k).sql for v in values[i::2]) for i, k in ((0, key), (1, kind)))
    return Typed(f"MAP([{keys}], [{items}])", MapType(key, kind, True))


def _named_struct(values: Sequence[Typed]) -> Typed:
    if len(values) % 2:
        raise unsupported("a struct with a name without a value")
    names = [constant(name, str, "named_struct") for name in values[::2]]
    return struct(list(zip(names, values[1::2], strict=True)))


def struct(fields: list[tuple[str, Typed]]) -> Typed:
    """A struct of named values."""
    if not fields or len({name.lower() for name, _ in fields}) < len(fields):
        raise unsupported("a struct without fields, or with a name twice")
    return struct_of(fields)


def _size(values: Sequence[Typed]) -> Typed:
    (value,) = values
    if not isinstance(value.data_type, ArrayType | MapType):
        raise unsupported(f"a number of elements of {value.data_type}")
    function = "length" if isinstance(value.data_type, ArrayType) else "cardinality"
    return Typed(f"CAST({function}({value.sql}) AS INTEGER)", INTEGER)


def _array_contains(values: Sequence[Typed]) -> Typed:
    """Null if the array or the value is null, or if only a null in the array could be the value."""
    array, value = values
    kind = array.data_type.element_type if isinstance(array.data_type, ArrayType) else VOID
    if not is_atomic(kind) or kind in (FLOAT, DOUBLE, VOID):
        raise unsupported(f"array_contains of {array.data_type}")
    if kind != value.data_type and (
        not {kind, value.data_type} <= {*INTEGRAL_RANGES} or kind != common_type(kind, value.data_type)
    ):
        raise unsupported(f"array_contains of {array.data_type} and {value.data_type}")
    item = widen(value, kind).sql
    otherwise = f"CASE WHEN list_count({array.sql}) = length({array.sql}) THEN FALSE END"
    is_there = f"list_contains({array.sql}, {item}) OR {otherwise}"
    return Typed(f"CASE WHEN {array.sql} IS NOT NULL AND {item} IS NOT NULL THEN {is_there} END", BOOLEAN)


# The list

_MANY = 1000
_PART = "CAST({}({{0}}) AS INTEGER)"
_SIDE = "CASE WHEN {{0}} IS NULL OR {{1}} IS NULL THEN NULL WHEN {{1}} <= 0 THEN '' ELSE substring({{0}}, {}) END"

TEMPLATES: dict[str, tuple[tuple[str, ...], str, DataType]] = {
    "isnull": (("any",), "{0} IS NULL", BOOLEAN),
    "isnotnull": (("any",), "{0} IS NOT NULL", BOOLEAN),
    "isnan": (("floating",), "coalesce(isnan({0}), FALSE)", BOOLEAN),
    "instr": (("text", "text"), "CAST(instr({0}, {1}) AS INTEGER)", INTEGER),
    "left": (("characters", "int"), _SIDE.format("1, {1}"), STRING),
    "right": (("text", "int"), _SIDE.format("greatest(length({0}) - {1} + 1, 1)"), STRING),
    "startswith": (("text", "text"), "starts_with({0}, {1})", BOOLEAN),
    "endswith": (("text", "text"), "ends_with({0}, {1})", BOOLEAN),
    "contains": (("text", "text"), "contains({0}, {1})", BOOLEAN),
    "lpad": (("characters", "width", "filling"), "lpad({0}, {1}, {2})", STRING),
    "rpad": (("characters", "width", "filling"), "rpad({0}, {1}, {2})", STRING),
    "replace": (("text", "filling", "constant"), "replace({0}, {1}, {2})", STRING),
    "split_part": (("text", "filling", "place"), "split_part({0}, {1}, {2})", STRING),
    "md5": (("binary",), "md5({0})", STRING),
    **{name: (("day",), _PART.format(name), INTEGER) for name in ("year", "quarter", "month", "day")},
    **{name: (("day",), _PART.format(name), INTEGER) for name in ("dayofyear", "weekofyear")},
    **{name: (("moment",), _PART.format(name), INTEGER) for name in ("hour", "minute", "second")},
    "dayofweek": (("day",), "CAST(dayofweek({0}) + 1 AS INTEGER)", INTEGER),
    "to_date": (("day",), "{0}", DATE),
    "last_day": (("day",), "last_day({0})", DATE),
    "make_date": (("int", "int", "int"), "make_date({0}, {1}, {2})", DATE),
    "date_add": (("day", "int"), "CAST({0} + {1} AS DATE)", DATE),
    "date_sub": (("day", "int"), "CAST({0} - {1} AS DATE)", DATE),
    "add_months": (("day", "int"), "CAST({0} + to_months({1}) AS DATE)", DATE),
    "datediff": (("day", "day"), "CAST({0} - {1} AS INTEGER)", INTEGER),
    "unix_timestamp": (("instant",), "epoch_us({0}) // 1000000", LONG),
    "timestamp_seconds": (("long",), "CAST(make_timestamp(multiply({0}, 1000000::BIGINT)) AS TIMESTAMPTZ)", TIMESTAMP),
    "timestamp_millis": (("long",), "CAST(make_timestamp(multiply({0}, 1000::BIGINT)) AS TIMESTAMPTZ)", TIMESTAMP),
    "timestamp_micros": (("long",), "CAST(make_timestamp({0}) AS TIMESTAMPTZ)", TIMESTAMP),
}
"""Functions as text over their arguments: the kinds of these (`_KINDS`), the text, and the type of the result."""

FUNCTIONS: dict[str, tuple[int, int, _Function]] = {
    "coalesce": (1, _MANY, _same_typed("coalesce")),
    "nvl": (2, 2, _same_typed("coalesce")),
    "greatest": (2, _MANY, _same_typed("greatest")),
    "least": (2, _MANY, _same_typed("least")),
    "if": (3, 3, _if),
    "abs": (1, 1, _absolute),
    "round": (1, 2, _rounded),
    "ceil": (1, 1, _whole("ceil")),
    "floor": (1, 1, _whole("floor")),
    "upper": (1, 1, _changed_case("upper")),
    "lower": (1, 1, _changed_case("lower")),
    "concat": (1, _MANY, concatenated),
    "concat_ws": (2, _MANY, _concat_ws),
    "length": (1, 1, _length),
    "trim": (1, 2, _trimmed("trim")),
    "ltrim": (1, 2, _trimmed("ltrim")),
    "rtrim": (1, 2, _trimmed("rtrim")),
    "substring": (2, 3, _substring),
    "sha2": (2, 2, _sha2),
    "trunc": (2, 2, _truncated_date),
    "date_trunc": (2, 2, _truncated_moment),
    "date_format": (2, 2, _date_format),
    "array": (0, _MANY, _array),
    "map": (0, _MANY, _map),
    "named_struct": (2, _MANY, _named_struct),
    "size": (1, 1, _size),
    "array_contains": (2, 2, _array_contains),
    **{name: (1, 1, _cast_to(cast_target(kind))) for name, kind in CASTS.items()},
}
"""Functions with the least and the greatest number of arguments that they take."""

_LAST_ARGUMENTS = {"lpad": " ", "replace": "", "rpad": " "}
"""The last of three arguments, where it is left out."""

_ALIASES = {
    "cardinality": "size", "ceiling": "ceil", "char_length": "length", "character_length": "length",
    "len": "length", "ifnull": "nvl", "dateadd": "date_add", "date_diff": "datediff", "dayofmonth": "day",
    "lcase": "lower", "ucase": "upper", "substr": "substring",
}  # fmt: skip
