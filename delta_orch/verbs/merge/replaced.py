"""Rows of the table that a source row matches leave, and every source row comes in: what `replace_matched` does.

A source row is in the join twice. As the row that comes in it matches nothing. As what the condition looks at it
matches, once for all source rows that are alike in that, and is never inserted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta_orch.engines.base import ComputedColumn, Engine, Relation, as_they_are
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.protocol.types import BOOLEAN, VARIANT, DecimalType, PrimitiveType
from delta_orch.verbs.merge.clauses import Action, Clause
from delta_orch.verbs.merge.sides import SOURCE

_COMES_IN = "_delta_orch_comes_in"
_TRUE, _FALSE = Literal(True, BOOLEAN), Literal(False, BOOLEAN)


def coming_in(engine: Engine, source: Relation) -> Relation:
    """The source, its rows marked as those that come in."""
    return engine.project(source, [*as_they_are(engine.schema(source).names), ComputedColumn(_COMES_IN, _TRUE)])


def with_keys(engine: Engine, source: Relation, on: Expression) -> Relation:
    """Marked rows, and beside them each combination of the values that the condition looks at."""
    schema = engine.schema(source)
    looked_at = {column.path[1] for column in columns_of(on) if column.path[0] == SOURCE} - {_COMES_IN}
    fields = [field for field in schema if field.name in looked_at]
    groups = source
    # What repeats costs time alone, and not every engine has groups of all types.
    if all(isinstance(f.data_type, PrimitiveType | DecimalType) and f.data_type != VARIANT for f in fields):
        # The mark is a key, too: without rows there is no combination.
        groups = engine.aggregate(source, as_they_are([_COMES_IN, *(field.name for field in fields)]), [])
    keys = [
        ComputedColumn(field.name, Column((field.name,)) if field.name in looked_at else Literal(None, field.data_type))
        for field in schema
        if field.name != _COMES_IN
    ]
    return engine.union([source, engine.project(groups, [*keys, ComputedColumn(_COMES_IN, _FALSE)])])


def matching_keys(on: Expression) -> Expression:
    """The condition, for the combinations alone."""
    return conjunction(on, Comparison("=", Column((SOURCE, _COMES_IN)), _FALSE))


def with_marks(clauses: Sequence[Clause], source_alias: str) -> list[Clause]:
    """The clauses of `replace_matched`, over marked rows."""
    inserted = Comparison("=", Column((source_alias, _COMES_IN)), _TRUE)
    return [
        replace(clause, condition=inserted, except_columns=(_COMES_IN,)) if clause.action is Action.INSERT else clause
        for clause in clauses
    ]
