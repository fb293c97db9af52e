"""Which files a predicate can concern: partition values decide exactly, statistics only rule files out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.expressions.nodes import (
    And,
    Column,
    Comparison,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Or,
    StartsWith,
)
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.arrow_building import all_booleans, narrowed_mask
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.column_bounds import ColumnBounds
from delta_orch.log.read.skipping.file_statistics import leaf_type, read_bounds
from delta_orch.log.read.skipping.outcomes import Outcomes, all_of, any_of
from delta_orch.log.read.skipping.partition_predicates import (
    PartitionValues,
    compare_columns,
    compare_with_literal,
    is_in_literals,
)
from delta_orch.log.read.skipping.statistics_predicates import compare_bounds, in_bounds, prefix_in_bounds
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType
from delta_orch.table.column_mapping import physical_path


@dataclass(frozen=True, slots=True)
class FileMatch:
    """One row a file, no nulls.

    Attributes:
        may_match: False only where the predicate is true for no row.
        all_match: True only where the predicate is true for every row. Only partition values give that.
    """

    may_match: pa.BooleanArray
    all_match: pa.BooleanArray


def match_files(files: pa.Table, where: Expression, schema: StructType, partition_columns: Sequence[str]) -> FileMatch:
    """Sort files by a predicate.

    Args:
        files: Columns of `file_columns`: `partition_values`, which decide predicates over partition columns exactly;
            `stats`, where present, are used for all other columns. A file whose `partition_values` are null (a
            `remove` may lack them) may hold anything.
        where: Resolved against `schema`.
        schema: The table's schema.
        partition_columns: Logical names.

    Raises:
        ProtocolViolationError: A partition value of the log is none of its column's type.
    """
    values = PartitionValues.of_files(files, schema)
    by_partition = _Evaluator(values, schema, partition_columns, None).outcomes(where)
    columns = data_columns(where, schema, partition_columns)
    if not columns or "stats" not in files.column_names:
        return FileMatch(by_partition.true, by_partition.all_true())
    rest = files.filter(by_partition.true)
    bounds = read_bounds(FileTable(rest).stats, columns)
    by_statistics = may_match(PartitionValues.of_files(rest, schema), where, schema, partition_columns, bounds)
    # Files that statistics rule out lose their mark; the rows of `rest` are the marked ones, in order.
    left = narrowed_mask(by_partition.true, by_statistics)
    # A file without rows may have both: a predicate that holds for all of them, and none that it holds for.
    return FileMatch(left, pc.and_(left, by_partition.all_true()))


def may_match(
    values: PartitionValues,
    where: Expression,
    schema: StructType,
    partition_columns: Sequence[str],
    bounds: Mapping[tuple[str, ...], ColumnBounds] | None = None,
) -> pa.BooleanArray:
    """As `match_files(…).may_match`, of partition values and of bounds of columns, by physical path."""
    return _Evaluator(values, schema, partition_columns, bounds).outcomes(where).true


def data_columns(
    where: Expression, schema: StructType, partition_columns: Sequence[str]
) -> dict[tuple[str, ...], DataType]:
    """The leaf columns of a predicate that statistics may know, by physical path."""
    partitions = {name.lower() for name in partition_columns}
    found = {}
    for column in columns_of(where):
        data_type = leaf_type(schema, column.path)
        is_partition = len(column.path) == 1 and column.path[0].lower() in partitions
        if data_type is not None and not is_partition and not isinstance(data_type, (StructType, ArrayType, MapType)):
            found[physical_path(schema, column.path)] = data_type
    return found


class _Evaluator:
    """Evaluates a predicate over files; without bounds every column but the partition columns is unknown."""

    def __init__(
        self,
        values: PartitionValues,
        schema: StructType,
        partition_columns: Sequence[str],
        bounds: Mapping[tuple[str, ...], ColumnBounds] | None,
    ) -> None:
        self._num_files = values.num_files
        self._values = values
        self._schema = schema
        self._partitions = {name.lower(): name for name in partition_columns}
        self._bounds = bounds or {}

    def outcomes(self, node: Expression) -> Outcomes:
        match node:
            case And(children):
                return all_of([self.outcomes(c) for c in children])
            case Or(children):
                return any_of([self.outcomes(c) for c in children])
            case Not(child):
                return self.outcomes(child).inverted()
            case Literal(value):
                return Outcomes.of_constant(value, self._num_files)
            case IsNull(child):
                return self._is_null(child)
            case Comparison(op, left, right):
                return self._comparison(op, left, right)
            case In(Column() as column, values):
                return self._in(column, values)
            case StartsWith(Column() as column, prefix):
                return self._starts_with(column, prefix)
        return Outcomes.unknown(self._num_files)

    def _comparison(self, op: str, left: Expression, right: Expression) -> Outcomes:
        if isinstance(left, Column) and isinstance(right, Literal) and right.value is not None:
            if (values := self._partition(left)) is not None:
                return self._exact(compare_with_literal(op, values, right, self._literal_type(left, right)))
            if (bounds := self._bounds_of(left)) is not None:
                return compare_bounds(op, bounds, right)
        elif isinstance(left, Column) and isinstance(right, Column):
            values, others = self._partition(left), self._partition(right)
            if values is not None and others is not None:
                return self._exact(compare_columns(op, values, others))
        elif isinstance(right, Literal) and not isinstance(left, Literal | Column):
            return self.outcomes(left).compared(_boolean_results(op, right.value))
        return Outcomes.unknown(self._num_files)

    def _is_null(self, child: Expression) -> Outcomes:
        if not isinstance(child, Column):
            return self.outcomes(child).is_null()
        if (values := self._partition(child)) is not None:
            return self._exact(values.is_null())
        if (bounds := self._bounds_of(child)) is not None:
            return Outcomes(bounds.may_be_null, bounds.may_be_value, all_booleans(False, self._num_files))
        return Outcomes.unknown(self._num_files)

    def _in(self, column: Column, values: Sequence[Literal]) -> Outcomes:
        if (partition := self._partition(column)) is not None:
            return self._exact(is_in_literals(partition, values, self._literal_type(column, *values)))
        if (bounds := self._bounds_of(column)) is not None:
            return in_bounds(bounds, values)
        return Outcomes.unknown(self._num_files)

    def _starts_with(self, column: Column, prefix: str) -> Outcomes:
        if (values := self._partition(column)) is not None:
            return self._exact(pc.starts_with(values, prefix))
        if (bounds := self._bounds_of(column)) is not None:
            return prefix_in_bounds(bounds, prefix)
        return Outcomes.unknown(self._num_files)

    def _exact(self, values: pa.BooleanArray) -> Outcomes:
        outcomes = Outcomes.of_exact(values)
        return outcomes if self._values.missing is None else outcomes.or_unknown(self._values.missing)

    def _partition(self, column: Column) -> pa.Array | None:
        """The typed values of a partition column, None for any other column."""
        name = self._partitions.get(column.path[0].lower()) if len(column.path) == 1 else None
        return None if name is None else self._values.column(name)

    def _literal_type(self, column: Column, *literals: Literal) -> DataType:
        typed = next((literal.data_type for literal in literals if literal.data_type is not None), None)
        data_type = typed or leaf_type(self._schema, column.path)
        assert data_type is not None
        return data_type

    def _bounds_of(self, column: Column) -> ColumnBounds | None:
        return self._bounds.get(physical_path(self._schema, column.path))


def _boolean_results(op: str, value: bool | None) -> dict[bool | None, bool | None]:
    """What a comparison makes of a predicate that is true, false or null."""
    results: dict[bool | None, bool | None] = {}
    for operand in (True, False, None):
        if op == "<=>":
            results[operand] = operand is value
        elif operand is None or value is None:
            results[operand] = None
        else:
            results[operand] = {
                "=": operand == value,
                "!=": operand != value,
                "<": operand < value,
                "<=": operand <= value,
                ">": operand > value,
                ">=": operand >= value,
            }[op]
    return results
