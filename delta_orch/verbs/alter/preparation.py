"""Commits that prepare a table for an alteration.

Each commit leaves a valid table, so an interrupted alteration can be tried again.

After the commit that adds `rowTracking`, every writer assigns row ids to its files. Older files are then added again in
batches, with ids of their own (PROTOCOL, "Row Tracking": a "backfill operation"). Before the feature is dropped, the
table stops assigning ids (`delta.rowTrackingSuspended`), and its files are added again without ids. Otherwise remaining
ids could be assigned a second time if the feature came back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_traits import with_record_counts
from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.listing import CheckpointFiles, list_log
from delta_orch.log.read.checkpoint_reader import Checkpoint
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.log_cleanup import clean_up_log
from delta_orch.log.write.commit_options import CommitOptions, provenance_only
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.action_json import body_to_json
from delta_orch.protocol.paths import LogFileKind
from delta_orch.protocol.table_properties import with_properties_set
from delta_orch.storage.base import LogStore
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import (
    NEW_TABLE,
    PROTECTED_BEFORE,
    REMOVALS,
    protocol_for_existing_table,
    with_features,
)
from delta_orch.verbs.alter.draft import Draft
from delta_orch.verbs.log_files import checkpoint
from delta_orch.writing.moved_rows import without_data_change
from delta_orch.writing.plan import Write, WritePlan, run_plan

_POLICY = "delta.checkpointPolicy"


def prepare(table_log: TableLog, read_snapshot: Callable[[], Snapshot], draft: Draft, options: CommitOptions) -> bool:
    """Make the commits that the draft needs first.

    Returns: Whether anything was committed. In that case the draft must be made again.

    Raises as `give_rows_ids`, `take_row_ids`; ConflictError, StorageError.
    """
    snapshot, table = draft.snapshot, draft.table
    is_tracking = snapshot.configuration.enables("rowTracking")
    if not is_tracking and table.enables("rowTracking") and lacks_row_ids(snapshot):
        give_rows_ids(table_log, read_snapshot, options)
        return True
    if _drops(draft, "rowTracking") and holds_row_ids(snapshot):
        take_row_ids(table_log, read_snapshot, options)
        return True
    # The table is loaded again, because a snapshot that advanced to this version keeps its old checkpoint.
    if _drops(draft, "v2Checkpoint") and _may_need_v2(loaded := table_log.snapshot()):
        _write_classic_checkpoint(table_log, loaded, options)
        return True
    return False


def without_traces(draft: Draft) -> Draft:
    """Return the draft with unused features still listed, if the history must lose their traces first."""
    snapshot = draft.snapshot
    table = draft.table.after(with_features(draft.table.protocol, draft.truncates), None)
    if table.features == snapshot.configuration.features:
        table = table.after(snapshot.protocol, None)
    kept = dict(draft.configuration)
    if "checkpointProtection" in draft.truncates:
        before = snapshot.properties.require_checkpoint_protection_before_version
        kept |= {} if before is None else {PROTECTED_BEFORE: str(before)}
    if kept == dict(snapshot.metadata.configuration) and draft.schema == snapshot.schema:
        return replace(draft, table=table.after(None, snapshot.metadata))
    return replace(draft, table=table.with_properties(kept))


def _drops(draft: Draft, feature: str) -> bool:
    return draft.snapshot.configuration.supports(feature) and not draft.table.supports(feature)


def _may_need_v2(snapshot: Snapshot) -> bool:
    """Whether readers start from a V2 checkpoint, or may start from one after the next checkpoint."""
    if snapshot.properties.checkpoint_policy == "v2":
        return True
    checkpoint = snapshot.checkpoint
    return checkpoint is not None and (
        checkpoint.files.kind is LogFileKind.CHECKPOINT_UUID or bool(checkpoint.sidecars)
    )


def _checkpoint_version(snapshot: Snapshot) -> int | None:
    return None if snapshot.checkpoint is None else snapshot.checkpoint.version


def _write_classic_checkpoint(table_log: TableLog, snapshot: Snapshot, options: CommitOptions) -> None:
    """Stop writing V2 checkpoints, and write a newer checkpoint that every client can read."""
    if snapshot.properties.checkpoint_policy == "v2" or _checkpoint_version(snapshot) == snapshot.version:
        set_properties(table_log, snapshot, {_POLICY: "classic"}, provenance_only(options))
    checkpoint(table_log, table_log.snapshot())


_PROTECTION = "checkpointProtection"


def truncate_history(
    table_log: TableLog, read_snapshot: Callable[[], Snapshot], draft: Draft, options: CommitOptions
) -> bool:
    """Clean up old versions with traces of the draft's features. Versions must be older than
    `delta.dropFeatureTruncateHistory.retentionDuration` (by default a day). The newest version must have no traces.

    Returns: Whether anything was committed or cleaned up. In that case the draft must be made again.

    Raises:
        InvalidRequestError: Some versions are not old enough yet. The message says when they will be. The table stays
            prepared.
    """
    snapshot = draft.snapshot
    last = _last_version_with_traces(table_log, snapshot, draft.truncates)
    if last is None:
        return False
    if last == snapshot.version:
        # The commit that removed the feature still has traces of it, so the log must begin after that commit.
        Transaction(table_log, snapshot, operation="DROP FEATURE CHECKPOINT", **provenance_only(options)).commit()
        snapshot = read_snapshot()
    if not any(version > last for version in list_log(table_log.store, last).checkpoints):
        checkpoint(table_log, snapshot)
    retention_ms = snapshot.properties.drop_feature_history_retention_ms
    clean_up_log(table_log, snapshot, cut_off=time.time_ns() // 1_000_000 - retention_ms)
    last = _last_version_with_traces(table_log, snapshot, draft.truncates)
    if last is None:
        return True
    since_ms = table_log.read_commit(last + 1).timestamp_ms
    when = datetime.fromtimestamp((since_ms + retention_ms) / 1000, UTC).isoformat(timespec="seconds")
    names = ", ".join(sorted(draft.truncates))
    raise InvalidRequestError(
        f"The history of the table still holds traces of {names}",
        cause=f"Versions up to {last} use the feature and are kept for "
        "delta.dropFeatureTruncateHistory.retentionDuration",
        remedy=f"Repeat the call after {when}. Or call drop_feature without truncate_history now: the table then "
        f"has the feature {_PROTECTION} instead",
        features=sorted(draft.truncates),
        last_version=last,
    )


def holds_versions_before(store: LogStore, version: int) -> bool:
    """Whether the log still has a commit or a checkpoint of an earlier version."""
    listing = list_log(store, 0, max(version - 1, 0))
    return bool(version and (listing.commits or listing.checkpoints))


def _last_version_with_traces(table_log: TableLog, snapshot: Snapshot, features: Collection[str]) -> int | None:
    listing = list_log(table_log.store, 0, snapshot.version)
    protected = snapshot.properties.require_checkpoint_protection_before_version or 0
    versions = [-1]
    if _PROTECTION in features and holds_versions_before(table_log.store, protected):
        versions.append(protected - 1)
    feature_names = set(features) - {_PROTECTION}
    if feature_names:
        for version in sorted(listing.commits, reverse=True):
            commit = table_log.read_commit(version)
            vectors = (commit.adds, commit.removes)
            if _uses(commit, feature_names) or ("deletionVectors" in feature_names and any(map(_has_vectors, vectors))):
                versions.append(version)
                break
        # State that is older than the first commit of the log is only in a checkpoint.
        first = table_log.snapshot(table_log.earliest_version())
        if _uses(first, feature_names) or ("deletionVectors" in feature_names and _has_vectors(first.files(["dv_id"]))):
            versions.append(first.version)
        if "v2Checkpoint" in feature_names:
            checkpoints = (c for some in listing.checkpoints.values() for c in some)
            versions.extend(c.version for c in checkpoints if _is_v2(table_log.store, c))
    last = max(versions)
    return None if last < 0 else last


def _uses(version: Commit | Snapshot, features: Collection[str]) -> bool:
    if version.metadata is None:
        return False
    # The metadata alone shows which features a version uses.
    table = TableConfiguration(NEW_TABLE, version.metadata)
    return any(REMOVALS[name].uses(table) for name in features)


def _has_vectors(files: pa.Table) -> bool:
    column = files.column("dv_id" if "dv_id" in files.column_names else "deletion_vector")
    return bool(column.null_count < files.num_rows)


def _is_v2(store: LogStore, files: CheckpointFiles) -> bool:
    return files.kind is LogFileKind.CHECKPOINT_UUID or bool(Checkpoint(store, files).sidecars)


_LOGGER = logging.getLogger(__name__)

FILES_PER_COMMIT = 100_000
_MAX_CONFLICTS = 100
_ID_COLUMNS = ("base_row_id", "default_row_commit_version")
_SUSPENSION = {"delta.enableRowTracking": "false", "delta.rowTrackingSuspended": "true"}


def lacks_row_ids(snapshot: Snapshot) -> bool:
    """Whether a file has no row ids, so that row tracking cannot be enabled yet."""
    return bool(_without_ids(snapshot).num_rows)


def holds_row_ids(snapshot: Snapshot) -> bool:
    """Whether rows have ids, or get ids when they are written."""
    return snapshot.configuration.assigns_row_ids or bool(_with_ids(snapshot).num_rows)


def give_rows_ids(
    log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Add the feature `rowTracking` if it is missing, then give ids to all files without ids.

    Other writers can commit meanwhile. If one of their commits removes a file of a batch, the batch is planned again.
    If the statistics of a file lack the number of records, it is read from the footer and added.

    Args:
        read_snapshot: Returns the newest version.
        options: `user_metadata` and `commit_info` of the commits. Other options are ignored.

    Returns: The number of commits.

    Raises:
        InvalidRequestError: Row tracking is suspended (`delta.rowTrackingSuspended`). Nothing was written.
        UnsupportedFeatureError: This release could not write the table afterwards.
        MissingFileError, StorageError: A footer cannot be read. Batches that are committed already stay, and the table
            is valid.
        ConflictError: Other writers changed the metadata, or committed first too many times.
    """
    return _until_done(
        lambda commit_options: _give_some(log, read_snapshot(), commit_options, files_per_commit), options
    )


def take_row_ids(
    log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Suspend row tracking, then remove the row ids of all files. Arguments and result are those of `give_rows_ids`.

    Raises:
        ConflictError: Other writers changed the metadata, or committed first too many times. Row tracking may be
            suspended, and some files may have lost their ids.
    """
    return _until_done(
        lambda commit_options: _take_some(log, read_snapshot(), commit_options, files_per_commit), options
    )


def _until_done(commit_some: Callable[[CommitOptions], bool], options: CommitOptions) -> int:
    """Commit until nothing is left to do. After a conflict, the commit is made again, at most `_MAX_CONFLICTS`
    times."""
    commit_options = provenance_only(options)
    commits = conflicts = 0
    while True:
        try:
            if not commit_some(commit_options):
                return commits
            commits += 1
        except ConflictError as e:
            conflicts += 1
            if conflicts == _MAX_CONFLICTS:
                raise
            _LOGGER.info("A batch of files is planned again: %s", e)


def _give_some(log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. Return False if nothing is left to do."""
    if not snapshot.configuration.supports("rowTracking"):
        _add_feature(log, snapshot, options)
        return True
    if not snapshot.configuration.assigns_row_ids:
        raise InvalidRequestError(
            "The table does not assign row ids",
            cause="delta.rowTrackingSuspended is true",
            remedy="Remove the property first: table.alter().unset_properties('delta.rowTrackingSuspended').commit()",
        )
    files = _without_ids(snapshot).slice(0, files_per_commit)
    if not files.num_rows:
        return False
    counted = with_record_counts(snapshot.store, files, snapshot.configuration)
    _add_again(log, snapshot, counted, "ROW TRACKING BACKFILL", options)
    return True


def _take_some(log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. Return False if nothing is left to do."""
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
    """Commit existing files with changed log entries. The rows do not change."""

    def change(write: Write) -> dict[str, int]:
        write.transaction.read_files(files)
        write.transaction.add_known_files(without_data_change(files))
        return {"numAddedFiles": files.num_rows}

    run_plan(log, snapshot, WritePlan(operation, {"batchSize": files.num_rows}, change, options))


def _add_feature(log: TableLog, snapshot: Snapshot, options: CommitOptions) -> None:
    protocol = protocol_for_existing_table(snapshot.configuration, ["rowTracking"])
    parameters = {"newProtocol": orjson.dumps(body_to_json(protocol)).decode()}
    transaction = Transaction(log, snapshot, operation="UPGRADE PROTOCOL", operation_parameters=parameters, **options)
    transaction.update_protocol(protocol)
    transaction.commit()


def set_properties(log: TableLog, snapshot: Snapshot, properties: Mapping[str, str], options: CommitOptions) -> None:
    """Set table properties in a commit. Other properties stay."""
    configuration = with_properties_set(snapshot.metadata.configuration, properties)
    parameters = {"properties": orjson.dumps(properties).decode()}
    transaction = Transaction(log, snapshot, operation="SET TBLPROPERTIES", operation_parameters=parameters, **options)
    transaction.update_metadata(replace(snapshot.metadata, configuration=configuration))
    transaction.commit()


def _with_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    return pc.filter(
        files,
        pc.or_(pc.is_valid(FileTable(files).base_row_id), pc.is_valid(FileTable(files).default_row_commit_version)),
    ).combine_chunks()


def _without_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    lacking = pc.or_(pc.is_null(FileTable(files).base_row_id), pc.is_null(FileTable(files).default_row_commit_version))
    return pc.filter(files, lacking).combine_chunks()
