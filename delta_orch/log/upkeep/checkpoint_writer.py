"""Writing checkpoints (PROTOCOL, "Checkpoints", "Checkpoint Schema").

A checkpoint is created exclusively and whole: a reader sees none or all of it. Its row groups hold one kind of action
each, so that a reader finds the few small actions, the live files and the tombstones without decoding the others. File
actions stream from the previous checkpoint into the new one: memory holds a few row groups, however many files there
are.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError, InvalidRequestError
from delta_orch.log.read.checkpoint_reader import ParquetPart
from delta_orch.log.upkeep.checkpoint_columns import TOMBSTONE_COLUMNS, CheckpointColumns, small_actions
from delta_orch.log.upkeep.checkpoint_pointer import ensure_version_present, point_at
from delta_orch.log.upkeep.checkpoint_rows import ahead, file_rows, oldest_tombstone_ms, parquet_writer, unexpired
from delta_orch.log.upkeep.checkpoint_v2 import V2Format, Watch, write_v2_checkpoint
from delta_orch.logger import Logger
from delta_orch.protocol.last_checkpoint import LastCheckpoint
from delta_orch.protocol.paths import LOG_DIRECTORY, checkpoint_path

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.base import LogStore

CheckpointPolicy = Literal["classic", "v2"]

_LOGGER = Logger(__name__)
# As many as are decoded at a time: larger ones took longer to write, and more memory.
_ROW_GROUP_ROWS = 64 * 1024
_FEW_ROWS = 20_000


def write_checkpoint(
    log: TableLog,
    snapshot: Snapshot,
    policy: CheckpointPolicy | None = None,
    v2_format: V2Format = "json",
    watch: Watch = iter,
) -> bool:
    """Write the checkpoint of a snapshot's version, and make `_last_checkpoint` point at it.

    Where a checkpoint of that kind exists already it stays as it is. Tombstones older than
    `delta.deletedFileRetentionDuration` and transaction identifiers older than `delta.setTransactionRetentionDuration`
    are left out, and nothing else. A pointer to a newer checkpoint is not moved back.

    Args:
        policy: `classic` for one Parquet file (V1), `v2` for a file that refers to sidecars (`checkpoint_v2`); None
            for what the table asks for by `delta.checkpointPolicy`.
        v2_format: Of the file on top of a V2 checkpoint.
        watch: Passes on the live files (columns of `ADD_SCHEMA`) on their way into the checkpoint.

    Returns: Whether `watch` has seen all of them: not where a checkpoint is there, or sidecars are taken over.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        InvalidRequestError: `v2` on a table that does not support the feature v2Checkpoint.
        CorruptLogError: The files of the snapshot cannot be read.
        VersionNotFoundError: The version was deleted meanwhile. No part of a checkpoint is visible.
        StorageError: e.g. a full disk. No part of a checkpoint is visible.
    """
    snapshot.configuration.for_writing()
    if _is_v2(snapshot, policy):
        return write_v2_checkpoint(log.store, snapshot, v2_format, watch)
    return _write_v1_checkpoint(log.store, snapshot, watch)


def _is_v2(snapshot: Snapshot, policy: CheckpointPolicy | None) -> bool:
    supported = snapshot.configuration.supports("v2Checkpoint")
    if policy == "v2" and not supported:
        raise InvalidRequestError(
            "The table cannot have V2 checkpoints",
            cause="Its protocol does not have the feature v2Checkpoint",
            remedy="Set the table property delta.checkpointPolicy to v2 first, or write a classic checkpoint",
        )
    return supported and (policy or snapshot.properties.checkpoint_policy) == "v2"


def _write_v1_checkpoint(store: LogStore, snapshot: Snapshot, watch: Watch) -> bool:
    path = checkpoint_path(snapshot.version)
    last = None
    if store.head(path) is None:
        try:
            last = _create_v1(store, snapshot, path, watch)
        except FileExistsInStoreError:
            _LOGGER.debug("Version %d has a checkpoint by another writer", snapshot.version)
    point_at(store, last or _describe(store, snapshot.version, path))
    return last is not None


def _create_v1(store: LogStore, snapshot: Snapshot, path: str, watch: Watch) -> LastCheckpoint:
    columns = CheckpointColumns.of_snapshot(snapshot)
    schema, expired_ms = columns.arrow_schema, oldest_tombstone_ms(snapshot)
    small = small_actions(schema, snapshot)
    tombstones = unexpired(snapshot.iter_tombstones(TOMBSTONE_COLUMNS), expired_ms)
    counts = {"add": 0, "remove": 0}
    with store.stage_output(LOG_DIRECTORY) as output:
        files = file_rows(columns, schema, watch(snapshot.iter_files()), tombstones, _ROW_GROUP_ROWS)
        # A thread to decode ahead gains nothing where there is little to decode.
        is_small = _has_few_rows(snapshot)
        source = nullcontext(files) if is_small else ahead(files)
        with parquet_writer(output.sink, schema, path, is_small=is_small) as writer, source as pieces:
            writer.write_table(small)
            for piece in pieces:
                writer.write_table(piece.rows, row_group_size=piece.rows.num_rows)
                counts[piece.action] += piece.rows.num_rows
        ensure_version_present(store, snapshot)
        file = output.put_if_absent(path)
    size = small.num_rows + sum(counts.values())
    return LastCheckpoint(snapshot.version, size, size_in_bytes=file.size, num_of_add_files=counts["add"])


def _has_few_rows(snapshot: Snapshot) -> bool:
    rows = snapshot.tail.most_files
    if snapshot.checkpoint is not None:
        groups = [*snapshot.checkpoint.row_groups("add"), *snapshot.checkpoint.row_groups("remove")]
        rows += sum(group.num_rows for group in groups)
    return rows <= _FEW_ROWS


def _describe(store: LogStore, version: int, path: str) -> LastCheckpoint:
    """What the footer of a checkpoint says, whoever wrote it."""
    file = store.head(path)
    if file is None:
        raise FileMissingInStoreError(
            f"The checkpoint {path} was there and is gone",
            cause="The table was deleted meanwhile, or its log cleaned up",
            remedy="Write a checkpoint of the newest version, where there still is one",
            path=path,
        )
    part = ParquetPart(store, path)
    groups = part.row_groups("add")
    nulls = [group.null_count("add.path") for group in groups]
    # Of a V2 checkpoint the file actions are elsewhere.
    unknown = None in nulls or "sidecar.path" in part.leaves
    num_adds = None if unknown else sum(g.num_rows - (n or 0) for g, n in zip(groups, nulls, strict=True))
    return LastCheckpoint(version, part.metadata.num_rows, size_in_bytes=file.size, num_of_add_files=num_adds)
