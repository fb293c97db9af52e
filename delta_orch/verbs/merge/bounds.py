"""Bounds of a merge (`MergeRequest.bounds`): parts of a table between which no row moves."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.errors import ConstraintViolationError, InvalidRequestError
from delta_orch.expressions.nodes import Column, Comparison, Expression, In
from delta_orch.expressions.renaming import NewName, renamed
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import any_of, columns_of, conjunction, disjunction
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides
from delta_orch.writing.plan import BOUNDS


def inside_one(bounds: Sequence[Expression], sides: Sides) -> Expression:
    """A condition on a pair of rows that match: both lie in the same part.

    That the new row lies in a part is checked where it is written, when generated columns have their values. So one
    part says nothing of the source row.

    Raises:
        InvalidRequestError: There are several parts, and the source lacks a column that tells them apart.
        InvalidExpressionError, ColumnNotFoundError: A part does not fit the table or the source.
    """
    if len(bounds) == 1:
        return resolve_expression(_of(TARGET, bounds[0]), sides.schema)
    for column in dict.fromkeys(column for part in bounds for column in columns_of(part)):
        if sides.source.find(column.path[0]) is None:
            raise InvalidRequestError(
                f"The rows do not have the column {column.path[0]!r}, which tells their partitions apart",
                cause=f"The merge is about {len(bounds)} partitions, and no row may move between them",
                remedy="Add the column to the rows, or run one partition at a time",
                column=column.path[0],
            )
    together = any_of(bounds)
    if isinstance(together, In) and len(together.values) == len(bounds):
        # One value a part, as days mostly are: a year of them stays a short condition.
        equal = Comparison("=", Column((TARGET, *_path(together))), Column((SOURCE, *_path(together))))
        return resolve_expression(conjunction(_of(TARGET, together), equal), sides.schema)
    pairs = (conjunction(_of(TARGET, part), _of(SOURCE, part)) for part in bounds)
    return resolve_expression(disjunction(*pairs), sides.schema)


def moved_row(keys: Sequence[dict[str, object]]) -> ConstraintViolationError:
    """The error for rows that a merge would move from one part to another.

    Args:
        keys: Of such rows, at least one.
    """
    return ConstraintViolationError(
        "The merge would move rows out of another partition",
        cause=f"Rows with the same keys lie in another partition than the new ones: {'; '.join(map(str, keys))}",
        remedy="Add the partition column to the merge keys if a row is identified within its partition. Merge without "
        "partitions if rows move. The table is unchanged",
        constraint=BOUNDS,
        rows=list(keys),
    )


def _path(condition: In) -> tuple[str, ...]:
    (column,) = columns_of(condition)
    return column.path


def _of(side: str, part: Expression) -> Expression:
    return renamed(part, lambda _: NewName(0, (side,)))
