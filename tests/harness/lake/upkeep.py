"""Statements that keep the rows, or change what a table is."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa

from delta_orch.errors import InvalidRequestError
from tests.harness.lake.evolving import free_columns, wider_places
from tests.harness.lake.model import Table, with_rows
from tests.harness.lake.others import LakeOfMany
from tests.harness.lake.statements import SWITCHES
from tests.harness.lake.values import (
    TYPES,
    VARIANT,
    definition,
    is_nested,
    leaves,
    literal_text,
    pool,
    predicate,
    quoted,
)
from tests.harness.merges.model import Predicate, Row, Value

FEATURES = ("deletionVectors", "columnMapping", "typeWidening", "rowTracking", "changeDataFeed", "v2Checkpoint",
            "inCommitTimestamp", "clustering", "domainMetadata")  # fmt: skip
HALF_A_YEAR_S = 180 * 86_400
NEW_NAMES = ("New One", "ß.new", "x'y", "neu")


class WholeLake(LakeOfMany):
    """With every statement."""

    def _same(self, table: Table, call: Any) -> str:
        return table.expect(call, table.state, [])

    def _optimize(self, table: Table) -> str:
        options: dict[str, Any] = {"target_file_size_bytes": self.rng.choice([None, None, 1])}
        flat = [f.name for f in table.state.schema if f.type in (pa.int64(), pa.string(), pa.timestamp("us", "UTC"))]
        flat = [name for name in flat if name not in table.state.partition_by]
        column = self.rng.choice(flat)
        skips_by_all = "delta.dataSkippingNumIndexedCols" not in table.properties
        if self.rng.random() < 0.4 and not table.state.cluster_by and skips_by_all:
            options["zorder_by"] = [quoted(column)]
        elif self.rng.random() < 0.5 and table.state.cluster_by:
            options["full"] = True
        self._says(options)
        return self._same(table, lambda: table.table.optimize(engine=self.engine, **options))

    def _purge(self, table: Table) -> str:
        return self._same(table, lambda: table.table.purge(engine=self.engine))

    def _vacuum(self, table: Table) -> str:
        if any(table.path in other.roots for other in self.tables):
            return "not here"
        told = self._same(table, lambda: table.table.vacuum(0, enforce_retention=False))
        table.kept = table.marks[-1]
        return told

    def _checkpoint(self, table: Table) -> str:
        v2 = self.rng.choice(["json", "parquet"])
        return self._same(table, lambda: table.table.checkpoint(v2_format=v2))

    def _compact_log(self, table: Table) -> str:
        start, end = table.kept, table.marks[-1]
        return self._same(table, lambda: table.table.compact_log(start, end)) if start < end else "not here"

    def _cleanup(self, table: Table) -> str:
        then = time.time() - HALF_A_YEAR_S
        for file in (table.path / "_delta_log").rglob("*"):
            if file.is_file():
                os.utime(file, (then, then))
        told = self._same(table, table.table.cleanup_log)
        table.kept = table.marks[-1]
        return told

    # What a table is

    def _altered(self, table: Table, change: Any, **parts: Any) -> str:
        """`parts` are those of its state that change."""
        call = lambda: change(table.table.alter()).commit(engine=self.engine)  # noqa: E731
        return table.expect(call, replace(table.state, **parts), [])

    def _add_column(self, table: Table) -> str:
        taken = {name.lower() for name in table.state.schema.names}
        mapped = "delta.columnMapping.mode" in table.properties
        found = [k for k in TYPES if self.names[k].lower() not in taken]
        if not found or (self.is_odd and not mapped):
            return "not here"
        key = self.rng.choice(found)
        name, data_type = self.names[key], TYPES[key][0]
        self._says(name)
        rows = [{**row, name: None} for row in table.state.rows]
        schema = table.state.schema.append(pa.field(name, data_type))
        return self._altered(
            table, lambda a: a.add_column((name,), definition(data_type)), schema=schema, rows=tuple(rows)
        )

    def _drop_column(self, table: Table) -> str:
        names = [n for n in free_columns(table.state) if n != self.names["k"]]
        if not names or "delta.columnMapping.mode" not in table.properties:
            return "not here"
        name, state = self.rng.choice(names), table.state
        self._says(name)
        return self._altered(
            table,
            lambda a: a.drop_columns((name,)),
            schema=pa.schema([f for f in state.schema if f.name != name]),
            rows=tuple({k: v for k, v in row.items() if k != name} for row in state.rows),
            generated={k: v for k, v in state.generated.items() if k != name},
            defaults={k: v for k, v in state.defaults.items() if k != name},
            identities=tuple(k for k in state.identities if k != name),
        )

    def _rename_column(self, table: Table) -> str:
        names = [n for n in free_columns(table.state) if n in self.names.values() and n != self.names["k"]]
        laid_out = (*table.state.partition_by, *table.state.cluster_by)
        names += [n for n in laid_out if not table.state.checks and n not in table.state.generated]
        new = self.rng.choice(NEW_NAMES)
        if not names or "delta.columnMapping.mode" not in table.properties or new in table.state.schema.names:
            return "not here"
        old, state = self.rng.choice(names), table.state
        self._says(f"{old} to {new}")
        renamed = lambda names: tuple(new if n == old else n for n in names)  # noqa: E731
        return self._altered(
            table,
            lambda a: a.rename_column((old,), new),
            schema=pa.schema([f.with_name(new) if f.name == old else f for f in state.schema]),
            rows=tuple({new if k == old else k: v for k, v in row.items()} for row in state.rows),
            partition_by=renamed(state.partition_by),
            cluster_by=renamed(state.cluster_by),
            defaults={new if k == old else k: v for k, v in state.defaults.items()},
        )

    def _nested(self, table: Table) -> str:
        """A field of a struct comes, goes, or gets another name."""
        state = table.state
        found = [f for f in state.schema if pa.types.is_struct(f.type) and f.name in free_columns(state)]
        found = [f for f in found if f.type != VARIANT]
        kind = self.rng.choice(["add", "drop", "rename"])
        if not found or (kind != "add" and "delta.columnMapping.mode" not in table.properties):
            return "not here"
        field = self.rng.choice(found)
        inner = list(field.type.fields)
        chosen = self.rng.choice(inner)
        kind = "rename" if kind == "drop" and len(inner) == 1 else kind
        new = f"f{next(self.others)}"
        self._says(f"{kind} {field.name}.{chosen.name} {new}")
        if kind == "add":
            inner.append(pa.field(new, pa.int64()))
            call: Any = lambda a: a.add_column((field.name, new), pa.int64())  # noqa: E731
        elif kind == "drop":
            inner.remove(chosen)
            call = lambda a: a.drop_columns((field.name, chosen.name))  # noqa: E731
        else:
            inner[inner.index(chosen)] = chosen.with_name(new)
            call = lambda a: a.rename_column((field.name, chosen.name), new)  # noqa: E731
        old = {new: chosen.name} if kind == "rename" else {}

        def moved(value: Row | None) -> Row | None:
            return value and {f.name: value.get(old.get(f.name, f.name)) for f in inner}

        kind_of = pa.struct(inner)
        return self._altered(
            table,
            call,
            schema=pa.schema([f.with_type(kind_of) if f.name == field.name else f for f in state.schema]),
            rows=tuple({**row, field.name: moved(row[field.name])} for row in state.rows),
        )

    def _redefine(self, table: Table) -> str:
        """All rows and columns are replaced, but for those that others of the table need."""
        state = table.state
        if state.checks or state.generated or state.identities or state.cluster_by or state.defaults:
            return "not here"
        name = f"other{next(self.others)}"
        kept = [
            f for f in state.schema if f.name in ("u", self.names["k"], *state.partition_by) or self.rng.random() < 0.5
        ]
        state = replace(state, schema=pa.schema([*kept, pa.field(name, pa.string())]), rows=())
        data, new = self._data(state)
        state = replace(state, schema=pa.schema(data.schema))
        call = lambda: table.table.overwrite(data, schema_mode="overwrite", engine=self.engine)  # noqa: E731
        return table.expect(call, with_rows(state, new))

    def _widen(self, table: Table) -> str:
        """A column, or a part of one, gets a wider type."""
        state = table.state
        fields = [f for f in state.schema if f.name in free_columns(state)]
        found = [(f, *place) for f in fields for place in wider_places(f.type)]
        if not found or table.properties.get("delta.enableTypeWidening") != "true":
            return "not here"
        field, path, wide, data_type = self.rng.choice(found)
        self._says(f"{field.name} {path} {wide}")
        state = state.evolved(pa.schema([f.with_type(data_type) if f == field else f for f in state.schema]))
        change = lambda a: a.change_type((field.name, *path), wide)  # noqa: E731
        return self._altered(table, change, schema=state.schema, rows=state.rows)

    def _toggle(self, table: Table) -> str:
        name, value = self.rng.choice(SWITCHES), self.rng.choice(["true", "true", "false"])
        self._says(f"{name} {value}")
        return self._altered(table, lambda a: a.set_properties({name: value}))

    def _feature(self, table: Table) -> str:
        name, adds = self.rng.choice(FEATURES), self.rng.random() < 0.4
        self._says(f"{name} {adds}")
        try:
            return self._altered(table, lambda a: a.add_feature(name) if adds else a.drop_feature(name))
        except InvalidRequestError as error:
            return self._same(table, lambda: None) + f" {type(error).__name__}"

    def _constrain(self, table: Table) -> str:
        number = next(self.others)
        found = leaves(pa.schema([f for f in table.state.schema if f.name not in table.state.identities]))
        where = predicate(self.rng, found, depth=1)
        text = f"coalesce({where.sql}, true) OR u % 4 > 0"
        holds: Any = lambda t, s: where.holds(t, s) is not False or t["u"] % 4 > 0  # noqa: E731
        check = Predicate(text, holds)
        self._says(text)
        call = lambda: table.table.alter().add_constraint(f"c{number}", text).commit(engine=self.engine)  # noqa: E731
        if any(not holds(row, None) for row in table.state.rows):
            return table.expect(call, None)
        return table.expect(call, replace(table.state, checks={**table.state.checks, f"c{number}": check}), [])

    def _release(self, table: Table) -> str:
        if not table.state.checks:
            return "not here"
        name, *_ = table.state.checks
        checks = {k: v for k, v in table.state.checks.items() if k != name}
        return self._altered(table, lambda a: a.drop_constraint(name), checks=checks)

    def _set_default(self, table: Table) -> str:
        fields = [f for f in table.state.given() if f.name != "u" and not is_nested(f.type)]
        field = self.rng.choice(fields)
        value = self.rng.choice(pool(field.type))
        text = literal_text(value, field.type)
        self._says(f"{field.name} {text}")
        defaults = {**table.state.defaults, field.name: Value(text, lambda t, s: value)}
        return self._altered(table, lambda a: a.set_default((field.name,), text), defaults=defaults)

    def _cluster(self, table: Table) -> str:
        state = table.state
        names = [f.name for f in state.schema if f.type in (pa.int64(), pa.string(), pa.date32())]
        name = self.rng.choice(names)
        by = () if state.cluster_by else (name,)
        if state.partition_by or "delta.dataSkippingNumIndexedCols" in table.properties:
            return "not here"
        self._says(by)
        return self._altered(table, lambda a: a.cluster_by(*((n,) for n in by)), cluster_by=by)
