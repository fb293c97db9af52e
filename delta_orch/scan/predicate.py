"""The `where` of a scan: Spark SQL, an `Expression`, or an expression of pyarrow."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.predicates import resolve_predicate
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class ScanPredicate:
    """Rows for which both are true are wanted.

    Attributes:
        where: Resolved; the planner uses it to leave out files, every engine to leave out rows.
        arrow_filter: What has no counterpart in `where`: leaves out rows, in Python.
    """

    where: Expression | None = None
    arrow_filter: pc.Expression | None = None


def resolve_scan_predicate(where: Any, schema: StructType) -> ScanPredicate:
    """A predicate as the user gave it, fitted to the table's columns.

    An expression of pyarrow keeps pyarrow's meaning (NaN is equal to nothing, `isin` is false for null). What of it has
    a counterpart in Spark SQL prunes files and runs on every engine; otherwise it filters rows as it stands.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: It cannot be read, or does not fit the schema.
    """
    if where is None:
        return ScanPredicate()
    if not is_arrow_expression(where):
        return ScanPredicate(resolve_predicate(where, schema))
    from delta_orch.expressions.from_arrow import translate_arrow_expression

    translated = translate_arrow_expression(where, schema)
    return ScanPredicate(translated.where, None if translated.is_complete else where)


def is_arrow_expression(value: Any) -> bool:
    """Whether this is an expression of pyarrow. Imports nothing: it cannot be one before pyarrow is there."""
    module = sys.modules.get("pyarrow.compute")
    return module is not None and isinstance(value, module.Expression)
