"""The local engine's queries give Spark's rows and Spark's types, for every construct it does not refuse."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.sql_aggregates import AGGREGATES as AGGREGATE_FUNCTIONS
from delta_orch.engines.local.sql_aggregates import WINDOW_FUNCTIONS
from delta_orch.engines.local.sql_functions import _NAMED, _TEMPLATES, _WITH_WORD
from delta_orch.engines.local.sql_scalars import OPERATIONS
from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError, UnsupportedExpressionError
from delta_orch.protocol.schema import parse_schema, serialize_schema
from tests.property.expression_samples import SCHEMA, sample_table

pytestmark = pytest.mark.spark

SCALARS: dict[str, list[str]] = {
    "Column": ["b", "S", "bo", "`col.dot`", "`we``ird`", "t.i", "st", "st.A", "t.st.a"],
    "Dot": ["t.st.`b.c`"],
    "And": ["bo AND i > 0", "bo AND NULL"],
    "Or": ["bo OR i > 0", "bo OR NULL"],
    "NOT": ["NOT bo", "NOT (i > 0)"],
    "IS": ["i IS NULL", "(i > 0) IS TRUE", "bo IS NOT FALSE", "length(S) IS NULL", "S IS NOT NULL", "st IS NULL"],
    "IN": [
        "i IN (1, 5, NULL)", "length(S) IN (1, 2)", "S NOT IN ('a', 'b')", "l IN (1, 5e0)", "i IN (b, sh)",
        "x IN (1, 0.1)", "if(i = 5, i IN (5, 'a'), true)", "(i, S) IN ((1, 'a'), (5, 'ab'))",
        "(i, b) NOT IN ((1, 1Y), (i, b))",
        "struct(b, x) IN ((5Y, 1.5D))",
        *(value.replace("…", ", ".join(f"{i}" for i in range(3, 80))) for value in (
            "i IN (…)", "i NOT IN (…, NULL)", "x IN (…, 0.1)", "l IN (…, 5e0, NULL)", "length(S) NOT IN (…)",
            "S IN (…)", "i IN ('5', …)", "d5 IN (…, 1.5)", "CASE WHEN i <> 0 THEN 10 DIV i IN (…) END",
            "coalesce(upper(S) IN ('A', 'x,y', '', …), bo)", "exists(array(i, b), v -> v IN (…))",
            "`we``ird` IN ('a', 'x,y', '\\\\', '', ' ', …)",
        )),
    ],
    "BETWEEN": ["length(S) BETWEEN 1 AND 2", "i BETWEEN b AND l", "day NOT BETWEEN '2013-01-01' AND '2013-01-02'"],
    "LIKE": ["S LIKE 'a%'", "S LIKE '%b%'", "S LIKE 'a_b'", "S LIKE '_'", "S LIKE 'a\\\\_b'", "S LIKE '\\\\\\\\%'",
             "S LIKE ''", "S NOT LIKE 'a%'"],
    "LIKE ANY": ["S LIKE ANY ('a%', '%b')", "S NOT LIKE ANY ('a%', NULL)"],
    "LIKE ALL": ["S LIKE ALL ('a%', '%b')", "S NOT LIKE ALL ('a%')"],
    "ILIKE ANY": ["`we``ird` ILIKE ANY ('A%', 'b_')"],
    "ILIKE ALL": ["`we``ird` ILIKE SOME ('A%')", "`we``ird` ILIKE ALL ('A%', '%S')"],
    "Equality": [
        "st = st", "st <=> named_struct('A', i, 'b.c', S)", "struct(i, S) <> struct(3 AS i, S)",
        "array(i, b) = array(l)",
        "array(x) = array(x)", "struct(x, f) <=> struct(x, f)", "st IN (named_struct('A', 5L, 'b.c', 'x'))",
        "array(struct(i, day)) <=> array(struct(l AS i, day))", "split(S, 'b') = array('a', NULL)",
    ],
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
          "d5 % 2", "i % 1.5", "d5 % NULL", "1.75 % -0.5", "CAST(d5 AS DECIMAL(20,6)) % 7L", "d5 % 3Y",
          "d5 % nullif(d5, 0)"],
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
    "TRY_CAST": ["i::BIGINT", "try_cast(S AS INT)", "try_cast(concat(' ', i, '\\n') AS SMALLINT)", "try_cast(x AS INT)",
                *(f"try_cast(S AS {kind})" for kind in ("DATE", "TIMESTAMP", "DECIMAL(5,1)", "DOUBLE", "BOOLEAN")),
                "try_cast(l AS STRING)", "try_cast(day AS TIMESTAMP)", "try_cast(ts AS DATE)",
                "try_cast(l AS DECIMAL(5,1))", "try_cast(d38 AS TINYINT)"],
    "~": ["~i", "~b"],
    "Struct": ["named_struct('a', i, 'B', S)", "struct(i, S AS q)", "named_struct('a', named_struct('b', day))"],
    "Array": ["array(i, l, 3)", "array(S)", "size(array(1, i))", "size(array())", "array(NULL, S)",
              "coalesce(array(NULL, i), array())"],
    "Length": ["length(S)", "char_length(`we``ird`)", "length('😀é')"],
    "Concat": ["concat(S, '-', `we``ird`)", "concat(S)", "concat(array(i, NULL), array(b), if(bo, array(l), NULL))",
               "concat(split(S, 'b'), array())", "concat(array(st), array(st))"],
    "||": ["S || '!'", "S || NULL", "array(x) || array(x, NULL)"],
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
    "Initcap": ["initcap(if(S RLIKE '^[a-zA-Z ]*$', S, NULL))", "initcap('aB c  DEF ')"],
    "DateTrunc": ["trunc(day, 'YEAR')", "trunc(day, 'mm')", "trunc(ts, 'QUARTER')", "trunc(day, 'week')"],
    "TimestampTrunc": ["date_trunc('YEAR', ts)", "date_trunc('month', day)", "date_trunc('WEEK', n)",
                       "date_trunc('DAY', ts)", "date_trunc('HOUR', ts)", "date_trunc('minute', n)",
                       "date_trunc('SECOND', ts)", "date_trunc('QUARTER', ts)"],
    "Nvl2": ["nvl2(i, l, 0)", "nvl2(S, S, 'none')"],
    "DateDiff": ["datediff(day, DATE '2000-01-01')", "datediff(ts, day)", "datediff('2013-01-05', day)"],
    "DIV": ["i div 7", "l div 3", "i div -2"],
    "&": ["i & 5", "b & l"],
    "|": ["i | b"],
    "^": ["i ^ sh"],
    "NullSafeNEQ": ["S IS DISTINCT FROM `we``ird`", "i IS NOT DISTINCT FROM 5"],
    "Floor": ["floor(if(abs(x) < 1e18, x, CAST('NaN' AS DOUBLE)))", "floor(if(abs(f) < 1e18, f, -0.5F))", "floor(d5)",
              "floor(i)", "floor(d5, 1)", "floor(d5, 0)", "floor(if(abs(x) < 1e9, x, NULL), 2)", "floor(-2.25, 1)",
              "floor(if(abs(f) < 1e6, f, NULL), 1)"],
    "Ceil": ["ceil(if(abs(x) < 1e18, x, CAST('NaN' AS DOUBLE)))", "ceil(if(abs(f) < 1e18, f, -0.5F))", "ceil(d5)",
             "ceiling(d38)", "ceil(d5, 1)", "ceil(b, 1)", "ceil(if(abs(x) < 1e9, x, NULL), 1)", "ceiling(2.21, 1)",
             "ceil(d5, 9)", "ceil(l % 9, 0)"],
    "StrPosition": ["position('b' IN S)"],
    "RLIKE": [
        "S RLIKE 'a'", "S RLIKE '^a.$'", "S RLIKE '^.$'", r"S RLIKE '\\d+'", r"S RLIKE '\\W'", r"S RLIKE '\\s'",
        "S RLIKE '(?i)^[a-b]+$'", "S RLIKE '^(a|zz)+$'", "S RLIKE '[^a-z]'", "S RLIKE 'a{1,2}b'", "S RLIKE '' ",
        r"S RLIKE '[\\w%]+?'", r"S REGEXP '\\.|\'q'", f"S RLIKE '{'(a|b)?c*' * 40}'",
    ],
    "ILIKE": ["`we``ird` ILIKE 'A_'", "CAST(day AS STRING) ILIKE '2%'", "`we``ird` NOT ILIKE '%S'"],
    "Extract": [
        "extract(YEAR FROM day)", "extract(WEEK FROM ts)", "extract(DOW FROM day)", "extract(MINUTE FROM n)",
        "extract(QUARTER FROM day)", "extract(DOY FROM day)", "datediff(DAY, ts, n)", "timestampdiff(HOUR, ts, day)",
        "timestampdiff(SECOND, n, TIMESTAMP'2020-02-29 12:00:00.5Z')", "date_diff(WEEK, day, ts)",
        "timestampadd(HOUR, b, if(year(ts) BETWEEN 2 AND 9000, ts, NULL))", "dateadd(DAY, -3, DATE '2024-03-01')",
        "date_add(MONTH, 1, if(year(n) BETWEEN 2 AND 9000, n, NULL))", "timestampadd(WEEK, 1, '2024-02-28 01:00:00')",
        "timediff(MINUTE, '2024-03-31 01:59:59', ts)", "datediff(DAY, n, ts)",
    ],
    "[]": ["split(S, 'b')[0]", "split(concat(`we``ird`, ',x'), ',')[1]", "element_at(split(S, 'b'), 1)", "st['a']",
                "element_at(split(S, 'b'), -1)"],
    "SUBQUERY": ["(SELECT max(n) FROM u)",
                 "(SELECT max(n) FROM u WHERE n = t.b)", "EXISTS (SELECT 1 FROM u WHERE n = b)"],
    "()": ["(b, S)", "(1, 'x')"],
    "and more": ["INTERVAL 1 DAY + if(year(day) < 9000, day, NULL)", "+i", "1 + +x", "bo AND S LIKE 'a%'",
                 "like(S, 'a%')", "ilike(`we``ird`, 'A_')", "int(i)", "double(i)", "string(i)", "date(ts)",
                 "boolean(i)", "timestamp(day)", "position('b', S)", "rlike(S, '^a')", "3 - -2", "i = 1 IS TRUE",
                 "i & 3 | 4 ^ 1"],
}  # fmt: skip

# Functions by their names, over the table `t`.
FUNCTIONS: dict[str, list[str]] = {
    "isnull": ["isnull(i)"],
    "isnotnull": ["isnotnull(S)"],
    "md5": ["md5(S)", "md5(bin)", "md5(NULL)"],
    "sha": ["sha(S)"],
    "sha1": ["sha1(S)"],
    "sha2": ["sha2(S, 256)", "sha2(bin, 0)"],
    "unhex": ["unhex(hex(S))", "unhex('ABC')", "unhex(S)", "unhex('')", "unhex(NULL)"],
    "hex": ["hex(S)", "hex(bin)", "hex(i)"],
    "last_day": ["last_day(day)"],
    "dayofweek": ["dayofweek(day)"],
    "weekday": ["weekday(day)", "weekday(NULL)"],
    "dayofyear": ["dayofyear(ts)"],
    "weekofyear": ["weekofyear(day)"],
    "unix_date": ["unix_date(day)"],
    "date_from_unix_date": ["date_from_unix_date(b)"],
    "make_date": ["make_date(2013, 2, pmod(i, 28) + 1)"],
    "add_months": ["add_months(if(year(day) BETWEEN 50 AND 9000, day, NULL), b % 12)"],
    "months_between": ["months_between(day, DATE '2013-02-28')", "months_between(ts, n)", "months_between(ts, day)"],
    "date_format": [
        "date_format(day, 'yyyy-MM-dd')", "date_format(ts, 'yyyyMMdd HH:mm:ss.SSSSSS')",
        "date_format(ts, 'E EEEE MMM MMMM d/M/yy h:hh a H m s SSS')", 'date_format(n, "yyyy\'T\'HH")',
        "date_format(day, 'D DDD q y')",
    ],
    "from_unixtime": ["from_unixtime(b)", "from_unixtime(b * 100000L, 'yyyy-MM-dd')"],
    "to_date": ["to_date(CAST(day AS STRING))", "to_date(date_format(day, 'yyyyMMdd'), 'yyyyMMdd')"],
    "to_timestamp": ["to_timestamp(date_format(ts, 'dd.MM.yyyy HH:mm:ss'), 'dd.MM.yyyy HH:mm:ss')"],
    "unix_timestamp": ["unix_timestamp(day)", "unix_timestamp(ts)",
                       "unix_timestamp(CAST(day AS STRING), 'yyyy-MM-dd')",
                       "unix_timestamp(timestamp_millis(-1500L))"],
    "date_part": ["date_part('MONTH', day)", "date_part('dow', ts)"],
    "ascii": ["ascii(S)"],
    "octet_length": ["octet_length(S)"],
    "bit_length": ["bit_length(bin)"],
    "repeat": ["repeat(S, 2)", "repeat(`we``ird`, b % 3)"],
    "left": ["left(S, 2)", "left(S, b)"],
    "right": ["right(S, 2)", "right(S, b)"],
    "lpad": ["lpad(S, 3, 'xy')"],
    "rpad": ["rpad(S, 2)"],
    "replace": ["replace(S, 'a', 'xy')", "replace(S, 'a')", "replace(S, '', 'q')", "replace(S, left(S, 1), `we``ird`)"],
    "instr": ["instr(S, 'b')", "instr(S, '')"],
    "locate": ["locate('b', S)", "locate('b', S, 2)", "locate(`we``ird`, S, 1)", "locate('', S, 3)"],
    "overlay": ["overlay(S PLACING 'qq' FROM 2)", "overlay(S PLACING `we``ird` FROM 1 FOR 0)", "overlay(S, 'é', 3, 9)",
                "overlay(S, 'x', 2, -1)"],
    "concat_ws": ["concat_ws('-', S, i, `we``ird`)", "concat_ws(S, 'a', 'b')", "concat_ws('-')",
                  "concat_ws(',', split(S, 'b'), i, array(NULL, `we``ird`))", "concat_ws('', if(bo, array(S), NULL))"],
    "translate": ["translate(S, 'ab', 'x')", "translate(S, 'aab', 'xyz')"],
    "split": ["split(S, ',')", "split(S, '[bc]')", r"split(S, '\\.')", r"split(S, '\\s')"],
    "split_part": ["split_part(S, 'b', 1)", "split_part(S, 'b', 2)"],
    "regexp_like": ["regexp_like(S, 'b')"],
    "regexp_extract": ["regexp_extract(S, '([a-z])(.)', 2)", "regexp_extract(S, '(x)?a', 1)",
                       "regexp_extract(S, 'a', 0)"],
    "regexp_replace": ["regexp_replace(S, '[ab]', '<>')", "regexp_replace(S, 'a+', '')",
                       "regexp_replace(S, '(a)|(b)', '[$2$1$0]')", "regexp_replace(`we``ird`, '(.)(.)', '$2 $1')"],
    "regexp_count": ["regexp_count(S, '[ab]')", "regexp_count(`we``ird`, '.')"],
    "regexp_substr": ["regexp_substr(S, '[b-z]+')", "regexp_substr(`we``ird`, 'q$')"],
    "regexp_extract_all": ["regexp_extract_all(S, '(a)|(b)', 2)", "regexp_extract_all(S, '(.)')",
                           "regexp_extract_all(S, '[ab]', 0)"],
    "round": ["round(x, 1)", "round(x)", "round(f, 1)", "round(d5, 1)", "round(d38)", "round(i, 2)", "round(d5, 5)",
              "round(i % 100000, -1)", "round(b, -2)", "round(l % 1000, -3)", "round(d5, -1)", "round(d5, -3)",
              "round(-15, -1)", "round(i, -30)"],
    "sign": ["sign(x)", "sign(i)", "signum(d5)"],
    "sqrt": ["sqrt(x)", "sqrt(i)"],
    "pmod": ["pmod(i, 7)", "pmod(i, -7)"],
    "nanvl": ["nanvl(x, 0)"],
    "reverse": ["reverse(if(S RLIKE '^[ -~]*$', S, NULL))", "reverse(array(i, NULL, b))", "reverse(split(S, 'b'))"],
    "substring_index": ["substring_index(S, 'b', 1)", "substring_index('a.b.c', '.', -2)",
                        "substring_index(S, ',', -9)",
                        "substring_index(S, 'b', 0)", "substring_index(S, 'b', 5)"],
    "equal_null": ["equal_null(i, l)", "equal_null(S, NULL)"],
    "next_day": ["next_day(if(year(day) < 9000, day, NULL), 'MON')", "next_day(DATE '2024-02-28', 'we')",
                 "next_day(NULL, 'MON')"],
    "btrim": ["btrim(S)"],
    "timestamp_seconds": ["timestamp_seconds(i % 100000)"],
    "timestamp_millis": ["timestamp_millis(i)"],
    "timestamp_micros": ["timestamp_micros(i)"],
    "array_size": ["array_size(split(S, 'b'))", "array_size(if(bo, array(i), NULL))"],
    "unix_seconds": ["unix_seconds(ts)", "unix_seconds(timestamp_millis(-1500L))", "unix_seconds(n)"],
    "unix_millis": ["unix_millis(ts)", "unix_millis(timestamp_micros(-1500L))"],
    "unix_micros": ["unix_micros(ts)"],
    "bigint": ["bigint(S = 'a')"],
    "smallint": ["smallint(b)"],
    "tinyint": ["tinyint(b)"],
    "float": ["float(x)"],
    "transform": [
        "transform(split(S, 'b'), x -> x || '!')", "transform(split(S, 'b'), (x, i) -> i + b)",
        "transform(array(i, l, NULL), S -> S % 7 + i % 3)", "transform(array(1, 2), x -> NULL) IS NULL",
        "transform(array(st, NULL), x -> X.a)", "transform(array(st), x -> struct(x.`b.c` AS q, id))",
        "transform(array(b, 3Y), x -> transform(array(x, sh), y -> y % 5 - x % 5))",
        "transform(array(b, 3Y), x -> transform(array(7, 8), x -> x))", "transform(array(x, f), x -> x = x)",
        "transform(split(S, 'b'), x -> CASE WHEN x = 'a' THEN upper(x) ELSE trim(x) END)",
        "transform(array(i % 5, b), x -> t.x)", "size(transform(array(day, DATE '2013-01-01'), x -> year(x)))",
    ],
    "filter": [
        "filter(split(S, 'b'), x -> x <> '')", "filter(array(i, NULL, b, 3), x -> x > 0)",
        "filter(array(i, NULL, b, 3), (x, i) -> i % 2 = 1 OR x IS NULL)", "filter(array(i, b), x -> bo)",
        "filter(array(x, f), v -> isnan(v))", "filter(array(st), v -> v IS NOT NULL)",
        "filter(array(array(i), array(NULL, 3), NULL), v -> exists(v, w -> w > 2))",
    ],
    "exists": [
        "exists(split(S, 'b'), x -> x = 'a')", "exists(array(i, NULL, b), x -> x > 0)", "exists(array(i, b), x -> bo)",
        "exists(array(i, NULL), x -> x IS NULL)", "exists(filter(array(i), x -> false), x -> true)",
    ],
    "forall": ["forall(split(S, 'b'), x -> x <> 'a')", "forall(array(i, NULL, b), x -> x > 0)",
               "forall(array(i, b), x -> bo)", "forall(filter(array(i), x -> false), x -> false)"],
    "aggregate": [
        "aggregate(array(b, sh % 10), 0, (acc, x) -> acc + x)", "aggregate(array(b, NULL), 0, (acc, x) -> acc + x)",
        "aggregate(array(b, NULL), 0L, (acc, x) -> acc + coalesce(x, 1), acc -> acc * 2)",
        "aggregate(split(S, 'b'), '', (a, s) -> a || '-' || s)", "aggregate(split(S, 'b'), 0, (n, s) -> n + length(s))",
        "aggregate(filter(array(b), x -> false), 7, (acc, x) -> acc + x)",
        "reduce(array(b, 2Y), CAST(NULL AS INT), (acc, x) -> acc + x)",
        "aggregate(array(i, b), struct(0L AS n, 0D AS s), (a, x) -> struct(a.n + 1L AS n, x + 0D AS s), a -> a.s)",
        "aggregate(array(bo, true), false, (a, x) -> a OR x, a -> NOT a)",
    ],
    "get": ["get(split(S, 'b'), 1)", "get(split(S, 'b'), -1)", "get(split(S, 'b'), b)"],
    "map": ["map('a', i, 'b', 5L)['a']", "map(1, st)[1]",
            "map_keys(map('x', S, 'y', 'z'))"],
    "map_keys": [],
    "map_values": [],
    "map_contains_key": [],
    "size": ["size(split(S, 'b'))"],
    "array_contains": ["array_contains(split(S, 'b'), 'a')", "array_contains(array(b, NULL), l % 9)"],
    "array_position": ["array_position(array(i, b, 5), 5)", "array_position(split(S, 'b'), 'a')",
                       "array_position(array(NULL, b), b)", "array_position(array(b, 5Y), i)",
                       "array_position(if(bo, array(i), NULL), i)"],
    "array_remove": ["array_remove(array(i, NULL, 5), 5)", "array_remove(split(S, 'b'), 'a')",
                     "array_remove(array(b, sh), b)", "array_remove(array(b, 5Y), i)"],
    "array_compact": ["array_compact(array(i, NULL, b))", "array_compact(if(bo, split(S, 'b'), NULL))"],
    "array_max": ["array_max(array(i, NULL, b))", "array_max(split(S, 'b'))", "array_max(array_compact(array(i)))"],
    "array_min": ["array_min(array(d5, NULL))", "array_min(split(S, 'b'))", "array_min(if(bo, array(ts), NULL))"],
    "sort_array": ["sort_array(array(i, NULL, b))", "sort_array(split(S, 'b'))", "sort_array(array(bin, NULL))",
                   "sort_array(array(i, NULL, b), false)", "sort_array(split(S, 'b'), true)"],
    "array_sort": ["array_sort(array(i, NULL, b))", "array_sort(split(S, 'b'))"],
    "array_join": ["array_join(split(S, 'b'), '-')", "array_join(array(S, NULL, 'x'), '')",
                   "array_join(array_compact(array(S)), ',')", "array_join(if(bo, array(S), NULL), '')",
                   "array_join(array(S, NULL), '-', 'none')"],
    "array_append": ["array_append(array(i, b), l)", "array_append(split(S, 'b'), S)", "array_append(array(), b)",
                     "array_append(if(bo, array(st), NULL), st)", "array_append(array(i), NULL)"],
    "array_prepend": ["array_prepend(if(bo, array(x), NULL), x)", "array_prepend(array(i, NULL), 3Y)"],
    "slice": ["slice(array(i, b, NULL, 4), 2, 2)", "slice(array(i, b, 3), -2, 5)", "slice(array(i, b), -3, 1)",
              "slice(split(S, 'b'), 1, length(S) % 3)", "slice(split(S, 'b'), if(bo, 1, NULL), 1)",
              "slice(array(x), 2, 1)", "slice(array(st), 1, 0)", "slice(if(bo, array(i), NULL), 1, 9)"],
    "degrees": ["degrees(x)", "degrees(i)"],
    "radians": ["radians(x)", "radians(d5)"],
    "pi": ["pi()"],
    "e": ["e()"],
    "bin": ["bin(i)", "bin(l)"],
    "bit_count": ["bit_count(i)", "bit_count(l)", "bit_count(b)"],
    "monthname": ["monthname(day)", "monthname(ts)"],
    "dayname": ["dayname(day)", "dayname(n)"],
    "base64": ["base64(bin)", "base64(S)", "base64(repeat(S, 30))"],
    "chr": ["chr(i)", "char(b)", "chr(l)"],
    "space": ["space(b)"],
    "encode": ["encode(S, 'utf-8')"],
    "decode": ["decode(encode(S, 'UTF-8'), 'UTF-8')", "decode(b, 1, 'one', 5, S, NULL, 'null')",
               "decode(i, 5, 1, 2L)", "decode(S, 'a', x)"],
    "levenshtein": ["levenshtein(if(S RLIKE '^[ -~]*$', S, NULL), 'abc')"],
    "positive": ["positive(x)", "positive(d5)"],
    "to_timestamp_ntz": ["to_timestamp_ntz(ts)", "to_timestamp_ntz('2024-02-29 01:02:03.5')"],
    "try_to_date": ["try_to_date(S)", "try_to_date(concat('2024-0', pmod(b, 9)))", "try_to_date(n)"],
    "try_to_timestamp": ["try_to_timestamp(S)", "try_to_timestamp(concat('2024-02-29 0', pmod(b, 9), ':00'))"],
    "negative": ["negative(x)", "negative(b % 5)"],
    "zeroifnull": ["zeroifnull(i)", "zeroifnull(x)", "zeroifnull(d5)"],
    "nullifzero": ["nullifzero(i)", "nullifzero(x)"],
    "try_add": ["try_add(i, i)", "try_add(l, 1)", "try_add(b, sh)", "try_add(x, f)", "try_add(i, -1)"],
    "try_subtract": ["try_subtract(l, 2L)", "try_subtract(b, 100Y)"],
    "try_multiply": ["try_multiply(i, i)", "try_multiply(l, b)", "try_multiply(sh, sh)"],
    "try_divide": ["try_divide(i, b)", "try_divide(x, 0)", "try_divide(1, i)", "try_divide(f, x)"],
    "array_distinct": ["array_distinct(array(i, b, NULL, i, NULL, 5))", "array_distinct(split(S, 'a'))",
                       "array_distinct(if(bo, array(day, day), NULL))"],
    "array_union": ["array_union(array(i, NULL, 5), array(b, 5, NULL))", "array_union(split(S, 'a'), array('b'))",
                    "array_union(array(i), if(bo, array(b), NULL))"],
    "array_intersect": ["array_intersect(array(i, NULL, 5, i), array(b, 5, NULL))"],
    "array_except": ["array_except(array(i, NULL, 5, i), array(b, 5))", "array_except(array(i, 5), array(NULL, 5L))"],
    "arrays_overlap": ["arrays_overlap(array(i, 1), array(b, 5))", "arrays_overlap(array(i, NULL), array(5))",
                       "arrays_overlap(array(i), filter(array(b, NULL), v -> v > 0))",
                       "arrays_overlap(filter(array(i), v -> v > 0), array(NULL, 5))"],
    "array_repeat": ["array_repeat(S, 2)", "array_repeat(i, b % 3)", "array_repeat(st, 1)",
                     "array_repeat(x, if(bo, 2, NULL))"],
    "flatten": ["flatten(array(array(i, NULL), array(b)))", "flatten(array(split(S, 'a'), if(bo, array('x'), NULL)))",
                "flatten(transform(array(b, 2Y), v -> array(v, v)))"],
    "sequence": ["sequence(1, 5)", "sequence(b % 4, sh % 5)", "sequence(5L, i % 9, -3L)", "sequence(b, b, 0)",
                 "sequence(DATE '2024-02-27', DATE '2024-03-01')",
                 "sequence(DATE '2013-01-05', if(year(day) = 2013, day, NULL))",
                 "sequence(if(bo, 1, NULL), 3)", "transform(sequence(1, 3), v -> v * b)"],
    "try_element_at": ["try_element_at(array(i, b), 3)", "try_element_at(array(i, b), -2)",
                       "try_element_at(map('a', i), S)"],
    "map_entries": ["map_entries(map('a', i, 'b', b))", "map_entries(if(bo, map(1, S), NULL))"],
    "map_from_entries": ["map_from_entries(array(struct('a' AS k, i AS v), struct('b' AS k, b AS v)))['a']",
                         "map_from_entries(map_entries(if(bo, map(1, S), NULL)))[1]"],
    "map_from_arrays": ["map_from_arrays(array('a', 'b'), array(i, b))['b']",
                        "map_keys(map_from_arrays(sequence(1, 3), array_repeat(S, 3)))",
                        "map_from_arrays(if(bo, array('a'), NULL), array(i))['a']"],
    "map_filter": ["map_keys(map_filter(map('a', i, 'b', b), (k, v) -> v > 0 OR k = 'b'))",
                   "map_filter(if(bo, map(1, S), NULL), (k, v) -> v IS NOT NULL)[1]"],
    "transform_keys": ["map_entries(transform_keys(map('a', i, 'b', b), (k, v) -> upper(k)))",
                       "map_keys(transform_keys(if(bo, map(1, S), NULL), (k, v) -> k + 1))"],
    "transform_values": ["map_entries(transform_values(map('a', i, 'b', b), (k, v) -> k || v))",
                         "map_values(transform_values(map(id, array(i)), (k, v) -> transform(v, w -> w % 7 + k % 3)))"],
    "map_concat": [
        "map_keys(map_concat(map('a', i), map('b', b + 0)))", "map_concat(map(1, x))[1]",
        "map_concat(map('a', S), if(bo, map('b', S), NULL))['a']",
    ],
}  # fmt: skip

# Text as numbers and dates, digits at the edge, arrays and maps: over the table `v`.
CONVERSIONS = [
    "CAST(num AS INT)", "CAST(num AS BIGINT)", "num + 1", "num * 1.5", "CAST(num AS DECIMAL(5,1))", "num = 1",
    "num > k",
    "num IN (1, 2)", "k IN (num)", "num BETWEEN 1 AND 3", "CAST(dt AS DATE)", "to_date(dt)", "year(dt)",
    "dt = DATE '2013-01-05'", "dt < DATE '2013-02-01'", "CAST(tm AS TIMESTAMP)", "to_timestamp(tm)", "hour(tm)",
    "CAST(substring(tm, 1, 4) AS TIMESTAMP_NTZ)", "CAST(dbl AS DOUBLE)", "CAST(dbl AS FLOAT)", "try_cast(dt AS DATE)",
    "try_cast(tm AS TIMESTAMP)", "try_cast(dbl AS FLOAT)", "try_cast(num AS DECIMAL(2,1))", "try_cast(bl AS BOOLEAN)",
    "dbl = 1.5", "CAST(bl AS BOOLEAN)", "bl = true", "CASE WHEN size(arr) > 1 THEN arr[1] END", "size(arr)", "size(m)",
    "CASE WHEN size(arr) > 1 THEN element_at(arr, 2) END", "array_contains(arr, 1)", "array_contains(arr, k)", "m['a']",
    "m['zz']", "element_at(m, 'a')", "map_keys(m)", "map_values(m)", "map_contains_key(m, 'a')", "get(arr, 1)",
    "get(arr, k)", "element_at(if(size(arr) > 0, arr, NULL), -1)", "round(fx, 2)", "round(fx)", "round(fx, 1)",
    "round(big, 2)", "floor(fx)",
    "CAST(fx AS DECIMAL(20,2))", "CAST(fx AS DECIMAL(20,1))", "CAST(d30 AS DOUBLE)", "d30 * 2", "coalesce(num, k)",
    "CAST('-9999999999' AS DECIMAL(10,0)) * CAST('9999999999' AS DECIMAL(10,0)) * k",
    "nullif(num, 1)", "CASE k WHEN num THEN 1 ELSE 2 END", "num / 2", "if(k > 0, num, 1)", "k IN ('1', '5')",
    "transform(arr, x -> x + k)", "transform(arr, (x, i) -> concat(i, ':', coalesce(x, 0)))", "filter(arr, x -> x > 1)",
    "filter(arr, (x, i) -> i = k)", "exists(arr, x -> x > 2)", "exists(arr, x -> x < 0)", "forall(arr, x -> x > 0)",
    "forall(arr, x -> x IS NOT NULL)", "aggregate(arr, 0L, (a, x) -> a + x)", "aggregate(arr, k, (a, x) -> a)",
    "aggregate(arr, '', (a, x) -> concat(a, x), a -> nullif(a, ''))", "transform(map_keys(m), x -> m[x])",
    "exists(map_values(m), x -> x IS NULL)", "transform(transform(arr, x -> array(x, k)), x -> x[1])",
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
    "map_entries(CAST(map(id, S) AS MAP<STRING, BINARY>))", "array(st).A", "struct(array(st) AS q).q.`b.c`",
    "struct(map('k', st) AS m).m.k.A",
    "if(year(ts) BETWEEN 2 AND 9000, ts, NULL) - INTERVAL 1 WEEK", "d5 + d5", "d5 - 1", "d5 + i", "d5 * d5", "d5 * 2",
    "d5 * 1.5", "d5 + x", "d38 + x",
    "NULL + NULL", "-NULL", "NULL / NULL * NULL % NULL",
    "CAST(d38 AS DOUBLE)", "CAST(d5 AS INT)", "CAST(ts AS BIGINT)",
    "CAST(i AS TIMESTAMP)", "CAST(S AS BINARY)", "CAST(encode(S, 'UTF-8') AS STRING)", "bin = S",
    "CAST(i AS STRING) = i", "CAST(i AS STRING) < 5.5",
    "CAST(day AS STRING) = day", "CAST(i AS STRING) IN (1, 5)", "i IN ('1', '5')", "year(CAST(day AS STRING))",
    "date_trunc('MONTH', CAST(day AS STRING))", "trunc(CAST(day AS STRING), 'MM')", "i + NULL",
    "CAST(if(abs(x) < 1000, x, 0D) AS DECIMAL(10,2))", "CAST(x AS FLOAT)", "CAST(x * 1e300 AS FLOAT)", "d5 / 2",
    "1 / 3BD",
    "d5 / nullif(d5 + 1, 0)", "i / nullif(d5, 0)", "d5 / NULL", "NULL - d5", "CAST(1.5 AS DECIMAL(38,18)) + d5",
    "CAST(d5 AS DECIMAL(38,18)) - 1", "CAST(d5 AS DECIMAL(20,9)) * CAST(1.05 AS DECIMAL(18,2))", "l / 7BD",
    "CAST(if(abs(x) > 1e14 OR abs(x) < 1e-3 AND x <> 0, NULL, round(x, 3)) AS STRING)", "CAST(b * 0.5F AS STRING)",
    "concat(b / 4D, '|', b * 12345678.5D)", "concat(i * 100D, '')", "CAST(CAST(NULL AS DOUBLE) AS STRING)",
    "f IN (CAST(NULL AS FLOAT), CAST(0 AS FLOAT))", "CAST(NULL AS INT) / 2", "x > CAST(NULL AS TINYINT)",
    "concat(CAST('-Infinity' AS DOUBLE), CAST('nan' AS FLOAT), -0.0D)",
    "CAST(CAST(b % 2 * 0.5 - 0.2 AS DECIMAL(2,2)) AS STRING)", "CAST(d5 AS DECIMAL(30,10)) / 3",
    "CAST(if(abs(f) < 1000 OR isnan(f), f, CAST('Infinity' AS FLOAT)) AS DECIMAL(9,3))",
    "CAST(if(abs(x) < 1000 OR isnan(x), x, CAST('-Infinity' AS DOUBLE)) AS DECIMAL(9,3))",
]  # fmt: skip

AGGREGATES: dict[str, list[str]] = {
    "count": [
        "count(*)",
        "count(i)",
        "count(DISTINCT S)",
        "count(DISTINCT x)",
        "count(DISTINCT i, S)",
        "count(i, S, bo)",
        "count(*) FILTER (WHERE i > 0)",
        "count(DISTINCT i) FILTER (WHERE S IS NULL OR S <> 'a')",
    ],
    "mean": ["mean(b)", "mean(d5) FILTER (WHERE bo)"],
    "max_by": ["max_by(S, id)", "max_by(id, id)", "max_by(st, id)", "max_by(x, if(i > 0, id, NULL))"],
    "min_by": ["min_by(S, id)", "min_by(day, id) FILTER (WHERE day IS NOT NULL)", "min_by(`we``ird`, -id)"],
    "any_value": ["any_value(S) FILTER (WHERE id = 3)", "any_value(id % 1)"],
    "first": ["first(st) FILTER (WHERE id = 3)", "first(x IS NULL AND x IS NOT NULL)"],
    "first_value": ["first_value(i) FILTER (WHERE id = 7)"],
    "last": ["last(S) FILTER (WHERE id = 4)", "last(id % 1)"],
    "last_value": ["last_value(b) FILTER (WHERE id = 5)"],
    "sum": [
        "sum(i % 100) FILTER (WHERE i > 0)",
        "sum(b)",
        "sum(i)",
        "sum(DISTINCT sh)",
        "sum(d5)",
        "sum(CASE WHEN bo THEN 1 ELSE 0 END)",
    ],
    "avg": [
        "avg(b)",
        "avg(DISTINCT i)",
        "avg(d5)",
        "avg(DISTINCT d5)",
        "avg(CAST(i AS DECIMAL(20,6)))",
        "avg(-d5 / 7)",
        "avg(CAST(b AS DECIMAL(3,0)))",
    ],
    "min": [
        "min(i)",
        "min(x)",
        "min(S)",
        "min(day)",
        "min(ts)",
        "min(d38)",
        "min(bo)",
        "min(f)",
        "min(bin)",
        "min(st)",
        "min(struct(bo, S))",
    ],
    "max": [
        "max(i)",
        "max(x)",
        "max(S)",
        "max(n)",
        "max(bo)",
        "max(f)",
        "max(bin)",
        "max(st)",
        "max(struct(x, id)) FILTER (WHERE bo)",
        "max(if(bo, struct(ts, id), NULL))",
    ],
    "count_if": ["count_if(bo)", "count_if(i > 0)", "count_if(NULL IS NULL)", "count_if(x = 'NaN' OR bo)"],
    "bool_and": ["bool_and(bo)", "bool_and(i > 0)", "bool_and(S IS NULL)"],
    "every": ["every(bo)", "every(b < 0)"],
    "bool_or": ["bool_or(bo)", "bool_or(i > 100)", "bool_or(S = 'a')"],
    "any": ["any(i > 0)", "any(bo)"],
    "bit_and": ["bit_and(i)", "bit_and(b)"],
    "bit_or": ["bit_or(l)", "bit_or(sh)"],
    "bit_xor": ["bit_xor(i)", "bit_xor(l)"],
    "some": ["some(bo)"],
    "collect_list": [
        "sort_array(collect_list(b))",
        "sort_array(collect_list(S))",
        "size(collect_list(st))",
        "sort_array(collect_list(DISTINCT i))",
        "collect_list(b) FILTER (WHERE id < 0)",
    ],
    "array_agg": ["sort_array(array_agg(day))"],
    "collect_set": ["sort_array(collect_set(b))", "array_join(sort_array(collect_set(S)), '-')"],
    "percentile": [
        "percentile(b, 0.3)",
        "percentile(i, 0.95D)",
        "percentile(x, 0.5)",
        "percentile(l, 0.123)",
        "percentile(f, 1)",
        "percentile(d5, 0.25) FILTER (WHERE i > 0)",
        "percentile(d38, 0)",
        "percentile(x, 0.7) FILTER (WHERE id < 0)",
    ],
    "median": ["median(b)", "median(x)", "median(l)", "median(d5)", "median(f) FILTER (WHERE bo)"],
}

# Window functions, over `t`, whose `id` is unique.
_BY_I = "PARTITION BY bo ORDER BY i DESC, id"
WINDOWS: dict[str, list[str]] = {
    "row_number": ["row_number() OVER (ORDER BY i, id)", "row_number() OVER (PARTITION BY bo, f ORDER BY x DESC, id)"],
    "rank": ["rank() OVER (ORDER BY S)", "rank() OVER (PARTITION BY x ORDER BY day DESC NULLS FIRST)"],
    "dense_rank": ["dense_rank() OVER (ORDER BY f)", "dense_rank() OVER (ORDER BY x DESC)"],
    "any": ["any(bo) OVER (PARTITION BY b)"],
    "bit_and": ["bit_and(i) OVER (PARTITION BY bo)"],
    "bit_or": ["bit_or(i) OVER (ORDER BY id)"],
    "bit_xor": ["bit_xor(l) OVER (PARTITION BY bo ORDER BY id)"],
    "ntile": [f"ntile(4) OVER ({_BY_I})"],
    "percent_rank": ["percent_rank() OVER (ORDER BY b)"],
    "cume_dist": ["cume_dist() OVER (PARTITION BY bo ORDER BY ts NULLS LAST)"],
    "lag": [f"lag(S) OVER ({_BY_I})", f"lag(i, 2) OVER ({_BY_I})", f"lag(l, 1, 0) OVER ({_BY_I})",
            f"lag(S, 2) IGNORE NULLS OVER ({_BY_I})", f"lag(i, 1, -1) IGNORE NULLS OVER ({_BY_I})"],
    "lead": [f"lead(st) OVER ({_BY_I})", f"lead(day, 1, DATE '2000-01-01') OVER ({_BY_I})",
             f"lead(x) IGNORE NULLS OVER ({_BY_I})"],
    "first_value": [f"first_value(S) OVER ({_BY_I})", f"first_value(S) IGNORE NULLS OVER ({_BY_I})"],
    "nth_value": [f"nth_value(S, 2) OVER ({_BY_I})", f"nth_value(i, 3) IGNORE NULLS OVER ({_BY_I})",
                  f"nth_value(b, 2) OVER ({_BY_I} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)"],
    "first": [f"first(i) OVER ({_BY_I} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)"],
    "last_value": ["last_value(x) OVER (PARTITION BY bo ORDER BY x)", f"last_value(st) IGNORE NULLS OVER ({_BY_I})"],
    "last": [f"last(b) OVER ({_BY_I} ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
             f"last(S, true) OVER ({_BY_I} ROWS 2 PRECEDING)", f"last(i, false) OVER ({_BY_I})"],
    "max_by": [f"max_by(S, id) OVER ({_BY_I})", "max_by(S, id) OVER ()"],
    "min_by": [f"min_by(i, id) OVER ({_BY_I} ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING)"],
    "any_value": [f"any_value(S) OVER ({_BY_I})"],
    "mean": [f"mean(b) OVER ({_BY_I})"],
    "count_if": ["count_if(bo) OVER ()", f"count_if(i > 0) OVER ({_BY_I})"],
    "bool_and": [f"bool_and(b > 0) OVER ({_BY_I})"],
    "every": ["every(i > 0) OVER (PARTITION BY bo)"],
    "some": ["some(i > 0) OVER (PARTITION BY bo)"],
    "collect_list": [f"collect_list(i) OVER ({_BY_I})", "sort_array(collect_list(S) OVER (PARTITION BY bo))"],
    "array_agg": [f"array_agg(i) OVER ({_BY_I} ROWS 1 PRECEDING)"],
    "collect_set": ["sort_array(collect_set(b) OVER (PARTITION BY bo))"],
    "bool_or": [f"bool_or(i > 0) OVER ({_BY_I} ROWS 1 PRECEDING)"],
    "percentile": ["percentile(b, 0.4) OVER (PARTITION BY bo)"],
    "median": ["median(l) OVER (PARTITION BY bo)", "median(x) OVER ()"],
    "count": ["count(*) OVER ()", "count(i) OVER (ORDER BY b)", "count(1) OVER (PARTITION BY i) > 1"],
    "sum": ["sum(i % 100) OVER (ORDER BY b)", f"sum(d5) OVER ({_BY_I} ROWS 2 PRECEDING)",
            "sum(b) OVER (PARTITION BY x)"],
    "avg": [f"avg(b) OVER ({_BY_I} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING)", f"avg(d5) OVER ({_BY_I})"],
    "min": ["min(x) OVER (PARTITION BY bo ORDER BY i)", "min(S) OVER (PARTITION BY l % 2)"],
    "max": ["max(f) OVER (ORDER BY i RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
            "max(ts) OVER (ORDER BY day)", "max(struct(b, id)) OVER (PARTITION BY bo)"],
}  # fmt: skip

QUERIES = [
    "SELECT bo, count(*) AS c, sum(b) s FROM t GROUP BY bo HAVING c > 3 AND s IS NOT NULL AND bo IS NOT NULL",
    "SELECT b + 1 AS b, max(i) AS i, count(*) AS c FROM t GROUP BY b HAVING b > 1 AND i > 0 AND max(i) > 0 OR c > 5",
    "SELECT b AS i, count(*) AS c FROM t GROUP BY b, i HAVING i > 5",
    "SELECT b AS w, -max(x) AS x FROM t GROUP BY w HAVING w > 0 AND x < 0",
    "SELECT S AS word, max(i) AS m FROM t GROUP BY S HAVING m > 0 OR word = 'a'",
    "SELECT id, st.*, split('a,b', ',')[1], map('k', i)['k'] FROM t",
    "SELECT st.A AS q, st.* FROM t WHERE st.A > 0",
    "SELECT r.id, n FROM range(-3, 9, 2) r LEFT JOIN u ON r.id = n",
    "SELECT count(*) AS c, sum(id) AS s FROM (SELECT * FROM range(5) UNION ALL SELECT k FROM range(9, 2, -3) AS r(k))",
    "SELECT id, b FROM t WHERE b IN (SELECT n FROM u)",
    "SELECT id, b IN (SELECT n FROM u) AS f, b NOT IN (SELECT n FROM u) AS g, NOT (b IN (SELECT n FROM u)) AS h FROM t",
    "SELECT id, b NOT IN (SELECT n FROM u WHERE n > 0) AS f, b IN (SELECT n FROM u WHERE n > 100) AS g FROM t",
    "SELECT id, CASE WHEN b IN (SELECT n FROM u) THEN 1 WHEN b NOT IN (SELECT n FROM u) THEN 2 ELSE 3 END AS f FROM t",
    "SELECT id FROM t WHERE CASE WHEN bo AND b NOT IN (SELECT n FROM u) OR S IN (SELECT word FROM u) THEN i > 0 "
    "ELSE bo END",
    "SELECT id, b FROM t WHERE b NOT IN (SELECT n FROM u)",
    "SELECT id, b FROM t WHERE b NOT IN (SELECT n FROM u WHERE n IS NOT NULL)",
    "SELECT id, b FROM t WHERE b NOT IN (SELECT n FROM u WHERE n < 0) AND b IS NOT NULL OR b IS NULL",
    "SELECT id FROM t WHERE b NOT IN (SELECT n FROM u WHERE n > 100)",
    "SELECT id FROM t WHERE NOT (b IN (SELECT n FROM u)) OR NOT (i > 0 AND b = 3)",
    "SELECT id FROM t WHERE x IN (SELECT n FROM u) OR d5 IN (SELECT n FROM u)",
    "SELECT id FROM t WHERE x IN (SELECT x FROM t WHERE id % 2 = 0)",
    "SELECT id FROM t WHERE i > 0 AND EXISTS (SELECT * FROM u WHERE u.n = t.b)",
    "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.n = t.b AND u.word <> 'five')",
    "SELECT id FROM t a WHERE EXISTS (SELECT 1 FROM t AS z WHERE z.b = a.b AND z.id < a.id)",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE n > 100) OR b = 5",
    "SELECT id FROM t WHERE S IN (SELECT word FROM u WHERE n = b) OR b IN (SELECT n FROM u WHERE word = S)",
    "SELECT id FROM t WHERE b NOT IN (SELECT n FROM u WHERE word = S OR word = 'null')",
    "SELECT id, (SELECT count(*) FROM u WHERE n = b) AS c, (SELECT min(word) FROM u WHERE n = t.b) AS w FROM t",
    "SELECT id FROM t WHERE i = (SELECT max(i) FROM t AS z)",
    "SELECT bo, count(*) AS c FROM t GROUP BY bo HAVING count(*) > (SELECT min(n) FROM u)",
    "WITH q AS (SELECT n FROM u WHERE n > 0) SELECT id FROM t WHERE b IN (SELECT n FROM q) AND i IN (TABLE q)",
    "SELECT (SELECT n FROM u WHERE n > 100) AS nothing, (SELECT 1) + 1 AS two",
    "SELECT id FROM t WHERE b IN (SELECT n FROM u ORDER BY n DESC NULLS LAST LIMIT 1)",
    "SELECT id FROM t WHERE b IN (VALUES 1, 5)",
    "SELECT id FROM t WHERE b IN (SELECT n FROM u UNION ALL SELECT 3)",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u JOIN t AS z ON u.n = z.b WHERE z.id = t.id)",
    "SELECT k FROM (SELECT b AS k, id FROM t WHERE b IN (SELECT n FROM u)) WHERE id <> (SELECT n FROM u WHERE n = 1)",
    "SELECT id + 1, upper('a'), count(*), sum(b) / count(*), max(l) % 7L FROM t GROUP BY id",
    "SELECT CAST(b AS BIGINT), round(d5), CASE WHEN bo THEN 'x' END, if(bo, 1, -1), t.st.A + 1, -(b % 9) FROM t",
    "SELECT sum(b) FILTER (WHERE i > 0), count(*) FILTER (WHERE bo OR b < 3) FROM t",
    "SELECT b FROM t UNION SELECT i FROM t ORDER BY b DESC NULLS LAST LIMIT 5 OFFSET 2",
    "SELECT id, S FROM t UNION ALL SELECT n, word FROM u WHERE n IS NOT NULL ORDER BY 2 NULLS FIRST, id, S LIMIT 30",
    "(SELECT b FROM t ORDER BY b NULLS LAST LIMIT 3) UNION ALL SELECT n FROM u ORDER BY b NULLS LAST LIMIT 4",
    "SELECT * FROM VALUES (1, 'a'), (2, NULL), (NULL, 'c') AS v(x, y)",
    "SELECT * FROM VALUES (1, 1.5, DATE '2013-01-01', 'a'), (2L, 2.25, NULL, NULL)",
    "SELECT v.k, count(*) FROM t JOIN VALUES (0Y, 'zero'), (1Y, 'one') v(b, k) ON t.b = v.b GROUP BY v.k",
    "SELECT col1 + 1 FROM (VALUES 1, 2, 1 + 2)",
    "WITH v(k) AS (VALUES (1), (5)), w AS (TABLE u) SELECT k, word FROM v LEFT JOIN w ON v.k = w.n",
    "SELECT * FROM (TABLE u) AS w(a, b) WHERE a = 1",
    "SELECT k FROM u AS v(k, w) WHERE w LIKE '%n%'",
    "SELECT id, sum(b % 9) OVER w AS s, rank() OVER r AS p, max(b) OVER w AS m FROM t WINDOW w AS (PARTITION BY bo "
    "ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), r AS (ORDER BY f)",
    "SELECT id, bo FROM t WINDOW w AS (PARTITION BY bo ORDER BY id) QUALIFY row_number() OVER w = 1",
    "SELECT * EXCEPT (r) FROM (SELECT *, row_number() OVER (PARTITION BY i ORDER BY id DESC) AS r FROM t) WHERE r = 1",
    "SELECT id, i FROM t QUALIFY row_number() OVER (PARTITION BY i ORDER BY id) = 1",
    "SELECT id, i, row_number() OVER (PARTITION BY i ORDER BY id) AS rn FROM t WHERE b > 0 QUALIFY rn < 3 ORDER BY id",
    "SELECT id, dense_rank() OVER (ORDER BY b) AS i FROM t QUALIFY i > 5",
    "SELECT bo, b % 2 AS p, rank() OVER (PARTITION BY bo ORDER BY count(*) DESC, b % 2) AS r FROM t GROUP BY bo, b % 2",
    "SELECT bo, sum(count(*)) OVER () AS c FROM t GROUP BY bo HAVING count(*) > 1",
    "SELECT id, row_number() OVER (PARTITION BY bo ORDER BY id) AS r FROM t ORDER BY r, bo, id LIMIT 9",
    "SELECT bo, b % 3 AS p, count(*) AS n FROM t GROUP BY ALL",
    "SELECT length(S) AS u, b % 2 AS odd, sum(i % 100) + 1 AS s FROM t GROUP BY u, odd",
    "SELECT 5 AS a, bo, count(*) AS n FROM t GROUP BY bo, a",
    "SELECT 5 AS a, count(*) AS n FROM t WHERE false GROUP BY a",
    "SELECT 5 AS a, bo, count(*) AS n FROM t GROUP BY ALL",
    "SELECT count(*) AS n, count_if(bo) AS c FROM t WHERE id < 0 GROUP BY ALL",
    "SELECT bo AS b, count(*) AS n FROM t GROUP BY bo, id % 3 HAVING count_if(i > 0) > 0",
    "SELECT b % 2 AS S, count(*) AS n FROM t GROUP BY 1",
    "SELECT length(S) AS ALL, count(*) AS n FROM t GROUP BY ALL",
    "SELECT id, i, S FROM t ORDER BY 2 DESC, 1 LIMIT 7",
    "SELECT S, count(*) AS n FROM t GROUP BY ALL ORDER BY 2 DESC NULLS LAST, 1 NULLS LAST LIMIT 3",
    "SELECT x, f FROM t EXCEPT SELECT x, f FROM t WHERE id % 2 = 0",
    "SELECT bo, b % 2 AS c FROM t MINUS SELECT true AS bo, CAST(1 AS TINYINT) AS c",
    "SELECT b % 3 AS c, bo FROM t EXCEPT ALL SELECT b % 3 AS c, bo FROM t WHERE bo",
    "SELECT S FROM t INTERSECT SELECT word FROM u",
    "SELECT b % 3 AS c, bo FROM t INTERSECT ALL SELECT b % 3 AS c, bo FROM t WHERE id % 2 = 0",
    "SELECT b FROM t UNION SELECT i FROM t INTERSECT SELECT l FROM t EXCEPT SELECT 5Y AS b",
    "(SELECT b FROM t UNION SELECT i FROM t) INTERSECT SELECT l FROM t",
    "SELECT * FROM (SELECT b, id AS n FROM t) JOIN u USING (n)",
    "SELECT * FROM (SELECT S AS word, CAST(b AS INT) AS n, id FROM t) AS l LEFT JOIN u AS r USING (N, word)",
    "SELECT n, l.n AS ln, r.n AS rn, id FROM (SELECT id, CAST(b AS INT) AS n FROM t) l LEFT JOIN u r USING (n)",
    "SELECT * FROM (SELECT id, CAST(b AS INT) AS n FROM t) l LEFT SEMI JOIN u USING (n)",
    "SELECT n, id FROM (SELECT id, CAST(b AS INT) AS n FROM t) l LEFT ANTI JOIN u USING (n) WHERE n > 0",
    "SELECT * FROM (SELECT id, b AS n FROM t) a JOIN u b USING (n) JOIN (SELECT word, max(n) AS m FROM u GROUP BY 1) c "
    "USING (word)",
    "SELECT n, count(*) AS c FROM (SELECT b AS n FROM t) a JOIN u USING (n) GROUP BY n",
    "SELECT * FROM (SELECT id, CAST(b AS INT) AS n FROM t) l RIGHT JOIN u r USING (n)",
    "SELECT * FROM (SELECT id, CAST(b AS INT) AS N FROM t) l FULL JOIN u r USING (n)",
    "SELECT n, l.n AS ln, r.n AS rn, n + 1 AS m FROM (SELECT id, b AS n FROM t) l FULL OUTER JOIN u r USING (n)",
    "SELECT n, l.n AS ln, r.n AS rn FROM (SELECT id, CAST(b AS INT) AS n FROM t) l RIGHT OUTER JOIN u r USING (n)",
    "SELECT * FROM (SELECT S AS word, l AS N, id FROM t) AS l RIGHT JOIN u AS r USING (n, word)",
    "SELECT * FROM (SELECT S AS word, l AS N, id FROM t) AS l FULL JOIN u AS r USING (word, n) WHERE n > 0",
    "SELECT n, count(*) AS c FROM (SELECT b AS n FROM t) a FULL JOIN u USING (n) GROUP BY n HAVING n IS NOT NULL",
    "SELECT * FROM (SELECT id, b AS n FROM t) a FULL JOIN u b USING (n) FULL JOIN (SELECT max(n) AS n, word AS w FROM "
    "u GROUP BY 2) c USING (n)",
    "SELECT * FROM (SELECT id, b AS n FROM t) a RIGHT JOIN u b USING (n) LEFT JOIN (SELECT word, max(n) AS m FROM u "
    "GROUP BY 1) c USING (word)",
    "SELECT * EXCEPT (n) FROM (SELECT id, b AS n FROM t) a FULL JOIN u USING (n)",
    "SELECT n FROM (SELECT id, b AS n FROM t) a FULL JOIN u USING (n) ORDER BY n DESC NULLS LAST, id, word LIMIT 9",
    "SELECT word FROM (SELECT x, f AS n FROM t) a FULL JOIN (SELECT CAST(n AS FLOAT) AS n, word FROM u) USING (n)",
    "SELECT st.A AS a, l.st.`b.c` AS c FROM (SELECT st, id FROM t) l FULL JOIN (SELECT st, i FROM t WHERE id > 3) r "
    "USING (st)",
    "SELECT * FROM (SELECT id, CAST(b AS INT) AS n FROM t) NATURAL JOIN u",
    "SELECT id, word, q.N AS a, v.n AS m FROM (SELECT id, b AS N, S AS word FROM t) q NATURAL LEFT JOIN u v(n, word)",
    "SELECT * FROM (SELECT S AS word, CAST(b AS BIGINT) AS n, id FROM t) NATURAL FULL OUTER JOIN u",
    "SELECT * FROM (SELECT S AS word, CAST(b AS BIGINT) AS n, id FROM t) NATURAL RIGHT JOIN u",
    "SELECT l.n AS n, id, u.n AS m FROM (SELECT id, b AS n FROM t) l LEFT SEMI JOIN u USING (n) JOIN u ON u.n = id "
    "WHERE u.n > 0 OR l.n > 1",
    "SELECT * FROM (SELECT b FROM t) NATURAL JOIN u",
    "SELECT * FROM (SELECT b FROM t WHERE id < 3) NATURAL LEFT OUTER JOIN (SELECT * FROM u WHERE n > 100)",
    "SELECT * FROM (SELECT CAST(b AS BIGINT) AS n, id FROM t) NATURAL INNER JOIN u NATURAL JOIN (SELECT 'one' AS word)",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u FULL JOIN (SELECT 3 AS n) v USING (n) WHERE n = t.b)",
    "SELECT id, exists(array(b, i), x -> x IN (1, 5)) AS e FROM t WHERE get(filter(array(i, b), x -> x = 5), 0) = 5",
    "SELECT size(filter(array(b, i), x -> x > 0)) AS k, sum(aggregate(array(b, 1Y), 0, (a, x) -> a + x)) AS s, "
    "count(*) AS c FROM t GROUP BY 1",
    "SELECT t.* EXCEPT (st), u.word FROM t JOIN u ON t.b = u.n",
    "SELECT * FROM t",
    "SELECT * FROM t WHERE i > 0 AND S LIKE 'a%'",
    "SELECT * FROM t WHERE NOT ((`day` >= DATE '2013-01-01') <=> TRUE)",
    "SELECT * FROM t WHERE length(S) > 1 OR x = 'NaN'",
    "SELECT ID, S AS s2 FROM t WHERE t.i IS NOT NULL",
    "SELECT DISTINCT bo, b FROM t",
    "SELECT DISTINCT x FROM t",
    "SELECT f, count(*) AS c FROM t GROUP BY f",
    "SELECT k, concat('', k) AS s, count(*) AS c FROM VALUES (0D), (-0.0D), (1D) AS w(k) GROUP BY k",
    "SELECT concat('', k) AS s FROM (SELECT DISTINCT if(bo, -0.0F, b * 1F) AS k FROM t WHERE bo OR b > 0)",
    "SELECT concat('', k) AS s FROM (SELECT -0.0D AS k FROM t UNION SELECT n + 0.0D FROM u)",
    "SELECT concat('', k) AS s FROM (SELECT if(bo, -0.0D, 1D) AS k FROM t EXCEPT SELECT n + 0D FROM u WHERE n = 1)",
    "SELECT id, explode(split(S, 'b')) AS w FROM t WHERE id % 2 = 0",
    "SELECT k, explode_outer(arr) FROM v",
    "SELECT *, explode(arr) AS x FROM v",
    "SELECT DISTINCT explode(array(x, f, -0.0D)) AS k FROM t",
    "SELECT explode(array(st, NULL)) AS e, id FROM t WHERE id < 9",
    "SELECT explode(array(id, id + 1)) AS e, id FROM t ORDER BY id DESC, e LIMIT 5 OFFSET 2",
    "SELECT w.x, count(*) AS c FROM (SELECT explode(filter(arr, x -> x > 1)) AS x FROM v) AS w GROUP BY w.x",
    "SELECT id FROM t WHERE b IN (SELECT explode(arr) FROM v) UNION ALL SELECT explode(array(1L, 2L))",
    "SELECT id, w FROM t LATERAL VIEW explode(split(S, 'b')) e AS w",
    "SELECT id, E.col FROM t LATERAL VIEW OUTER explode(filter(array(i, b), x -> x > 1)) e",
    "SELECT w, count(*) c FROM t JOIN u q ON t.b = q.n LATERAL VIEW explode(split(word, 'n')) e w GROUP BY w",
    "SELECT * FROM v LATERAL VIEW explode(arr) e AS x LATERAL VIEW OUTER explode(array(x, k)) f AS y WHERE k > 0",
    "SELECT word FROM u WHERE EXISTS (SELECT 1 FROM v LATERAL VIEW explode(arr) e AS x WHERE x = n)",
    "SELECT bo, b % 2 AS p, count(*) AS c, max(l) AS m FROM t GROUP BY bo, b % 2 HAVING count(*) > 1",
    "SELECT bo, b % 2 AS p, count(*) AS c, sum(i % 9) AS s, grouping(bo) AS g, grouping_id(bo, b % 2) AS h FROM t "
    "GROUP BY ROLLUP (bo, b % 2)",
    "SELECT bo, S, count(*) AS c, grouping(S) AS g FROM t GROUP BY CUBE (bo, S)",
    "SELECT bo, f, id % 2 AS o, count(*) AS c FROM t GROUP BY GROUPING SETS ((bo, f), (id % 2), f, ())",
    "SELECT bo, b % 2 AS p, count(*) AS c FROM t GROUP BY bo, b % 2 WITH ROLLUP HAVING c > 2 OR bo IS NULL",
    "SELECT bo AS k, coalesce(b % 2, 9) AS q, count(*) AS c FROM t GROUP BY k, CUBE (b % 2, id % 3)",
    "SELECT bo, b % 2, i % 2, max(b) + 1 AS m FROM t GROUP BY ROLLUP (bo, (b % 2, i % 2)), bo ORDER BY 1, 2, 3, 4",
    "SELECT x, sum(x) AS s, count(*) AS c FROM t GROUP BY CUBE (x)",
    "SELECT bo, count(*) AS c FROM t WHERE id < 0 GROUP BY ROLLUP (bo)",
    "SELECT bo, rank() OVER (PARTITION BY grouping(bo) ORDER BY count(*), bo) AS r FROM t GROUP BY ROLLUP (bo)",
    "SELECT k, posexplode(arr) FROM v",
    "SELECT posexplode_outer(arr) AS (p, e), k FROM v",
    "SELECT *, explode(m) FROM v",
    "SELECT k, explode_outer(m) AS (name, value) FROM v",
    "SELECT k, posexplode(m) FROM v",
    "SELECT k, p, e.x FROM v LATERAL VIEW posexplode(arr) e AS p, x WHERE p > 0 OR x IS NULL",
    "SELECT k, e.* FROM v LATERAL VIEW OUTER explode(m) e",
    "SELECT a, count(*) AS c FROM v LATERAL VIEW OUTER posexplode_outer(m) e AS p, a, b GROUP BY a",
    "SELECT bo AS k, count(*) AS c FROM t GROUP BY 1",
    "SELECT count(*) AS c, sum(i) AS s FROM t WHERE id < 0",
    "SELECT bo AS k, sum(i) AS c FROM t WHERE id < 0 GROUP BY bo",
    "SELECT id FROM t ORDER BY i, id LIMIT 7",
    "SELECT id FROM t ORDER BY i, id LIMIT ALL OFFSET 3",
    "SELECT id, x FROM t ORDER BY x DESC, id",
    "SELECT id, x FROM t ORDER BY id LIMIT 7 OFFSET 3",
    "SELECT count(1), sum(2) FROM t",
    "SELECT id, S FROM t ORDER BY S, id",
    "SELECT S, id FROM t ORDER BY ALL DESC LIMIT 9",
    "SELECT S AS all, id FROM t ORDER BY ALL, id",
    "SELECT b FROM t UNION SELECT n FROM u ORDER BY ALL",
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
    texts = pa.table({
        "k": pa.array([0, 1, 2, -1, None, 5], pa.int32()),
        "arr": pa.array([[1, 2], [None, 3], [], None, [5], [1]], pa.list_(pa.int64())),
        "m": pa.array([[("a", 1)], [], None, [("b", None), ("a", 3)], [("", 2)], [("ä", 9)]],
                      pa.map_(pa.string(), pa.int64())),
        "num": ["1", " 2 ", "-3", "+4", None, "0005"],
        "dt": ["2013-01-05", " 2013-1-5", "2013", "2013-02", "2013-12-31T99", None],
        "tm": ["2013-01-05 12:30:01.5", "2013-1-5T1:2:3Z", "1500-01-05 00:00:00+05:30", "2013", None,
               "2013-01-05 23:59:59.1234567"],
        "dbl": ["1.5", "1e3", "-Infinity", "nan", ".5", "5."],
        "bl": ["true", " F ", "yes", "0", None, "N"],
        "fx": [2.675, 1.005, -0.5, 1e15, 123456.785, 2.5],
        "big": [1e20, -1e300, 1e17, 0.1, 4.35, -4.35],
        "d30": pa.array([1, 2, 3, 4, None, 6]).cast(pa.decimal128(30, 10)),
    })  # fmt: skip
    spark.createDataFrame(texts).coalesce(1).cache().createOrReplaceTempView("v")
    return {"t": engine.relation(rows), "u": engine.relation(words), "v": engine.relation(texts)}


def compare(spark: Any, relations: dict[str, Any], query: str) -> None:
    ordered = re.search(r" ORDER BY [^()]+$", query) is not None
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


_ALL = [text for texts in (*SCALARS.values(), *FUNCTIONS.values()) for text in texts] + FURTHER


def test_every_rule_has_its_expressions() -> None:
    assert not OPERATIONS.keys() - SCALARS
    texts = " ".join(text for texts in (*SCALARS.values(), *FUNCTIONS.values()) for text in texts) + " ".join(
        CONVERSIONS
    )
    named = {*_NAMED, *_TEMPLATES, *_WITH_WORD}
    assert {name for name in named if not re.search(rf"\b{name}\(", texts)} == set()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("table", "texts"), [("v", CONVERSIONS), *(("t", _ALL[start : start + 60]) for start in range(0, len(_ALL), 60))]
)
def test_scalar(spark: Any, relations: dict[str, Any], table: str, texts: list[str]) -> None:
    query = f"SELECT {', '.join(f'{text} AS c{i}' for i, text in enumerate(texts))} FROM {table}"
    engine = LocalEngine()
    relation, frame = engine.sql(query, relations), spark.sql(query)
    wanted = [str(field.data_type) for field in parse_schema(frame.schema.json())]
    assert [(text, str(f.data_type)) for text, f in zip(texts, relation.schema, strict=True)] == list(
        zip(texts, wanted, strict=True)
    )
    mine, spark_rows = engine.to_arrow(relation), frame.toArrow()
    for index, text in enumerate(texts):
        columns = [[repr(_plain(value)) for value in rows.column(index).to_pylist()] for rows in (mine, spark_rows)]
        assert columns[0] == columns[1], text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "texts"),
    [
        ("v", [text for text in CONVERSIONS if "->" not in text]),
        ("t", [text for text in _ALL if "->" not in text]),
        ("t", [text for texts in AGGREGATES.values() for text in texts]),
    ],
)
def test_a_column_without_as_has_sparks_name(
    spark: Any, relations: dict[str, Any], table: str, texts: list[str]
) -> None:
    wanted = spark.sql(f"SELECT {', '.join(texts)} FROM {table}").schema.names
    found = {}
    for text in texts:
        try:
            found[text] = next(iter(LocalEngine().sql(f"SELECT {text} FROM {table}", relations).schema)).name
        except UnsupportedExpressionError as e:
            assert "a column without a name" in str(e)
    assert len(found) > len(texts) * 0.7
    assert found == {text: name for text, name in zip(texts, wanted, strict=True) if text in found}


def test_the_clock(spark: Any, relations: dict[str, Any]) -> None:
    clocks = ["Current_Date", "now()", "current_timestamp", "localtimestamp()", "(now() = current_timestamp) AS same"]
    others = "Current_Date() AS d, curdate() AS c, unix_timestamp() AS u"
    query = f"SELECT {', '.join(clocks)}, {others} FROM t WHERE ts < now() LIMIT 1"
    found, wanted = LocalEngine().sql(query, relations), spark.sql(query)
    assert found.schema.names == tuple(wanted.schema.names)
    assert [str(f.data_type) for f in found.schema] == [json.loads(f.json())["type"] for f in wanted.schema]
    assert found.to_reader().read_all()["same"].to_pylist() == [True]
    with pytest.raises(ColumnNotFoundError):
        LocalEngine().sql("SELECT now FROM t", relations)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("construct", sorted(AGGREGATE_FUNCTIONS))
def test_aggregate(spark: Any, relations: dict[str, Any], construct: str) -> None:
    listed = ", ".join(f"{text} AS c{i}" for i, text in enumerate(AGGREGATES[construct]))
    compare(spark, relations, f"SELECT bo AS k, {listed} FROM t GROUP BY bo")
    compare(spark, relations, f"SELECT {listed} FROM t")


@pytest.mark.sampled
@pytest.mark.parametrize("function", sorted(WINDOW_FUNCTIONS))
def test_window_function(spark: Any, relations: dict[str, Any], function: str) -> None:
    listed = ", ".join(f"{text} AS c{i}" for i, text in enumerate(WINDOWS[function]))
    compare(spark, relations, f"SELECT id, {listed} FROM t")


def test_a_rank_needs_an_order(relations: dict[str, Any]) -> None:
    with pytest.raises(InvalidExpressionError, match="rank needs a window with an order"):
        LocalEngine().sql("SELECT rank() OVER (PARTITION BY i) AS r FROM t", relations)


@pytest.mark.sampled
@pytest.mark.parametrize("query", QUERIES)
def test_query(spark: Any, relations: dict[str, Any], query: str) -> None:
    compare(spark, relations, query)


@pytest.mark.parametrize(
    "expression",
    [
        "map('a', 1, if(i = 5, 'a', 'b'), 2)", "map(nullif(i, 5), 1)", "map_concat(map(i, 1), map(5, 2))",
        "slice(array(i), i - 5, 1)", "slice(array(i), 1, i - 6)", "sequence(1, i, -1)", "sequence(i, 1, 0)",
        "map_from_arrays(array(i, 5), array(1, 2))", "map_from_arrays(array(i), array(1, 2))",
        "transform_keys(map(i, 1, 6, 2), (k, v) -> 0)", "transform_keys(map(i, 1), (k, v) -> nullif(k, 5))",
        "map_from_entries(array(struct(i AS k, 1), struct(5 AS k, 2)))", "array_distinct(array(i % (i - 5)))",
        "i / 0", "i % 0", "x / 0", "CAST(2147483647 AS INT) + i * 0 + 1", "CAST(300 + i * 0 AS TINYINT)",
        "-(-128Y - b * 0Y)",
        "CAST(x * 0 + 1e300 AS INT)", "ceil(x * 1e300)", "floor(-x * 1e300)", "abs(-128Y - b * 0Y)",
        "CAST(12345 + i * 0 AS DECIMAL(4,0))", "round(2147483647 - i * 0, -1)", "i % 0.0", "1.5 % (i - 5)",
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
        engine.to_arrow(engine.sql(query, {"one": engine.relation(rows)}))


_HOSTILE = [
    "", " ", "-", "n/a", "2024-02-30", "2024-13-01", "2024-1-5", "2024-2", "2024", "20240105", "0024-01-01", "24-01-05",
    "2024-01-05T99", "2024-01-05 1:2:3", "2024-01-05 12:30:61x", "2024/01/05", "05.01.2024", "1e3", "1,5", " 7 ",
    "-.5", "5.", ".", "1.5.2", "9999", "99.95", "99.96", "1e", "0.5d", "inf", "-Infinity", "NaN", "nano", "yes", "F",
    "truth", "1 2", "2147483648", "+4", "\u0661", "2024-01-05 12:30:01.5+01:00", "1.", "true\t", "\n",
]  # fmt: skip
_THEIRS = {
    "DATE": ["+2024-01-05", "12024-01-05", "0000-01-01"], "DECIMAL(3,1)": ["1e1", "\u0661"],
    "TIMESTAMP": ["2024-01-05 10:00:00 Europe/Paris", "12024-01-05", "T10:00", "10:00", "+2024-01-05"],
    "DOUBLE": ["0x1p3", "-NaN"], "INT": [],
    "BOOLEAN": [], "TIMESTAMP_NTZ": ["2024-01-05 10:00:00Z", "0000-01-01"], "FLOAT": ["0x1p3"],
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(_THEIRS))
def test_try_cast_of_text(spark: Any, kind: str) -> None:
    """What only Spark reads is not null here, but raises."""

    def told(rows: pa.Table) -> list[str | None]:
        texts: list[str | None] = rows["c"].cast(pa.string()).to_pylist()
        return texts

    engine, query = LocalEngine(), f"SELECT s, try_cast(s AS {kind}) AS c FROM texts"
    both = []
    for texts in (_HOSTILE, _THEIRS[kind]):
        rows = pa.table({"s": pa.array(texts, pa.string())})
        spark.createDataFrame(rows).createOrReplaceTempView("texts")
        wanted = dict(zip(texts, told(spark.sql(query).toArrow()), strict=True))
        found = {}
        for text in texts:
            relation = engine.sql(query, {"texts": engine.relation(pa.table({"s": [text]}))})
            try:
                (found[text],) = told(engine.to_arrow(relation))
            except InvalidExpressionError as e:
                assert "only the Spark engine reads" in str(e)
        both.append((found, wanted))
    (found, wanted), (theirs, read) = both
    assert found == {text: value for text, value in wanted.items() if text in found}
    assert len(found) > len(_HOSTILE) * 0.8
    assert theirs == {} and None not in read.values()


@pytest.mark.parametrize("text", ["CAST(0.1D + 0.2D AS STRING)", "CAST(1e22D AS STRING)", "concat(1e-5D, '')"])
def test_numbers_whose_text_depends_on_java_are_refused_while_the_query_runs(
    relations: dict[str, Any], text: str
) -> None:
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError, match="Spark engine"):
        engine.to_arrow(engine.sql(f"SELECT {text} AS c FROM t", relations))


@pytest.mark.parametrize("text", ["upper('Straße')", "lower('ΑΣ')", "upper('ǰ')"])
def test_letters_that_change_otherwise_are_refused_while_the_query_runs(relations: dict[str, Any], text: str) -> None:
    engine = LocalEngine()
    with pytest.raises(InvalidExpressionError, match="not proven equal"):
        engine.to_arrow(engine.sql(f"SELECT {text} AS c FROM t", relations))


@pytest.mark.parametrize(
    "text",
    [
        "hash(i)", "crc32(S)", "reverse(array())", "exp(x)", "sha2(S, 512)", "d38 * d38",
        "S LIKE `we``ird`", "array(NULL)", "st < st",
        "map('a', 1) = map('a', 1)", "map('a', 1) <=> NULL", "NULL IN (1, DATE '2024-01-01')", "map()",
        "struct(i) = struct(S AS i)",
        "(i, b) IN (SELECT n, n FROM u)", "S IN (SELECT n FROM u)", "S LIKE ANY (SELECT word FROM u)",
        "(SELECT max(z.i) FROM t AS z WHERE z.b = t.b LIMIT 1)", "EXISTS (SELECT n FROM u WHERE n = t.b GROUP BY n)",
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
        "map_from_arrays(array(x), array(i))", "map_from_entries(array(i))", "bit_and(DISTINCT i)", "bit_or(x)",
        "filter(array(i), x -> x IN (SELECT n FROM u))", "transform(array(i), x -> sum(x))",
        "b IN (SELECT n FROM u) OR bo", "NOT (bo AND b IN (SELECT n FROM u))", "coalesce(b IN (SELECT n FROM u), bo)",
        "(SELECT max(id) FROM range(n))", "(SELECT count(*) FROM t GROUP BY GROUPING SETS (()))",
        "md5(i)", "sha1(day)", "sha2(l, 256)", "base64(bo)", "hex(x)", "hex(d5)", "nvl(i)", "ifnull(i, 1, 2)",
        "array_size(map('a', 1))", "unix_date(ts)", "unix_seconds(day)", "unix_timestamp(day, 1)", "charindex('a', S)",
        "element_at(array(i), 1L)", "array_except(array(i), NULL)", "arrays_overlap(NULL, array(i))",
        "array_contains(array(i), NULL)", "substring_index(S, 'a', 3000000000)",
        "slice(S, 1, 1)", "array_append(S, S)", "array_append(array(i), S)", "map_concat(map('a', 1), map(1, 1))",
        "count(DISTINCT i) OVER ()", "sum(i) OVER (ORDER BY i RANGE 1 PRECEDING)",
        "sum(i) FILTER (WHERE bo) OVER ()", "first(i) IGNORE NULLS",
        "lag(i, 1, 1.5) OVER (ORDER BY i)", "row_number() OVER (ORDER BY i ROWS 1 PRECEDING)",
        "sum(i) IGNORE NULLS OVER ()",
        "nth_value(i, b) OVER (ORDER BY i)", "rand()", "d38 / d38", "round(x, -1)", "greatest(S, 1)",
        "ceil(x, -1)", "max(array(i))", "max(struct(st))",
        "date_format(day, 'YYYY')", "date_format(ts, 'zzz')", "to_date(S, 'MM')", "day - day",
        r"S RLIKE 'a\\b'", "S RLIKE '(?=a)b'", "S RLIKE 'a*+'", "S RLIKE '(a*)*'", "S RLIKE '[a&&[b]]'",
        r"S RLIKE '(a)\\1'", "regexp_replace(S, 'a*', 'x')", "regexp_replace(S, '(a)', '$2')", "split(S, '')",
        "S RLIKE `we``ird`", "lpad(S, i, 'x')", "split(S, 'b', 2)", "months_between(ts, n, false)",
    ],
)  # fmt: skip
def test_what_is_not_proven_is_refused(relations: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match="Spark engine"):
        LocalEngine().sql(f"SELECT {text} AS c FROM t", relations)
