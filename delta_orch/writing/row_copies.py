"""Rows that are copied from file to file keep their identity (PROTOCOL, "Writer Requirements for Row Tracking").

Where row tracking is enabled, a copy writes each row's id and commit version into the two columns that the metadata
names; where it is only supported, the copies are new rows, and the commit says so.
"""

from __future__ import annotations

from dataclasses import replace

from delta_orch.engines.base import RowTracking, ScanPlan, WriteSpec
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.types import LONG, StructField, StructType
from delta_orch.table.row_tracking import materialized_columns


class RowCopies:
    """How the rows of a snapshot are read and written where they are only moved.

    Raises:
        ProtocolViolationError: Row tracking is enabled, but the metadata does not name the columns.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._tracking: RowTracking | None = None
        self._loses_ids = False
        if snapshot.configuration.enables("rowTracking"):
            names = materialized_columns(snapshot.metadata)
            # Under the names they are stored by, so that they are written as they were read.
            self._tracking = RowTracking(*names, *names)
        else:
            self._loses_ids = snapshot.configuration.supports("rowTracking")

    def plan(self, plan: ScanPlan) -> ScanPlan:
        """The scan, its rows with ids and commit versions; `plan.files` must have both columns of row tracking."""
        if self._tracking is None:
            return plan
        return replace(plan, schema=StructType((*plan.schema, *self._columns)), row_tracking=self._tracking)

    def spec(self, spec: WriteSpec) -> WriteSpec:
        """The files, with room for what `plan` brings."""
        return replace(spec, extra_columns=(*spec.extra_columns, *self._columns))

    def note_in(self, transaction: Transaction) -> None:
        """Let the commit say whether its copies are still the same rows."""
        if self._loses_ids:
            transaction.note_unpreserved_rows()

    @property
    def _columns(self) -> tuple[StructField, ...]:
        return () if self._tracking is None else tuple(StructField(name, LONG) for name in self._tracking.names)
