"""`purge`: rewrites files without their deleted rows and dropped columns. The reference implementation calls it REORG …
APPLY (PURGE)."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES
from delta_orch.engines.file_traits import have_unknown_columns
from delta_orch.engines.select import EngineChoice
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import ensure_partition_predicate, resolve_predicate
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.protocol.arrow_building import int64_array, one_chunk
from delta_orch.storage.base import Maintenance
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from delta_orch.verbs.compaction import compaction_metrics, cut_bins
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write, WritePlan, run_plan
from delta_orch.writing.target import existing_target


def purge(
    log: TableLog,
    snapshot: Snapshot,
    where: str | Expression | None,
    engine: EngineChoice,
    options: CommitOptions,
) -> CommitResult:
    """Rewrite the files that hold deleted rows or dropped columns. These are files with a deletion vector and, with
    column mapping, files with a column that the table no longer has. No row changes, and rows keep their ids.

    Deleted rows stay in the older files until vacuum deletes these files. To erase deleted rows, run `purge` and then
    `vacuum`.

    Args:
        where: A predicate over partition columns. Other partitions do not change.

    Returns: `skipped` if no file holds deleted rows or dropped columns.

    Raises as `optimize`.
    """
    predicate = None
    if where is not None:
        predicate = resolve_predicate(where, snapshot.schema)
        ensure_partition_predicate(predicate, snapshot.partition_columns, "where")
    log.store.ensure_may_maintain(Maintenance.REORGANIZE, "purge()")
    properties = existing_target(snapshot).table.properties
    size = properties.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES
    parameters = {
        "predicate": "[]" if where is None else f"[{where if isinstance(where, str) else predicate}]",
        "applyPurge": "true",
    }

    def rewrite(write: Write) -> dict[str, int] | None:
        files = _files_to_purge(snapshot, predicate)
        if not files.num_rows:
            return None
        keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
        sizes = one_chunk(FileTable(files).size)
        bins = cut_bins(files, keys, sizes, size, stale=range(files.num_rows))
        return compaction_metrics(*write.move(bins))

    return run_plan(log, snapshot, WritePlan("REORG", parameters, rewrite, options, engine=engine))


def _files_to_purge(snapshot: Snapshot, where: Expression | None) -> pa.Table:
    files = snapshot.files(REMOVED_FILE_COLUMNS, where).combine_chunks()
    is_marked = one_chunk(pc.is_valid(FileTable(files).dv_id))
    if snapshot.configuration.column_mapping is ColumnMappingMode.NONE or is_marked.true_count == files.num_rows:
        # Without column mapping, dropping a column replaces all files.
        return pc.filter(files, is_marked)
    unmarked = pc.indices_nonzero(pc.invert(is_marked)).to_pylist()
    paths = pc.take(FileTable(files).path, int64_array(unmarked)).to_pylist()
    unknown = have_unknown_columns(
        snapshot.store, paths, snapshot.schema, snapshot.configuration.column_mapping, _own_columns(snapshot)
    )
    return pc.filter(files, pc.replace_with_mask(is_marked, pc.invert(is_marked), unknown))


def _own_columns(snapshot: Snapshot) -> Collection[str]:
    """Return the columns that files have in addition to the schema."""
    properties = snapshot.metadata.configuration
    tracked = (properties[key] for key in (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN) if key in properties)
    return {"_change_type", *tracked}
