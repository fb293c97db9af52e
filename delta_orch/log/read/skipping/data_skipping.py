"""Which files a predicate can concern: partition values decide exactly, statistics only rule files out.

Of a checkpoint no more is decoded than that takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
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
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import filled_up
from delta_orch.log.read.skipping.file_statistics import ColumnBounds, Path, leaf_type, read_bounds
from delta_orch.log.read.skipping.predicates import (
    Outcomes,
    PartitionValues,
    all_of,
    any_of,
    compare_bounds,
    compare_columns,
    compare_with_literal,
    in_bounds,
    is_in_literals,
    prefix_in_bounds,
)
from delta_orch.protocol.arrow_building import all_booleans, narrowed_mask, one_chunk
from delta_orch.protocol.schema import char_places
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType
from delta_orch.table.column_mapping import physical_path

if TYPE_CHECKING:
    from delta_orch.log.read.checkpoint_files import CheckpointFileActions, LiveRows
    from delta_orch.log.read.checkpoint_reader import RowGroup

_MOST_RECENT = 32


class FileMatch(NamedTuple):
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
        ProtocolViolationError: A partition value of the log does not have its column's type.
    """
    values = PartitionValues.of_files(files, schema)
    columns = data_columns(where, schema, partition_columns)
    has_statistics = bool(columns) and "stats" in files.column_names
    if has_statistics and not partition_columns:
        bounds = read_bounds(FileTable(files).stats, columns)
        return FileMatch(may_match(values, where, schema, (), bounds), all_booleans(False, files.num_rows))
    by_partition = _Evaluator(values, schema, partition_columns, None).outcomes(where)
    if not has_statistics:
        return FileMatch(by_partition.true, by_partition.all_true())
    rest = pc.filter(files, by_partition.true)
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


def may_match_statistics(stats: pa.Array, where: Expression, schema: StructType) -> pa.BooleanArray:
    """As `match_files(…).may_match`, of statistics alone, as JSON: of what has no partition values."""
    bounds = read_bounds(stats, data_columns(where, schema, ()))
    return may_match(PartitionValues(len(stats), None, dict[str, pa.Array]().__getitem__), where, schema, (), bounds)


def data_columns(
    where: Expression, schema: StructType, partition_columns: Sequence[str]
) -> dict[tuple[str, ...], DataType]:
    """The leaf columns of a predicate that statistics may know, by physical path."""
    partitions = {*map(str.lower, partition_columns)}
    columns = {}
    for column in columns_of(where):
        data_type = leaf_type(schema, column.path)
        is_partition = len(column.path) == 1 and column.path[0].lower() in partitions
        if data_type is not None and not is_partition and not isinstance(data_type, (StructType, ArrayType, MapType)):
            columns[physical_path(schema, column.path)] = data_type
    return columns


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
        self._partitions = dict(zip(map(str.lower, partition_columns), partition_columns, strict=True))
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
            if not self._is_filled_up(left) and (bounds := self._bounds_of(left)) is not None:
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
            return self._exact(pc.is_null(values))
        if (bounds := self._bounds_of(child)) is not None:
            return Outcomes(bounds.may_be_null, bounds.may_be_value, all_booleans(False, self._num_files))
        return Outcomes.unknown(self._num_files)

    def _in(self, column: Column, values: Sequence[Literal]) -> Outcomes:
        if (partition := self._partition(column)) is not None:
            return self._exact(is_in_literals(partition, values, self._literal_type(column, *values)))
        # A list for a column of `char` holds its values as files may have them, see `resolve`.
        is_known = len(column.path) == 1 or not self._is_filled_up(column)
        if is_known and (bounds := self._bounds_of(column)) is not None:
            return in_bounds(bounds, values)
        return Outcomes.unknown(self._num_files)

    def _starts_with(self, column: Column, prefix: str) -> Outcomes:
        if (values := self._partition(column)) is not None:
            return self._exact(pc.starts_with(values, prefix))
        if not self._is_filled_up(column) and (bounds := self._bounds_of(column)) is not None:
            return prefix_in_bounds(bounds, prefix)
        return Outcomes.unknown(self._num_files)

    def _exact(self, values: pa.BooleanArray) -> Outcomes:
        outcomes = Outcomes.of_exact(values)
        return outcomes if self._values.missing is None else outcomes.or_unknown(self._values.missing)

    def _partition(self, column: Column) -> pa.Array | None:
        """The typed values of a partition column, None for any other column."""
        name = self._partitions.get(column.path[0].lower()) if len(column.path) == 1 else None
        if name is None:
            return None
        field = self._schema.find(name)
        values = self._values.column(name)
        return values if field is None else filled_up(values, field)

    def _is_filled_up(self, column: Column) -> bool:
        """Whether statistics know a column's texts without the spaces that readers see."""
        field = self._schema.find(column.path[0])
        return field is not None and bool(field.metadata) and column.path[1:] in char_places(field)

    def _literal_type(self, column: Column, *literals: Literal) -> DataType:
        typed = next((literal.data_type for literal in literals if literal.data_type is not None), None)
        data_type = typed or leaf_type(self._schema, column.path)
        assert data_type is not None
        return data_type

    def _bounds_of(self, column: Column) -> ColumnBounds | None:
        return self._bounds.get(physical_path(self._schema, column.path))


def _boolean_results(op: str, value: bool | None) -> dict[bool | None, bool | None]:
    """The results of a comparison whose operand is a true, false or null predicate."""
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


class Pruning(NamedTuple):
    """A predicate, resolved against a table's schema, as a filter of files."""

    where: Expression
    schema: StructType
    partition_columns: tuple[str, ...]

    def of_table(self, files: pa.Table) -> pa.Table:
        """The files that may match. Raises as `match_files`."""
        return pc.filter(files, match_files(files, self.where, self.schema, self.partition_columns).may_match)

    def of_checkpoint(self, adds: CheckpointFileActions) -> CheckpointFileActions:
        """The actions of a checkpoint that may match: statistics are decoded only where partition values fit.

        Raises as `match_files` and `CheckpointFileActions.columns`.
        """
        names = self._partition_names()
        if names:
            values = self._partition_values(adds, names)
            adds = adds.where_groups(
                lambda group: may_match(values[group], self.where, self.schema, self.partition_columns)
            )
        if columns := data_columns(self.where, self.schema, self.partition_columns):
            adds = adds.where_rows(lambda rows: self._by_statistics(rows, names, columns))
        return adds

    def _partition_names(self) -> tuple[str, ...]:
        """The partition columns that the predicate looks at."""
        used = {column.path[0].lower() for column in columns_of(self.where)}
        return tuple(name for name in self.partition_columns if name.lower() in used)

    def _partition_values(self, adds: CheckpointFileActions, names: tuple[str, ...]) -> dict[RowGroup, PartitionValues]:
        """The partition values of every row group, decoded in parallel where they are not known."""
        from delta_orch.log.read.checkpoint_reader import run_parallel

        groups = adds.row_groups()
        unknown = [group for group in groups if self._key(group, names) not in group.part.decoded]
        run_parallel(lambda group: self._values_of(group, names), unknown)
        return {group: self._values_of(group, names) for group in groups}

    def _values_of(self, group: RowGroup, names: tuple[str, ...]) -> PartitionValues:
        """The partition values of all rows of a group. They stay with the checkpoint: typed, they are small."""
        key = self._key(group, names)
        partition_values = group.part.decoded.get(key)
        if not isinstance(partition_values, PartitionValues):
            from delta_orch.log.read.checkpoint_decoding import decode_columns

            maps = one_chunk(decode_columns("add", group, ["partition_values"], None)["partition_values"])
            partition_values = group.part.decoded[key] = PartitionValues.of_maps(maps, self.schema, names)
        return partition_values

    def _key(self, group: RowGroup, names: tuple[str, ...]) -> object:
        return group.index, tuple((name, self.schema.find(name)) for name in names)

    def _by_statistics(
        self, rows: LiveRows, names: tuple[str, ...], columns: Mapping[tuple[str, ...], DataType]
    ) -> pa.BooleanArray:
        bounds = _bounds_of(rows, columns)
        values = self._values_of(rows.group, names).filter(rows.keep)
        return may_match(values, self.where, self.schema, self.partition_columns, bounds)


def _bounds_of(rows: LiveRows, columns: Mapping[Path, DataType]) -> Mapping[Path, ColumnBounds]:
    """The statistics of some rows. The last result is kept with the checkpoint."""
    mask = None if rows.keep is None else one_chunk(rows.keep)
    recent = rows.group.part.recent_bounds
    key = (
        rows.group.index,
        tuple(columns.items()),
        None if mask is None else (mask.offset, mask.buffers()[1].to_pybytes()),
    )
    if (cached := recent.get(key)) is not None:
        return cached
    from delta_orch.log.read.checkpoint_decoding import decode_columns, read_parsed_bounds

    bounds = read_parsed_bounds(rows.group, rows.keep, columns)
    if bounds is None:
        bounds = read_bounds(decode_columns("add", rows.group, ["stats"], rows.keep)["stats"], columns)
    if len(recent) >= _MOST_RECENT:
        recent.clear()
    recent[key] = bounds
    return bounds
