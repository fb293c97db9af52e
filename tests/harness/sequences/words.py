"""What random statements are made of: predicates, values and keys, in Spark SQL."""

from __future__ import annotations

import random
import re

PREDICATES = (
    "id > 4", "id = 3", "id IS NULL", "id IN (1, 2, 7)", "NOT (id >= 3)", "p = 'a'", "p <=> NULL", "p LIKE 'c%'",
    "p IN ('a', 'b') AND v > 2", "v + 1 < 6", "st.b > 4", "st.a = 'b' OR id = 1", "st IS NULL", "d > 1.50", "d = 2",
    "f > 0.5", "f < 0.5", "isnan(f)", "day = DATE '2024-02-29'", "day > DATE '2024-02-28' AND id < 8", "f IS NOT NULL",
    "ts >= TIMESTAMP '2024-02-28 12:00:00'", "upper(p) = 'B'", "coalesce(v, 0) = 0", "v BETWEEN 2 AND 6",
    "CASE WHEN id > 5 THEN p = 'a' ELSE v = 1 END", "length(p) = 1", "id % 2 = 0", "v IS NULL OR id IS NULL",
    "u % 3 = 1", "u < 4", "u >= 0", "u IS NULL", "tags IS NULL", "p = 'nowhere'",
    "n < TIMESTAMP_NTZ '2024-02-28 18:00:00'",
    "bin = X'61'", "bin IS NULL", "fl > 0", "fl = 1.5", "i BETWEEN 1 AND 3", "wide > 1", "size(ls) > 0",
    "deep.in.k = 'k'", "deep.in IS NULL", "`ä-y` <> 'x/y=z'", "`ä-y` = ''", "f = 'NaN'", "f = 0", "d IN (1.5, 2, NULL)",
    "m['k'] > 2", "year(day) = 2024 AND month(ts) = 2", "date_trunc('DAY', ts) = TIMESTAMP '2024-02-29 00:00:00'",
    "i * 2 > v", "id + i = 5", "concat(p, `ä-y`) LIKE '%x%'", "array_contains(tags, 'x')", "CAST(id AS STRING) = '3'",
    "f <=> NULL OR fl <=> 0", "i IN (id, v)", "p > 'a' AND NOT (day IS NULL OR d < 1)", "deep IS NOT NULL",
    "f = -0.0", "f <> f", "fl = f", "d = f", "d > i", "p = 1", "day = ts", "ts = n", "wide = d", "id = '3'",
    "st <=> NULL", "st.a <=> NULL AND st.b <=> 2", "`ä-y` IN ('', ' ', 'NULL', 'x/y=z')", "bin > X'60'",
    "`ä-y` LIKE '%\\n%'", "ts < TIMESTAMP '1600-01-01 00:00:00'", "day < DATE '1582-10-15'",
    "ts = TIMESTAMP '2024-02-28T18:00:00+06:00'", "n IN (TIMESTAMP_NTZ '2024-02-28 06:00:00', NULL)",
    "nullif(v, 3) IS NULL", "greatest(id, v) = 5", "least(i, v) < 1", "abs(f) > 1", "v <> id", "NOT (p = 'a')",
    "id NOT IN (1, NULL)", "p NOT LIKE 'c%'", "true", "false", "d BETWEEN 0.5 AND 2.5", "ts BETWEEN n AND ts",
    "bo", "NOT bo", "bo IS NOT TRUE", "bo = (v > 3)", "ti > 1", "si * ti < 100", "ti IN (1, 2)", "vc = 'ab'",
    "vc LIKE 'a%'", "si = 300", "ti <=> NULL", "bo <=> true", "bo IS UNKNOWN", "vc >= 'ab'", "ti = v",
    "si BETWEEN ti AND i",
    "CAST(p AS STRING) IN ('a', 'b')", "CAST(v AS INT) = 3", "CAST(f AS INT) > 0", "CAST(d AS BIGINT) = 2",
    "CAST(day AS STRING) = '2024-02-29'", "CAST(ts AS DATE) = day", "CAST(id AS DOUBLE) / 2 > 1.5", "id / 2 > 1",
    "try_cast(p AS INT) IS NULL", "CAST(i AS STRING) LIKE '1%'", "d + i > 2", "d * 2 = 3", "d % 1 = 0.5",
    "round(d) = 2", "floor(d) = 0", "ceil(d) > 2", "pmod(id, 3) = 1", "-id < -4", "mod(v, 2) = 1", "sign(f) = 1",
    "substring(p, 1, 1) = 'c'", "trim(`ä-y`) = ''", "lower(p) <> p", "replace(p, 'c', 'a') = 'a d%'", "p || 'x' = 'ax'",
    "instr(p, 'd') > 0", "lpad(p, 3, 'x') = 'xxa'", "reverse(p) = p", "startswith(p, 'c')", "contains(p, 'd')",
    "p RLIKE '^[ab]$'", "concat_ws('-', p, vc) = 'a-ab'", "ifnull(p, 'a') = 'a'", "nvl(v, 1) = 1",
    "if(id > 3, v, i) > 2",
    "day + INTERVAL 1 DAY = DATE '2024-02-29'", "date_add(day, 1) > DATE '2024-02-28'",
    "datediff(day, DATE '2024-02-28') = 1",
    "ts + INTERVAL 6 HOURS > n", "hour(ts) = 6", "dayofmonth(n) = 28", "trunc(day, 'MM') = DATE '2024-02-01'",
    "date_format(ts, 'yyyy-MM-dd') = '2024-02-29'", "last_day(day) = day", "to_date(ts) = day", "weekday(day) = 3",
    "unix_timestamp(ts) > 1709100000", "st = named_struct('a', 'b', 'b', 1)", "ls[0].q = 1", "element_at(m, 'k') = 1",
    "size(tags) = 1", "tags[0] = 'x'", "tags = array('x')", "map_contains_key(m, 'k')", "deep.in.l[1] IS NULL",
    "st.b IN (1, 2, 3)", "array_contains(deep.in.l, 1)", "st IN (named_struct('a', 'a', 'b', 1))", "cardinality(m) = 1",
    "(id, v) = (1, 2)", "EXISTS(tags, e -> e = 'x')", "isnotnull(p) AND isnull(v)", "id DIV 2 = 1", "id & 1 = 1",
    "p IS DISTINCT FROM 'a'",
    "p LIKE ANY ('a%', 'c%')", "p ILIKE 'A'", "id IN (v, i + 1, 3)", "v NOT BETWEEN 1 AND 4",
    "coalesce(p, vc, 'q') > 'b'",
    "hex(bin) = '61'", "length(bin) = 2", "CASE p WHEN 'a' THEN 1 WHEN 'b' THEN 2 END = 2",
    "CASE WHEN id IS NULL THEN true END",
    "greatest(d, i) > 2", "day IN (DATE '2024-02-28', DATE '2024-03-01')", "nanvl(f, 1D) = 1", "wide * 2 > 5",
    "wide + d > 0",
    "id = 3L", "v > 2.5", "f > 1e-1", "id > '2'", "v = 3.0", "fl > d", "i = 2S", "f <=> CAST('NaN' AS DOUBLE)",
    "bo = 'true'", "fl IN (CAST(NULL AS FLOAT), 1.5)", "CAST(NULL AS INT) / 2 > f", "ti <> CAST(NULL AS TINYINT)",
)  # fmt: skip

OF_QUERIES = (
    "id > 4", "id = 3", "id IS NULL", "id IN (1, 2, 7)", "NOT (id >= 3)", "p = 'a'", "p LIKE 'c%'", "p = 'nowhere'",
    "p IN ('a', 'b') AND v > 2", "v + 1 < 6", "d > 1.50", "f > 0.5", "day > DATE '2024-02-28' AND id < 8",
    "coalesce(v, 0) = 0", "v BETWEEN 2 AND 6", "length(p) = 1", "id % 2 = 0", "v IS NULL OR id IS NULL", "u < 4", "bo",
    "ti > 1", "CASE WHEN id > 5 THEN p = 'a' ELSE v = 1 END", "st.a = 'b' OR id = 1", "upper(p) = 'B'", "i IN (id, v)",
)  # fmt: skip
"""Predicates that mean the same in DuckDB's SQL, which is the language of a query in process."""


def predicate(rng: random.Random, atoms: tuple[str, ...] = PREDICATES, depth: int = 0) -> str:
    """A condition, often of several."""
    if depth == 2 or rng.random() < 0.65:
        return rng.choice(atoms)
    one, other = (predicate(rng, atoms, depth + 1) for _ in range(2))
    return rng.choice([f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})", f"({one}) = ({other})",
                       f"CASE WHEN {one} THEN {other} ELSE v = 2 END", f"({one}) IS NULL",
                       f"coalesce({one}, {other})"])  # fmt: skip


VALUES = {
    "v": (
        "v + 1",
        "7",
        "NULL",
        "coalesce(v, id)",
        "length(p)",
        "CASE WHEN v > 3 THEN 0 ELSE v END",
        "f",
        "d",
        "wide",
        "i",
        "DEFAULT",
    ),
    "p": ("'a'", "'c d%'", "NULL", "upper(p)", "concat(p, 'x')", "id", "d", "day", "st.a", "`ä-y`"),
    "id": ("id", "v", "id + 1"),
    "st": (
        "NULL",
        "st",
        "named_struct('a', 'n', 'b', 5)",
        "named_struct('a', p, 'b', v)",
        "struct('q' AS a, id AS b)",
        "named_struct('b', 1, 'a', 'o')",
        "if(v > 2, st, NULL)",
    ),
    "bo": ("NOT bo", "v > 3", "NULL", "'true'", "isnull(p)"),
    "ti": ("ti + 1", "3", "v", "NULL", "CAST(v AS TINYINT)", "f", "ti * 100"),
    "si": ("si + ti", "40000", "NULL", "i", "v", "id"),
    "vc": ("'abc'", "p", "NULL", "concat(vc, 'toolong')", "upper(vc)", "`ä-y`"),
    "st.a": ("'z'", "p", "NULL"),
    "st.b": ("v", "st.b + 1", "3"),
    "d": ("1.25", "NULL", "v", "f", "wide", "d * 3", "id / 3", "1.255", "'2.50'", "round(d, 1)", "d + i", "abs(d)"),
    "f": ("0.1", "f * 2", "v", "NULL", "d", "fl", "wide", "-f", "CAST(NULL AS INT) / 2"),
    "day": (
        "DATE '2024-03-01'",
        "day",
        "NULL",
        "ts",
        "n",
        "'2024-03-02'",
        "date_add(day, 1)",
        "p",
        "last_day(day)",
        "day + INTERVAL 1 MONTH",
        "CAST(ts AS DATE)",
        "make_date(2024, 2, i)",
    ),
    "ts": (
        "TIMESTAMP '2024-03-01 00:00:00'",
        "NULL",
        "ts",
        "day",
        "n",
        "'2024-03-01 05:06:07'",
        "ts + INTERVAL 1 DAY",
        "date_trunc('HOUR', ts)",
        "ts - INTERVAL 90 MINUTES",
        "timestamp_seconds(id)",
    ),
    "tags": ("NULL", "tags", "array('x', p)", "array()", "array(1, 2)", "array(NULL)", "split(p, ' ')"),
    "n": ("TIMESTAMP_NTZ '2024-03-01 01:02:03'", "NULL", "n", "ts", "day"),
    "bin": ("X'00FF'", "NULL", "CAST(p AS BINARY)"),
    "fl": ("1.5", "f", "NULL", "fl + 1", "wide", "i"),
    "i": ("i + 1", "3", "NULL", "v", "f", "d", "id * 1000000000"),
    "wide": ("wide + 1", "NULL", "d", "f", "v", "wide * 10", "d / 3", "-wide", "'1.5'", "CAST(v AS DECIMAL(5, 1))"),
    "deep.in.k": ("'k'", "p", "NULL"),
    "deep.in": ("NULL", "deep.in"),
    "ä-y": ("'x/y=z'", "''", "p", "NULL", "concat(`ä-y`, '\\n')", "' '", "id"),
    "ls": ("NULL", "ls", "array(named_struct('q', 7, 'r', day))", "array(named_struct('q', v, 'r', NULL), NULL)"),
    "m": ("NULL", "m", "map('k', v)", "map()", "map('a', 1, 'b', NULL)", "map(p, 1)"),
}

ON = (
    "t.id = s.id", "t.id <=> s.id", "t.ID = S.Id", "t.id = s.id AND t.p <=> s.p", "t.f = s.f", "t.f <=> s.f",
    "t.fl = s.f", "t.d = s.d", "t.d = s.v", "t.wide = s.d", "t.day = s.day AND t.id = s.id", "t.ts = s.ts",
    "t.ts = s.n AND t.id = s.id", "t.n = s.n AND t.i = s.i", "t.`ä-y` = s.`ä-y`", "t.`ä-y` <=> s.`ä-y` AND t.i <=> s.i",
    "t.bin = s.bin", "t.i = s.id", "t.id = s.i AND t.p = 'a'", "t.deep.in.k = s.p AND t.id = s.id", "t.st.b = s.st.b",
    "upper(t.p) = upper(s.p) AND t.v = s.v", "t.id = s.id AND t.day IS NOT NULL", "t.id = s.id OR t.v = s.x",
    "t.id + 1 = s.id", "t.id = s.id AND t.ts > s.ts", "t.u = s.u", "false", "t.id = s.id AND s.x > 2",
    "t.id = s.id AND s.p IN ('a', 'b')", "t.bo = s.bo AND t.id = s.id", "t.ti = s.ti AND t.si = s.si",
    "t.vc = s.vc AND t.id = s.id", "CAST(t.id AS STRING) = s.id", "t.id = s.id AND t.bo",
    "t.id = s.id AND (t.v > 2 OR s.x > 2)",
    "t.id BETWEEN s.id AND s.id", "t.id IN (s.id, s.x)", "concat(t.p, t.id) = concat(s.p, s.id)", "t.st = s.st",
    "t.tags = s.tags AND t.id = s.id",
    "t.v = s.ti", "t.id = s.id AND t.v BETWEEN 1 AND 6", "year(t.day) = year(s.day) AND t.id = s.id",
    "t.id = CAST(s.x AS BIGINT)", "true", "coalesce(t.id, -1) = coalesce(s.id, -1)", "t.day = s.ts", "t.id = s.d",
)  # fmt: skip
_OF_BOTH = (
    "s.x > 5", "t.v < s.v", "t.f = s.f", "t.f > s.f", "NOT (t.p <=> s.p)", "t.d <> s.d", "x IS NULL", "t.day < s.day",
    "t.st.a = s.st.a", "s.x IN (1, 2, 3)", "isnan(s.f)", "t.i < s.x", "t.`ä-y` = s.`ä-y`", "s.deep.in.k = 'k'",
    "t.bo", "t.bo <> s.bo", "t.vc || s.vc = 'abab'", "s.bo AND t.v > 1",
    "coalesce(t.v, 0) + coalesce(s.v, 0) > 5", "CASE WHEN s.x > 4 THEN t.bo ELSE s.bo END", "t.d + s.d > 3",
    "t.st = s.st",
    "date_add(s.day, 1) > t.day", "t.ts < s.ts + INTERVAL 1 DAY", "NOT (t.v <=> s.v) OR NOT (t.p <=> s.p)",
    "s.x IS NOT NULL AND s.x <> t.v",
    "CAST(s.x AS STRING) = t.p", "struct(t.v, t.p) <> struct(s.v, s.p)", "t.tags = s.tags", "s.ti > t.ti",
    "s.x BETWEEN t.i AND t.v",
)  # fmt: skip
_OF_SOURCE = ("s.x > 5", "p = 'a'", "s.f > 0", "isnan(f)", "deep.in.k IS NULL", "s.id IS NOT NULL", "day = ts",
               "s.bo", "ti < 2", "length(s.vc) > 1", "s.x % 2 = 0", "CAST(s.x AS STRING) = '3'", "s.st.b IN (1, 2)",
               "coalesce(s.v, 0) < 4", "upper(s.p) = 'A'", "size(s.tags) > 0", "s.d + 1 > 2")  # fmt: skip
_OF_TARGET = ("t.v > 4", "p = 'b'", "f = 'NaN'", "t.day IS NULL", "deep.in.k = 'k'", "t.i % 2 = 0", "t.u < 3", "d < i",
               "t.bo", "NOT coalesce(bo, false)", "t.day < DATE '2024-02-29'", "t.ti = 1", "CAST(t.v AS STRING) = '3'",
               "t.p IN ('a', 'b') AND v > 2", "upper(t.p) = 'A' OR t.v IS NULL", "t.st.b > 2",
               "size(t.tags) > 0")  # fmt: skip
_FROM_BOTH = {
    "v": ("s.v", "CAST(s.x AS STRING)", "s.bo", "t.v + s.x", "s.f", "s.d", "coalesce(s.v, t.v)"),
    "p": ("s.p", "s.id", "concat(t.p, s.p)", "s.day"),
    "id": ("s.id", "t.id", "s.x"),
    "st": ("s.st", "t.st", "NULL", "named_struct('a', s.p, 'b', s.x)", "struct(s.p AS a, s.v AS b)"),
    "st.b": ("s.x", "t.v", "s.st.b"),
    "d": ("s.d", "CAST(s.d AS STRING)", "s.v", "t.d + s.d", "s.wide"),
    "f": ("s.f", "t.f * s.f", "s.d"),
    "fl": ("s.fl", "s.f"),
    "i": ("s.i", "'12'", "2.7", "s.x", "s.f", "t.i + s.i"),
    "day": ("s.day", "CAST(s.day AS STRING)", "'2024-02-28'", "s.ts", "NULL"),
    "ts": ("s.ts", "s.x", "s.n", "s.day"),
    "n": ("s.n", "s.ts"),
    "deep.in.k": ("s.p", "s.deep.in.k"),
    "deep": ("s.deep", "NULL"),
    "ls": ("s.ls",),
    "tags": ("s.tags", "t.tags"),
    "wide": ("s.wide", "s.d", "t.wide - s.wide"),
    "ä-y": ("s.`ä-y`", "s.p", "''"),
    "bin": ("s.bin", "NULL"),
    "bo": ("s.bo", "s.x", "NOT s.bo", "s.x > 3", "t.bo OR s.bo"),
    "ti": ("s.ti", "s.x", "t.ti + s.ti"),
    "si": ("s.si", "s.ti", "s.x * 10000"),
    "vc": ("s.vc", "s.p", "concat(t.vc, s.vc)"),
    "m": ("s.m", "map('x', s.x)"),
    "deep.in": ("s.deep.in", "NULL"),
}


def on_and_clauses(rng: random.Random) -> str:
    """What follows `USING … AS s` in a merge: the condition, and clauses of every kind."""
    clauses: list[str] = []
    while not clauses:
        for _ in _counted(rng, [0, 1, 1, 2]):
            action = rng.choice(["DELETE", "UPDATE SET *", _update(rng, _FROM_BOTH), _update(rng, _FROM_BOTH)])
            clauses.append(f"WHEN MATCHED{_condition(rng, _OF_BOTH)} THEN {action}")
        clauses = _reachable(clauses)
        inserts = [
            f"WHEN NOT MATCHED{_condition(rng, _OF_SOURCE)} THEN {rng.choice(['INSERT *', _insert(rng)])}"
            for _ in _counted(rng, [0, 1, 1, 2])
        ]
        others = [
            f"WHEN NOT MATCHED BY SOURCE{_condition(rng, _OF_TARGET)} "
            f"THEN {rng.choice(['DELETE', _update(rng, VALUES)])}"
            for _ in _counted(rng, [0, 0, 1, 2])
        ]
        clauses += [*_reachable(inserts), *_reachable(others)]
    return f"ON {rng.choice(ON)} {' '.join(clauses)}"


def _counted(rng: random.Random, counts: list[int]) -> range:
    return range(rng.choice(counts))


def _condition(rng: random.Random, conditions: tuple[str, ...]) -> str:
    return "" if rng.random() < 0.4 else f" AND {rng.choice(conditions)}"


def _reachable(clauses: list[str]) -> list[str]:
    """Only the last clause of a kind may take every row."""
    last = next((i for i, clause in enumerate(clauses) if " AND " not in clause.split(" THEN ")[0]), len(clauses))
    return clauses[: last + 1]


def _update(rng: random.Random, values: dict[str, tuple[str, ...]]) -> str:
    return f"UPDATE SET {assigned(rng, values)}"


def _insert(rng: random.Random) -> str:
    names = ["u", *rng.sample([name for name in _FROM_BOTH if "." not in name], rng.randint(1, 5))]
    found = {name: [v for v in _FROM_BOTH.get(name, ("s.u",)) if "t." not in v] or ["NULL"] for name in names}
    listed = ", ".join(f"`{name}`" for name in names)
    return f"INSERT ({listed}) VALUES ({', '.join(rng.choice(values) for values in found.values())})"


def selected(rng: random.Random) -> str:
    """Some columns of an insert, and a query for them whose types need not be theirs."""
    names = ["u", *rng.sample([name for name in _FROM_BOTH if "." not in name], rng.randint(1, 6))]
    # A query is in the SQL of its engine: in process, DuckDB has no such constructors.
    values = [
        rng.choice([v for v in _FROM_BOTH.get(name, ("s.u",)) if not re.search(r"\bt\.|struct\(|map\(", v)] or ["NULL"])
        for name in names
    ]
    listed = ", ".join(f"`{name}`" for name in names)
    return f"({listed}) SELECT {', '.join(f'{v} AS c{i}' for i, v in enumerate(values))} FROM {{source}} AS s"


def assigned(rng: random.Random, values: dict[str, tuple[str, ...]]) -> str:
    """`a = …, b.c = …`, of which none lies inside another."""
    names = rng.sample(sorted(values), rng.randint(1, 3))
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    return ", ".join(f"{_quoted(name)} = {rng.choice(values[name])}" for name in names)


def _quoted(path: str) -> str:
    return ".".join(f"`{name}`" for name in path.split("."))
