"""Statements whose rows bring columns, fields and types that the table does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.harness.lake.model import State, Table, moved, with_rows
from tests.harness.lake.statements import told
from tests.harness.lake.tables import TableLake
from tests.harness.lake.values import TYPES, VARIANT, WIDER, compare, leaves, of_source, predicate, quoted
from tests.harness.merges.model import Clause, Predicate, Row, Value
from tests.harness.merges.run import add_clauses


class EvolvingLake(TableLake):
    """With schema evolution."""

    def _evolve(self, table: Table) -> str:
        fields = self._reshaped(table)
        rows = self._rows(fields, self.rng.choice([0, 1, 3]))
        state = table.state.evolved(merged_schema(table.state.schema, fields))
        self._says(f"{[str(f) for f in fields]} {rows}")
        new = self._stored(state, [_fitted(row, fields, state) for row in rows])
        data = pa.Table.from_pylist(rows, pa.schema(fields))
        call = lambda: table.table.append(data, schema_mode="merge", engine=self.engine)  # noqa: E731
        if state.breaks(new):
            return table.expect(call, None)
        return table.expect(call, with_rows(state, [*state.rows, *new]), [("insert", row) for row in new])

    def _merge_evolving(self, table: Table) -> str:
        """The `*` forms, and values for columns that only the source has."""
        rng, before = self.rng, table.state
        fields = self._reshaped(table)
        rows = self._rows(fields, rng.choice([0, 1, 4]))
        numbers = [row["u"] for row in before.rows]
        for row in rows:
            row["u"] = rng.choice(numbers) if numbers and rng.random() < 0.5 else row["u"]
        schema = pa.schema(fields)
        given: list[Clause] = []
        for kind, action in (("matched", "update"), ("not matched", "insert")):
            condition = predicate(rng, leaves(schema, "s."), True, 1) if rng.random() < 0.3 else None
            names = [f.name for f in fields if f.name == "u" or rng.random() < 0.5]
            values = {quoted(n): of_source(n) for n in names} if rng.random() < 0.4 else None
            if rng.random() < 0.8:
                given.append(Clause(kind, action, condition, values))
        if rng.random() < 0.2 or not given:
            condition = predicate(rng, leaves(before.schema, "t."), False, 1)
            given.append(Clause("by source", "delete", condition, None))
        taken = [f for f in fields if any(_takes(clause, f.name) for clause in given)]
        state = before.evolved(merged_schema(before.schema, taken))
        self._says(f"{[str(f) for f in fields]} {rows} {told(given)}")
        # Conditions see a row as it is, values as the table takes it.
        source = [{**row, _FITTED: _fitted(row, taken, state)} for row in rows]
        clauses = [replace(c, values=_values(c, taken, state) if c.action != "delete" else None) for c in given]
        on = Predicate("t.u <=> s.u", lambda t, s: compare("<=>", t and t["u"], s and s["u"]))
        data = pa.Table.from_pylist(rows, schema)
        aliases: dict[str, Any] = {"source_alias": "s", "target_alias": "t"}
        merge = table.table.merge(data, on.sql, **aliases, schema_mode="merge", engine=self.engine)
        return self._merged(table, source, on, clauses, add_clauses(merge, given).execute, state)

    def _reshaped(self, table: Table) -> list[pa.Field]:
        """The columns of a source: some of the table's, some with other fields or a wider type, and new ones."""
        rng, state = self.rng, table.state
        may_widen = table.properties.get("delta.enableTypeWidening") == "true"
        fields = []
        for field in state.given():
            if field.name != "u" and rng.random() < 0.2:
                continue
            data_type = field.type
            places = list(wider_places(data_type)) if may_widen and field.name in free_columns(state) else []
            if places and rng.random() < 0.5:
                *_, data_type = rng.choice(places)
            data_type = self._with_other_fields(data_type)
            fields.append(pa.field(field.name, data_type))
        if rng.random() < 0.5:
            data_type, _ = TYPES[rng.choice([key for key in TYPES if key != "v"])]
            fields.append(pa.field(f"more{next(self.others)}", self._with_other_fields(data_type)))
        rng.shuffle(fields)
        return fields

    def _with_other_fields(self, data_type: pa.DataType) -> pa.DataType:
        if pa.types.is_list(data_type):
            return pa.list_(self._with_other_fields(data_type.value_type))
        if not pa.types.is_struct(data_type) or data_type == VARIANT:
            return data_type
        inner = [f.with_type(self._with_other_fields(f.type)) for f in data_type.fields if self.rng.random() < 0.8]
        if not inner or self.rng.random() < 0.3:
            inner.append(pa.field(f"more{next(self.others)}", pa.int64()))
        self.rng.shuffle(inner)
        return pa.struct(inner)


_FITTED = "#fitted"


def _takes(clause: Clause, name: str) -> bool:
    return clause.action != "delete" and (clause.values is None or quoted(name) in clause.values)


def _values(clause: Clause, taken: list[pa.Field], state: State) -> dict[str, Value]:
    """What a clause assigns, for the model."""
    keeps = clause.values is None and clause.action == "update"
    chosen = [f for f in taken if _takes(clause, f.name)]
    return {quoted(f.name): _beside(f, state.schema.field(f.name).type) if keeps else _given(f) for f in chosen}


def _given(field: pa.Field) -> Value:
    return Value("", lambda t, s: (s or {})[_FITTED][field.name])


def _fitted(row: Row, fields: list[pa.Field], state: State) -> Row:
    """A row of a source in the types of the table."""
    types = {f.name: f.type for f in state.schema}
    return {f.name: moved(row[f.name], f.type, types.get(f.name, f.type)) for f in fields}


def _beside(field: pa.Field, ours: pa.DataType) -> Value:
    """What an update of all columns makes of one: fields that the source lacks stay."""
    given = _given(field)
    return Value("", lambda t, s: _kept(given.of(t, s), (t or {})[field.name], field.type, ours))


def _kept(new: Any, old: Any, theirs: pa.DataType, ours: pa.DataType) -> Any:
    if not _lacks(theirs, ours) or new is old is None:
        return new
    types = {f.name: f.type for f in theirs.fields}
    return {
        f.name: _kept((new or {}).get(f.name), (old or {}).get(f.name), types[f.name], f.type)
        if f.name in types
        else (old or {}).get(f.name)
        for f in ours.fields
    }


def _lacks(theirs: pa.DataType, ours: pa.DataType) -> bool:
    if not pa.types.is_struct(ours):
        return False
    types = {f.name: f.type for f in theirs.fields}
    return any(f.name not in types or _lacks(types[f.name], f.type) for f in ours.fields)


def merged_schema(schema: pa.Schema, fields: list[pa.Field]) -> pa.Schema:
    """The columns of a table that take those of a source: new ones last."""
    return pa.schema(_merged_fields(list(schema), fields))


def _merged_fields(ours: list[pa.Field], theirs: list[pa.Field]) -> list[pa.Field]:
    types = {f.name: f.type for f in theirs}
    names = {f.name for f in ours}
    kept = [f.with_type(_merged_type(f.type, types[f.name])) if f.name in types else f for f in ours]
    return [*kept, *(f for f in theirs if f.name not in names)]


def _merged_type(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(ours):
        return pa.struct(_merged_fields(list(ours.fields), list(theirs.fields)))
    if pa.types.is_list(ours):
        return pa.list_(_merged_type(ours.value_type, theirs.value_type))
    return theirs if WIDER.get(ours) == theirs else ours


def wider_places(data_type: pa.DataType) -> Iterator[tuple[tuple[str, ...], pa.DataType, pa.DataType]]:
    """Where inside a type one can become wider: the path, the wider type there, and the whole type then."""
    if data_type in WIDER:
        yield (), WIDER[data_type], WIDER[data_type]
    elif pa.types.is_list(data_type):
        for path, wide, inner in wider_places(data_type.value_type):
            yield ("element", *path), wide, pa.list_(inner)
    elif pa.types.is_struct(data_type):
        for field in data_type.fields:
            for path, wide, inner in wider_places(field.type):
                fields = [f.with_type(inner) if f == field else f for f in data_type.fields]
                yield (field.name, *path), wide, pa.struct(fields)


def free_columns(state: State) -> list[str]:
    """Columns that nothing else of the table names."""
    used = {"u", *state.partition_by, *state.cluster_by}
    checked = " ".join(check.sql for check in state.checks.values())
    return [n for n in state.schema.names if n not in used and quoted(n) not in checked]
