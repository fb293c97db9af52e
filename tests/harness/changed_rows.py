"""DELETE and UPDATE in plain Python, beside a table: rows, change feed, row ids and commit versions must agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable, literal
from delta_orch.expressions.nodes import Expression

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("x", pa.float64()),
        ("st", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])),
        ("odd name", pa.int32()),
        ("list", pa.list_(pa.int32())),
    ]
)
PLAIN_NAMES = pa.schema([field.with_name(field.name.replace(" ", "_")) for field in SCHEMA])


@dataclass(frozen=True)
class Predicate:
    """`holds` gives True, False or None, as SQL does."""

    sql: str | None
    holds: Callable[[Row], bool | None]


def _compared(row: Row, name: str, test: Callable[[Any], bool]) -> bool | None:
    return None if row[name] is None else test(row[name])


def _more(value: float, other: float) -> bool:
    return math.isnan(value) or value > other


PREDICATES = (
    Predicate(None, lambda r: True),
    Predicate("false", lambda r: False),
    Predicate("id % 3 = 1", lambda r: r["id"] % 3 == 1),
    Predicate("id BETWEEN 4 AND 9", lambda r: 4 <= r["id"] <= 9),
    Predicate("part = 'a'", lambda r: _compared(r, "part", lambda v: v == "a")),
    Predicate("part IS NULL", lambda r: r["part"] is None),
    Predicate("NOT (part = 'a') OR id = 2", lambda r: (r["part"] not in ("a", None)) or r["id"] == 2),
    Predicate("x > 1", lambda r: _compared(r, "x", lambda v: _more(v, 1))),
    Predicate("x <= 1", lambda r: _compared(r, "x", lambda v: not _more(v, 1))),
    Predicate("st.a = 2 AND x IS NOT NULL", lambda r: bool(r["st"]) and r["st"]["a"] == 2 and r["x"] is not None),
    Predicate("st IS NULL", lambda r: r["st"] is None),
    Predicate("id < 0", lambda r: r["id"] < 0),
)


@dataclass(frozen=True)
class Change:
    """Assignments, and what they make of a row."""

    set: Mapping[str, str | Expression]
    apply: Callable[[Row], Row]


def _with(row: Row, **values: Any) -> Row:
    return {**row, **values}


def _st(row: Row) -> Row:
    return dict(row["st"]) if row["st"] else {"a": None, "b": None}


CHANGES = (
    Change({"id": "id + 100"}, lambda r: _with(r, id=r["id"] + 100)),
    Change({"part": literal("b c%/ü"), "x": "x"}, lambda r: _with(r, part="b c%/ü")),
    Change({"part": "NULL"}, lambda r: _with(r, part=None)),
    Change({"st.a": "CAST(id AS INT)"}, lambda r: _with(r, st=_with(_st(r), a=r["id"]))),
    Change({"st.b.c": "'deep'", "st.a": "7"}, lambda r: _with(r, st={"a": 7, "b": {"c": "deep"}})),
    Change({"x": literal(float("nan"))}, lambda r: _with(r, x=float("nan"))),
    Change({"x": "id"}, lambda r: _with(r, x=float(r["id"]))),
    Change({"X": "NULL", "ST": "NULL"}, lambda r: _with(r, x=None, st=None)),
    Change({"part": "CAST(id AS STRING)", "id": "id * 2"}, lambda r: _with(r, part=str(r["id"]), id=r["id"] * 2)),
)


def plain(row: Row) -> Any:
    """A row that can be compared and counted: NaN equals itself."""
    return repr(sorted(row.items(), key=lambda item: item[0]))


@dataclass
class Model:
    """A table, and what is in it.

    Attributes:
        engine: What statements run on.
        rows: In no order, each with its row id and commit version where the table tracks rows.
    """

    table: DeltaTable
    engine: Any
    tracks: bool
    tells: bool
    rows: list[Row] = field(default_factory=list)

    def load(self) -> None:
        """Take over what the table holds."""
        self.rows = self._read()

    def delete(self, where: Predicate) -> None:
        hit = [r for r in self.rows if where.holds(r) is True]
        result = self.table.delete(where.sql, engine=self.engine)
        assert result.skipped == (not hit)
        told = [("delete", r) for r in hit]
        self.rows = [r for r in self.rows if where.holds(r) is not True]
        self._check(result, told)
        if hit:
            assert result.operation_metrics["numDeletedRows"] == len(hit)

    def update(self, change: Change, where: Predicate) -> None:
        hit = [r for r in self.rows if where.holds(r) is True]
        result = self.table.update(change.set, where.sql, engine=self.engine)
        assert result.skipped == (not hit)
        new = [change.apply(r) | ({"row_commit_version": result.version} if self.tracks else {}) for r in hit]
        self.rows = [r for r in self.rows if where.holds(r) is not True] + new
        self._check(result, [("update_preimage", r) for r in hit] + [("update_postimage", r) for r in new])
        if hit:
            assert result.operation_metrics["numUpdatedRows"] == len(hit)

    def _check(self, result: Any, told: Sequence[tuple[str, Row]]) -> None:
        found, wanted = (sorted(map(plain, rows)) for rows in (self._read(), self.rows))
        assert found == wanted, [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]]
        if result.skipped or not self.tells:
            return
        feed = self.table.changes(starting_version=result.version).to_arrow().to_pylist()
        was_told = [(r["_change_type"], plain({k: v for k, v in r.items() if not k.startswith("_")})) for r in feed]
        to_tell = [(kind, plain({k: v for k, v in r.items() if k not in _TRACKED})) for kind, r in told]
        assert sorted(was_told) == sorted(to_tell)

    def _read(self) -> list[Row]:
        scan = DeltaTable(self.table.uri).snapshot().scan(row_tracking=self.tracks)
        found: list[Row] = scan.to_arrow().to_pylist()
        return found


_TRACKED = ("row_id", "row_commit_version")
