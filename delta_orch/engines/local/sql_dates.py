"""Functions of Spark SQL on dates and moments in DuckDB's SQL; sessions run in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from delta_orch.engines.local import date_patterns
from delta_orch.engines.local.sql_arguments import (
    Scalars,
    constant,
    long_sql,
    moment,
)
from delta_orch.engines.local.sql_casts import cast, error, in_years, whole_seconds, widen
from delta_orch.engines.local.sql_types import MOMENTS, Typed, unsupported
from delta_orch.expressions.nodes import Expression, Literal, Operation
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.protocol.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
)

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
    return Typed(in_years(value, value, date_patterns.printed(value, pattern)), STRING)


def from_unixtime(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    seconds = long_sql(scalars, arguments[0])
    pattern = "yyyy-MM-dd HH:mm:ss"
    if len(arguments) > 1:
        pattern = constant(scalars, arguments[1], str, "from_unixtime")
    value = f"make_timestamp(multiply({seconds}, 1000000::BIGINT))"
    return Typed(in_years(value, value, date_patterns.printed(value, pattern)), STRING)


def _parsed(scalars: Scalars, arguments: Sequence[Expression], what: str) -> str:
    value = scalars.scalar(arguments[0])
    if value.data_type != STRING:
        raise unsupported(f"{what} of {value.data_type} with a pattern")
    valid, result = date_patterns.parsed(value.sql, constant(scalars, arguments[1], str, what))
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
    return Typed(f"(epoch_us({moment(scalars, arguments[0]).sql}) // 1000000)", LONG)


_WEEKDAYS = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")


def next_day(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    name = constant(scalars, arguments[1], str, "next_day").strip().upper()
    found = [i + 1 for i, day in enumerate(_WEEKDAYS) if name in (day, day[:3], day[:2])]
    if not found:
        raise unsupported(f"next_day to {name[:40]!r}")
    day = scalars.day(arguments[0]).sql
    return Typed(f"CAST({day} + CAST((({found[0]} - isodow({day}) + 6) % 7 + 1) AS INTEGER) AS DATE)", DATE)


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


_MICROS = {"SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6, "DAY": 86400 * 10**6, "WEEK": 7 * 86400 * 10**6}


def units_between(scalars: Scalars, unit: str, arguments: Sequence[Expression]) -> Typed:
    """`timestampdiff(unit, start, end)`: whole units of a fixed length. Months and longer ones are refused."""
    micros = _MICROS.get(unit.upper().removesuffix("S"))
    if micros is None or len(arguments) != 2:
        raise unsupported(f"a difference in units of {unit[:40]}")
    values = [scalars.scalar(argument) for argument in arguments]
    if any(value.data_type not in (*MOMENTS, STRING) for value in values):
        raise unsupported("a difference of values that are not points in time")
    start, end = (f"epoch_us({cast(value, TIMESTAMP).sql})" for value in values)
    return Typed(f"((({end}) - ({start})) // {micros})", LONG)


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
    """A date or a moment and an interval of one unit."""
    value = scalars.scalar(date)
    found = re.fullmatch(r"(['\"]?)(-?\d{1,6})\1 (DAY|WEEK|MONTH|YEAR|HOUR|MINUTE|SECOND)S?", interval.detail)
    if (
        value.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ)
        or found is None
        or (value.data_type == DATE and found[3] in ("HOUR", "MINUTE", "SECOND"))
    ):
        raise unsupported(f"{value.data_type} and an interval of {interval.detail[:100]}")
    plain = cast(value, TIMESTAMP_NTZ).sql
    sql = f"CAST({plain} {operator} to_{found[3].lower()}s(CAST({found[2]} AS INTEGER)) AS TIMESTAMP)"
    return cast(Typed(sql, TIMESTAMP_NTZ), value.data_type)
