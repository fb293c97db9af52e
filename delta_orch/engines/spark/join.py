"""Joins that keep every row of a small side, as a MERGE that inserts does.

Spark cannot broadcast a side whose rows without a partner it must keep: only the other side's tasks could tell that no
row matched. So it would send all rows of the large side through a shuffle. A semi join can broadcast the small side. It
leaves few rows of the large one, and what they are joined with afterwards is the same.
"""

from __future__ import annotations

from delta_orch.engines.base import JoinKind, JoinSide
from delta_orch.engines.spark.sql_text import bounded_sql
from delta_orch.expressions.nodes import Coerced, Comparison, Expression
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import columns_of, conjuncts

_MOST_BROADCAST_ROWS = 500_000
"""Of these a semi join holds what the condition looks at, some 100 bytes a row."""
_TIMES_LARGER = 4

_KEPT = {"right": 1, "left": 0, "anti": 0}
"""Of which side a join keeps all rows that match nothing, or those alone."""


def joined_sql(left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind) -> str:
    """What comes after FROM for a join of two relations that go by their aliases."""
    sides = [left, right]
    condition = bounded_sql(on)
    tables = [quote_identifier(side.alias) for side in sides]
    if kind in _KEPT and _has_equality(on):
        kept = _KEPT[kind]
        if _is_much_smaller(sides[kept], sides[1 - kept]):
            small, large = tables[kept], tables[1 - kept]
            tables[1 - kept] = (
                f"(SELECT /*+ BROADCAST({small}) */ {large}.* FROM {large} LEFT SEMI JOIN {small} ON {condition})"
                f" AS {large}"
            )
    return f"{tables[0]} {kind.upper()} JOIN {tables[1]} ON {condition}"


def _is_much_smaller(small: JoinSide, large: JoinSide) -> bool:
    if small.num_rows is None or large.num_rows is None or small.num_rows > _MOST_BROADCAST_ROWS:
        return False
    return small.num_rows * _TIMES_LARGER <= large.num_rows


def _has_equality(on: Expression) -> bool:
    """Whether rows find their partners by hash. Otherwise each pair is looked at, and once is enough."""
    return any(map(_is_of_both, conjuncts(on)))


def _is_of_both(part: Expression) -> bool:
    """Whether a part of a condition is an equality between values of both sides, not with a constant."""
    match part.predicate if isinstance(part, Coerced) else part:
        case Comparison("=" | "<=>", left, right):
            one, other = ({column.path[0] for column in columns_of(side)} for side in (left, right))
            return len(one) == len(other) == 1 and one != other
    return False
