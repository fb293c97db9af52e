"""Statements, each on the table and on its model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import delta_orch
from delta_orch import DeltaTable
from tests.harness.lake.model import SINCE, Changes, State, Table, with_rows
from tests.harness.lake.values import (
    ODD,
    TYPES,
    VARIANT,
    assignment,
    joined,
    leaves,
    matching,
    of_source,
    predicate,
    quoted,
    random_value,
)  # fmt: skip
from tests.harness.merges.model import Clause, Predicate, Row, SeveralMatches, Value, merged
from tests.harness.merges.run import add_clauses

TABLES = 4
WEIGHTS = {
    "append": 4, "evolve": 2, "merge_evolving": 3, "earlier": 3, "stage": 3, "publish": 3,
    "foreign": 2, "add_files": 2, "follow": 3,
    "overwrite": 1, "redefine": 0.5, "replace_where": 2, "replace_partitions": 1,
    "delete": 3, "update": 4, "merge": 7, "upsert": 2, "replicate": 2, "restore": 2, "clone": 1.5, "recreate": 0.4,
    "optimize": 1.5, "purge": 0.7, "vacuum": 0.5, "checkpoint": 0.7, "compact_log": 0.5, "cleanup": 0.4,
    "add_column": 1, "drop_column": 1, "rename_column": 1, "nested": 1.5, "widen": 1, "set_default": 0.5,
    "toggle": 2, "feature": 1, "constrain": 0.7, "release": 0.7, "cluster": 0.5,
}  # fmt: skip
SWITCHES = ("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.enableRowTracking",
            "delta.enableTypeWidening", "delta.enableInCommitTimestamps")  # fmt: skip


class Lake:
    """Up to four tables, and what a seed does with them on an engine."""

    def __init__(self, seed: int, folder: Path, engine: Any) -> None:
        self.rng, self.folder, self.engine = random.Random(seed), folder, engine
        self.names = {key: ODD.get(key, key) if seed % 2 else key for key in TYPES}
        self.is_odd = bool(seed % 2)
        self.tables: list[Table] = []
        self.numbers, self.others = itertools.count(), itertools.count()
        self.log: list[str] = []

    def step(self) -> tuple[str, Table]:
        """Run the next statement. Returns what became of it, and its table."""
        rng = self.rng
        if not self.tables or (len(self.tables) < TABLES and rng.random() < 0.15):
            table = Table(self.folder / f"t{len(self.tables)}", State(pa.schema([])), self.engine)
            self.log.append(f"{table.path.name}: create")
            told: str = getattr(self, "_convert" if rng.random() < 0.25 and not self.is_odd else "_create")(table)
            self.tables.append(table)
            return told, table
        table = rng.choice(self.tables)
        name = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if not table.state.rows and rng.random() < 0.7:
            name = "append"
        self.log.append(f"{table.path.name}: {name}")
        return getattr(self, "_" + name)(table), table

    def _says(self, text: object) -> None:
        self.log[-1] += f" {text}"

    # Parts of statements

    def _rows(self, fields: list[pa.Field], count: int) -> list[Row]:
        schema = pa.schema(fields)
        rows = [{f.name: random_value(self.rng, f.type) for f in fields} for _ in range(count)]
        for row in rows:
            row["u"] = next(self.numbers)
        return list(pa.Table.from_pylist(rows, schema).to_pylist())

    def _data(self, state: State, most: int = 6) -> tuple[pa.Table, list[Row]]:
        """Rows for a table, and what it stores of them."""
        fields = [f for f in state.given() if f.name not in state.defaults or self.rng.random() < 0.5]
        self.rng.shuffle(fields)
        rows = self._rows(fields, self.rng.choice([0, 1, 3, most]))
        self._says(rows)
        return pa.Table.from_pylist(rows, pa.schema(fields)), self._stored(state, rows)

    def _stored(self, state: State, rows: list[Row]) -> list[Row]:
        stored = [{**state.blank(), **row} for row in rows]
        for row in stored:
            state.settle(row)
        return stored

    def _where(self, state: State, names: tuple[str, ...] | None = None) -> Predicate:
        schema = state.schema if names is None else pa.schema([state.schema.field(name) for name in names])
        found = [leaf for leaf in leaves(schema) if leaf[0].strip("`") not in state.identities]
        where = predicate(self.rng, found)
        self._says(f"WHERE {where.sql}")
        return where

    def _put(
        self,
        table: Table,
        call: Callable[[], Any],
        rows: list[Row],
        new: list[Row],
        changes: Changes,
        state: State | None = None,
    ) -> str:
        """A statement after which the table, of this state, holds `rows`, of which `new` must fit its rules."""
        state = state or table.state
        if state.breaks(new):
            return table.expect(call, None)
        return table.expect(call, with_rows(state, rows), changes)

    # Rows

    def _append(self, table: Table) -> str:
        data, new = self._data(table.state)
        rows = [*table.state.rows, *new]
        changes: Changes = [("insert", row) for row in new]
        return self._put(table, lambda: table.table.append(data, engine=self.engine), rows, new, changes)

    def _overwrite(self, table: Table) -> str:
        return self._replaced(table, lambda row: True)

    def _replace_where(self, table: Table) -> str:
        if table.state.generated:
            return "not here"
        where = self._where(table.state)
        return self._replaced(table, lambda row: where.holds(row, None) is True, replace_where=where.sql)

    def _replace_partitions(self, table: Table) -> str:
        if not table.state.partition_by:
            return "not here"
        return self._replaced(table, None, partition_overwrite_mode="dynamic")

    def _replaced(self, table: Table, goes: Callable[[Row], bool] | None, **options: str) -> str:
        data, new = self._data(table.state)
        if goes is None:
            parts = {self._part(table, row) for row in new}
            goes = lambda row: self._part(table, row) in parts  # noqa: E731
        gone = [row for row in table.state.rows if goes(row)]
        rows = [*(row for row in table.state.rows if not goes(row)), *new]
        changes = [*(("delete", row) for row in gone), *(("insert", row) for row in new)]
        call = lambda: table.table.overwrite(data, engine=self.engine, **options)  # noqa: E731
        if not all(map(goes, new)):
            return table.expect(call, None)
        return self._put(table, call, rows, new, changes)

    @staticmethod
    def _part(table: Table, row: Row) -> str:
        return repr([None if row[name] is None else row[name] for name in table.state.partition_by])

    def _delete(self, table: Table) -> str:
        where = self._where(table.state)
        hit = [row for row in table.state.rows if where.holds(row, None) is True]
        rows = [row for row in table.state.rows if where.holds(row, None) is not True]
        call: Any = lambda: table.table.delete(where.sql, engine=self.engine)  # noqa: E731
        if self.rng.random() < 0.3 and isinstance(table, Table):
            text = f"DELETE FROM t WHERE {where.sql}"
            call = lambda: delta_orch.sql(text, tables={"t": table.table}, engine=self.engine)  # noqa: E731
        return self._put(table, call, rows, [], [("delete", row) for row in hit])

    def _update(self, table: Table) -> str:
        where = self._where(table.state)
        values = self._assignments(table.state, leaves(table.state.schema))
        on = Predicate("true", lambda t, s: True)
        clauses = [Clause("matched", "update", where, values)]
        call = lambda: table.table.update(  # noqa: E731
            {name: value.sql for name, value in values.items()}, where.sql, engine=self.engine
        )
        return self._merged(table, [{}], on, clauses, call)

    def _assignments(
        self, state: State, found: list[Any], is_source: bool = False, goes_deep: bool = True
    ) -> dict[str, Value]:
        rng = self.rng
        found = [leaf for leaf in found if leaf[0].split(".")[-1].strip("`")[:3] not in ("gen", "def", "key")]
        fields = [f for f in state.given() if f.name != "u"]
        values: dict[str, Value] = {}
        for field in rng.sample(fields, rng.randint(1, min(4, len(fields)))):
            path, data_type = quoted(field.name), field.type
            while goes_deep and pa.types.is_struct(data_type) and data_type != VARIANT and rng.random() < 0.8:
                inner = rng.choice(data_type.fields)
                path, data_type = f"{path}.{quoted(inner.name)}", inner.type
            if value := assignment(rng, found, data_type, is_source):
                values[path] = value
        self._says({name: value.sql for name, value in values.items()})
        return values

    def _merged(
        self,
        table: Table,
        source: list[Row],
        on: Predicate,
        clauses: list[Clause],
        call: Any,
        state: State | None = None,
    ) -> str:
        state = state or table.state
        try:
            found = merged(state.rows, source, on.holds, clauses, state.blank)
        except SeveralMatches:
            return table.expect(call, None)
        known = {id(row) for row in state.rows}
        new = [row for row in found.rows if id(row) not in known]
        for row in new:
            row.pop(SINCE, None)
            state.settle(row)
        return self._put(table, call, found.rows, new, found.changes, state)

    def _merge(self, table: Table) -> str:
        schema, source, given = self._source(table)
        state, rng = table.state, self.rng
        t, s = leaves(state.schema, "t."), leaves(schema, "s.")
        pairs = [(a, b) for a in t for b in s if a[1] == b[1] and a[0][2:] == b[0][2:]]
        on = matching(rng, *rng.choice([p for p in pairs if p[0][0] in ("t.`u`", f"t.{quoted(self.names['k'])}")]))
        if rng.random() < 0.4:
            extra = matching(rng, *rng.choice(pairs))
            on = joined("and", on, extra)
        wants = [f for f in state.schema if f.name not in schema.names or schema.field(f.name).type != f.type]
        chosen = {*state.generated, *state.identities}
        takes_all = not chosen & {*schema.names} and all(f.name in chosen for f in wants)
        clauses: list[Clause] = []
        for kind, found, actions in (
            ("matched", s, ("update", "delete")),
            ("not matched", s, ("insert",)),
            ("by source", t, ("update", "delete")),
        ):
            for i in range(count := rng.choice([0, 1, 1, 2])):
                condition = predicate(rng, found, found is s, 1) if i < count - 1 or rng.random() < 0.5 else None
                action = rng.choice(actions)
                values: dict[str, Value] | None = None
                if action != "delete" and not (found is s and takes_all and rng.random() < 0.5):
                    values = self._assignments(state, found, found is s, goes_deep=action == "update")
                    if action == "insert":
                        values["u"] = of_source("u")
                clauses.append(Clause(kind, action, condition, values))
        if not clauses:
            clauses.append(Clause("matched", "delete", None, None))
        self._says(f"ON {on.sql} {told(clauses)}")
        merge = table.table.merge(given, on.sql, source_alias="s", target_alias="t", engine=self.engine)
        return self._merged(table, source, on, clauses, add_clauses(merge, clauses).execute)

    def _source(self, table: Table) -> tuple[pa.Schema, list[Row], Any]:
        """Rows of Arrow, or of a table now or at an older version."""
        other = self.rng.choice(self.tables)
        mark = self.rng.choice(other.marks)
        kind = self.rng.choice(["arrow", "table", "snapshot", "scan"])
        if kind == "arrow":
            fields = list(table.state.given())
            rows = self._rows(fields, self.rng.choice([0, 1, 4]))
            numbers = [row["u"] for row in table.state.rows]
            for row in rows:
                row["u"] = self.rng.choice(numbers) if numbers and self.rng.random() < 0.5 else row["u"]
            self._says(rows)
            return pa.schema(fields), rows, pa.Table.from_pylist(rows, pa.schema(fields))
        version = mark if kind == "snapshot" and mark >= other.kept else other.marks[-1]
        state = other.history[version]
        rows = [{n: row[n] for n in state.schema.names} for row in state.rows]
        self._says(f"{kind} {other.path.name} {version}")
        if kind == "table":
            return state.schema, rows, DeltaTable(other.path)
        snapshot = DeltaTable(other.path).snapshot(version)
        return state.schema, rows, snapshot if kind == "snapshot" else snapshot.scan()


def told(clauses: list[Clause]) -> list[Any]:
    """Clauses as they are given."""

    def given(values: Mapping[str, Value] | None) -> Any:
        return values and {name: value.sql for name, value in values.items()}

    return [(c.kind, c.action, c.condition and c.condition.sql, given(c.values)) for c in clauses]
