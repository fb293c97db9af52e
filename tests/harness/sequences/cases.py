"""Random tables, and statements in Spark SQL that everybody runs as they are."""

from __future__ import annotations

import random
import re
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
        pa.field("n", pa.timestamp("us")),
        pa.field("bin", pa.binary()),
        pa.field("fl", pa.float32()),
        pa.field("i", pa.int32()),
        pa.field("wide", pa.decimal128(38, 18)),
        pa.field("ls", pa.list_(pa.struct([("q", pa.int64()), ("r", pa.date32())]))),
        pa.field("deep", pa.struct([("in", pa.struct([("k", pa.string()), ("l", pa.list_(pa.int32()))]))])),
        pa.field("ä-y", pa.string()),
    ]
)
SOURCE_SCHEMA = pa.schema([*SCHEMA, pa.field("x", pa.int64())])

TABLE, SOURCE, VERSION = "{table}", "{source}", "{version}"
"""What stands in a statement's text for names that differ from table to table."""

COMPUTED = {
    "g": "BIGINT GENERATED ALWAYS AS (v + 1)",
    "gday": "DATE GENERATED ALWAYS AS (CAST(ts AS DATE))",
    "df": "STRING DEFAULT 'dflt'",
}
"""Columns that some tables have besides; no rows are given for them."""
PARTITIONS = ((), (), (), ("p",), ("day",), ("p", "day"), ("ts",), ("d",), ("n",), ("i",), ("f",), ("ä-y", "i"))

STEPS = 8
_DAY = date(2024, 2, 28)
_PREDICATES = (
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
    "n": ("TIMESTAMP_NTZ '2024-03-01 01:02:03'", "NULL", "n"),
    "bin": ("X'00FF'", "NULL", "CAST(p AS BINARY)"),
    "fl": ("1.5", "f", "NULL", "fl + 1"),
    "i": ("i + 1", "3", "NULL", "v"),
    "wide": ("wide + 1", "NULL", "d"),
    "deep.in.k": ("'k'", "p", "NULL"),
    "deep.in": ("NULL", "deep.in"),
    "ä-y": ("'x/y=z'", "''", "p", "NULL"),
    "ls": ("NULL", "ls"),
    "m": ("NULL", "m"),
}


_ALTERATIONS = (
    "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
    "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
    "ADD COLUMNS (x BIGINT)", "ADD COLUMNS (st.c BIGINT)", "ADD COLUMNS (ls.element.s STRING AFTER q)",
    "DROP COLUMN fl", "DROP COLUMN st.b", "RENAME COLUMN bin TO bun", "ALTER COLUMN i TYPE BIGINT",
    "ALTER COLUMN d TYPE DECIMAL(12, 2)", "ALTER COLUMN fl TYPE DOUBLE", "ALTER COLUMN v COMMENT 'about'",
    "ALTER COLUMN v FIRST", "ADD CONSTRAINT little CHECK (v < 9)", "DROP CONSTRAINT IF EXISTS little",
    "ALTER COLUMN df SET DEFAULT 'other'",
)  # fmt: skip
COLUMNS = ", ".join(f"`{name}`" for name in SCHEMA.names)


@dataclass(frozen=True)
class Statement:
    """One statement. `rows` is what its text calls `SOURCE`; `restores` the step whose version it goes back to, -1 for
    the table's first. `is_dynamic`: an overwrite of the partitions that `rows` have."""

    sql: str
    rows: pa.Table | None = None
    restores: int | None = None
    is_dynamic: bool = False


@dataclass(frozen=True)
class Sequence:
    """A table, and what is done with it. Who runs which table changes where a step has `swaps`."""

    seed: int
    files: tuple[pa.Table, ...]
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]
    computed: tuple[str, ...]
    properties: dict[str, str]
    statements: tuple[Statement, ...]
    swaps: tuple[bool, ...]

    def told(self) -> str:
        """For a reader who looks for what went wrong."""
        lines = [f"seed {self.seed}, partitioned by {self.partition_by}, {self.properties}"]
        lines += [f"clustered by {self.cluster_by}, with {self.computed}"]
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
        "delta.enableTypeWidening": rng.choice(["true", "false"]),
    }
    computed = tuple(rng.sample(sorted(COMPUTED), rng.choice([0, 0, 1, 2])))
    if "df" in computed:
        properties["delta.feature.allowColumnDefaults"] = "supported"
    partition_by = ("gday",) if "gday" in computed and rng.random() < 0.5 else rng.choice(PARTITIONS)
    cluster_by = () if partition_by or rng.random() < 0.6 else tuple(rng.sample(["id", "v", "ts", "p"], 2))
    statements: list[Statement] = []
    while len(statements) < steps:
        statement = _statement(rng, numbers, len(statements), partition_by)
        # The reference takes `*` only from a source that has the computed columns, too.
        if not computed or not re.search(r"SET \*|INSERT \*", statement.sql):
            statements.append(statement)
    swaps = tuple(rng.random() < 0.3 for _ in statements)
    return Sequence(seed, files, partition_by, cluster_by, computed, properties, tuple(statements), swaps)


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
            "n": _or_null(rng, datetime(2024, 2, 28) + timedelta(hours=6 * rng.randint(0, 6))),
            "bin": _or_null(rng, rng.choice([b"", b"a", b"\x00\xff"])),
            "fl": _or_null(rng, rng.choice([0.0, -0.0, 0.1, 1.5, float("nan"), float("-inf")])),
            "i": _or_null(rng, rng.randint(0, 4)),
            "wide": _or_null(rng, Decimal(rng.randint(-(10**20), 10**20)).scaleb(-18)),
            "ls": _or_null(
                rng, [_or_null(rng, {"q": rng.randint(0, 3), "r": _or_null(rng, _DAY)})] * rng.randint(0, 2)
            ),
            "deep": _or_null(rng, {"in": _or_null(rng, {"k": rng.choice(["k", None]), "l": [1, None]})}),
            "ä-y": _or_null(rng, rng.choice(["", "x/y=z", "ü %", "a:b'c\"d"])),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _or_null(rng: random.Random, value: Any) -> Any:
    return None if rng.random() < 0.15 else value


def _statement(rng: random.Random, numbers: Any, step: int, partition_by: tuple[str, ...]) -> Statement:
    kinds = {
        "merge": 5, "evolve": 1, "delete": 2, "update": 3, "insert": 2, "replace": 1.2, "overwrite": 0.3,
        "dynamic": 0.7, "alter": 1, "restore": 1.5, "optimize": 1, "zorder": 0.6, "purge": 0.4,
    }  # fmt: skip
    match rng.choices(list(kinds), list(kinds.values()))[0]:
        case "delete":
            where = "" if rng.random() < 0.04 else f" WHERE {rng.choice(_PREDICATES)}"
            return Statement(f"DELETE FROM {TABLE}{where}")
        case "update":
            where = "" if rng.random() < 0.08 else f" WHERE {rng.choice(_PREDICATES)}"
            return Statement(f"UPDATE {TABLE} SET {_assigned(rng)}{where}")
        case "insert":
            rows = _rows(rng, numbers, rng.randint(1, 6), SCHEMA)
            return Statement(f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {COLUMNS} FROM {SOURCE}", rows)
        case "replace":
            rows, where = _rows(rng, numbers, rng.randint(0, 6), SCHEMA), rng.choice(_PREDICATES)
            chosen = f"REPLACE WHERE {where} SELECT {COLUMNS} FROM {SOURCE} WHERE {where}"
            return Statement(f"INSERT INTO {TABLE} {chosen}", rows)
        case "overwrite":
            rows = _rows(rng, numbers, rng.randint(0, 6), SCHEMA)
            return Statement(f"INSERT OVERWRITE {TABLE} ({COLUMNS}) SELECT {COLUMNS} FROM {SOURCE}", rows)
        case "dynamic" if partition_by and partition_by != ("gday",):
            rows = _rows(rng, numbers, rng.randint(1, 3), SCHEMA)
            text = f"INSERT OVERWRITE {TABLE} ({COLUMNS}) SELECT {COLUMNS} FROM {SOURCE}"
            return Statement(text, rows, is_dynamic=True)
        case "alter":
            return Statement(f"ALTER TABLE {TABLE} {rng.choice(_ALTERATIONS)}")
        case "evolve":
            return _evolving(rng, numbers)
        case "restore" if step:
            return Statement(f"RESTORE TABLE {TABLE} TO VERSION AS OF {VERSION}", restores=rng.randint(-1, step - 2))
        case "zorder":
            columns = [name for name in ("id", "v", "u", "d", "ts", "p", "n", "fl") if name not in partition_by]
            return Statement(f"OPTIMIZE {TABLE} ZORDER BY ({', '.join(rng.sample(columns, rng.randint(1, 2)))})")
        case "purge":
            return Statement(f"REORG TABLE {TABLE} APPLY (PURGE)")
        case "merge":
            return _merge(rng, numbers)
    where = f" WHERE `{partition_by[0]}` IS NOT NULL" if partition_by and rng.random() < 0.3 else ""
    return Statement(f"OPTIMIZE {TABLE}{where}")


def _assigned(rng: random.Random) -> str:
    names = rng.sample(sorted(_VALUES), rng.randint(1, 3))
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    return ", ".join(f"{_quoted(name)} = {rng.choice(_VALUES[name])}" for name in names)


def _quoted(path: str) -> str:
    return ".".join(f"`{name}`" for name in path.split("."))


def _evolving(rng: random.Random, numbers: Any) -> Statement:
    """A merge whose source has a column and a field more, and may lack some."""
    rows = _merge_rows(rng, numbers)
    struct = pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.int64())])
    fields = [field.with_type(struct) if field.name == "st" else field for field in SOURCE_SCHEMA]
    kept = [field for field in fields if field.name in (*merges.SCHEMA.names, "x") or rng.random() < 0.7]
    data = [
        {**row, "st": row["st"] and {**row["st"], "c": _or_null(rng, rng.randint(0, 9))}} for row in rows.to_pylist()
    ]
    rows = pa.Table.from_pylist([{f.name: row[f.name] for f in kept} for row in data], pa.schema(kept))
    clauses = " ".join(map(clause_text, merges._clauses(rng)))
    text = f"MERGE WITH SCHEMA EVOLUTION INTO {TABLE} AS t USING {SOURCE} AS s ON {rng.choice(merges.ON).sql} {clauses}"
    return Statement(text, rows)


def _merge(rng: random.Random, numbers: Any) -> Statement:
    rows = _merge_rows(rng, numbers)
    clauses = " ".join(map(clause_text, merges._clauses(rng)))
    return Statement(f"MERGE INTO {TABLE} AS t USING {SOURCE} AS s ON {rng.choice(merges.ON).sql} {clauses}", rows)


def _merge_rows(rng: random.Random, numbers: Any) -> pa.Table:
    rows = _rows(rng, numbers, rng.choice([0, 1, 3, 3, 8]), SOURCE_SCHEMA)
    if rng.random() < 0.7:
        rows = pa.Table.from_pylist(list({row["id"]: row for row in rows.to_pylist()}.values()), SOURCE_SCHEMA)
    return rows


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
