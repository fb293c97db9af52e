"""The `where` of a scan, given as Spark SQL, an `Expression` or an expression of pyarrow, and what it leaves out."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa
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


def resolve_scan_predicate(where: object, schema: StructType) -> ScanPredicate:
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


def is_arrow_expression(value: object) -> bool:
    """Whether this is an expression of pyarrow. Imports nothing: it cannot be one before pyarrow is there."""
    module = sys.modules.get("pyarrow.compute")
    return module is not None and isinstance(value, module.Expression)


_REMEMBERED = 4
"""A query asks once for each of its parts, and a user runs the same query again."""


class SnapshotPruning:
    """`ScanPlan.prune` of a snapshot's scans. In another process it is None: the log is not sent along."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._answers: dict[Expression, pa.Table] = {}

    def __call__(self, where: Expression) -> pa.Table:
        """The `path` of each file that may hold rows for which `where` is true. Raises as `Snapshot.files`."""
        with self._lock:
            answer = self._answers.pop(where, None)
            if answer is None:
                answer = self._snapshot.files(["path"], where)
            self._answers[where] = answer
            while len(self._answers) > _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            return answer

    def __reduce__(self) -> tuple[object, ...]:
        return (_nothing, ())


def _nothing() -> None:
    return None
