"""Rows and predicates with which our evaluation is compared with Spark's: every type, every edge, many spellings."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from delta_orch.protocol.arrow_building import schema_to_arrow
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
    DecimalType,
    StructField,
    StructType,
)

SCHEMA = StructType(
    (
        StructField("id", LONG),
        StructField("b", BYTE),
        StructField("sh", SHORT),
        StructField("i", INTEGER),
        StructField("l", LONG),
        StructField("f", FLOAT),
        StructField("x", DOUBLE),
        StructField("d5", DecimalType(5, 2)),
        StructField("d38", DecimalType(38, 10)),
        StructField("S", STRING),
        StructField("bin", BINARY),
        StructField("bo", BOOLEAN),
        StructField("day", DATE),
        StructField("ts", TIMESTAMP),
        StructField("n", TIMESTAMP_NTZ),
        StructField("st", StructType((StructField("A", LONG), StructField("b.c", STRING)))),
        StructField("col.dot", LONG),
        StructField("we`ird", STRING),
    )
)

STRINGS = [
    "", " ", "a", "A", "ab", "abc", "ä", "a\u0308", "😀", "😀a", "it's", 'q"q', "a%b", "a_b", "\\", "a\\b", "5", "5.5",
    "2013-01-01", "true", "\t", "line\nbreak", "ÿ", "zzz", "\ud7ff", "\uffff",
]  # fmt: skip
_EDGES: dict[str, list[Any]] = {
    "b": [0, 1, -1, 5, 127, -128],
    "sh": [0, 1, 5, 32767, -32768],
    "i": [0, 1, 5, -7, 2**31 - 1, -(2**31), 16777217],
    "l": [0, 5, 2**53, 2**53 + 1, 2**53 - 1, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 1.5, 0.1, math.nan, math.inf, -math.inf, 16777216.0, 3.4028234663852886e38, 1e-45],
    "x": [0.0, -0.0, 1.5, 0.1, math.nan, math.inf, -math.inf, 2.0**53, 1e308, 5e-324, 0.10000000149011612],
    "d5": [Decimal(v) for v in ("0.00", "1.50", "-2.25", "999.99", "-999.99", "0.10")],
    "d38": [Decimal(v) for v in ("0", "1.5", "0.1", "0.1000000000", "9999999999999999999999999999", "-1e-10")],
    "S": STRINGS,
    "bin": [b"", b"a", b"ab", b"\x00", b"\xff", "ä".encode()],
    "bo": [True, False],
    "day": [
        date(1, 1, 1), date(1582, 10, 10), date(1970, 1, 1), date(2013, 1, 1), date(2013, 1, 2), date(9999, 12, 31)
    ],
    "ts": [
        datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC),
        datetime(2013, 1, 1, 12, 30, 1, 123456, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "n": [datetime(1, 1, 1), datetime(2013, 1, 1), datetime(2013, 1, 1, 0, 0, 0, 1), datetime(1900, 1, 1, 12)],
    "st": [{"A": 5, "b.c": "x"}, {"A": None, "b.c": None}, {"A": -1, "b.c": "a"}],
    "col.dot": [0, 5, -5],
    "we`ird": ["", "a", "it's"],
}  # fmt: skip


def sample_table(seed: int, num_rows: int = 120) -> pa.Table:
    """Random rows over the edges, a fifth of the values null; every edge occurs."""
    draw = random.Random(seed)
    columns: dict[str, list[Any]] = {"id": list(range(num_rows))}
    for name, edges in _EDGES.items():
        values = [None if draw.random() < 0.2 else draw.choice(edges) for _ in range(num_rows)]
        values[: len(edges)] = draw.sample(edges, len(edges))
        columns[name] = values
    arrow = schema_to_arrow(SCHEMA)
    context = Decimal("1e-10")
    columns["d38"] = [None if v is None else _quantize(v, context) for v in columns["d38"]]
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in arrow], schema=arrow)


def _quantize(value: Decimal, step: Decimal) -> Decimal:
    import decimal

    return value.quantize(step, context=decimal.Context(prec=60))


OPERATORS = ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"]
_NUMBERS = [
    "0", "1", "5", "-7", "127", "128", "-129", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "99999999999999999999", "5L", "5S", "5Y", "1.5", "1.50", "-2.25",
    "0.1", "0.125", "5.0", "5.000001", "999.99", "1000", "1e0", "5e0", "1.5D", "0.1D", "0.1F", "1.5F", "1.5BD",
    "16777217", "16777216e0", "9007199254740992e0", "9007199254740993", "1e300", "-1e300", "0.0D", "-0.0D", "1e-10",
    "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)", "NULL", "1.00000000001", "CAST(5 AS BIGINT)",
    "CAST(2 AS DECIMAL(10,4))",
]  # fmt: skip
# Beside an integral column Spark answers TRUE or FALSE to these even where the column is null (its DecimalPrecision
# rule replaces the comparison). We answer null, as SQL has it.
BEYOND_LONG = {"9223372036854775808", "99999999999999999999"}
_NUMBER_TEXTS = ["'5'", "' 5 '", "'1'", "'-7'"]
_FRACTION_TEXTS = ["'1.5'", "'0.1'", "'NaN'", "'-Infinity'", "'1e3'", "'.5'"]
_DAYS = [
    "'2013-01-01'", "'2013-1-1'", "'2013'", "'2013-01-01T99'", "' 2013-01-02 '", "DATE '2013-01-01'",
    "DATE'1970-01-01'",
    "'0001-01-01'", "'9999-12-31'", "TIMESTAMP '2013-01-01 00:00:00'", "TIMESTAMP '2013-01-01 12:00:00'",
    "TIMESTAMP_NTZ '2013-01-01 00:00:01'", "CAST('2013-01-01' AS DATE)", "NULL",
]  # fmt: skip
_MOMENTS = [
    "'2013-01-01'", "'2013-01-01 12:30:01.123456'", "'2013-01-01T12:30:01.123456Z'",
    "'2013-01-01 13:30:01.123456+01:00'",
    "'2013-01-01 12:30'", "'2013-1-1 2:3:4.5'", "'1970'", "DATE '2013-01-01'", "TIMESTAMP '2013-01-01 00:00:00'",
    "TIMESTAMP '2013-01-01 01:00:00+01:00'", "TIMESTAMP_NTZ '2013-01-01 00:00:00.000001'", "'0001-01-01 00:00:00'",
    "'9999-12-31 23:59:59.999999'", "'2013-07-01 08:00:00 America/New_York'", "'2012-12-31 19:00:00 UTC-5'",
    "TIMESTAMP_LTZ '1969-12-31 23:59:59.999999'", "NULL",
]  # fmt: skip
_NAMES = {"i": ["i", "I", "`i`"], "S": ["S", "s"], "col.dot": ["`col.dot`", "`COL.DOT`"], "we`ird": ["`we``ird`"]}


def sql_string(text: str) -> str:
    """A string constant as a user might write it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t") + "'"


def constants_of(name: str) -> list[str]:
    """Constants that are compared with a column."""
    if name in ("b", "sh", "i", "l", "col.dot"):
        return [number for number in _NUMBERS if number not in BEYOND_LONG] + _NUMBER_TEXTS
    if name in ("f", "x", "d5", "d38"):
        return _NUMBERS + _NUMBER_TEXTS + _FRACTION_TEXTS
    if name in ("S", "we`ird"):
        return [sql_string(s) for s in STRINGS] + ["'it''s'", 'r"a\\b"', '"abc"', "'\\u00e4'", "'\\101'", "NULL"]
    return {
        "bin": ["X''", "X'61'", "X'ff'", "'ab'", "'ä'", "NULL", "X'6'"],
        "bo": ["TRUE", "false", "'true'", "'N'", "' yes '", "NULL"],
        "day": _DAYS,
        "ts": _MOMENTS,
        "n": _MOMENTS,
    }[name]


def random_predicates(seed: int, count: int) -> Iterator[str]:
    """Predicates that Spark accepts and that never fail while they run."""
    draw = random.Random(seed)
    names = [name for name in _EDGES if name != "st"]
    for _ in range(count):
        yield _predicate(draw, names, depth=2)


def _predicate(draw: random.Random, names: list[str], depth: int) -> str:
    if depth and draw.random() < 0.45:
        kind = draw.choice(["and", "or", "not", "not", "is null", "parens", "safe"])
        first = _predicate(draw, names, depth - 1)
        if kind in ("and", "or"):
            return f"({first}) {kind.upper()} ({_predicate(draw, names, depth - 1)})"
        return {
            "not": f"NOT ({first})", "is null": f"({first}) IS NULL", "parens": f"(({first}))",
            "safe": f"({first}) <=> TRUE",
        }[kind]  # fmt: skip
    name = draw.choice(names)
    column = draw.choice(_NAMES.get(name, [f"`{name}`" if draw.random() < 0.3 else name]))
    kind = draw.choice(["compare", "compare", "compare", "flip", "in", "between", "null", "like", "struct", "bare"])
    constant = draw.choice(constants_of(name))
    if kind == "compare":
        return f"{column} {draw.choice(OPERATORS)} {constant}"
    if kind == "flip":
        return f"{constant} {draw.choice(OPERATORS)} {column}"
    if kind == "in":
        return f"{column} {draw.choice(['IN', 'NOT IN'])} ({', '.join(_list_of(draw, name))})"
    if kind == "between":
        other = draw.choice(constants_of(name))
        return f"{column} {draw.choice(['BETWEEN', 'NOT BETWEEN'])} {constant} AND {other}"
    if kind == "null":
        return f"{column} IS {draw.choice(['', 'NOT '])}NULL"
    if kind == "like":
        return f"S LIKE {draw.choice(PATTERNS)}"
    if kind == "struct":
        return draw.choice(
            ["st.A > 0", "st.a = 5", "st.`b.c` = 'x'", "st IS NULL", "ST.A IS NOT NULL", "st.A <=> NULL"]
        )
    return draw.choice(["bo", "NOT bo", "bo IS TRUE", "bo IS NOT FALSE", "TRUE", "NULL", "1 = 1", "NULL = 1"])


PATTERNS = [
    "'a%'", "'%'", "''", "'a\\_%'", "'a/_%' ESCAPE '/'", "'a\\%%'", "'it\\'s%'", "'😀%'", "'\\\\\\\\%'", "'ä%'", "'%b'",
    "'_'", "'a_c'", "'a%b'",
]  # fmt: skip


def _list_of(draw: random.Random, name: str) -> list[str]:
    """Constants for an IN: of one kind, since Spark finds one type for all of them."""
    constants = constants_of(name)
    if name in ("b", "sh", "i", "l", "f", "x", "d5", "d38", "col.dot"):
        constants = [*_NUMBERS[:11], "NULL", "1e0", "1.5", "0.1"]
    elif name in ("day", "ts", "n"):
        constants = [c for c in constants if c.startswith("'")] + ["NULL"]
    elif name in ("bin", "bo"):
        constants = [c for c in constants if not c.startswith("'")]
    return [draw.choice(constants) for _ in range(draw.randint(1, 4))]
