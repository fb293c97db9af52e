"""Keys of an upsert identify a row: of the rows that it inserts, and to the next upsert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delta_orch.engines.base import ComputedColumn, Engine, Measure, Relation, as_they_are
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal, Not
from delta_orch.expressions.renaming import renamed
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import any_of
from delta_orch.protocol.types import BINARY, LONG, STRING, StructField
from delta_orch.verbs.merge.classification import Classified
from delta_orch.verbs.merge.sides import SOURCE, Sides
from delta_orch.writing.assignments import assigned_column

_MOST_SHOWN = 5


def key_fields(names: Sequence[str], sides: Sides) -> list[tuple[StructField, StructField]]:
    """The keys as columns of the table and of the source, each once."""
    pairs = ((sides.target.find(name), sides.source.find(name)) for name in dict.fromkeys(map(str.lower, names)))
    return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]


def ensure_unique(
    engine: Engine,
    new_rows: Relation,
    classified: Classified,
    keys: Sequence[tuple[StructField, StructField]],
    partition_columns: Sequence[str],
) -> None:
    """No two new rows have the same keys as the table stores them, and each has the keys that it came with.

    Raises ConstraintViolationError.
    """
    names = [ours.name for ours, _ in keys]
    stored: list[ComputedColumn] = []
    came: list[ComputedColumn] = []
    kept: list[Expression] = []
    for ours, theirs in keys:
        value = renamed(Column((SOURCE, theirs.name)), classified.name_of)
        if ours.name in partition_columns and ours.data_type in (STRING, BINARY):
            # The log has one text for it and for null.
            empty = Literal("" if ours.data_type == STRING else b"", ours.data_type)
            kept.append(Not(Comparison("<=>", Column((ours.name,)), empty)))
        if theirs.data_type == ours.data_type:
            stored.append(ComputedColumn(ours.name, value))
            continue
        place = (ours.name,)
        stored.append(ComputedColumn(ours.name, assigned_column(ours, {place: (value, theirs.data_type)}, place)))
        came.append(ComputedColumn(free_name(f"_delta_orch_given_{len(came)}", names), value))
        kept.append(Comparison("<=>", Column((came[-1].name,)), Column((ours.name,))))
    rows = engine.project(new_rows, [*stored, *came])
    shown = as_they_are(names)
    if kept:
        schema = engine.schema(rows)
        changed: Expression = any_of([Not(resolve_expression(same, schema)) for same in kept])
        if found := engine.to_arrow(engine.project(engine.filter(rows, changed), shown), limit=_MOST_SHOWN).to_pylist():
            raise ConstraintViolationError(
                "Keys of new rows change when they are stored",
                cause=f"The next upsert would not find the rows {'; '.join(map(str, found))} again",
                remedy="Bring the keys in the types of the table; an empty text in a partition column is null",
                constraint="cardinality",
                rows=found,
            )
    count = free_name("_delta_orch_rows", names)
    groups = engine.aggregate(rows, shown, [Measure(count, "count")])
    repeated = engine.filter(groups, Comparison(">", Column((count,)), Literal(1, LONG)))
    if found := engine.to_arrow(engine.project(repeated, shown), limit=_MOST_SHOWN).to_pylist():
        raise same_keys(found)


def same_keys(shown: Sequence[Mapping[str, object]]) -> ConstraintViolationError:
    """The error for new rows that agree in their keys, some of which are shown."""
    return ConstraintViolationError(
        "New rows have the same keys",
        cause=f"More than one of them has {'; '.join(map(str, shown))}, and a key names one row",
        remedy="Leave one row of each key in the source, for example the newest",
        constraint="cardinality",
        rows=shown,
    )
