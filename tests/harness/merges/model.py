"""MERGE in plain Python: what Delta on Spark makes of a table, a source and clauses, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta_orch.protocol.schema_edit import parse_path
from delta_orch.protocol.types import StructType

Row = dict[str, Any]
Condition = Callable[[Row | None, Row | None], bool | None]
"""Of a row of the table and one of the source, None where there is none; None for null."""


class SeveralMatches(Exception):
    """A row of the table is matched by several source rows."""


@dataclass(frozen=True)
class Predicate:
    """A predicate in SQL and in Python."""

    sql: str
    holds: Condition


@dataclass(frozen=True)
class Value:
    """A value in SQL and in Python."""

    sql: str
    of: Callable[[Row | None, Row | None], Any]


@dataclass(frozen=True)
class Clause:
    """`values` None is a `*` form; its keys are columns, or `st.a` for a field."""

    kind: str
    action: str
    condition: Predicate | None
    values: Mapping[str, Value] | None


@dataclass
class Merged:
    """The table afterwards, what changed, as the change data feed tells it, and which rows were updated: (old, new)."""

    rows: list[Row]
    changes: list[tuple[str, Row]]
    updated: list[tuple[Row, Row]]


def merged(
    target: Sequence[Row],
    source: Sequence[Row],
    on: Condition,
    clauses: Sequence[Clause],
    blank: Callable[[], Row] | None = None,
) -> Merged:
    """Raises SeveralMatches. `blank` makes an inserted row before anything is assigned; by default it is all null."""
    by_kind = {kind: [c for c in clauses if c.kind == kind] for kind in ("matched", "not matched", "by source")}
    matches = [[s for s in source if on(t, s) is True] for t in target]
    _ensure_single(matches, by_kind)
    result = Merged([], [], [])
    for t, found in zip(target, matches, strict=True):
        pairs = [(_first(by_kind["matched"], t, s), s) for s in found]
        chosen: tuple[Clause | None, Row | None] = next(((c, s) for c, s in pairs if c is not None), (None, None))
        if not found:
            chosen = (_first(by_kind["by source"], t, None), None)
        _change(result, t, *chosen)
    for s in source:
        if any(on(t, s) is True for t in target):
            continue
        clause = _first(by_kind["not matched"], None, s)
        if clause is not None:
            empty = dict.fromkeys(target_columns(target, s)) if blank is None else blank()
            new = _assigned(clause, empty, None, s)
            result.rows.append(new)
            result.changes.append(("insert", new))
    return result


def target_columns(target: Sequence[Row], source: Row) -> list[str]:
    """The table's columns: those of its rows, and of the source where it has none."""
    return list(target[0] if target else COLUMNS)


COLUMNS = ("u", "id", "p", "v", "st")


def _ensure_single(matches: Sequence[Sequence[Row]], by_kind: Mapping[str, list[Clause]]) -> None:
    matched = by_kind["matched"]
    if not matched and not by_kind["by source"]:
        return
    if len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None:
        return
    if any(len(found) > 1 for found in matches):
        raise SeveralMatches


def _first(clauses: Sequence[Clause], t: Row | None, s: Row | None) -> Clause | None:
    return next((c for c in clauses if c.condition is None or c.condition.holds(t, s) is True), None)


def _change(result: Merged, t: Row, clause: Clause | None, s: Row | None) -> None:
    if clause is None:
        result.rows.append(t)
    elif clause.action == "delete":
        result.changes.append(("delete", t))
    else:
        new = _assigned(clause, t, t, s)
        result.rows.append(new)
        result.updated.append((t, new))
        result.changes += [("update_preimage", t), ("update_postimage", new)]


def _assigned(clause: Clause, base: Row, t: Row | None, s: Row | None) -> Row:
    new = dict(base)
    if clause.values is None:
        assert s is not None
        return {**new, **{name: s[name] for name in new if name in s}}
    for name, value in clause.values.items():
        top, *fields = parse_path(name, StructType(()))
        given = value.of(t, s)
        new[top] = _placed(new[top] or {"a": None, "b": None}, fields, given) if fields else given
    return new


def _placed(outer: Row | None, path: Sequence[str], given: Any) -> Any:
    """A struct in which a field, at any depth, has another value. A struct that is null is one of nulls then."""
    if not path:
        return given
    return {**(outer or {}), path[0]: _placed((outer or {}).get(path[0]), path[1:], given)}
