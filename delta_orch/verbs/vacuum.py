"""`vacuum`: delete files that no version within the retention needs."""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, compress
from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_look import unneeded_records
from delta_orch.errors import (
    ConflictError,
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    StorageError,
    UnsupportedStoreError,
)
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import VACUUM_END, VACUUM_START, CommitOptions
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_building import bool_array, int64_array, one_chunk, string_array
from delta_orch.protocol.paths import LOG_DIRECTORY, STAGED_DIRECTORY, decode_path
from delta_orch.storage.base import FileMeta, LogStore, Maintenance, is_full
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.storage.store_clock import present_ms
from delta_orch.verbs.removed_files import inner_tables_above, removed_files, vector_paths
from delta_orch.writing.target import existing_target

_LOGGER = logging.getLogger(__name__)

_HOUR_MS = 60 * 60 * 1000
# Ten thousand years. Longer times do not fit the log's integers.
_MOST_HOURS = 87_600_000
_MOST_NAMED = 100
_LONGEST_RUN_MS = 24 * _HOUR_MS
_COMMITS_LOOKED_AT = 200
# Escapes, schemes, NULs, absolute paths, and `.` or `..`. Any other path is relative to the root and needs no decoding.
_MAY_BE_SPELLED_OTHERWISE = r"[%:\x00]|^/|//|/$|(?:^|/)\.{1,2}(?:/|$)"
_INNER_LOG = f"/{LOG_DIRECTORY}/"


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """The result of a vacuum, or of its dry run.

    Attributes:
        paths: Relative to the table's root, not URL-encoded, sorted.
        size_bytes: The total size of these files.
        retention_ms: The retention in milliseconds. Younger files were not deleted.
        is_recorded: Whether the log has `VACUUM START` and `VACUUM END`. False after a dry run, if there was nothing to
            delete, or if the disk stayed too full for the commits.
    """

    paths: tuple[str, ...]
    size_bytes: int
    dry_run: bool
    retention_ms: int
    is_recorded: bool = False

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
    full: bool = True,
    keep_versions: Sequence[int] = (),
    user_metadata: str | None = None,
    commit_info: Mapping[str, object] | None = None,
) -> VacuumResult:
    """Delete data files that are older than the retention and that no retained version needs. A file is needed if the
    newest version names it, or a tombstone that is younger than the retention. Deleted files are those of replaced
    versions, and those of writes that never committed. A directory with its own `_delta_log` is another table, at any
    depth, and vacuum changes nothing in it.

    Older versions lose their files, so time travel and change feeds beyond the retention no longer work. The log,
    hidden directories and files (names that begin with `_` or `.`, except partition directories and `_change_data`) and
    directories themselves stay. Staged writes (`StagedWrite`) go with their files, and records of loaded files
    (`arrival.loaded_files`) with the versions that need them. Two commits, `VACUUM START` and `VACUUM END`, record the
    vacuum. A run that finds nothing commits nothing. Neither conflicts with any writer. On a full disk files are
    deleted first and recorded afterwards. A `restore` or `add_files` that commits meanwhile keeps its files or
    conflicts. Symbolic links are not followed. A file that a version needs under another name (through a link, a mount,
    a hard link) stays. If this machine's clock is more than a minute ahead of the store's, the age of files is measured
    by the store's clock.

    Args:
        retention_hours: The retention in hours. None uses `delta.deletedFileRetentionDuration`.
        enforce_retention: Refuse a retention below that property. A writer or reader that runs longer than the
            retention loses its files. Pass False only if no writer or reader is active.
        full: False checks only the files that tombstones of the newest version name, and does not list the table. See
            `verbs.removed_files`.
        keep_versions: Versions whose files stay, however old they are.
        commit_info: Further keys for `commitInfo` of both commits.

    Raises:
        VersionNotFoundError: A version to keep cannot be read. Nothing was deleted.
        InvalidRequestError: The retention is negative, or too short. Nothing was deleted.
        MissingFileError: A file of the newest version is missing (`full` only). Nothing was deleted.
        ProtocolViolationError: Files have deletion vectors that the protocol does not list. Nothing was deleted.
        UnsupportedStoreError: The store does not say when files were written. Nothing was deleted.
        MaintenanceNotAllowedError: The catalog maintains the table itself. Nothing was deleted.
        StorageError: Some files could not be deleted, and all others were. Or nothing was deleted, because the log
            cannot be written. `context["num_deleted"]` and `context["failed"]` show which case it is. Running vacuum
            again is safe.
    """
    if not dry_run:
        table_log.store.ensure_may_maintain(Maintenance.CLEAN_DATA, "vacuum()")
    existing_target(snapshot)
    retention_ms = resolve_retention_ms(snapshot, retention_hours, enforce=enforce_retention)
    # A file that is exactly as old as the retention has expired. With a retention of 0, this includes files of this
    # millisecond.
    now_ms = time.time_ns() // 1_000_000
    expired_ms = now_ms - retention_ms
    store = table_log.store
    others = [table_log.snapshot(version) for version in keep_versions]
    doomed = _unneeded_files(snapshot, others, store, expired_ms, full=full)
    if doomed.num_rows and not dry_run and (present := present_ms(store, now_ms)) < now_ms:
        expired_ms = present - retention_ms
        doomed = _unneeded_files(snapshot, others, store, expired_ms, full=full)
    records = unneeded_records(table_log, snapshot, others, expired_ms)
    paths = sorted([*FileTable(doomed).path.to_pylist(), *(file.path for file in records)])
    size_bytes = FileTable(doomed).size_bytes + sum(file.size for file in records)
    result = VacuumResult(tuple(paths), size_bytes, dry_run, retention_ms)
    if dry_run or not result.paths:
        return result
    record = partial(_record, table_log, snapshot, {"user_metadata": user_metadata, "commit_info": commit_info})
    parameters = {
        "retentionCheckEnabled": str(enforce_retention).lower(),
        "defaultRetentionMillis": str(snapshot.properties.deleted_file_retention_ms),
        "specifiedRetentionMillis": str(retention_ms),
    }
    metrics = {"numFilesToDelete": result.num_files, "sizeOfDataToDelete": result.size_bytes}
    start = partial(record, VACUUM_START, parameters, metrics)
    try:
        start()
        is_started = True
    except StorageError as e:
        if not is_full(e):
            raise
        # The disk is full, so files must be deleted before a commit fits. The list of files is complete.
        _LOGGER.warning("vacuum of %s begins without VACUUM START in the log: %s", store.uri, e)
        is_started = False
    result = _without_named(table_log, snapshot, result, expired_ms)
    failures = delete_files(store, result.paths)
    num_deleted = result.num_files - len(failures)
    _LOGGER.info("vacuum of %s deleted %d of %d files", store.uri, num_deleted, result.num_files)
    try:
        if not is_started:
            start()
        record(VACUUM_END, {"status": "FAILED" if failures else "COMPLETED"}, {"numDeletedFiles": num_deleted})
        is_recorded = True
    except StorageError as e:
        if not is_full(e) and not failures:
            raise
        _LOGGER.warning("vacuum of %s deleted %d files, but the log does not record it: %s", store.uri, num_deleted, e)
        is_recorded = False
    if failures:
        raise _failed(store, failures, num_deleted) from next(iter(failures.values()))
    return replace(result, is_recorded=is_recorded)


def _without_named(table_log: TableLog, snapshot: Snapshot, result: VacuumResult, expired_ms: int) -> VacuumResult:
    """Return the result without the files that another commit, such as a `restore`, added after the snapshot. A later
    commit that adds such files conflicts with the start of this vacuum (`Transaction.relies_on_unnamed_files`)."""
    newest = table_log.advance(snapshot)
    if newest.version <= snapshot.version + 1:
        return result
    needed = _needed_files(newest, (), table_log.store, expired_ms)
    paths = string_array(result.paths)
    is_named = pc.or_(pc.is_in(paths, value_set=needed.paths), _is_named(paths, needed.foreign_names))
    return replace(result, paths=tuple(pc.filter(paths, pc.invert(is_named)).to_pylist()))


def _is_named(paths: pa.Array, names: pa.Array) -> pa.BooleanArray:
    """Return which paths end in one of some file names."""
    return pc.is_in(pc.replace_substring_regex(paths, "^.*/", ""), value_set=names)


def ensure_none_runs(table_log: TableLog) -> None:
    """Check that no vacuum is running, because it may delete files that no version names yet.

    A vacuum that has not ended after a day counts as dead. The newest 200 commits are read.

    Raises ConflictError if a vacuum is running. Nothing was written.
    """
    since_ms = time.time_ns() // 1_000_000 - _LONGEST_RUN_MS
    num_ended = 0
    for entry in table_log.history(_COMMITS_LOOKED_AT):
        if entry.timestamp_ms <= since_ms:
            return
        if entry.operation == VACUUM_END:
            num_ended += 1
        elif entry.operation == VACUUM_START and num_ended:
            num_ended -= 1
        elif entry.operation == VACUUM_START:
            raise ConflictError(
                f"A vacuum is running since version {entry.version}",
                cause="The vacuum may delete files that this commit would add",
                remedy="Run the operation again when table.history() shows VACUUM END. If the vacuum was killed, wait "
                "for a day",
                winning_version=entry.version,
            )


def _failed(store: LogStore, failures: Mapping[str, StorageError], num_deleted: int) -> StorageError:
    """Return the error for files that could not be deleted."""
    first = next(iter(failures.values()))
    return StorageError(
        f"Vacuum of {store.uri} deleted {num_deleted} of {num_deleted + len(failures)} files",
        cause=f"The first of {len(failures)} failures: {first}",
        remedy="Remove the cause and run vacuum again. This is safe",
        errno=first.context.get("errno"),
        num_deleted=num_deleted,
        failed=tuple(sorted(failures)[:_MOST_NAMED]),
    )


def resolve_retention_ms(snapshot: Snapshot, retention_hours: float | None, *, enforce: bool) -> int:
    """Return the retention in milliseconds.

    Raises:
        InvalidRequestError: The retention is negative or not a number. Or it is shorter than the table's, and `enforce`
            is set.
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
            remedy="Lower delta.deletedFileRetentionDuration. Or, if no reader or writer is active, switch this "
            "check off: enforce_retention=False, in the shell --force",
            retention_ms=asked_ms,
            table_retention_ms=table_ms,
        )
    return asked_ms


def _unneeded_files(
    snapshot: Snapshot, others: Sequence[Snapshot], store: LogStore, expired_ms: int, *, full: bool
) -> pa.Table:
    """Return the files below the root that vacuum may delete: `path` relative to the root, decoded and sorted, and
    `size`.

    Raises:
        ProtocolViolationError: A live file has a deletion vector, but the protocol does not list the feature.
    """
    needed = _needed_files(snapshot, others, store, expired_ms)
    files, identities = _columns(store.list_recursive() if full else removed_files(snapshot, expired_ms))
    paths = listed = FileTable(files).path.combine_chunks()
    # Needed files stay, even if their names look hidden.
    is_listed = pc.is_in(listed, value_set=needed.paths)
    is_kept = [is_listed, pc.greater(files.column("time").combine_chunks(), expired_ms)]
    if len(needed.foreign_names):
        is_kept.append(_is_named(listed, needed.foreign_names))
    if pc.any(pc.ends_with(listed, ".crc")).as_py():
        # A checksum file of Hadoop's local file system (`.name.crc`) is deleted with its file.
        paths = pc.replace_substring_regex(listed, r"(^|/)\.([^/]+)\.crc$", r"\1\2")
        is_kept += [pc.is_in(paths, value_set=needed.paths), _is_named(paths, needed.foreign_names)]
    # This includes checksum files in the root.
    rooted = pc.binary_join_element_wise("", paths, "/")
    parts = pc.split_pattern(rooted, "/", max_splits=1, reverse=True)
    directories, names = (pc.list_element(parts, place) for place in int64_array([0, 1]))
    directories = pc.dictionary_encode(directories)
    inner_tables = _inner_tables(FileTable(files).path) if full else inner_tables_above(store, directories.dictionary)
    kept = [
        _is_hidden(directory[1:], snapshot.partition_columns) or _is_below(directory[1:], inner_tables)
        for directory in directories.dictionary.to_pylist()
    ]
    is_kept += [
        pc.take(bool_array(kept), directories.indices),
        pc.starts_with(names, "_"),
        pc.starts_with(names, "."),
    ]
    doomed = pc.sort_by(pc.filter(files, pc.invert(reduce(pc.or_, is_kept))).select(["path", "size"]), "path")
    if not doomed.num_rows:
        return doomed
    if full:
        _ensure_live_files_are_there(snapshot, store, listed)
    # The listing covers most of the needed files. A store returns the identity of all files or of no file.
    listed_identities = {identity for identity in compress(identities, is_listed.to_pylist()) if identity is not None}
    places = needed.places_except(pc.filter(listed, is_listed) if listed_identities else string_array([]))
    stays = store.not_deletable(FileTable(doomed).path.to_pylist(), places, listed_identities)
    if stays:
        doomed = pc.filter(doomed, pc.invert(pc.is_in(FileTable(doomed).path, value_set=string_array(sorted(stays)))))
    return doomed


def _ensure_live_files_are_there(snapshot: Snapshot, store: LogStore, listed: pa.Array) -> None:
    """Raise MissingFileError if a file of the newest version does not exist. If the log does not match the files, for
    example with a checkpoint of another table, vacuum would delete all rows."""
    paths = one_chunk(FileTable(snapshot.files(["path"])).path)
    is_found = pc.or_(pc.is_in(paths, value_set=listed), pc.match_substring_regex(paths, _MAY_BE_SPELLED_OTHERWISE))
    unlisted = pc.filter(paths, pc.invert(is_found)).to_pylist()
    # The listing does not follow links, so missing files are checked once more.
    for path, meta in zip(unlisted, map_ahead(store.head, unlisted, FAR_THREADS), strict=True):
        if meta is None:
            raise MissingFileError(
                f"The data file {path} does not exist, so vacuum deletes nothing",
                cause="The newest version names the file. The log may belong to another table",
                remedy="Run fsck(deep=True) to see all problems. Restore the file, or remove it from the log with "
                "repair()",
                path=path,
            )


def _columns(listed_files: Iterable[FileMeta]) -> tuple[pa.Table, list[tuple[int, int] | None]]:
    """Return files as columns `path`, `size` and `time`, and the identity of each file."""
    paths: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    identities: list[tuple[int, int] | None] = []
    for path, size, time_ms, identity, _ in listed_files:
        # A log cannot contain a name that is not valid Unicode, so such a file does not belong to this table.
        if path.isascii() or _is_unicode(path):
            paths.append(path)
            sizes.append(size)
            times.append(time_ms)
            identities.append(identity)
    files = {"path": string_array(paths), "size": int64_array(sizes), "time": int64_array(times)}
    return pa.table(files), identities


class _NeededFiles(NamedTuple):
    """The files that must stay: those of the newest version, of retained versions, and of young tombstones.

    Attributes:
        paths: Paths relative to the table's root, decoded.
        foreign_names: File names of files outside the root. Every listed file with such a name stays, because the other
            location may be the same directory (through a link or a mount).
        root: The root of the table in the data file system, with a trailing slash.
        plain: The members of `paths` that need no decoding.
        places: All other files, as paths in the data file system.
    """

    paths: pa.Array
    foreign_names: pa.Array
    root: str
    plain: pa.Array
    places: list[str]

    def places_except(self, listed: pa.Array) -> Iterator[str]:
        """Return the needed files as paths in the data file system, without the plain ones that are listed."""
        unlisted = pc.filter(self.plain, pc.invert(pc.is_in(self.plain, value_set=listed)))
        return chain(self.places, (self.root + path for path in unlisted.to_pylist()))


def _needed_files(snapshot: Snapshot, others: Sequence[Snapshot], store: LogStore, expired_ms: int) -> _NeededFiles:
    columns = ["path", "deletion_vector"]
    live, tombstones = snapshot.files(columns), snapshot.tombstones([*columns, "deletion_timestamp"])
    if FileTable(live).deletion_vector.null_count < live.num_rows and not snapshot.configuration.supports(
        "deletionVectors"
    ):
        raise ProtocolViolationError(
            "The table has deletion vectors, but its protocol does not list the feature",
            cause="Other clients would read deleted rows, and could delete the files of the vectors",
            remedy="Find the commit that added them with table.history(). Nothing was deleted",
        )
    # A tombstone without a timestamp counts as old.
    unexpired = pc.filter(tombstones, pc.greater(FileTable(tombstones).deletion_timestamp, expired_ms))
    needed = (live, unexpired, *(version.files(columns) for version in others))
    spelled = [
        *(chunk for files in needed for chunk in FileTable(files).path.chunks),
        *(vector_paths(files) for files in needed),
    ]
    root = store.data_filesystem()[1].rstrip("/") + "/"
    decoded: list[str] = []
    foreign: list[str] = []
    places: list[str] = []
    plain: list[pa.Array] = []
    for paths in spelled:
        is_odd = pc.match_substring_regex(paths, _MAY_BE_SPELLED_OTHERWISE)
        plain.append(pc.filter(paths, pc.invert(is_odd)))
        for odd in pc.filter(paths, is_odd).to_pylist():
            try:
                place = store.resolve(odd)
            except UnsupportedStoreError:
                # The table cannot read this file. Only files with the same name must stay.
                foreign.append(decode_path(odd).rpartition("/")[2])
                continue
            places.append(place)
            place = posixpath.normpath(place)
            if place.startswith(root):
                decoded.append(place[len(root) :])
            else:
                foreign.append(place.rpartition("/")[2])
    paths = pa.concat_arrays([*spelled, string_array(decoded)])
    return _NeededFiles(paths, string_array(foreign), root, pa.concat_arrays(plain), places)


def _is_unicode(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inner_tables(paths: pa.ChunkedArray) -> tuple[str, ...]:
    """Return the directories inside the table that hold another table. Their files do not belong to this table."""
    logs = pc.filter(paths, pc.match_substring(paths, _INNER_LOG)).to_pylist()
    return tuple({path[: path.index(_INNER_LOG)] for path in logs})


def _is_below(directory: str, roots: Sequence[str]) -> bool:
    return any(directory == root or directory.startswith(f"{root}/") for root in roots)


def _is_hidden(directory: str, partition_columns: Sequence[str]) -> bool:
    """Whether a directory or one of its parents is hidden: it belongs to the log or to another program."""
    return directory != STAGED_DIRECTORY and any(
        part.startswith(("_", "."))
        and part != "_change_data"
        and not any(part.startswith(f"{column}=") for column in partition_columns)
        for part in directory.split("/")
    )


def delete_files(store: LogStore, paths: Sequence[str]) -> dict[str, StorageError]:
    """Delete files, several at a time. A file that does not exist any more is no error.

    Returns: The paths that could not be deleted, with their errors.
    """

    def delete(path: str) -> tuple[str, StorageError] | None:
        try:
            store.delete(path)
        except StorageError as e:
            return path, e
        return None

    return dict(filter(None, map_ahead(delete, paths, FAR_THREADS)))


def _record(
    table_log: TableLog,
    snapshot: Snapshot,
    commit_options: CommitOptions,
    operation: str,
    parameters: dict[str, str],
    metrics: dict[str, int],
) -> None:
    transaction = Transaction(
        table_log, snapshot, operation=operation, operation_parameters=parameters, **commit_options
    )
    transaction.set_operation_metrics(metrics)
    transaction.commit()
