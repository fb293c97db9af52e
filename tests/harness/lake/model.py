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
from delta_orch.errors import ConstraintViolationError
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
            if pa.types.is_struct(field_.type) and row[field_.name] is not None:
                row[field_.name] = {f.name: row[field_.name].get(f.name) for f in field_.type.fields}
        for name, value in self.generated.items():
            row[name] = value.of(row, None)

    def breaks(self, rows: Iterable[Row]) -> bool:
        return any(check.holds(row, None) is not True for row in rows for check in self.checks.values())

    def bag(self, rows: Iterable[Row]) -> Bag:
        return bag(pa.Table.from_pylist([{n: row[n] for n in self.schema.names} for row in rows], self.schema))


def bag(rows: pa.Table) -> Bag:
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
            self.history[number], self.changes[number] = state, [] if number < version else changes
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


def _chosen(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def ensure_same(what: str, found: Bag, expected: Bag) -> None:
    if found != expected:
        more, less = ("\n    ".join(map(", ".join, rows)) for rows in (found - expected, expected - found))
        raise Wrong(f"{what} differ\n  more:\n    {more}\n  missing:\n    {less}")


def with_rows(state: State, rows: Iterable[Row]) -> State:
    return replace(state, rows=tuple(rows))
