"""Leaving out files that a predicate cannot concern, decoding no more than that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import columns_of
from delta_orch.log.files.partition_columns import one_chunk
from delta_orch.log.read.checkpoint_decoding import decode_columns
from delta_orch.log.read.checkpoint_files import CheckpointFileActions, LiveRows
from delta_orch.log.read.checkpoint_reader import RowGroup, run_parallel
from delta_orch.log.read.skipping.column_bounds import ColumnBounds
from delta_orch.log.read.skipping.data_skipping import data_columns, match_files, may_match
from delta_orch.log.read.skipping.file_statistics import Path, read_bounds, read_parsed_bounds
from delta_orch.log.read.skipping.partition_predicates import PartitionValues
from delta_orch.protocol.types import DataType, StructType

_MOST_RECENT = 32


@dataclass(frozen=True, slots=True)
class Pruning:
    """A predicate, resolved against a table's schema, as a filter of files."""

    where: Expression
    schema: StructType
    partition_columns: tuple[str, ...]

    def of_table(self, files: pa.Table) -> pa.Table:
        """The files that may match. Raises as `match_files`."""
        return files.filter(match_files(files, self.where, self.schema, self.partition_columns).may_match)

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
        groups = adds.row_groups()
        unknown = [group for group in groups if self._key(group, names) not in group.part.decoded]
        run_parallel(lambda group: self._values_of(group, names), unknown)
        return {group: self._values_of(group, names) for group in groups}

    def _values_of(self, group: RowGroup, names: tuple[str, ...]) -> PartitionValues:
        """The partition values of all rows of a group. They stay with the checkpoint: typed, they are small."""
        key = self._key(group, names)
        known = group.part.decoded.get(key)
        if not isinstance(known, PartitionValues):
            maps = one_chunk(decode_columns("add", group, ["partition_values"], None)["partition_values"])
            known = group.part.decoded[key] = PartitionValues.of_maps(maps, self.schema, names)
        return known

    def _key(self, group: RowGroup, names: tuple[str, ...]) -> object:
        return group.index, tuple((name, self.schema.find(name)) for name in names)

    def _by_statistics(
        self, rows: LiveRows, names: tuple[str, ...], columns: Mapping[tuple[str, ...], DataType]
    ) -> pa.BooleanArray:
        bounds = _bounds_of(rows, columns)
        values = self._values_of(rows.group, names).filter(rows.keep)
        return may_match(values, self.where, self.schema, self.partition_columns, bounds)


def _bounds_of(rows: LiveRows, columns: Mapping[Path, DataType]) -> Mapping[Path, ColumnBounds]:
    """The statistics of some rows. Those last asked for stay with the checkpoint."""
    mask = None if rows.keep is None else one_chunk(rows.keep)
    recent = rows.group.part.recent_bounds
    key = (
        rows.group.index,
        tuple(columns.items()),
        None if mask is None else (mask.offset, mask.buffers()[1].to_pybytes()),
    )
    if (known := recent.get(key)) is not None:
        return known
    bounds = read_parsed_bounds(rows.group, rows.keep, columns)
    if bounds is None:
        bounds = read_bounds(decode_columns("add", rows.group, ["stats"], rows.keep)["stats"], columns)
    if len(recent) >= _MOST_RECENT:
        recent.clear()
    recent[key] = bounds
    return bounds
