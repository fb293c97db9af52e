"""Columns computed batch by batch: what is only passed on stays in Arrow, whatever its type, and so do constants and
plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import ComputedColumn
from delta_orch.engines.batch_bytes import (
    cut_by_bytes,
    is_text_dictionary,
    keeping_dictionaries,
    repeated,
    text_dictionaries,
)
from delta_orch.engines.conform import conform_batch, nulls_of
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import column_indexes, ensure_distinct, value_at
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.constants import constant_of
from delta_orch.expressions.fit_comparison import literal_type
from delta_orch.expressions.nodes import Cast, Column, Expression, Literal, Opaque, Operation
from delta_orch.expressions.parse import syntax_of
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import natural_type
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.arrow_building import literal_scalar, schema_to_arrow, type_to_arrow
from delta_orch.protocol.types import (
    BYTE,
    DOUBLE,
    INTEGER,
    LONG,
    SHORT,
    VOID,
    DataType,
    StructField,
    StructType,
    fields_on,
)

if TYPE_CHECKING:
    from delta_orch.engines.local.duckdb_requests import Evaluator

_MOST_BYTES = (1 << 31) - 1


def projected_batches(relation: LocalRelation, columns: Sequence[ComputedColumn]) -> LocalRelation:
    """Exactly these columns, rows in their order; see `Engine.project`.

    Raises:
        UnsupportedExpressionError: A value is not proven to mean the same in DuckDB as in Spark.
    """
    ensure_distinct([column.name for column in columns])
    computed = [column for column in columns if _is_computed(column, relation.schema)]
    in_arrow = {
        c.name: expression for c in computed if (expression := Arithmetic.of(c.value, relation.schema)) is not None
    }
    in_duckdb = [column for column in computed if column.name not in in_arrow]
    types = dict(zip((c.name for c in in_duckdb), _types(in_duckdb, relation.schema), strict=True))
    types |= {name: expression.data_type for name, expression in in_arrow.items()}
    fields = tuple(_field(column, relation.schema, types) for column in columns)
    target = schema_to_arrow(StructType(fields))
    used = {column.path[0] for one in computed for column in columns_of(one.value)}
    of_duckdb = {column.path[0] for one in in_duckdb for column in columns_of(one.value)}
    # An expression over one text column is computed once for each text of a dictionary.
    single = next(iter(of_duckdb)) if len(of_duckdb) == 1 else None
    passed_on = [name for name in relation.schema.names if name not in used or name == single]

    def batches() -> Iterator[pa.RecordBatch]:
        evaluate = None
        if in_duckdb:
            from delta_orch.engines.local.duckdb_requests import evaluator

            evaluate = evaluator(in_duckdb, relation.schema)
        for batch in relation.batches(passed_on):
            for rows, in_query in [(batch, ())] if evaluate is None else _evaluated(evaluate, batch, single):
                values = {name: expression.values(rows, name) for name, expression in in_arrow.items()}
                values |= zip((column.name for column in in_duckdb), in_query, strict=True)
                arrays = [
                    values[column.name] if column.name in values else _taken(column, field, rows, relation.schema)
                    for column, field in zip(columns, fields, strict=True)
                ]
                made = pa.RecordBatch.from_arrays(arrays, names=target.names)
                dictionaries = text_dictionaries(made, target.names)
                kinds = keeping_dictionaries(target, made.schema, dictionaries)
                for part in cut_by_bytes(made, dictionaries):
                    yield conform_batch(part, kinds, lossless=True)

    return LocalRelation(StructType(fields), batches)


def _evaluated(
    evaluate: Evaluator, batch: pa.RecordBatch, single: str | None
) -> Iterator[tuple[pa.RecordBatch, Sequence[pa.Array]]]:
    """The rows with what they have for each value. `single` is the only column that the values are of, if there is one:
    where that is a dictionary, each of its texts that is used is looked at once."""
    column = None if single is None else batch.column(single)
    if column is None or not is_text_dictionary(column.type):
        yield from evaluate(batch)
        return
    places = pc.unique(column.indices)
    texts = pc.take(column.dictionary, places)
    parts = [values for _, values in evaluate(pa.RecordBatch.from_arrays([texts], names=[single]))]
    at = pc.index_in(column.indices, places)
    columns = []
    for values in map(pa.concat_arrays, zip(*parts, strict=True)):
        plain = pa.string() if pa.types.is_large_string(values.type) else pa.binary()
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
            texts = pc.cast(values, plain) if values.nbytes < _MOST_BYTES else values
            columns.append(pa.DictionaryArray.from_arrays(at, texts))
        else:
            columns.append(pc.take(values, at))
    yield batch, columns


def _is_computed(column: ComputedColumn, schema: StructType) -> bool:
    if isinstance(column.value, Literal):
        return False
    return not (isinstance(column.value, Column) and find_column(column.value.path, schema)[1] is not None)


def _types(columns: Sequence[ComputedColumn], schema: StructType) -> list[DataType]:
    if not columns:
        return []
    from delta_orch.engines.local.duckdb_requests import value_types

    return value_types(columns, schema)


def _field(column: ComputedColumn, schema: StructType, types: dict[str, DataType]) -> StructField:
    match column.value:
        case Literal(value, data_type):
            return StructField(column.name, data_type or (VOID if value is None else natural_type(value)))
        case Column(path) if column.name not in types:
            *_, innermost = fields_on(find_column(path, schema)[0], schema)
            return StructField(column.name, innermost.data_type, metadata=innermost.metadata)
    return StructField(column.name, types[column.name])


def _taken(column: ComputedColumn, field: StructField, batch: pa.RecordBatch, schema: StructType) -> pa.Array:
    match column.value:
        case Literal(value):
            if value is None:
                return nulls_of(batch.num_rows, type_to_arrow(field.data_type))
            return repeated(literal_scalar(value, field.data_type), batch.num_rows)
        case Column(path):
            return value_at(batch, column_indexes(find_column(path, schema)[0], schema))
    raise AssertionError("computed elsewhere")


# Sums, differences and products that Arrow computes as Spark does: `n + 1` starts no DuckDB in a new process.

_KINDS = (BYTE, SHORT, INTEGER, LONG, DOUBLE)
"""Two operands are computed in the later one. Floats and decimals have rules of their own."""
_FUNCTIONS = {"+": ("add_checked", "add"), "-": ("subtract_checked", "subtract"), "*": ("multiply_checked", "multiply")}
_MOST_OPERATIONS = 16


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A value of `data_type` for each row of a batch."""

    data_type: DataType
    _values: Callable[[pa.RecordBatch], pa.Array | pa.Scalar]

    @staticmethod
    def of(value: Expression, schema: StructType) -> Arithmetic | None:
        """None if a value is something else, or if all rows have the same value."""
        if isinstance(value, Opaque) and value.columns:
            node = syntax_of(value)
            is_known = isinstance(node, Operation) and node.depth <= _MOST_OPERATIONS
            return _operand(node, schema) if is_known else None
        if isinstance(value, Cast) and value.data_type in _KINDS:
            inner = Arithmetic.of(value.value, schema)
            return None if inner is None else inner._widened(value.data_type)
        return None

    def values(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """The values of the column `name`. Raises InvalidExpressionError: an integer overflows."""
        try:
            return self._values(batch)
        except pa.ArrowInvalid as e:
            raise InvalidExpressionError(
                f"The expression of column {name} failed for a row",
                cause=f"The result is beyond the range of its integer type ({e})",
            ) from e

    def _widened(self, target: DataType) -> Arithmetic | None:
        if self.data_type == target:
            return self
        if _KINDS.index(self.data_type) > _KINDS.index(target):
            return None
        kind = type_to_arrow(target)
        # A double takes the nearest value of a long, as in Spark.
        return Arithmetic(target, lambda batch: pc.cast(self._values(batch), kind, safe=False))


def _operand(node: Expression, schema: StructType) -> Arithmetic | None:
    if (literal := constant_of(node)) is not None:
        if literal.value is None or (kind := literal_type(literal)) not in _KINDS:
            return None
        scalar = literal_scalar(literal.value, kind)
        return Arithmetic(kind, lambda _: scalar)
    match node:
        case Column(path):
            column, data_type = find_column(path, schema)
            if data_type not in _KINDS:
                return None
            indexes = column_indexes(column, schema)
            return Arithmetic(data_type, lambda batch: value_at(batch, indexes))
        case Operation("+" | "-" | "*" as sign, (first, second)):
            left, right = _operand(first, schema), _operand(second, schema)
            if left is None or right is None:
                return None
            kind = max(left.data_type, right.data_type, key=_KINDS.index)
            left, right = left._widened(kind), right._widened(kind)
            assert left is not None
            assert right is not None
            return Arithmetic(kind, _applied(getattr(pc, _FUNCTIONS[sign][kind == DOUBLE]), left, right))
    return None


def _applied(function: Callable[..., pa.Array], left: Arithmetic, right: Arithmetic) -> Callable[..., pa.Array]:
    return lambda batch: function(left._values(batch), right._values(batch))
