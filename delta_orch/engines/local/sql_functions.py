"""Functions of Spark SQL in DuckDB's SQL that are no operators; `sql_scalars` lists them among its rules.

Each is equal to Spark's for the values that it takes. Values for which it is not raise while the query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from delta_orch.engines.local import sql_dates, sql_nested, sql_operators, sql_text
from delta_orch.engines.local.sql_arguments import (
    ARGUMENTS,
    Scalars,
    constant,
    double_sql,
)
from delta_orch.engines.local.sql_casts import bounded, cast, choose, widen
from delta_orch.engines.local.sql_operators import cast_target
from delta_orch.engines.local.sql_types import (
    Typed,
    as_decimal,
    common_type,
    common_type_of,
    is_atomic,
    is_number,
    unsupported,
)
from delta_orch.expressions.constants import CASTS
from delta_orch.expressions.nodes import Call, Expression, Literal, Operation
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import duckdb_type
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    VOID,
    DataType,
    DecimalType,
)

_Function = Callable[[Scalars, Sequence[Expression]], Typed]

# --- functions that are a template over their arguments: what they take, what they are, and what they give

_MONTHS = "((year({0}) * 12 + month({0})) - (year({1}) * 12 + month({1})))"
_SECONDS = "(day({0}) - day({1})) * 86400 + (hour({0}) - hour({1})) * 3600 + (minute({0}) - minute({1})) * 60"
_SECONDS += " + second({0}) - second({1})"
_MONTHS_BETWEEN = (
    "CASE WHEN day({0}) = day({1}) OR (last_day({0}) = {0}::DATE AND last_day({1}) = {1}::DATE) "
    f"THEN CAST({_MONTHS} AS DOUBLE) "
    f"ELSE floor((CAST({_MONTHS} AS DOUBLE) + CAST({_SECONDS} AS DOUBLE) / 2678400::DOUBLE) * 1e8 + 0.5::DOUBLE) / 1e8 "
    "END"
)
_SUBSTRING = "CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL WHEN {1} <= 0 THEN '' ELSE substring({0}, %s) END"
_TEMPLATES: dict[str, tuple[tuple[str, ...], str, DataType]] = {
    "isnull": (("any",), "({0} IS NULL)", BOOLEAN),
    "isnotnull": (("any",), "({0} IS NOT NULL)", BOOLEAN),
    "md5": (("binary",), "md5({0})", STRING),
    "last_day": (("day",), "last_day({0})", DATE),
    "dayofweek": (("day",), "CAST(dayofweek({0}) + 1 AS INTEGER)", INTEGER),
    "weekday": (("day",), "CAST(isodow({0}) - 1 AS INTEGER)", INTEGER),
    "dayofyear": (("day",), "CAST(dayofyear({0}) AS INTEGER)", INTEGER),
    "weekofyear": (("day",), "CAST(weekofyear({0}) AS INTEGER)", INTEGER),
    "make_date": (("int", "int", "int"), "make_date({0}, {1}, {2})", DATE),
    "add_months": (("day", "int"), "CAST({0} + to_months({1}) AS DATE)", DATE),
    "months_between": (("moment", "moment"), _MONTHS_BETWEEN, DOUBLE),
    "repeat": (("text", "int"), f"repeat({{0}}, {bounded('{1}', 'CAST({1} AS BIGINT) * length({0})')})", STRING),
    "left": (("text", "int"), _SUBSTRING % "1, {1}", STRING),
    "right": (("text", "int"), _SUBSTRING % "greatest(length({0}) - {1} + 1, 1)", STRING),
    "instr": (("text", "text"), "CAST(instr({0}, {1}) AS INTEGER)", INTEGER),
    "sqrt": (("double",), "CASE WHEN {0} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({0}) END", DOUBLE),
}  # fmt: skip
_FLOORED = "CAST((epoch_us({0}) - ((epoch_us({0}) %% %d) + %d) %% %d) // %d AS BIGINT)"
_TEMPLATES |= {
    "timestamp_seconds": (("long",), "CAST(make_timestamp(multiply({0}, 1000000::BIGINT)) AS TIMESTAMPTZ)", TIMESTAMP),
    "timestamp_millis": (("long",), "CAST(make_timestamp(multiply({0}, 1000::BIGINT)) AS TIMESTAMPTZ)", TIMESTAMP),
    "timestamp_micros": (("long",), "CAST(make_timestamp({0}) AS TIMESTAMPTZ)", TIMESTAMP),
    "unix_seconds": (("instant",), _FLOORED % ((1_000_000,) * 4), LONG),
    "unix_millis": (("instant",), _FLOORED % ((1_000,) * 4), LONG),
    "unix_micros": (("instant",), "epoch_us({0})", LONG),
}
_ALIASES = {
    "signum": "sign", "cardinality": "size", "datepart": "date_part",
    "to_unix_timestamp": "unix_timestamp", "ceiling": "ceil", "char_length": "length", "character_length": "length",
    "len": "length", "ifnull": "nvl", "dateadd": "date_add", "date_diff": "datediff",
    "dayofmonth": "day", "lcase": "lower", "ucase": "upper",
    "substr": "substring", "position": "locate",
}  # fmt: skip


def named(scalars: Scalars, call: Call) -> Typed:
    """A function by its name. Raises UnsupportedExpressionError for any that is not listed here."""
    name = _ALIASES.get(call.name, call.name)
    arguments = call.arguments
    if call.detail:
        if name not in _WITH_WORD:
            raise unsupported(f"the function {name[:100]} with {call.detail[:40]}")
        return _WITH_WORD[name](scalars, call)
    if name in _NAMED:
        return _NAMED[name](scalars, arguments)
    takes, template, gives = _TEMPLATES.get(name, ((), "", VOID))
    sqls = [ARGUMENTS[kind](scalars, argument) for kind, argument in zip(takes, arguments, strict=False)]
    if not template or len(sqls) != len(takes) or len(arguments) > len(takes):
        raise unsupported(f"the function {name[:100]}")
    return Typed(f"({template.format(*sqls)})", gives)


def _replaced(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    text, old, *rest = (ARGUMENTS["text"](scalars, argument) for argument in arguments)
    match arguments:
        case [_, _]:
            return Typed(f"replace({text}, {old}, '')", STRING)
        case [_, Literal(str() as before), Literal(str() as after)] if len(after) <= len(before):
            return Typed(f"replace({text}, {old}, {rest[0]})", STRING)
    # Each argument is spelled once, as one may be such a call itself: a list of one gives them names.
    given = f"[struct_pack(t := {text}, o := {old}, n := {rest[0]})]"
    text, old, new = (f"struct_extract(given, '{name}')" for name in "ton")
    found = f"(length({text}) - length(replace({text}, {old}, ''))) // greatest(length({old}), 1)"
    size = f"length({text}) + {found} * (length({new}) - length({old}))"
    return Typed(f"list_transform({given}, lambda given: replace({text}, {old}, {bounded(new, size)}))[1]", STRING)


# --- numbers


def _rounded(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = scalars.scalar(arguments[0])
    digits = constant(scalars, arguments[1], int, "round") if len(arguments) > 1 else 0
    kind = value.data_type
    if kind == STRING:
        value, kind = cast(value, DOUBLE), DOUBLE
    if kind in INTEGRAL_RANGES:
        near = f"CAST(round(CAST({value.sql} AS DECIMAL(20,0)), {digits}) AS {duckdb_type(kind)})"
        return Typed(value.sql if digits >= 0 else near, kind)
    if isinstance(kind, DecimalType):
        target = _rounded_type(kind, digits)
        number = value.sql if digits >= 0 else f"round({value.sql}, {digits})"
        return Typed(f"CAST({number} AS {duckdb_type(target)})", target)
    if kind in (FLOAT, DOUBLE) and 0 <= digits <= 15:
        # By its shortest decimal, as Java does; a number this large has no fraction to round.
        exact = (
            f"CAST(CAST(CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38,{digits})) AS VARCHAR) AS {duckdb_type(kind)})"
        )
        return Typed(f"CASE WHEN abs({value.sql}) < 1e16 THEN {exact} ELSE {value.sql} END", kind)
    raise unsupported(f"round of {kind} to {digits} digits")


def _rounded_type(kind: DecimalType, digits: int) -> DecimalType:
    scale = max(min(kind.scale, digits), 0)
    return DecimalType(min(max(kind.precision - kind.scale, -digits) + 1 + scale, MAX_DECIMAL_DIGITS), scale)


def _whole(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    def whole(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        value = scalars.scalar(arguments[0])
        if len(arguments) == 2:
            return _to_digits(function, value, constant(scalars, arguments[1], int, function))
        if value.data_type in INTEGRAL_RANGES:
            return widen(value, LONG)
        if isinstance(value.data_type, DecimalType):
            kind = value.data_type
            target = DecimalType(max(kind.precision - kind.scale + 1, 1), 0)
            if target.precision > 38:
                raise unsupported(f"{function} of {kind}")
            return Typed(f"CAST({function}({value.sql}) AS {duckdb_type(target)})", target)
        if value.data_type not in (FLOAT, DOUBLE):
            raise unsupported(f"{function} of {value.data_type}")
        number = f"CAST({value.sql} AS DOUBLE)"
        # Before Spark 4.3, what no long holds became the largest one; now it raises, as here.
        return Typed(f"CASE WHEN isnan({number}) THEN 0 ELSE CAST({function}({number}) AS BIGINT) END", LONG)

    return whole


def _to_digits(function: str, value: Typed, digits: int) -> Typed:
    """`ceil` and `floor` to digits behind the point: of decimals, which Spark makes of other numbers."""
    if not is_number(value.data_type) or digits < 0:
        raise unsupported(f"{function} of {value.data_type} to {digits} digits")
    kind = _DECIMALS.get(value.data_type) or as_decimal(value.data_type)
    value, target = cast(value, kind), _rounded_type(kind, digits)
    near, step = (f"CAST({sql} AS {duckdb_type(target)})" for sql in (value.sql, f"'1e-{target.scale}'"))
    off, sign = ("<", "+") if function == "ceil" else (">", "-")
    other = f"CAST({near} {sign} {step} AS {duckdb_type(target)})"
    return Typed(f"CASE WHEN {near} {off} {value.sql} THEN {other} ELSE {near} END", target)


_DECIMALS: dict[DataType, DecimalType] = {DOUBLE: DecimalType(30, 15), FLOAT: DecimalType(14, 7)}


def _sign(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = double_sql(scalars, arguments[0])
    return Typed(f"CASE WHEN isnan({value}) OR {value} = 0 THEN {value} WHEN {value} > 0 THEN 1::DOUBLE "
                 f"WHEN {value} < 0 THEN -1::DOUBLE END", DOUBLE)  # fmt: skip


def _nanvl(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    first, second = (double_sql(scalars, argument) for argument in arguments)
    return Typed(f"CASE WHEN isnan({first}) THEN {second} ELSE {first} END", DOUBLE)


def _absolute(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = scalars.scalar(arguments[0])
    if not is_number(value.data_type):
        raise unsupported(f"abs of {value.data_type}")
    return Typed(f"abs({sql_operators.short(value)})", value.data_type)


def _is_nan(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = scalars.scalar(arguments[0])
    if value.data_type not in (FLOAT, DOUBLE):
        raise unsupported(f"isnan of {value.data_type}")
    return Typed(f"coalesce(isnan({value.sql}), FALSE)", BOOLEAN)


def _cast_to(kind: DataType) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    return lambda scalars, arguments: cast(scalars.scalar(arguments[0]), kind)


# --- choices


def _same_typed(scalars: Scalars, function: str, arguments: Sequence[Expression]) -> Typed:
    values = [scalars.scalar(argument) for argument in arguments]
    kind = common_type_of([value.data_type for value in values])
    return Typed(f"{function}({', '.join(widen(value, kind).sql for value in values)})", kind)


def _coalesce(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    return _same_typed(scalars, "coalesce", arguments)


def _extreme(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    def extreme(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        kinds = {scalars.scalar(argument).data_type for argument in arguments} - {VOID}
        value = _same_typed(scalars, function, arguments)
        if not is_atomic(value.data_type) or (STRING in kinds and len(kinds) > 1):
            raise unsupported(f"{function} of these types")
        return value

    return extreme


def _null_if(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    # Spark keeps the first value under a name of its own, and fills up only columns.
    value, other = (replace(scalars.scalar(argument), char_width=None) for argument in arguments)
    equal = scalars.equal(value, other)
    return Typed(f"CASE WHEN {equal} THEN NULL ELSE {value.sql} END", value.data_type)


def _if(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    condition, then, otherwise = arguments
    return choose([scalars.boolean(condition)], [scalars.scalar(then)], scalars.scalar(otherwise))


def _second_unless_null(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    then, otherwise = map(scalars.scalar, arguments[1:])
    kind = common_type(then.data_type, otherwise.data_type)
    test = scalars.scalar(arguments[0]).sql
    return Typed(
        f"CASE WHEN {test} IS NOT NULL THEN {widen(then, kind).sql} ELSE {widen(otherwise, kind).sql} END", kind
    )


def _taking(least: int, most: int, function: _Function) -> _Function:
    def checked(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        if not least <= len(arguments) <= most:
            raise unsupported(f"a function with {len(arguments)} arguments")
        return function(scalars, arguments)

    return checked


def _operator(name: str) -> _Function:
    return lambda scalars, arguments: scalars.scalar(Operation(name, tuple(arguments)))


_MANY = 1000
_NAMED: dict[str, _Function] = {
    "abs": _taking(1, 1, _absolute),
    "array": _taking(0, _MANY, sql_nested.array),
    "ceil": _taking(1, 2, _whole("ceil")),
    "coalesce": _taking(1, _MANY, _coalesce),
    "concat": _taking(1, _MANY, sql_text.concatenated),
    "contains": _taking(2, 2, sql_text.text_test("contains")),
    "date_add": _taking(2, 2, sql_dates.day_shift("+")),
    "date_sub": _taking(2, 2, sql_dates.day_shift("-")),
    "date_trunc": _taking(2, 2, sql_dates.truncated_moment),
    "datediff": _taking(2, 2, sql_dates.date_difference),
    "day": _taking(1, 1, sql_dates.day_part("day")),
    "element_at": _taking(2, 2, lambda scalars, arguments: sql_nested.element(scalars, arguments, 1)),
    "endswith": _taking(2, 2, sql_text.text_test("ends_with")),
    "floor": _taking(1, 2, _whole("floor")),
    "greatest": _taking(2, _MANY, _extreme("greatest")),
    "hour": _taking(1, 1, sql_dates.time_part("hour")),
    "if": _taking(3, 3, _if),
    "isnan": _taking(1, 1, _is_nan),
    "least": _taking(2, _MANY, _extreme("least")),
    "length": _taking(1, 1, sql_text.length),
    "like": _taking(2, 2, _operator("LIKE")),
    "lower": _taking(1, 1, sql_text.changed_case("lower")),
    "ltrim": _taking(1, 2, sql_text.trimmed("ltrim")),
    "minute": _taking(1, 1, sql_dates.time_part("minute")),
    "mod": _taking(2, 2, _operator("%")),
    "month": _taking(1, 1, sql_dates.day_part("month")),
    "named_struct": _taking(2, _MANY, sql_nested.named_struct),
    "nullif": _taking(2, 2, _null_if),
    "nvl": _taking(2, 2, _coalesce),
    "nvl2": _taking(3, 3, _second_unless_null),
    "quarter": _taking(1, 1, sql_dates.day_part("quarter")),
    "rtrim": _taking(1, 2, sql_text.trimmed("rtrim")),
    "second": _taking(1, 1, sql_dates.time_part("second")),
    "startswith": _taking(2, 2, sql_text.text_test("starts_with")),
    "struct": _taking(1, _MANY, sql_nested.struct),
    "substring": _taking(2, 3, sql_text.substring),
    "trim": _taking(1, 2, sql_text.trimmed("trim")),
    "trunc": _taking(2, 2, sql_dates.truncated_date),
    "upper": _taking(1, 1, sql_text.changed_case("upper")),
    "year": _taking(1, 1, sql_dates.day_part("year")),
    "pmod": _taking(2, 2, lambda scalars, arguments: scalars.positive_remainder(*arguments)),
    "date_format": _taking(2, 2, sql_dates.date_format),
    "from_unixtime": _taking(1, 2, sql_dates.from_unixtime),
    "to_date": _taking(1, 2, sql_dates.to_date),
    "to_timestamp": _taking(1, 2, sql_dates.to_timestamp),
    "unix_timestamp": _taking(1, 2, sql_dates.unix_timestamp),
    "date_part": _taking(2, 2, lambda s, a: sql_dates.date_part(s, constant(s, a[0], str, "date_part"), a[1])),
    "concat_ws": _taking(1, 1000, sql_text.concat_ws),
    "lpad": _taking(2, 3, sql_text.padded("lpad")),
    "rpad": _taking(2, 3, sql_text.padded("rpad")),
    "sha2": _taking(2, 2, sql_text.sha2),
    "split_part": _taking(3, 3, sql_text.split_part),
    "hex": _taking(1, 1, sql_text.hexadecimal),
    "replace": _taking(2, 3, _replaced),
    "locate": _taking(2, 3, sql_text.located),
    "round": _taking(1, 2, _rounded),
    "sign": _taking(1, 1, _sign),
    "nanvl": _taking(2, 2, _nanvl),
    "size": _taking(1, 1, sql_nested.size),
    "array_contains": _taking(2, 2, sql_nested.array_contains),
    "map": _taking(0, _MANY, sql_nested.make_map),
    "map_keys": _taking(1, 1, sql_nested.map_parts("map_keys")),
    "map_values": _taking(1, 1, sql_nested.map_parts("map_values")),
    "map_contains_key": _taking(2, 2, sql_nested.map_contains_key),
    "equal_null": _taking(2, 2, lambda scalars, arguments: scalars.compared("<=>", *arguments)),
    **{name: _taking(1, 1, _cast_to(cast_target(kind))) for name, kind in CASTS.items() if name != "to_timestamp"},
}
_WITH_WORD: dict[str, Callable[[Scalars, Call], Typed]] = {
    "extract": lambda scalars, call: sql_dates.date_part(scalars, call.detail, call.arguments[0]),
    "trim": sql_text.trimmed_of,
}
"""Functions with a word among their arguments, which stand in `Call.detail`."""
