"""Row ids for the files of a table: giving them before row tracking is enabled, taking them before it is dropped.

From the commit on that adds the feature, every writer gives ids to what it adds; the files from before are then added
again in batches with ids of their own (PROTOCOL, "Row Tracking": a "backfill operation"). Ids that stayed behind a
dropped feature would be given out a second time if it came back, so the table first stops giving ids
(`delta.rowTrackingSuspended`), and the files are added again without. No row changes. Any of these commits may be the
last: the next attempt goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.footer_statistics import read_footer_statistics
from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.log.files.arrow_building import string_array
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.record_counts import record_counts, with_record_count
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, provenance_only
from delta_orch.log.write.transaction import Transaction
from delta_orch.table.property_rules import find_property
from delta_orch.table.protocol_upgrade import protocol_for_existing_table
from delta_orch.verbs.alter.table_changes import protocol_json
from delta_orch.writing.moved_rows import without_data_change
from delta_orch.writing.plan import Write, WritePlan, run_plan

_LOGGER = logging.getLogger(__name__)

FILES_PER_COMMIT = 100_000
_MAX_CONFLICTS = 100
_ID_COLUMNS = ("base_row_id", "default_row_commit_version")
_SUSPENSION = {"delta.enableRowTracking": "false", "delta.rowTrackingSuspended": "true"}


def lacks_row_ids(snapshot: Snapshot) -> bool:
    """Whether row tracking could not be enabled as the table is: some file has no row ids."""
    return bool(_without_ids(snapshot).num_rows)


def holds_row_ids(snapshot: Snapshot) -> bool:
    """Whether rows have ids, or get some when they are written."""
    return snapshot.configuration.assigns_row_ids or bool(_with_ids(snapshot).num_rows)


def give_rows_ids(
    log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Add the feature `rowTracking` where it is missing, then give ids to all files that have none.

    Other writers go on meanwhile. Where one of them removes a file of a batch, the batch is put together again. The
    statistics of files that do not say how many records they have gain that number, from the files' own footers.

    Args:
        read_snapshot: Gives the newest version.
        options: `user_metadata` and `commit_info` of the commits; the rest is ignored.

    Returns: How many commits that took.

    Raises:
        InvalidRequestError: Row tracking is suspended (`delta.rowTrackingSuspended`). Nothing was written.
        UnsupportedFeatureError: This release could not write the table afterwards.
        MissingFileError, StorageError: A footer cannot be read. Batches committed before stay, and do no harm.
        ConflictError: Others changed the table's metadata, or were faster repeatedly.
    """
    return _until_done(lambda told: _give_some(log, read_snapshot(), told, files_per_commit), options)


def take_row_ids(
    log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Suspend row tracking, then take the ids from all files. Arguments and result as of `give_rows_ids`.

    Raises:
        ConflictError: Others changed the table's metadata, or were faster repeatedly. Row tracking may be
            suspended, and some of the ids gone.
    """
    return _until_done(lambda told: _take_some(log, read_snapshot(), told, files_per_commit), options)


def _until_done(commit_some: Callable[[CommitOptions], bool], options: CommitOptions) -> int:
    """Commit until nothing is left to do. A commit that meets a conflict is made again, `_MAX_CONFLICTS` times."""
    told = provenance_only(options)
    commits = conflicts = 0
    while True:
        try:
            if not commit_some(told):
                return commits
            commits += 1
        except ConflictError as e:
            conflicts += 1
            if conflicts == _MAX_CONFLICTS:
                raise
            _LOGGER.info("A batch of files is put together again: %s", e)


def _give_some(log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. False where nothing is left to do."""
    if not snapshot.configuration.supports("rowTracking"):
        _add_feature(log, snapshot, options)
        return True
    if not snapshot.configuration.assigns_row_ids:
        raise InvalidRequestError(
            "The table gives its rows no ids",
            cause="delta.rowTrackingSuspended is true",
            remedy="Unset the property delta.rowTrackingSuspended first",
        )
    files = _without_ids(snapshot).slice(0, files_per_commit)
    if not files.num_rows:
        return False
    _add_again(log, snapshot, _with_counts(snapshot, files), "ROW TRACKING BACKFILL", options)
    return True


def _take_some(log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. False where nothing is left to do."""
    if snapshot.configuration.assigns_row_ids:
        set_properties(log, snapshot, _SUSPENSION, options)
        return True
    files = _with_ids(snapshot).slice(0, files_per_commit)
    if not files.num_rows:
        return False
    for name in _ID_COLUMNS:
        index = files.schema.get_field_index(name)
        files = files.set_column(index, files.schema.field(index), pa.nulls(files.num_rows, pa.int64()))
    _add_again(log, snapshot, files, "ROW TRACKING UNBACKFILL", options)
    return True


def _add_again(log: TableLog, snapshot: Snapshot, files: pa.Table, operation: str, options: CommitOptions) -> None:
    """Commit files of the snapshot as they are given, none of their rows changed."""

    def change(write: Write) -> dict[str, int]:
        write.transaction.read_files(files)
        write.transaction.add_files(without_data_change(files))
        return {"numAddedFiles": files.num_rows}

    run_plan(log, snapshot, WritePlan(operation, {"batchSize": files.num_rows}, change, options))


def _add_feature(log: TableLog, snapshot: Snapshot, options: CommitOptions) -> None:
    protocol = protocol_for_existing_table(snapshot.configuration, ["rowTracking"])
    parameters = {"newProtocol": orjson.dumps(protocol_json(protocol)).decode()}
    transaction = Transaction(log, snapshot, operation="UPGRADE PROTOCOL", operation_parameters=parameters, **options)
    transaction.update_protocol(protocol)
    transaction.commit()


def set_properties(log: TableLog, snapshot: Snapshot, asked: Mapping[str, str], options: CommitOptions) -> None:
    """Commit table properties beside those there are."""
    kept = dict(snapshot.metadata.configuration)
    for key in asked:
        # A table may spell a key in its own way: there must not be two of one name.
        kept.pop(find_property(kept, key) or key, None)
    parameters = {"properties": orjson.dumps(asked).decode()}
    transaction = Transaction(log, snapshot, operation="SET TBLPROPERTIES", operation_parameters=parameters, **options)
    transaction.update_metadata(replace(snapshot.metadata, configuration={**kept, **asked}))
    transaction.commit()


def _with_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    return files.filter(
        pc.or_(FileTable(files).base_row_id.is_valid(), FileTable(files).default_row_commit_version.is_valid())
    ).combine_chunks()


def _without_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    lacking = pc.or_(FileTable(files).base_row_id.is_null(), FileTable(files).default_row_commit_version.is_null())
    return files.filter(lacking).combine_chunks()


def _with_counts(snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """The files, their statistics completed by how many records they have."""
    uncounted = pc.indices_nonzero(record_counts(files).is_null()).to_pylist()
    if not uncounted:
        return files
    paths = FileTable(files).path.to_pylist()
    stats = FileTable(files).stats.to_pylist()
    filesystem, _ = snapshot.store.data_filesystem()
    footers = read_footer_statistics(filesystem, [snapshot.store.resolve(paths[row]) for row in uncounted], ())
    for row, count in zip(uncounted, footers.column("num_records").to_pylist(), strict=True):
        stats[row] = with_record_count(stats[row], count)
    index = files.schema.get_field_index("stats")
    return files.set_column(index, files.schema.field("stats"), string_array(stats))
