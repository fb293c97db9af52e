"""Functions of Spark SQL in DuckDB's SQL that are no operators; `sql_scalars` lists them among its rules.

Each is equal to Spark's for the values that it takes. Values for which it is not raise while the query runs.
"""

from __future__ import annotations

from typing import Protocol

from delta_orch.engines.local.sql_types import Typed, cast, common_type, unsupported, widen
from delta_orch.expressions.parse_literals import Tree
from delta_orch.expressions.to_sql import quote_duckdb_string
from delta_orch.protocol.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ

# Latin and Cyrillic letters, without those that become several letters, or whose case Java and DuckDB know from
# different versions of Unicode. A sigma at the end of a word makes Greek a matter of its own.
_SAME_UPPER = r"[\x{01}-\x{DE}\x{E0}-\x{148}\x{14A}-\x{19A}\x{19C}-\x{1EF}\x{1F1}-\x{24F}\x{400}-\x{52F}]*"
_SAME_LOWER = r"[\x{01}-\x{12F}\x{131}-\x{24F}\x{400}-\x{52F}]*"
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


class _Scalars(Protocol):
    def scalar(self, tree: Tree) -> Typed: ...

    def text(self, tree: Tree) -> str: ...

    def day(self, tree: Tree) -> Typed: ...

    def boolean(self, tree: Tree) -> str: ...


def changed_case(scalars: _Scalars, tree: Tree) -> Typed:
    """`upper` and `lower`."""
    function = type(tree).__name__.lower()
    text = scalars.text(tree.this)
    pattern = quote_duckdb_string(_SAME_UPPER if function == "upper" else _SAME_LOWER)
    problem = quote_duckdb_string(f"{function} of letters for which the local engine is not proven equal to Spark")
    return Typed(
        f"CASE WHEN {text} IS NULL OR regexp_full_match({text}, {pattern}) THEN {function}({text}) "
        f"ELSE error({problem}) END",
        STRING,
    )


def truncated_date(scalars: _Scalars, tree: Tree) -> Typed:
    """`trunc`."""
    unit = _unit(tree, _DATE_UNITS)
    return Typed(f"CAST(date_trunc('{unit}', {scalars.day(tree.this).sql}) AS DATE)", DATE)


def truncated_moment(scalars: _Scalars, tree: Tree) -> Typed:
    """`date_trunc`."""
    unit = _unit(tree, _TIME_UNITS)
    value = scalars.scalar(tree.this)
    if value.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        raise unsupported(f"date_trunc of {value.data_type}")
    plain = cast(value, TIMESTAMP_NTZ)
    return cast(Typed(f"CAST(date_trunc('{unit}', {plain.sql}) AS TIMESTAMP)", TIMESTAMP_NTZ), TIMESTAMP)


def _unit(tree: Tree, units: dict[str, str]) -> str:
    unit = tree.args.get("unit")
    name = "" if unit is None else str(unit.name).upper()
    if name not in units:
        raise unsupported(f"a date cut off at {name[:40] or 'a unit that is no constant'}")
    return units[name]


def second_unless_null(scalars: _Scalars, tree: Tree) -> Typed:
    """`nvl2`."""
    then, otherwise = scalars.scalar(tree.args["true"]), scalars.scalar(tree.args["false"])
    kind = common_type(then.data_type, otherwise.data_type)
    test = scalars.scalar(tree.this).sql
    return Typed(
        f"CASE WHEN {test} IS NOT NULL THEN {widen(then, kind).sql} ELSE {widen(otherwise, kind).sql} END", kind
    )


def named(scalars: _Scalars, tree: Tree) -> Typed:
    """`isnull` and `isnotnull`, which the parser knows as names only."""
    name = str(tree.this).lower()
    if name not in ("isnull", "isnotnull") or len(tree.expressions) != 1:
        raise unsupported(f"the function {name[:100]}")
    operator = "IS NULL" if name == "isnull" else "IS NOT NULL"
    return Typed(f"({scalars.scalar(tree.expressions[0]).sql} {operator})", BOOLEAN)
