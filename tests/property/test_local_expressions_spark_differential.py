"""The local engine's expressions give Spark's values and Spark's types, for every construct it does not refuse."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.sql_functions import FUNCTIONS as LOCAL_FUNCTIONS
from delta_orch.engines.local.sql_functions import TEMPLATES
from delta_orch.engines.local.sql_operators import OPERATIONS
from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.parse import parse_row_value
from delta_orch.protocol.schema import parse_schema, serialize_schema
from tests.families import family
from tests.property.expression_samples import SCHEMA, sample_table

pytestmark = pytest.mark.spark

SCALARS: dict[str, list[str]] = {
    "Column": ["b", "S", "bo", "`col.dot`", "`we``ird`", "st", "st.A", ],
    "And": ["bo AND i > 0", "bo AND NULL"],
    "Or": ["bo OR i > 0", "bo OR NULL"],
    "NOT": ["NOT bo", "NOT (i > 0)"],
    "IS": ["i IS NULL", "(i > 0) IS TRUE", "bo IS NOT FALSE", "length(S) IS NULL", "S IS NOT NULL", "st IS NULL"],
    "IN": [
        "i IN (1, 5, NULL)", "length(S) IN (1, 2)", "S NOT IN ('a', 'b')", "l IN (1, 5e0)", "i IN (b, sh)",
        "x IN (1, 0.1)", "if(i = 5, i IN (5, 'a'), true)",
        *(value.replace("…", ", ".join(f"{i}" for i in range(3, 80))) for value in (
            "i IN (…)", "i NOT IN (…, NULL)", "x IN (…, 0.1)", "l IN (…, 5e0, NULL)", "length(S) NOT IN (…)",
            "i IN ('5', …)", "d5 IN (…, 1.5)", "CASE WHEN i <> 0 THEN 10 DIV i IN (…) END",
        )),
        *(value.replace("…", ", ".join(f"'{i}'" for i in range(3, 80))) for value in (
            "S IN (…)",
            "coalesce(trim(S) IN ('a', 'x,y', '', …), bo)", "`we``ird` IN ('a', 'x,y', '\\\\', '', ' ', …)",
        )),
    ],
    "BETWEEN": ["length(S) BETWEEN 1 AND 2", "i BETWEEN b AND l", "day NOT BETWEEN '2013-01-01' AND '2013-01-02'"],
    "LIKE": ["S LIKE 'a%'", "S LIKE '%b%'", "S LIKE 'a_b'", "S LIKE '_'", "S LIKE 'a\\\\_b'", "S LIKE '\\\\\\\\%'",
             "S LIKE ''", "S NOT LIKE 'a%'"],
    "Equality": [
        "st = st", "st <=> named_struct('A', i, 'b.c', S)", "struct(i, S) <> struct(3 AS i, S)",
        "array(i, b) = array(l)",
        "array(x) = array(x)", "struct(x, f) <=> struct(x, f)",
        "array(struct(i, day)) <=> array(struct(l AS i, day))", ],
    ".": ["array(st)[0].A", "(named_struct('q', i)).q", "array(struct(i, S))[0].i"],
    "Escape": ["S LIKE 'a/_%' ESCAPE '/'", "S LIKE 'a%%b' ESCAPE '%'", "S NOT LIKE '/%%' ESCAPE '/'"],
    "StartsWith": ["startswith(S, 'a')", "startswith(S, `we``ird`)"],
    "EndsWith": ["endswith(S, 'b')"],
    "Contains": ["contains(S, '%')", "contains(S, '')"],
    "IsNan": ["isnan(x)", "isnan(f)"],
    "CASE": [
        "CASE WHEN bo THEN 'yes' WHEN i > 0 THEN S END", "CASE i WHEN 1 THEN 1 WHEN 5 THEN 5L ELSE NULL END",
        "CASE WHEN bo THEN i ELSE x END", "CASE WHEN bo THEN day ELSE ts END", "CASE WHEN i > 0 THEN d5 ELSE 7 END",
    ],
    "If": ["if(bo, i, l)", "if(bo, d5, 1.125)", "if(bo, f, b)"],
    "Coalesce": ["coalesce(i, 0)", "coalesce(S, 'none')", "nvl(x, i)", "ifnull(day, DATE '2000-01-01')",
                 "coalesce(b, sh, l)"],
    "Greatest": ["greatest(i, 0)", "greatest(x, 0.5D)", "greatest(S, 'b')", "greatest(day, DATE '2013-01-01')",
                 "greatest(b, l)"],
    "Least": ["least(i, 0)", "least(x, 0.5D, NULL)", "least(f, 0)", "least(ts, n)"],
    "nullif": ["nullif(i, 5)", "nullif(S, 'a')", "nullif(x, 0)"],
    "+": [
        "b % 5Y + 1Y", "b % 9Y + sh % 1000", "i + 1L", "x + 1", "f + f", "x + i", "l % 7 + i", "(b + 0) + 1", "f + i",
    ],
    "-": ["b % 9Y - sh % 1000", "x - f", "i % 100 - l % 100", "x - x"],
    "*": ["b % 9Y * (sh % 1000)", "x * 2", "i * 1L", "f * 2", "x * b", "2Y * 1.5", "2S * 1.5",
          "NULL * 1.5"],
    "/": ["x / 2", "i / 3", "b / 7", "l / 1000", "d5 / 2e0", "1 / 4", "NULL / 1.5", "d5 / NULL"],
    "%": ["i % 7", "l % -7", "b % 3", "mod(i, 5L)", "x % 2", "f % 0.3F", "i % -2.5D",
          ],
    "Neg": ["-(sh % 1000)", "-x", "-f", "-d5", "-(i % 5)"],
    "Abs": ["abs(x)", "abs(i % 5)", "abs(d5)", "abs(f)"],
    "CASE OF": ["CASE i WHEN 1 THEN 1 WHEN 5 THEN 5L END"],
    "CAST": [
        "CAST(b AS INT)", "CAST(i AS BIGINT)", "CAST(i % 100 AS TINYINT)", "CAST(b AS DOUBLE)", "CAST(i AS STRING)",
        "CAST(bo AS INT)", "CAST(bo AS STRING)", "CAST(day AS TIMESTAMP)", "CAST(ts AS DATE)", "CAST(n AS DATE)",
        "CAST(ts AS TIMESTAMP_NTZ)", "CAST(n AS TIMESTAMP)", "CAST(f AS DOUBLE)", "CAST(d5 AS DOUBLE)",
        "CAST(b AS DECIMAL(5,1))", "CAST(d5 AS DECIMAL(10,4))", "CAST(i AS BOOLEAN)", "CAST(l AS DOUBLE)",
        "CAST(l AS FLOAT)", "CAST(d5 AS FLOAT)", "CAST(1.5 AS FLOAT)",
        "CAST(-0.1 AS FLOAT)", "CAST(9999.999 AS FLOAT)", "CAST(0.0000001 AS FLOAT)", "CAST(16777.21 AS FLOAT)",
        "CAST(NULL AS INT)", "CAST(day AS TIMESTAMP_NTZ)", "CAST(i AS DECIMAL(12,2))",
        "CAST(if(isnan(x) OR abs(x) > 1000, 0D, x) AS INT)", "CAST(if(abs(f) < 1000, f, -1.7F) AS BIGINT)",
    ],
    "::": ["i::BIGINT"                ],
    "~": ["~i", "~b"],
    "Struct": ["named_struct('a', i, 'B', S)", "struct(i, S AS q)", "named_struct('a', named_struct('b', day))"],
    "Array": ["array(i, l, 3)", "array(S)", "size(array(1, i))", "size(array())", "array(NULL, S)",
              "coalesce(array(NULL, i), array())"],
    "Length": ["length(S)", "char_length(`we``ird`)", "length('😀é')", "length(bin)", "length(X'FFFE')",
               "length(concat(bin, X'FF'))"],
    "Concat": ["concat(S, '-', `we``ird`)", "concat(S)", "concat(bin, X'FF')", "concat(S, X'41')"],
    "||": ["S || '!'", "S || NULL", "bin || bin"],
    "Trim": ["trim(S)", "ltrim(S)", "rtrim(concat(S, '  '))", "trim(concat('\\t ', S, '\\u00a0 '))"],
    "Substring": ["substring(S, 1, 2)", "substr(S, 2)", "substring(S, 2, 0)", "substring(S, 100, 5)"],
    "TsOrDsToDate": ["to_date(ts)", "to_date(day)", "to_date(n)"],
    "Year": ["year(day)", "year(ts)", "year(n)"],
    "Month": ["month(day)", "month(ts)"],
    "Day": ["day(day)", "day(ts)"],
    "DayOfMonth": ["dayofmonth(day)", "dayofmonth(n)"],
    "Quarter": ["quarter(day)", "quarter(ts)"],
    "Hour": ["hour(ts)", "hour(n)"],
    "Minute": ["minute(ts)", "minute(n)"],
    "Second": ["second(ts)", "second(n)"],
    "TsOrDsAdd": [
        "date_add(if(year(day) < 9000, day, NULL), 1)", "date_sub(if(year(day) > 2, day, NULL), 31)",
        "date_add(if(year(day) BETWEEN 1500 AND 9000, day, NULL), b)", "date_add(if(year(ts) < 9000, ts, NULL), 1)",
    ],
    "Upper": ["upper('aéяÿµ ſ')", "ucase(CAST(bo AS STRING))", "upper(if(S IN ('a', 'ab', 'A'), S, 'é1'))"],
    "Lower": ["lower('AÉЯŸ')", "lcase(CAST(bo AS STRING))"],
    "DateTrunc": ["trunc(day, 'YEAR')", "trunc(day, 'mm')", "trunc(ts, 'QUARTER')", "trunc(day, 'week')"],
    "TimestampTrunc": ["date_trunc('YEAR', ts)", "date_trunc('month', day)", "date_trunc('WEEK', n)",
                       "date_trunc('DAY', ts)", "date_trunc('HOUR', ts)", "date_trunc('minute', n)",
                       "date_trunc('SECOND', ts)", "date_trunc('QUARTER', ts)"],
    "DateDiff": ["datediff(day, DATE '2000-01-01')", "datediff(ts, day)", "datediff('2013-01-05', day)"],
    "DIV": ["i div 7", "l div 3", "i div -2"],
    "&": ["i & 5", "b & l"],
    "|": ["i | b"],
    "^": ["i ^ sh"],
    "NullSafeNEQ": ["S IS DISTINCT FROM `we``ird`", "i IS NOT DISTINCT FROM 5"],
    "Floor": ["floor(if(abs(x) < 1e18, x, CAST('NaN' AS DOUBLE)))", "floor(if(abs(f) < 1e18, f, -0.5F))", "floor(d5)",
              "floor(i)",               ],
    "Ceil": ["ceil(if(abs(x) < 1e18, x, CAST('NaN' AS DOUBLE)))", "ceil(if(abs(f) < 1e18, f, -0.5F))", "ceil(d5)",
             "ceiling(d38)",              ],
    "Extract": [
        "extract(YEAR FROM day)", "extract(WEEK FROM ts)", "extract(DOW FROM day)", "extract(MINUTE FROM n)",
        "extract(QUARTER FROM day)", "extract(DOY FROM day)", ],
    "[]": ["st['a']",
                ],
    "and more": ["INTERVAL 1 DAY + if(year(day) < 9000, day, NULL)", "+i", "1 + +x", "bo AND S LIKE 'a%'",
                 "int(i)", "double(i)", "string(i)", "date(ts)",
                 "boolean(i)", "timestamp(day)", "3 - -2", "i = 1 IS TRUE",
                 "i & 3 | 4 ^ 1"],
}  # fmt: skip

# Functions by their names, over the table `t`.
FUNCTIONS: dict[str, list[str]] = {
    "isnull": ["isnull(i)"],
    "isnotnull": ["isnotnull(S)"],
    "md5": ["md5(S)", "md5(bin)", "md5(NULL)"],
    "sha2": ["sha2(S, 256)", "sha2(bin, 0)"],
    "last_day": ["last_day(day)"],
    "dayofweek": ["dayofweek(day)"],
    "dayofyear": ["dayofyear(ts)"],
    "weekofyear": ["weekofyear(day)"],
    "make_date": ["make_date(2013, 2, pmod(i, 28) + 1)"],
    "add_months": ["add_months(if(year(day) BETWEEN 50 AND 9000, day, NULL), b % 12)"],
    "date_format": [
        "date_format(day, 'yyyy-MM-dd')", "date_format(ts, 'yyyyMMdd HH:mm:ss')",
        'date_format(n, "yyyy\'T\'HH")',
            ],
    "to_date": ["to_date(CAST(day AS STRING))", ],
    "unix_timestamp": ["unix_timestamp(day)", "unix_timestamp(ts)",
                                              "unix_timestamp(timestamp_millis(-1500L))"],
    "left": ["left(S, 2)", "left(S, b)"],
    "right": ["right(S, 2)", "right(S, b)"],
    "lpad": ["lpad(S, 3, 'xy')"],
    "rpad": ["rpad(S, 2)"],
    "replace": ["replace(S, 'a', 'xy')", "replace(S, 'a')", ],
    "instr": ["instr(S, 'b')", "instr(S, '')"],
    "concat_ws": ["concat_ws('-', S, i, `we``ird`)", "concat_ws(S, 'a', 'b')",                   ],
    "split_part": ["split_part(S, 'b', 1)", "split_part(S, 'b', 2)"],
    "round": ["round(x, 1)", "round(x)", "round(f, 1)", "round(d5, 1)", "round(d38)", "round(i, 2)", "round(d5, 5)",
              ],
    "pmod": ["pmod(i, 7)", "pmod(i, -7)"],
    "timestamp_seconds": ["timestamp_seconds(i % 100000)"],
    "timestamp_millis": ["timestamp_millis(i)"],
    "timestamp_micros": ["timestamp_micros(i)"],
    "bigint": ["bigint(S = 'a')"],
    "smallint": ["smallint(b)"],
    "tinyint": ["tinyint(b)"],
    "float": ["float(x)"],
    "map": ["map('a', i, 'b', 5L)['a']", "map(1, st)[1]",
            ],
    "array_contains": ["array_contains(array(l, NULL), b % 9)", "array_contains(array(i, NULL), 5)"],
    }  # fmt: skip

# Text as numbers and dates, digits at the edge, arrays and maps: over the table `v`.
CONVERSIONS = [
    "CAST(num AS INT)", "CAST(num AS BIGINT)", "num + 1", "num * 1.5", "CAST(num AS DECIMAL(5,1))", "num = 1",
    "num > k",
    "num IN (1, 2)", "k IN (num)", "num BETWEEN 1 AND 3", "CAST(dt AS DATE)", "to_date(dt)", "year(dt)",
    "dt = DATE '2013-01-05'", "dt < DATE '2013-02-01'", "CAST(tm AS TIMESTAMP)", "to_timestamp(tm)", "hour(tm)",
    "CAST(substring(tm, 1, 4) AS TIMESTAMP_NTZ)", "CAST(dbl AS DOUBLE)", "CAST(dbl AS FLOAT)",
    "dbl = 1.5", "CAST(bl AS BOOLEAN)", "bl = true", "CASE WHEN size(arr) > 1 THEN arr[1] END", "size(arr)", "size(m)",
    "array_contains(arr, 1)", "array_contains(arr, k)", "m['a']",
    "m['zz']",     "round(fx, 2)", "round(fx)", "round(fx, 1)",
    "round(big, 2)", "floor(fx)",
    "CAST(fx AS DECIMAL(20,2))", "CAST(fx AS DECIMAL(20,1))", "CAST(d30 AS DOUBLE)", "d30 * 2", "coalesce(num, k)",
    "CAST('-9999999999' AS DECIMAL(10,0)) * CAST('9999999999' AS DECIMAL(10,0)) * k",
    "nullif(num, 1)", "CASE k WHEN num THEN 1 ELSE 2 END", "num / 2", "if(k > 0, num, 1)", "k IN ('1', '5')",
    ]  # fmt: skip
# More of the operators than the table above has room for, over `t`.
FURTHER = [
    "concat(i, '-', S, bo, day)", "concat(d5, '')", "concat(ts, '|', n)", "length(i)", "CAST(d38 AS STRING)",
    "CAST(day AS STRING)", "substring(S, -2)", "substring(S, -2, 1)", "substring(S, -5, 4)", "substring(S, 0, 2)",
    "substring(S, b, 2)", "substring(S, 1, b)", "trim(BOTH 'ab' FROM S)", "trim(LEADING `we``ird` FROM S)",
    "if(year(day) BETWEEN 2 AND 9000, day, NULL) + b", "if(year(day) BETWEEN 2 AND 9000, day, NULL) - 1",
    "if(year(day) BETWEEN 2 AND 9000, day, NULL) + INTERVAL 1 DAY",
    "if(year(day) BETWEEN 2 AND 9000, day, NULL) - INTERVAL '2' MONTH",
    "if(year(ts) BETWEEN 2 AND 9000, ts, NULL) + INTERVAL 3 HOURS",
    "if(year(n) BETWEEN 2 AND 9000, n, NULL) + INTERVAL 1 YEAR",
    "if(year(day) BETWEEN 2 AND 9000, day, NULL) + INTERVAL '-1-2' YEAR TO MONTH",
    "if(year(ts) BETWEEN 2 AND 9000, ts, NULL) - INTERVAL '3 04:05:06.78' DAY TO SECOND",
    "if(year(n) BETWEEN 2 AND 9000, n, NULL) + INTERVAL 1 DAY -2 HOURS 30 MINUTES",
    "if(year(day) BETWEEN 2 AND 9000, day, NULL) + INTERVAL 2 WEEKS",
    "DATE '2024-01-31' + INTERVAL 1 WEEK 1 DAY", "DATE '2024-01-31' - INTERVAL 1 YEAR 11 MONTHS",
    "TIMESTAMP '2024-01-31 00:00:00' + INTERVAL 1.5 SECONDS",
    "CAST(array(i, NULL) AS ARRAY<STRING>)", "CAST(struct(i, S) AS STRUCT<x: BIGINT, y: BINARY>)",
    "if(year(ts) BETWEEN 2 AND 9000, ts, NULL) - INTERVAL 1 WEEK", "d5 + d5", "d5 - 1", "d5 + i", "d5 * d5", "d5 * 2",
    "d5 * 1.5", "d5 + x", "d38 + x",
    "NULL + NULL", "-NULL", "NULL / NULL * NULL % NULL",
    "CAST(d38 AS DOUBLE)", "CAST(d5 AS INT)", "CAST(S AS BINARY)", "bin = S",
    "CAST(i AS STRING) = i", "CAST(i AS STRING) < 5.5",
    "CAST(day AS STRING) = day", "CAST(i AS STRING) IN (1, 5)", "i IN ('1', '5')", "year(CAST(day AS STRING))",
    "date_trunc('MONTH', CAST(day AS STRING))", "trunc(CAST(day AS STRING), 'MM')", "i + NULL",
    "CAST(if(abs(x) < 1000, x, 0D) AS DECIMAL(10,2))", "CAST(x AS FLOAT)", "CAST(x * 1e300 AS FLOAT)", "d5 / 2",
    "1 / 3BD",
    "d5 / nullif(d5 + 1, 0)", "i / nullif(d5, 0)", "d5 / NULL", "NULL - d5", "CAST(1.5 AS DECIMAL(38,18)) + d5",
    "CAST(d5 AS DECIMAL(38,18)) - 1", "CAST(d5 AS DECIMAL(20,9)) * CAST(1.05 AS DECIMAL(18,2))", "l / 7BD",
    "f IN (CAST(NULL AS FLOAT), CAST(0 AS FLOAT))", "CAST(NULL AS INT) / 2", "x > CAST(NULL AS TINYINT)",
    "CAST(CAST(b % 2 * 0.5 - 0.2 AS DECIMAL(2,2)) AS STRING)", "CAST(d5 AS DECIMAL(30,10)) / 3",
    "CAST(if(abs(f) < 1000 OR isnan(f), f, CAST('Infinity' AS FLOAT)) AS DECIMAL(9,3))",
    "CAST(if(abs(x) < 1000 OR isnan(x), x, CAST('-Infinity' AS DOUBLE)) AS DECIMAL(9,3))",
]  # fmt: skip


# Window functions, over `t`, whose `id` is unique.
_BY_I = "PARTITION BY bo ORDER BY i DESC, id"


@pytest.fixture(scope="module")
def relations(spark: Any) -> dict[str, Any]:
    from pyspark.sql.types import StructType as SparkStructType

    engine, rows = LocalEngine(), sample_table(seed=7)
    words = pa.table({"n": pa.array([0, 1, 5, 5, None], pa.int64()), "word": ["null", "one", "five", "cinq", None]})
    frame = spark.createDataFrame(rows, SparkStructType.fromJson(json.loads(serialize_schema(SCHEMA))))
    frame.coalesce(1).cache().createOrReplaceTempView("t")
    spark.createDataFrame(words).coalesce(1).cache().createOrReplaceTempView("u")
    texts = pa.table({
        "k": pa.array([0, 1, 2, -1, None, 5], pa.int32()),
        "arr": pa.array([[1, 2], [None, 3], [], None, [5], [1]], pa.list_(pa.int64())),
        "m": pa.array([[("a", 1)], [], None, [("b", None), ("a", 3)], [("", 2)], [("ä", 9)]],
                      pa.map_(pa.string(), pa.int64())),
        "num": ["1", " 2 ", "-3", "+4", None, "0005"],
        "dt": ["2013-01-05", " 2013-1-5", "2013", "2013-02", "2013-12-31T99", None],
        "tm": ["2013-01-05 12:30:01.5", "2013-1-5T1:2:3Z", "1500-01-05 00:00:00+05:30", "2013", None,
               "2013-01-05 23:59:59.1234567"],
        "dbl": ["1.5", "1e3", "-2.5e-3", None, ".5", "5."],
        "bl": ["true", " F ", "yes", "0", None, "N"],
        "fx": [2.675, 1.005, -0.5, 1e15, 123456.785, 2.5],
        "big": [1e20, -1e300, 1e17, 0.1, 4.35, -4.35],
        "d30": pa.array([1, 2, 3, 4, None, 6]).cast(pa.decimal128(30, 10)),
    })  # fmt: skip
    spark.createDataFrame(texts).coalesce(1).cache().createOrReplaceTempView("v")
    return {"t": engine.relation(rows), "u": engine.relation(words), "v": engine.relation(texts)}


def computed(relation: LocalRelation, *texts: str) -> LocalRelation:
    """The values of expressions for each row, as the columns c0, c1 and so on."""
    columns = [ComputedColumn(f"c{i}", parse_row_value(text)) for i, text in enumerate(texts)]
    return LocalEngine().project(relation, columns)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 counts as 0.0
    if hasattr(value, "tzinfo") and value.tzinfo is not None:
        return value.isoformat()
    return value


_ALL = [text for texts in (*SCALARS.values(), *FUNCTIONS.values()) for text in texts] + FURTHER


def test_every_rule_has_its_expressions() -> None:
    assert not OPERATIONS.keys() - SCALARS
    texts = " ".join(text for texts in (*SCALARS.values(), *FUNCTIONS.values()) for text in texts) + " ".join(
        CONVERSIONS
    )
    named = {*LOCAL_FUNCTIONS, *TEMPLATES}
    assert {name for name in named if not re.search(rf"\b{name}\(", texts)} == set()


@family(
    ("table", "texts"),
    [("v", CONVERSIONS), *(("t", _ALL[start : start + 60]) for start in range(0, len(_ALL), 60))],
    every=2,
)
def test_scalar(spark: Any, relations: dict[str, Any], table: str, texts: list[str]) -> None:
    query = f"SELECT {', '.join(f'{text} AS c{i}' for i, text in enumerate(texts))} FROM {table}"
    engine = LocalEngine()
    relation, frame = computed(relations[table], *texts), spark.sql(query)
    wanted = [str(field.data_type) for field in parse_schema(frame.schema.json())]
    assert [(text, str(f.data_type)) for text, f in zip(texts, relation.schema, strict=True)] == list(
        zip(texts, wanted, strict=True)
    )
    mine, spark_rows = engine.to_arrow(relation), frame.toArrow()
    for index, text in enumerate(texts):
        columns = [[repr(_plain(value)) for value in rows.column(index).to_pylist()] for rows in (mine, spark_rows)]
        assert columns[0] == columns[1], text


@pytest.mark.parametrize(
    "expression",
    [
        "map('a', 1, if(i = 5, 'a', 'b'), 2)", "map(nullif(i, 5), 1)", "i / 0", "i % 0", "x / 0",
        "CAST(2147483647 AS INT) + i * 0 + 1", "CAST(300 + i * 0 AS TINYINT)",
        "-(-128Y - b * 0Y)",
        "CAST(x * 0 + 1e300 AS INT)", "ceil(x * 1e300)", "floor(-x * 1e300)", "abs(-128Y - b * 0Y)",
        "CAST(12345 + i * 0 AS DECIMAL(4,0))",
    ],
)  # fmt: skip
def test_what_fails_in_spark_fails_here(spark: Any, relations: dict[str, Any], expression: str) -> None:
    query = f"SELECT {expression} AS c FROM t WHERE i = 5 AND x = 1.5 AND b = 5"
    rows = pa.table({"i": pa.array([5], pa.int32()), "x": [1.5], "b": pa.array([5], pa.int8())})
    spark.createDataFrame(rows).createOrReplaceTempView("one")
    query = f"SELECT {expression} AS c FROM one"
    with pytest.raises(
        Exception,
        match=r"(?i)MAP_KEY|illegal sequence|have the same length|PARAMETER_VALUE|BY_ZERO|OVERFLOW|OUT_OF_RANGE",
    ):
        spark.sql(query).collect()
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError):
        engine.to_arrow(computed(engine.relation(rows), expression))


_HOSTILE = [
    "", " ", "-", "n/a", "2024-02-30", "2024-13-01", "2024-1-5", "2024-2", "2024", "20240105", "0024-01-01", "24-01-05",
    "2024-01-05T99", "2024-01-05 1:2:3", "2024-01-05 12:30:61x", "2024/01/05", "05.01.2024", "1e3", "1,5", " 7 ",
    "-.5", "5.", ".", "1.5.2", "9999", "99.95", "99.96", "1e", "0.5d", "inf", "-Infinity", "NaN", "nano", "yes", "F",
    "truth", "1 2", "2147483648", "+4", "\u0661", "2024-01-05 12:30:01.5+01:00", "1.", "true\t", "\n",
]  # fmt: skip


@family("kind", ["BOOLEAN", "DATE", "DECIMAL(3,1)", "DOUBLE", "FLOAT", "INT", "TIMESTAMP", "TIMESTAMP_NTZ"], every=3)
def test_cast_of_text(spark: Any, kind: str) -> None:
    """Text becomes the value that it becomes in Spark, or raises."""
    engine, rows = LocalEngine(), pa.table({"s": pa.array(_HOSTILE, pa.string())})
    spark.createDataFrame(rows).createOrReplaceTempView("texts")
    query = f"SELECT s, try_cast(s AS {kind}) AS c FROM texts"
    expected = {row["s"]: _plain(row["c"]) for row in spark.sql(query).toArrow().to_pylist()}
    read: dict[str, object] = {}
    for text in _HOSTILE:
        relation = computed(engine.relation(pa.table({"s": [text]})), f"CAST(s AS {kind})")
        try:
            (value,) = engine.to_arrow(relation).column(0).to_pylist()
        except InvalidExpressionError as e:
            assert "only the Spark engine" in str(e) or expected[text] is None
        else:
            read[text] = _plain(value)
    assert read == {text: expected[text] for text in read}
    assert len(read) > 0.7 * sum(value is not None for value in expected.values())


@pytest.mark.parametrize("text", ["upper('Straße')", "lower('ΑΣ')", "upper('ǰ')"])
def test_letters_that_change_otherwise_are_refused_while_the_query_runs(relations: dict[str, Any], text: str) -> None:
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError, match="not proven equal"):
        engine.to_arrow(computed(relations["t"], text))


@pytest.mark.parametrize(
    "text",
    [
        "hash(i)", "crc32(S)", "try_cast(S AS INT)", "repeat(S, 2)", "sqrt(x)",
        "date_part('MONTH', day)", "replace(S, '', 'q')",
        "to_date(S, 'yyyyMMdd')", "from_unixtime(b)", "hex(S)", "map_keys(map(1, i))",
        "date_format(day, 'MMM')", "floor(d5, 1)", "reverse(array())", "exp(x)", "sha2(S, 512)", "d38 * d38",
        "S LIKE `we``ird`", "st < st",
        "map('a', 1) = map('a', 1)", "map('a', 1) <=> NULL", "NULL IN (1, DATE '2024-01-01')",
        "struct(i) = struct(S AS i)",
        "transform(array(), x -> x)", "transform(S, x -> x)", "filter(array(i), x -> x)", "transform(array(i), i)",
        "exists(array(i), (x, j) -> x > j)", "aggregate(array(i), 0L, (a) -> a)",
        "aggregate(array(l), 0, (a, x) -> a + x)",
        "array_sort(array(i), (a, b) -> a - b)", "map_filter(map('a', 1), k -> true)",
        "map_filter(map('a', 1), (k, v) -> v)", "transform_keys(map('a', 1), (k, v) -> 1.5D)",
        "array_union(array(x), array(x))",
        "sequence(ts, n)", "sequence(day, day, 1)", "try_add(i + 1, 1)", "try_add(S, 1)", "try_add(day, 1)",
        "try_divide(d5, 2)", "encode(S, 'latin1')", "decode(i, 'UTF-8')", "array_repeat(NULL, 2)",
        "array_repeat(i, 2L)",
        "flatten(array(i))",
        "map_from_arrays(array(x), array(i))", "map_from_entries(array(i))", "md5(i)", "sha1(day)", "sha2(l, 256)",
        "base64(bo)", "hex(x)", "hex(d5)", "nvl(i)", "ifnull(i, 1, 2)",
        "array_size(map('a', 1))", "unix_date(ts)", "unix_seconds(day)", "unix_timestamp(day, 1)", "charindex('a', S)",
        "element_at(array(i), 1L)", "array_except(array(i), NULL)", "arrays_overlap(NULL, array(i))",
        "array_contains(array(i), NULL)", "substring_index(S, 'a', 3000000000)",
        "slice(S, 1, 1)", "array_append(S, S)", "array_append(array(i), S)", "map_concat(map('a', 1), map(1, 1))",
        "d38 / d38", "round(x, -1)", "greatest(S, 1)",
        "ceil(x, -1)", "date_format(day, 'YYYY')", "date_format(ts, 'zzz')", "to_date(S, 'MM')", "day - day",
        r"S RLIKE 'a\\b'", "S RLIKE '(?=a)b'", "S RLIKE 'a*+'", "S RLIKE '(a*)*'", "S RLIKE '[a&&[b]]'",
        r"S RLIKE '(a)\\1'", "regexp_replace(S, 'a*', 'x')", "regexp_replace(S, '(a)', '$2')", "split(S, '')",
        "S RLIKE `we``ird`", "lpad(S, i, 'x')", "lpad(S, 2, '')", "replace(S, bo, 'x')", "split_part(S, 'b', 0)",
        "S ILIKE 'a%'", "S LIKE ANY ('a%', '%b')", "S NOT ILIKE ALL ('A%')", "(i, S) IN ((1, 'a'))", "(b, S)",
        "d5 % 2", "i % 1.5", "round(i, -1)", "round(d5, -1)", "CAST(x AS STRING)", "concat(f, '')", "S || x",
        "CAST(i AS TIMESTAMP)", "CAST(ts AS BIGINT)", "concat(array(i), array(b))", "array(i) || array(i)",
        "array(st).A", "map('k', st).k", "array_contains(array(b), l)",
        "split(S, 'b', 2)", "months_between(ts, n, false)",
    ],
)  # fmt: skip
def test_what_is_not_proven_is_refused(relations: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match="Spark engine"):
        computed(relations["t"], text)
