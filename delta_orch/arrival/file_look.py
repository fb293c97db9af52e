"""Lists a source once for a table, and selects the files that the next commit loads."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_source import SOURCE_FILE, FileSource
from delta_orch.arrival.loaded_files import (
    CURSOR_PREFIX,
    FORGOTTEN,
    LoadedFiles,
    cursor_id,
    record_directory,
    record_path,
)
from delta_orch.errors import (
    FilesChangedError,
    InvalidRequestError,
    MissingFileError,
    TimestampOutOfRangeError,
    VersionNotFoundError,
)
from delta_orch.expressions.nodes import Column, Expression, In, Literal
from delta_orch.log.read.time_travel import parse_timestamp_ms
from delta_orch.protocol.arrow_building import one_chunk, schema_to_arrow
from delta_orch.protocol.types import BOOLEAN, STRING, StructType
from delta_orch.table.column_definitions import is_generated, is_identity

if TYPE_CHECKING:
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.base import FileMeta, LogStore

_LOGGER = logging.getLogger(__name__)

_MOST_REPLACED = 1000
"""The maximal number of files whose rows one commit replaces, because their paths become a predicate."""

_MOST_NAMED = 5


@dataclass(frozen=True)
class NewFiles:
    """The files that the next commit loads.

    Attributes:
        source: The source of the files.
        files: The files, as `file_source.LISTING_SCHEMA`.
        replaces: Whether the commit replaces the rows that were loaded from the same files before.
        loaded: The record of loaded files that the commit is based on.
        version: The version of the record that the commit writes.
    """

    source: FileSource
    files: pa.Table
    replaces: bool
    loaded: LoadedFiles
    version: int

    @property
    def size_bytes(self) -> int:
        return int(pc.sum(self.files["size"]).as_py() or 0)

    @property
    def txn(self) -> TxnId:
        """Return the transaction id of the commit. Without it, the files would be loaded again."""
        return self.loaded.txn(self.version)

    def write_record(self, set_aside: pa.Table) -> None:
        """Write the record that the commit names, after the files were read. Raises as `LoadedFiles.write`."""
        self.loaded.write(self.version, self.files, set_aside=set_aside["path"].to_pylist())


def replaced_rows(batch: NewFiles, set_aside: pa.Table) -> Expression:
    """Return the predicate for the old rows of the readable files of a batch. It uses the column with the file of each
    row."""
    return _rows_of_files(batch, set_aside, Column((SOURCE_FILE, "path")))


def quarantined_before(batch: NewFiles, set_aside: pa.Table) -> Expression:
    """Return the predicate for the rows of these files in a quarantine."""
    return _rows_of_files(batch, set_aside, Column(("source_file",)))


def _rows_of_files(batch: NewFiles, set_aside: pa.Table, column: Column) -> Expression:
    paths = one_chunk(batch.files["path"])
    is_read = pc.invert(pc.is_in(paths, value_set=one_chunk(set_aside["path"])))
    uris = pc.filter(batch.source.uris(batch.files), is_read).to_pylist()
    if not uris:
        return Literal(False, BOOLEAN)
    return In(column, tuple(Literal(uri, STRING) for uri in uris))


def columns_from_files(snapshot: Snapshot | None, but: str | None = None) -> pa.Schema | None:
    """Return the columns of a table that files fill, without columns that the table computes. None if there is no
    table.

    Args:
        but: A column that the caller fills.
    """
    if snapshot is None:
        return None
    fields = (f for f in snapshot.schema if not (is_generated(f) or is_identity(f) or f.name == but))
    return schema_to_arrow(StructType(tuple(fields)))


class FileLook:
    """The files of a source, listed once, for one table.

    Args:
        source: The source.
        log: The table.
    """

    def __init__(self, source: FileSource, log: TableLog) -> None:
        ensure_apart(source, log)
        self.source = source
        self._log = log
        self._listed: pa.Table | None = None
        self._new = self._changed = pa.table({})
        self._at: int | None = None

    def next_files(self, snapshot: Snapshot | None) -> NewFiles | None:
        """Return the files that the next commit after a version of the table loads. None if nothing is new.

        Raises:
            FilesChangedError: A loaded file has changed (`on_changed='error'`).
            InvalidRequestError: The table forgets loaded files. Or it was restored, and its log does not have the
                restored version.
            MissingFileError: The record of loaded files does not exist.
            StorageError: The source or the record cannot be read.
        """
        loaded = self._select(snapshot)
        self._ensure_unchanged()
        version = loaded.next_version()
        replaces = self.source.on_changed == "replace" and self._changed.num_rows > 0
        if replaces:
            files, self._changed = self._first(self._changed, min(self.source.max_files, _MOST_REPLACED))
        else:
            files, self._new = self._first(self._new, self.source.max_files)
        # The remaining files are valid for the next version, unless another writer commits it.
        self._at = version
        return NewFiles(self.source, files, replaces, loaded, version) if files.num_rows else None

    def waiting_files(self, snapshot: Snapshot | None) -> pa.Table:
        """Return all files that commits after a version of the table load, as `file_source.LISTING_SCHEMA`. If changed
        files are an error, return these as well.

        Raises as `next_files`, but no FilesChangedError.
        """
        self._select(snapshot)
        return self._new if self.source.on_changed == "ignore" else pa.concat_tables([self._changed, self._new])

    def _select(self, snapshot: Snapshot | None) -> LoadedFiles:
        """Compare the listed files with the record of a version. Files that commits load are removed until the next
        comparison."""
        loaded = recorded_files(self._log, snapshot, cursor_id(self.source))
        if self._listed is None:
            self._listed = self.source.list_files(loaded.last_path if self.source.names_ascend else "")
        if self._at != loaded.recorded:
            self._new, self._changed = loaded.select(self._listed)
            self._at = loaded.recorded
        return loaded

    def _first(self, files: pa.Table, most: int) -> tuple[pa.Table, pa.Table]:
        count = min(most, files.num_rows)
        if self.source.max_bytes is not None and count:
            sums = pc.cumulative_sum(one_chunk(files["size"].slice(0, count)))
            count = max(1, pc.sum(pc.less_equal(sums, self.source.max_bytes)).as_py())
        return files.slice(0, count), files.slice(count)

    def _ensure_unchanged(self) -> None:
        if self.source.on_changed != "error" or not self._changed.num_rows:
            return
        paths, count = self._changed["path"].slice(0, _MOST_NAMED).to_pylist(), self._changed.num_rows
        raise FilesChangedError(
            f"{count} files of {self.source.uri} have changed since they were loaded, for example {paths[0]}",
            cause="Their size or etag differs, and the table still has their old rows",
            remedy="Pass on_changed='replace' to load them again, or on_changed='ignore' to keep the old rows",
            paths=paths,
            num_files=count,
        )


def ensure_apart(source: FileSource, log: TableLog) -> None:
    """Raise InvalidRequestError if the table lies below the source, because its data files would be loaded into it."""
    if f"{log.store.uri}/".startswith(f"{source.uri}/"):
        raise InvalidRequestError(
            f"The table {log.store.uri} lies below the source {source.uri}",
            cause="The table would load its own data files",
            remedy="Use a source directory that does not contain the table",
        )


def recorded_files(log: TableLog, snapshot: Snapshot | None, cursor: str) -> LoadedFiles:
    """Return the files of a source whose rows a version of a table has. Files whose rows a restore removed are not
    included.

    Raises as `FileLook.next_files`.
    """
    if snapshot is None:
        return LoadedFiles(log.store, cursor)
    if snapshot.properties.set_transaction_retention_ms is not None:
        raise InvalidRequestError(
            f"{log.store.uri} forgets loaded files, and would load them again",
            cause="The record of loaded files expires, because delta.setTransactionRetentionDuration is set",
            remedy="Remove the property: "
            "table.alter().unset_properties('delta.setTransactionRetentionDuration').commit()",
            uri=log.store.uri,
        )
    recorded = snapshot.txn_version(cursor)
    recorded = -1 if recorded is None else recorded
    return LoadedFiles.read(log.store, cursor, recorded, _version_of_rows(log, snapshot, cursor))


def forget_files(
    log: TableLog, snapshot: Snapshot, versions: Mapping[str, Collection[int]], *, is_rehearsal: bool
) -> dict[str, int]:
    """Mark files as not loaded, for the commit that removes their rows.

    Args:
        versions: For each cursor, the record versions that added the rows.
        is_rehearsal: Write nothing.

    Returns: The record version of each cursor, for the commit. Raises as `FileLook.next_files`.
    """
    forgotten: dict[str, int] = {}
    for cursor, own in versions.items():
        loaded = recorded_files(log, snapshot, cursor)
        forgotten[cursor] = loaded.next_version()
        if not is_rehearsal:
            loaded.write(forgotten[cursor], loaded.of_versions(own), FORGOTTEN)
    return forgotten


def copy_records(log: TableLog, snapshot: Snapshot, store: LogStore, *, is_rehearsal: bool) -> dict[str, int]:
    """Copy the record of loaded files of a version of a table to the root of its clone.

    Returns: The record version of each cursor, for the clone. Raises as `FileLook.next_files`.
    """
    copied: dict[str, int] = {}
    if snapshot.properties.set_transaction_retention_ms is not None:
        return copied  # The clone has the same property, so it cannot load files.
    for cursor in snapshot.txns.named((CURSOR_PREFIX,)):
        loaded = recorded_files(log, snapshot, cursor)
        if not is_rehearsal:
            loaded.copy_to(store)
        copied[cursor] = loaded.version
    return copied


def unneeded_records(log: TableLog, snapshot: Snapshot, kept: Sequence[Snapshot], expired_ms: int) -> list[FileMeta]:
    """Return the old files of records that no version within a retention needs.

    Args:
        kept: Other versions whose records stay.
        expired_ms: The start of the retention, in milliseconds since the epoch.

    Raises as `FileLook.next_files`.
    """
    found: list[FileMeta] = []
    if snapshot.properties.set_transaction_retention_ms is not None:
        return found
    for cursor in snapshot.txns.named((CURSOR_PREFIX,)):
        try:
            needed = _needed_records(log, snapshot, cursor, expired_ms)
            # Younger records stay. They refer only to each other and to the oldest of these records.
            kept_records = [recorded_files(log, past, cursor) for past in (snapshot, *kept)]
        except (MissingFileError, InvalidRequestError) as e:
            _LOGGER.info("Vacuum does not change the record of %s: %s", cursor, e)
            continue
        if needed is None:
            continue
        for version in needed.copy():
            with suppress(MissingFileError):
                needed |= LoadedFiles.read(log.store, cursor, version, version).versions
        needed = needed.union(*(record.versions for record in kept_records))
        names = {record_path(cursor, version) for version in needed}
        files = log.store.list_from(record_directory(cursor))
        found += [file for file in files if file.modification_time_ms <= expired_ms and file.path not in names]
    return found


def _needed_records(log: TableLog, snapshot: Snapshot, cursor: str, expired_ms: int) -> set[int] | None:
    """Return the records that versions within a retention need and that may be older. None if the log does not show
    them."""
    needed: set[int] = set()
    for commit in log.newest_first(snapshot.version):
        own = [txn.version for txn in commit.txns if txn.app_id == cursor]
        if (commit.commit_info or {}).get("operation") == "RESTORE":
            if (past := _restored(log, commit)) is None:
                return None
            needed |= {*own, _version_of_rows(log, past, cursor)}
        if own and commit.timestamp_ms < expired_ms:
            return {version for version in (*needed, *own) if version >= 0}
    return None


def _version_of_rows(log: TableLog, snapshot: Snapshot, cursor: str) -> int:
    """Return the record version that matches the rows. Other clients restore rows without the record."""
    recorded = snapshot.txn_version(cursor)
    if recorded is None or recorded < 0:
        return -1
    for commit in log.newest_first(snapshot.version):
        is_own = any(txn.app_id == cursor for txn in commit.txns)
        if (commit.commit_info or {}).get("operation") == "RESTORE":
            past = _restored(log, commit)
            if past is not None:
                return _version_of_rows(log, past, cursor)
            if not is_own:
                raise InvalidRequestError(
                    f"{log.store.uri} was restored in version {commit.version}, and its log does not show the files "
                    "that were loaded then",
                    cause="The log no longer has the restored version",
                    remedy="Restore the table with DeltaTable.restore(), which also restores the record of loaded "
                    "files",
                    uri=log.store.uri,
                    version=commit.version,
                )
        if is_own:
            return recorded
    return recorded


def _restored(log: TableLog, commit: Commit) -> Snapshot | None:
    """Return the version that a commit restored. None if the log does not show it."""
    parameters = (commit.commit_info or {}).get("operationParameters")
    operation_parameters = parameters if isinstance(parameters, dict) else {}
    version = operation_parameters.get("version")
    moment = operation_parameters.get("timestamp") or operation_parameters.get("datetime")
    try:
        if version is not None and str(version).isdecimal():
            return log.snapshot(version=int(version))
        if moment:
            return log.snapshot(timestamp_ms=parse_timestamp_ms(str(moment)))
    except (VersionNotFoundError, TimestampOutOfRangeError):
        pass
    return None
