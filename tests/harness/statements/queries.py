"""Random SELECT statements over a table and a source."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from tests.harness.sequences.cases import SOURCE, TABLE, VERSION
from tests.harness.statements.expressions import PATH, Leaf, condition, expression, kind_of, leaves, quoted

_KINDS = ("int", "dec", "flt", "str", "date", "ts", "ntz", "bool", "bin", "ints", "strs", "any", "any", "num")
_AGGREGATES = (
    "count(*)", "count({any})", "count(DISTINCT {any})", "sum({int})", "sum({dec})", "avg({int})", "avg({dec})",
    "min({any})", "max({any})", "max({num})", "count_if({bool})", "bool_or({bool})", "every({bool})",
    "sort_array(collect_list({int}))", "sort_array(collect_set({str}))", "max_by({str}, u)",
    "sum({int}) FILTER (WHERE {bool})",
    "median({int})", "min({moment})", "sum({int}) + count(*)", "bit_or({int})", "max({str})", "any_value(1)",
    "max(struct(u, {str}))", "percentile({int}, 0.5)", "mode({bool})", "sum(DISTINCT {int})",
    "approx_count_distinct(u)",
    "array_agg(u) IS NULL", "stddev({int})", "sum({flt})", "min_by({int}, u)", "max({ints})", "try_sum({int})",
    "count({int}, {str})", "count(DISTINCT {int}, {str})", "min(struct({bool}, u))", "sum({dec} * {int})", "avg({flt})",
    "bool_and({bool}) FILTER (WHERE u > 2)", "map_keys(map(max({str}), 1))", "max(if({bool}, {date}, NULL))",
    "first_value(1)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY {int})", "count_if({int} <=> {int})",
)  # fmt: skip
_WINDOWS = (
    "row_number() OVER (ORDER BY {all})", "rank() OVER (PARTITION BY {part} ORDER BY u)",
    "sum(u) OVER (PARTITION BY {part})",
    "lag(u) OVER (ORDER BY u)", "lead({int}, 1) OVER (PARTITION BY {part} ORDER BY {all})", "count(*) OVER ()",
    "max({num}) OVER (PARTITION BY {part} ORDER BY {all} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "dense_rank() OVER (ORDER BY {part})", "ntile(2) OVER (ORDER BY {all})", "min({any}) OVER (ORDER BY u)",
    "first_value(u) OVER (PARTITION BY {part} ORDER BY {all})", "percent_rank() OVER (ORDER BY u)",
    "cume_dist() OVER (ORDER BY u)",
    "sum({int}) OVER (PARTITION BY {part} ORDER BY u RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    "last_value({int}) IGNORE NULLS OVER (ORDER BY u, {all})", "first({str}, true) OVER (ORDER BY {all})",
    "lag({str}) IGNORE NULLS OVER (ORDER BY {all})", "nth_value(u, 2) OVER (ORDER BY {all})",
    "lag(u, 2, 0L) OVER (ORDER BY u)",
    "sum({int}) OVER (PARTITION BY {part} ORDER BY {all} ROWS 2 PRECEDING)",
    "avg({dec}) OVER (ORDER BY u DESC NULLS FIRST)",
    "last_value({str}) OVER (ORDER BY {all} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
)  # fmt: skip


def query(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    """A query. What its rows are does not depend on the order in which anybody meets them."""
    some = (_joined, _nested, _windowed, _combined, _exploded, _named, _past)
    makers = (_plain, _plain, _plain, _grouped, _grouped, *some)
    return rng.choice(makers)(rng, schema, source)


def _plain(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    among = leaves(schema)
    at = f" VERSION AS OF {VERSION}" if rng.random() < 0.1 else ""
    if at:
        return f"SELECT * FROM {TABLE}{at}"
    listed = _listed(rng, among, rng.randint(1, 5))
    distinct = "DISTINCT " if rng.random() < 0.1 and "map" not in listed else ""
    where = f" WHERE {condition(rng, among)}" if rng.random() < 0.6 else ""
    return f"SELECT {distinct}{listed} FROM {TABLE}{where}{_ordered(rng, listed)}"


def _listed(rng: random.Random, among: Sequence[Leaf], count: int) -> str:
    if rng.random() < 0.08:
        return "*"
    texts = [expression(rng, among, rng.choice(_KINDS)) for _ in range(count)]
    return ", ".join(text if rng.random() < 0.1 else f"{text} AS c{i}" for i, text in enumerate(texts))


def _ordered(rng: random.Random, listed: str) -> str:
    if rng.random() < 0.75 or listed == "*" or "map" in listed:
        return ""
    return f" ORDER BY ALL{rng.choice(['', ' LIMIT 3', ' LIMIT 2 OFFSET 1'])}"


def _grouped(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    among = leaves(schema)
    keys = [expression(rng, among, "any", rng.choice([0, 0, 1])) for _ in range(rng.randint(0, 2))]
    aggregates = [_filled(rng, rng.choice(_AGGREGATES), among) for _ in range(rng.randint(1, 3))]
    listed = ", ".join([*(f"{key} AS k{i}" for i, key in enumerate(keys)),
                        *(f"{text} AS a{i}" for i, text in enumerate(aggregates))])  # fmt: skip
    names = ", ".join(f"k{i}" for i in range(len(keys)))
    how = rng.choice([f"GROUP BY {names}", "GROUP BY ALL", f"GROUP BY ROLLUP ({names})", f"GROUP BY CUBE ({names})",
                      f"GROUP BY {names} HAVING count(*) > 1"]) if keys else ""  # fmt: skip
    where = f"WHERE {condition(rng, among)} " if rng.random() < 0.3 else ""
    return f"SELECT {listed} FROM {TABLE} {where}{how}".strip()


def _filled(rng: random.Random, template: str, among: Sequence[Leaf]) -> str:
    for hole in ("int", "dec", "flt", "str", "bool", "num", "moment", "any"):
        while f"{{{hole}}}" in template:
            template = template.replace(f"{{{hole}}}", expression(rng, among, hole, rng.choice([0, 0, 1, 2])), 1)
    return template


def _joined(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    both = [*leaves(schema, "t."), *leaves(source, "s.")]
    how = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
    on = rng.choice(["t.u = s.u", f"t.u = s.u AND {condition(rng, both, 1)}", condition(rng, both, 1)])
    listed = _listed(rng, leaves(schema, "t.") if " SEMI" in how or " ANTI" in how else both, rng.randint(1, 3))
    listed = "t.u, 1 AS one" if listed == "*" else listed
    return f"SELECT {listed} FROM {TABLE} AS t {how} {SOURCE} AS s ON {on}{_ordered(rng, listed)}"


def _nested(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    t, s = leaves(schema, "t."), leaves(source, "s.")
    kind = rng.choice(["int", "str", "date", "dec"])
    one, other = expression(rng, t, kind, 1), expression(rng, s, kind, 1)
    where = rng.choice([
        f"{one} IN (SELECT {other} FROM {SOURCE} AS s)", f"{one} NOT IN (SELECT {other} FROM {SOURCE} AS s)",
        f"EXISTS (SELECT 1 FROM {SOURCE} AS s WHERE s.u = t.u)",
        f"NOT EXISTS (SELECT * FROM {SOURCE} AS s WHERE s.u = t.u)",
        f"EXISTS (SELECT 1 FROM {SOURCE} AS s WHERE s.u = t.u AND {condition(rng, [*t, *s], 1)})",
        f"{one} >= (SELECT max({other}) FROM {SOURCE} AS s)",
        f"t.u > (SELECT count(*) FROM {SOURCE} AS s WHERE s.u = t.u)",
    ])  # fmt: skip
    return f"SELECT {_listed(rng, t, 2)} FROM {TABLE} AS t WHERE {where}"


def _windowed(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    among = leaves(schema)
    flat = [leaf.sql for leaf in among if kind_of(leaf.type) in ("int", "str", "date", "bool", "dec", "ts", "ntz")]
    texts = [
        _filled(rng, text.replace("{all}", f"u, {', '.join(flat)}").replace("{part}", rng.choice(flat)), among)
        for text in rng.sample(_WINDOWS, rng.randint(1, 2))
    ]
    ending = " QUALIFY w0 IS NOT NULL" if rng.random() < 0.15 else ""
    return f"SELECT u, {', '.join(f'{text} AS w{i}' for i, text in enumerate(texts))} FROM {TABLE}{ending}"


def _combined(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    kinds = [rng.choice(["int", "dec", "str", "date", "ts", "ntz", "flt", "bool"]) for _ in range(rng.randint(1, 2))]
    one, other = (
        ", ".join(f"{expression(rng, leaves(of), kind, 1)} AS c{i}" for i, kind in enumerate(kinds))
        for of in (schema, source)
    )
    how = rng.choice(["UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL", "MINUS"])
    return f"SELECT {one} FROM {TABLE} {how} SELECT {other} FROM {SOURCE}"


def _exploded(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    value = expression(rng, leaves(schema), rng.choice(["ints", "strs", "map"]), 2)
    how = rng.choice(["explode", "explode_outer", "posexplode", "posexplode_outer"])
    if rng.random() < 0.5:
        return f"SELECT u, {how}({value}) FROM {TABLE}"
    return (
        f"SELECT u, e.* FROM {TABLE} LATERAL VIEW {rng.choice(['', 'OUTER '])}{how.removesuffix('_outer')}({value}) e"
    )


def _past(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    name = quoted(
        rng.choice([field.name for field in schema if kind_of(field.type) in ("int", "str", "date", "bool")] or ["u"])
    )
    counted = "sum(if(_change_type IN ('insert', 'update_postimage'), 1, -1)) AS n"
    changes = f"table_changes_by_path('{PATH}', {VERSION}) WHERE _commit_version > {VERSION}"
    return rng.choice([
        f"SELECT t.{name}, o.u AS w FROM {TABLE} AS t FULL JOIN {TABLE} VERSION AS OF {VERSION} AS o ON t.u = o.u",
        f"SELECT {name} FROM {TABLE} EXCEPT ALL SELECT {name} FROM {TABLE} VERSION AS OF {VERSION}",
        f"SELECT u, {name} AS k, {counted} FROM {changes} GROUP BY ALL HAVING n <> 0",
        f"SELECT {name} FROM {TABLE} WHERE u IN (SELECT u FROM {TABLE} VERSION AS OF {VERSION})",
    ])  # fmt: skip


def _named(rng: random.Random, schema: pa.Schema, source: pa.Schema) -> str:
    among = leaves(schema)
    name = quoted(rng.choice(schema.names))
    inner = f"SELECT u, {expression(rng, among, 'int', 2)} AS n, {name} AS q FROM {TABLE}"
    outer = rng.choice(["count(*) AS c, sum(n) AS s", "max(u) AS m", "count(q) AS c", "count(DISTINCT n) AS d"])
    return rng.choice([
        f"WITH q AS ({inner}) SELECT {outer} FROM q", f"SELECT {outer} FROM ({inner}) AS z WHERE n > 1",
        f"SELECT q.n, x.u FROM ({inner}) q JOIN {SOURCE} x USING (u)", f"SELECT * EXCEPT ({name}) FROM {TABLE}",
        f"SELECT * FROM {TABLE} WHERE {condition(rng, among)}",
    ])  # fmt: skip
