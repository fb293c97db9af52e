"""Functions of Spark SQL on arrays, maps and structs in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delta_orch.engines.local.sql_arguments import Scalars, constant
from delta_orch.engines.local.sql_casts import error, widen
from delta_orch.engines.local.sql_types import (
    Typed,
    common_type,
    common_type_of,
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
    STRING,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructType,
)


def size(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value = scalars.scalar(arguments[0])
    if not isinstance(value.data_type, ArrayType | MapType):
        raise unsupported(f"size of {value.data_type}")
    return Typed(f"CAST(length({value.sql}) AS INTEGER)" if isinstance(value.data_type, ArrayType)
                 else f"CAST(cardinality({value.sql}) AS INTEGER)", INTEGER)  # fmt: skip


def array_contains(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    array, value = (scalars.scalar(argument) for argument in arguments)
    if not isinstance(array.data_type, ArrayType):
        raise unsupported(f"array_contains of {array.data_type}")
    kind = array.data_type.element_type
    if (
        not is_atomic(kind)
        or kind in (FLOAT, DOUBLE)
        or common_type(kind, value.data_type) != kind
        or (STRING in (kind, value.data_type) and kind != value.data_type)
    ):
        raise unsupported(f"array_contains of {array.data_type} and {value.data_type}")
    wanted = widen(value, kind).sql
    # A null in the array may be the value.
    absent = f"CASE WHEN list_count({array.sql}) = length({array.sql}) THEN FALSE END"
    found = f"list_contains({array.sql}, {wanted}) OR {absent}"
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
    if base and (key.literal is None or key.literal.value == 0):
        raise unsupported("element_at zero, or at an index that is not a constant")
    if base and key.literal is not None and key.literal.value < 0:
        position = f"(length({value.sql}) + 1 + {key.sql})"
    problem = error("[INVALID_ARRAY_INDEX] The index is out of bounds")
    return Typed(f"CASE WHEN {value.sql} IS NULL OR {key.sql} IS NULL THEN NULL WHEN {position} BETWEEN 1 AND "
                 f"length({value.sql}) THEN {value.sql}[{position}] ELSE {problem} END", kind.element_type)  # fmt: skip


def get(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`get`: an element from zero, null where there is none."""
    value, index = (scalars.scalar(argument) for argument in arguments)
    if not isinstance(value.data_type, ArrayType) or index.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"get of {value.data_type}")
    at = f"CAST({index.sql} AS BIGINT)"
    return Typed(f"CASE WHEN {at} >= 0 THEN {value.sql}[{at} + 1] END", value.data_type.element_type)


def map_parts(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`map_keys` and `map_values`."""

    def parts(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        value = scalars.scalar(arguments[0])
        kind = value.data_type
        if not isinstance(kind, MapType):
            raise unsupported(f"{function} of {kind}")
        found = ArrayType(kind.key_type, False) if function == "map_keys" else ArrayType(kind.value_type, True)
        # DuckDB has an empty list for a map that is null.
        return Typed(f"CASE WHEN {value.sql} IS NOT NULL THEN {function}({value.sql}) END", found)

    return parts


def map_contains_key(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value, key = (scalars.scalar(argument) for argument in arguments)
    kind = value.data_type
    if not isinstance(kind, MapType) or kind.key_type != key.data_type or kind.key_type in (FLOAT, DOUBLE):
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
    """`struct`, of columns and of values that have a name."""
    fields = []
    for part in arguments:
        match part:
            case Column(path):
                fields.append((path[-1], scalars.scalar(part)))
            case Operation("AS", (value,), name):
                fields.append((name, scalars.scalar(value)))
            case _:
                raise unsupported("a struct with a field of no name")
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


def make_map(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map`. A key that is null or there twice raises, as in Spark."""
    values = [scalars.scalar(part) for part in arguments]
    if len(values) % 2:
        raise unsupported("a map with a key without a value")
    key, kind = (common_type_of([VOID, *(value.data_type for value in values[i::2])]) for i in (0, 1))
    if not is_atomic(key) or key in (FLOAT, DOUBLE) or (key == VOID and values):
        raise unsupported(f"a map of {key} and {kind}")
    keys, found = ([widen(v, k).sql for v in values[i::2]] for i, k in ((0, key), (1, kind)))
    return Typed(f"MAP([{', '.join(keys)}], [{', '.join(found)}])", MapType(key, kind, True))
