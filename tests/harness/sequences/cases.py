"""Random tables, and statements in Spark SQL that everybody runs as they are."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.harness.merges import cases as merges
from tests.harness.merges.model import Clause

NAMES = pa.field("tags", pa.list_(pa.string()))
SCHEMA = pa.schema(
    [
        *merges.SCHEMA,
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("f", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        NAMES,
        pa.field("m", pa.map_(pa.string(), pa.int64())),
    ]
)
SOURCE_SCHEMA = pa.schema([*SCHEMA, pa.field("x", pa.int64())])

TABLE, SOURCE, VERSION = "{table}", "{source}", "{version}"
"""What stands in a statement's text for names that differ from table to table."""

STEPS = 8
_DAY = date(2024, 2, 28)
_PREDICATES = (
    "id > 4", "id = 3", "id IS NULL", "id IN (1, 2, 7)", "NOT (id >= 3)", "p = 'a'", "p <=> NULL", "p LIKE 'c%'",
    "p IN ('a', 'b') AND v > 2", "v + 1 < 6", "st.b > 4", "st.a = 'b' OR id = 1", "st IS NULL", "d > 1.50", "d = 2",
    "f > 0.5", "f < 0.5", "isnan(f)", "day = DATE '2024-02-29'", "day > DATE '2024-02-28' AND id < 8", "f IS NOT NULL",
    "ts >= TIMESTAMP '2024-02-28 12:00:00'", "upper(p) = 'B'", "coalesce(v, 0) = 0", "v BETWEEN 2 AND 6",
    "CASE WHEN id > 5 THEN p = 'a' ELSE v = 1 END", "length(p) = 1", "id % 2 = 0", "v IS NULL OR id IS NULL",
    "u % 3 = 1", "u < 4", "u >= 0", "u IS NULL", "tags IS NULL", "p = 'nowhere'",
)  # fmt: skip
_VALUES = {
    "v": ("v + 1", "7", "NULL", "coalesce(v, id)", "length(p)", "CASE WHEN v > 3 THEN 0 ELSE v END"),
    "p": ("'a'", "'c d%'", "NULL", "upper(p)", "concat(p, 'x')"),
    "id": ("id", "v", "id + 1"),
    "st": ("NULL", "st"),
    "st.a": ("'z'", "p", "NULL"),
    "st.b": ("v", "st.b + 1", "3"),
    "d": ("1.25", "NULL", "v"),
    "f": ("0.1", "f * 2", "v", "NULL"),
    "day": ("DATE '2024-03-01'", "day", "NULL"),
    "ts": ("TIMESTAMP '2024-03-01 00:00:00'", "NULL", "ts"),
    "tags": ("NULL", "tags"),
}


@dataclass(frozen=True)
class Statement:
    """One statement. `rows` is what its text calls `SOURCE`; `restores` the step whose version it goes back to, -1 for
    the table's first."""

    sql: str
    rows: pa.Table | None = None
    restores: int | None = None


@dataclass(frozen=True)
class Sequence:
    """A table, and what is done with it. Who runs which table changes where a step has `swaps`."""

    seed: int
    files: tuple[pa.Table, ...]
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    statements: tuple[Statement, ...]
    swaps: tuple[bool, ...]

    def told(self) -> str:
        """For a reader who looks for what went wrong."""
        lines = [f"seed {self.seed}, partitioned by {self.partition_by}, {self.properties}"]
        lines += [f"file: {rows.to_pylist()}" for rows in self.files]
        for number, (statement, swaps) in enumerate(zip(self.statements, self.swaps, strict=True)):
            back = "" if statement.restores is None else f" (of step {statement.restores})"
            lines.append(f"{number}{' swapped' if swaps else ''}: {statement.sql}{back}")
            lines += [] if statement.rows is None else [f"   source: {statement.rows.to_pylist()}"]
        return "\n".join(lines)


def random_sequence(seed: int, steps: int = STEPS) -> Sequence:
    """The same for the same seed."""
    rng = random.Random(seed)
    numbers = iter(range(10_000))
    files = tuple(_rows(rng, numbers, rng.randint(1, 7), SCHEMA) for _ in range(rng.randint(1, 3)))
    properties = {
        "delta.enableDeletionVectors": rng.choice(["true", "true", "false"]),
        "delta.enableChangeDataFeed": rng.choice(["true", "true", "false"]),
        "delta.enableRowTracking": rng.choice(["true", "true", "false"]),
        "delta.columnMapping.mode": rng.choice(["none", "none", "name", "id"]),
    }
    partition_by = rng.choice([(), (), ("p",), ("day",), ("p", "day")])
    statements = tuple(_statement(rng, numbers, step, partition_by) for step in range(steps))
    return Sequence(seed, files, partition_by, properties, statements, tuple(rng.random() < 0.3 for _ in statements))


def _rows(rng: random.Random, numbers: Any, count: int, schema: pa.Schema) -> pa.Table:
    rows = [
        {
            **merges._row(rng, next(numbers)),
            "d": _or_null(rng, Decimal(rng.randint(0, 400)) / 100),
            "f": _or_null(rng, rng.choice([0.0, -0.0, 0.1, 1.5, float("nan"), float("inf"), -2.5])),
            "day": _or_null(rng, _DAY + timedelta(days=rng.randint(0, 2))),
            "ts": _or_null(rng, datetime(2024, 2, 28, tzinfo=UTC) + timedelta(hours=6 * rng.randint(0, 6))),
            "tags": _or_null(rng, [rng.choice(["x", None, ""]) for _ in range(rng.randint(0, 2))]),
            "m": _or_null(rng, [("k", _or_null(rng, rng.randint(0, 5)))]),
            "x": _or_null(rng, rng.randint(0, 9)),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _or_null(rng: random.Random, value: Any) -> Any:
    return None if rng.random() < 0.15 else value


def _statement(rng: random.Random, numbers: Any, step: int, partition_by: tuple[str, ...]) -> Statement:
    kinds = {
        "merge": 5,
        "delete": 2,
        "update": 3,
        "insert": 2,
        "restore": 1.5,
        "optimize": 1,
        "zorder": 0.6,
        "purge": 0.4,
    }
    match rng.choices(list(kinds), list(kinds.values()))[0]:
        case "delete":
            where = "" if rng.random() < 0.04 else f" WHERE {rng.choice(_PREDICATES)}"
            return Statement(f"DELETE FROM {TABLE}{where}")
        case "update":
            where = "" if rng.random() < 0.08 else f" WHERE {rng.choice(_PREDICATES)}"
            return Statement(f"UPDATE {TABLE} SET {_assigned(rng)}{where}")
        case "insert":
            rows = _rows(rng, numbers, rng.randint(1, 6), SCHEMA)
            return Statement(f"INSERT INTO {TABLE} SELECT {', '.join(SCHEMA.names)} FROM {SOURCE}", rows)
        case "restore" if step:
            return Statement(f"RESTORE TABLE {TABLE} TO VERSION AS OF {VERSION}", restores=rng.randint(-1, step - 2))
        case "zorder":
            columns = [name for name in ("id", "v", "u", "d", "ts") if name not in partition_by]
            return Statement(f"OPTIMIZE {TABLE} ZORDER BY ({', '.join(rng.sample(columns, rng.randint(1, 2)))})")
        case "purge":
            return Statement(f"REORG TABLE {TABLE} APPLY (PURGE)")
        case "merge":
            return _merge(rng, numbers)
    where = f" WHERE {partition_by[0]} IS NOT NULL" if partition_by and rng.random() < 0.3 else ""
    return Statement(f"OPTIMIZE {TABLE}{where}")


def _assigned(rng: random.Random) -> str:
    names = rng.sample(sorted(_VALUES), rng.randint(1, 3))
    if "st" in names:
        names = [name for name in names if not name.startswith("st.")]
    return ", ".join(f"{name} = {rng.choice(_VALUES[name])}" for name in names)


def _merge(rng: random.Random, numbers: Any) -> Statement:
    rows = _rows(rng, numbers, rng.choice([0, 1, 3, 3, 8]), SOURCE_SCHEMA)
    if rng.random() < 0.7:
        rows = pa.Table.from_pylist(list({row["id"]: row for row in rows.to_pylist()}.values()), SOURCE_SCHEMA)
    clauses = " ".join(map(clause_text, merges._clauses(rng)))
    return Statement(f"MERGE INTO {TABLE} AS t USING {SOURCE} AS s ON {rng.choice(merges.ON).sql} {clauses}", rows)


def clause_text(clause: Clause) -> str:
    """A clause of a random merge in SQL."""
    kind = {"matched": "MATCHED", "not matched": "NOT MATCHED", "by source": "NOT MATCHED BY SOURCE"}[clause.kind]
    condition = "" if clause.condition is None else f" AND {clause.condition.sql}"
    return f"WHEN {kind}{condition} THEN {_action(clause)}"


def _action(clause: Clause) -> str:
    if clause.action == "delete":
        return "DELETE"
    if clause.values is None:
        return "UPDATE SET *" if clause.action == "update" else "INSERT *"
    if clause.action == "update":
        return "UPDATE SET " + ", ".join(f"t.{name} = {value.sql}" for name, value in clause.values.items())
    names, values = ", ".join(clause.values), ", ".join(value.sql for value in clause.values.values())
    return f"INSERT ({names}) VALUES ({values})"
