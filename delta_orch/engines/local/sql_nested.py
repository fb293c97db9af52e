"""Functions of Spark SQL on arrays, maps and structs in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from delta_orch.engines.local.sql_arguments import Scalars, constant
from delta_orch.engines.local.sql_casts import bounded, error, widen
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
from delta_orch.expressions.to_sql import duckdb_type, quote_duckdb_string
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)


def size(*takes: type[DataType]) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`size`, and `array_size`."""

    def counted(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        value = scalars.scalar(arguments[0])
        if not isinstance(value.data_type, takes):
            raise unsupported(f"a number of elements of {value.data_type}")
        function = "length" if isinstance(value.data_type, ArrayType) else "cardinality"
        return Typed(f"CAST({function}({value.sql}) AS INTEGER)", INTEGER)

    return counted


def searching(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`array_contains`, `array_position` and `array_remove`: null where the array or the value is."""

    def search(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        array, value = (scalars.scalar(argument) for argument in arguments)
        kind = _ordered_element(array, function)
        if {kind, value.data_type} <= {*INTEGRAL_RANGES}:
            kind = common_type(kind, value.data_type)
            array = widen(array, ArrayType(kind))
        if (
            common_type(kind, value.data_type) != kind
            or (STRING in (kind, value.data_type) and kind != value.data_type)
            or (value.data_type == VOID and function == "array_contains")
        ):
            raise unsupported(f"{function} of {array.data_type} and {value.data_type}")
        wanted = widen(value, kind).sql
        sql, found = _SEARCHES[function]
        made = sql.format(array=array.sql, wanted=wanted)
        return Typed(
            f"CASE WHEN {array.sql} IS NOT NULL AND {wanted} IS NOT NULL THEN {made} END", found or array.data_type
        )

    return search


_SEARCHES: dict[str, tuple[str, DataType | None]] = {
    # A null in the array may be the value.
    "array_contains": (
        "list_contains({array}, {wanted}) OR CASE WHEN list_count({array}) = length({array}) THEN FALSE END",
        BOOLEAN,
    ),
    "array_position": ("CAST(coalesce(list_position({array}, {wanted}), 0) AS BIGINT)", LONG),
    "array_remove": ("list_filter({array}, lambda one: one IS NULL OR one <> {wanted})", None),
}


def of_array(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """A function of one array: `_OF_ARRAYS` says what it is in DuckDB, and whether an array comes out."""
    sql, is_array = _OF_ARRAYS[function]

    def made(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        array = scalars.scalar(arguments[0])
        kind = _ordered_element(array, function)
        return Typed(sql.format(array.sql), array.data_type if is_array else kind)

    return made


# An element is kept where it is the first that equals it; to DuckDB, as to Spark, nulls do.
_DISTINCT = "list_filter({0}, lambda one, place: list_position({0}, one) = place)"
_OF_ARRAYS = {
    "array_distinct": (_DISTINCT, True),
    "array_compact": ("list_filter({0}, lambda one: one IS NOT NULL)", True),
    "array_max": ("list_max({0})", False),
    "array_min": ("list_min({0})", False),
    "sort_array": ("list_sort({0}, 'ASC', 'NULLS FIRST')", True),
    "array_sort": ("list_sort({0}, 'ASC', 'NULLS LAST')", True),
    "sort_array desc": ("list_sort({0}, 'DESC', 'NULLS LAST')", True),
}


def sort_array(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`sort_array`, of which false makes a descending one."""
    ascends = len(arguments) == 1 or constant(scalars, arguments[1], bool, "sort_array")
    return of_array("sort_array" if ascends else "sort_array desc")(scalars, arguments)


def of_two_arrays(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`array_union`, `array_intersect` and `array_except`, each without doubles, and `arrays_overlap`."""

    def made(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        arrays = [scalars.scalar(argument) for argument in arguments]
        kind = common_type_of([array.data_type for array in arrays])
        if VOID in (array.data_type for array in arrays):
            raise unsupported(f"{function} of NULL")
        first, second = (widen(array, kind).sql for array in arrays)
        _ordered_element(Typed(first, kind), function)
        found = _OF_TWO[function].format(first, second)
        gives = BOOLEAN if function == "arrays_overlap" else kind
        return Typed(f"CASE WHEN {first} IS NOT NULL AND {second} IS NOT NULL THEN {found} END", gives)

    return made


_OVERLAP = (
    "CASE WHEN list_has_any({0}, {1}) THEN TRUE WHEN length({0}) > 0 AND length({1}) > 0 "
    "AND (list_count({0}) < length({0}) OR list_count({1}) < length({1})) THEN NULL ELSE FALSE END"
)
_OF_TWO = {
    "array_union": _DISTINCT.format("list_concat({0}, {1})"),
    "array_intersect": f"list_filter({_DISTINCT}, lambda one: list_position({{1}}, one) IS NOT NULL)",
    "array_except": f"list_filter({_DISTINCT}, lambda one: list_position({{1}}, one) IS NULL)",
    "arrays_overlap": _OVERLAP,
}


def array_repeat(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`array_repeat`: a value so many times, not at all below one."""
    value, count = (scalars.scalar(argument) for argument in arguments)
    if holds_void(value.data_type) or count.data_type != INTEGER:
        raise unsupported(f"array_repeat of {value.data_type}, {count.data_type} times")
    times = f"range(CAST({bounded(count.sql, count.sql)} AS BIGINT))"
    return Typed(f"list_transform({times}, lambda place: {value.sql})", ArrayType(value.data_type, True))


def flatten(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`flatten`: one array of several, null where one of them is."""
    array = scalars.scalar(arguments[0])
    kind = array.data_type.element_type if isinstance(array.data_type, ArrayType) else VOID
    if not isinstance(kind, ArrayType) or holds_void(kind):
        raise unsupported(f"flatten of {array.data_type}")
    return Typed(f"CASE WHEN list_count({array.sql}) = length({array.sql}) THEN flatten({array.sql}) END", kind)


def sequence(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`sequence` of whole numbers, and of days without a step."""
    values = [scalars.scalar(argument) for argument in arguments]
    kind = common_type_of([value.data_type for value in values])
    known = " AND ".join(f"{value.sql} IS NOT NULL" for value in values)
    if kind == DATE and len(values) == 2:
        first, last = (f"CAST({value.sql} AS TIMESTAMP)" for value in values)
        step = f"CASE WHEN {first} <= {last} THEN INTERVAL 1 DAY ELSE INTERVAL (-1) DAY END"
        days = f"list_transform(generate_series({first}, {last}, {step}), lambda one: CAST(one AS DATE))"
        return Typed(f"CASE WHEN {known} THEN {days} END", ArrayType(DATE, False))
    if kind not in INTEGRAL_RANGES:
        raise unsupported(f"sequence of {kind}")
    first, last, *steps = (f"CAST({value.sql} AS BIGINT)" for value in values)
    step = steps[0] if steps else f"CASE WHEN {first} <= {last} THEN 1 ELSE -1 END"
    end = bounded(last, f"abs(({last}::HUGEINT - {first}) // nullif({step}, 0))")
    numbers = f"list_transform(generate_series({first}, {end}, {step}), lambda one: CAST(one AS {duckdb_type(kind)}))"
    problem = error("[INVALID_PARAMETER_VALUE] sequence has a step that does not lead from its start to its end")
    leads = f"{step} <> 0 AND ({step} > 0) = ({first} < {last})"
    return Typed(
        f"CASE WHEN {known} THEN CASE WHEN {first} = {last} THEN [CAST({first} AS {duckdb_type(kind)})] "
        f"WHEN {leads} THEN {numbers} ELSE {problem} END END",
        ArrayType(kind, False),
    )


def array_join(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`array_join`, which leaves nulls out, or has a text for them."""
    array, between = scalars.scalar(arguments[0]), constant(scalars, arguments[1], str, "array_join")
    if len(arguments) > 2:
        instead = quote_duckdb_string(constant(scalars, arguments[2], str, "array_join"))
        array = replace(array, sql=f"list_transform({array.sql}, lambda one: coalesce(one, {instead}))")
    if not isinstance(array.data_type, ArrayType) or array.data_type.element_type != STRING:
        raise unsupported(f"array_join of {array.data_type}")
    joined = f"coalesce(array_to_string({array.sql}, {quote_duckdb_string(between)}), '')"
    return Typed(f"CASE WHEN {array.sql} IS NOT NULL THEN {joined} END", STRING)


def _ordered_element(array: Typed, function: str) -> DataType:
    """The type of an array's elements, which both engines compare alike."""
    kind = array.data_type.element_type if isinstance(array.data_type, ArrayType) else VOID
    if not is_atomic(kind) or kind in (FLOAT, DOUBLE, VOID):
        raise unsupported(f"{function} of {array.data_type}")
    return kind


def element(scalars: Scalars, arguments: Sequence[Expression], base: int, *, tried: bool = False) -> Typed:
    """`array[index]`, from zero, `map[key]`, and `element_at`, from one; null for an index that is not there, where it
    is only `tried`."""
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
    problem = "NULL" if tried else error("[INVALID_ARRAY_INDEX] The index is out of bounds")
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
        value, kind = map_of(scalars, arguments[0], function)
        found = ArrayType(kind.key_type, False) if function == "map_keys" else ArrayType(kind.value_type, True)
        # DuckDB has an empty list for a map that is null.
        return Typed(f"CASE WHEN {value} IS NOT NULL THEN {function}({value}) END", found)

    return parts


def map_entries(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    value, kind = map_of(scalars, arguments[0], "map_entries")
    entry = StructType((StructField("key", kind.key_type, False), StructField("value", kind.value_type)))
    return Typed(f"CASE WHEN {value} IS NOT NULL THEN map_entries({value}) END", ArrayType(entry, False))


def map_from_entries(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map_from_entries`. A key that is null or there twice raises, as in Spark. An entry that is null is refused."""
    entries = scalars.scalar(arguments[0])
    entry = entries.data_type.element_type if isinstance(entries.data_type, ArrayType) else VOID
    if not isinstance(entry, StructType) or len(entry) != 2:
        raise unsupported(f"map_from_entries of {entries.data_type}")
    lists = (
        f"list_transform({entries.sql}, lambda one: {struct_field(Typed('one', entry), f.name).sql})" for f in entry
    )
    keys, values = lists
    found = _map_of_lists(keys, values, *(field.data_type for field in entry))
    problem = error("map_from_entries with an entry that is null")
    return Typed(
        f"CASE WHEN list_count({entries.sql}) < length({entries.sql}) THEN {problem} "
        f"WHEN {entries.sql} IS NOT NULL THEN {found.sql} END",
        found.data_type,
    )


def map_from_arrays(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map_from_arrays`. A key that is null or there twice, and arrays of two lengths, raise, as in Spark."""
    keys, values = (scalars.scalar(argument) for argument in arguments)
    if not isinstance(keys.data_type, ArrayType) or not isinstance(values.data_type, ArrayType):
        raise unsupported(f"map_from_arrays of {keys.data_type} and {values.data_type}")
    found = _map_of_lists(keys.sql, values.sql, keys.data_type.element_type, values.data_type.element_type)
    problem = error("[INVALID_PARAMETER_VALUE] map_from_arrays has more keys than values, or fewer")
    return Typed(
        f"CASE WHEN length({keys.sql}) <> length({values.sql}) THEN {problem} "
        f"WHEN {keys.sql} IS NOT NULL AND {values.sql} IS NOT NULL THEN {found.sql} END",
        found.data_type,
    )


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


def extended(at_end: bool) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`array_append` and `array_prepend`."""

    def extend(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        array, value = (scalars.scalar(argument) for argument in arguments)
        if not isinstance(array.data_type, ArrayType):
            raise unsupported(f"an element behind {array.data_type}")
        one = Typed(f"[{value.sql}]", ArrayType(value.data_type, True))
        return concatenated([array, one] if at_end else [one, array])

    return extend


def slice_of(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`slice`: from a place, counted from one or from the end, so many elements."""
    array, start, count = (scalars.scalar(argument) for argument in arguments)
    if not isinstance(array.data_type, ArrayType) or not {start.data_type, count.data_type} <= {*INTEGRAL_RANGES, VOID}:
        raise unsupported(f"slice of {array.data_type}")
    first, many, length = f"CAST({start.sql} AS BIGINT)", f"CAST({count.sql} AS BIGINT)", f"length({array.sql})"
    place = f"({first} + CASE WHEN {first} < 0 THEN {length} + 1 ELSE 0 END)"
    problem = error(
        "[INVALID_PARAMETER_VALUE] slice starts at 1 or behind, or before the end, and takes no less than 0"
    )
    return Typed(
        f"CASE WHEN {array.sql} IS NULL OR {first} IS NULL OR {many} IS NULL THEN NULL "
        f"WHEN {first} = 0 OR {many} < 0 THEN {problem} WHEN {place} < 1 OR {many} = 0 THEN {array.sql}[1:0] "
        f"ELSE {array.sql}[{place}:{place} + {many} - 1] END",
        array.data_type,
    )


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


def joined_maps(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`map_concat`. A key that is in two of them raises, as in Spark."""
    values = [scalars.scalar(argument) for argument in arguments]
    kind = values[0].data_type
    if (
        not isinstance(kind, MapType)
        or kind.key_type in (FLOAT, DOUBLE)
        or {str(v.data_type) for v in values} != {str(kind)}
    ):
        raise unsupported(f"map_concat of {', '.join(str(value.data_type) for value in values)}")
    entries = reduce(lambda left, right: f"list_concat({left}, {right})", (f"map_entries({v.sql})" for v in values))
    known = " AND ".join(f"{value.sql} IS NOT NULL" for value in values)
    return Typed(f"CASE WHEN {known} THEN map_from_entries({entries}) END", kind)
