"""Aggregate and window functions of Spark SQL in DuckDB's SQL, typed, from an allow-list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from delta_orch.engines.local.duckdb_query import DuckDBQuery
from delta_orch.engines.local.query_nodes import IGNORES_NULLS, OrderKey, Over, Select, Window, is_star
from delta_orch.engines.local.sql_casts import widen
from delta_orch.engines.local.sql_operators import digits_of, rounded_quotient
from delta_orch.engines.local.sql_scalars import Columns, QueryColumns, Scalars, describe
from delta_orch.engines.local.sql_types import Typed, common_type, is_atomic, is_number, struct_field, unsupported
from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError
from delta_orch.expressions.nodes import Call, Column, Expression, Literal, Operation
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import duckdb_type, quote_duckdb_identifier
from delta_orch.expressions.tree import children_of
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import (
    BOOLEAN,
    BYTE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    StructField,
    StructType,
)


class Aggregates(Scalars):
    """Scalars where aggregate functions may stand: in HAVING. `of_rows`: what names mean in their arguments; `keys`:
    what stands for the keys of GROUP BY, by their own texts."""

    def __init__(self, columns: Columns, keys: Mapping[str, str], of_rows: Columns | None = None) -> None:
        super().__init__(columns)
        self._of_rows = of_rows or columns
        self._keys = keys

    def scalar(self, node: Expression) -> Typed:
        call, over, inner = node, "", Scalars(self._of_rows)
        if isinstance(node, Operation) and node.name == "FILTER":
            call, over = node.arguments[0], f" FILTER (WHERE {inner.condition(node.arguments[1])})"
        if isinstance(call, Call) and call.name in ("grouping", "grouping_id"):
            return self._grouping(call)
        if not isinstance(call, Call) or isinstance(call, Operation) or call.name not in AGGREGATES:
            found = super().scalar(node)
            return replace(found, sql=self._keys.get(found.sql, found.sql))
        # An aggregate in an aggregate is not Spark SQL.
        return _aggregate(call, inner, over)

    def _grouping(self, call: Call) -> Typed:
        """Whether keys of GROUP BY are left out of a group."""
        found = [Scalars(self._of_rows).scalar(argument).sql for argument in call.arguments]
        keys = [self._keys.get(text) for text in found]
        if None in keys or not keys or call.detail or (call.name == "grouping" and len(keys) > 1):
            raise unsupported(f"{describe(call)}, which names no key of GROUP BY")
        kind = BYTE if call.name == "grouping" else LONG
        return Typed(f"CAST(grouping({', '.join(map(str, keys))}) AS {duckdb_type(kind)})", kind)


class OutputColumns(QueryColumns):
    """Columns of the SELECT list, and of the relations in FROM where it has none of that name, or theirs is `first`."""

    def __init__(
        self, columns: Columns, texts: Sequence[str], fields: Sequence[StructField], first: Collection[str] = ()
    ) -> None:
        self._columns = columns
        self._first = first
        pairs = zip(texts, fields, strict=True)
        self._outputs = {f.name.lower(): Typed(text, f.data_type, char_width=char_width(f)) for text, f in pairs}

    def find(self, path: tuple[str, ...]) -> Typed:
        output = self._outputs.get(path[0].lower()) if len(path) == 1 else None
        if output is None or path[0].lower() in self._first:
            try:
                return self._columns.find(path)
            except ColumnNotFoundError:
                if output is None:
                    raise
        return output

    def subquery(self, scalars: Scalars, node: Operation) -> Typed:
        if isinstance(self._columns, QueryColumns):
            return self._columns.subquery(scalars, node)
        return super().subquery(scalars, node)


class Windows(Aggregates):
    """Scalars where window functions may stand, too: in a SELECT list and in QUALIFY."""

    def __init__(self, columns: Columns, keys: Mapping[str, str], windows: Sequence[tuple[str, Window]]) -> None:
        super().__init__(columns, keys)
        self._windows = dict(windows)

    def scalar(self, node: Expression) -> Typed:
        if not isinstance(node, Over):
            return super().scalar(node)
        window = self._windows.get(node.window) if isinstance(node.window, str) else node.window
        if window is None:
            raise InvalidExpressionError(f"There is no window {node.window!r}", remedy="Write WINDOW name AS (…)")
        return _windowed(node, window, Aggregates(self._columns, self._keys))


def _aggregate(call: Call, scalars: Scalars, over: str) -> Typed:
    if call.name == "count" and len(call.arguments) > 1 and call.detail in ("", "DISTINCT"):
        return _count_of_rows([scalars.scalar(argument) for argument in call.arguments], call.detail, over)
    if len(call.arguments) != 1 + (call.name in _OF_TWO) or call.detail not in ("", "DISTINCT"):
        raise unsupported(describe(call))
    argument = call.arguments[0]
    if is_star(argument) and call.name == "count" and not call.detail and not argument.detail:  # type: ignore[attr-defined]
        return Typed(f"count(*){over}", LONG)
    return AGGREGATES[call.name](*map(scalars.scalar, call.arguments), f"{call.detail} ".lstrip(), over)


def count_of(value: Typed, distinct: str = "", over: str = "") -> Typed:
    """How many values are not null. `distinct` is empty or `DISTINCT `, `over` empty or a window."""
    return Typed(f"count({distinct}{value.sql}){over}", LONG)


def sum_of(value: Typed, distinct: str = "", over: str = "") -> Typed:
    """The sum in Spark's type. Raises UnsupportedExpressionError for what is not a number."""
    if value.data_type in INTEGRAL_RANGES:
        return Typed(f"CAST(sum({distinct}{value.sql}){over} AS BIGINT)", LONG)
    if value.data_type in (FLOAT, DOUBLE):
        return Typed(f"sum({distinct}{widen(value, DOUBLE).sql}){over}", DOUBLE)
    if isinstance(value.data_type, DecimalType):
        kind = DecimalType(min(value.data_type.precision + 10, MAX_DECIMAL_DIGITS), value.data_type.scale)
        return Typed(f"CAST(sum({distinct}{value.sql}){over} AS {duckdb_type(kind)})", kind)
    raise unsupported(f"a sum of {value.data_type}")


def extreme_of(function: str, value: Typed, over: str = "") -> Typed:
    """`min` or `max`. Raises UnsupportedExpressionError for arrays, maps, variants, and structs that hold no atoms."""
    kind = value.data_type
    if isinstance(kind, StructType) and all(is_atomic(field.data_type) for field in kind):
        # Of two fields, a null is the lesser one in Spark, the greater one in DuckDB.
        fields = [struct_field(value, name).sql for name in kind.names]
        key = ", ".join(f"k{i} := {field} IS NOT NULL, v{i} := {field}" for i, field in enumerate(fields))
        return Typed(f"arg_{function}({value.sql}, if({value.sql} IS NOT NULL, struct_pack({key}), NULL)){over}", kind)
    if not is_atomic(kind):
        raise unsupported(f"{function} of {kind}")
    return Typed(f"{function}({value.sql}){over}", kind)


def _count(value: Typed, distinct: str, over: str) -> Typed:
    if distinct and not is_atomic(value.data_type):
        raise unsupported(f"count(DISTINCT) of {value.data_type}")
    return count_of(value, distinct, over)


def _count_of_rows(values: Sequence[Typed], distinct: str, over: str) -> Typed:
    """How many rows, or how many different ones, have none of these values null."""
    for value in values:
        if not is_atomic(value.data_type) or value.data_type in (FLOAT, DOUBLE, VOID):
            raise unsupported(f"a count of several values, of which one is {value.data_type}")
    known = " AND ".join(f"{value.sql} IS NOT NULL" for value in values)
    row = f"({', '.join(value.sql for value in values)})" if distinct else "1"
    return Typed(f"count({distinct} CASE WHEN {known} THEN {row} END){over}", LONG)


def _average(value: Typed, distinct: str, over: str) -> Typed:
    kind = value.data_type
    if isinstance(kind, DecimalType) and kind.precision + 14 <= MAX_DECIMAL_DIGITS:
        # The digits of the sum, ten more than a value has, and four further ones of the quotient.
        digits = digits_of(sum_of(value, distinct, over).sql)
        count = f"CAST({count_of(value, distinct, over).sql} AS HUGEINT)"
        return rounded_quotient(digits, count, 4, DecimalType(kind.precision + 4, kind.scale + 4))
    if not is_number(kind) or isinstance(kind, DecimalType):
        raise unsupported(f"avg of {kind}")
    return Typed(f"avg({distinct}{widen(value, DOUBLE).sql}){over}", DOUBLE)


def _of_truth(pattern: str, kind: DataType) -> Callable[[Typed, str, str], Typed]:
    def aggregate(value: Typed, distinct: str, over: str) -> Typed:
        if value.data_type != BOOLEAN or distinct:
            raise unsupported(f"an aggregate of truth over {distinct}{value.data_type}")
        return Typed(pattern.format(value.sql) + over, kind)

    return aggregate


def _of_bits(function: str) -> Callable[[Typed, str, str], Typed]:
    def aggregate(value: Typed, distinct: str, over: str) -> Typed:
        if value.data_type not in INTEGRAL_RANGES or distinct:
            raise unsupported(f"{function} of {distinct}{value.data_type}")
        return Typed(f"{function}({value.sql}){over}", value.data_type)

    return aggregate


def _by(function: str) -> Callable[[Typed, Typed, str, str], Typed]:
    def aggregate(value: Typed, key: Typed, distinct: str, over: str) -> Typed:
        if not is_atomic(key.data_type) or VOID in (value.data_type, key.data_type) or distinct:
            raise unsupported(f"the row of the least or greatest {distinct}{key.data_type}")
        return Typed(f"{function}({value.sql}, {key.sql}){over}", value.data_type)

    return aggregate


def _end(function: str) -> Callable[[Typed, str, str], Typed]:
    def aggregate(value: Typed, distinct: str, over: str) -> Typed:
        if distinct or value.data_type == VOID:
            raise unsupported(f"{function} of {distinct}{value.data_type}")
        return Typed(f"{function}({value.sql}){over}", value.data_type)

    return aggregate


def _collected(word: str) -> Callable[[Typed, str, str], Typed]:
    """`collect_list` and `collect_set` (DISTINCT), which leave nulls out."""

    def aggregate(value: Typed, distinct: str, over: str) -> Typed:
        kind = value.data_type
        if kind == VOID or ((word or distinct) and (not is_atomic(kind) or kind in (FLOAT, DOUBLE))):
            raise unsupported(f"a list of {word or distinct}{kind}")
        found = f"list_filter(list({word or distinct}{value.sql}){over}, lambda one: one IS NOT NULL)"
        return Typed(f"coalesce({found}, [])", ArrayType(kind, False))

    return aggregate


def _percentile(value: Typed, share: Typed, distinct: str, over: str) -> Typed:
    """As Spark computes it: between two neighbors in the order of the values, as far as it is from each."""
    number = None if share.literal is None else share.literal.value
    if not is_number(value.data_type) or distinct or isinstance(number, bool | str) or number is None:
        raise unsupported(f"percentile of {distinct}{value.data_type} with such a share")
    if not 0 <= (part := float(number)) <= 1:
        raise InvalidExpressionError(f"{part} is not a share: it must lie between 0 and 1")
    place = f"(CAST(len(l) - 1 AS DOUBLE) * CAST({part!r} AS DOUBLE))"
    low, high = (f"l[CAST({end}({place}) AS BIGINT) + 1]" for end in ("floor", "ceil"))
    lower, higher = (widen(Typed(text, value.data_type), DOUBLE).sql for text in (low, high))
    between = f"(ceil({place}) - {place}) * {lower} + ({place} - floor({place})) * {higher}"
    found = f"CASE WHEN len(l) > 0 THEN CASE WHEN {low} = {high} THEN {lower} ELSE {between} END END"
    ordered = f"list_sort(list_filter(list({value.sql}){over}, lambda one: one IS NOT NULL))"
    return Typed(f"list_transform([{ordered}], lambda l: {found})[1]", DOUBLE)


_HALF = Typed("0.5", DOUBLE, Literal(0.5))
_BY = {"max_by": "arg_max_null", "min_by": "arg_min_null"}
_OF_TWO = frozenset({*_BY, "percentile"})
AGGREGATES: dict[str, Callable[..., Typed]] = {
    "count": _count,
    "sum": sum_of,
    "avg": _average,
    "mean": _average,
    "min": lambda value, _, over: extreme_of("min", value, over),
    "max": lambda value, _, over: extreme_of("max", value, over),
    "count_if": _of_truth("count(CASE WHEN {} THEN 1 END)", LONG),
    "bool_and": _of_truth("bool_and({})", BOOLEAN),
    "every": _of_truth("bool_and({})", BOOLEAN),
    "bool_or": _of_truth("bool_or({})", BOOLEAN),
    "some": _of_truth("bool_or({})", BOOLEAN),
    "any": _of_truth("bool_or({})", BOOLEAN),
    **{name: _of_bits(name) for name in ("bit_and", "bit_or", "bit_xor")},
    "collect_list": _collected(""),
    "array_agg": _collected(""),
    "collect_set": _collected("DISTINCT "),
    **{name: _by(function) for name, function in _BY.items()},
    **{name: _end(name[:5].rstrip("_")) for name in ("first", "first_value", "last", "last_value")},
    "any_value": _end("first"),
    "percentile": _percentile,
    "median": lambda value, distinct, over: _percentile(value, _HALF, distinct, over),
}

# Window functions. By their names: the least and the most arguments, and Spark's type, None for the first argument's.
_RANKS: dict[str, tuple[int, DataType]] = {
    "row_number": (0, INTEGER), "rank": (0, INTEGER), "dense_rank": (0, INTEGER), "ntile": (1, INTEGER),
    "percent_rank": (0, DOUBLE), "cume_dist": (0, DOUBLE),
}  # fmt: skip
_NEIGHBORS = ("lag", "lead")
_PICKED = {"first": "first_value", "last": "last_value", "any_value": "first_value"}
_PICKED |= {name: name for name in ("first_value", "last_value", "nth_value")}
WINDOW_FUNCTIONS = frozenset({*_RANKS, *_NEIGHBORS, *_PICKED, *AGGREGATES})


def _windowed(node: Over, window: Window, scalars: Scalars) -> Typed:
    call = node.arguments[0]
    assert isinstance(call, Call)
    match call.arguments:
        case [value, Literal(bool(ignores))] if call.name in _PICKED:
            call = replace(call, arguments=(value,), detail=IGNORES_NULLS if ignores else call.detail)
    may_ignore = call.name in (*_NEIGHBORS, *_PICKED) and call.detail == IGNORES_NULLS
    if call.name not in WINDOW_FUNCTIONS or (call.detail and not may_ignore):
        raise unsupported(describe(node))
    is_ordered = call.name in _RANKS or call.name in _NEIGHBORS
    if is_ordered and not window.order:
        raise InvalidExpressionError(
            f"{call.name} needs a window with an order", remedy="Write ORDER BY in OVER (…)", function=call.name
        )
    if (is_ordered and window.frame) or (window.frame.startswith("RANGE") and not window.order):
        raise unsupported(f"{window.frame} of {call.name}")
    over = f" OVER ({_window(window, scalars)})"
    if call.name in AGGREGATES and call.name not in _PICKED:
        return _aggregate(call, scalars, over)
    values = [scalars.scalar(argument) for argument in call.arguments]
    if call.name in _RANKS:
        count, kind = _RANKS[call.name]
        if len(values) != count or not all(map(_is_count, values)):
            raise unsupported(describe(node))
        return Typed(f"CAST({call.name}({''.join(value.sql for value in values)}){over} AS {duckdb_type(kind)})", kind)
    return (_picked if call.name in _PICKED else _neighbor)(call, values, f" {call.detail}){over}")


def _neighbor(call: Call, values: Sequence[Typed], ending: str) -> Typed:
    """`lag` and `lead`."""
    first, *others = values
    if not 1 <= len(values) <= 3 or (others and not _is_count(others[0])):
        raise unsupported(describe(call))
    if len(values) == 3:
        if common_type(first.data_type, others[1].data_type) != first.data_type:
            raise unsupported(f"{call.name} of {first.data_type} with a default of {others[1].data_type}")
        others[1] = widen(others[1], first.data_type)
    return Typed(f"{call.name}({', '.join(value.sql for value in (first, *others))}{ending}", first.data_type)


def _picked(call: Call, values: Sequence[Typed], ending: str) -> Typed:
    """`first_value`, `last_value` and `nth_value`."""
    first, *counts = values
    if len(counts) != (call.name == "nth_value") or not all(map(_is_count, counts)) or first.data_type == VOID:
        raise unsupported(describe(call))
    return Typed(f"{_PICKED[call.name]}({', '.join(value.sql for value in values)}{ending}", first.data_type)


def _is_count(value: Typed) -> bool:
    return value.literal is not None and type(value.literal.value) is int and value.literal.value > 0


def _window(window: Window, scalars: Scalars) -> str:
    parts = []
    keys = [scalars.scalar(key) for key in window.partition]
    for key in keys:
        if not is_atomic(key.data_type):
            raise unsupported(f"PARTITION BY {key.data_type}")
        if "error(" in key.sql:
            raise unsupported("PARTITION BY a value that may fail (compute it in a query in FROM)")
    if keys:
        parts.append(f"PARTITION BY {', '.join(key.sql for key in keys)}")
    if window.order:
        parts.append(f"ORDER BY {', '.join(sort_key(scalars.scalar(key.node), key) for key in window.order)}")
    return " ".join([*parts, window.frame]).rstrip()


def sort_key(value: Typed, key: OrderKey) -> str:
    """A key of ORDER BY. Raises UnsupportedExpressionError for what has no order."""
    if not is_atomic(value.data_type):
        raise unsupported(f"ORDER BY {describe(key.node)}")
    return f"{value.sql} {'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def without_minus_zero(value: Typed) -> Typed:
    """Spark groups by -0.0 as 0.0."""
    is_float = value.data_type in (FLOAT, DOUBLE)
    return replace(value, sql=f"({value.sql} + CAST(0 AS {value.data_type}))") if is_float else value


def widened(query: DuckDBQuery, schema: StructType, is_plain: bool = True) -> str:
    """A side of a set operation, in the types that both sides have together. `is_plain` False: rows are compared."""
    pairs = list(zip(query.schema, schema, strict=True))
    if all(own.data_type == target.data_type for own, target in pairs) and (is_plain or not _has_float(schema)):
        return query.sql
    names = [f"c{number}" for number in range(len(pairs))]
    columns = []
    for name, (own, target) in zip(names, pairs, strict=True):
        value = widen(Typed(f"side.{name}", own.data_type), target.data_type)
        value = value if is_plain else without_minus_zero(value)
        columns.append(f"{value.sql} AS {quote_duckdb_identifier(target.name)}")
    return f"SELECT {', '.join(columns)} FROM ({query.sql}) AS side({', '.join(names)})"


def _has_float(schema: StructType) -> bool:
    return any(f.data_type in (FLOAT, DOUBLE) for f in schema)


def group_keys(select: Select, scalars: Scalars) -> dict[str, str]:
    """The keys of GROUP BY by their own texts. A bare number is that of an item of the SELECT list. A name is that of a
    column, or else of an item; ALL is every item without an aggregate, unless a column is called so."""
    named = {item.alias.lower(): item.node for item in select.items if item.alias}
    keys: dict[str, str] = {}
    for key in select.group:
        if isinstance(key, Literal) and type(key.value) is int:
            number = _item_number(key.value, select)
            if any(is_star(item.node) for item in select.items[: key.value]):
                keys[number] = number
                continue
            key = select.items[key.value - 1].node
        own = key.path[0].lower() if isinstance(key, Column) and len(key.path) == 1 else ""
        try:
            scalars.scalar(key)
        except ColumnNotFoundError:
            if own == "all" and len(select.group) == 1 and own not in named:
                nodes = (item.node for item in select.items if not has_aggregate(item.node))
                return dict(_group_key(node, scalars) for node in nodes)
            if own not in named:
                raise
            key = named[own]
        keys.update([_group_key(key, scalars)])
    return keys


def group_by(select: Select, scalars: Scalars, keys: Mapping[str, str]) -> str:
    """GROUP BY, with the groups of ROLLUP, CUBE and GROUPING SETS; then with HAVING, too."""
    if not select.grouping:
        return f"GROUP BY {', '.join(keys.values())}"
    if any(isinstance(node, Literal) for node in select.group):
        raise unsupported("constants among groups of several sizes")
    items = []
    for item in select.grouping:
        sets = [", ".join(group_keys(replace(select, group=one), scalars).values()) for one in item.sets]
        items.append(f"{item.keyword} ({', '.join(f'({one})' for one in sets)})" if item.keyword else sets[0])
    # Without rows Spark makes no groups, not even that of all of them.
    return f"GROUP BY {', '.join(items)} HAVING count(*) > 0"


def _item_number(number: int, select: Select) -> str:
    count = len(select.items)
    if number < 1 or (number > count and not any(is_star(item.node) for item in select.items)):
        raise InvalidExpressionError(f"GROUP BY {number} names no column", remedy=f"There are {count}")
    return str(number)


def _group_key(node: Expression, scalars: Scalars) -> tuple[str, str]:
    value = scalars.scalar(node)
    if not is_atomic(value.data_type):
        raise unsupported(f"GROUP BY {value.data_type}")
    if value.literal is None:
        return value.sql, without_minus_zero(value).sql
    # DuckDB takes a bare number for that of an item.
    text = f"{value.sql} + 0" if type(value.literal.value) is int else value.sql
    return text, text


def has_aggregate(node: Expression) -> bool:
    """Whether an item of the SELECT list is no key of GROUP BY ALL."""
    if isinstance(node, Over) or is_star(node):
        raise unsupported("GROUP BY ALL beside * or a window")
    is_one = isinstance(node, Call) and not isinstance(node, Operation) and node.name in AGGREGATES
    return is_one or any(map(has_aggregate, children_of(node)))


def order_key(
    key: OrderKey, scalars: Scalars, outputs: Mapping[str, StructField], fields: Sequence[StructField]
) -> str:
    """A key of ORDER BY. `outputs`: the columns of the SELECT list by their names in lower case."""
    if isinstance(key.node, Literal) and type(key.node.value) is int and key.node.data_type is None:
        number = key.node.value
        if not 1 <= number <= len(fields):
            raise InvalidExpressionError(f"ORDER BY {number} names no column", remedy=f"There are {len(fields)}")
        return sort_key(Typed(str(number), fields[number - 1].data_type), key)
    own = outputs.get(key.node.path[0].lower()) if isinstance(key.node, Column) and len(key.node.path) == 1 else None
    try:
        value = Typed(quote_duckdb_identifier(own.name), own.data_type) if own else scalars.scalar(key.node)
    except ColumnNotFoundError:
        if not (isinstance(key.node, Column) and ".".join(key.node.path).lower() == "all"):
            raise
        numbers = map(Literal, range(1, len(fields) + 1))
        return ", ".join(order_key(replace(key, node=number), scalars, outputs, fields) for number in numbers)
    if value.literal is not None:
        raise unsupported(f"ORDER BY {describe(key.node)}")
    return sort_key(value, key)
