"""`checkpoint`: the state of a version in one Parquet file, so that readers need not replay what came before."""

from __future__ import annotations

from delta_orch.log.checkpoint_writer import write_checkpoint
from delta_orch.log.snapshot import Snapshot
from delta_orch.log.table_log import TableLog
from delta_orch.operations.request import TableDefinition
from delta_orch.operations.target import existing_target


def checkpoint(table_log: TableLog, snapshot: Snapshot) -> int:
    """Write the classic checkpoint of a snapshot, and `_last_checkpoint`.

    Returns: The version it is of.

    Raises:
        UnsupportedFeatureError: This release must not write to the table, for example because of a V2 checkpoint
            policy. Nothing was written.
        StorageError: The checkpoint may be there without `_last_checkpoint` naming it; readers find it by listing.
    """
    existing_target(snapshot, TableDefinition())
    write_checkpoint(table_log, snapshot)
    return snapshot.version
