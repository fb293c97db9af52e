"""Row ids for the rows that are there: what must be done before row tracking can be enabled on a table with files.

From the commit on that adds the feature, every writer gives ids to what it adds. The files from before are then added
again, in batches and without changing any row, with ids of their own (PROTOCOL, "Row Tracking": a "backfill
operation"). Any of these commits may be the last: the next attempt goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.footer_statistics import read_footer_statistics
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.arrow_building import string_array
from delta_orch.log.read.skipping.record_counts import record_counts, with_record_count
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.table.protocol_upgrade import protocol_for_existing_table
from delta_orch.writing.request import CommitOptions
from delta_orch.writing.row_id_commits import FILES_PER_COMMIT, add_again, commit_until_done


def lacks_row_ids(snapshot: Snapshot) -> bool:
    """Whether row tracking could not be enabled as the table is: some file has no row ids."""
    return bool(_without_ids(snapshot).num_rows)


def give_rows_ids(
    table_log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    *,
    options: CommitOptions,
    files_per_commit: int = FILES_PER_COMMIT,
) -> int:
    """Add the feature `rowTracking` where it is missing, then give ids to all files that have none.

    Other writers go on meanwhile. Where one of them removes a file of a batch, the batch is put together anew. The
    statistics of files that do not say how many records they have gain that number, from the files' own footers.

    Args:
        read_snapshot: Gives the newest version.
        options: `user_metadata` and `commit_info` of the commits; the rest is not looked at.

    Returns: How many commits that took.

    Raises:
        InvalidRequestError: Row tracking is suspended (`delta.rowTrackingSuspended`). Nothing was written.
        UnsupportedFeatureError: This release could not write the table afterwards.
        MissingFileError, StorageError: A footer cannot be read. Batches committed before stay, and do no harm.
        ConflictError: Others changed the table's metadata, or were faster time and again.
    """
    return commit_until_done(lambda told: _take_step(table_log, read_snapshot(), told, files_per_commit), options)


def _take_step(table_log: TableLog, snapshot: Snapshot, options: CommitOptions, files_per_commit: int) -> bool:
    """Make one commit. False where nothing is left to do."""
    if not snapshot.configuration.supports("rowTracking"):
        _add_feature(table_log, snapshot, options)
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
    add_again(table_log, snapshot, _with_counts(snapshot, files), "ROW TRACKING BACKFILL", options)
    return True


def _add_feature(table_log: TableLog, snapshot: Snapshot, options: CommitOptions) -> None:
    protocol = protocol_for_existing_table(snapshot.configuration, ["rowTracking"])
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    shown = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        **{key: names for key, names in features.items() if names is not None},
    }
    transaction = options.begin(table_log, snapshot, "UPGRADE PROTOCOL", {"newProtocol": orjson.dumps(shown).decode()})
    transaction.update_protocol(protocol)
    transaction.commit()


def _without_ids(snapshot: Snapshot) -> pa.Table:
    files = snapshot.files()
    lacking = pc.or_(files["base_row_id"].is_null(), files["default_row_commit_version"].is_null())
    return files.filter(lacking).combine_chunks()


def _with_counts(snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """The files, their statistics completed by how many records they have."""
    uncounted = pc.indices_nonzero(record_counts(files).is_null()).to_pylist()
    if not uncounted:
        return files
    paths = files.column("path").to_pylist()
    stats = files.column("stats").to_pylist()
    filesystem, _ = snapshot.store.data_filesystem()
    footers = read_footer_statistics(filesystem, [snapshot.store.resolve(paths[row]) for row in uncounted], ())
    for row, count in zip(uncounted, footers.column("num_records").to_pylist(), strict=True):
        stats[row] = with_record_count(stats[row], count)
    index = files.schema.get_field_index("stats")
    return files.set_column(index, files.schema.field("stats"), string_array(stats))
