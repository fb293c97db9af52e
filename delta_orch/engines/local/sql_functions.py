"""The functions of Spark SQL that run in process, in DuckDB's SQL.

`FUNCTIONS` and `TEMPLATES` at the end are the whole list. Each function gives Spark's value and type for the arguments
that it takes (tests/property). Other functions, and other arguments, are refused by name. A value for which the engines
may differ raises while the query runs. Sessions run in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from delta_orch.engines.local.sql_types import (
    MOMENTS,
    Typed,
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
from delta_orch.expressions.constants import CASTS, interval_of
from delta_orch.expressions.nodes import Call, Column, Expression, Literal, Operation
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


class Scalars(Protocol):
    """The parts of the translator that a function may call (`sql_operators.Scalars`)."""

    def scalar(self, node: Expression) -> Typed: ...

    def boolean(self, node: Expression) -> str: ...

    def equal(self, left: Typed, right: Typed) -> str: ...

    def positive_remainder(self, first: Expression, second: Expression) -> Typed: ...


_Arguments = Sequence[Expression]
_Function = Callable[[Scalars, _Arguments], Typed]


def named(scalars: Scalars, call: Call) -> Typed:
    """A function by its name. Raises UnsupportedExpressionError for any that is not listed here."""
    name, arguments = _ALIASES.get(call.name, call.name), call.arguments
    if call.detail:
        if name not in FUNCTIONS_WITH_WORD:
            raise unsupported(f"the function {name[:100]} with {call.detail[:40]}")
        return FUNCTIONS_WITH_WORD[name](scalars, call)
    if len(arguments) < 3 and name in _LAST_ARGUMENTS:
        arguments = (*arguments, Literal(_LAST_ARGUMENTS[name]))
    if name in FUNCTIONS:
        least, most, function = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            raise unsupported(f"the function {name} with {len(arguments)} arguments")
        return function(scalars, arguments)
    takes, template, gives = TEMPLATES.get(name, ((), "", VOID))
    if not template or len(arguments) != len(takes):
        raise unsupported(f"the function {name[:100]}")
    texts = [_KINDS[kind](scalars, argument) for kind, argument in zip(takes, arguments, strict=True)]
    return Typed(f"({template.format(*texts)})", gives)


# Arguments: as DuckDB's SQL of the type that a function takes, where Spark casts them to it


def text(scalars: Scalars, node: Expression) -> str:
    """A string: numbers, dates and booleans as Spark casts them. Raises UnsupportedExpressionError."""
    return as_text(scalars.scalar(node))


def _day(scalars: Scalars, node: Expression) -> Typed:
    """Values that Spark accepts as a date: dates, the day of a moment in UTC, text of a date."""
    value = scalars.scalar(node)
    if value.data_type not in (*MOMENTS, STRING, VOID):
        raise unsupported(f"a date function on {value.data_type}")
    if value.data_type == DATE:
        return finite(value) if isinstance(node, Column) else value
    return cast(value, DATE)


def _moment(scalars: Scalars, node: Expression) -> Typed:
    """Values that Spark accepts as a timestamp: timestamps, text and dates. A TIMESTAMP of DuckDB, in UTC."""
    value = scalars.scalar(node)
    if value.data_type == STRING:
        value = cast(value, TIMESTAMP)
    if value.data_type not in MOMENTS:
        raise unsupported(f"a time function on {value.data_type}")
    is_column = isinstance(node, Column) and value.data_type == TIMESTAMP_NTZ
    return finite(value) if is_column else cast(value, TIMESTAMP_NTZ)


def _integer(kind: DataType) -> Callable[[Scalars, Expression], str]:
    def integer(scalars: Scalars, node: Expression) -> str:
        value = scalars.scalar(node)
        if value.data_type not in INTEGRAL_RANGES or (kind == INTEGER and value.data_type == LONG):
            raise unsupported(f"a whole number of type {value.data_type}")
        return widen(value, kind).sql

    return integer


def _only(*takes: DataType) -> Callable[[Scalars, Expression], str]:
    """An argument of one of some types, to which Spark casts no other."""

    def argument(scalars: Scalars, node: Expression) -> str:
        value = scalars.scalar(node)
        if value.data_type not in takes:
            raise unsupported(f"a function of {', '.join(map(str, takes))} on {value.data_type}")
        if value.data_type in MOMENTS:
            return _moment(scalars, node).sql
        return value.sql if value.data_type in (BINARY, FLOAT, DOUBLE) else f"encode({as_text(value)})"

    return argument


def _constant_text(scalars: Scalars, node: Expression) -> str:
    return quote_duckdb_string(constant(scalars, node, str, "a function of texts"))


def _filling(scalars: Scalars, node: Expression) -> str:
    """A constant text of at least one character."""
    if node == Literal(""):
        raise unsupported("a function of an empty text")
    return _constant_text(scalars, node)


def _count(least: int) -> Callable[[Scalars, Expression], str]:
    """A constant number of characters, or a place."""

    def count(scalars: Scalars, node: Expression) -> str:
        number = constant(scalars, node, int, "a function of texts")
        if not least <= number <= 65_535:
            raise unsupported(f"a function of texts with the number {number}")
        return str(number)

    return count


_binary = _only(STRING, BINARY, VOID)
_KINDS: dict[str, Callable[[Scalars, Expression], str]] = {
    "any": lambda scalars, node: scalars.scalar(node).sql,
    "text": text,
    "binary": _binary,
    "day": lambda scalars, node: _day(scalars, node).sql,
    "moment": lambda scalars, node: _moment(scalars, node).sql,
    "instant": _only(*MOMENTS),
    "floating": _only(FLOAT, DOUBLE),
    "int": _integer(INTEGER),
    "long": _integer(LONG),
    "constant": _constant_text,
    "filling": _filling,
    "width": _count(0),
    "place": _count(1),
}


def constant(scalars: Scalars, node: Expression, kind: type, what: str) -> Any:
    """The value of an argument that must be a constant; an `int` of 32 bits. Raises UnsupportedExpressionError."""
    literal = scalars.scalar(node).literal
    if literal is None or type(literal.value) is not kind:
        raise unsupported(f"{what} with an argument that is not a constant")
    if isinstance(literal.value, int) and not -(2**31) <= literal.value < 2**31:
        raise unsupported(f"{what} with a number beyond 32 bits")
    return literal.value


# Choices


def _same_typed(function: str) -> _Function:
    """`coalesce`, `greatest` and `least`."""

    def chosen(scalars: Scalars, arguments: _Arguments) -> Typed:
        values = [scalars.scalar(argument) for argument in arguments]
        kinds = [value.data_type for value in values]
        kind = common_type_of(kinds)
        is_mixed = STRING in kinds and len({*kinds} - {VOID}) > 1
        if function != "coalesce" and (not is_atomic(kind) or is_mixed):
            raise unsupported(f"{function} of these types")
        return Typed(f"{function}({', '.join(widen(value, kind).sql for value in values)})", kind)

    return chosen


def _null_if(scalars: Scalars, arguments: _Arguments) -> Typed:
    # Spark keeps the first value under a name of its own, and fills up only columns.
    value, other = (replace(scalars.scalar(argument), char_width=None) for argument in arguments)
    return Typed(f"CASE WHEN {scalars.equal(value, other)} THEN NULL ELSE {value.sql} END", value.data_type)


def _if(scalars: Scalars, arguments: _Arguments) -> Typed:
    condition, then, otherwise = arguments
    return choose([scalars.boolean(condition)], [scalars.scalar(then)], scalars.scalar(otherwise))


def _cast_to(kind: DataType) -> _Function:
    return lambda scalars, arguments: cast(scalars.scalar(arguments[0]), kind)


# Numbers


def _absolute(scalars: Scalars, arguments: _Arguments) -> Typed:
    value = scalars.scalar(arguments[0])
    if not is_number(value.data_type):
        raise unsupported(f"abs of {value.data_type}")
    return Typed(f"abs({sign_changed(value)})", value.data_type)


def _rounded(scalars: Scalars, arguments: _Arguments) -> Typed:
    value = scalars.scalar(arguments[0])
    digits = constant(scalars, arguments[1], int, "round") if len(arguments) > 1 else 0
    value = cast(value, DOUBLE) if value.data_type == STRING else value
    kind = value.data_type
    if digits >= 0 and kind in INTEGRAL_RANGES:
        return value
    if digits >= 0 and isinstance(kind, DecimalType):
        scale = min(kind.scale, digits)
        target = DecimalType(min(kind.precision - kind.scale + 1 + scale, MAX_DECIMAL_DIGITS), scale)
        return Typed(f"CAST({value.sql} AS {duckdb_type(target)})", target)
    if kind in (FLOAT, DOUBLE) and 0 <= digits <= 15:
        # By its shortest decimal, as Java does; a number this large has no fraction to round.
        decimal = f"CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38,{digits}))"
        exact = f"CAST(CAST({decimal} AS VARCHAR) AS {duckdb_type(kind)})"
        return Typed(f"CASE WHEN abs({value.sql}) < 1e16 THEN {exact} ELSE {value.sql} END", kind)
    raise unsupported(f"round of {kind} to {digits} digits")


def _whole(function: str) -> _Function:
    """`ceil` and `floor`."""

    def whole(scalars: Scalars, arguments: _Arguments) -> Typed:
        value = scalars.scalar(arguments[0])
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

# Latin and Cyrillic letters, without those that become several letters, or whose case Java and DuckDB know from
# different versions of Unicode. A sigma at the end of a word makes Greek a matter of its own.
_SAME_UPPER = r"[\x{01}-\x{DE}\x{E0}-\x{148}\x{14A}-\x{19A}\x{19C}-\x{1EF}\x{1F1}-\x{24F}\x{400}-\x{52F}]*"
_SAME_LOWER = r"[\x{01}-\x{12F}\x{131}-\x{24F}\x{400}-\x{52F}]*"


def _cased(function: str, value: str) -> str:
    pattern = quote_duckdb_string(_SAME_UPPER if function == "upper" else _SAME_LOWER)
    problem = error(f"{function} of letters for which the local engine is not proven equal to Spark")
    is_same = f"{value} IS NULL OR regexp_full_match({value}, {pattern})"
    return f"CASE WHEN {is_same} THEN {function}({value}) ELSE {problem} END"


def _changed_case(function: str) -> _Function:
    """`upper` and `lower`."""
    return lambda scalars, arguments: Typed(_cased(function, text(scalars, arguments[0])), STRING)


def concatenated(scalars: Scalars, arguments: _Arguments) -> Typed:
    """`concat` and `||` of texts."""
    return Typed(f"({chain(' || ', [text(scalars, argument) for argument in arguments])})", STRING)


def _concat_ws(scalars: Scalars, arguments: _Arguments) -> Typed:
    """Nulls are left out."""
    return Typed(f"concat_ws({', '.join(text(scalars, argument) for argument in arguments)})", STRING)


def _trimmed(function: str) -> _Function:
    """`trim`, `ltrim` and `rtrim`: a text, or characters and the text."""

    def trim(scalars: Scalars, arguments: _Arguments) -> Typed:
        *characters, subject = (text(scalars, argument) for argument in arguments)
        return Typed(f"{function}({subject}, {characters[0] if characters else quote_duckdb_string(' ')})", STRING)

    return trim


def _trimmed_of(scalars: Scalars, call: Call) -> Typed:
    """`trim(BOTH characters FROM text)`."""
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(call.detail, "trim")
    return _trimmed(function)(scalars, call.arguments[::-1])


def _substring(scalars: Scalars, arguments: _Arguments) -> Typed:
    subject = text(scalars, arguments[0])
    numbers = [scalars.scalar(argument) for argument in arguments[1:]]
    if any(number.data_type not in INTEGRAL_RANGES for number in numbers):
        raise unsupported("substring with positions that are not integers")
    # Spark counts in 32 bits: a position beyond them is an error, and without a number they are as many as there are.
    start, *count_of = [widen(cast(number, INTEGER), LONG).sql for number in numbers]
    # A negative position counts from the end. Positions before the first character count as well.
    begin = f"CASE WHEN {start} > 0 THEN {start} - 1 WHEN {start} < 0 THEN length({subject}) + {start} ELSE 0 END"
    count = f"({begin}) + {count_of[0] if count_of else 2**31 - 1} - greatest({begin}, 0)"
    part = f"substring({subject}, greatest({begin}, 0) + 1, greatest({count}, 0))"
    is_null = " OR ".join(f"{value} IS NULL" for value in (subject, start, *count_of))
    return Typed(f"CASE WHEN {is_null} THEN NULL ELSE {part} END", STRING)


def _sha2(scalars: Scalars, arguments: _Arguments) -> Typed:
    if constant(scalars, arguments[1], int, "sha2") not in (0, 256):
        raise unsupported("sha2 of any length but 256")
    return Typed(f"sha256({_binary(scalars, arguments[0])})", STRING)


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


def _unit(scalars: Scalars, node: Expression, units: dict[str, str]) -> str:
    name = constant(scalars, node, str, "a date cut off").upper()
    if name not in units:
        raise unsupported(f"a date cut off at {name[:40]}")
    return units[name]


def _truncated_date(scalars: Scalars, arguments: _Arguments) -> Typed:
    unit = _unit(scalars, arguments[1], _DATE_UNITS)
    return Typed(f"CAST(date_trunc('{unit}', {_day(scalars, arguments[0]).sql}) AS DATE)", DATE)


def _truncated_moment(scalars: Scalars, arguments: _Arguments) -> Typed:
    unit = _unit(scalars, arguments[0], _TIME_UNITS)
    plain = f"CAST(date_trunc('{unit}', {_moment(scalars, arguments[1]).sql}) AS TIMESTAMP)"
    return cast(Typed(plain, TIMESTAMP_NTZ), TIMESTAMP)


def _extracted(scalars: Scalars, call: Call) -> Typed:
    """`extract(part FROM date)`."""
    part = {"WEEK": "weekofyear", "DOW": "dayofweek", "DOY": "dayofyear"}.get(call.detail, call.detail.lower())
    if part not in ("year", "quarter", "month", "weekofyear", "day", "dayofweek", "dayofyear", "hour", "minute"):
        raise unsupported(f"the part {call.detail[:40]} of a date")
    return named(scalars, Call(part, call.arguments))


_FORMATTED = {
    "yyyy": "lpad(CAST(year({0}) AS VARCHAR), 4, '0')",
    **{
        letters: f"lpad(CAST({part}({{0}}) AS VARCHAR), 2, '0')"
        for letters, part in (("MM", "month"), ("dd", "day"), ("HH", "hour"), ("mm", "minute"), ("ss", "second"))
    },
}
_FORMAT = re.compile(r"([A-Za-z])\1*|'[^']+'|[^A-Za-z'\[\]{}#]+")


def _date_format(scalars: Scalars, arguments: _Arguments) -> Typed:
    """With the letters of `_FORMATTED`."""
    value = _moment(scalars, arguments[0]).sql
    pattern = constant(scalars, arguments[1], str, "date_format")
    tokens = list(_FORMAT.finditer(pattern))
    if "".join(token[0] for token in tokens) != pattern or any(t[1] and t[0] not in _FORMATTED for t in tokens):
        raise unsupported(f"the date pattern {pattern[:100]!r}")
    pieces = [_FORMATTED[t[0]].format(value) if t[1] else quote_duckdb_string(t[0].strip("'")) for t in tokens]
    return Typed(in_years(value, value, f"concat({', '.join(pieces)})" if pieces else "''"), STRING)


def shifted(scalars: Scalars, operator: str, date: Expression, interval: Operation) -> Typed:
    """A date or a moment and an interval."""
    value, step = scalars.scalar(date), interval_of(interval.detail)
    if value.data_type not in MOMENTS or step is None or (value.data_type == DATE and step.has_time):
        raise unsupported(f"{value.data_type} and an interval of {interval.detail[:100]}")
    length = f"to_months({step.months})" if step.months else f"to_microseconds({step.micros})"
    moved = f"CAST({cast(value, TIMESTAMP_NTZ).sql} {operator} {length} AS TIMESTAMP)"
    return cast(Typed(moved, TIMESTAMP_NTZ), value.data_type)


# Arrays, maps and structs


def _array(scalars: Scalars, arguments: _Arguments) -> Typed:
    values = [scalars.scalar(argument) for argument in arguments]
    kind = common_type_of([VOID, *(value.data_type for value in values)])
    return Typed(f"[{', '.join(widen(value, kind).sql for value in values)}]", ArrayType(kind, True))


def _map(scalars: Scalars, arguments: _Arguments) -> Typed:
    """A key that is null or there twice raises, as in Spark."""
    values = [scalars.scalar(argument) for argument in arguments]
    if len(values) % 2:
        raise unsupported("a map with a key without a value")
    key, kind = (common_type_of([VOID, *(value.data_type for value in values[i::2])]) for i in (0, 1))
    if not is_atomic(key) or key in (FLOAT, DOUBLE) or (key == VOID and values):
        raise unsupported(f"a map of {key} and {kind}")
    if not values:
        key = STRING  # Arrow has no map whose keys have no type, and of no key any cast is the same
    keys, items = (", ".join(widen(v, k).sql for v in values[i::2]) for i, k in ((0, key), (1, kind)))
    return Typed(f"MAP([{keys}], [{items}])", MapType(key, kind, True))


def _struct_of(scalars: Scalars, arguments: _Arguments) -> Typed:
    """`struct`. A value that has no name gets one by its place."""
    fields = []
    for number, part in enumerate(arguments, 1):
        match part:
            case Column(path):
                fields.append((path[-1], scalars.scalar(part)))
            case Operation("AS", (value,), name):
                fields.append((name, scalars.scalar(value)))
            case _:
                fields.append((f"col{number}", scalars.scalar(part)))
    return _struct(fields)


def _named_struct(scalars: Scalars, arguments: _Arguments) -> Typed:
    if len(arguments) % 2:
        raise unsupported("a struct with a name without a value")
    names = [constant(scalars, name, str, "named_struct") for name in arguments[::2]]
    return _struct([(name, scalars.scalar(value)) for name, value in zip(names, arguments[1::2], strict=True)])


def _struct(fields: list[tuple[str, Typed]]) -> Typed:
    if not fields or len({name.lower() for name, _ in fields}) < len(fields):
        raise unsupported("a struct without fields, or with a name twice")
    return struct_of(fields)


def _size(scalars: Scalars, arguments: _Arguments) -> Typed:
    value = scalars.scalar(arguments[0])
    if not isinstance(value.data_type, ArrayType | MapType):
        raise unsupported(f"a number of elements of {value.data_type}")
    function = "length" if isinstance(value.data_type, ArrayType) else "cardinality"
    return Typed(f"CAST({function}({value.sql}) AS INTEGER)", INTEGER)


def _array_contains(scalars: Scalars, arguments: _Arguments) -> Typed:
    """Null where the array or the value is, and where a null in the array may be the value."""
    array, value = (scalars.scalar(argument) for argument in arguments)
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
    "length": (("text",), _PART.format("length"), INTEGER),
    "instr": (("text", "text"), "CAST(instr({0}, {1}) AS INTEGER)", INTEGER),
    "left": (("text", "int"), _SIDE.format("1, {1}"), STRING),
    "right": (("text", "int"), _SIDE.format("greatest(length({0}) - {1} + 1, 1)"), STRING),
    "startswith": (("text", "text"), "starts_with({0}, {1})", BOOLEAN),
    "endswith": (("text", "text"), "ends_with({0}, {1})", BOOLEAN),
    "contains": (("text", "text"), "contains({0}, {1})", BOOLEAN),
    "lpad": (("text", "width", "filling"), "lpad({0}, {1}, {2})", STRING),
    "rpad": (("text", "width", "filling"), "rpad({0}, {1}, {2})", STRING),
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
"""Functions as text over their arguments: what they take, the text, and the type of the result."""

FUNCTIONS: dict[str, tuple[int, int, _Function]] = {
    "coalesce": (1, _MANY, _same_typed("coalesce")),
    "nvl": (2, 2, _same_typed("coalesce")),
    "greatest": (2, _MANY, _same_typed("greatest")),
    "least": (2, _MANY, _same_typed("least")),
    "nullif": (2, 2, _null_if),
    "if": (3, 3, _if),
    "abs": (1, 1, _absolute),
    "round": (1, 2, _rounded),
    "ceil": (1, 1, _whole("ceil")),
    "floor": (1, 1, _whole("floor")),
    "mod": (2, 2, lambda scalars, arguments: scalars.scalar(Operation("%", tuple(arguments)))),
    "pmod": (2, 2, lambda scalars, arguments: scalars.positive_remainder(*arguments)),
    "upper": (1, 1, _changed_case("upper")),
    "lower": (1, 1, _changed_case("lower")),
    "concat": (1, _MANY, concatenated),
    "concat_ws": (2, _MANY, _concat_ws),
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
    "struct": (1, _MANY, _struct_of),
    "named_struct": (2, _MANY, _named_struct),
    "size": (1, 1, _size),
    "array_contains": (2, 2, _array_contains),
    **{name: (1, 1, _cast_to(cast_target(kind))) for name, kind in CASTS.items()},
}
"""Functions with the least and the greatest number of arguments that they take."""

FUNCTIONS_WITH_WORD: dict[str, Callable[[Scalars, Call], Typed]] = {"extract": _extracted, "trim": _trimmed_of}
"""Functions with a word among their arguments, which is `Call.detail`."""

_LAST_ARGUMENTS = {"lpad": " ", "replace": "", "rpad": " "}
"""The last of three arguments, where it is left out."""

_ALIASES = {
    "cardinality": "size", "ceiling": "ceil", "char_length": "length", "character_length": "length",
    "len": "length", "ifnull": "nvl", "dateadd": "date_add", "date_diff": "datediff", "dayofmonth": "day",
    "lcase": "lower", "ucase": "upper", "substr": "substring",
}  # fmt: skip
