"""The file actions of a snapshot as rows of checkpoint files, streamed: cut into pieces of a size that
readers like, and written as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.errors import DeltaError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.upkeep.checkpoint_columns import CheckpointColumns, rows_of
from delta_orch.storage.base import storage_error

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot

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


class FileRows(NamedTuple):
    """Some file actions as rows of a checkpoint file: all `add`, or all `remove`."""

    action: str
    rows: pa.Table


def oldest_tombstone_ms(snapshot: Snapshot) -> int:
    """The deletion timestamp that has just expired: tombstones as old as that are left out of checkpoints (PROTOCOL,
    "Add File and Remove File"). A clock that is fast must not make them old: none is older than the version knows."""
    now_ms = min(time.time_ns() // 1_000_000, snapshot.segment.version_file.modification_time_ms)
    return now_ms - snapshot.properties.deleted_file_retention_ms


def unexpired(tombstones: Iterable[pa.Table], expired_ms: int) -> Iterator[pa.Table]:
    """Tombstones younger than a time."""
    for rows in tombstones:
        # One that does not say when it was written counts as written at the epoch.
        yield pc.filter(rows, pc.greater(FileTable(rows).deletion_timestamp, expired_ms))


def file_rows(
    columns: CheckpointColumns,
    schema: pa.Schema,
    adds: Iterable[pa.Table],
    tombstones: Iterable[pa.Table],
    piece_rows: int,
) -> Iterator[FileRows]:
    """File actions as rows of `schema`, in tables of `piece_rows` rows, the last of each kind smaller.

    Args:
        adds: Columns of `ADD_SCHEMA`.
        tombstones: Columns `TOMBSTONE_COLUMNS`.
    """
    for piece in in_pieces((rows_of(schema, "add", columns.adds(files)) for files in adds), piece_rows):
        yield FileRows("add", piece)
    for piece in in_pieces((rows_of(schema, "remove", columns.removes(files)) for files in tombstones), piece_rows):
        yield FileRows("remove", piece)


def in_pieces(tables: Iterable[pa.Table], piece_rows: int) -> Iterator[pa.Table]:
    """The rows in tables of `piece_rows`, the last one smaller; however they were cut before. Nothing is copied."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        if not table.num_rows:
            continue
        pending.append(table)
        count += table.num_rows
        while count >= piece_rows:
            rows = pa.concat_tables(pending)
            yield rows.slice(0, piece_rows)
            count -= piece_rows
            pending = [rows.slice(piece_rows)]
    if count:
        yield pa.concat_tables(pending)


@contextmanager
def parquet_writer(
    sink: pa.NativeFile, schema: pa.Schema, path: str, *, is_small: bool = False
) -> Iterator[pq.ParquetWriter]:
    """Writes a checkpoint file; what the disk says about it becomes a StorageError.

    Args:
        is_small: Of few rows: making zstd ready for each column would take longer than all the rest.
    """
    codec = "snappy" if is_small else "zstd"
    dictionaries = [name for name in _DICTIONARIES if name.partition(".")[0] in schema.names]
    try:
        with pq.ParquetWriter(sink, schema, compression=codec, use_dictionary=dictionaries) as writer:
            yield writer
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", path) from e
