"""A predicate as a caller gives it, fitted to a table's columns."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.types import StructType


def resolve_predicate(where: str | Expression, schema: StructType) -> Expression:
    """A predicate as the user gave it, fitted to the table's columns.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: It cannot be read, or does not fit the schema.
    """
    if not isinstance(where, str | Expression):
        raise InvalidExpressionError(
            f"a predicate must be SQL text or an Expression, not {type(where).__name__}",
            remedy="Write it as text in Spark SQL, for example \"day = '2013-01-01'\"",
        )
    expression = parse_expression(where) if isinstance(where, str) else where
    return resolve_expression(expression, schema)


def ensure_partition_predicate(where: Expression, partition_columns: Sequence[str], what: str) -> None:
    """Check that the log alone decides a resolved predicate, for every file exactly.

    Raises:
        InvalidExpressionError: It looks at other columns, or holds text that only an engine can evaluate.
    """
    others = sorted({c.path[0] for c in columns_of(where)} - set(partition_columns))
    if others:
        raise InvalidExpressionError(
            f"{what} uses {', '.join(others)}, which {'is no partition column' if len(others) == 1 else 'are none'}",
            remedy=f"Use only partition columns ({', '.join(partition_columns) or 'this table has none'})",
            columns=others,
        )
    if is_opaque(where):
        raise InvalidExpressionError(
            f"{what} is more than comparisons of partition columns with constants",
            cause="It must be decided from the log, without running an engine",
            remedy="Use comparisons, IN, IS NULL, LIKE 'prefix%', AND, OR and NOT",
        )
