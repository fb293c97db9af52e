"""Functions of Spark SQL on arrays and maps that take a lambda, in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delta_orch.engines.local.sql_arguments import Scalars
from delta_orch.engines.local.sql_nested import map_of
from delta_orch.engines.local.sql_types import Typed, holds_void, is_atomic, struct_of, unsupported
from delta_orch.expressions.nodes import Column, Expression, Operation
from delta_orch.protocol.types import BOOLEAN, DOUBLE, FLOAT, INTEGER, VOID, ArrayType, DataType, MapType

_Make = Callable[[str], Typed]
"""The value of a lambda's parameter, given the name that DuckDB's lambda has for it."""


def transform(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`transform`."""
    array, kind = _array(scalars, arguments[0])
    lambda_sql, body = _lambda(scalars, arguments[1], _element_and_place(kind))
    return Typed(f"list_transform({array}, {lambda_sql})", ArrayType(body, True))


def filtered(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`filter`: the elements for which the lambda is true."""
    array, kind = _array(scalars, arguments[0])
    return Typed(f"list_filter({array}, {_test(scalars, arguments[1], _element_and_place(kind))})", ArrayType(kind))


def quantified(wanted: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`exists` (TRUE decides) and `forall` (FALSE does). Null where an answer that is null may have been the one."""

    def quantified(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        array, kind = _array(scalars, arguments[0])
        answers = f"list_transform({array}, {_test(scalars, arguments[1], _element_and_place(kind)[:1])})"
        other = "FALSE" if wanted == "TRUE" else "TRUE"
        rest = f"CASE WHEN list_count({answers}) = length({answers}) THEN {other} END"
        found = f"CASE WHEN list_contains({answers}, {wanted}) THEN {wanted} ELSE {rest} END"
        return Typed(f"CASE WHEN {array} IS NOT NULL THEN {found} END", BOOLEAN)

    return quantified


def aggregate(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`aggregate`, of an array, a start, a lambda for each element, and perhaps one for the end."""
    array, element = _array(scalars, arguments[0])
    start = scalars.scalar(arguments[1])
    kind = start.data_type
    merge, merged = _lambda(scalars, arguments[2], (_plain(kind), _plain(element)), exactly=True)
    if holds_void(kind) or merged != kind:
        raise unsupported(f"aggregate of a start of {kind} and values of {merged}")
    found = f"list_reduce({array}, {merge}, {start.sql})"
    if len(arguments) == 3:
        return Typed(found, kind)
    # One element: what the whole has come to.
    finish, finished = _lambda(scalars, arguments[3], (_plain(kind),))
    return Typed(f"CASE WHEN {array} IS NOT NULL THEN list_transform([{found}], {finish})[1] END", finished)


def map_filter(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map_filter`: the entries for which the lambda is true."""
    sql, kind = map_of(scalars, arguments[0], "map_filter")
    name, _, test = _of_entries(scalars, arguments[1], kind)
    if test.data_type != BOOLEAN:
        raise unsupported(f"a lambda that gives {test.data_type} where a boolean is wanted")
    return _map_from(sql, f"list_filter(map_entries({sql}), lambda {name}: {test.sql})", kind)


def transformed_map(part: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`transform_keys` and `transform_values`. A key that is null or there twice raises, as in Spark."""

    def transform_part(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        sql, kind = map_of(scalars, arguments[0], f"transform_{part}s")
        name, entry, made = _of_entries(scalars, arguments[1], kind)
        parts = {"key": entry["key"], "value": entry["value"], part: made}
        key = parts["key"].data_type
        if not is_atomic(key) or key in (FLOAT, DOUBLE) or VOID in (key, made.data_type) or holds_void(made.data_type):
            raise unsupported(f"a map of {key} and {parts['value'].data_type}")
        entries = f"list_transform(map_entries({sql}), lambda {name}: {struct_of([*parts.items()]).sql})"
        return _map_from(sql, entries, MapType(key, parts["value"].data_type, True))

    return transform_part


def _map_from(of: str, entries: str, kind: MapType) -> Typed:
    """DuckDB has an empty map for one that is null."""
    return Typed(f"CASE WHEN {of} IS NOT NULL THEN map_from_entries({entries}) END", kind)


def _of_entries(scalars: Scalars, node: Expression, kind: MapType) -> tuple[str, dict[str, Typed], Typed]:
    """A lambda over a key and its value: DuckDB's name for the entry, its parts, and what the lambda gives."""
    if not isinstance(node, Operation) or node.name != "->" or len(node.arguments) != 3:
        raise unsupported("a lambda over entries that does not take a key and a value")
    *parameters, body = node.arguments
    name = f"lambda_{node.start}"
    parts = {
        part: Typed(f"struct_extract({name}, '{part}')", of)
        for part, of in (("key", kind.key_type), ("value", kind.value_type))
    }
    names = [parameter.path[0].lower() for parameter in parameters if isinstance(parameter, Column)]
    return name, parts, scalars.inside(dict(zip(names, parts.values(), strict=True))).scalar(body)


def _array(scalars: Scalars, node: Expression) -> tuple[str, DataType]:
    value = scalars.scalar(node)
    if not isinstance(value.data_type, ArrayType) or holds_void(value.data_type):
        raise unsupported(f"a lambda over {value.data_type}")
    return value.sql, value.data_type.element_type


def _plain(kind: DataType) -> _Make:
    return lambda name: Typed(name, kind)


def _element_and_place(kind: DataType) -> tuple[_Make, _Make]:
    """Spark counts places from zero."""
    return _plain(kind), lambda name: Typed(f"CAST({name} - 1 AS INTEGER)", INTEGER)


def _test(scalars: Scalars, node: Expression, given: Sequence[_Make]) -> str:
    sql, kind = _lambda(scalars, node, given)
    if kind != BOOLEAN:
        raise unsupported(f"a lambda that gives {kind} where a boolean is wanted")
    return sql


def _lambda(
    scalars: Scalars, node: Expression, given: Sequence[_Make], *, exactly: bool = False
) -> tuple[str, DataType]:
    """DuckDB's lambda, and the type of what it gives. `given`: the parameters that it has, at most or `exactly`."""
    if not isinstance(node, Operation) or node.name != "->":
        raise unsupported("a function that takes a lambda, with something else in its place")
    *parameters, body = node.arguments
    if len(parameters) > len(given) or (exactly and len(parameters) < len(given)):
        raise unsupported(f"a lambda with {len(parameters)} parameters")
    # Where it begins in the text tells it from those inside.
    names = [f"lambda_{node.start}_{i}" for i in range(len(parameters))]
    found = {
        parameter.path[0].lower(): make(name)
        for parameter, make, name in zip(parameters, given, names, strict=False)
        if isinstance(parameter, Column)
    }
    value = scalars.inside(found).scalar(body)
    return f"lambda {', '.join(names)}: {value.sql}", value.data_type
