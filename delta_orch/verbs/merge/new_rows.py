"""Rows as the clauses of a merge make them: each in the types of the table, with its address and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delta_orch.engines.base import ComputedColumn, Engine, JoinSide, Relation
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.expressions.renaming import renamed
from delta_orch.protocol.types import BOOLEAN, INTEGER, LONG, STRING, DataType, StructField, StructType
from delta_orch.verbs.merge.assignments import Path, ResolvedClause
from delta_orch.verbs.merge.classification import CLAUSE, Classified
from delta_orch.verbs.merge.clauses import Action
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides
from delta_orch.writing.assignments import assigned_column, ensure_value_fits
from delta_orch.writing.row_changes import ADDRESS, RowChanges

Types = Mapping[tuple[int, Path], DataType]
"""Of what type the value is that a clause assigns, before it is cast."""

_KINDS = {Action.DELETE: "delete", Action.UPDATE: "update", Action.INSERT: "insert"}


def value_types(
    engine: Engine,
    target: Relation,
    source: Relation,
    clauses: Sequence[ResolvedClause],
    sides: Sides,
    *,
    evolves: bool,
) -> Types:
    """The types of all values, which only the engine knows; each fits its column.

    Raises:
        SchemaMismatchError: One does not.
        UnsupportedExpressionError: The engine does not evaluate a condition or a value.
    """
    places = [(clause, path, value) for clause in clauses for path, value in clause.values.items() if value is not None]
    conditions = [clause.condition for clause in clauses if clause.condition is not None]
    columns = [ComputedColumn(f"value {i}", value) for i, (_, _, value) in enumerate(places)]
    columns += [ComputedColumn(f"condition {i}", condition) for i, condition in enumerate(conditions)]
    if not columns:
        return {}
    joined = engine.join(JoinSide(TARGET, target), JoinSide(SOURCE, source), Literal(True, BOOLEAN), "inner", columns)
    types: dict[tuple[int, Path], DataType] = {}
    for field, (clause, path, value) in zip(engine.schema(joined), places, strict=False):
        ensure_value_fits(value, field.data_type, path, sides.target, fill_nulls=evolves)
        types[clause.number, path] = field.data_type
    return types


def clause_rows(
    engine: Engine,
    classified: Classified,
    clauses: Sequence[ResolvedClause],
    types: Types,
    schema: StructType,
    changes: RowChanges,
    keys: Mapping[str, Column],
) -> Relation:
    """What the clauses make of their rows, as `RowChanges.apply` takes it.

    Args:
        clauses: At least one.
        keys: Further columns, by their names, that tell the user which row an error is about.
    """
    with_values = any(clause.action is not Action.DELETE for clause in clauses)
    columns = StructType(tuple(StructField(f.name, f.data_type) for f in schema)) if with_values else StructType(())
    address = tuple(StructField(name, LONG) for name in changes.address_columns)
    shown = {label: renamed(key, classified.name_of) for label, key in keys.items()}
    computed = [ComputedColumn(label, value) for label, value in shown.items()]
    parts = [
        _rows_of(engine, classified, clause, types, columns, changes.address_columns, computed) for clause in clauses
    ]
    known = engine.schema(parts[0])
    labels = tuple(StructField(label, found.data_type) for label in shown if (found := known.find(label)) is not None)
    shape = StructType((*columns, *address, StructField(ADDRESS.kind, STRING), *labels))
    return engine.union([engine.conform(part, shape) for part in parts])


def _rows_of(
    engine: Engine,
    classified: Classified,
    clause: ResolvedClause,
    types: Types,
    schema: StructType,
    address_columns: Sequence[str],
    keys: Sequence[ComputedColumn],
) -> Relation:
    rows = engine.filter(classified.rows, Comparison("=", Column((CLAUSE,)), Literal(clause.number, INTEGER)))
    computed = [] if clause.action is Action.DELETE else _values(classified, clause, types, schema)
    if clause.action is not Action.INSERT:
        computed += [ComputedColumn(name, Column((name,))) for name in address_columns]
    computed.append(ComputedColumn(ADDRESS.kind, Literal(_KINDS[clause.action], STRING)))
    return engine.project(rows, [*computed, *keys])


def _values(classified: Classified, clause: ResolvedClause, types: Types, schema: StructType) -> list[ComputedColumn]:
    by_place = {
        path: (renamed(value, classified.name_of), types[clause.number, path])
        for path, value in clause.values.items()
        if value is not None
    }
    assigned = clause.columns
    computed = []
    have = set(classified.columns)
    for field in schema:
        was = Column((TARGET, field.name))
        is_kept = clause.action is Action.UPDATE and was in have
        if field.name not in assigned and not is_kept:
            continue
        path = classified.name_of(was).prefix if was in have else (field.name,)
        computed.append(ComputedColumn(field.name, assigned_column(field, by_place, path)))
    return computed
