"""Rows of the table that a source row matches leave, and every source row comes in: what `replace_matched` does.

A source row is in the join twice. As the row that comes in it matches nothing. As what the condition looks at it
matches, once for all source rows that are alike in that, and is never inserted. A column of the source, the mark, says
which of both a row is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta_orch.engines.base import ComputedColumn, Engine, Relation, as_they_are
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.protocol.types import BOOLEAN, VARIANT, DecimalType, PrimitiveType, StructField, StructType
from delta_orch.verbs.merge.assignments import ResolvedClause
from delta_orch.verbs.merge.clauses import Action
from delta_orch.verbs.merge.sides import SOURCE, Sides

_TRUE, _FALSE = Literal(True, BOOLEAN), Literal(False, BOOLEAN)


def marked(
    engine: Engine, source: Relation, sides: Sides, on: Expression, clauses: Sequence[ResolvedClause]
) -> tuple[Relation, Sides, Expression, list[ResolvedClause], str]:
    """All of it with the mark, the last column of the source, whose name comes at the end: rows are those that come in,
    the condition is for what it looks at alone."""
    mark = free_name("_delta_orch_comes_in", sides.source.names)
    rows = engine.project(source, [*as_they_are(sides.source.names), ComputedColumn(mark, _TRUE)])
    comes_in, matches = (Comparison("=", Column((SOURCE, mark)), value) for value in (_TRUE, _FALSE))
    inserting = [replace(c, condition=comes_in) if c.action is Action.INSERT else c for c in clauses]
    sides = replace(sides, source=StructType((*sides.source, StructField(mark, BOOLEAN))))
    return rows, sides, conjunction(on, matches), inserting, mark


def with_keys(engine: Engine, source: Relation, on: Expression, mark: str) -> Relation:
    """Marked rows, and beside them each combination of the values that the condition looks at."""
    schema = engine.schema(source)
    looked_at = {column.path[1] for column in columns_of(on) if column.path[0] == SOURCE} - {mark}
    fields = [field for field in schema if field.name in looked_at]
    groups = source
    # What repeats costs time alone, and not every engine has groups of all types.
    if all(isinstance(f.data_type, PrimitiveType | DecimalType) and f.data_type != VARIANT for f in fields):
        # The mark is a key, too: without rows there is no combination.
        groups = engine.aggregate(source, as_they_are([mark, *(field.name for field in fields)]), [])
    keys = [
        ComputedColumn(field.name, Column((field.name,)) if field.name in looked_at else Literal(None, field.data_type))
        for field in schema
        if field.name != mark
    ]
    return engine.union([source, engine.project(groups, [*keys, ComputedColumn(mark, _FALSE)])])
