"""Writing checkpoints: V1, one Parquet file, from Arrow columns (PROTOCOL, "Checkpoints", "Checkpoint Schema").

A checkpoint is created exclusively and whole: a reader sees none or all of it. Its row groups hold one kind of action
each, so that a reader finds the few small actions, the live files and the tombstones without decoding the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_orch.errors import CorruptLogError, FileExistsInStoreError, FileMissingInStoreError
from delta_orch.features.registry import ensure_writable
from delta_orch.log.arrow_building import int64_array
from delta_orch.log.checkpoint_columns import TOMBSTONE_COLUMNS, CheckpointColumns
from delta_orch.protocol.last_checkpoint import LastCheckpoint, parse_last_checkpoint, serialize_last_checkpoint
from delta_orch.protocol.log_path import LAST_CHECKPOINT_PATH, checkpoint_path

if TYPE_CHECKING:
    from delta_orch.log.snapshot import Snapshot
    from delta_orch.log.table_log import TableLog
    from delta_orch.storage.base import LogStore

_LOGGER = logging.getLogger(__name__)
_ROW_GROUP_ROWS = 100_000


def write_checkpoint(log: TableLog, snapshot: Snapshot) -> None:
    """Write the checkpoint of a snapshot's version, and make `_last_checkpoint` point at it.

    Where the checkpoint exists already it stays as it is. Tombstones older than `delta.deletedFileRetentionDuration`
    are left out, and nothing else. A pointer to a newer checkpoint is not moved back.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        CorruptLogError: The files of the snapshot cannot be read.
        StorageError: e.g. a full disk. No part of a checkpoint is visible.
    """
    ensure_writable(snapshot.protocol, snapshot.metadata)
    store, path = log.store, checkpoint_path(snapshot.version)
    if store.head(path) is None:
        try:
            store.put_if_absent(path, _serialize(snapshot))
        except FileExistsInStoreError:
            _LOGGER.debug("Version %d has a checkpoint by another writer", snapshot.version)
    _point_at(store, snapshot, path)


def checkpoint_if_due(log: TableLog, read: Snapshot | None, version: int, interval: int) -> None:
    """Write the checkpoint of a version just committed if it is a multiple of `interval`; failures are only logged.

    Args:
        read: An older snapshot that spares reading the log again.
    """
    if version == 0 or version % interval:
        return
    try:
        write_checkpoint(log, log.snapshot(version) if read is None else log.advance(read, up_to=version))
    except Exception:
        # The commit stands; whoever makes the next multiple will try again.
        _LOGGER.warning("Could not write the checkpoint of version %d of %s", version, log.store.uri, exc_info=True)


def _serialize(snapshot: Snapshot) -> memoryview:
    columns = CheckpointColumns.of_table(snapshot.schema, snapshot.partition_columns, snapshot.properties)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, columns.arrow_schema, compression="zstd", use_dictionary=_DICTIONARIES) as writer:
        for group in _row_groups(snapshot, columns):
            writer.write_table(group, row_group_size=max(group.num_rows, 1))
    return memoryview(sink.getvalue())


# Nothing repeats in paths and statistics: a dictionary of them would only be built to be thrown away.
_DICTIONARIES = [
    f"{action}.{leaf}"
    for action in ("add", "remove")
    for leaf in (
        "partitionValues.key_value.key",
        "partitionValues.key_value.value",
        "tags.key_value.key",
        "tags.key_value.value",
        "modificationTime",
        "deletionTimestamp",
    )
]


def _row_groups(snapshot: Snapshot, columns: CheckpointColumns) -> Iterator[pa.Table]:
    yield columns.small_actions(snapshot)
    for files in _in_pieces(snapshot.iter_files()):
        yield columns.adds(files)
    for files in _in_pieces(_unexpired_tombstones(snapshot)):
        yield columns.removes(files)


def _in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of `_ROW_GROUP_ROWS`, the last one smaller; however they were cut before."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        pending.append(table)
        count += table.num_rows
        while count >= _ROW_GROUP_ROWS:
            rows = pa.concat_tables(pending)
            yield rows.slice(0, _ROW_GROUP_ROWS).combine_chunks()
            pending = [rows.slice(_ROW_GROUP_ROWS)]
            count -= _ROW_GROUP_ROWS
    if count:
        yield pa.concat_tables(pending).combine_chunks()


def _unexpired_tombstones(snapshot: Snapshot) -> Iterator[pa.Table]:
    """PROTOCOL, "Add File and Remove File": a tombstone expires once its retention has passed."""
    oldest_ms = int64_array([time.time_ns() // 1_000_000 - snapshot.properties.deleted_file_retention_ms])[0]
    for tombstones in snapshot.iter_tombstones(TOMBSTONE_COLUMNS):
        # One that does not say when it was written counts as written at the epoch.
        yield tombstones.filter(pc.greater(tombstones["deletion_timestamp"], oldest_ms))


def _point_at(store: LogStore, snapshot: Snapshot, path: str) -> None:
    """Let `_last_checkpoint` say what the checkpoint's own footer says, whoever wrote it."""
    pointed_at = _read_pointer(store)
    if pointed_at is not None and pointed_at.version > snapshot.version:
        return
    file = store.head(path)
    if file is None:
        return
    last = LastCheckpoint(
        version=snapshot.version,
        size=pq.read_metadata(store.open_input(path)).num_rows,
        size_in_bytes=file.size,
        num_of_add_files=snapshot.num_files,
    )
    if last != pointed_at:
        store.put(LAST_CHECKPOINT_PATH, serialize_last_checkpoint(last))


def _read_pointer(store: LogStore) -> LastCheckpoint | None:
    try:
        return parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH))
    except FileMissingInStoreError:
        return None
    except CorruptLogError as e:
        _LOGGER.warning("Replacing a _last_checkpoint that cannot be read: %s", e)
        return None
