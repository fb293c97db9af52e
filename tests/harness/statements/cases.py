"""Random tables, and statements that fit what a table looks like when they run."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tests.harness.sequences.cases import COMPUTED, SOURCE, TABLE, VERSION, Statement
from tests.harness.sequences.run import SQL_TYPES
from tests.harness.sequences.words import ON, PREDICATES, VALUES, assigned, predicate
from tests.harness.statements.expressions import (
    CLONE,
    CONVERTED,
    PARQUET,
    condition,
    constant,
    expression,
    kind_of,
    leaves,
    quoted,
)

VALUES_TABLE = "{values}"

POOL = {
    **SQL_TYPES, "id": "BIGINT", "v": "BIGINT", "Case": "INT", "ch": "CHAR(4)", "arr": "ARRAY<INT>",
    "mm": "MAP<STRING, INT>", "tiny": "DECIMAL(5, 1)", "ns": "STRUCT<x: STRUCT<y: DECIMAL(10, 2)>, z: DATE>",
    "big": "DECIMAL(38, 0)", "dot.ted": "INT", "ba`ck": "STRING", "ms": "MAP<STRING, STRUCT<a: INT, b: STRING>>",
    "mi": "MAP<INT, ARRAY<STRING>>", "req": "STRUCT<a: INT NOT NULL, b: TIMESTAMP_NTZ>", "sp ace": "DATE",
    "lt": "ARRAY<TIMESTAMP>", "sc": "STRUCT<c: CHAR(3), v: VARCHAR(4)>", "bb": "ARRAY<BINARY>",
}  # fmt: skip
"""Columns that tables choose from. Those of sequences have their names and types, so that their words fit, too."""
_DEFAULTS = {"INT": "7", "BIGINT": "1 + 1", "STRING": "'dflt'", "DOUBLE": "0.5", "DATE": "DATE '2024-01-01'",
             "BOOLEAN": "true", "DECIMAL(10, 2)": "1.5", "TIMESTAMP": "TIMESTAMP '2024-01-01 00:00:00'"}  # fmt: skip
_PROPERTIES = {
    "delta.enableDeletionVectors": 0.5, "delta.enableChangeDataFeed": 0.5, "delta.enableRowTracking": 0.3,
    "delta.enableTypeWidening": 0.4, "delta.columnMapping.mode": 0.4, "delta.enableInCommitTimestamps": 0.1,
    "delta.appendOnly": 0.03,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What a statement is made for: the table's columns now, those that take values, and the source's."""

    schema: pa.Schema
    given: Sequence[str]
    partition_by: Sequence[str]
    source: pa.Schema
    steps: int


def create_texts(rng: random.Random) -> tuple[str, str]:
    """What makes the source, which has a column `x` besides, and the table."""
    names = rng.sample(sorted(POOL), rng.randint(5, 11))
    names = [*dict.fromkeys(["v", "p", "ts", *names])] if rng.random() < 0.3 else names
    listed = ", ".join(f"{quoted(name)} {POOL[name].replace(' NOT NULL', '')}" for name in names)
    mapped = " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')" if "sp ace" in names else ""
    return (
        f"CREATE TABLE {SOURCE} (u BIGINT, {listed}, x BIGINT) USING delta{mapped}",
        _create(rng, names, f"CREATE TABLE {TABLE}"),
    )


def _create(rng: random.Random, names: Sequence[str], how: str) -> str:
    columns = ["u BIGINT"]
    has_default = False
    for name in names:
        declared = POOL[name]
        if rng.random() < 0.06:
            declared += " NOT NULL"
        if declared in _DEFAULTS and rng.random() < 0.25:
            declared, has_default = f"{declared} DEFAULT {_DEFAULTS[declared]}", True
        if rng.random() < 0.08:
            declared += " COMMENT 'it''s about'"
        columns.append(f"{quoted(name)} {declared}")
    computed = []
    if {"v", "p", "ts"} <= set(names):
        computed = rng.sample(sorted(COMPUTED), rng.randint(0, 2))
        columns += [f"{name} {COMPUTED[name]}" for name in computed]
        has_default |= bool({"df", "nn"} & set(computed))
    text = f"{how} ({', '.join(columns)}) USING delta"
    flat = [name for name in names if "<" not in POOL[name] and POOL[name] != "BINARY"]
    layout = rng.random()
    if layout < 0.35:
        chosen = rng.sample(flat, min(len(flat), rng.choice([1, 1, 2]))) if flat else []
        generated = [name for name in computed if name in ("gday", "gp", "gmonth")]
        chosen = generated[:1] or chosen
        text += f" PARTITIONED BY ({', '.join(map(quoted, chosen))})" if chosen else ""
    elif layout < 0.5:
        able = [name for name in flat if POOL[name] != "BOOLEAN"]
        text += f" CLUSTER BY ({', '.join(map(quoted, able[:2]))})" if able else ""
    if rng.random() < 0.2:
        text += " COMMENT 'a table'"
    properties = {key: "true" for key, share in _PROPERTIES.items() if rng.random() < share}
    if "delta.columnMapping.mode" in properties or "sp ace" in names:
        properties["delta.columnMapping.mode"] = rng.choice(["name", "id"])
    if has_default or rng.random() < 0.4:
        properties["delta.feature.allowColumnDefaults"] = "supported"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    return f"{text} TBLPROPERTIES ({listed})" if listed else text


def fill_text(rng: random.Random, shape: Shape, first: int, rows: int) -> str:
    """An INSERT of constants that fit into every column of the source; `u` counts."""
    names = shape.source.names
    return f"INSERT INTO {SOURCE} ({_names(names)}) {_rows(rng, shape.source, names, first, rows, strict=True)}"


def insert_values(rng: random.Random, shape: Shape, names: Sequence[str], first: int, rows: int) -> Statement:
    """Constants for some columns, or what is cast to them."""
    text = f"INSERT INTO {TABLE} ({_names(names)}) SELECT * FROM {VALUES_TABLE}"
    return Statement(text, values=_rows(rng, shape.schema, names, first, rows, strict=rng.random() < 0.5))


def _rows(rng: random.Random, schema: pa.Schema, names: Sequence[str], first: int, rows: int, *, strict: bool) -> str:
    values = [
        ", ".join(str(first + i) if name == "u" else constant(rng, schema.field(name).type, strict) for name in names)
        for i in range(rows)
    ]
    return f"VALUES ({'), ('.join(values)})"


def statement(rng: random.Random, shape: Shape) -> Statement:
    """The next statement. Of queries, which are in the engine's own SQL, only what all of them read alike."""
    kinds = {
        _values: 1.5, _select: 1.5, _overwrite: 1, _update: 2.5, _delete: 2, _merge: 3.5, _alter: 3,
        _maintain: 1.2, _restore: 0.7, _define: 0.5, _describe: 0.8, _beside: 1.5,
    }  # fmt: skip
    return rng.choices(list(kinds), list(kinds.values()))[0](rng, shape)


def _at(rng: random.Random, shape: Shape, text: str) -> Statement:
    return Statement(text, restores=rng.randint(-1, shape.steps - 1) if VERSION in text else None)


def _values(rng: random.Random, shape: Shape) -> Statement:
    names = rng.sample(list(shape.given), rng.randint(1, len(shape.given))) if rng.random() < 0.3 else shape.given
    return insert_values(rng, shape, names, rng.randint(100, 999), rng.randint(1, 3))


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _of_source(rng: random.Random, shape: Shape, name: str) -> str:
    """A value for a column in a query: the source's column of that name, or null."""
    return f"s.{quoted(name)}" if name in shape.source.names else "NULL"


def _select(rng: random.Random, shape: Shape) -> Statement:
    names = [name for name in shape.given if rng.random() < 0.8] or list(shape.given)
    values = [f"{_of_source(rng, shape, name)} AS {quoted(name)}" for name in names]
    evolves = rng.random() < 0.15
    if evolves:
        values.append("s.x + 1 AS added")
    where = f" WHERE s.u > {rng.randint(0, 9)}" if rng.random() < 0.4 else ""
    by = "BY NAME" if evolves or rng.random() < 0.4 else f"({_names(names)})"
    how = "INSERT WITH SCHEMA EVOLUTION INTO" if evolves else "INSERT INTO"
    read = rng.choice([SOURCE, SOURCE, TABLE]) if all(n in shape.schema.names for n in shape.source.names) else SOURCE
    with_ = rng.choice(["", "", f"WITH q AS (SELECT * FROM {read}) "])
    return Statement(f"{how} {TABLE} {by} {with_}SELECT {', '.join(values)} FROM {'q' if with_ else read} AS s{where}")


def _overwrite(rng: random.Random, shape: Shape) -> Statement:
    names = list(shape.given)
    values = [f"{_of_source(rng, shape, name)} AS {quoted(name)}" for name in names]
    rows = f"SELECT {', '.join(values)} FROM {SOURCE} AS s"
    choice = rng.random()
    if shape.partition_by and choice < 0.4 and shape.partition_by[0] in names:
        part = shape.partition_by[0]
        value = constant(rng, shape.schema.field(part).type)
        values = [value if name == part else _of_source(rng, shape, name) for name in names]
        rows = f"SELECT {', '.join(values)} FROM {SOURCE} AS s"
        where = f" REPLACE WHERE {quoted(part)} <=> {value}" if rng.random() < 0.5 else ""
        return Statement(f"INSERT INTO {TABLE} ({_names(names)}){where} {rows}")
    if choice < 0.6:
        where = f"u {rng.choice(['>', '<', '='])} {rng.randint(0, 12)}"
        if rng.random() < 0.4:
            return Statement(f"INSERT INTO {TABLE} REPLACE WHERE {_where(rng, shape)} {rows}")
        return Statement(f"INSERT INTO {TABLE} REPLACE WHERE {where} {rows} WHERE {where.replace('u', 's.u')}")
    return Statement(f"INSERT OVERWRITE {TABLE} {rng.choice(['BY NAME ', f'({_names(names)}) '])}{rows}")


def _fitting(words: Sequence[str], shape: Shape) -> tuple[str, ...]:
    """Words of sequences about columns that the table has with the types they had there."""
    known = {name for name in POOL if name not in shape.schema.names} | ({"u"} - {*shape.schema.names})
    return tuple(word for word in words if not known & {*re.findall(r"(?<!')\b[\w-]+\b", word)})


def _where(rng: random.Random, shape: Shape, alias: str = "") -> str:
    atoms = _fitting(PREDICATES, shape)
    if rng.random() < 0.4 and atoms and not alias:
        return predicate(rng, atoms)
    return condition(rng, leaves(shape.schema, alias))


def _sets(rng: random.Random, shape: Shape, alias: str = "", others: bool = False) -> str:
    fitting = {name: _fitting(values, shape) for name, values in VALUES.items()}
    usable = {name: v for name, v in fitting.items() if v and name.split(".")[0] in shape.given}
    if len(usable) >= 3 and not alias and rng.random() < 0.4:
        return assigned(rng, usable)
    among = leaves(shape.schema, alias) + (leaves(shape.source, "s.") if others else [])
    names = rng.sample(list(shape.given), rng.randint(1, min(3, len(shape.given))))

    def assignment(name: str) -> str:
        path, data_type = quoted(name), shape.schema.field(name).type
        while pa.types.is_struct(data_type) and rng.random() < 0.6:
            chosen = rng.choice(list(data_type))
            path, data_type = f"{path}.{quoted(chosen.name)}", chosen.type
        same = [f"s.{path}"] if others and name in shape.source.names and rng.random() < 0.3 else []
        kind = kind_of(data_type)
        value = constant(rng, data_type) if kind is None else expression(rng, among, kind, 2)
        return f"{rng.choice(['', '', alias])}{path} = {(same or ['DEFAULT' if rng.random() < 0.04 else value])[0]}"

    return ", ".join(map(assignment, names))


def _update(rng: random.Random, shape: Shape) -> Statement:
    where = f" WHERE {_where(rng, shape)}" if rng.random() < 0.9 else ""
    if rng.random() < 0.15:
        return Statement(f"UPDATE {TABLE} AS t SET {_sets(rng, shape, 't.')} WHERE {_where(rng, shape, 't.')}")
    return Statement(f"UPDATE {TABLE} SET {_sets(rng, shape)}{where}")


def _delete(rng: random.Random, shape: Shape) -> Statement:
    where = f" WHERE {_where(rng, shape)}" if rng.random() < 0.96 else ""
    return Statement(f"DELETE FROM {TABLE}{where}")


def _merge(rng: random.Random, shape: Shape) -> Statement:
    both = leaves(shape.schema, "t.") + leaves(shape.source, "s.")
    words = _fitting(ON, shape)
    on = rng.choice(["t.u = s.u", "t.u = s.u", "t.u <=> s.u AND s.x > 1", f"t.u = s.u AND {condition(rng, both, 1)}",
                     rng.choice(words) if words else "t.u = s.x"])  # fmt: skip
    beside = {"MATCHED": both, "NOT MATCHED": leaves(shape.source, "s."),
              "NOT MATCHED BY SOURCE": leaves(shape.schema, "t.")}  # fmt: skip
    clauses: list[str] = []
    while not clauses:
        for kind, among in beside.items():
            for is_last in rng.choice(([True], [False, True])) if rng.random() < 0.6 else []:
                also = "" if is_last and rng.random() < 0.5 else f" AND {condition(rng, among, 1)}"
                clauses.append(f"WHEN {kind}{also} THEN {_action(rng, shape, kind)}")
    evolves = " WITH SCHEMA EVOLUTION" if rng.random() < 0.15 else ""
    source = rng.choice([
        SOURCE, SOURCE, f"(SELECT * FROM {SOURCE} WHERE x IS NOT NULL)", f"(SELECT DISTINCT * FROM {SOURCE} LIMIT 9)",
        f"(SELECT * FROM {SOURCE} UNION ALL SELECT * FROM {SOURCE} WHERE u > 5)",
    ])  # fmt: skip
    return Statement(f"MERGE{evolves} INTO {TABLE} AS t USING {source} AS s ON {on} {' '.join(clauses)}")


def _action(rng: random.Random, shape: Shape, kind: str) -> str:
    if kind == "NOT MATCHED":
        names = [name for name in shape.given if rng.random() < 0.8] or list(shape.given)
        values = ", ".join(_of_source(rng, shape, name) for name in names)
        return "INSERT *" if rng.random() < 0.4 else f"INSERT ({_names(names)}) VALUES ({values})"
    choice = rng.random()
    if choice < 0.3:
        return "DELETE"
    if kind == "MATCHED" and choice < 0.55:
        return "UPDATE SET *" if choice < 0.52 else "UPDATE SET * EXCEPT (u)"
    return f"UPDATE SET {_sets(rng, shape, 't.', others=kind == 'MATCHED')}"


def _alter(rng: random.Random, shape: Shape) -> Statement:
    name = quoted(rng.choice(shape.schema.names))
    wider = {"ti": "INT", "si": "BIGINT", "i": "BIGINT", "fl": "DOUBLE", "d": "DECIMAL(12, 3)", "Case": "DOUBLE",
             "day": "TIMESTAMP_NTZ", "tiny": "DECIMAL(9, 2)", "vc": "VARCHAR(9)", "ch": "STRING"}  # fmt: skip
    able = [key for key in wider if key in shape.schema.names]
    widened = rng.choice(able) if able else name
    top = rng.choice([n for n in POOL if n not in shape.schema.names] or ["fresh"])
    new_type, check = wider.get(widened, "STRING"), condition(rng, leaves(shape.schema), 1)
    return Statement(f"ALTER TABLE {TABLE} " + rng.choice([
        f"ADD COLUMN {quoted(top)} {POOL.get(top, 'INT')}", f"ADD COLUMNS (fresh{shape.steps} INT COMMENT 'new' FIRST)",
        f"ADD COLUMN f{shape.steps} STRING AFTER {name}", f"DROP COLUMN {name}", f"DROP COLUMN IF EXISTS {name}",
        f"RENAME COLUMN {name} TO r{shape.steps}", f"ALTER COLUMN {quoted(widened)} TYPE {new_type}",
        f"ALTER COLUMN {name} COMMENT 'said'", f"ALTER COLUMN {name} FIRST", f"ALTER COLUMN {name} DROP NOT NULL",
        f"ALTER COLUMN {name} SET DEFAULT {rng.choice(['1', 'NULL', chr(39) + 'a' + chr(39)])}",
        f"ALTER COLUMN {name} DROP DEFAULT", f"ADD CONSTRAINT c{shape.steps} CHECK ({check})",
        "ADD CONSTRAINT few CHECK (u < 5000)", "DROP CONSTRAINT few", "DROP CONSTRAINT IF EXISTS few",
        "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", "SET TBLPROPERTIES ('some.key' = 'said')",
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", "UNSET TBLPROPERTIES ('some.key')",
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "UNSET TBLPROPERTIES IF EXISTS ('no.key')",
        "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')", f"CLUSTER BY ({name})", "CLUSTER BY NONE",
        "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')", "ALTER COLUMN st.b COMMENT 'deep'",
        "ADD COLUMNS (st.c INT)", f"ALTER COLUMN {name} DROP DEFAULT", "ALTER COLUMN always SYNC IDENTITY",
        "ADD COLUMNS (ms.value.c DATE FIRST)", "RENAME COLUMN ns.x.y TO yy", "DROP COLUMN ls.element.r",
        "ALTER COLUMN mm.value TYPE BIGINT", "ADD COLUMN arr.element.q INT", f"ALTER COLUMN {name} SET NOT NULL",
    ]))  # fmt: skip


def _maintain(rng: random.Random, shape: Shape) -> Statement:
    part = f" WHERE {quoted(shape.partition_by[0])} IS NOT NULL" if shape.partition_by and rng.random() < 0.5 else ""
    column = quoted(rng.choice(shape.schema.names))
    return Statement(rng.choice([
        f"OPTIMIZE {TABLE}{part}", f"OPTIMIZE {TABLE} ZORDER BY ({column})", f"REORG TABLE {TABLE} APPLY (PURGE)",
        f"VACUUM {TABLE} RETAIN 168 HOURS DRY RUN", f"TRUNCATE TABLE {TABLE}", f"COMMENT ON TABLE {TABLE} IS 'said'",
    ]))  # fmt: skip


def _beside(rng: random.Random, shape: Shape) -> Statement:
    """Clones of the table, Parquet files that become a table, and what happens to both; a table that is there."""
    clone = f"{CLONE} SHALLOW CLONE {TABLE}"
    u = rng.randint(0, 9)
    return _at(rng, shape, rng.choice([
        f"CREATE TABLE {clone}", f"CREATE TABLE IF NOT EXISTS {clone}", f"CREATE OR REPLACE TABLE {clone}",
        f"CREATE OR REPLACE TABLE {clone} VERSION AS OF {VERSION}", f"CREATE TABLE {clone} VERSION AS OF {VERSION}",
        f"CREATE TABLE {clone} TBLPROPERTIES ('some.key' = 'said')", f"SELECT * FROM {CLONE}",
        f"SELECT * FROM {CLONE}", f"DELETE FROM {CLONE} WHERE u > {u}", f"DESCRIBE DETAIL {CLONE}",
        f"INSERT INTO {CLONE} SELECT * FROM {TABLE}", f"INSERT INTO {TABLE} SELECT * FROM {CLONE} WHERE u > {u}",
        f"CONVERT TO DELTA {PARQUET} PARTITIONED BY (p STRING)", f"CONVERT TO DELTA {PARQUET}",
        f"SELECT * FROM {CONVERTED}", f"UPDATE {CONVERTED} SET s = 'x', p = 'c' WHERE u > {u}",
        f"CREATE TABLE IF NOT EXISTS {TABLE} (u BIGINT) USING delta", f"CREATE TABLE {TABLE} (u BIGINT) USING delta",
        f"CREATE TABLE IF NOT EXISTS {TABLE} USING delta AS SELECT 1 AS q", f"DESCRIBE DETAIL {CONVERTED}",
        f"INSERT OVERWRITE {CLONE} TABLE {TABLE}", f"OPTIMIZE {CLONE}",
    ]))  # fmt: skip


def _restore(rng: random.Random, shape: Shape) -> Statement:
    text = f"RESTORE TABLE {TABLE} TO VERSION AS OF {VERSION}"
    return Statement(text, restores=rng.randint(-1, shape.steps - 1))


def _define(rng: random.Random, shape: Shape) -> Statement:
    if rng.random() < 0.5:
        return Statement(
            _create(rng, rng.sample(sorted(POOL), 5), f"{rng.choice(['CREATE OR ', ''])}REPLACE TABLE {TABLE}")
        )
    values = ["s.u", *(f"s.{quoted(name)}" for name in shape.source.names if name != "u")]
    listed = ", ".join(f"{value} AS m{i}" if i else value for i, value in enumerate(values))
    return Statement(f"CREATE OR REPLACE TABLE {TABLE} USING delta AS SELECT {listed} FROM {SOURCE} AS s")


def _describe(rng: random.Random, shape: Shape) -> Statement:
    return Statement(rng.choice([f"DESCRIBE HISTORY {TABLE}", f"DESCRIBE DETAIL {TABLE}",
                                 f"DESCRIBE {TABLE}", f"SHOW TBLPROPERTIES {TABLE}"]))  # fmt: skip


def told(texts: Mapping[int, str]) -> str:
    """For a reader who looks for what went wrong."""
    *_, last = texts.values()
    return "\n".join([f"=> {last}", *(f"{number}: {text}" for number, text in texts.items())])
