"""Of one row several: `explode` and `explode_outer` as an item of the SELECT list, or in LATERAL VIEW."""

from __future__ import annotations

from typing import TypeGuard

from delta_orch.engines.local.query_grammar import LateralView, Over, Select, is_star
from delta_orch.engines.local.sql_aggregates import AGGREGATES
from delta_orch.engines.local.sql_scalars import Scalars, describe
from delta_orch.engines.local.sql_types import Source, holds_void, unsupported
from delta_orch.expressions.nodes import Call, Expression, Operation
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.expressions.tree import children_of
from delta_orch.protocol.types import ArrayType, StructField, StructType

_GENERATORS = ("explode", "explode_outer")


def is_generator(node: Expression) -> TypeGuard[Call]:
    """Whether it makes rows of the elements of an array."""
    return isinstance(node, Call) and not isinstance(node, Operation) and node.name in _GENERATORS


def exploded(call: Call, alias: str | None, scalars: Scalars, is_outer: bool = False) -> tuple[str, StructField]:
    """A row for each element of an array; where there is none, one with null if it `is_outer` or `explode_outer`."""
    values = [scalars.scalar(argument) for argument in call.arguments]
    if len(values) != 1 or call.detail or not isinstance(kind := values[0].data_type, ArrayType) or holds_void(kind):
        raise unsupported(describe(call))
    is_outer = is_outer or call.name == "explode_outer"
    found = values[0].sql
    text = f"CASE WHEN len({found}) > 0 THEN {found} ELSE [NULL] END" if is_outer else found
    return f"unnest({text})", StructField(alias or "col", kind.element_type, is_outer or kind.contains_null)


def lateral_view(view: LateralView, scalars: Scalars) -> tuple[str, Source]:
    """A view behind FROM, and what it adds to the relations there."""
    call = view.generator
    if not is_generator(call):
        raise unsupported(f"LATERAL VIEW {describe(call)}")
    text, field = exploded(call, view.column, scalars, view.is_outer)
    rows = f"SELECT {text} AS {quote_duckdb_identifier(field.name)}"
    joined = f"CROSS JOIN LATERAL ({rows}) AS {quote_duckdb_identifier(view.alias)}"
    return joined, Source(view.alias, StructType((field,)))


def ensure_alone(generator: Call, select: Select) -> None:
    """Check that nothing else in the query makes several rows of one, or one of several."""
    others = [item.node for item in select.items if item.node is not generator and not is_star(item.node)]
    if select.group or select.having or select.qualify or any(map(_makes_other_rows, others)):
        raise unsupported(f"{describe(generator)} beside an aggregate, a window or another of its kind")


def _makes_other_rows(node: Expression) -> bool:
    is_aggregate = isinstance(node, Call) and not isinstance(node, Operation) and node.name in AGGREGATES
    is_one = is_aggregate or isinstance(node, Over) or is_generator(node)
    return is_one or any(map(_makes_other_rows, children_of(node)))
