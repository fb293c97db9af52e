"""Functions of Spark SQL on dates and moments in DuckDB's SQL; sessions run in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from delta_orch.engines.local.sql_arguments import Scalars, constant, long_sql, moment
from delta_orch.engines.local.sql_casts import cast, error, in_years, whole_seconds, widen
from delta_orch.engines.local.sql_types import MOMENTS, Typed, unsupported
from delta_orch.expressions.constants import interval_of
from delta_orch.expressions.nodes import Expression, Literal, Operation
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.to_sql import quote_duckdb_string
from delta_orch.protocol.types import DATE, INTEGER, LONG, STRING, TIMESTAMP, TIMESTAMP_NTZ

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


def truncated_date(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`trunc`."""
    unit = _unit(scalars, arguments[1], _DATE_UNITS)
    return Typed(f"CAST(date_trunc('{unit}', {scalars.day(arguments[0]).sql}) AS DATE)", DATE)


def truncated_moment(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`date_trunc`."""
    unit = _unit(scalars, arguments[0], _TIME_UNITS)
    plain = moment(scalars, arguments[1])
    return cast(Typed(f"CAST(date_trunc('{unit}', {plain.sql}) AS TIMESTAMP)", TIMESTAMP_NTZ), TIMESTAMP)


def _unit(scalars: Scalars, node: Expression, units: dict[str, str]) -> str:
    name = constant(scalars, node, str, "a date cut off").upper()
    if name not in units:
        raise unsupported(f"a date cut off at {name[:40]}")
    return units[name]


def date_format(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = moment(scalars, arguments[0]).sql
    pattern = constant(scalars, arguments[1], str, "date_format")
    return Typed(in_years(value, value, _printed(value, pattern)), STRING)


def from_unixtime(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    seconds = long_sql(scalars, arguments[0])
    pattern = "yyyy-MM-dd HH:mm:ss"
    if len(arguments) > 1:
        pattern = constant(scalars, arguments[1], str, "from_unixtime")
    value = f"make_timestamp(multiply({seconds}, 1000000::BIGINT))"
    return Typed(in_years(value, value, _printed(value, pattern)), STRING)


def _parsed(scalars: Scalars, arguments: Sequence[Expression], what: str) -> str:
    value = scalars.scalar(arguments[0])
    if value.data_type != STRING:
        raise unsupported(f"{what} of {value.data_type} with a pattern")
    valid, result = _parsed_by(value.sql, constant(scalars, arguments[1], str, what))
    problem = error("[CANNOT_PARSE_TIMESTAMP] The text does not fit the pattern, or only the Spark engine reads it")
    return f"CASE WHEN {value.sql} IS NULL THEN NULL WHEN {valid} THEN {result} ELSE {problem} END"


def to_date(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    if len(arguments) == 1:
        return scalars.day(arguments[0])
    return Typed(f"CAST({_parsed(scalars, arguments, 'to_date')} AS DATE)", DATE)


def to_timestamp(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    if len(arguments) == 1:
        return cast(scalars.scalar(arguments[0]), TIMESTAMP)
    return Typed(f"CAST({_parsed(scalars, arguments, 'to_timestamp')} AS TIMESTAMPTZ)", TIMESTAMP)


def unix_timestamp(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = scalars.scalar(arguments[0])
    if value.data_type == STRING:
        pattern = arguments[1:] or (Literal("yyyy-MM-dd HH:mm:ss"),)
        return Typed(
            whole_seconds(Typed(_parsed(scalars, [arguments[0], *pattern], "unix_timestamp"), TIMESTAMP_NTZ)), LONG
        )
    if len(arguments) > 1 and scalars.scalar(arguments[1]).data_type != STRING:
        raise unsupported("unix_timestamp with a pattern that is no text")
    return Typed(f"(epoch_us({moment(scalars, arguments[0]).sql}) // 1000000)", LONG)


_PARTS = {
    **dict.fromkeys(("YEAR", "Y", "YEARS", "YR", "YRS"), "year"),
    **dict.fromkeys(("QUARTER", "QTR"), "quarter"),
    **dict.fromkeys(("MONTH", "MON", "MONS", "MONTHS"), "month"),
    **dict.fromkeys(("WEEK", "W", "WEEKS"), "weekofyear"),
    **dict.fromkeys(("DAY", "D", "DAYS"), "day"),
    "DOY": "dayofyear",
    **dict.fromkeys(("HOUR", "H", "HOURS", "HR", "HRS"), "hour"),
    **dict.fromkeys(("MINUTE", "M", "MIN", "MINS", "MINUTES"), "minute"),
}


def date_part(scalars: Scalars, name: str, value: Expression) -> Typed:
    """`date_part`, and `EXTRACT(part FROM date)`."""
    upper = name.upper()
    if upper in ("DOW", "DAYOFWEEK"):
        return Typed(f"CAST(dayofweek({scalars.day(value).sql}) + 1 AS INTEGER)", INTEGER)
    if upper not in _PARTS:
        raise unsupported(f"the part {name[:40]} of a date")
    return Typed(f"CAST({_PARTS[upper]}({moment(scalars, value).sql}) AS INTEGER)", INTEGER)


def day_part(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`year`, `month`, `day` or `quarter`."""
    return lambda scalars, arguments: Typed(f"CAST({function}({scalars.day(arguments[0]).sql}) AS INTEGER)", INTEGER)


def time_part(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`hour`, `minute` or `second`."""
    return lambda scalars, arguments: Typed(
        f"CAST({function}({moment(scalars, arguments[0]).sql}) AS INTEGER)", INTEGER
    )


def day_shift(operator: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`date_add` and `date_sub`."""

    def shift(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        amount = scalars.scalar(arguments[1])
        if amount.data_type not in INTEGRAL_RANGES or amount.data_type == LONG:
            raise unsupported(f"adding {amount.data_type} to a date")
        days = widen(amount, INTEGER).sql
        return Typed(f"CAST({scalars.day(arguments[0]).sql} {operator} {days} AS DATE)", DATE)

    return shift


def date_difference(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`datediff`."""
    later, earlier = (scalars.day(argument).sql for argument in arguments)
    return Typed(f"CAST({later} - {earlier} AS INTEGER)", INTEGER)


def shifted(scalars: Scalars, operator: str, date: Expression, interval: Operation) -> Typed:
    """A date or a moment and an interval."""
    value, found = scalars.scalar(date), interval_of(interval.detail)
    if value.data_type not in MOMENTS or found is None or (value.data_type == DATE and found.has_time):
        raise unsupported(f"{value.data_type} and an interval of {interval.detail[:100]}")
    plain = cast(value, TIMESTAMP_NTZ).sql
    step = f"to_months({found.months})" if found.months else f"to_microseconds({found.micros})"
    sql = f"CAST({plain} {operator} {step} AS TIMESTAMP)"
    return cast(Typed(sql, TIMESTAMP_NTZ), value.data_type)


# Patterns of Java's DateTimeFormatter in DuckDB's SQL: letters for which both are proven to agree.

_TOKEN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'\[\]{}#]")
_TWO = {"MM": "month", "dd": "day", "HH": "hour", "mm": "minute", "ss": "second"}
_ONE = {"y": "year", "M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second"}


def _padded(number: str, width: int = 2) -> str:
    return f"lpad(CAST({number} AS VARCHAR), {width}, '0')"


_PRINTED = {
    **{letters: _padded(f"{part}({{0}})") for letters, part in _TWO.items()},
    **{letter: f"CAST({part}({{0}}) AS VARCHAR)" for letter, part in _ONE.items()},
    "yyyy": _padded("year({0})", 4),
    "yy": _padded("year({0}) % 100"),
    "MMM": "strftime({0}, '%b')", "MMMM": "strftime({0}, '%B')",
    **dict.fromkeys(("E", "EE", "EEE"), "strftime({0}, '%a')"), "EEEE": "strftime({0}, '%A')",
    "hh": _padded("(hour({0}) + 11) % 12 + 1"), "h": "CAST((hour({0}) + 11) % 12 + 1 AS VARCHAR)",
    "a": "CASE WHEN hour({0}) < 12 THEN 'AM' ELSE 'PM' END",
    "SSS": _padded("microsecond({0}) % 1000000 // 1000", 3), "SSSSSS": _padded("microsecond({0}) % 1000000", 6),
    "D": "CAST(dayofyear({0}) AS VARCHAR)", "DDD": _padded("dayofyear({0})", 3),
    "q": "CAST(quarter({0}) AS VARCHAR)", "Q": "CAST(quarter({0}) AS VARCHAR)",
}  # fmt: skip


def _parts(pattern: str) -> list[tuple[bool, str]]:
    """Letters (True) and text in their order. Raises UnsupportedExpressionError."""
    found: list[tuple[bool, str]] = []
    position = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise _refusal(pattern)
        text = token[0]
        if text.startswith("'"):
            found.append((False, "'" if text == "''" else text[1:-1].replace("''", "'")))
        else:
            found.append((token[1] is not None, text))
        position = token.end()
    return found


def _refusal(pattern: str) -> Exception:
    return unsupported(f"the date pattern {pattern[:100]!r}")


def _printed(moment: str, pattern: str) -> str:
    """`date_format` of a TIMESTAMP of DuckDB. Raises UnsupportedExpressionError."""
    pieces = []
    for is_letters, text in _parts(pattern):
        if is_letters and text not in _PRINTED:
            raise _refusal(pattern)
        pieces.append(_PRINTED[text].replace("{0}", moment) if is_letters else quote_duckdb_string(text))
    return f"concat({', '.join(pieces)})" if pieces else "''"


def _parsed_by(text: str, pattern: str) -> tuple[str, str]:
    """What text must match whole, and its TIMESTAMP then. Raises UnsupportedExpressionError."""
    expression, order = "", []
    for is_letters, part in _parts(pattern):
        if not is_letters:
            expression += "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in part)
            continue
        if (part != "yyyy" and part not in _TWO) or part in order:
            raise _refusal(pattern)
        order.append(part)
        expression += f"([0-9]{{{len(part)}}})"
    if (
        "yyyy" not in order
        or ("dd" in order and "MM" not in order)
        or ("HH" not in order and {"mm", "ss"} & set(order))
    ):
        raise _refusal(pattern)
    if "HH" in order and "dd" not in order:
        raise _refusal(pattern)
    whole = quote_duckdb_string(f"^{expression}$")
    values = {part: f"regexp_extract({text}, {whole}, {i})" for i, part in enumerate(order, 1)}
    day = ", '-', ".join(values.get(part, "'01'") for part in ("yyyy", "MM", "dd"))
    clock = ", ':', ".join(values.get(part, "'00'") for part in ("HH", "mm", "ss"))
    valid = f"regexp_full_match({text}, {quote_duckdb_string(expression)}) AND {values['yyyy']} <> '0000'"
    for part, most in (("HH", "23"), ("mm", "59"), ("ss", "59")):
        if part in values:
            valid += f" AND {values[part]} <= '{most}'"
    return valid, f"CAST(concat({day}, ' ', {clock}) AS TIMESTAMP)"
