"""Leaving out files that a predicate cannot concern, decoding no more than that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.tree import columns_of
from delta_orch.log.read.checkpoint_files import CheckpointFileActions, LiveRows
from delta_orch.log.read.skipping.data_skipping import data_columns, match_files, may_match_bounds
from delta_orch.log.read.skipping.parsed_statistics import read_parsed_bounds
from delta_orch.protocol.types import DataType, StructType


@dataclass(frozen=True, slots=True)
class Pruning:
    """A predicate, resolved against a table's schema, as a filter of files."""

    where: Expression
    schema: StructType
    partition_columns: tuple[str, ...]

    def of_table(self, files: pa.Table) -> pa.Table:
        """The files that may match. Raises as `match_files`."""
        return files.filter(self._may_match(files))

    def of_checkpoint(self, adds: CheckpointFileActions) -> CheckpointFileActions:
        """The actions of a checkpoint that may match: statistics are decoded only where partition values fit.

        Raises as `match_files` and `CheckpointFileActions.columns`.
        """
        names = {column.path[0].lower() for column in columns_of(self.where)}
        partitions = {name.lower() for name in self.partition_columns}
        if names & partitions:
            adds = adds.where(["partition_values"], self._may_match)
        if columns := data_columns(self.where, self.schema, self.partition_columns):
            adds = adds.where_rows(lambda rows: self._by_statistics(adds, rows, columns))
        return adds

    def _by_statistics(
        self, adds: CheckpointFileActions, rows: LiveRows, columns: Mapping[tuple[str, ...], DataType]
    ) -> pa.BooleanArray:
        bounds = read_parsed_bounds(rows.group, rows.keep, columns)
        if bounds is None:
            return self._may_match(adds.table(rows, ["partition_values", "stats"]))
        files = adds.table(rows, ["partition_values"])
        return may_match_bounds(files, self.where, self.schema, self.partition_columns, bounds)

    def _may_match(self, files: pa.Table) -> pa.BooleanArray:
        return match_files(files, self.where, self.schema, self.partition_columns).may_match
