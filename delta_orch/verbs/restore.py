"""`restore`: the state of an older version, as the next one."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_traits import with_record_counts
from delta_orch.errors import CorruptDataError, InvalidRequestError, MissingFileError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.txn import gone_with_rows
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import Timestamp, ensure_version, parse_timestamp_ms
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitOptions, CommitResult, ensure_unscoped
from delta_orch.log.write.staged_actions import keys_of
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.arrow_building import all_booleans
from delta_orch.table.clustering import CLUSTERING_DOMAIN, serialize_clustering
from delta_orch.table.column_mapping import MAX_COLUMN_ID
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import united_protocol, with_own_commit_times
from delta_orch.table.row_tracking import ROW_TRACKING_DOMAIN, parse_high_water_mark, serialize_high_water_mark
from delta_orch.verbs.fsck import FILE_CHECK_COLUMNS, check_data_files, check_deletion_vectors
from delta_orch.verbs.vacuum import ensure_none_runs
from delta_orch.writing.identity import with_marks_kept
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS

_MOST_NAMED = 5


def restore(
    log: TableLog,
    snapshot: Snapshot,
    version: int | None,
    timestamp: Timestamp | None,
    ignore_missing_files: bool,
    options: CommitOptions,
) -> CommitResult:
    """Commit the difference between the newest version and an older one: files that only the older one has are added
    again, with their deletion vectors, row ids and statistics, and files that only the newest one has are removed.

    Schema, partitioning, properties and clustering are those of the older version. Some state never goes back. The
    protocol keeps the features of both versions; row ids, identity values and column ids are never assigned twice. The
    user's metadata domains and transaction ids stay as they are; only the cursors of incremental steps go back, so that
    these read again what is undone.

    The change data feed shows the difference from the files that are added and removed. The commit conflicts with every
    change of rows or metadata since the newest version was read, unless the caller passes a weaker isolation level.

    Raises as `DeltaTable.restore`.
    """
    ensure_unscoped(options, "A restore applies to the whole table")
    if version is not None:
        ensure_version(version)
    text = None if timestamp is None else str(timestamp)
    options = {**options, "isolation_level": options.get("isolation_level") or SERIALIZABLE}
    transaction = Transaction(
        log,
        snapshot,
        operation="RESTORE",
        operation_parameters={"version": version, "timestamp": text},
        **options,
    )
    if transaction.stale_txns():
        return transaction.commit()
    transaction.ensure_follows()
    past = log.snapshot(version, None if timestamp is None else parse_timestamp_ms(timestamp))
    if past.version >= snapshot.version:
        raise InvalidRequestError(
            f"Version {past.version} is the newest one",
            cause="Restoring goes back to an older version",
            remedy="Give an older version or an earlier timestamp",
            version=past.version,
        )
    past.configuration.for_writing()
    adds, removes = _difference(past, snapshot)
    if adds.num_rows:
        # Vacuum may be about to delete them. Looked at before the files are: one that has ended has deleted.
        ensure_none_runs(log)
        transaction.relies_on_unnamed_files()
    if not ignore_missing_files:
        ensure_files_there(
            past, adds, "restored", "Restore a newer version, bring the files back, or pass ignore_missing_files=True"
        )
    _stage(transaction, past, snapshot, adds, removes)
    transaction.set_operation_metrics(
        {
            "tableSizeAfterRestore": past.size_bytes,
            "numOfFilesAfterRestore": past.num_files,
            "numRemovedFiles": removes.num_rows,
            "numRestoredFiles": adds.num_rows,
            "removedFilesSize": FileTable(removes).size_bytes,
            "restoredFilesSize": FileTable(adds).size_bytes,
        }
    )
    return transaction.commit()


def _difference(past: Snapshot, newest: Snapshot) -> tuple[pa.Table, pa.Table]:
    """The logical files that only the past has, all columns, and those that only the newest version has."""
    before, now = past.files(), newest.files(REMOVED_FILE_COLUMNS)
    keys_before, keys_now = keys_of(before), keys_of(now)
    adds = pc.filter(before, pc.invert(pc.is_in(keys_before, value_set=keys_now)))
    removes = pc.filter(now, pc.invert(pc.is_in(keys_now, value_set=keys_before)))
    index = adds.schema.get_field_index("data_change")
    return adds.set_column(index, adds.schema.field(index), all_booleans(True, adds.num_rows)), removes


def _stage(transaction: Transaction, past: Snapshot, newest: Snapshot, adds: pa.Table, removes: pa.Table) -> None:
    transaction.read_whole_table()
    table = TableConfiguration(united_protocol(newest.protocol, past.protocol), _restored_metadata(past, newest))
    transaction.update_metadata(table.metadata, past.metadata)
    if table.protocol != newest.protocol:
        transaction.update_protocol(table.protocol)
    clustering = past.clustering or ()
    if clustering != (newest.clustering or ()):
        transaction.set_domain_metadata(CLUSTERING_DOMAIN, serialize_clustering(clustering))
    past_mark, now = (parse_high_water_mark(s.domain_metadata.get(ROW_TRACKING_DOMAIN)) for s in (past, newest))
    if past_mark > now:
        # The feature was dropped since. The restored files have ids that must not be assigned again.
        transaction.set_domain_metadata(ROW_TRACKING_DOMAIN, serialize_high_water_mark(past_mark))
    if adds.num_rows:
        transaction.add_known_files(with_record_counts(past.store, adds, table))
    if removes.num_rows:
        transaction.remove_files(removes)
    transaction.take_back(_cursors(past, newest))


def _cursors(past: Snapshot, newest: Snapshot) -> dict[str, int]:
    """The recorded versions of the ids that belong to the rows, if they have changed since; -1 for a new id."""
    now = gone_with_rows(newest.txns)
    recorded = past.every_txn.among(list(now))
    then = {name: recorded[name].version if name in recorded else -1 for name in now}
    return {name: version for name, version in then.items() if version != now[name]}


def _restored_metadata(past: Snapshot, newest: Snapshot) -> Metadata:
    """The older version's metadata, with the numbers that only go up where they stand now."""
    metadata = with_marks_kept(past.metadata, newest.metadata)
    properties = dict(metadata.configuration)
    if MAX_COLUMN_ID in properties:
        properties[MAX_COLUMN_ID] = str(max(past.properties.max_column_id, newest.properties.max_column_id))
    properties = with_own_commit_times(properties, past.configuration, newest.configuration)
    return replace(metadata, configuration=properties)


def ensure_files_there(past: Snapshot, adds: pa.Table, what: str, remedy: str) -> None:
    """Check that every data file and deletion vector matches the log.

    Args:
        adds: Files of the version.
        what: What cannot be done to it, as a participle.

    Raises:
        MissingFileError: Some are gone; up to five are named.
        CorruptDataError: A file exists but does not match the log.
    """
    files = adds.select(FILE_CHECK_COLUMNS)
    problems = [*check_data_files(past.store, files), *check_deletion_vectors(past.store, files)]
    if not problems:
        return
    kind = MissingFileError if all(p.code == MissingFileError.code for p in problems) else CorruptDataError
    more = f" There are {len(problems) - _MOST_NAMED} more." if len(problems) > _MOST_NAMED else ""
    raise kind(
        f"Version {past.version} cannot be {what}: {len(problems)} of its files cannot be used",
        cause=" ".join(problem.message for problem in problems[:_MOST_NAMED]) + more,
        remedy=f"Vacuum may have deleted them. {remedy}",
        version=past.version,
        num_files=len(problems),
        paths=[problem.path for problem in problems[:_MOST_NAMED]],
    )
