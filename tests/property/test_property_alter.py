"""Any sequence of alterations between writes: schema and rows must equal a plain model, fresh and advanced."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import StructField, StructType, fields_of
from delta_orch.table.column_mapping import field_id, physical_name

NAMES = ["a", "B", "c d", "e.f", "ä"]
WIDER = {"byte": "short", "short": "integer", "integer": "long", "float": "double"}
TYPES = ["byte", "integer", "float", "string", "array<integer>", "struct<x:integer,y:string>"]
names = st.sampled_from(NAMES)


class Column:
    """A column of the model: its values follow it whatever it is called."""

    numbers = count()

    def __init__(self, name: str, data_type: str, nullable: bool = True) -> None:
        self.name, self.data_type, self.nullable = name, data_type, nullable
        self.number = next(Column.numbers)

    def value(self, n: int) -> Any:
        match self.data_type:
            case "string":
                return f"v{n}"
            case "float" | "double":
                return n / 2
            case "array<integer>":
                return [n, None]
            case "struct<x:integer,y:string>":
                return {"x": n, "y": None if n % 2 else f"y{n}"}
        return n


class Alterations(RuleBasedStateMachine):
    @initialize(mapped=st.booleans(), partitioned=st.booleans(), interval=st.sampled_from(["2", "100"]))
    def create(self, mapped: bool, partitioned: bool, interval: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.table = DeltaTable(self.folder / "t")
        self.mapped, self.narrow = mapped, False
        properties = {"delta.checkpointInterval": interval, "delta.enableTypeWidening": "true"}
        if mapped:
            properties["delta.columnMapping.mode"] = "name"
        self.partition = Column("day", "string") if partitioned else None
        self.id = Column("id", "integer")
        self.columns = [self.id, *([self.partition] if self.partition else [])]
        self.rows: list[dict[int, Any]] = []
        self.properties: dict[str, str] = {}
        self.has_constraint = False
        self.table.create(self.arrow_schema(), partition_by=["day"] if partitioned else None, properties=properties)
        self.version = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # The model

    def arrow_schema(self) -> pa.Schema:
        return schema_to_arrow(
            StructType(tuple(StructField(c.name, parse_declared_type(c.data_type)[0]) for c in self.columns))
        )

    def find(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)

    def data(self, numbers: Sequence[int | None]) -> tuple[pa.Table, list[dict[int, Any]]]:
        rows = []
        for n in numbers:
            rows.append({c.number: None if n is None and c.nullable else c.value(n or 0) for c in self.columns})
        listed = [{c.name: row[c.number] for c in self.columns} for row in rows]
        return pa.Table.from_pylist(listed, self.arrow_schema()), rows

    def committed(self, result: Any) -> None:
        assert not result.skipped
        self.version += 1
        assert result.version == self.version

    def written(self, result: Any, changed: Sequence[Any] | bool) -> None:
        """A write that changes no row and no column commits nothing."""
        if changed:
            self.committed(result)
        else:
            assert result.skipped and result.version == self.version

    def refused(self, alteration: Any, *errors: type[Exception]) -> None:
        with pytest.raises(errors or InvalidRequestError):
            alteration.commit()

    # Rows

    @rule(numbers=st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=4))
    def append(self, numbers: list[int | None]) -> None:
        data, rows = self.data(numbers)
        if self.has_constraint and any(row[self.id.number] is None for row in rows):
            with pytest.raises(ConstraintViolationError):
                self.table.append(data)
            return
        self.written(self.table.append(data), rows)
        self.rows += rows

    @rule(number=st.integers(0, 20), name=names, data_type=st.sampled_from(TYPES))
    def append_with_a_new_column(self, number: int, name: str, data_type: str) -> None:
        if self.find(name) is not None or (not self.mapped and " " in name):
            return
        self.columns.append(Column(name, data_type))
        data, rows = self.data([number])
        self.committed(self.table.append(data, schema_mode="merge"))
        self.rows += rows

    @rule(numbers=st.lists(st.integers(0, 20), max_size=3))
    def overwrite(self, numbers: list[int]) -> None:
        data, rows = self.data(numbers)
        self.written(self.table.overwrite(data), self.rows or rows)
        self.rows = rows

    @rule(numbers=st.lists(st.integers(0, 20), max_size=3), kept=st.sets(names), name=names)
    def overwrite_with_other_columns(self, numbers: list[int], kept: set[str], name: str) -> None:
        if not self.mapped and " " in name:
            return
        before = self.columns
        self.columns = [c for c in self.columns if c.name in kept or c is self.partition or c is self.id]
        if self.find(name) is None:  # A column that keeps its name and type stays what it was.
            same = (c for c in before if (c.name, c.data_type) == (name, "string"))
            self.columns.append(next(same, Column(name, "string")))
        data, rows = self.data(numbers)
        has_other_columns = self.columns != before
        self.written(self.table.overwrite(data, schema_mode="overwrite"), has_other_columns or self.rows or rows)
        self.rows = rows

    @rule()
    def optimize(self) -> None:
        self.version += not self.table.optimize().skipped

    # Columns

    @rule(name=names, data_type=st.sampled_from(TYPES), first=st.booleans())
    def add(self, name: str, data_type: str, first: bool) -> None:
        alteration = self.table.alter().add_column((name,), data_type, first=first)
        if self.find(name) is not None or (not self.mapped and " " in name):
            self.refused(alteration)
            return
        self.committed(alteration.commit())
        self.columns.insert(0 if first else len(self.columns), Column(name, data_type))

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        column = self.find(old)
        if column is None or column.name == new:
            return
        alteration = self.table.alter().rename_column((column.name,), new)
        if not self.mapped or self.find(new) not in (None, column):
            self.refused(alteration)
            return
        self.committed(alteration.commit())
        column.name = new

    @rule(name=names)
    def drop(self, name: str) -> None:
        column = self.find(name)
        if column is None:
            return
        alteration = self.table.alter().drop_columns((column.name,))
        if not self.mapped or column is self.partition:
            self.refused(alteration)
            return
        self.committed(alteration.commit())
        self.columns.remove(column)

    @rule(name=names, after=names)
    def move(self, name: str, after: str) -> None:
        column, sibling = self.find(name), self.find(after)
        if column is None or sibling is None or column is sibling:
            return
        result = self.table.alter().move_column((column.name,), after=sibling.name).commit()
        self.version += not result.skipped
        self.columns.remove(column)
        self.columns.insert(self.columns.index(sibling) + 1, column)

    @rule(name=st.sampled_from([*NAMES, "id"]))
    def widen(self, name: str) -> None:
        column = self.find(name)
        if column is None or column.data_type not in WIDER:
            return
        alteration = self.table.alter().change_type((column.name,), WIDER[column.data_type])
        if self.narrow or (self.has_constraint and column is self.id):
            self.refused(alteration, InvalidRequestError, UnsupportedFeatureError)
            return
        self.committed(alteration.commit())
        column.data_type = WIDER[column.data_type]

    @rule(name=st.sampled_from([*NAMES, "id", "day"]))
    def set_not_null(self, name: str) -> None:
        column = self.find(name)
        if column is None or not column.nullable:
            return
        alteration = self.table.alter().set_not_null((column.name,))
        if any(row.get(column.number) is None for row in self.rows):
            self.refused(alteration, ConstraintViolationError)
            return
        self.committed(alteration.commit())
        column.nullable = False

    @rule(name=st.sampled_from([*NAMES, "id", "day"]))
    def drop_not_null(self, name: str) -> None:
        column = self.find(name)
        if column is not None and not column.nullable:
            self.committed(self.table.alter().drop_not_null((column.name,)).commit())
            column.nullable = True

    # Everything else

    @precondition(lambda self: not self.has_constraint)
    @rule(limit=st.integers(0, 20))
    def constrain(self, limit: int) -> None:
        alteration = self.table.alter().add_constraint("c", f"id >= {limit}")
        values = [row[self.id.number] for row in self.rows]
        if any(v is None or v < limit for v in values):
            self.refused(alteration, ConstraintViolationError)
            return
        self.committed(alteration.commit())
        self.table.alter().drop_constraint("c").add_constraint("c", "id >= 0").commit()
        self.version += limit != 0
        self.has_constraint = True

    @precondition(lambda self: self.has_constraint)
    @rule()
    def release(self) -> None:
        self.committed(self.table.alter().drop_constraint("C").commit())
        self.has_constraint = False

    @precondition(lambda self: not self.mapped)
    @rule()
    def map_columns(self) -> None:
        self.committed(self.table.alter().set_properties({"delta.columnMapping.mode": "name"}).commit())
        self.mapped = True

    @precondition(lambda self: self.mapped)
    @rule(also_types=st.booleans())
    def unmap_columns(self, also_types: bool) -> None:
        alteration = self.table.alter().drop_feature("columnMapping")
        if also_types and not self.narrow:
            alteration.drop_feature("typeWidening")
        if any(" " in c.name for c in self.columns):
            self.refused(alteration)
            return
        self.committed(alteration.commit())
        self.mapped, self.narrow = False, self.narrow or also_types

    @precondition(lambda self: not self.narrow)
    @rule()
    def end_widening(self) -> None:
        self.committed(self.table.alter().drop_feature("typeWidening").commit())
        self.narrow = True
        assert not any("delta.typeChanges" in f.metadata for f in fields_of(self.table.snapshot().schema))

    @precondition(lambda self: self.narrow)
    @rule()
    def begin_widening(self) -> None:
        self.committed(self.table.alter().set_properties({"delta.enableTypeWidening": "true"}).commit())
        self.narrow = False

    @rule(key=st.sampled_from(["x", "y"]), value=st.sampled_from(["1", "2", None]))
    def properties_change(self, key: str, value: str | None) -> None:
        alteration = self.table.alter()
        if value is None:
            alteration.unset_properties(key, if_exists=True)
        else:
            alteration.set_properties({key: value})
        assert alteration.commit().skipped == (self.properties.get(key) == value)
        self.version += self.properties.get(key) != value
        if value is None:
            self.properties.pop(key, None)
        else:
            self.properties[key] = value

    @rule()
    def features(self) -> None:
        self.version += not self.table.alter().add_feature("domainMetadata").commit().skipped

    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    # What must hold

    @invariant()
    def schema_and_rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "version"):
            return
        expected = Counter(repr({c.name: row.get(c.number) for c in self.columns}) for row in self.rows)
        advanced, fresh = self.table.snapshot(), DeltaTable(self.folder / "t").snapshot()
        assert (advanced.version, fresh.version) == (self.version, self.version)
        for snapshot in (advanced, fresh):
            schema = snapshot.schema
            assert [(f.name, str(f.data_type), f.nullable) for f in schema] == [
                (c.name, str(parse_declared_type(c.data_type)[0]), c.nullable) for c in self.columns
            ]
            assert Counter(map(repr, snapshot.scan().to_arrow().to_pylist())) == expected
        assert {k: v for k, v in fresh.metadata.configuration.items() if "." not in k} == self.properties
        if self.mapped:
            numbers = [field_id(f) for f in fields_of(fresh.schema)]
            assert len(set(numbers)) == len(numbers)
            assert len({physical_name(f) for f in fresh.schema}) == len(fresh.schema)
            assert max(n for n in numbers if n) <= int(fresh.metadata.configuration["delta.columnMapping.maxColumnId"])


TestAlterations = Alterations.TestCase
TestAlterations.settings = settings(max_examples=3, stateful_step_count=20, deadline=None)
