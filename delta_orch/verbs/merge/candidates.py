"""Finds the files of the table that the source can match: turns the keys of the source into a predicate on the
table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delta_orch.engines.base import ComputedColumn, Engine, Measure, Relation
from delta_orch.errors import ConstraintViolationError, InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, IsNull, Literal
from delta_orch.expressions.renaming import NewName, renamed
from delta_orch.expressions.resolve import find_column, resolve_expression
from delta_orch.expressions.tree import any_of, columns_of, conjunction, conjuncts, disjunction, is_opaque
from delta_orch.protocol.arrow_building import python_rows, python_values
from delta_orch.protocol.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    DataType,
    StructType,
    traits_of,
)
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides
from delta_orch.writing.plan import BOUNDS

MOST_EXACT_ROWS = 5_000
"""Up to this number of source rows, files are selected by the keys themselves. Beyond it, by the least and the greatest
key."""
_MOST_PARTITION_VALUES = 1_000


class Equality(NamedTuple):
    """A part of the condition in which a column of the table equals a column of the source. `is_null_safe` for
    `<=>`."""

    target: Column
    source: Column
    data_type: DataType
    is_null_safe: bool


class Candidates(NamedTuple):
    """Conditions for the rows of the table that the source may match. They are computed without reading the table.

    Attributes:
        num_source_rows: The number of rows of the source.
        where: A predicate, resolved against the table. It is true for every row that a source row matches.
        bounds: A part of `where` that is cheap to evaluate and can skip row groups. None if there is no such part.
    """

    num_source_rows: int
    where: Expression
    bounds: Expression | None


def equalities(on: Expression, sides: Sides) -> list[Equality]:
    """Return the equalities of a condition between a column of the table and a column of the source."""
    pairs = []
    for part in conjuncts(on):
        match part:
            case Comparison("=" | "<=>" as op, Column() as left, Column() as right):
                pair = {left.path[0]: left, right.path[0]: right}
                if set(pair) != {TARGET, SOURCE}:
                    continue
                ours, theirs = (Column(pair[side].path[1:]) for side in (TARGET, SOURCE))
                if sides.target.find(ours.path[0]) is None:
                    continue  # The merge adds this column, so no file has it.
                _, data_type = find_column(ours.path, sides.target)
                if data_type is not None:
                    pairs.append(Equality(ours, theirs, data_type, op == "<=>"))
    return pairs


def target_only(on: Expression) -> list[Expression]:
    """Return the parts of a condition that use only columns of the table, resolved against the table."""
    parts = [part for part in conjuncts(on) if columns_of(part) and _sides_of(part) == {TARGET}]
    return [on_target(part) for part in parts]


def on_target(condition: Expression) -> Expression:
    """Return a condition that uses only columns of the table, resolved against the table."""
    return renamed(condition, _without_side)


def knows(schema: StructType, condition: Expression) -> bool:
    """Whether a condition on the table names only columns of `schema`."""
    return all(schema.find(column.path[0]) is not None for column in columns_of(condition))


def find_candidates(
    engine: Engine, source: Relation, on: Expression, sides: Sides, partition_columns: Sequence[str]
) -> Candidates:
    """Read the least and the greatest keys of the source in one pass, and in a second pass the keys themselves if they
    are few."""
    keys = [key for key in equalities(on, sides) if has_exact_bounds(key.data_type)]
    measures = [Measure("rows", "count")]
    for i, key in enumerate(keys):
        measures += [
            Measure(f"least_{i}", "min", key.source),
            Measure(f"greatest_{i}", "max", key.source),
            Measure(f"known_{i}", "count", key.source),
        ]
    facts: dict[str, Any] = python_rows(engine.to_arrow(engine.aggregate(source, [], measures)))[0]
    rows = facts["rows"]
    exact: list[Expression] = []
    bounds: list[Expression] = []
    for i, key in enumerate(keys):
        least, greatest, num_known = (facts[f"{name}_{i}"] for name in ("least", "greatest", "known"))
        may_be_null = key.is_null_safe and num_known < rows
        bound = _between(key, least, greatest, sides.target) if num_known else Literal(False, BOOLEAN)
        if bound is None:
            continue
        bounds.append(_or_null(key, bound) if may_be_null else bound)
        values = _distinct(engine, source, key, rows, partition_columns) if num_known and least != greatest else None
        listed = None if values is None else _listed(key, values, sides.target)
        if listed is not None:
            exact.append(_or_null(key, listed) if may_be_null else listed)
    own = [resolve_expression(part, sides.target) for part in target_only(on) if knows(sides.target, part)]
    cheap = [part for part in own if not is_opaque(part)]
    return Candidates(
        rows, conjunction(*own, *bounds, *exact), conjunction(*cheap, *bounds) if cheap or bounds else None
    )


def has_exact_bounds(data_type: DataType) -> bool:
    """Whether statistics bound all values of the type. They do not bound floats, because they leave out NaN."""
    return traits_of(data_type).has_bounds and data_type not in (FLOAT, DOUBLE)


def _distinct(
    engine: Engine, source: Relation, key: Equality, rows: int, partition_columns: Sequence[str]
) -> list[Any] | None:
    """Return the values of a key. None if they are too many."""
    is_partition = len(key.target.path) == 1 and key.target.path[0] in partition_columns
    if rows > MOST_EXACT_ROWS and not is_partition:
        return None
    limit = _MOST_PARTITION_VALUES if is_partition else MOST_EXACT_ROWS
    groups = engine.aggregate(source, [ComputedColumn("key", key.source)], [Measure("rows", "count")])
    keys = engine.to_arrow(groups, limit=limit + 1).column("key")
    return None if len(keys) > limit else [value for value in python_values(keys) if value is not None]


def _between(key: Equality, least: object, greatest: object, schema: StructType) -> Expression | None:
    if least == greatest:
        return _compared("=", key, least, schema)
    low, high = _compared(">=", key, least, schema), _compared("<=", key, greatest, schema)
    return None if low is None or high is None else conjunction(low, high)


def _listed(key: Equality, values: Sequence[object], schema: StructType) -> Expression | None:
    try:
        return resolve_expression(In(key.target, tuple(map(Literal, values))), schema)
    except InvalidExpressionError:
        return None


def _compared(op: str, key: Equality, value: object, schema: StructType) -> Expression | None:
    """Return the comparison. None if Python cannot express the engine's value."""
    try:
        return resolve_expression(Comparison(op, key.target, Literal(value)), schema)
    except InvalidExpressionError:
        return None


def _or_null(key: Equality, condition: Expression) -> Expression:
    return disjunction(condition, IsNull(key.target))


def _sides_of(part: Expression) -> set[str]:
    return {column.path[0] for column in columns_of(part)}


def _without_side(column: Column) -> NewName:
    # The path begins with the name of the column, as the schema spells it.
    return NewName(2, (column.path[1],))


# Bounds of a merge (`MergeRequest.bounds`): parts of a table. No row may move from one part to another.


def inside_one(bounds: Sequence[Expression], sides: Sides) -> Expression:
    """Return the condition that both rows of a matching pair lie in the same part.

    The write checks that the new row lies in a part, after generated columns are computed. If there is only one part,
    the condition does not depend on the source row.

    Raises:
        InvalidRequestError: There are several parts, and the source lacks a column that the parts depend on.
        InvalidExpressionError, ColumnNotFoundError: A part does not fit the table or the source.
    """
    if len(bounds) == 1:
        return resolve_expression(_of(TARGET, bounds[0]), sides.schema)
    for column in dict.fromkeys(column for part in bounds for column in columns_of(part)):
        if sides.source.find(column.path[0]) is None:
            raise InvalidRequestError(
                f"The rows do not have the column {column.path[0]!r}, which determines their partition",
                cause=f"The merge writes {len(bounds)} partitions, and no row may move between them",
                remedy="Add the column to the rows, or run one partition at a time",
                column=column.path[0],
            )
    together = any_of(bounds)
    if isinstance(together, In) and len(together.values) == len(bounds):
        # If each part has one value, such as a day, the condition stays short for many parts.
        equal = Comparison("=", Column((TARGET, *_path(together))), Column((SOURCE, *_path(together))))
        return resolve_expression(conjunction(_of(TARGET, together), equal), sides.schema)
    pairs = (conjunction(_of(TARGET, part), _of(SOURCE, part)) for part in bounds)
    return resolve_expression(disjunction(*pairs), sides.schema)


def moved_row(keys: Sequence[dict[str, object]]) -> ConstraintViolationError:
    """Return the error for rows that a merge would move from one part to another.

    Args:
        keys: The keys of such rows, at least one.
    """
    return ConstraintViolationError(
        "The merge would move rows out of another partition",
        cause=f"Rows with the same keys are in a different partition than the new rows: {'; '.join(map(str, keys))}",
        remedy="If keys are unique only within a partition, add the partition column to the merge keys. If rows may "
        "move, merge without partitions. The table is unchanged",
        constraint=BOUNDS,
        rows=list(keys),
    )


def _path(condition: In) -> tuple[str, ...]:
    (column,) = columns_of(condition)
    return column.path


def _of(side: str, part: Expression) -> Expression:
    return renamed(part, lambda _: NewName(0, (side,)))
