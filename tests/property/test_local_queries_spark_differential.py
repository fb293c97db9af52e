"""The local engine's queries give Spark's rows and Spark's types, for every construct it does not refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.sql_query import _AGGREGATES
from delta_orch.engines.local.sql_scalars import _RULES
from delta_orch.errors import InvalidExpressionError, UnsupportedExpressionError
from delta_orch.protocol.schema import parse_schema, serialize_schema
from tests.property.expression_samples import SCHEMA, sample_table

pytestmark = pytest.mark.spark

SCALARS: dict[str, list[str]] = {
    "Column": ["b", "S", "bo", "`col.dot`", "`we``ird`", "t.i", "st", "st.A", "t.st.a"],
    "Dot": ["t.st.`b.c`"],
    "And": ["bo AND i > 0", "bo AND NULL"],
    "Or": ["bo OR i > 0", "bo OR NULL"],
    "Not": ["NOT bo", "NOT (i > 0)"],
    "Is": ["i IS NULL", "(i > 0) IS TRUE", "bo IS NOT FALSE", "length(S) IS NULL", "S IS NOT NULL", "st IS NULL"],
    "In": [
        "i IN (1, 5, NULL)", "length(S) IN (1, 2)", "S NOT IN ('a', 'b')", "l IN (1, 5e0)", "i IN (b, sh)",
        "x IN (1, 0.1)",
    ],
    "Between": ["length(S) BETWEEN 1 AND 2", "i BETWEEN b AND l", "day NOT BETWEEN '2013-01-01' AND '2013-01-02'"],
    "Like": ["S LIKE 'a%'", "S LIKE '%b%'", "S LIKE 'a_b'", "S LIKE '_'", "S LIKE 'a\\\\_b'", "S LIKE '\\\\\\\\%'",
             "S LIKE ''", "S NOT LIKE 'a%'"],
    "Escape": ["S LIKE 'a/_%' ESCAPE '/'", "S LIKE 'a%%b' ESCAPE '%'", "S NOT LIKE '/%%' ESCAPE '/'"],
    "StartsWith": ["startswith(S, 'a')", "startswith(S, `we``ird`)"],
    "EndsWith": ["endswith(S, 'b')"],
    "Contains": ["contains(S, '%')", "contains(S, '')"],
    "IsNan": ["isnan(x)", "isnan(f)"],
    "Case": [
        "CASE WHEN bo THEN 'yes' WHEN i > 0 THEN S END", "CASE i WHEN 1 THEN 1 WHEN 5 THEN 5L ELSE NULL END",
        "CASE WHEN bo THEN i ELSE x END", "CASE WHEN bo THEN day ELSE ts END", "CASE WHEN i > 0 THEN d5 ELSE 7 END",
    ],
    "If": ["if(bo, i, l)", "if(bo, d5, 1.125)", "if(bo, f, b)"],
    "Coalesce": ["coalesce(i, 0)", "coalesce(S, 'none')", "nvl(x, i)", "ifnull(day, DATE '2000-01-01')",
                 "coalesce(b, sh, l)"],
    "Greatest": ["greatest(i, 0)", "greatest(x, 0.5D)", "greatest(S, 'b')", "greatest(day, DATE '2013-01-01')",
                 "greatest(b, l)"],
    "Least": ["least(i, 0)", "least(x, 0.5D, NULL)", "least(f, 0)", "least(ts, n)"],
    "Nullif": ["nullif(i, 5)", "nullif(S, 'a')", "nullif(x, 0)"],
    "Add": [
        "b % 5Y + 1Y", "b % 9Y + sh % 1000", "i + 1L", "x + 1", "f + f", "x + i", "l % 7 + i", "(b + 0) + 1", "f + i",
    ],
    "Sub": ["b % 9Y - sh % 1000", "x - f", "i % 100 - l % 100", "x - x"],
    "Mul": ["b % 9Y * (sh % 1000)", "x * 2", "i * 1L", "f * 2", "x * b"],
    "Div": ["x / 2", "i / 3", "b / 7", "l / 1000", "d5 / 2e0", "1 / 4"],
    "Mod": ["i % 7", "l % -7", "b % 3", "mod(i, 5L)"],
    "Neg": ["-(sh % 1000)", "-x", "-f", "-d5", "-(i % 5)"],
    "Abs": ["abs(x)", "abs(i % 5)", "abs(d5)", "abs(f)"],
    "Cast": [
        "CAST(b AS INT)", "CAST(i AS BIGINT)", "CAST(i % 100 AS TINYINT)", "CAST(b AS DOUBLE)", "CAST(i AS STRING)",
        "CAST(bo AS INT)", "CAST(bo AS STRING)", "CAST(day AS TIMESTAMP)", "CAST(ts AS DATE)", "CAST(n AS DATE)",
        "CAST(ts AS TIMESTAMP_NTZ)", "CAST(n AS TIMESTAMP)", "CAST(f AS DOUBLE)", "CAST(d5 AS DOUBLE)",
        "CAST(b AS DECIMAL(5,1))", "CAST(d5 AS DECIMAL(10,4))", "CAST(i AS BOOLEAN)", "CAST(l AS DOUBLE)",
        "CAST(l AS FLOAT)", "CAST(NULL AS INT)", "CAST(day AS TIMESTAMP_NTZ)", "CAST(i AS DECIMAL(12,2))",
        "CAST(if(isnan(x) OR abs(x) > 1000, 0D, x) AS INT)", "CAST(if(abs(f) < 1000, f, -1.7F) AS BIGINT)",
    ],
    "TryCast": ["i::BIGINT"],
    "Length": ["length(S)", "char_length(`we``ird`)", "length('😀é')"],
    "Concat": ["concat(S, '-', `we``ird`)", "concat(S)"],
    "DPipe": ["S || '!'", "S || NULL"],
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
    "Nvl2": ["nvl2(i, l, 0)", "nvl2(S, S, 'none')"],
    "Anonymous": ["isnull(i)", "isnotnull(S)"],
    "DateDiff": ["datediff(day, DATE '2000-01-01')", "datediff(ts, day)"],
}  # fmt: skip

AGGREGATES: dict[str, list[str]] = {
    "Count": ["count(*)", "count(i)", "count(DISTINCT S)", "count(DISTINCT x)"],
    "Sum": ["sum(b)", "sum(i)", "sum(DISTINCT sh)", "sum(d5)", "sum(CASE WHEN bo THEN 1 ELSE 0 END)"],
    "Avg": ["avg(b)", "avg(DISTINCT i)"],
    "Min": ["min(i)", "min(x)", "min(S)", "min(day)", "min(ts)", "min(d38)", "min(bo)", "min(f)", "min(bin)"],
    "Max": ["max(i)", "max(x)", "max(S)", "max(n)", "max(bo)", "max(f)", "max(bin)"],
}

QUERIES = [
    "SELECT * FROM t",
    "SELECT * FROM t WHERE i > 0 AND S LIKE 'a%'",
    "SELECT * FROM t WHERE NOT ((`day` >= DATE '2013-01-01') <=> TRUE)",
    "SELECT * FROM t WHERE length(S) > 1 OR x = 'NaN'",
    "SELECT ID, S AS s2 FROM t WHERE t.i IS NOT NULL",
    "SELECT DISTINCT bo, b FROM t",
    "SELECT DISTINCT x FROM t",
    "SELECT f, count(*) AS c FROM t GROUP BY f",
    "SELECT bo, b % 2 AS p, count(*) AS c, max(l) AS m FROM t GROUP BY bo, b % 2 HAVING count(*) > 1",
    "SELECT bo AS k, count(*) AS c FROM t GROUP BY 1",
    "SELECT count(*) AS c, sum(i) AS s FROM t WHERE id < 0",
    "SELECT bo AS k, sum(i) AS c FROM t WHERE id < 0 GROUP BY bo",
    "SELECT id FROM t ORDER BY i, id LIMIT 7",
    "SELECT id, x FROM t ORDER BY x DESC, id",
    "SELECT id, S FROM t ORDER BY S, id",
    "SELECT id, x AS y FROM t ORDER BY y ASC NULLS LAST, id DESC LIMIT 50",
    "SELECT t.id, u.word FROM t JOIN u ON t.b = u.n",
    "SELECT t.id, u.word AS w FROM t LEFT JOIN u ON t.i = u.n AND u.word <> 'five'",
    "SELECT t.id, u.n FROM t RIGHT OUTER JOIN u ON t.l = u.n",
    "SELECT t.id, u.n FROM t FULL OUTER JOIN u ON t.sh = u.n",
    "SELECT * FROM t LEFT SEMI JOIN u ON t.i = u.n",
    "SELECT t.* FROM t LEFT ANTI JOIN u ON t.i <=> u.n",
    "SELECT a.n AS a, b.n AS b FROM u a CROSS JOIN u b",
    "SELECT a.n AS a, b.n AS b FROM u a, u b WHERE a.n < b.n",
    "SELECT t.id, u.word FROM t JOIN u ON t.x = u.n",
    "SELECT id FROM t WHERE i > 0 UNION ALL SELECT n AS id FROM u",
    "SELECT b FROM t UNION SELECT b FROM t",
    "WITH q AS (SELECT i AS k FROM t WHERE i > 0) SELECT q.k, r.k AS k2 FROM q JOIN q r ON q.k = r.k",
    "SELECT k, count(*) AS c FROM (SELECT coalesce(i, 0) AS k FROM t) GROUP BY k",
    "SELECT s.k FROM (SELECT n AS k FROM u) AS s WHERE s.k > 1",
    "SELECT 'it''s' AS s, 1 AS one, 1.50 AS d, DATE '2013-01-01' AS day, NULL AS nothing, 5L AS l, X'61' AS bin",
]


@pytest.fixture(scope="module")
def relations(spark: Any) -> dict[str, Any]:
    from pyspark.sql.types import StructType as SparkStructType

    engine, rows = LocalEngine(), sample_table(seed=7)
    words = pa.table({"n": pa.array([0, 1, 5, 5, None], pa.int64()), "word": ["null", "one", "five", "cinq", None]})
    frame = spark.createDataFrame(rows, SparkStructType.fromJson(json.loads(serialize_schema(SCHEMA))))
    frame.coalesce(1).cache().createOrReplaceTempView("t")
    spark.createDataFrame(words).coalesce(1).cache().createOrReplaceTempView("u")
    return {"t": engine.relation(rows), "u": engine.relation(words)}


def compare(spark: Any, relations: dict[str, Any], query: str) -> None:
    ordered = " ORDER BY " in query
    engine = LocalEngine()
    relation = engine.sql(query, relations)
    frame = spark.sql(query)
    wanted = parse_schema(frame.schema.json())
    assert [(f.name, str(f.data_type)) for f in relation.schema] == [(f.name, str(f.data_type)) for f in wanted], query
    mine, spark_rows = engine.to_arrow(relation).to_pylist(), frame.toArrow().to_pylist()
    assert normalized(mine, ordered) == normalized(spark_rows, ordered), query


def normalized(rows: Sequence[dict[str, Any]], ordered: bool) -> list[str]:
    texts = [repr({key: _plain(value) for key, value in row.items()}) for row in rows]
    return texts if ordered else sorted(texts)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 counts as 0.0
    if hasattr(value, "tzinfo") and value.tzinfo is not None:
        return value.isoformat()
    return value


@pytest.mark.parametrize("construct", sorted(_RULES))
def test_scalar(spark: Any, relations: dict[str, Any], construct: str) -> None:
    texts = SCALARS[construct]
    compare(spark, relations, f"SELECT id, {', '.join(f'{text} AS c{i}' for i, text in enumerate(texts))} FROM t")


@pytest.mark.parametrize("construct", sorted(_AGGREGATES))
def test_aggregate(spark: Any, relations: dict[str, Any], construct: str) -> None:
    listed = ", ".join(f"{text} AS c{i}" for i, text in enumerate(AGGREGATES[construct]))
    compare(spark, relations, f"SELECT bo AS k, {listed} FROM t GROUP BY bo")
    compare(spark, relations, f"SELECT {listed} FROM t")


@pytest.mark.parametrize("query", QUERIES)
def test_query(spark: Any, relations: dict[str, Any], query: str) -> None:
    compare(spark, relations, query)


@pytest.mark.parametrize(
    "expression",
    [
        "i / 0", "i % 0", "x / 0", "CAST(2147483647 AS INT) + i * 0 + 1", "CAST(300 + i * 0 AS TINYINT)",
        "-(-128Y - b * 0Y)",
        "CAST(x * 0 + 1e300 AS INT)", "abs(-128Y - b * 0Y)", "CAST(12345 + i * 0 AS DECIMAL(4,0))",
    ],
)  # fmt: skip
def test_what_fails_in_spark_fails_here(spark: Any, relations: dict[str, Any], expression: str) -> None:
    query = f"SELECT {expression} AS c FROM t WHERE i = 5 AND x = 1.5 AND b = 5"
    rows = pa.table({"i": pa.array([5], pa.int32()), "x": [1.5], "b": pa.array([5], pa.int8())})
    spark.createDataFrame(rows).createOrReplaceTempView("one")
    query = f"SELECT {expression} AS c FROM one"
    with pytest.raises(Exception, match=r"DIVIDE_BY_ZERO|OVERFLOW|OUT_OF_RANGE|REMAINDER_BY_ZERO"):
        spark.sql(query).collect()
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError):
        engine.to_arrow(engine.sql(query, {"one": engine.relation(rows)}))


@pytest.mark.parametrize("text", ["upper('Straße')", "lower('ΑΣ')", "upper('ǰ')"])
def test_letters_that_change_otherwise_are_refused_while_the_query_runs(relations: dict[str, Any], text: str) -> None:
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError, match="not proven equal"):
        engine.to_arrow(engine.sql(f"SELECT {text} AS c FROM t", relations))


@pytest.mark.parametrize(
    "text",
    [
        "initcap(S)", "S = 5", "hash(i)", "i div 2", "d5 + d5", "CAST(S AS INT)", "CAST(x AS STRING)",
        "CAST(x AS FLOAT)", "CAST(ts AS STRING)", "trim(BOTH 'a' FROM S)", "S LIKE `we``ird`", "i + NULL",
        "round(x, 1)", "S RLIKE 'a'", "ilike(S, 'a')", "substring(S, -1)", "unix_timestamp(ts)", "S + 1", "day + 1",
        "try_cast(S AS INT)", "array(1)", "st = st", "row_number() OVER (ORDER BY i)", "(SELECT 1)", "rand()",
        "date_format(day, 'yyyy')", "CAST(d38 AS DOUBLE)", "length(i)", "concat(i, S)", "i & 1", "d5 / 2",
    ],
)  # fmt: skip
def test_what_is_not_proven_is_refused(relations: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match="Spark engine"):
        LocalEngine().sql(f"SELECT {text} AS c FROM t", relations)
