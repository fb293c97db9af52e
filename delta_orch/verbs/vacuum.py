"""`vacuum`: delete files that no version within the retention needs."""

from __future__ import annotations

import logging
import posixpath
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.arrow_building import int64_array
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.data_path import encode_path
from delta_orch.protocol.deletion_vector import relative_path
from delta_orch.storage.base import FileMeta, LogStore
from delta_orch.writing.target import existing_target

logger = logging.getLogger(__name__)

_HOUR_MS = 60 * 60 * 1000
# Ten thousand years: beyond that, times do not fit the log's integers any more.
_MOST_HOURS = 87_600_000
_DELETE_THREADS = 8
# Escapes, schemes, absolute paths, detours: everything else is the path below the root as it stands.
_MAY_BE_SPELLED_OTHERWISE = re.compile(r"[%:]|^/|//|(?:^|/)\.{1,2}(?:/|$)").search


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What vacuum deleted, or with `dry_run` would delete.

    Attributes:
        paths: Relative to the table's root, not URL-encoded, sorted.
        size_bytes: Their sum.
        retention_ms: Files younger than this were kept.
    """

    paths: tuple[str, ...]
    size_bytes: int
    dry_run: bool
    retention_ms: int

    @property
    def num_files(self) -> int:
        return len(self.paths)


def vacuum(
    table_log: TableLog,
    snapshot: Snapshot,
    *,
    retention_hours: float | None = None,
    dry_run: bool = False,
    enforce_retention: bool = True,
    user_metadata: str | None = None,
) -> VacuumResult:
    """Delete data files that are older than the retention and that neither the newest version nor a tombstone younger
    than the retention names: leftovers of replaced versions, and of writes that never committed.

    Older versions lose their files: time travel and change feeds beyond the retention end here. The log, hidden
    directories and files (names that begin with `_` or `.`, except partition directories and `_change_data`) and
    directories themselves stay. Two commits, `VACUUM START` and `VACUUM END`, record it; a run that finds nothing
    commits nothing. Neither conflicts with any writer.

    Args:
        retention_hours: None takes `delta.deletedFileRetentionDuration`.
        enforce_retention: Refuse a retention below that property. A writer or reader that runs longer than the
            retention loses its files: switch it off only when there is none.

    Raises:
        InvalidRequestError: The retention is negative, or too short. Nothing was deleted.
        StorageError: A file could not be deleted; others may be gone already. Running it again is safe.
    """
    existing_target(snapshot)
    retention_ms = resolve_retention_ms(snapshot, retention_hours, enforce=enforce_retention)
    # What is exactly as old as the retention has expired: with none at all, so has what was written this millisecond.
    expired_ms = time.time_ns() // 1_000_000 - retention_ms
    store = table_log.store
    needed = needed_files(snapshot, store, expired_ms)
    doomed = sorted(unneeded_files(store, snapshot.partition_columns, needed, expired_ms), key=lambda f: f.path)
    result = VacuumResult(tuple(f.path for f in doomed), sum(f.size for f in doomed), dry_run, retention_ms)
    if dry_run or not doomed:
        return result
    _record(
        table_log,
        snapshot,
        "VACUUM START",
        {
            "retentionCheckEnabled": str(enforce_retention).lower(),
            "defaultRetentionMillis": str(snapshot.properties.deleted_file_retention_ms),
            "specifiedRetentionMillis": str(retention_ms),
        },
        {"numFilesToDelete": result.num_files, "sizeOfDataToDelete": result.size_bytes},
        user_metadata,
    )
    delete_files(store, result.paths)
    _record(
        table_log,
        snapshot,
        "VACUUM END",
        {"status": "COMPLETED"},
        {"numDeletedFiles": result.num_files},
        user_metadata,
    )
    logger.info("vacuum of %s deleted %d files, %d bytes", store.uri, result.num_files, result.size_bytes)
    return result


def resolve_retention_ms(snapshot: Snapshot, retention_hours: float | None, *, enforce: bool) -> int:
    """The retention in milliseconds.

    Raises:
        InvalidRequestError: It is negative or not a number, or shorter than the table's and `enforce` is set.
    """
    table_ms = snapshot.properties.deleted_file_retention_ms
    if retention_hours is None:
        return table_ms
    is_number = isinstance(retention_hours, int | float) and not isinstance(retention_hours, bool)
    if not is_number or not 0 <= retention_hours <= _MOST_HOURS:
        raise InvalidRequestError(f"retention_hours must be a number from 0 to {_MOST_HOURS}, not {retention_hours!r}")
    asked_ms = int(retention_hours * _HOUR_MS)
    if enforce and asked_ms < table_ms:
        raise InvalidRequestError(
            f"A retention of {retention_hours} hours is shorter than the table's {table_ms / _HOUR_MS:g} hours",
            cause="Readers of older versions and writers that have not committed yet would lose their files",
            remedy="Lower delta.deletedFileRetentionDuration, or, if nobody is using the table, switch this check off "
            "(enforce_retention=False, --force)",
            retention_ms=asked_ms,
            table_retention_ms=table_ms,
        )
    return asked_ms


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """The files that must stay.

    Attributes:
        paths: Relative to the table's root, decoded.
        foreign_names: Names of files that the log places elsewhere. A file of such a name stays wherever it is listed:
            the other place may be this one by another way (a link, a mount).
    """

    paths: frozenset[str]
    foreign_names: frozenset[str]

    def has(self, path: str) -> bool:
        return path in self.paths or (bool(self.foreign_names) and path.rpartition("/")[2] in self.foreign_names)


def needed_files(snapshot: Snapshot, store: LogStore, expired_ms: int) -> NeededFiles:
    """The files that the newest version or a tombstone younger than `expired_ms` names."""
    columns = ["path"]
    if snapshot.configuration.supports("deletionVectors"):
        columns.append("deletion_vector")
    tombstones = snapshot.tombstones([*columns, "deletion_timestamp"])
    removed_ms = tombstones.column("deletion_timestamp")
    # One that does not say when it was written is as old as can be.
    unexpired = tombstones.filter(pc.greater(removed_ms, int64_array([expired_ms])[0]))
    root = store.data_filesystem()[1].rstrip("/") + "/"
    paths: set[str] = set()
    foreign: set[str] = set()
    for files in (snapshot.files(columns), unexpired):
        for spelled in log_paths(files):
            paths.update(spelled)
            for odd in filter(_MAY_BE_SPELLED_OTHERWISE, spelled):
                place = posixpath.normpath(store.resolve(odd))
                if place.startswith(root):
                    paths.add(place[len(root) :])
                else:
                    foreign.add(place.rpartition("/")[2])
    return NeededFiles(frozenset(paths), frozenset(foreign))


def log_paths(files: pa.Table) -> Iterator[list[str]]:
    """The paths of files and of their deletion vectors (PROTOCOL, "Deletion Vectors"), spelled as in the log."""
    yield from (chunk.to_pylist() for chunk in files.column("path").chunks)
    if "deletion_vector" not in files.column_names:
        return
    descriptors = [d for d in deletion_vector_descriptors(files) if d is not None]
    yield [encode_path(relative_path(d)) for d in descriptors if d.storage_type == "u"]
    yield [d.path_or_inline_dv for d in descriptors if d.storage_type == "p"]


def unneeded_files(
    store: LogStore, partition_columns: Sequence[str], needed: NeededFiles, expired_ms: int
) -> Iterator[FileMeta]:
    """The files below the root that vacuum may delete, as they are listed."""
    hidden: dict[str, bool] = {}
    for file in store.list_recursive():
        if file.modification_time_ms > expired_ms:
            continue
        path = checked_file(file.path)
        directory, _, name = path.rpartition("/")
        if directory not in hidden:
            hidden[directory] = is_hidden(directory, partition_columns)
        if not (hidden[directory] or name.startswith(("_", ".")) or needed.has(path)):
            yield file


def is_hidden(directory: str, partition_columns: Sequence[str]) -> bool:
    """Whether a directory, or one it lies in, belongs to the log or to somebody else."""
    return any(
        part.startswith(("_", "."))
        and part != "_change_data"
        and not any(part.startswith(f"{column}=") for column in partition_columns)
        for part in directory.split("/")
    )


def checked_file(path: str) -> str:
    """The file a checksum file of Hadoop's local file system (`.name.crc`) stands beside; any other path itself."""
    if not path.endswith(".crc"):
        return path
    directory, slash, name = path.rpartition("/")
    if name.startswith(".") and len(name) > len("..crc"):
        return f"{directory}{slash}{name[1:-4]}"
    return path


def delete_files(store: LogStore, paths: Sequence[str]) -> None:
    """Delete, several at a time; a file that is gone already is no error."""
    with ThreadPoolExecutor(_DELETE_THREADS, thread_name_prefix="delta-vacuum") as pool:
        for _ in pool.map(store.delete, paths, chunksize=64):
            pass


def _record(
    table_log: TableLog,
    snapshot: Snapshot,
    operation: str,
    parameters: dict[str, str],
    metrics: dict[str, int],
    user_metadata: str | None,
) -> None:
    transaction = Transaction(
        table_log, snapshot, operation=operation, operation_parameters=parameters, user_metadata=user_metadata
    )
    transaction.set_operation_metrics(metrics)
    transaction.commit()
