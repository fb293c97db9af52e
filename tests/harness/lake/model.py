"""A table beside what it must hold: rows, versions, changes and row ids."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.errors import ConflictError, ConstraintViolationError, StagedWriteGoneError
from delta_orch.variant import variant_to_json
from tests.harness.lake.values import VARIANT
from tests.harness.merges.model import Predicate, Row, Value

TOKEN, SINCE, LEARNED = "#", "#since", object()
"""What a row of the model has besides: which row it is, the version that gave it its values, and what it has where the
table chooses the value."""
Changes = list[tuple[str, Row]]
Bag = Counter[tuple[str, ...]]
_TOKENS = itertools.count()


class Wrong(AssertionError):
    """The table does not do what the model does."""


@dataclass(frozen=True)
class State:
    """A version of a table. `generated` and `defaults` by column; `identities` are columns."""

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    checks: dict[str, Predicate] = field(default_factory=dict)
    generated: dict[str, Value] = field(default_factory=dict)
    defaults: dict[str, Value] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()

    def given(self) -> list[pa.Field]:
        """The columns that the table does not fill by itself."""
        return [f for f in self.schema if f.name not in self.generated and f.name not in self.identities]

    def blank(self) -> Row:
        """A new row to which nothing is assigned."""
        chosen = {name: value.of(None, None) for name, value in self.defaults.items()}
        return {name: chosen.get(name, LEARNED if name in self.identities else None) for name in self.schema.names}

    def settle(self, row: Row) -> None:
        """Make of a new or updated row what the table stores."""
        for name in self.partition_by:
            row[name] = row[name] if row[name] not in ("", b"") else None
        for field_ in self.schema:
            row[field_.name] = shaped(row[field_.name], field_.type)
        for name, value in self.generated.items():
            row[name] = value.of(row, None)

    def breaks(self, rows: Iterable[Row]) -> bool:
        return any(check.holds(row, None) is not True for row in rows for check in self.checks.values())

    def evolved(self, schema: pa.Schema) -> State:
        """With more columns and fields, or wider ones, and the rows that are there."""
        types = {f.name: f.type for f in self.schema}
        rows = tuple(
            {**row, **{f.name: moved(row[f.name], types[f.name], f.type) if f.name in types else None for f in schema}}
            for row in self.rows
        )
        return replace(self, schema=schema, rows=rows)

    def bag(self, rows: Iterable[Row]) -> Bag:
        return bag(pa.Table.from_pylist([{n: row[n] for n in self.schema.names} for row in rows], self.schema))


def shaped(value: Any, data_type: pa.DataType) -> Any:
    """A value with the fields of a type, in its order; those that it lacks are null."""
    if value is None or value is LEARNED:
        return value
    if pa.types.is_struct(data_type):
        return {f.name: shaped(value.get(f.name), f.type) for f in data_type.fields}
    if pa.types.is_list(data_type):
        return [shaped(item, data_type.value_type) for item in value]
    return value


def moved(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    """A value of a type as one of a type that has more fields or is wider."""
    if value is None or old == new or pa.types.is_nested(old):
        return shaped(value, new)
    return pa.scalar(value, old).cast(new).as_py()


def bag(rows: pa.Table) -> Bag:
    for place, field_ in enumerate(rows.schema):
        if field_.type == VARIANT:
            rows = rows.set_column(place, field_.name, variant_to_json(rows.column(place)))
    return Counter(tuple(map(repr, row.values())) for row in rows.to_pylist()) if rows.num_columns else Counter()


@dataclass
class Table:
    """`changes` has of each version what the feed must tell, None where only the sum is known. `marks` are the versions
    after each statement. Versions before `kept` may be gone, where vacuum or log cleanup has been. `roots` are the
    places of tables whose files this one may name."""

    path: Path
    state: State
    engine: Any
    history: dict[int, State] = field(default_factory=dict)
    changes: dict[int, Changes | None] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    kept: int = 0
    roots: frozenset[Path] = frozenset()
    ids: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table: Any = DeltaTable(self.path)

    @property
    def properties(self) -> Any:
        return DeltaTable(self.path).snapshot().metadata.configuration

    def _tells(self) -> bool:
        return bool(self.properties.get("delta.enableChangeDataFeed") == "true")

    def expect(self, call: Callable[[], Any], state: State | None, changes: Changes | None = None) -> str:
        """Run a statement. Returns what became of it. `state` is the table afterwards, None where a rule of the table
        or of the statement refuses it."""
        before = self.table.version() if self.history else -1
        tells = not self.history or self._tells()
        if state is None:
            try:
                call()
            except ConstraintViolationError:
                if self.table.version() != before:
                    raise Wrong("A refused statement has committed") from None
                return "refused"
            raise Wrong("A row breaks a rule, and nobody says so")
        call()
        version = DeltaTable(self.path).version()
        if not (tells and self._tells()):
            changes = None
        for row in state.rows:
            row.setdefault(TOKEN, next(_TOKENS))
            row.setdefault(SINCE, version)
        self.state = state
        for number in range(before + 1, version + 1):
            # What follows a write is its upkeep, which changes no row.
            self.history[number], self.changes[number] = state, [] if number > before + 1 else changes
        if version == before:
            self.history[version] = state
        self.marks.append(version)
        return f"{version}"

    def learn(self) -> None:
        """Take over the values that the table chose, each once."""
        for name in self.state.identities:
            new = [row for row in self.state.rows if row[name] is LEARNED]
            if not new:
                continue
            others = [n for n in self.state.schema.names if n not in self.state.identities]
            found: dict[Any, list[Any]] = {}
            known = {row[name] for row in self.state.rows if row[name] is not LEARNED}
            for row in DeltaTable(self.path).snapshot().scan().to_arrow().to_pylist():
                if row[name] is None or row[name] in known:
                    continue
                found.setdefault(repr([row[n] for n in others]), []).append(row[name])
            given = [value for values in found.values() for value in values]
            if len(set(given)) < len(given) or len(given) != len(new):
                raise Wrong(f"identity values {given} of {len(new)} new rows")
            plain = pa.Table.from_pylist([{n: r[n] for n in others} for r in new], _chosen(self.state.schema, others))
            for row, shown in zip(new, plain.to_pylist(), strict=True):
                if not (values := found.get(repr(list(shown.values())))):
                    raise Wrong(f"no identity value for {shown}; found {found}")
                row[name] = values.pop()


class Earlier:
    """A table as of a version, for statements that are worked out there: `table` writes with that `read_version`, or is
    the newest version and stages what it writes. They change the newest version then, or conflict with it."""

    def __init__(self, now: Table, version: int, stages: bool) -> None:
        self.now, self.version, self.state = now, version, now.history[version]
        self.path, self.engine, self.marks = now.path, now.engine, now.marks
        self.table: Any = _Staging(now.table) if stages else DeltaTable(now.path).snapshot(version)
        self.stages = stages
        self.held: tuple[str, State, Changes | None] | None = None

    @property
    def properties(self) -> Any:
        return self.now.properties

    def expect(self, call: Callable[[], Any], state: State | None, changes: Changes | None = None) -> str:
        if state is None:
            return self.now.expect(call, None)
        if not self.stages:
            return self._commit(call, state, changes)
        before = self.now.table.version()
        reference = call().staged
        if self.now.table.version() != before:
            raise Wrong("A staged write has committed")
        if reference is None:
            if state.bag(state.rows) != self.state.bag(self.state.rows):
                raise Wrong("Nothing is staged")
            return "staged nothing"
        if not state.identities:
            found = self.now.table.staged(reference).snapshot().scan().to_arrow()
            ensure_same("staged rows", bag(found), state.bag(state.rows))
        self.held = (reference, state, changes)
        return "staged"

    def publish(self) -> str:
        """Commit what is held, twice."""
        assert self.held
        reference, state, changes = self.held
        told = self._commit(lambda: self.now.table.staged(reference).publish(), state, changes)
        if told.isdigit():
            again = self.now.table.staged(reference).publish()
            if (again.version, self.now.table.version()) != (self.now.marks[-2] + 1, self.now.marks[-1]):
                raise Wrong(f"published as {again.version} again")
        return told

    def _commit(self, call: Callable[[], Any], state: State, changes: Changes | None) -> str:
        now, known = self.now, {id(row) for row in state.rows}
        gone = {_identity(row) for row in self.state.rows} - {_identity(row) for row in state.rows}
        there = {_identity(row) for row in self.state.rows}
        new = [row for row in state.rows if _identity(row) not in there]
        is_lost = not gone <= {_identity(row) for row in now.state.rows}
        is_other = any(
            getattr(now.state, part) != getattr(self.state, part)
            for part in ("schema", "partition_by", "checks", "generated", "defaults")
        )
        assert len(known) == len(state.rows)
        kept = now.state.evolved(state.schema).rows if not is_other else ()
        state = with_rows(state, [*(row for row in kept if _identity(row) not in gone), *new])
        before = now.table.version()
        try:
            told = now.expect(call, replace(state, cluster_by=now.state.cluster_by), changes)
        except (ConflictError, StagedWriteGoneError) as error:
            if now.table.version() != before:
                raise Wrong("A conflict has committed") from None
            return f"conflict {type(error).__name__}"
        if told == f"{before}" and not gone and not new:
            return told
        if is_lost or is_other:
            raise Wrong(f"worked out at {self.version}, it has changed rows or columns that are others now")
        return told


def _identity(row: Row) -> tuple[Any, Any]:
    return row.get(TOKEN, id(row)), row.get(SINCE)


class _Staging:
    """The writing methods of a table, which stage."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._table, name)
        return lambda *given, **options: method(*given, **options, stage=True)


def _chosen(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def ensure_same(what: str, found: Bag, expected: Bag) -> None:
    if found != expected:
        more, less = ("\n    ".join(map(", ".join, rows)) for rows in (found - expected, expected - found))
        raise Wrong(f"{what} differ\n  more:\n    {more}\n  missing:\n    {less}")


def with_rows(state: State, rows: Iterable[Row]) -> State:
    return replace(state, rows=tuple(rows))
