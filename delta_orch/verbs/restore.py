"""`restore`: makes the state of an older version the next version."""

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
    """Commit the difference between the newest version and an older one. Files that only the older version has are
    added again, with their deletion vectors, row ids and statistics. Files that only the newest version has are
    removed.

    Schema, partitioning, properties and clustering are those of the older version. Some state never goes back. The
    protocol keeps the features of both versions. Row ids, identity values and column ids are never assigned twice. The
    user's metadata domains and transaction ids do not change. Only the cursors of incremental steps go back, so that
    these steps read the undone versions again.

    The change data feed shows the rows of added and removed files. The commit conflicts with every change of rows or
    metadata since the newest version was read, unless the caller passes a weaker isolation level.

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
            f"Version {past.version} is the newest version",
            cause="restore() goes back to an older version",
            remedy="Pass an older version or an earlier timestamp",
            version=past.version,
        )
    past.configuration.for_writing()
    adds, removes = _difference(past, snapshot)
    if adds.num_rows:
        # A running vacuum may delete these files. This check comes before the check of the files, because a vacuum that
        # ended before has deleted its files already.
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
    """Return the logical files that only the older version has, with all columns, and the files that only the newest
    version has."""
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
        # Row tracking was dropped meanwhile. The ids of restored files must not be assigned again.
        transaction.set_domain_metadata(ROW_TRACKING_DOMAIN, serialize_high_water_mark(past_mark))
    if adds.num_rows:
        transaction.add_known_files(with_record_counts(past.store, adds, table))
    if removes.num_rows:
        transaction.remove_files(removes)
    transaction.take_back(_cursors(past, newest))


def _cursors(past: Snapshot, newest: Snapshot) -> dict[str, int]:
    """Return the older versions of transaction ids that belong to rows, if they changed. -1 stands for an id that the
    older version does not have."""
    now = gone_with_rows(newest.txns)
    recorded = past.every_txn.among(list(now))
    then = {name: recorded[name].version if name in recorded else -1 for name in now}
    return {name: version for name, version in then.items() if version != now[name]}


def _restored_metadata(past: Snapshot, newest: Snapshot) -> Metadata:
    """Return the older version's metadata, with counters that only go up taken from the newest version."""
    metadata = with_marks_kept(past.metadata, newest.metadata)
    properties = dict(metadata.configuration)
    if MAX_COLUMN_ID in properties:
        properties[MAX_COLUMN_ID] = str(max(past.properties.max_column_id, newest.properties.max_column_id))
    properties = with_own_commit_times(properties, past.configuration, newest.configuration)
    return replace(metadata, configuration=properties)


def ensure_files_there(past: Snapshot, adds: pa.Table, what: str, remedy: str) -> None:
    """Check that every data file and deletion vector matches the log.

    Args:
        adds: The files to check.
        what: The refused action in the error, as a participle.

    Raises:
        MissingFileError: Files are missing. The error names up to five.
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
        remedy=f"Vacuum may have deleted the files. {remedy}",
        version=past.version,
        num_files=len(problems),
        paths=[problem.path for problem in problems[:_MOST_NAMED]],
    )
