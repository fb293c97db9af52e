"""Functions of Spark SQL on arrays, maps and structs in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from delta_orch.engines.local.sql_arguments import Scalars, constant
from delta_orch.engines.local.sql_casts import error, widen
from delta_orch.engines.local.sql_types import (
    Typed,
    common_type,
    common_type_of,
    holds_void,
    is_atomic,
    struct_field,
    struct_of,
    unsupported,
)
from delta_orch.expressions.nodes import Column, Expression, Operation
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.to_sql import duckdb_type
from delta_orch.protocol.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructType,
)


def size(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`size` of an array or a map."""
    value = scalars.scalar(arguments[0])
    if not isinstance(value.data_type, ArrayType | MapType):
        raise unsupported(f"a number of elements of {value.data_type}")
    function = "length" if isinstance(value.data_type, ArrayType) else "cardinality"
    return Typed(f"CAST({function}({value.sql}) AS INTEGER)", INTEGER)


def array_contains(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`array_contains`: null where the array or the value is, and where a null in the array may be the value."""
    array, value = (scalars.scalar(argument) for argument in arguments)
    kind = array.data_type.element_type if isinstance(array.data_type, ArrayType) else VOID
    if not is_atomic(kind) or kind in (FLOAT, DOUBLE, VOID):
        raise unsupported(f"array_contains of {array.data_type}")
    if {kind, value.data_type} <= {*INTEGRAL_RANGES}:
        kind = common_type(kind, value.data_type)
        array = widen(array, ArrayType(kind))
    is_text = STRING in (kind, value.data_type) and kind != value.data_type
    if common_type(kind, value.data_type) != kind or is_text or value.data_type == VOID:
        raise unsupported(f"array_contains of {array.data_type} and {value.data_type}")
    wanted = widen(value, kind).sql
    otherwise = f"CASE WHEN list_count({array.sql}) = length({array.sql}) THEN FALSE END"
    found = f"list_contains({array.sql}, {wanted}) OR {otherwise}"
    return Typed(f"CASE WHEN {array.sql} IS NOT NULL AND {wanted} IS NOT NULL THEN {found} END", BOOLEAN)


def element(scalars: Scalars, arguments: Sequence[Expression], base: int) -> Typed:
    """`array[index]`, from zero, `map[key]`, and `element_at`, from one."""
    value, key = (scalars.scalar(argument) for argument in arguments)
    kind = value.data_type
    if isinstance(kind, StructType) and not base and key.literal is not None and key.data_type == STRING:
        return struct_field(value, str(key.literal.value))
    if isinstance(kind, MapType) and is_atomic(kind.key_type) and kind.key_type not in (FLOAT, DOUBLE):
        if key.data_type != kind.key_type and not (
            kind.key_type in INTEGRAL_RANGES and key.data_type in INTEGRAL_RANGES
        ):
            raise unsupported(f"a key of type {key.data_type} in {kind}")
        return Typed(f"{value.sql}[CAST({key.sql} AS {duckdb_type(kind.key_type)})]", kind.value_type)
    if not isinstance(kind, ArrayType) or key.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"an element of {kind}")
    position = f"(CAST({key.sql} AS BIGINT) + {1 - base})"
    if base and key.data_type == LONG:
        raise unsupported("element_at of an array, at a long")
    if base and (key.literal is None or key.literal.value == 0):
        raise unsupported("element_at zero, or at an index that is not a constant")
    if base and key.literal is not None and key.literal.value < 0:
        position = f"(length({value.sql}) + 1 + {key.sql})"
    problem = error("[INVALID_ARRAY_INDEX] The index is out of bounds")
    return Typed(f"CASE WHEN {value.sql} IS NULL OR {key.sql} IS NULL THEN NULL WHEN {position} BETWEEN 1 AND "
                 f"length({value.sql}) THEN {value.sql}[{position}] ELSE {problem} END", kind.element_type)  # fmt: skip


def map_parts(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`map_keys` and `map_values`."""

    def parts(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        value, kind = map_of(scalars, arguments[0], function)
        found = ArrayType(kind.key_type, False) if function == "map_keys" else ArrayType(kind.value_type, True)
        # DuckDB has an empty list for a map that is null.
        return Typed(f"CASE WHEN {value} IS NOT NULL THEN {function}({value}) END", found)

    return parts


def _map_of_lists(keys: str, values: str, key: DataType, kind: DataType) -> Typed:
    if not is_atomic(key) or key in (FLOAT, DOUBLE, VOID) or holds_void(kind):
        raise unsupported(f"a map of {key} and {kind}")
    return Typed(f"MAP({keys}, {values})", MapType(key, kind, True))


def map_of(scalars: Scalars, node: Expression, function: str) -> tuple[str, MapType]:
    """DuckDB's SQL of a map, and its type."""
    value = scalars.scalar(node)
    if not isinstance(value.data_type, MapType) or holds_void(value.data_type):
        raise unsupported(f"{function} of {value.data_type}")
    return value.sql, value.data_type


def map_contains_key(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value, key = (scalars.scalar(argument) for argument in arguments)
    kind = value.data_type
    if (
        not isinstance(kind, MapType)
        or holds_void(kind)
        or kind.key_type != key.data_type
        or kind.key_type in (FLOAT, DOUBLE)
    ):
        raise unsupported(f"map_contains_key of {kind} and {key.data_type}")
    found = f"list_contains(map_keys({value.sql}), {key.sql})"
    return Typed(f"CASE WHEN {value.sql} IS NOT NULL AND {key.sql} IS NOT NULL THEN {found} END", BOOLEAN)


def named_struct(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`named_struct`."""
    if len(arguments) % 2:
        raise unsupported("a struct with a name without a value")
    names = [constant(scalars, name, str, "named_struct") for name in arguments[::2]]
    return _struct([(name, scalars.scalar(value)) for name, value in zip(names, arguments[1::2], strict=True)])


def struct(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`struct`. A value that has no name gets one by its place."""
    fields = []
    for number, part in enumerate(arguments, 1):
        match part:
            case Column(path):
                fields.append((path[-1], scalars.scalar(part)))
            case Operation("AS", (value,), name):
                fields.append((name, scalars.scalar(value)))
            case _:
                fields.append((f"col{number}", scalars.scalar(part)))
    return _struct(fields)


def _struct(fields: Sequence[tuple[str, Typed]]) -> Typed:
    names = {name.lower() for name, _ in fields}
    if not fields or len(names) < len(fields):
        raise unsupported("a struct without fields, or with a name twice")
    return struct_of(list(fields))


def array(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`array`."""
    values = [scalars.scalar(part) for part in arguments]
    kind: DataType = common_type_of([VOID, *(value.data_type for value in values)])
    return Typed(f"[{', '.join(widen(value, kind).sql for value in values)}]", ArrayType(kind, True))


def concatenated(values: Sequence[Typed]) -> Typed:
    """`concat` and `||` of arrays."""
    kind = common_type_of([value.data_type for value in values])
    if not isinstance(kind, ArrayType):
        raise unsupported(f"concat of {kind}")
    sqls = [widen(value, kind).sql for value in values]
    found = reduce(lambda left, right: f"list_concat({left}, {right})", sqls)
    # DuckDB takes an array that is null for an empty one.
    return Typed(f"CASE WHEN {' AND '.join(f'{sql} IS NOT NULL' for sql in sqls)} THEN {found} END", kind)


def make_map(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map`. A key that is null or there twice raises, as in Spark."""
    values = [scalars.scalar(part) for part in arguments]
    if len(values) % 2:
        raise unsupported("a map with a key without a value")
    key, kind = (common_type_of([VOID, *(value.data_type for value in values[i::2])]) for i in (0, 1))
    if not is_atomic(key) or key in (FLOAT, DOUBLE) or (key == VOID and values):
        raise unsupported(f"a map of {key} and {kind}")
    if not values:
        key = STRING  # Arrow has no map whose keys have no type, and of no key any cast is the same
    keys, found = ([widen(v, k).sql for v in values[i::2]] for i, k in ((0, key), (1, kind)))
    return Typed(f"MAP([{', '.join(keys)}], [{', '.join(found)}])", MapType(key, kind, True))
