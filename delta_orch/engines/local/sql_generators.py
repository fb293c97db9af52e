"""Of one row several: `explode`, `posexplode` and their outer forms, as an item of SELECT or in LATERAL VIEW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from delta_orch.engines.local.query_nodes import LateralView, Over, Select, is_star
from delta_orch.engines.local.sql_aggregates import AGGREGATES
from delta_orch.engines.local.sql_scalars import Scalars, describe
from delta_orch.engines.local.sql_types import Source, holds_void, unsupported
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Call, Expression, Operation
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.expressions.tree import children_of
from delta_orch.protocol.types import INTEGER, ArrayType, MapType, StructField, StructType

_GENERATORS = ("explode", "explode_outer", "posexplode", "posexplode_outer")


def is_generator(node: Expression) -> TypeGuard[Call]:
    """Whether it makes rows of the elements of an array, or the entries of a map."""
    return isinstance(node, Call) and not isinstance(node, Operation) and node.name in _GENERATORS


def exploded(
    call: Call, names: Sequence[str], scalars: Scalars, is_outer: bool = False
) -> list[tuple[str, StructField]]:
    """A row for each element of an array, or each entry of a map; where there is none, one with nulls if it `is_outer`
    or called so.

    Args:
        names: Of its columns; empty for its own.
    """
    values = [scalars.scalar(argument) for argument in call.arguments]
    if len(values) != 1 or call.detail or holds_void(values[0].data_type):
        raise unsupported(describe(call))
    found, kind = values[0].sql, values[0].data_type
    is_outer = is_outer or call.name.endswith("_outer")
    match kind:
        case ArrayType():
            parts = [("col", found, kind.element_type, kind.contains_null)]
        case MapType():
            parts = [("key", f"map_keys({found})", kind.key_type, False)]
            parts += [("value", f"map_values({found})", kind.value_type, kind.value_contains_null)]
        case _:
            raise unsupported(describe(call))
    length = f"len({parts[0][1]})"
    if call.name.startswith("pos"):
        places = f"list_transform(range({length}), lambda place: CAST(place AS INTEGER))"
        parts.insert(0, ("pos", places, INTEGER, False))
    if names and len(names) != len(parts):
        raise InvalidExpressionError(
            f"{call.name} makes {len(parts)} columns, and {len(names)} names stand for them", columns=list(names)
        )
    columns = []
    for name, (own, text, part, may_be_null) in zip(names or [part[0] for part in parts], parts, strict=True):
        text = f"CASE WHEN {length} > 0 THEN {text} ELSE [NULL] END" if is_outer else text
        columns.append((f"unnest({text})", StructField(name or own, part, is_outer or may_be_null)))
    return columns


def lateral_view(view: LateralView, scalars: Scalars) -> tuple[str, Source]:
    """A view behind FROM, and what it adds to the relations there."""
    call = view.generator
    if not is_generator(call):
        raise unsupported(f"LATERAL VIEW {describe(call)}")
    columns = exploded(call, view.columns, scalars, view.is_outer)
    rows = ", ".join(f"{text} AS {quote_duckdb_identifier(field.name)}" for text, field in columns)
    joined = f"CROSS JOIN LATERAL (SELECT {rows}) AS {quote_duckdb_identifier(view.alias)}"
    return joined, Source(view.alias, StructType(tuple(field for _, field in columns)))


def ensure_alone(generator: Call, select: Select) -> None:
    """Check that nothing else in the query makes several rows of one, or one of several."""
    others = [item.node for item in select.items if item.node is not generator and not is_star(item.node)]
    if select.group or select.having or select.qualify or any(map(_makes_other_rows, others)):
        raise unsupported(f"{describe(generator)} beside an aggregate, a window or another of its kind")


def _makes_other_rows(node: Expression) -> bool:
    is_aggregate = isinstance(node, Call) and not isinstance(node, Operation) and node.name in AGGREGATES
    is_one = is_aggregate or isinstance(node, Over) or is_generator(node)
    return is_one or any(map(_makes_other_rows, children_of(node)))
