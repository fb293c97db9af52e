"""Requests that take DuckDB: expressions that Arrow does not evaluate, joins and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.engines.base import ComputedColumn, JoinKind, JoinSide, Measure, WindowColumn, join_schema
from delta_orch.engines.batch_bytes import BATCH_BYTES
from delta_orch.engines.local.duckdb_query import (
    BATCH,
    BATCH_ROWS,
    DuckDBQuery,
    QueryInput,
    on_batches,
    query_relation,
    rows_together,
)
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.sql_operators import Scalars
from delta_orch.engines.local.sql_types import (
    Source,
    Typed,
    is_atomic,
    qualified,
    struct_field,
    unsupported,
    widen,
)
from delta_orch.engines.scan_plan import ensure_distinct
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import duckdb_type, quote_duckdb_identifier
from delta_orch.protocol.types import DOUBLE, FLOAT, LONG, VOID, DataType, DecimalType, StructField, StructType

if TYPE_CHECKING:
    import pyarrow as pa

Evaluator = Callable[["pa.RecordBatch"], Iterator[tuple["pa.RecordBatch", "list[pa.Array]"]]]
_INPUT = "input_0"
_FOUND = "_delta_orch_found"
_FLIPPED = {"inner": "INNER", "left": "RIGHT", "right": "LEFT", "full": "FULL", "anti": "RIGHT"}


def filtered(relation: LocalRelation, where: Expression, schema: StructType) -> LocalRelation:
    """The rows for which a resolved predicate is true, with the columns of `schema`.

    Raises UnsupportedExpressionError where it is not proven to mean the same in DuckDB as in Spark.
    """
    if not schema.fields:
        # SQL has no rows without columns.
        rows = filtered(relation, where, relation.schema)
        return LocalRelation(schema, lambda: (batch.select([]) for batch in rows.open_batches()))
    source = Source(_INPUT, relation.schema, set(schema.names))
    columns = ", ".join(qualified(_INPUT, name) for name in schema.names)
    sql = f"SELECT {columns} FROM {_INPUT} WHERE {Scalars(source).predicate(where)}"
    return query_relation(DuckDBQuery(sql, schema, {_INPUT: QueryInput(relation, source.used)}))


def violation_finder(condition: Expression, schema: StructType) -> Callable[[pa.RecordBatch], pa.Table]:
    """A function that returns the rows of a batch for which a resolved condition is false or null. Raises as
    `filtered`."""
    holds = Scalars(Source(BATCH, schema)).predicate(condition)
    return on_batches(f"SELECT * FROM {BATCH} WHERE NOT coalesce({holds}, FALSE) LIMIT 1")


def evaluator(columns: Sequence[ComputedColumn], schema: StructType) -> Evaluator:
    """A function that evaluates values over the columns of `schema`, for each row of a batch in its order. It gives the
    rows in slices, each with its values: as many together as have taken no more than `BATCH_BYTES` so far.

    Raises:
        UnsupportedExpressionError: A value is not proven to mean the same in DuckDB as in Spark.
        InvalidExpressionError, ColumnNotFoundError: Spark also refuses it. While it runs, InvalidExpressionError for
            what Spark refuses then: overflow, division by zero.
    """
    scalars = Scalars(Source(BATCH, schema))
    typed = [scalars.value(column.value) for column in columns]
    values = ", ".join(f"{value.sql} AS c{i}" for i, value in enumerate(typed))
    names = ", ".join(column.name for column in columns)
    run = on_batches(f"SELECT {values} FROM {BATCH}", f"The expression of column {names} failed for a row")
    typed_names = {field.name for field in schema if field.data_type != VOID}

    most_rows = rows_together(value.data_type for value in typed)

    def evaluate(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[pa.Array]]]:
        nonlocal most_rows
        used = [name for name in batch.schema.names if name in typed_names] or batch.schema.names[:1]
        start = 0
        while start < batch.num_rows or start == 0:
            rows = batch.slice(start, most_rows)
            results = run(rows.select(used))
            yield rows, [column.combine_chunks() for column in results.columns]
            start += max(rows.num_rows, 1)
            most_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * rows.num_rows // max(results.nbytes, 1)))

    return evaluate


def value_types(columns: Sequence[ComputedColumn], schema: StructType) -> list[DataType]:
    """The types that values over the columns of `schema` have. Raises as `evaluator`, which gives the values."""
    scalars = Scalars(Source(BATCH, schema))
    return [scalars.value(column.value).data_type for column in columns]


def projected(relation: LocalRelation, columns: Sequence[ComputedColumn]) -> LocalRelation:
    """See `Engine.project`."""
    source = Source(_INPUT, relation.schema)
    selected, schema = _selected(Scalars(source), columns)
    return query_relation(
        DuckDBQuery(f"SELECT {selected} FROM {_INPUT}", schema, {_INPUT: QueryInput(relation, source.used)})
    )


def joined(
    left: JoinSide, right: JoinSide, on: Expression, kind: JoinKind, columns: Sequence[ComputedColumn]
) -> LocalRelation:
    """See `Engine.join`."""
    relations = [LocalRelation.of(side.relation) for side in (left, right)]
    sources = [Source(side.alias, relation.schema) for side, relation in zip((left, right), relations, strict=True)]
    scalars = Scalars(_Sides(sources))
    condition = scalars.predicate(on)
    selected, schema = _selected(Scalars(_Sides(sources[:1])) if kind in ("semi", "anti") else scalars, columns)
    names = [quote_duckdb_identifier(side.alias) for side in (left, right)]
    sides = zip(relations, sources, strict=True)
    inputs = {f"input_{i}": QueryInput(relation, source.used) for i, (relation, source) in enumerate(sides)}
    is_known = left.num_rows is not None and right.num_rows is not None and kind != "semi"
    if is_known and (left.num_rows or 0) < (right.num_rows or 0):
        rows, kept = f"input_1 AS {names[1]}", ""
        if kind == "anti":
            # Rows without a partner are those whose partner is not there: so the left side is the one in memory.
            mark = quote_duckdb_identifier(free_name(_FOUND, relations[1].schema.names))
            rows = f"(SELECT *, TRUE AS {mark} FROM input_1) AS {names[1]}"
            kept = f" WHERE {names[1]}.{mark} IS NULL"
        sql = f"{rows} {_FLIPPED[kind]} JOIN input_0 AS {names[0]} ON {condition}{kept}"
    else:
        sql = f"input_0 AS {names[0]} {kind.upper()} JOIN input_1 AS {names[1]} ON {condition}"
    return query_relation(DuckDBQuery(f"SELECT {selected} FROM {sql}", schema, inputs, keeps_sides=is_known))


def aggregated(relation: LocalRelation, keys: Sequence[ComputedColumn], measures: Sequence[Measure]) -> LocalRelation:
    """See `Engine.aggregate`."""
    source = Source(_INPUT, relation.schema)
    scalars = Scalars(source)
    values = [(key.name, scalars.value(key.value)) for key in keys]
    for name, value in values:
        if not is_atomic(value.data_type):
            raise unsupported(f"groups by {name} of type {value.data_type}")
    selected, schema = _typed_columns([*values, *((m.name, _measured(scalars, m)) for m in measures)])
    # By position, because a constant is a column of the result as well.
    groups = f" GROUP BY {', '.join(str(i + 1) for i in range(len(keys)))}" if keys else ""
    sql = f"SELECT {selected} FROM {_INPUT}{groups}"
    return query_relation(DuckDBQuery(sql, schema, {_INPUT: QueryInput(relation, source.used)}))


def windowed(
    relation: LocalRelation, keys: Sequence[Column], order_by: Sequence[Column], columns: Sequence[WindowColumn]
) -> LocalRelation:
    """See `Engine.window`."""
    source = Source(_INPUT, relation.schema)
    scalars = Scalars(source)
    own = [(name, source.find((name,))) for name in relation.schema.names]
    groups = f"PARTITION BY {', '.join(scalars.value(key).sql for key in keys)} " if keys else ""
    order = ", ".join(f"{scalars.value(column).sql} ASC NULLS FIRST" for column in order_by)
    over = f"OVER ({groups}ORDER BY {order})"
    computed = []
    for column in columns:
        value = Typed("", LONG) if column.value is None else scalars.value(column.value)
        computed.append((column.name, Typed(f"{column.function}({value.sql}) {over}", value.data_type)))
    selected, schema = _typed_columns([*own, *computed])
    sql = f"SELECT {selected} FROM {_INPUT}"
    return query_relation(DuckDBQuery(sql, schema, {_INPUT: QueryInput(relation, source.used)}))


def repeated(relation: LocalRelation) -> LocalRelation:
    """The rows that occur more than once, each once. Columns may be of any type; nulls are equal to each other."""
    names = ", ".join(map(quote_duckdb_identifier, relation.schema.names))
    sql = f"SELECT {names} FROM {_INPUT} GROUP BY {names} HAVING count(*) > 1"
    inputs = {_INPUT: QueryInput(relation, set(relation.schema.names))}
    return query_relation(DuckDBQuery(sql, relation.schema, inputs))


def _measured(scalars: Scalars, measure: Measure) -> Typed:
    if measure.value is None:
        if measure.function != "count":
            raise InvalidRequestError(f"{measure.function} of {measure.name} needs a value")
        return Typed("count(*)", LONG)
    value = scalars.value(measure.value)
    match measure.function:
        case "count":
            return Typed(f"count({value.sql})", LONG)
        case "sum":
            return _sum(value)
    return _extreme(measure.function, value)


def _sum(value: Typed) -> Typed:
    """The sum in Spark's type. Raises UnsupportedExpressionError for what is not a number."""
    if value.data_type in INTEGRAL_RANGES:
        return Typed(f"CAST(sum({value.sql}) AS BIGINT)", LONG)
    if value.data_type in (FLOAT, DOUBLE):
        return Typed(f"sum({widen(value, DOUBLE).sql})", DOUBLE)
    if isinstance(value.data_type, DecimalType):
        kind = DecimalType(min(value.data_type.precision + 10, MAX_DECIMAL_DIGITS), value.data_type.scale)
        return Typed(f"CAST(sum({value.sql}) AS {duckdb_type(kind)})", kind)
    raise unsupported(f"a sum of {value.data_type}")


def _extreme(function: str, value: Typed) -> Typed:
    """`min` or `max`. Raises UnsupportedExpressionError for arrays, maps, variants, and structs that hold no atoms."""
    kind = value.data_type
    if isinstance(kind, StructType) and all(is_atomic(field.data_type) for field in kind):
        # Of two fields, a null is the lesser one in Spark, the greater one in DuckDB.
        fields = [struct_field(value, name).sql for name in kind.names]
        key = ", ".join(f"k{i} := {field} IS NOT NULL, v{i} := {field}" for i, field in enumerate(fields))
        return Typed(f"arg_{function}({value.sql}, if({value.sql} IS NOT NULL, struct_pack({key}), NULL))", kind)
    if not is_atomic(kind):
        raise unsupported(f"{function} of {kind}")
    return Typed(f"{function}({value.sql})", kind)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The columns of a join, each after the alias of its side."""

    sources: Sequence[Source]

    def find(self, path: tuple[str, ...]) -> Typed:
        for source in self.sources:
            if source.alias.lower() == path[0].lower() and len(path) > 1:
                return source.find(path[1:])
        find_column(path, join_schema({source.alias: source.schema for source in self.sources}))
        raise unsupported(f"a whole side of a join as a value: {path[0]}")


def _selected(scalars: Scalars, columns: Sequence[ComputedColumn]) -> tuple[str, StructType]:
    return _typed_columns([(column.name, scalars.value(column.value)) for column in columns])


def _typed_columns(values: Sequence[tuple[str, Typed]]) -> tuple[str, StructType]:
    if not values:
        raise InvalidRequestError("A request needs at least one column")
    ensure_distinct([name for name, _ in values])
    texts = [f"{value.sql} AS {quote_duckdb_identifier(name)}" for name, value in values]
    return ", ".join(texts), StructType(tuple(StructField(name, value.data_type) for name, value in values))
