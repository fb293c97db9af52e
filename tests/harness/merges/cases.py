"""Random tables, sources and clauses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.harness.merges.model import Clause, Predicate, Row, Value

STRUCT = pa.struct([("a", pa.string()), ("b", pa.int64())])
SCHEMA = pa.schema([("u", pa.int64()), ("id", pa.int64()), ("p", pa.string()), ("v", pa.int64()), ("st", STRUCT)])
SOURCE_SCHEMA = pa.schema([*SCHEMA, ("x", pa.int64())])


def _at(row: Row | None, *path: str) -> Any:
    value: Any = row
    for name in path:
        value = None if value is None else value[name]
    return value


def _compare(op: Any) -> Any:
    def compared(left: Any, right: Any) -> bool | None:
        return None if left is None or right is None else op(left, right)

    return compared


_eq, _gt, _lt = (_compare(op) for op in (lambda a, b: a == b, lambda a, b: a > b, lambda a, b: a < b))


def _all(*values: bool | None) -> bool | None:
    if any(value is False for value in values):
        return False
    return None if any(value is None for value in values) else True


ON = [
    Predicate("t.id = s.id", lambda t, s: _eq(_at(t, "id"), _at(s, "id"))),
    Predicate("t.id <=> s.id", lambda t, s: _at(t, "id") == _at(s, "id")),
    Predicate(
        "t.id = s.id AND t.p = s.p",
        lambda t, s: _all(_eq(_at(t, "id"), _at(s, "id")), _eq(_at(t, "p"), _at(s, "p"))),
    ),
    Predicate(
        "s.id = t.id AND t.v > 3",
        lambda t, s: _all(_eq(_at(t, "id"), _at(s, "id")), _gt(_at(t, "v"), 3)),
    ),
    Predicate(
        "t.id = s.id AND t.v + 1 > s.v",
        lambda t, s: _all(
            _eq(_at(t, "id"), _at(s, "id")), _gt(None if _at(t, "v") is None else _at(t, "v") + 1, _at(s, "v"))
        ),
    ),
    Predicate("t.st.b = s.x", lambda t, s: _eq(_at(t, "st", "b"), _at(s, "x"))),
    Predicate(
        "t.p = s.p AND t.id <=> s.id AND t.p = 'a'",
        lambda t, s: _all(_eq(_at(t, "p"), _at(s, "p")), _at(t, "id") == _at(s, "id"), _eq(_at(t, "p"), "a")),
    ),
]
BOTH = [
    Predicate("s.x > 5", lambda t, s: _gt(_at(s, "x"), 5)),
    Predicate("t.v < s.v", lambda t, s: _lt(_at(t, "v"), _at(s, "v"))),
    Predicate("t.st.a = s.p", lambda t, s: _eq(_at(t, "st", "a"), _at(s, "p"))),
    Predicate("x IS NULL", lambda t, s: _at(s, "x") is None),
    Predicate("t.v + s.x > 10", lambda t, s: _gt(
        None if _at(t, "v") is None or _at(s, "x") is None else _at(t, "v") + _at(s, "x"), 10)),
]  # fmt: skip
SOURCE = [
    Predicate("s.x > 5", lambda t, s: _gt(_at(s, "x"), 5)),
    Predicate("p = 'a'", lambda t, s: _eq(_at(s, "p"), "a")),
    Predicate("st.b IS NOT NULL", lambda t, s: _at(s, "st", "b") is not None),
]
TARGET = [
    Predicate("t.v > 4", lambda t, s: _gt(_at(t, "v"), 4)),
    Predicate("p = 'b'", lambda t, s: _eq(_at(t, "p"), "b")),
    Predicate("st.a IS NULL", lambda t, s: _at(t, "st", "a") is None),
    Predicate("v + 1 < 6", lambda t, s: _lt(None if _at(t, "v") is None else _at(t, "v") + 1, 6)),
]


def _plus(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left + right


BOTH_VALUES = {
    "v": [
        Value("s.v", lambda t, s: _at(s, "v")),
        Value("t.v + s.x", lambda t, s: _plus(_at(t, "v"), _at(s, "x"))),
        Value("7", lambda t, s: 7),
    ],
    "p": [
        Value("s.p", lambda t, s: _at(s, "p")),
        Value("'c d%'", lambda t, s: "c d%"),
        Value("NULL", lambda t, s: None),
    ],
    "st": [Value("s.st", lambda t, s: _at(s, "st")), Value("NULL", lambda t, s: None)],
    "st.b": [Value("x", lambda t, s: _at(s, "x")), Value("t.v", lambda t, s: _at(t, "v"))],
    "id": [Value("s.id", lambda t, s: _at(s, "id"))],
}
TARGET_VALUES = {
    "v": [Value("v * 2", lambda t, s: _plus(_at(t, "v"), _at(t, "v"))), Value("0", lambda t, s: 0)],
    "p": [Value("'a'", lambda t, s: "a")],
    "st.a": [Value("p", lambda t, s: _at(t, "p")), Value("'z'", lambda t, s: "z")],
}
INSERT_VALUES = {
    "u": [Value("s.u", lambda t, s: _at(s, "u"))],
    "id": [Value("id", lambda t, s: _at(s, "id"))],
    "p": [Value("s.p", lambda t, s: _at(s, "p")), Value("'new'", lambda t, s: "new")],
    "v": [Value("x", lambda t, s: _at(s, "x")), Value("v + 1", lambda t, s: _plus(_at(s, "v"), 1))],
    "st": [Value("st", lambda t, s: _at(s, "st"))],
}


@dataclass
class Case:
    """One merge, and the table that it meets."""

    seed: int
    target: list[list[Row]]
    source: list[Row]
    on: Predicate
    clauses: list[Clause]
    partitioned: bool
    properties: dict[str, str] = field(default_factory=dict)

    def told(self) -> str:
        """The case for a reader who looks for what went wrong."""
        told = [f"seed {self.seed}, partitioned {self.partitioned}, {self.properties}", f"ON {self.on.sql}"]
        for clause in self.clauses:
            when = "" if clause.condition is None else f" AND {clause.condition.sql}"
            values = "*" if clause.values is None else {name: value.sql for name, value in clause.values.items()}
            told.append(f"WHEN {clause.kind}{when} THEN {clause.action} {values if clause.action != 'delete' else ''}")
        told += [f"file {i}: {rows}" for i, rows in enumerate(self.target)]
        return "\n".join([*told, *(f"source {row}" for row in self.source)])


def random_case(seed: int) -> Case:
    """A case; the same for the same seed."""
    rng = random.Random(seed)
    numbers = iter(range(10_000))
    target = [[_row(rng, next(numbers)) for _ in range(rng.randint(1, 6))] for _ in range(rng.randint(0, 3))]
    source = [{**_row(rng, next(numbers)), "x": _number(rng)} for _ in range(rng.choice([0, 1, 3, 3, 8]))]
    if rng.random() < 0.6:
        source = list({row["id"]: row for row in source}.values())
    properties = {
        "delta.enableDeletionVectors": rng.choice(["true", "false"]),
        "delta.enableChangeDataFeed": rng.choice(["true", "false"]),
        "delta.enableRowTracking": rng.choice(["true", "false"]),
        "delta.columnMapping.mode": rng.choice(["none", "none", "name", "id"]),
    }
    return Case(seed, target, source, rng.choice(ON), _clauses(rng), rng.random() < 0.5, properties)


def _number(rng: random.Random) -> int | None:
    return None if rng.random() < 0.15 else rng.randint(0, 9)


def _row(rng: random.Random, number: int) -> Row:
    struct = None if rng.random() < 0.2 else {"a": rng.choice(["a", "b", None]), "b": _number(rng)}
    return {
        "u": number,
        "id": _number(rng),
        "p": rng.choice(["a", "b", "c d%", None]),
        "v": _number(rng),
        "st": struct,
    }


def _clauses(rng: random.Random) -> list[Clause]:
    clauses = [
        *_of_kind(rng, "matched", BOTH, ("update", "update", "delete"), BOTH_VALUES, rng.choice([0, 1, 1, 2, 3])),
        *_of_kind(rng, "not matched", SOURCE, ("insert",), INSERT_VALUES, rng.choice([0, 1, 1, 2])),
        *_of_kind(rng, "by source", TARGET, ("update", "delete"), TARGET_VALUES, rng.choice([0, 0, 1, 2])),
    ]
    return clauses or _clauses(rng)


def _of_kind(
    rng: random.Random,
    kind: str,
    conditions: Sequence[Predicate],
    actions: Sequence[str],
    values: dict[str, list[Value]],
    count: int,
) -> list[Clause]:
    clauses = []
    for i in range(count):
        action = rng.choice(actions)
        condition = rng.choice(conditions) if i < count - 1 or rng.random() < 0.5 else None
        takes_all = kind != "by source" and action != "delete" and rng.random() < 0.4
        assigned = None if action == "delete" or takes_all else _some(rng, values, kind)
        clauses.append(Clause(kind, action, condition, assigned))
    return clauses


def _some(rng: random.Random, values: dict[str, list[Value]], kind: str) -> dict[str, Value]:
    names = rng.sample(sorted(values), rng.randint(1, len(values)))
    if "st" in names:
        names = [name for name in names if not name.startswith("st.")]
    if kind == "not matched" and "u" not in names:
        names.append("u")
    return {name: rng.choice(values[name]) for name in names}
