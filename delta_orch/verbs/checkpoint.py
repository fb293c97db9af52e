"""`checkpoint`: the state of a version in one place, so that readers need not replay what came before."""

from __future__ import annotations

from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.checkpoint_v2 import V2Format
from delta_orch.log.upkeep.checkpoint_writer import CheckpointPolicy, write_checkpoint
from delta_orch.writing.target import existing_target


def checkpoint(
    table_log: TableLog, snapshot: Snapshot, *, policy: CheckpointPolicy | None = None, v2_format: V2Format = "json"
) -> int:
    """Write the checkpoint of a snapshot, and `_last_checkpoint`. One that is there already stays as it is.

    Args:
        policy: `classic` (V1, one Parquet file) or `v2` (a small file and sidecars); None for what the table asks for
            by `delta.checkpointPolicy`.
        v2_format: Of the file on top of a V2 checkpoint, `json` or `parquet`.

    Returns: The version it is of.

    Raises:
        UnsupportedFeatureError: This release must not write to the table. Nothing was written.
        InvalidRequestError: An unknown policy or format, or `v2` for a table without the feature v2Checkpoint. Nothing
            was written.
        StorageError: The checkpoint may be there without `_last_checkpoint` naming it; readers find it by listing.
    """
    if policy not in (None, "classic", "v2"):
        raise InvalidRequestError(f"There is no checkpoint policy {policy!r}", remedy="Use classic or v2")
    if v2_format not in ("json", "parquet"):
        raise InvalidRequestError(f"V2 checkpoints have no format {v2_format!r}", remedy="Use json or parquet")
    existing_target(snapshot)
    write_checkpoint(table_log, snapshot, policy, v2_format)
    return snapshot.version
