"""Patterns of Java's DateTimeFormatter in DuckDB's SQL: letters for which both are proven to agree."""

from __future__ import annotations

import re

from delta_orch.engines.local.sql_types import unsupported
from delta_orch.expressions.to_sql import quote_duckdb_string

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


def printed(moment: str, pattern: str) -> str:
    """`date_format` of a TIMESTAMP of DuckDB. Raises UnsupportedExpressionError."""
    pieces = []
    for is_letters, text in _parts(pattern):
        if is_letters and text not in _PRINTED:
            raise _refusal(pattern)
        pieces.append(_PRINTED[text].replace("{0}", moment) if is_letters else quote_duckdb_string(text))
    return f"concat({', '.join(pieces)})" if pieces else "''"


def parsed(text: str, pattern: str) -> tuple[str, str]:
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
