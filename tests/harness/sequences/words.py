"""What random statements are made of: predicates, values and keys, in Spark SQL."""

from __future__ import annotations

import random

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
)  # fmt: skip
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
    "st": ("NULL", "st"),
    "st.a": ("'z'", "p", "NULL"),
    "st.b": ("v", "st.b + 1", "3"),
    "d": ("1.25", "NULL", "v", "f", "wide", "d * 3", "id / 3"),
    "f": ("0.1", "f * 2", "v", "NULL", "d", "fl", "wide", "-f"),
    "day": ("DATE '2024-03-01'", "day", "NULL", "ts", "n"),
    "ts": ("TIMESTAMP '2024-03-01 00:00:00'", "NULL", "ts", "day", "n"),
    "tags": ("NULL", "tags"),
    "n": ("TIMESTAMP_NTZ '2024-03-01 01:02:03'", "NULL", "n", "ts", "day"),
    "bin": ("X'00FF'", "NULL", "CAST(p AS BINARY)"),
    "fl": ("1.5", "f", "NULL", "fl + 1", "wide", "i"),
    "i": ("i + 1", "3", "NULL", "v", "f", "d", "id * 1000000000"),
    "wide": ("wide + 1", "NULL", "d", "f", "v"),
    "deep.in.k": ("'k'", "p", "NULL"),
    "deep.in": ("NULL", "deep.in"),
    "ä-y": ("'x/y=z'", "''", "p", "NULL", "concat(`ä-y`, '\\n')", "' '", "id"),
    "ls": ("NULL", "ls"),
    "m": ("NULL", "m"),
}

ON = (
    "t.id = s.id", "t.id <=> s.id", "t.ID = S.Id", "t.id = s.id AND t.p <=> s.p", "t.f = s.f", "t.f <=> s.f",
    "t.fl = s.f", "t.d = s.d", "t.d = s.v", "t.wide = s.d", "t.day = s.day AND t.id = s.id", "t.ts = s.ts",
    "t.ts = s.n AND t.id = s.id", "t.n = s.n AND t.i = s.i", "t.`ä-y` = s.`ä-y`", "t.`ä-y` <=> s.`ä-y` AND t.i <=> s.i",
    "t.bin = s.bin", "t.i = s.id", "t.id = s.i AND t.p = 'a'", "t.deep.in.k = s.p AND t.id = s.id", "t.st.b = s.st.b",
    "upper(t.p) = upper(s.p) AND t.v = s.v", "t.id = s.id AND t.day IS NOT NULL", "t.id = s.id OR t.v = s.x",
    "t.id + 1 = s.id", "t.id = s.id AND t.ts > s.ts", "t.u = s.u", "false", "t.id = s.id AND s.x > 2",
    "t.id = s.id AND s.p IN ('a', 'b')", "coalesce(t.id, -1) = coalesce(s.id, -1)", "t.day = s.ts", "t.id = s.d",
)  # fmt: skip
_OF_BOTH = (
    "s.x > 5", "t.v < s.v", "t.f = s.f", "t.f > s.f", "NOT (t.p <=> s.p)", "t.d <> s.d", "x IS NULL", "t.day < s.day",
    "t.st.a = s.st.a", "s.x IN (1, 2, 3)", "isnan(s.f)", "t.i < s.x", "t.`ä-y` = s.`ä-y`", "s.deep.in.k = 'k'",
)  # fmt: skip
_OF_SOURCE = ("s.x > 5", "p = 'a'", "s.f > 0", "isnan(f)", "deep.in.k IS NULL", "s.id IS NOT NULL", "day = ts")
_OF_TARGET = ("t.v > 4", "p = 'b'", "f = 'NaN'", "t.day IS NULL", "deep.in.k = 'k'", "t.i % 2 = 0", "t.u < 3", "d < i")
_FROM_BOTH = {
    "v": ("s.v", "t.v + s.x", "s.f", "s.d", "coalesce(s.v, t.v)"),
    "p": ("s.p", "s.id", "concat(t.p, s.p)", "s.day"),
    "id": ("s.id", "t.id", "s.x"),
    "st": ("s.st", "t.st", "NULL"),
    "st.b": ("s.x", "t.v", "s.st.b"),
    "d": ("s.d", "s.v", "t.d + s.d", "s.wide"),
    "f": ("s.f", "t.f * s.f", "s.d"),
    "fl": ("s.fl", "s.f"),
    "i": ("s.i", "s.x", "s.f", "t.i + s.i"),
    "day": ("s.day", "s.ts", "NULL"),
    "ts": ("s.ts", "s.n", "s.day"),
    "n": ("s.n", "s.ts"),
    "deep.in.k": ("s.p", "s.deep.in.k"),
    "deep": ("s.deep", "NULL"),
    "ls": ("s.ls",),
    "tags": ("s.tags", "t.tags"),
    "wide": ("s.wide", "s.d", "t.wide - s.wide"),
    "ä-y": ("s.`ä-y`", "s.p", "''"),
    "bin": ("s.bin", "NULL"),
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


def assigned(rng: random.Random, values: dict[str, tuple[str, ...]]) -> str:
    """`a = …, b.c = …`, of which none lies inside another."""
    names = rng.sample(sorted(values), rng.randint(1, 3))
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    return ", ".join(f"{_quoted(name)} = {rng.choice(values[name])}" for name in names)


def _quoted(path: str) -> str:
    return ".".join(f"`{name}`" for name in path.split("."))
