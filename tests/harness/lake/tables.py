"""Statements that make a table of nothing, of files or of another one, and that bring rows from one to another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch import DeltaTable, column, identity_column
from tests.harness.lake.checks import check_table
from tests.harness.lake.model import SINCE, TOKEN, State, Table, with_rows
from tests.harness.lake.statements import SWITCHES, Lake
from tests.harness.lake.values import TYPES, VARIANT, compare, definition, is_nested, of_source, quoted
from tests.harness.merges.model import Clause, Predicate, Row, Value
from tests.harness.merges.run import add_clauses

PROPERTIES = (("delta.checkpointPolicy", "v2"), ("delta.checkpointInterval", "3"), ("delta.checkpointInterval", "2"),
              ("delta.dataSkippingNumIndexedCols", "2"), ("delta.checkpoint.writeStatsAsJson", "false"),
              ("delta.checkpoint.writeStatsAsStruct", "true"), ("delta.targetFileSize", "1kb"),
              ("delta_orch.clusterOnWrite", "true"), ("delta.randomizeFilePrefixes", "true"),
              ("delta.enableVariantShredding", "true"), ("delta.autoOptimize.autoCompact", "true"),
              ("delta.autoOptimize.optimizeWrite", "true"))  # fmt: skip


class TableLake(Lake):
    """With statements that make tables."""

    def _definition(self) -> tuple[State, list[Any], dict[str, str]]:
        rng, number = self.rng, len(self.tables)
        keys = ["k", *rng.sample([k for k in TYPES if k != "k"], rng.randint(2, 9))]
        fields = [pa.field("u", pa.int64()), *(pa.field(self.names[k], TYPES[k][0]) for k in keys)]
        columns: list[Any] = [column(f.name, definition(f.type)) for f in fields]
        state = State(pa.schema(fields))
        if rng.random() < 0.25:
            name = f"gen{number}"
            columns.append(column(name, "bigint", generated_as="u * 2 + 1"))
            fields.append(pa.field(name, pa.int64()))
            state.generated[name] = Value("u * 2 + 1", lambda t, s: t["u"] * 2 + 1 if t else None)
        if rng.random() < 0.25:
            name = f"def{number}"
            columns.append(column(name, "string", default="'it''s'"))
            fields.append(pa.field(name, pa.string()))
            state.defaults[name] = Value("", lambda t, s: "it's")
        identities = (f"key{number}",) if rng.random() < 0.2 else ()
        for name in identities:
            columns.append(identity_column(name, start=rng.choice([1, -5]), step=rng.choice([1, 3, -2])))
            fields.append(pa.field(name, pa.int64()))
        flat = [f.name for f in fields[1:] if not is_nested(f.type) and f.name not in identities]
        flat = [n for n in flat if n not in (*state.generated, self.names["bin"])]
        laid_out = rng.choice(["no", "no", "parts", "parts", "clustered"])
        by = [n for n in flat if not pa.types.is_boolean(pa.schema(fields).field(n).type)]
        state = replace(
            state,
            schema=pa.schema(fields),
            identities=identities,
            partition_by=tuple(rng.sample(flat, rng.randint(1, 2))) if laid_out == "parts" and len(flat) > 2 else (),
            cluster_by=tuple(rng.sample(by, 1)) if laid_out == "clustered" else (),
        )
        properties = {name: "true" for name in SWITCHES if rng.random() < 0.45}
        if self.is_odd or rng.random() < 0.3:
            properties["delta.columnMapping.mode"] = rng.choice(["name", "id"])
        for name, value in PROPERTIES:
            if rng.random() < 0.15 and not (state.cluster_by and "Skipping" in name):
                properties[name] = value
        self._says(f"{[str(f) for f in fields]} {state.partition_by} {state.cluster_by} {properties}")
        return state, columns, properties

    def _create(self, table: Table) -> str:
        state, columns, properties = self._definition()
        options = {"partition_by": list(state.partition_by) or None, "cluster_by": list(state.cluster_by) or None}
        return table.expect(lambda: table.table.create(columns, properties=properties, **options), state, [])

    def _convert(self, table: Table) -> str:
        """Parquet files of another writer become a table, in directories of a partition column where there is one."""
        state, _, properties = self._definition()
        mode = properties.pop("delta.columnMapping.mode", None)
        parts = ("z",) if "z" in state.schema.names else ()
        state = State(
            pa.schema([f for f in state.schema if f.name in (*self.names.values(), "u") and f.type != VARIANT]), parts
        )
        rows: list[Row] = []
        for value in self.rng.sample(["a", "b", None], self.rng.randint(1, 3)):
            new = self._rows(list(state.schema), self.rng.choice([1, 4]))
            path = table.path / (f"z={value or '__HIVE_DEFAULT_PARTITION__'}" if parts else "x y") / f"{value}%.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            data = pa.Table.from_pylist(new, state.schema)
            pq.write_table(data.drop_columns(list(parts)), path)
            rows += [{**row, **dict.fromkeys(parts, value)} for row in new]
        self._says(rows)
        last = [name for name in state.schema.names if name not in parts] + list(parts)
        state = with_rows(replace(state, schema=pa.schema([state.schema.field(name) for name in last])), rows)
        partition_schema = {"z": "string"} if parts else None
        call = lambda: DeltaTable.convert(table.path, partition_schema, properties=properties)  # noqa: E731
        told = table.expect(call, state)
        if mode:
            call = lambda: table.table.alter().set_properties({"delta.columnMapping.mode": "name"}).commit()  # noqa: E731
            told = table.expect(call, state, [])
        return told

    def _recreate(self, table: Table) -> str:
        """Another definition in the place of the table."""
        state, columns, properties = self._definition()
        options = {"partition_by": list(state.partition_by) or None, "cluster_by": list(state.cluster_by) or None}
        call = lambda: table.table.create_or_replace(columns, properties=properties, **options)  # noqa: E731
        return table.expect(call, state)

    def _clone(self, source: Table) -> str:
        target = self.rng.choice(self.tables)
        mark, shallow = self.rng.choice(source.marks), self.rng.random() < 0.5
        if target is source:
            return "not here"
        version = mark if self.rng.random() < 0.5 and mark >= source.kept else source.marks[-1]
        self._says(f"to {target.path.name} of {version} {shallow}")
        state = source.history[version]
        rows = [{k: v for k, v in row.items() if k not in (TOKEN, SINCE)} for row in state.rows]
        call = lambda: source.table.clone(target.path, shallow, version, replace=True)  # noqa: E731
        target.roots |= source.roots | ({source.path} if shallow else set())
        told = target.expect(call, with_rows(state, rows))
        check_table(target, self.rng)
        return told

    def _restore(self, table: Table) -> str:
        version = self.rng.choice(table.marks)
        if version == table.marks[-1] or version < table.kept:
            return "not here"
        self._says(version)
        table.ids.clear()
        return table.expect(lambda: table.table.restore(version), table.history[version])

    # From table to table

    def _upsert(self, table: Table) -> str:
        state = table.state
        fields = list(state.given())
        rows = self._rows(fields, self.rng.choice([0, 1, 4]))
        key = self.rng.choice(["u", self.names["k"]])
        if key in state.partition_by or key not in state.schema.names:
            return "not here"
        numbers = [row["u"] for row in state.rows]
        for row in rows:
            row["u"] = self.rng.choice(numbers) if numbers and key == "u" else row["u"]
        self._says(f"{key} {rows}")
        data = pa.Table.from_pylist(rows, pa.schema(fields))
        call = lambda: table.table.upsert(data, [key], engine=self.engine)  # noqa: E731
        if len({row[key] for row in rows}) < len(rows):
            return table.expect(call, None)
        on = Predicate("", lambda t, s: compare("<=>", t and t[key], s and s[key]))
        clauses = [Clause("matched", "update", None, None), Clause("not matched", "insert", None, None)]
        return self._merged(table, rows, on, clauses, call)

    def _replicate(self, table: Table) -> str:
        """What the feed of one table told last becomes rows of another."""
        origin = self.rng.choice(self.tables)
        end, share = origin.marks[-1], self.rng.random()
        start = max(1, origin.kept + 1, end - int(share * 6))
        states = [origin.history[v] for v in range(start - 1, end + 1)]
        told = [origin.changes[v] for v in range(start, end + 1)]
        is_known = origin is not table and start <= end and all(c is not None for c in told)
        if not is_known or any(s.schema != states[-1].schema or repeats(s) for s in states):
            return "not here"
        schema = states[-1].schema
        blank = dict.fromkeys(schema.names)
        keys = {row["u"] for changes in told for _, row in changes or ()}
        there: dict[int, Row] = {row["u"]: row for row in states[-1].rows}
        source = [
            {**there[u], "_change_type": "insert"} if u in there else {**blank, "u": u, "_change_type": "delete"}
            for u in sorted(keys)
        ]
        taken = [f.name for f in table.state.given() if f in [*schema] and f.name != "u"]
        taken_values = {quoted(n): of_source(n) for n in ["u", *taken]}
        is_gone = Predicate("s._change_type = 'delete'", lambda t, s: (s or {})["_change_type"] == "delete")
        is_there = Predicate("s._change_type <> 'delete'", lambda t, s: (s or {})["_change_type"] != "delete")
        clauses = [
            Clause("matched", "delete", is_gone, None),
            Clause("matched", "update", None, taken_values),
            Clause("not matched", "insert", is_there, taken_values),
        ]
        self._says(f"from {origin.path.name} {start} to {end}, {taken}")
        feed = origin.table.changes(starting_version=start, ending_version=end).latest(["u"])
        merge = table.table.merge(feed, "t.u <=> s.u", source_alias="s", target_alias="t", engine=self.engine)
        on = Predicate("", lambda t, s: compare("<=>", t and t["u"], s and s["u"]))
        return self._merged(table, source, on, clauses, add_clauses(merge, clauses).execute)


def repeats(state: State) -> bool:
    return len({row["u"] for row in state.rows}) < len(state.rows)
