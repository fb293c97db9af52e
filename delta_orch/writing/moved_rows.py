"""Copies rows into new files without a change, so that they keep their identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.scan_plan import RowTracking, ScanPlan
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import JsonObject
from delta_orch.protocol.arrow_building import all_booleans, longs_from_numpy
from delta_orch.protocol.types import LONG, StructField, StructType
from delta_orch.table.column_mapping import FIELD_ID
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import ICEBERG_IDS, materialized_columns


class RowCopies:
    """Reads and writes rows of a snapshot that are only moved. They keep their identity (PROTOCOL, "Writer Requirements
    for Row Tracking").

    If row tracking is enabled, a copy has each row's id and commit version in the two columns that the metadata names.
    If the table is compatible with Iceberg V3, these columns have the field ids of Iceberg. If row tracking is only
    supported, the copies are new rows, and the commit records this.

    Raises:
        ProtocolViolationError: Row tracking is enabled, but the metadata does not name the columns.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._tracking: RowTracking | None = None
        self._loses_ids = False
        self._columns: tuple[StructField, ...] = ()
        if snapshot.configuration.enables("rowTracking"):
            names = materialized_columns(snapshot.metadata)
            # The columns keep their stored names, so that they are written as they were read.
            self._tracking = RowTracking(*names, *names)
            has_ids = snapshot.properties.enable_iceberg_compat_v3
            ids: list[JsonObject] = [{FIELD_ID: number} if has_ids else {} for number in ICEBERG_IDS]
            self._columns = tuple(StructField(n, LONG, metadata=m) for n, m in zip(names, ids, strict=True))
        else:
            self._loses_ids = snapshot.configuration.supports("rowTracking")

    @property
    def stored_names(self) -> tuple[str, str] | None:
        """Return the columns of data files that hold ids and commit versions. None if copies do not keep them."""
        return None if self._tracking is None else self._tracking.names

    def plan(self, plan: ScanPlan, names: tuple[str, str] | None = None) -> ScanPlan:
        """Return the scan with ids and commit versions of its rows. `plan.files` must have both columns of row
        tracking.

        Args:
            names: The names of the two columns. None means their stored names.
        """
        plan = replace(plan, is_copied=True)
        if self._tracking is None:
            return plan
        tracking = self._tracking if names is None else RowTracking(*names, *self._tracking.names)
        columns = tuple(StructField(name, LONG) for name in tracking.names)
        return replace(plan, schema=StructType((*plan.schema, *columns)), row_tracking=tracking)

    def spec(self, spec: WriteSpec) -> WriteSpec:
        """Return the spec of the files, with the columns that `plan` adds."""
        return replace(spec, extra_columns=(*spec.extra_columns, *self._columns))

    def note_in(self, transaction: Transaction) -> None:
        """Record in the commit whether its copies are still the same rows."""
        if self._loses_ids:
            transaction.note_unpreserved_rows()


def group_numbers(sizes: Sequence[int]) -> pa.Array:
    """Return the number of each group, once per member: keys for `stage_moved`."""
    return longs_from_numpy(np.repeat(np.arange(len(sizes)), sizes))


def partition_keys_of(table: TableConfiguration, adds: pa.Table, sources: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the partition of each file, as keys for rows that stay in their partition."""
    adds_keys, sources_keys = (file_partition_keys(f, table.schema, table.partition_columns) for f in (adds, sources))
    return adds_keys, sources_keys


def keys_of_groups(table: TableConfiguration, adds: pa.Table, groups: Sequence[pa.Table]) -> tuple[pa.Array, pa.Array]:
    """Return keys for groups of files that were each merged into one file, or keys by partition."""
    if adds.num_rows != len(groups):
        return partition_keys_of(table, adds, pa.concat_tables(groups))
    return group_numbers([1] * len(groups)), group_numbers([files.num_rows for files in groups])


def unsplit(spec: WriteSpec) -> WriteSpec:
    """Return the spec for rows that become one file of any size."""
    return replace(spec, target_file_size_bytes=None)


def stage_moved(transaction: Transaction, adds: pa.Table, removed: pa.Table, keys: tuple[pa.Array, pa.Array]) -> None:
    """Stage new files that replace files with the same rows. The commit sets `dataChange` to false for both.

    Args:
        keys: Keys that relate the new files to the replaced files (`unit_tag.shared_units`).
    """
    transaction.read_files(removed)
    transaction.add_moved_files(without_data_change(adds), removed, keys)
    transaction.remove_files(removed, data_change=False)


def without_data_change(adds: pa.Table) -> pa.Table:
    """Return the files, marked as holding only rows that the table had before."""
    index = adds.schema.get_field_index("data_change")
    return adds.set_column(index, adds.schema.field(index), all_booleans(False, adds.num_rows))
