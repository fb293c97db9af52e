"""Auto compaction (`delta.autoOptimize.autoCompact`): a write that leaves many small files is followed by a commit that
merges them."""

from __future__ import annotations

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, Committed
from delta_orch.logger import Logger
from delta_orch.verbs.file_bins import candidates, compaction_metrics, cut_bins
from delta_orch.writing.plan import Write, WritePlan, run_plan

_LOGGER = Logger(__name__)

# The reference implementation's defaults. Only its session settings can change them.
MIN_FILES = 50
MAX_FILE_BYTES = 128 * 1024 * 1024
_MAX_DELETED_ROWS_RATIO = 0.05
_OPERATIONS = frozenset({"WRITE", "DELETE", "UPDATE", "MERGE", "CREATE OR REPLACE TABLE AS SELECT"})
"""They write rows. What only moves or names files is not followed by another commit."""


def compact_after(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """Merge the small files of the partitions that a commit has written to, where one of them has `MIN_FILES` or more.

    Small is a file below half of `MAX_FILE_BYTES`. The commit is an `OPTIMIZE` with `auto` true in its parameters. It
    changes no row. Rows are rewritten in this process, whatever engine wrote them. Files of a clustered table that were
    clustered and are merged count as not clustered until `optimize()`.

    Raises nothing: the write stands, and what fails here is logged and left to the next write.
    """
    try:
        if commit.operation in _OPERATIONS and commit.table.properties.auto_compact not in (None, "false"):
            _compact(log, read, commit)
    except Exception:
        _LOGGER.warning("Could not compact %s after version %d", log.store.uri, commit.version, exc_info=True)


def _compact(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    added = [files for files in commit.actions.adds if files.num_rows]
    if not added:
        return
    snapshot = log.snapshot() if read is None else log.advance(read)
    bins = _bins(snapshot, pa.concat_tables([files.select(["partition_values"]) for files in added]))
    if not bins:
        return

    def compact(write: Write) -> dict[str, int]:
        return compaction_metrics(*write.move(bins))

    parameters = {"predicate": "[]", "targetSize": str(MAX_FILE_BYTES), "zOrderBy": "[]", "auto": "true"}
    run_plan(log, snapshot, WritePlan("OPTIMIZE", parameters, compact, CommitOptions()))


def _bins(snapshot: Snapshot, added: pa.Table) -> tuple[pa.Table, ...]:
    files, live_bytes, is_stale = candidates(snapshot, None, _MAX_DELETED_ROWS_RATIO)
    keys = file_partition_keys(files, snapshot.schema, snapshot.partition_columns)
    written = file_partition_keys(added, snapshot.schema, snapshot.partition_columns)
    is_small = pc.or_(is_stale, pc.less(live_bytes, MAX_FILE_BYTES // 2))
    counted = pc.value_counts(pc.filter(keys, pc.and_(is_small, pc.is_in(keys, value_set=written))))
    many = pc.filter(counted.field("values"), pc.greater_equal(counted.field("counts"), MIN_FILES))
    chosen = pc.and_(is_small, pc.is_in(keys, value_set=many))
    stale = pc.indices_nonzero(pc.filter(is_stale, chosen)).to_pylist()
    return cut_bins(
        pc.filter(files, chosen), pc.filter(keys, chosen), pc.filter(live_bytes, chosen), MAX_FILE_BYTES, stale
    )
